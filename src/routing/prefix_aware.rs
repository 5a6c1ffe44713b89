//! `prefix_aware`: the key's home, unless its gate is closed (DESIGN section 4).
//!
//! It keeps no state, so routers that share nothing agree on every home.

use std::cmp::Ordering;
use std::sync::Arc;

use rand::Rng;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::candidates::by_load;
use super::least_outstanding::LeastOutstanding;
use super::{Aim, Candidates, Choice, Overflow, Reason, Settings, Strategy};
use crate::fleet::Replica;
use crate::request::Key;

pub(super) struct PrefixAware {
    threshold: u64,
    overflow: Overflow,
}

impl PrefixAware {
    pub(super) fn new(settings: &Settings) -> Self {
        let threshold = settings.concurrency_threshold.fixed();
        let overflow = settings.overflow.fixed().unwrap_or(if threshold.is_some() { Overflow::LeastLoaded } else { Overflow::NextChoices });
        Self { threshold: threshold.map_or(u64::MAX, |threshold| threshold.get()), overflow }
    }

    /// Where a request goes that `first`, its first choice, does not take. A gated replica is taken only where all in question are gated;
    /// it may then be `first` itself, since a threshold is not a limit.
    fn overflow<'a>(&self, key: Key, candidates: &Candidates<'a>) -> Option<&'a Arc<Replica>> {
        let rank = |replica: &&Arc<Replica>| replica.outstanding() >= self.threshold;
        match self.overflow {
            Overflow::LeastLoaded => {
                let mut all = candidates.iter();
                // In a fleet with little to do many are equal: no place among equals is worked out twice.
                let (mut least, mut place) = (all.next()?, None);
                for other in all {
                    match rank(&other).cmp(&rank(&least)).then_with(|| by_load(other, least)) {
                        Ordering::Less => (least, place) = (other, None),
                        Ordering::Equal => {
                            let its = tie_break(key, other);
                            if its < *place.get_or_insert_with(|| tie_break(key, least)) {
                                (least, place) = (other, Some(its));
                            }
                        }
                        Ordering::Greater => {}
                    }
                }
                Some(least)
            }
            // `min_by` keeps the earlier of equals: ties go by the key's order.
            Overflow::NextChoices => {
                candidates.order(key).take(3).min_by(|one, other| rank(one).cmp(&rank(other)).then_with(|| by_load(one, other)))
            }
        }
    }
}

impl Strategy for PrefixAware {
    fn choose(&self, aim: &Aim, candidates: &Candidates<'_>, rng: &mut dyn Rng) -> Option<Choice> {
        let &Aim::ByKey(key) = aim else {
            let choice = LeastOutstanding.choose(aim, candidates, rng)?;
            return Some(Choice { reason: Reason::NoKey, ..choice });
        };
        let (first, reason) = match candidates.home(key) {
            Some(home) => (home, Reason::Home),
            None => (candidates.order(key).next()?, Reason::Failover),
        };
        if let Some(lease) = first.lease_below(candidates.gate(self.threshold)) {
            return Some(Choice::new(lease, reason));
        }
        let replica = self.overflow(key, candidates)?;
        let reason = if replica.is(first) { reason } else { Reason::Overflow };
        Some(Choice::new(replica.lease(), reason))
    }
}

/// Orders equally loaded replicas for one key: the same way each time for this key, another way for other keys.
fn tie_break(key: Key, replica: &Replica) -> u64 {
    xxh3_64_with_seed(replica.name().as_bytes(), key.0)
}
