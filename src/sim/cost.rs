//! How long an engine's step takes: a few constants, and what a step has to do.
//!
//! It measures nothing. The defaults are estimates for Llama-3.1-70B on eight H100.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A step takes no longer than this, in seconds, whatever it has to do: far beyond any engine's, and far below where clocks overflow.
const LONGEST_STEP: f64 = 3_600.0;

/// What a step costs, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cost {
    /// Each step, whatever it does.
    pub step: f64,
    /// Each token of a prompt that is computed.
    pub prefill_token: f64,
    /// How much dearer, in parts, a prompt's token is for each token before it: attention looks at them all.
    pub prefill_context: f64,
    /// Each sequence that gets one more token.
    pub decode_sequence: f64,
    /// Each token that such a sequence has already.
    pub decode_context_token: f64,
}

impl Default for Cost {
    fn default() -> Self {
        Self { step: 12e-3, prefill_token: 32e-6, prefill_context: 1.9e-5, decode_sequence: 1e-4, decode_context_token: 17e-9 }
    }
}

impl Cost {
    /// The same engine, `factor` times as fast.
    #[must_use]
    pub fn faster(&self, factor: f64) -> Self {
        Self {
            step: self.step / factor,
            prefill_token: self.prefill_token / factor,
            prefill_context: self.prefill_context,
            decode_sequence: self.decode_sequence / factor,
            decode_context_token: self.decode_context_token / factor,
        }
    }

    /// What is wrong with these constants, if anything: a name, the value, and what is allowed.
    pub fn problem(&self) -> Option<String> {
        let constants = [
            ("step", self.step, 1e-6, 60.0),
            ("prefill_token", self.prefill_token, 0.0, 60.0),
            ("prefill_context", self.prefill_context, 0.0, 1.0),
            ("decode_sequence", self.decode_sequence, 0.0, 60.0),
            ("decode_context_token", self.decode_context_token, 0.0, 60.0),
        ];
        constants
            .into_iter()
            .find(|(_, value, least, most)| !(least..=most).contains(&value))
            .map(|(name, value, least, most)| format!("cost.{name}: {value} is out of range; allowed: {least} to {most}"))
    }

    pub(super) fn of(&self, work: &Work) -> Duration {
        let seconds = self.step
            + self.of_prefill(work)
            + self.decode_sequence * work.decode_sequences
            + self.decode_context_token * work.decode_context;
        Duration::from_secs_f64(seconds.min(LONGEST_STEP))
    }

    /// The part of it that goes into prompts, in seconds.
    pub(super) fn of_prefill(&self, work: &Work) -> f64 {
        self.prefill_token * (work.prefill_tokens + self.prefill_context * work.prefill_context)
    }
}

/// What a step has to do.
#[derive(Debug, Default)]
pub(super) struct Work {
    prefill_tokens: f64,
    /// The sum, over the prompts' tokens, of how many tokens are before each.
    prefill_context: f64,
    decode_sequences: f64,
    decode_context: f64,
}

impl Work {
    /// `tokens` tokens of a prompt, after `before` of its tokens.
    pub(super) fn prefill(&mut self, before: usize, tokens: usize) {
        let (before, tokens) = (before as f64, tokens as f64);
        self.prefill_tokens += tokens;
        self.prefill_context += tokens * (before + tokens / 2.0);
    }

    /// One token for a sequence that has `before`.
    pub(super) fn decode(&mut self, before: usize) {
        self.decode_sequences += 1.0;
        self.decode_context += before as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_costs_what_it_does() {
        let seconds = |work: &Work| Cost::default().of(work).as_secs_f64();
        let near = |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one} {other}");
        near(seconds(&Work::default()), 0.012);
        let mut prompt = Work::default();
        prompt.prefill(0, 8_000);
        near(seconds(&prompt), 0.012 + 8_000.0 * 32e-6 * (1.0 + 1.9e-5 * 4_000.0));
        let mut in_two = Work::default();
        in_two.prefill(0, 3_000);
        in_two.prefill(3_000, 5_000);
        near(seconds(&in_two), seconds(&prompt));
        let mut decode = Work::default();
        decode.decode(1_000);
        decode.decode(3_000);
        near(seconds(&decode), 0.012 + 2e-4 + 4_000.0 * 17e-9);
        near(Cost::default().faster(4.0).of(&decode).as_secs_f64(), seconds(&decode) / 4.0);
    }

    #[test]
    fn no_step_is_too_long_for_a_clock() {
        let dear = Cost { step: 60.0, prefill_token: 60.0, prefill_context: 1.0, decode_sequence: 60.0, decode_context_token: 60.0 };
        assert_eq!(dear.problem(), None);
        let mut work = Work::default();
        work.prefill(1 << 24, 1 << 24);
        assert_eq!(dear.of(&work), Duration::from_secs(3_600));
    }

    #[test]
    fn impossible_constants_are_named() {
        assert_eq!(Cost::default().problem(), None);
        for cost in [
            Cost { step: 0.0, ..Cost::default() },
            Cost { step: f64::NAN, ..Cost::default() },
            Cost { prefill_token: -1.0, ..Cost::default() },
            Cost { decode_sequence: f64::INFINITY, ..Cost::default() },
        ] {
            assert!(cost.problem().is_some_and(|problem| problem.starts_with("cost.")), "{cost:?}");
        }
    }
}
