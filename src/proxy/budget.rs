//! The retry budget: how many requests may be sent once more, so that a fleet which is short of breath is not asked for even more.
//!
//! It reads no clock.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Tokens that can be saved up, in seconds' worth of the floor and in requests' worth of the share: enough for a burst, not for a flood.
const SAVED_SECONDS: f64 = 10.0;
const SAVED_REQUESTS: f64 = 1_000.0;

/// How much of it there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudget {
    /// Retries in percent of requests.
    pub percent: u32,
    /// Retries per second that are allowed whatever the share.
    pub floor: u32,
}

impl RetryBudget {
    /// Tokens that each request puts in.
    fn share(self) -> f64 {
        f64::from(self.percent) / 100.0
    }

    fn per_second(self) -> f64 {
        f64::from(self.floor)
    }
}

/// Each request puts a share of a token in, each second puts the floor in, each retry takes one out. How much that is may change at any time.
pub(super) struct Budget {
    saved: Mutex<(f64, Instant)>,
}

impl Budget {
    /// One that begins with what it can save of the floor.
    pub(super) fn new(limits: RetryBudget, now: Instant) -> Self {
        Self { saved: Mutex::new((limits.per_second() * SAVED_SECONDS, now)) }
    }

    /// Takes note of a request.
    pub(super) fn deposit(&self, limits: RetryBudget, now: Instant) {
        self.change(limits, now, |tokens| *tokens += limits.share());
    }

    /// Whether one retry is allowed now; it is paid for then.
    pub(super) fn withdraw(&self, limits: RetryBudget, now: Instant) -> bool {
        self.change(limits, now, |tokens| {
            let enough = *tokens >= 1.0;
            *tokens -= f64::from(u8::from(enough));
            enough
        })
    }

    fn change<R>(&self, limits: RetryBudget, now: Instant, change: impl FnOnce(&mut f64) -> R) -> R {
        // Nothing panics while it holds this lock.
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let (tokens, since) = &mut *saved;
        *tokens += limits.per_second() * now.saturating_duration_since(*since).as_secs_f64();
        *since = now.max(*since);
        *tokens = tokens.min(limits.per_second() * SAVED_SECONDS + limits.share() * SAVED_REQUESTS);
        change(tokens)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Retries that are allowed one after the other at `now`.
    fn allowed(budget: &Budget, limits: RetryBudget, now: Instant) -> usize {
        (0..10_000).take_while(|_| budget.withdraw(limits, now)).count()
    }

    #[test]
    fn the_floor_is_allowed_whatever_happens() {
        let start = Instant::now();
        let limits = RetryBudget { percent: 0, floor: 3 };
        let budget = Budget::new(limits, start);
        assert_eq!(allowed(&budget, limits, start), 30);
        assert_eq!(allowed(&budget, limits, start + Duration::from_secs(2)), 6);
        assert_eq!(allowed(&budget, limits, start + Duration::from_secs(3_600)), 30);
    }

    #[test]
    fn a_share_of_the_requests_is_allowed() {
        let start = Instant::now();
        for (percent, expected) in [(0, 0), (20, 20), (34, 34), (100, 100)] {
            let limits = RetryBudget { percent, floor: 0 };
            let budget = Budget::new(limits, start);
            for _ in 0..100 {
                budget.deposit(limits, start);
            }
            // Shares are no exact binary fractions; a missing last token is no matter.
            assert!((expected - 1..=expected).contains(&(allowed(&budget, limits, start) as i32)), "{percent} %");
        }
    }

    #[test]
    fn savings_are_bounded() {
        let start = Instant::now();
        let limits = RetryBudget { percent: 20, floor: 3 };
        let budget = Budget::new(limits, start);
        for _ in 0..100_000 {
            budget.deposit(limits, start);
        }
        assert!(allowed(&budget, limits, start) <= 230);
    }
}
