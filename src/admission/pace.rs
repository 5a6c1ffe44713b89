//! How fast the queue moves, and so when it is worth asking again. It reads no clock.

use std::time::{Duration, Instant};

/// How much the last gap counts among all before.
const WEIGHT: f64 = 0.1;

/// The shortest and the longest time that a client is told to wait, in seconds. Clients follow no longer one than a minute.
const RETRY_AFTER: (u64, u64) = (1, 60);

/// What a gap is taken for where none is known yet, in seconds.
const UNKNOWN: f64 = 1.0;

/// The time between two waiting requests that go, of late.
#[derive(Debug, Default)]
pub struct Pace {
    /// Seconds on average; `None` until two have gone.
    gap: Option<f64>,
    /// When the last one went, or the first one began to wait.
    since: Option<Instant>,
}

impl Pace {
    /// Takes note that somebody begins to wait where nobody did: the time before is not one that anybody waited.
    pub fn begins(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// Takes note that a waiting request goes.
    pub fn went(&mut self, now: Instant) {
        if let Some(since) = self.since {
            let last = now.saturating_duration_since(since).as_secs_f64();
            self.gap = Some(self.gap.map_or(last, |gap| gap + WEIGHT * (last - gap)));
        }
        self.since = Some(now);
    }

    /// Seconds after which as many as `waiting` now will have gone, by that pace: 1 to 60. Where nobody has gone for longer than usual, that is the pace.
    pub fn retry_after(&self, waiting: usize, now: Instant) -> u64 {
        let (least, most) = RETRY_AFTER;
        let still = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since)).as_secs_f64();
        let gap = self.gap.unwrap_or(UNKNOWN);
        let gap = if waiting > 0 { gap.max(still) } else { gap };
        // A float becomes an integer by saturation.
        ((gap * waiting as f64).ceil() as u64).clamp(least, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, seconds: f64) -> Instant {
        start + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn it_is_the_queue_by_the_pace() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert_eq!([0, 7, 1_000].map(|waiting| pace.retry_after(waiting, start)), [1, 7, 60], "nothing is known");
        pace.begins(start);
        for step in 1..=100 {
            pace.went(after(start, f64::from(step) * 0.25));
        }
        let now = after(start, 25.0);
        for (waiting, expected) in [(0, 1), (1, 1), (4, 1), (5, 2), (40, 10), (10_000, 60)] {
            assert_eq!(pace.retry_after(waiting, now), expected, "{waiting}");
        }
    }

    #[test]
    fn a_queue_that_stands_still_is_slow_and_an_empty_one_is_not() {
        let start = Instant::now();
        let mut pace = Pace::default();
        pace.begins(start);
        pace.went(after(start, 0.1));
        assert_eq!(pace.retry_after(2, after(start, 10.1)), 20);
        // Nobody waits for an hour; that is no gap.
        pace.begins(after(start, 3_600.0));
        pace.went(after(start, 3_600.1));
        assert_eq!(pace.retry_after(10, after(start, 3_600.1)), 1);
    }
}
