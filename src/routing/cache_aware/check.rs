//! Whether the picture of a replica's cache is right: what was expected there against what its answers, or its engine's counters, say was found.

use super::forecast::{Forecast, Turn, Verdict};
use super::learnt::{Beyond, Learnt};
use crate::request::Usage;

/// Fewer tokens tell nothing of a cache.
const LEAST_TOKENS: f64 = 256.0;

/// A reading says nothing where more than one of so many requests had something in its prompt whose tokens cannot be told from its bytes.
const HARDLY_ANY: f64 = 10.0;

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

/// Answers that tell what was found tell more than counters, which count the same again: so many readings later as well, since a long answer tells at its end.
const TOLD: u32 = 300;

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
    /// Readings for which counters are left alone, since answers tell what was found.
    told: u32,
    is_wrong: bool,
}

/// Of several requests.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    requests: f64,
    opaque: f64,
    prompt_bytes: f64,
    held_bytes: f64,
    expected_bytes: f64,
    /// Of prompts of which hardly anything was known to be anywhere.
    unknown_bytes: f64,
}

impl Check {
    /// Whether much less is found than is thought to be there.
    pub(super) fn is_wrong(&self) -> bool {
        self.is_wrong
    }

    /// Whether enough is known to say so.
    pub(super) fn is_judged(learnt: &Learnt) -> bool {
        learnt.kept.answers >= LEAST_ANSWERS
    }

    /// A request's answer has begun, so its prompt has been looked up.
    pub(super) fn begun(&mut self, forecast: &Forecast) {
        let begun = &mut self.begun;
        begun.requests += 1.0;
        begun.opaque += f64::from(u8::from(!forecast.is_text));
        begun.prompt_bytes += forecast.prompt_bytes as f64;
        begun.held_bytes += forecast.held_bytes as f64;
        begun.expected_bytes += forecast.expected_bytes;
        if forecast.beyond == Some(Beyond::Nothing) {
            begun.unknown_bytes += forecast.prompt_bytes as f64;
        }
    }

    /// The engine has begun anew.
    pub(super) fn begin_anew(&mut self, learnt: &mut Learnt) {
        *self = Self { is_wrong: self.is_wrong, ..Self::default() };
        learnt.forget_kept();
    }

    /// The engine says that it caches no prefixes.
    pub(super) fn caches_nothing(&mut self, learnt: &mut Learnt) -> Option<Verdict> {
        learnt.keeps_nothing();
        let turned = self.judge(learnt)?;
        Some(Verdict { expected_tokens: 0.0, found_tokens: 0.0, prompt_tokens: 0.0, regret_seconds: None, turned: Some(turned) })
    }

