//! `prefix_aware`: the key's home, unless its gate is closed (DESIGN section 4).
//!
//! Where the prefix has a fixed length it chooses by no state, so routers that share nothing agree on every home. Where traffic decides the length it remembers
//! that traffic, in bounded memory; routers that see the same traffic still agree on almost all.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Instant;

use rand::Rng;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::candidates::by_load;
use super::first_sight::Rule;
use super::gate::Gate;
use super::least_outstanding::LeastOutstanding;
use super::memories::Keys;
use super::sight::{Seen, Sight};
use super::{
    Aim, Candidates, Choice, Explanation, FirstSight, HotKey, Insight, Overflow, PassedOver, Peek, Reason, Settings, Standing, Strategy,
    Would,
};
use crate::fleet::{Pool, Replica, tag};
use crate::request::{Ask, Boundaries, Boundary, Key};
use crate::units::OrAuto;

/// Replicas that a hot key's requests stay on under `next_choices`: more would spread its prefix over the fleet, and push out what others have there.
const CHOICES: usize = 3;

pub(super) struct PrefixAware {
    gate: Gate,
    overflow: Overflow,
    keys: Keys,
    first_sight: Rule,
}

/// Where a key belongs, and why.
struct Home<'a> {
    replica: &'a Arc<Replica>,
    reason: Reason,
    first_sight: Option<FirstSight>,
}

impl PrefixAware {
    pub(super) fn new(settings: &Settings) -> Self {
        let overflow = match (settings.overflow, settings.concurrency_threshold) {
            (OrAuto::Fixed(overflow), _) => overflow,
            (OrAuto::Auto, OrAuto::Fixed(_)) => Overflow::LeastLoaded,
            (OrAuto::Auto, OrAuto::Auto) => Overflow::NextChoices,
        };
        Self {
            gate: settings.concurrency_threshold.into(),
            overflow,
            keys: Keys::new(settings.prefix_length, settings.studies),
            first_sight: Rule { is_alone: settings.routers == 1 },
        }
    }

