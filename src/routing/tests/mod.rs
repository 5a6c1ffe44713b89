//! Each strategy's rule, on fleets whose counts are set by hand.

mod auto;
mod cache_aware;
mod explain;
mod first_sight;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::*;
use crate::fleet::{Fleet, Outcome, Replica, ReplicaSpec, Snapshot, health};
use crate::request::Key;
use crate::units::Weight;

/// A fleet at one moment, with leases that make its counts.
struct Scene {
    snapshot: Snapshot,
    _leases: Vec<Lease>,
}

/// Replicas "0", "1", … as (weight, outstanding, up).
fn scene(replicas: &[(u64, usize, bool)]) -> Scene {
    let specs = replicas.iter().enumerate().map(|(index, &(weight, ..))| ReplicaSpec {
        name: index.to_string(),
        authority: index.to_string(),
        weight: Weight::clamped(weight),
        models: Vec::new(),
        drain: false,
    });
    let mut fleet = Fleet::new(specs.collect(), health::Settings::default(), 0);
    let all = fleet.snapshot().replicas().to_vec();
    let mut leases = Vec::new();
    for (replica, &(_, outstanding, up)) in all.iter().zip(replicas) {
        leases.extend((0..outstanding).map(|_| replica.lease()));
        fleet.observe(replica, if up { Outcome::CheckPassed } else { Outcome::CheckFailed }, Instant::now(), 0.0);
    }
    Scene { snapshot: fleet.snapshot(), _leases: leases }
}

fn chooser(strategy: StrategyName, threshold: u64, overflow: Overflow) -> Chooser {
    Chooser::new(&Settings {
        strategy,
        concurrency_threshold: OrAuto::Fixed(ConcurrencyThreshold::clamped(threshold)),
        overflow: OrAuto::Fixed(overflow),
        ..Settings::default()
    })
}

impl Scene {
    fn replica(&self, index: usize) -> Arc<Replica> {
        Arc::clone(&self.snapshot.replicas()[index])
    }

    /// Index and reason of one choice, whose lease is dropped again.
    fn choose(&self, chooser: &Chooser, aim: &Aim, tried: &[usize], seed: u64) -> Option<(usize, Reason)> {
        self.keep(chooser, aim, tried, seed).map(|choice| (choice.lease.replica().incarnation() as usize, choice.reason))
    }

    fn keep(&self, chooser: &Chooser, aim: &Aim, tried: &[usize], seed: u64) -> Option<Choice> {
        let tried: Vec<_> = tried.iter().map(|&index| self.replica(index)).collect();
        let pool = self.snapshot.pool(None).expect("there is one");
        chooser.choose(aim, &Candidates::new(pool, &tried, Instant::now()), &mut SmallRng::seed_from_u64(seed))
    }

    fn order(&self, key: u64) -> Vec<usize> {
        self.snapshot.pool(None).expect("there is one").ring().order(Key(key)).collect()
    }
}

fn by(key: u64) -> Aim {
    Aim::ByKey(Key(key).into())
}

