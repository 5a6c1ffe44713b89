//! The retry budget: how many requests may be sent once more, so that a fleet which is short of breath is not asked for even more.
//!
//! It reads no clock.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Tokens that can be saved up, in seconds' worth of the floor and in requests' worth of the share: enough for a burst, not for a flood.
const SAVED_SECONDS: f64 = 10.0;
const SAVED_REQUESTS: f64 = 1_000.0;

/// Each request puts a share of a token in, each second puts the floor in, each retry takes one out.
pub(super) struct Budget {
    /// Tokens per request.
    share: f64,
    /// Tokens per second.
    floor: f64,
    saved: Mutex<(f64, Instant)>,
}

impl Budget {
    /// A budget of `percent` of the requests and `floor` retries per second, which begins with what it can save of the floor.
    pub(super) fn new(percent: u32, floor: u32, now: Instant) -> Self {
        let floor = f64::from(floor);
        Self { share: f64::from(percent) / 100.0, floor, saved: Mutex::new((floor * SAVED_SECONDS, now)) }
    }

    /// Takes note of a request.
    pub(super) fn deposit(&self, now: Instant) {
        self.change(now, |tokens| *tokens += self.share);
    }

    /// Whether one retry is allowed now; it is paid for then.
    pub(super) fn withdraw(&self, now: Instant) -> bool {
        self.change(now, |tokens| {
            let enough = *tokens >= 1.0;
            *tokens -= f64::from(u8::from(enough));
            enough
        })
    }

    fn change<R>(&self, now: Instant, change: impl FnOnce(&mut f64) -> R) -> R {
        // Nothing panics while it holds this lock.
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let (tokens, since) = &mut *saved;
        *tokens += self.floor * now.saturating_duration_since(*since).as_secs_f64();
        *since = now.max(*since);
        *tokens = tokens.min(self.floor * SAVED_SECONDS + self.share * SAVED_REQUESTS);
        change(tokens)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Retries that are allowed one after the other at `now`.
    fn allowed(budget: &Budget, now: Instant) -> usize {
        (0..10_000).take_while(|_| budget.withdraw(now)).count()
    }

    #[test]
    fn the_floor_is_allowed_whatever_happens() {
        let start = Instant::now();
        let budget = Budget::new(0, 3, start);
        assert_eq!(allowed(&budget, start), 30);
        assert_eq!(allowed(&budget, start + Duration::from_secs(2)), 6);
        assert_eq!(allowed(&budget, start + Duration::from_secs(3_600)), 30);
    }

    #[test]
    fn a_share_of_the_requests_is_allowed() {
        let start = Instant::now();
        for (percent, expected) in [(0, 0), (20, 20), (34, 34), (100, 100)] {
            let budget = Budget::new(percent, 0, start);
            for _ in 0..100 {
                budget.deposit(start);
            }
            // Shares are no exact binary fractions; a missing last token is no matter.
            assert!((expected - 1..=expected).contains(&(allowed(&budget, start) as i32)), "{percent} %");
        }
    }

    #[test]
    fn savings_are_bounded() {
        let start = Instant::now();
        let budget = Budget::new(20, 3, start);
        for _ in 0..100_000 {
            budget.deposit(start);
        }
        assert!(allowed(&budget, start) <= 230);
    }
}
