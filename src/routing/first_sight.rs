//! Where a key goes that nobody asked for before (DESIGN section 4, first sight): its first choice, unless that costs the request more than the key will
//! ever save.
//!
//! No replica holds anything of it, so any would do; but other routers, and this one after a restart, look for it where the ring says. What counts of a
//! replica is therefore how many requests wait there for their first byte, of this router's, relative to its weight: these come before the next one.

use std::sync::Arc;

use super::{Candidates, FirstSight};
use crate::fleet::Replica;
use crate::request::Key;

/// Where fewer keys than this repeat, a key has no use for a home, and goes where the fewest wait.
const HARDLY_ANY_REUSE: f64 = 0.05;

/// From here on all keys are worth a home. In between it is the one rule for a part of the keys and the other for the rest, so that traffic does not fall
/// from one to the other at an edge. Nine of a hundred known keys are still traffic that hashing harms, by a third; with a higher end many routers lose
/// what they share.
const SOME_REUSE: f64 = 0.25;

/// So many requests have to wait at the first choice until a further one is better: with one, two routers that do not know of each other leave for the
/// same idle replica, and their keys' homes are scattered for nothing.
const PATIENCE: u64 = 2;

/// The same where this router is the only one: nobody else looks for the key.
const PATIENCE_ALONE: u64 = 1;

/// Where so many requests wait for each candidate all are busy, and what looks idle will not be for long.
const MOST_WAITING: u64 = 1;

/// How a key may be placed that was never seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    /// Whether this router is the only one.
    pub(super) is_alone: bool,
}

impl Rule {
    /// Which candidate becomes the key's home, where `first` is its first choice and `reuse` the share of keys that are known of late, if that can be
    /// said. Room does not matter: a home outlasts what is full now.
    pub(super) fn home<'a>(
        self,
        key: Key,
        reuse: Option<f64>,
        first: &'a Arc<Replica>,
        candidates: &Candidates<'a>,
    ) -> (&'a Arc<Replica>, FirstSight) {
        // An idle first choice is as good as any, whatever the rule.
        if first.waiting() == 0 {
            return (first, FirstSight::FirstChoice);
        }
        let (home, told) = if reuse.is_some_and(|reuse| is_spread(key, reuse)) {
            (fewest_waiting(key, candidates), FirstSight::FewestWaiting)
        } else {
            (self.idle_choice(key, first, candidates), FirstSight::FurtherChoice)
        };
        match home {
            Some(home) if !home.is(first) => (home, told),
            _ => (first, FirstSight::FirstChoice),
        }
    }

    /// The first idle one of the next choices, where too many wait at the first.
    fn idle_choice<'a>(self, key: Key, first: &'a Arc<Replica>, candidates: &Candidates<'a>) -> Option<&'a Arc<Replica>> {
        let (patience, choices) = if self.is_alone { (PATIENCE_ALONE, 2) } else { (PATIENCE, 1) };
        let waiting = first.waiting();
        let others = candidates.order_regardless_of_room(key).filter(|other| !other.is(first)).take(choices);
        // Relative to weight: on a replica twice as strong two requests are as one.
        let is_better = |other: &&Arc<Replica>| other.waiting() == 0 && waiting * other.weight() >= patience * first.weight();
        let other = { others }.find(is_better)?;
        if self.is_alone {
            return Some(other);
        }
        let (all, count) = candidates.regardless_of_room().fold((0, 0), |(all, count), one| (all + one.waiting(), count + 1));
        (all < MOST_WAITING * count).then_some(other)
    }
}

/// Whether a key goes where the fewest wait: at all of them up to the lower edge, at none from the upper on.
fn is_spread(key: Key, reuse: f64) -> bool {
    let careful = (reuse - HARDLY_ANY_REUSE) / (SOME_REUSE - HARDLY_ANY_REUSE);
    // Bits that neither the ring nor the table goes by first. 24 of them are exact.
    let place = f64::from((key.0 >> 20) as u32 & 0x00ff_ffff) / f64::from(1 << 24);
    careful <= 0.0 || place >= careful
}

/// The candidate where the fewest wait relative to its weight, the first in the key's order among equals.
fn fewest_waiting<'a>(key: Key, candidates: &Candidates<'a>) -> Option<&'a Arc<Replica>> {
    let mut all = candidates.regardless_of_room();
    let least = all.next()?;
    let (least, waiting) = all.fold((least, least.waiting()), |(least, waiting), other| {
        let its = other.waiting();
        if its * least.weight() < waiting * other.weight() { (other, its) } else { (least, waiting) }
    });
    // Where it has changed meanwhile there may be none as good any more.
    let is_as_good = |other: &&Arc<Replica>| other.waiting() * least.weight() <= waiting * other.weight();
    Some(candidates.order_regardless_of_room(key).find(is_as_good).unwrap_or(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_keys_that_are_spread_falls_between_the_edges() {
        let keys: Vec<Key> = (0_u64..10_000).map(|number| Key(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))).collect();
        // (reuse, of a hundred keys)
        for (reuse, expected) in [(0.0, 100.0), (0.05, 100.0), (0.1, 75.0), (0.15, 50.0), (0.2, 25.0), (0.25, 0.0), (1.0, 0.0)] {
            let spread = keys.iter().filter(|&&key| is_spread(key, reuse)).count() as f64 / 100.0;
            assert!((spread - expected).abs() < 2.0, "{reuse}: {spread}");
        }
        // A key that is spread at some reuse is so below.
        assert!(keys.iter().all(|&key| !is_spread(key, 0.2) || is_spread(key, 0.1)));
    }
}