/// Keys all over the ring.
fn keys() -> impl Iterator<Item = u64> {
    (1..200_u64).map(|step| step.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[test]
fn random_follows_weights() {
    let scene = scene(&[(1, 0, true), (3, 0, true), (4, 0, false)]);
    let chooser = chooser(StrategyName::Random, 1, Overflow::LeastLoaded);
    let mut counts = HashMap::new();
    for seed in 0..4_000 {
        *counts.entry(scene.choose(&chooser, &by(1), &[], seed).expect("somebody")).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 2, "{counts:?}");
    assert!((800..1_200).contains(&counts[&(0, Reason::Load)]), "{counts:?}");
}

#[test]
fn round_robin_takes_turns() {
    let turns = |replicas: &[(u64, usize, bool)], count: usize| {
        let (scene, chooser) = (scene(replicas), chooser(StrategyName::RoundRobin, 1, Overflow::LeastLoaded));
        (0..count).map(|_| scene.choose(&chooser, &by(1), &[], 0).expect("somebody").0).collect::<Vec<_>>()
    };
    assert_eq!(turns(&[(1, 9, true), (1, 0, true), (1, 0, true)], 7), [0, 1, 2, 0, 1, 2, 0]);
    assert_eq!(turns(&[(1, 0, true), (1, 0, false), (1, 0, true)], 4), [0, 2, 0, 2]);
    assert_eq!(turns(&[(2, 0, true), (1, 0, true)], 6), [0, 1, 0, 0, 1, 0]);
}

#[test]
fn least_outstanding_looks_at_load_relative_to_weight_and_spreads_ties() {
    let chooser = chooser(StrategyName::LeastOutstanding, 1, Overflow::LeastLoaded);
    let chosen = |replicas: &[(u64, usize, bool)]| {
        let scene = scene(replicas);
        let mut all: Vec<_> = (0..100).map(|seed| scene.choose(&chooser, &by(1), &[], seed).expect("somebody").0).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    assert_eq!(chosen(&[(1, 2, true), (1, 1, true), (1, 3, true)]), [1]);
    assert_eq!(chosen(&[(1, 2, true), (4, 7, true)]), [1]);
    assert_eq!(chosen(&[(1, 2, true), (2, 4, true), (1, 3, true)]), [0, 1]);
    assert_eq!(chosen(&[(1, 0, false), (1, 5, true)]), [1]);
}

#[test]
fn equal_keys_have_one_home_while_its_gate_is_open() {
    let scene = scene(&[(1, 2, true), (1, 2, true), (1, 2, true)]);
    let chooser = chooser(StrategyName::PrefixAware, 3, Overflow::LeastLoaded);
    for key in keys() {
        assert_eq!(scene.choose(&chooser, &by(key), &[], key), Some((scene.order(key)[0], Reason::Home)));
    }
}

#[test]
fn the_gate_closes_on_reaching_the_threshold() {
    let scene = scene(&[(1, 0, true), (1, 0, true), (1, 0, true)]);
    let chooser = chooser(StrategyName::PrefixAware, 3, Overflow::LeastLoaded);
    let key = 77;
    let home = scene.order(key)[0];
    let kept: Vec<_> = (0..3).map(|_| scene.keep(&chooser, &by(key), &[], 0).expect("somebody")).collect();
    assert!(kept.iter().all(|choice| choice.lease.replica().incarnation() as usize == home && choice.reason == Reason::Home));
    let (other, reason) = scene.choose(&chooser, &by(key), &[], 0).expect("somebody");
    assert_eq!((other == home, reason), (false, Reason::Overflow));
    drop(kept);
    assert_eq!(scene.choose(&chooser, &by(key), &[], 0), Some((home, Reason::Home)));
}

#[test]
fn overflow_goes_to_the_least_loaded_of_all() {
    let scene = scene(&[(1, 4, true), (1, 3, true), (2, 4, true), (1, 3, true)]);
    let chooser = chooser(StrategyName::PrefixAware, 3, Overflow::LeastLoaded);
    for key in keys() {
        let home = scene.order(key)[0];
        let (index, reason) = scene.choose(&chooser, &by(key), &[], key).expect("somebody");
        // All are gated, so the least loaded relative to weight takes it, be it the home itself.
        assert_eq!((index, reason), (2, if home == 2 { Reason::Home } else { Reason::Overflow }));
    }
}

#[test]
fn a_gated_replica_takes_overflow_only_where_all_are_gated() {
    // Replica 1 is relatively less loaded than 2 (3/4 against 2/1), but gated.
    let scene = scene(&[(1, 3, true), (4, 3, true), (1, 2, true)]);
    let chooser = chooser(StrategyName::PrefixAware, 3, Overflow::LeastLoaded);
    for key in keys().filter(|&key| scene.order(key)[0] != 2) {
        assert_eq!(scene.choose(&chooser, &by(key), &[], key), Some((2, Reason::Overflow)));
    }
}

#[test]
fn ties_of_overflow_repeat_for_one_key_and_spread_over_keys() {
    let scene = scene(&[(1, 1, true), (1, 0, true), (1, 0, true), (1, 0, true), (1, 0, true)]);
    let chooser = chooser(StrategyName::PrefixAware, 1, Overflow::LeastLoaded);
    let mut taken = HashMap::new();
    for key in keys().filter(|&key| scene.order(key)[0] == 0) {
        let first = scene.choose(&chooser, &by(key), &[], 1).expect("somebody");
        assert_eq!(scene.choose(&chooser, &by(key), &[], 2), Some(first));
        *taken.entry(first.0).or_insert(0) += 1;
    }
    assert_eq!(taken.len(), 4, "{taken:?}");
}

#[test]
fn next_choices_stay_within_the_first_three() {
    let chooser = chooser(StrategyName::PrefixAware, 2, Overflow::NextChoices);
    for key in keys() {
        let order = scene(&[(1, 0, true); 5]).order(key);
        let with = |counts: [usize; 5]| {
            let mut replicas = [(1, 0, true); 5];
            for (rank, count) in counts.into_iter().enumerate() {
                replicas[order[rank]].1 = count;
            }
            let (index, reason) = scene(&replicas).choose(&chooser, &by(key), &[], key).expect("somebody");
            (order.iter().position(|&at| at == index).expect("in the order"), reason)
        };
        assert_eq!(with([2, 1, 0, 0, 0]), (2, Reason::Overflow));
        assert_eq!(with([2, 0, 0, 0, 0]), (1, Reason::Overflow), "equals go by the order");
        assert_eq!(with([2, 3, 4, 0, 0]), (0, Reason::Home), "all three gated: the least loaded of them, never another");
        assert_eq!(with([5, 3, 4, 0, 0]), (1, Reason::Overflow));
    }
}

#[test]
fn without_its_home_a_key_goes_along_its_order_and_comes_back() {
    let chooser = chooser(StrategyName::PrefixAware, 9, Overflow::LeastLoaded);
    for key in keys() {
        let order = scene(&[(1, 0, true); 4]).order(key);
        let with_down = |down: usize| {
            let mut replicas = [(1, 0, true); 4];
            for &index in &order[..down] {
                replicas[index].2 = false;
            }
            scene(&replicas).choose(&chooser, &by(key), &[], key)
        };
        assert_eq!(with_down(0), Some((order[0], Reason::Home)));
        assert_eq!(with_down(1), Some((order[1], Reason::Failover)));
        assert_eq!(with_down(3), Some((order[3], Reason::Failover)));
        assert_eq!(with_down(4), Some((order[0], Reason::Home)), "nobody is up: the least bad is tried");
    }
}

#[test]
fn a_further_try_never_takes_a_replica_again() {
    for strategy in [StrategyName::Random, StrategyName::RoundRobin, StrategyName::LeastOutstanding, StrategyName::PrefixAware] {
        let (scene, chooser) = (scene(&[(1, 0, true); 3]), chooser(strategy, 9, Overflow::LeastLoaded));
        for key in keys() {
            let (first, reason) = scene.choose(&chooser, &by(key), &[], key).expect("somebody");
            assert_ne!(reason, Reason::Failover);
            let (second, reason) = scene.choose(&chooser, &by(key), &[first], key).expect("somebody");
            assert_eq!((second == first, reason), (false, Reason::Failover), "{strategy:?}");
            let third = scene.choose(&chooser, &by(key), &[first, second], key);
            assert_eq!(third, Some((3 - first - second, Reason::Failover)), "{strategy:?}");
            assert_eq!(scene.choose(&chooser, &by(key), &[0, 1, 2], key), None, "{strategy:?}");
        }
    }
}

#[test]
fn who_is_full_takes_nothing_under_any_strategy() {
    for strategy in [StrategyName::Random, StrategyName::RoundRobin, StrategyName::LeastOutstanding, StrategyName::PrefixAware] {
        for overflow in [Overflow::LeastLoaded, Overflow::NextChoices] {
            let (scene, chooser) =
                (scene(&[(1, 0, true), (4, 0, true), (1, 0, true), (1, 0, true), (1, 0, false)]), chooser(strategy, 64, overflow));
            let pool = scene.snapshot.pool(None).expect("there is one");
            let candidates = Candidates::new(pool, &[], Instant::now()).below(Some(2));
            let mut rng = SmallRng::seed_from_u64(0);
            // One key: all that its home does not take overflows, until everybody who is up has two.
            let mut choose = || chooser.choose(&by(1), &candidates, &mut rng);
            let choices: Vec<Choice> = std::iter::from_fn(&mut choose).take(100).collect();
            assert_eq!(choices.len(), 8, "{strategy:?}");
            let counts: Vec<u64> = scene.snapshot.replicas().iter().map(|replica| replica.outstanding()).collect();
            assert_eq!(counts, [2, 2, 2, 2, 0], "{strategy:?}");
            if strategy == StrategyName::PrefixAware {
                let homes = choices.iter().filter(|choice| choice.reason == Reason::Home).count();
                assert_eq!(homes, if scene.order(1)[0] == 4 { 0 } else { 2 }, "the home is full then, not away");
            }
            drop(choices);
            assert!(choose().is_some(), "{strategy:?}");
        }
    }
}

#[test]
fn what_has_no_key_goes_by_load_and_says_so() {
    let scene = scene(&[(1, 2, true), (1, 1, true)]);
    let prefix_aware = chooser(StrategyName::PrefixAware, 1, Overflow::LeastLoaded);
    assert_eq!(scene.choose(&prefix_aware, &Aim::NoKey, &[], 0), Some((1, Reason::NoKey)));
    for strategy in [StrategyName::Random, StrategyName::RoundRobin, StrategyName::LeastOutstanding, StrategyName::PrefixAware] {
        assert_eq!(scene.choose(&chooser(strategy, 1, Overflow::LeastLoaded), &Aim::ByLoad, &[], 0), Some((1, Reason::Load)));
    }
}

proptest! {
    #[test]
    fn every_strategy_takes_an_eligible_replica_and_counts_it_once(
        replicas in prop::collection::vec((1_u64..5, 0_usize..6, any::<bool>()), 1..8),
        threshold in 1_u64..6,
        key in any::<u64>(),
        next_choices in any::<bool>(),
    ) {
        let overflow = if next_choices { Overflow::NextChoices } else { Overflow::LeastLoaded };
        let anyone_up = replicas.iter().any(|replica| replica.2);
        for strategy in [StrategyName::Random, StrategyName::RoundRobin, StrategyName::LeastOutstanding, StrategyName::PrefixAware] {
            let scene = scene(&replicas);
            let before: Vec<_> = scene.snapshot.replicas().iter().map(|replica| replica.outstanding()).collect();
            let choice = scene.keep(&chooser(strategy, threshold, overflow), &by(key), &[], key).expect("there are candidates");
            let chosen = choice.lease.replica().incarnation() as usize;
            prop_assert!(replicas[chosen].2 || !anyone_up);
            for (index, replica) in scene.snapshot.replicas().iter().enumerate() {
                prop_assert_eq!(replica.outstanding(), before[index] + u64::from(index == chosen));
            }
        }
    }
}
