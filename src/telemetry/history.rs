//! How many requests ended of late, by reason, in equal steps of time: what a page shows that is opened after the fact.
//!
//! It is a look at the counters now and then; requests do not know of it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::routing::Reason;

/// One step.
const STEP: Duration = Duration::from_secs(5);

/// Steps that are kept: ten minutes.
const STEPS: usize = 120;

/// Requests by reason, in the order of [`Reason::ALL`]; the last: no replica was chosen.
pub type ByReason = [u64; Reason::ALL.len() + 1];

/// The last minutes.
#[derive(Default)]
pub(super) struct History {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    steps: VecDeque<ByReason>,
    /// When the last step ended, and what had been counted until then.
    last: Option<(Instant, ByReason)>,
}

/// The last minutes, for whoever shows them.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// The length of a step.
    pub step: Duration,
    /// When the last of them ended; `None` where there is none.
    pub end: Option<Instant>,
    /// Requests that ended in each, the oldest first.
    pub steps: Vec<ByReason>,
}

impl History {
    /// Looks at what was counted, where that is due.
    pub(super) fn look(&self, now: Instant, count: impl FnOnce() -> ByReason) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let last = kept.last;
        if last.is_some_and(|(at, _)| now.saturating_duration_since(at) < STEP) {
            return;
        }
        let counted = count();
        if let Some((at, before)) = last {
            let mut step = counted;
            // The series of a model that has gone take their counts with them.
            step.iter_mut().zip(before).for_each(|(now, before)| *now = now.saturating_sub(before));
            // What was looked at late, as after a pause of the machine, keeps its place in time.
            let missed = (now.saturating_duration_since(at).as_secs() / STEP.as_secs()).saturating_sub(1).min(STEPS as u64);
            (0..missed).for_each(|_| kept.steps.push_back([0; Reason::ALL.len() + 1]));
            kept.steps.push_back(step);
        }
        while kept.steps.len() > STEPS {
            kept.steps.pop_front();
        }
        kept.last = Some((now, counted));
    }

    pub(super) fn flow(&self) -> Flow {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        Flow { step: STEP, end: kept.last.map(|(at, _)| at), steps: kept.steps.iter().copied().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_what_ended_in_it_and_old_ones_go() {
        let (history, start) = (History::default(), Instant::now());
        let look = |second: u64, home: u64| {
            let mut counted = ByReason::default();
            counted[0] = home;
            history.look(start + Duration::from_secs(second), || counted);
        };
        look(0, 10);
        assert_eq!(history.flow().steps, Vec::<ByReason>::new(), "what was before is nobody's");
        look(4, 11);
        look(5, 13);
        look(20, 14);
        look(25, 2);
        let homes: Vec<u64> = history.flow().steps.iter().map(|step| step[0]).collect();
        assert_eq!(homes, [3, 0, 0, 1, 0], "missed steps are empty, and what is counted anew is no less than nothing");
        (6..300).for_each(|step| look(5 * step, 14));
        assert_eq!(history.flow().steps.len(), STEPS);
    }
}