    /// The replica that is the key's home for this router. What is remembered is a hint: where that replica cannot be chosen the ring is asked, as if
    /// nothing were.
    fn home<'a>(&self, sight: &Sight, candidates: &Candidates<'a>) -> Option<Home<'a>> {
        if let Seen::Before(tag) = sight.seen
            && tag > 0
            && let Some(replica) = candidates.tagged(tag)
        {
            return Some(Home { replica, reason: Reason::Home, first_sight: None });
        }
        let (first, reason) = match candidates.home(sight.key) {
            Some(home) => (home, Reason::Home),
            None => (candidates.order(sight.key).next()?, Reason::Failover),
        };
        match sight.seen {
            // A further try goes along the key's order, and is not one by which to judge who waits.
            Seen::Never { reuse, .. } if !candidates.is_another_try() => {
                let (replica, told) = self.first_sight.home(sight.key, reuse, first, candidates);
                Some(Home { replica, reason, first_sight: Some(told) })
            }
            _ => Some(Home { replica: first, reason, first_sight: None }),
        }
    }

    /// Keeps in mind a home that is not the ring's. While the ring's is away nothing is: its keys come back to it.
    fn remember(&self, sight: &Sight, home: &Home<'_>, pool: &Pool) {
        if let Seen::Never { at, .. } = sight.seen
            && home.reason == Reason::Home
            && home.first_sight.is_some_and(|told| told != FirstSight::FirstChoice)
        {
            self.keys.remember(pool.name(), sight.key.0, at, tag(home.replica.name()));
        }
    }

    /// The home, where another one takes its place.
    fn passed_over(&self, home: &Home<'_>, taken: &Replica) -> Option<PassedOver> {
        let replica = home.replica;
        (!taken.is(replica)).then(|| PassedOver { replica: Arc::clone(replica), outstanding: replica.outstanding() })
    }

    /// Where a request goes that `home` does not take. A gated replica is taken only where all in question are gated; it may then be `home` itself, since
    /// a threshold is not a limit.
    fn overflow<'a>(&self, key: Key, home: &'a Arc<Replica>, candidates: &Candidates<'a>) -> Option<&'a Arc<Replica>> {
        let thresholds = self.gate.thresholds(candidates);
        let better = |one: &Arc<Replica>, other: &Arc<Replica>| {
            thresholds.is_closed(one).cmp(&thresholds.is_closed(other)).then_with(|| by_load(one, other))
        };
        match self.overflow {
            Overflow::LeastLoaded => {
                let mut all = candidates.iter();
                // In a fleet with little to do many are equal: no place among equals is worked out twice.
                let (mut least, mut place) = (all.next()?, None);
                for other in all {
                    match better(other, least) {
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
                let first = Some(home).filter(|home| !candidates.is_full(home));
                let next = candidates.order(key).filter(|other| !other.is(home));
                first.into_iter().chain(next).take(CHOICES).min_by(|one, other| better(one, other))
            }
        }
    }
}

impl Strategy for PrefixAware {
    fn aim(&self, _: &Ask, boundaries: &Boundaries, pool: &Pool) -> Aim {
        self.keys.look(boundaries, pool).map_or(Aim::NoKey, Aim::ByKey)
    }

    fn peek(&self, _: &Ask, boundaries: &Boundaries, pool: &Pool) -> Peek {
        self.keys.peek(boundaries, pool)
    }

    fn is_enough(&self, boundary: &Boundary, pool: &Pool) -> bool {
        self.keys.is_enough(boundary, pool)
    }

    fn choose(&self, aim: &Aim, candidates: &Candidates<'_>, rng: &mut dyn Rng) -> Option<Choice> {
        let Aim::ByKey(sight) = aim else {
            let choice = LeastOutstanding.choose(aim, candidates, rng)?;
            return Some(Choice { reason: Reason::NoKey, ..choice });
        };
        let home = self.home(sight, candidates)?;
        let choice = match self.gate.enter(home.replica, candidates) {
            Some(lease) => Choice::new(lease, home.reason),
            None => {
                let replica = self.overflow(sight.key, home.replica, candidates)?;
                match self.passed_over(&home, replica) {
                    None => Choice::new(replica.lease(), home.reason),
                    instead_of => Choice { instead_of, ..Choice::new(replica.lease(), Reason::Overflow) },
                }
            }
        };
        self.remember(sight, &home, candidates.pool());
        Some(Choice { first_sight: home.first_sight, ..choice })
    }

    fn explain(&self, aim: &Aim, candidates: &Candidates<'_>) -> Explanation {
        let Aim::ByKey(sight) = aim else {
            let mut by_load = LeastOutstanding.explain(aim, candidates);
            if let Would::Go { reason, .. } | Would::Any(reason) = &mut by_load.would {
                *reason = Reason::NoKey;
            }
            return by_load;
        };
        let thresholds = self.gate.thresholds(candidates);
        let standing = |(rank, replica): (usize, &Arc<Replica>)| Standing {
            rank: Some(rank),
            is_full: candidates.is_full(replica),
            threshold: Some(thresholds.of(replica)).filter(|&threshold| threshold < u64::MAX),
            ..Standing::of(replica)
        };
        let standings = candidates.order_regardless_of_room(sight.key).enumerate().map(standing).collect();
        let go = |replica: &Arc<Replica>, reason, instead_of| Would::Go { replica: Arc::clone(replica), reason, instead_of };
        let would = self.home(sight, candidates).map_or(Would::Nobody, |home| {
            if home.replica.outstanding() < candidates.gate(thresholds.of(home.replica)) {
                return go(home.replica, home.reason, None);
            }
            match self.overflow(sight.key, home.replica, candidates) {
                None => Would::Nobody,
                Some(taken) => match self.passed_over(&home, taken) {
                    None => go(taken, home.reason, None),
                    instead_of => go(taken, Reason::Overflow, instead_of),
                },
            }
        });
        Explanation { would, standings }
    }

    fn thresholds(&self, pool: &Pool, now: Instant) -> Vec<(u64, u64)> {
        let candidates = Candidates::new(pool, &[], now);
        let thresholds = self.gate.thresholds(&candidates);
        let all = candidates.iter().map(|replica| (replica.incarnation(), thresholds.of(replica)));
        all.filter(|&(_, threshold)| threshold < u64::MAX).collect()
    }

    fn hot_keys(&self, pool: &Pool, most: usize) -> Vec<HotKey> {
        self.keys.hot_keys(pool, most)
    }

    fn insight(&self, pool: &Pool, now: Instant) -> Insight {
        Insight {
            thresholds: self.thresholds(pool, now),
            reuse: self.keys.reuse(pool.name()),
            top_key_share: self.keys.top_share(pool.name()),
            ..Insight::default()
        }
    }
}

/// Orders equally loaded replicas for one key: the same way each time for this key, another way for other keys.
fn tie_break(key: Key, replica: &Replica) -> u64 {
    xxh3_64_with_seed(replica.name().as_bytes(), key.0)
}
