//! Tells in the log which boundaries of prompts move, and why: what so many requests share that it no longer says where they belong.
//!
//! It shows no word of any prompt, nor a key, which could be found out by trying prompts: only what a key comes to under a secret of this process.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::fleet::PoolName;
use crate::request::Key;
use crate::routing::{Direction, Moved};

/// A pool has one line in this time, so that traffic which changes quickly does not fill the log.
const PAUSE: Duration = Duration::from_secs(10);

/// Pools that are told apart, at most; a fleet with more is told of more often.
const MOST_POOLS: usize = 1_024;

/// Who tells of boundaries.
#[derive(Default)]
pub(super) struct Boundaries {
    /// Seeded at random where the process starts.
    secret: RandomState,
    told: Mutex<HashMap<PoolName, Told>>,
}

/// When a pool had its last line, and how many changes it had since.
struct Told {
    at: Instant,
    since: u64,
}

impl Boundaries {
    /// What a key is shown as.
    pub(super) fn masked(&self, key: Key) -> String {
        format!("{:016x}", self.secret.hash_one(key))
    }

    /// Tells of what moved in a pool, where it is time.
    pub(super) fn tell(&self, pool: &PoolName, moved: &[Moved], now: Instant) {
        if let Some((moved, untold)) = moved.last().and_then(|last| Some((last, self.is_due(pool, moved.len() as u64, now)?))) {
            let (pool, key) = (pool.label(), self.masked(moved.boundary.key));
            let direction = moved.direction.label();
            let depth = moved.boundary.depth;
            tracing::info!(pool, depth, direction, untold, "{}", sentence(pool, moved, &key, untold));
        }
    }

    /// How many changes are untold besides the one that may be told now; `None` where it may not.
    fn is_due(&self, pool: &PoolName, changes: u64, now: Instant) -> Option<u64> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= MOST_POOLS && !told.contains_key(pool) {
            told.clear();
        }
        match told.get_mut(pool) {
            Some(told) if now.saturating_duration_since(told.at) < PAUSE => {
                told.since += changes;
                None
            }
            _ => {
                let before = told.insert(pool.clone(), Told { at: now, since: 0 });
                Some(before.map_or(0, |before| before.since) + changes.saturating_sub(1))
            }
        }
    }
}

fn sentence(pool: &str, moved: &Moved, key: &str, untold: u64) -> String {
    let &Moved { boundary, direction, count, limit, window, replicas } = moved;
    let percent = |count: f32| f64::from(count) / f64::from(window) * 100.0;
    let (share, limit) = (percent(count), percent(limit));
    let what = match direction {
        Direction::Hot => {
            format!(
                "more than {limit:.1} %, the most for one of {replicas} replicas: from now on more of their prompts is looked at, so that they spread (nothing is to be done)"
            )
        }
        Direction::Cooled => {
            format!("less than half of {limit:.1} %, the most for one of {replicas} replicas: they are placed by these again")
        }
    };
    let untold =
        if untold > 0 { format!("; changes since the last line about this pool, besides this one: {untold}") } else { String::new() };
    format!("pool {pool}: the same first {} characters (key {key}) begin {share:.1} % of recent requests, {what}{untold}", boundary.depth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Boundary;

    fn moved(direction: Direction) -> Moved {
        let boundary = Boundary { depth: 4_096, key: Key(0x1234_5678_9abc_def0) };
        Moved { boundary, direction, count: 42.0, limit: 33.6, window: 1_050.0, replicas: 7 }
    }

    #[test]
    fn a_sentence_says_what_moved_and_why() {
        let hot = sentence("all", &moved(Direction::Hot), "0000000000000001", 0);
        let expected = "pool all: the same first 4096 characters (key 0000000000000001) begin 4.0 % of recent requests, more than 3.2 %, the most for one \
                        of 7 replicas: from now on more of their prompts is looked at, so that they spread (nothing is to be done)";
        assert_eq!(hot, expected);
        let cooled = sentence("m", &moved(Direction::Cooled), "1", 3);
        assert!(cooled.contains("less than half of 3.2 %") && cooled.ends_with("besides this one: 3"), "{cooled}");
    }

    #[test]
    fn a_pool_has_one_line_in_ten_seconds_and_what_is_left_out_is_counted() {
        let (boundaries, now, other) = (Boundaries::default(), Instant::now(), PoolName::Model("m".to_owned()));
        let after = |seconds, changes| boundaries.is_due(&PoolName::All, changes, now + Duration::from_secs(seconds));
        assert_eq!(after(0, 2), Some(1));
        assert_eq!(after(1, 1), None);
        assert_eq!(after(9, 3), None);
        assert_eq!(boundaries.is_due(&other, 1, now + Duration::from_secs(9)), Some(0), "each pool for itself");
        assert_eq!(after(10, 1), Some(4));
        assert_eq!(after(30, 1), Some(0));
    }

    #[test]
    fn what_is_kept_of_pools_is_bounded() {
        let (boundaries, now) = (Boundaries::default(), Instant::now());
        for index in 0..3 * MOST_POOLS {
            boundaries.is_due(&PoolName::Model(index.to_string()), 1, now);
        }
        assert!(boundaries.told.lock().expect("nobody panicked").len() <= MOST_POOLS);
    }

    #[test]
    fn a_key_is_shown_under_a_secret_of_its_own() {
        let (one, other) = (Boundaries::default(), Boundaries::default());
        let key = Key(7);
        assert_ne!(one.masked(key), "0000000000000007");
        assert_ne!(one.masked(key), other.masked(key));
    }
}
