//! Whether the picture of a replica's cache is right: what was expected there against what its answers, or its engine's counters, say was found.

use super::forecast::{Forecast, Turn, Verdict};
use super::learnt::{Beyond, Learnt};
use crate::request::Usage;

/// Fewer tokens tell nothing of a cache.
const LEAST_TOKENS: f64 = 256.0;

/// Shorter prompts, in tokens, say nothing of what others have sent.
const LEAST_PROMPT: f64 = 256.0;

/// The picture is wrong where less than this part is found of what is thought to be there, and right again above the other.
const WRONG: f64 = 0.5;
const RIGHT: f64 = 0.7;

/// Nothing is called wrong after fewer answers.
const LEAST_ANSWERS: f64 = 50.0;

/// Weight of one answer in how much is kept.
const WEIGHT: f64 = 0.05;

/// What a reading of an engine's counters adds is judged together with what was before it, which counts so much less each time: some ten readings.
const FADE: f64 = 0.9;

/// Fewer tokens looked up say nothing.
const LEAST_LOOKED_UP: f64 = 4_096.0;

/// One reading counts as no more than so many answers.
const MOST_ANSWERS: f64 = 10.0;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Check {
    /// What began since the engine's counters were read last.
    begun: Sums,
    /// The same before that, fading, and what the engine counted.
    before: Sums,
    looked_up: [f64; 2],
    /// Answers that told what was found, since then: they tell more than counters.
    told: u64,
    is_wrong: bool,
}

/// Of several requests.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    requests: f64,
    prompt_bytes: f64,
    held_bytes: f64,
    expected_bytes: f64,
}

impl Check {
    /// Whether much less is found than is thought to be there.
    pub(super) fn is_wrong(&self) -> bool {
        self.is_wrong
    }

    /// A request's answer has begun, so its prompt has been looked up.
    pub(super) fn begun(&mut self, forecast: &Forecast) {
        if forecast.is_text {
            self.begun.requests += 1.0;
            self.begun.prompt_bytes += forecast.prompt_bytes as f64;
            self.begun.held_bytes += forecast.held_bytes as f64;
            self.begun.expected_bytes += forecast.expected_bytes;
        }
    }

    /// An answer has said what it took.
    pub(super) fn answered(&mut self, forecast: &Forecast, usage: &Usage, learnt: &mut Learnt) -> Option<Verdict> {
        let (prompt, found) = (usage.prompt_tokens as f64, usage.cached_tokens? as f64);
        self.told += 1;
        let share = |bytes: f64| if forecast.prompt_bytes == 0 { 0.0 } else { bytes / forecast.prompt_bytes as f64 };
        let (held, expected) = (prompt * share(forecast.held_bytes as f64), prompt * share(forecast.expected_bytes));
        if held >= LEAST_TOKENS {
            learnt.kept.learn((found / held).min(1.0), WEIGHT);
        }
        if let Some(beyond) = forecast.beyond
            && prompt >= LEAST_PROMPT
            && prompt - held >= 1.0
        {
            learnt.found_beyond(beyond, (found - held) / (prompt - held), 1.0);
        }
        let longer = forecast.seconds_per_token * super::OWN * (expected - found);
        Some(Verdict {
            expected_tokens: expected,
            found_tokens: found,
            prompt_tokens: prompt,
            regret_seconds: Some((longer - forecast.saves).max(0.0)),
            turned: self.judge(learnt),
        })
    }

    /// The engine's counters have been read: tokens that it looked up in its cache since the last time, and those that it found. Of interest where its
    /// answers do not tell. What other routers sent is in it as well; it is taken to be as what this one sent.
    pub(super) fn looked_up(&mut self, looked_up: Option<[u64; 2]>, learnt: &mut Learnt, shows_others: bool) -> Option<Verdict> {
        let (begun, told) = (std::mem::take(&mut self.begun), std::mem::take(&mut self.told));
        let [queries, hits] = looked_up?.map(|tokens| tokens as f64);
        if told > 0 || begun.requests == 0.0 || queries == 0.0 {
            return None;
        }
        self.before = self.before.faded_and(begun);
        self.looked_up = [self.looked_up[0] * FADE + queries, self.looked_up[1] * FADE + hits];
        let Sums { prompt_bytes, held_bytes, .. } = self.before;
        if prompt_bytes > 0.0 && self.looked_up[0] >= LEAST_LOOKED_UP {
            let (found, held) = (self.looked_up[1] / self.looked_up[0], held_bytes / prompt_bytes);
            let answers = begun.requests.min(MOST_ANSWERS);
            if held * queries >= LEAST_TOKENS {
                learnt.kept.learn((found / held).min(1.0), WEIGHT * answers);
                learnt.kept.answers += answers - 1.0;
            }
            if shows_others && held < 1.0 {
                [Beyond::Nothing, Beyond::Known]
                    .into_iter()
                    .for_each(|beyond| learnt.found_beyond(beyond, (found - held) / (1.0 - held), answers));
            }
        }
        Some(Verdict {
            expected_tokens: queries * begun.expected_bytes / begun.prompt_bytes.max(1.0),
            found_tokens: hits,
            prompt_tokens: queries,
            regret_seconds: None,
            turned: self.judge(learnt),
        })
    }

    fn judge(&mut self, learnt: &Learnt) -> Option<Turn> {
        let kept = learnt.kept.value;
        let is_wrong = if self.is_wrong { kept < RIGHT } else { kept < WRONG && learnt.kept.answers >= LEAST_ANSWERS };
        let turned = std::mem::replace(&mut self.is_wrong, is_wrong) != is_wrong;
        turned.then_some(Turn { is_wrong, kept })
    }
}

impl Sums {
    fn faded_and(self, more: Self) -> Self {
        Self {
            requests: self.requests * FADE + more.requests,
            prompt_bytes: self.prompt_bytes * FADE + more.prompt_bytes,
            held_bytes: self.held_bytes * FADE + more.held_bytes,
            expected_bytes: self.expected_bytes * FADE + more.expected_bytes,
        }
    }
}