    /// An answer has said what it took.
    pub(super) fn answered(&mut self, forecast: &Forecast, usage: &Usage, learnt: &mut Learnt) -> Option<Verdict> {
        let (prompt, found) = (usage.prompt_tokens as f64, usage.cached_tokens? as f64);
        self.told = TOLD;
        let share = |bytes: f64| if forecast.prompt_bytes == 0 { 0.0 } else { bytes / forecast.prompt_bytes as f64 };
        let (held, expected) = (prompt * share(forecast.held_bytes as f64), prompt * share(forecast.expected_bytes));
        if held >= LEAST_TOKENS {
            learnt.kept.learn((found / held).min(1.0), WEIGHT);
        }
        if let Some(beyond) = forecast.beyond
            && prompt >= LEAST_TOKENS
            && prompt - held >= 1.0
        {
            learnt.found_beyond(beyond, (found - held) / (prompt - held), 1.0);
        }
        let longer = forecast.seconds_per_token * (expected - found);
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
        let begun = std::mem::take(&mut self.begun);
        let told = self.told;
        self.told = told.saturating_sub(1);
        let [queries, hits] = looked_up?.map(|tokens| tokens as f64);
        if told > 0 || begun.requests == 0.0 || queries == 0.0 || begun.opaque * HARDLY_ANY > begun.requests {
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
                let unknown = self.before.unknown_bytes / prompt_bytes;
                let beyond = if unknown > 1.0 - 1.0 / HARDLY_ANY { Beyond::Nothing } else { Beyond::Known };
                learnt.found_beyond(beyond, (found - held) / (1.0 - held), answers);
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
        let is_wrong = if self.is_wrong { kept < RIGHT } else { kept < WRONG && Self::is_judged(learnt) };
        let turned = std::mem::replace(&mut self.is_wrong, is_wrong) != is_wrong;
        turned.then_some(Turn { is_wrong, kept })
    }
}

impl Sums {
    fn faded_and(self, more: Self) -> Self {
        Self {
            prompt_bytes: self.prompt_bytes * FADE + more.prompt_bytes,
            held_bytes: self.held_bytes * FADE + more.held_bytes,
            unknown_bytes: self.unknown_bytes * FADE + more.unknown_bytes,
            ..more
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Fleet, ReplicaSpec, health};
    use crate::routing::cache_aware::learnt::Together;
    use crate::routing::cache_aware::picture::Pictures;
    use crate::units::Weight;

    /// What was expected of a prompt of 4,000 bytes of which so much is thought to be held.
    fn forecast(held_bytes: usize) -> Forecast {
        let spec = ReplicaSpec { name: "a".to_owned(), authority: String::new(), weight: Weight::clamped(1), models: vec![], drain: false };
        let fleet = Fleet::new(vec![spec], health::Settings::default(), 0);
        Forecast {
            picture: Pictures::new(1 << 20).of(&fleet.snapshot().replicas()[0]),
            ticket: 0,
            prompt_bytes: 4_000,
            held_bytes,
            expected_bytes: held_bytes as f64,
            tokens: 1.0,
            seconds_per_token: 1e-4,
            own: 0.0,
            others: 0.0,
            generation: 0,
            sent: std::time::Instant::now(),
            saves: 0.01,
            beyond: Some(Beyond::Known),
            streams: true,
            is_text: true,
        }
    }

    fn usage(cached_tokens: Option<u64>) -> Usage {
        Usage { prompt_tokens: 1_000, cached_tokens, completion_tokens: None }
    }

    #[test]
    fn expected_and_found_are_compared_in_tokens_and_regretted_where_another_would_have_been_better() {
        let (mut check, mut learnt) = (Check::default(), Learnt::default());
        let verdict = check.answered(&forecast(3_200), &usage(Some(600)), &mut learnt).expect("it says so");
        assert_eq!((verdict.expected_tokens, verdict.found_tokens, verdict.prompt_tokens), (800.0, 600.0, 1_000.0));
        // 200 tokens more, 100 µs each, less the 10 ms that it was better by.
        assert!(verdict.regret_seconds.is_some_and(|regret| (regret - 0.01).abs() < 1e-9), "{verdict:?}");
        let more = check.answered(&forecast(3_200), &usage(Some(900)), &mut learnt).expect("it says so");
        assert_eq!(more.regret_seconds, Some(0.0));
        assert_eq!(check.answered(&forecast(3_200), &usage(None), &mut learnt), None, "it does not say");
    }

    #[test]
    fn a_picture_is_wrong_when_little_is_found_for_long_and_right_again_when_it_is() {
        let (mut check, mut learnt) = (Check::default(), Learnt::default());
        let mut tell = |cached, times: usize| {
            let turns = (0..times).filter_map(|_| check.answered(&forecast(3_200), &usage(Some(cached)), &mut learnt)?.turned);
            turns.map(|turn| turn.is_wrong).collect::<Vec<_>>()
        };
        assert_eq!(tell(800, 100), [false; 0]);
        assert_eq!(tell(0, 10), [false; 0], "a few are chance");
        assert_eq!(tell(0, 100), [true]);
        assert_eq!(tell(800, 100), [false]);
    }

    #[test]
    fn an_engines_counters_tell_where_its_answers_do_not() {
        let begins = |check: &mut Check| (0..10).for_each(|_| check.begun(&forecast(2_000)));
        let run = |found: u64| {
            let (mut check, mut learnt, mut wrong) = (Check::default(), Learnt::default(), false);
            for _ in 0..40 {
                begins(&mut check);
                let verdict = check.looked_up(Some([10_000, found]), &mut learnt, true).expect("it counts");
                assert_eq!((verdict.expected_tokens, verdict.found_tokens, verdict.regret_seconds), (5_000.0, found as f64, None));
                wrong = verdict.turned.map_or(wrong, |turn| turn.is_wrong);
            }
            (wrong, learnt.kept.value, Together::of([(&learnt, 1.0)].into_iter()).credit(Beyond::Known))
        };
        let (wrong, kept, credit) = run(5_000);
        assert!(!wrong && kept > 0.99 && credit < 0.01, "{kept} {credit}");
        let (wrong, kept, _) = run(0);
        assert!(wrong && kept < 0.1, "{kept}");
        // Half of what is beyond was sent by others.
        let (wrong, kept, credit) = run(7_500);
        assert!(!wrong && kept > 0.99 && (credit - 0.5).abs() < 0.05, "{kept} {credit}");
        // Where answers tell, or nothing was asked, counters are left alone.
        let (mut check, mut learnt) = (Check::default(), Learnt::default());
        begins(&mut check);
        check.answered(&forecast(2_000), &usage(Some(500)), &mut learnt);
        assert_eq!(check.looked_up(Some([10_000, 0]), &mut learnt, true), None);
        begins(&mut check);
        assert_eq!(check.looked_up(Some([10_000, 0]), &mut learnt, true), None, "the next answers will tell, too");
        assert_eq!(check.looked_up(None, &mut learnt, true), None);
    }
}
