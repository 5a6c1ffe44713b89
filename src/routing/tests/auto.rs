//! Lengths and thresholds that are worked out, and next choices: each sentence of the rule. First sight is in `first_sight.rs`.

use std::sync::Arc;

use proptest::prelude::*;
use rand::RngExt;

use super::*;
use crate::fleet::tag;
use crate::request::{Boundary, MAX_BOUNDARIES};

/// A fleet of replicas "0", "1", … that are up, whose counts come from leases that are kept here.
pub(super) struct Scene {
    pub(super) fleet: Fleet,
    pub(super) leases: Vec<Lease>,
}

pub(super) fn spec(index: usize, weight: u64) -> ReplicaSpec {
    let name = index.to_string();
    ReplicaSpec { authority: name.clone(), name, weight: Weight::clamped(weight), models: Vec::new(), drain: false }
}

pub(super) fn scene(weights: &[u64]) -> Scene {
    let specs = weights.iter().enumerate().map(|(index, &weight)| spec(index, weight)).collect();
    let mut scene = Scene { fleet: Fleet::new(specs, health::Settings::default(), 0), leases: Vec::new() };
    scene.all_up();
    scene
}

impl Scene {
    pub(super) fn all_up(&mut self) {
        for replica in self.fleet.snapshot().replicas() {
            self.fleet.observe(replica, Outcome::CheckPassed, Instant::now(), 0.0);
        }
    }

    /// Makes the fleet those replicas, by number, all up.
    pub(super) fn become_of(&mut self, numbers: &[usize]) {
        let specs = numbers.iter().map(|&number| spec(number, 1)).collect();
        self.fleet.adopt(Arc::new(self.fleet.membership().next(specs, true)));
        self.all_up();
    }

    /// So many further requests that a replica works on, and so many that wait there for their first byte.
    pub(super) fn add(&mut self, replica: usize, working: usize, waiting: usize) {
        let name = replica.to_string();
        let snapshot = self.fleet.snapshot();
        let replica = snapshot.replicas().iter().find(|replica| replica.name() == name).expect("it is there");
        for number in 0..working + waiting {
            let mut lease = replica.lease();
            if number < working {
                lease.first_byte();
            }
            self.leases.push(lease);
        }
    }

    pub(super) fn rest(&mut self) {
        self.leases.clear();
    }

    /// Takes one out, or back in; whether that is by a drain or a death is all the same here.
    pub(super) fn set_up(&mut self, replica: usize, up: bool) {
        self.fleet.set_draining(&replica.to_string(), !up, Instant::now());
    }

    pub(super) fn order(&self, key: u64) -> Vec<usize> {
        let snapshot = self.fleet.snapshot();
        let pool = snapshot.pool(None).expect("there is one");
        pool.ring().order(Key(key)).map(|index| pool.members()[index].name().parse().expect("a number")).collect()
    }

    pub(super) fn aim(&self, chooser: &Chooser, keys: &[u64]) -> Aim {
        let boundaries = (0..).zip(keys).map(|(index, &key)| Boundary { depth: 1_024 << index, key: Key(key) }).collect();
        chooser.aim(
            &Ask { placement: Placement::ByKey(boundaries), ..Ask::default() },
            self.fleet.snapshot().pool(None).expect("there is one"),
        )
    }

    pub(super) fn take(&self, chooser: &Chooser, aim: &Aim, tried: &[usize], limit: Option<u64>) -> Option<Choice> {
        let snapshot = self.fleet.snapshot();
        let tried: Vec<_> = tried.iter().map(|&index| Arc::clone(&snapshot.replicas()[index])).collect();
        let candidates = Candidates::new(snapshot.pool(None).expect("there is one"), &tried, Instant::now()).below(limit);
        chooser.choose(aim, &candidates, &mut SmallRng::seed_from_u64(0))
    }

    pub(super) fn place(&self, chooser: &Chooser, aim: &Aim) -> (usize, Reason) {
        told(&self.take(chooser, aim, &[], None).expect("somebody"))
    }

    /// Where a request with one boundary goes, and why.
    pub(super) fn send(&self, chooser: &Chooser, key: u64) -> (usize, Reason) {
        self.place(chooser, &self.aim(chooser, &[key]))
    }

    /// So many requests that are like no other, on an idle fleet.
    pub(super) fn others(&self, chooser: &Chooser, count: u64) {
        for number in 0..count {
            self.aim(chooser, &[hash(0xffff_0000 + number)]);
        }
    }
}

pub(super) fn told(choice: &Choice) -> (usize, Reason) {
    (choice.lease.replica().name().parse().expect("a number"), choice.reason)
}

pub(super) fn auto() -> Settings {
    let (concurrency_threshold, prefix_length) = (OrAuto::Auto, OrAuto::Auto);
    Settings { strategy: StrategyName::PrefixAware, concurrency_threshold, overflow: OrAuto::Auto, prefix_length, ..Settings::default() }
}

pub(super) fn chooser() -> Chooser {
    Chooser::new(&auto())
}

pub(super) fn hash(number: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes())
}

// The gate.

#[test]
fn a_threshold_is_2_4_times_what_the_others_have_and_at_least_24() {
    // (weights, outstanding, thresholds)
    let cases: [(&[u64], &[usize], &[u64]); 7] = [
        (&[1, 1, 1], &[0, 0, 0], &[24, 24, 24]),
        (&[1, 1, 1], &[100, 6, 7], &[24, 129, 128]),
        (&[1, 1, 1], &[0, 22, 22], &[53, 27, 27]),
        (&[1, 1], &[10, 11], &[27, 24]),
        (&[4, 1, 1], &[10, 10, 10], &[96, 24, 24]),
        (&[2, 1, 3], &[0, 30, 10], &[48, 24, 72]),
        (&[1], &[99], &[]),
    ];
    for (weights, outstanding, expected) in cases {
        let mut scene = scene(weights);
        for (replica, &count) in outstanding.iter().enumerate() {
            scene.add(replica, count, 0);
        }
        let snapshot = scene.fleet.snapshot();
        let insight = chooser().insight(snapshot.pool(None).expect("there is one"), Instant::now());
        let thresholds: Vec<u64> = insight.thresholds.iter().map(|&(_, threshold)| threshold).collect();
        assert_eq!(thresholds, expected, "{weights:?} {outstanding:?}");
    }
}

#[test]
fn the_home_takes_requests_up_to_its_threshold() {
    for (others, expected) in [(0, 24), (10, 24), (11, 27), (20, 48)] {
        let (mut scene, chooser) = (scene(&[1; 5]), chooser());
        let order = scene.order(77);
        for &other in &order[1..] {
            scene.add(other, others, 0);
        }
        let mut kept = Vec::new();
        let overflowed = loop {
            let choice = scene.take(&chooser, &scene.aim(&chooser, &[77]), &[], None).expect("somebody");
            match told(&choice) {
                (home, Reason::Home) if home == order[0] => kept.push(choice),
                other => break other,
            }
        };
        assert_eq!((kept.len(), overflowed), (expected, (order[1], Reason::Overflow)), "the others have {others}");
    }
}

#[test]
fn who_is_not_eligible_is_no_other() {
    let (mut scene, chooser) = (scene(&[1; 3]), chooser());
    let order = scene.order(5);
    scene.add(order[1], 100, 0);
    scene.set_up(order[1], false);
    scene.add(order[0], 24, 0);
    assert_eq!(scene.send(&chooser, 5), (order[2], Reason::Overflow));
}

#[test]
fn one_replica_has_no_gate() {
    for settings in [auto(), Settings { overflow: OrAuto::Fixed(Overflow::LeastLoaded), ..auto() }] {
        let (mut scene, chooser) = (scene(&[1, 1]), Chooser::new(&settings));
        scene.set_up(1, false);
        scene.add(0, 1_000, 0);
        let key = (1..).map(hash).find(|&key| scene.order(key)[0] == 0).expect("one of them");
        assert_eq!(scene.send(&chooser, key), (0, Reason::Home));
    }
}

#[test]
fn no_two_requests_slip_through_an_automatic_gate() {
    let (scene, chooser) = (scene(&[1; 8]), chooser());
    let home = scene.order(9)[0];
    let choices: Vec<Choice> = std::thread::scope(|scope| {
        let send = || (0..8).map(|_| scene.take(&chooser, &scene.aim(&chooser, &[9]), &[], None).expect("somebody")).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(send)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    // The others have 8 at most, 2.4 · 8 / 7 < 24.
    assert_eq!(choices.iter().filter(|choice| told(choice).0 == home).count(), 24);
    assert_eq!(choices.len(), 32);
    drop(choices);
    assert!(scene.fleet.snapshot().replicas().iter().all(|replica| replica.outstanding() == 0 && replica.waiting() == 0));
}

// Overflow.

#[test]
fn what_overflows_by_default_goes_with_the_threshold() {
    let fixed = Settings { concurrency_threshold: OrAuto::Fixed(ConcurrencyThreshold::clamped(24)), ..auto() };
    for (settings, expected) in [(auto(), 1), (fixed, 3)] {
        let (mut scene, chooser) = (scene(&[1; 4]), Chooser::new(&settings));
        let order = scene.order(3);
        for (rank, count) in [24, 2, 3, 0].into_iter().enumerate() {
            scene.add(order[rank], count, 0);
        }
        assert_eq!(scene.send(&chooser, 3), (order[expected], Reason::Overflow));
    }
}

#[test]
fn overflow_goes_to_the_less_loaded_of_the_next_two_and_where_all_three_are_gated_to_the_least_loaded() {
    // (weights and outstanding of the first three, rank taken): the others are idle, and never taken.
    let cases: [([u64; 3], [usize; 3], usize); 10] = [
        ([1, 1, 1], [24, 0, 0], 1),
        ([1, 1, 1], [24, 2, 1], 2),
        ([1, 1, 1], [30, 23, 3], 2),
        ([1, 1, 4], [24, 2, 7], 2),
        ([1, 4, 1], [24, 7, 2], 1),
        ([1, 1, 1], [90, 30, 80], 1),
        ([1, 1, 1], [90, 80, 30], 2),
        ([1, 1, 1], [90, 80, 70], 2),
        ([1, 1, 1], [70, 90, 80], 0),
        ([1, 1, 1], [70, 70, 70], 0),
    ];
    for key in (0..20).map(hash) {
        let order = scene(&[1; 7]).order(key);
        for (weights, outstanding, expected) in cases {
            let mut by_index = [1; 7];
            (0..3).for_each(|rank| by_index[order[rank]] = weights[rank]);
            let (mut scene, chooser) = (scene(&by_index), chooser());
            // Where weights move the key's order the case does not apply.
            if scene.order(key)[..3] == order[..3] {
                (0..3).for_each(|rank| scene.add(order[rank], outstanding[rank], 0));
                let reason = if expected == 0 { Reason::Home } else { Reason::Overflow };
                assert_eq!(scene.send(&chooser, key), (order[expected], reason), "{weights:?} {outstanding:?}");
            }
        }
    }
}

#[test]
fn least_loaded_works_with_automatic_thresholds() {
    let settings = Settings { overflow: OrAuto::Fixed(Overflow::LeastLoaded), ..auto() };
    for key in (0..40).map(hash) {
        let order = scene(&[1; 5]).order(key);
        // (outstanding by rank, rank taken)
        for (outstanding, expected) in [([24, 2, 1, 3, 0], 4), ([60, 20, 20, 20, 20], 0)] {
            let (mut scene, chooser) = (scene(&[1; 5]), Chooser::new(&settings));
            (0..5).for_each(|rank| scene.add(order[rank], outstanding[rank], 0));
            let taken = scene.send(&chooser, key);
            if expected > 0 {
                assert_eq!(taken, (order[expected], Reason::Overflow));
            } else {
                assert!(taken.0 != order[0] && taken.1 == Reason::Overflow, "60 are more than 48");
            }
        }
    }
}

// Boundaries.

#[test]
fn a_prompt_that_all_share_does_not_send_all_to_one_replica() {
    let (scene, chooser) = (scene(&[1; 7]), chooser());
    let mut counts = [0; 7];
    for number in 0..2_000 {
        let aim = scene.aim(&chooser, &[1, hash(number % 60)]);
        counts[scene.place(&chooser, &aim).0] += 1;
    }
    assert!(counts.iter().all(|&count| count > 100), "{counts:?}");
}

#[test]
fn a_conversation_keeps_its_home_while_it_grows() {
    let (scene, chooser) = (scene(&[1; 7]), chooser());
    let mut homes: HashMap<u64, usize> = HashMap::new();
    let mut moves = 0;
    for number in 0..6_000_u64 {
        let (conversation, turn) = (number / 600 * 60 + number % 60, number % 600 / 60);
        let keys: Vec<u64> = std::iter::once(1).chain((0..=turn).map(|turn| hash(conversation << 8 | turn))).take(MAX_BOUNDARIES).collect();
        let home = scene.place(&chooser, &scene.aim(&chooser, &keys)).0;
        moves += u32::from(homes.insert(conversation, home).is_some_and(|before| before != home));
    }
    assert!(moves <= 4, "{moves}: only the first four were placed by the system prompt, before that was hot");
}

/// A stream's next request: the keys of its boundaries.
type Stream = Box<dyn FnMut(&mut SmallRng) -> Vec<u64>>;

/// Prefixes of which the n-th most frequent is asked for in proportion to n^-0.8, below a system prompt that all share, each with a question of its own.
fn zipf(prefixes: u64) -> Stream {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=prefixes)
        .map(|rank| {
            sum += (rank as f64).powf(-0.8);
            sum
        })
        .collect();
    Box::new(move |rng| {
        let ticket = rng.random_range(0.0..sum);
        let rank = sums.partition_point(|&sum| sum < ticket) as u64;
        [1, hash(rank), hash(rank << 20), hash(rank << 40), rng.random()].into()
    })
}

/// Conversations of ten turns each, of which sixty go on at one time.
fn conversations() -> Stream {
    let mut turns = [0_u64; 60];
    Box::new(move |rng| {
        let which = rng.random_range(0..60);
        turns[which] += 1;
        let (conversation, turn) = (((which as u64) << 32) | (turns[which] / 10), turns[which] % 10);
        std::iter::once(1).chain((0..=turn).map(|turn| hash(conversation << 5 | turn))).collect()
    })
}

/// Half of all requests have one prefix, and the others one of three hundred.
fn hot() -> Stream {
    Box::new(move |rng| {
        let prefix = if rng.random() { 0 } else { rng.random_range(1..300) };
        [hash(prefix), hash(prefix << 20), rng.random()].into()
    })
}

#[test]
fn routers_that_see_halves_of_one_stream_agree_on_homes_also_after_a_restart() {
    let scene = scene(&[1; 8]);
    for (name, streams) in [("zipf", zipf as fn(u64) -> Stream), ("conversations", |_| conversations()), ("hot", |_| hot())] {
        for seed in 0..5 {
            let (mut rng, mut stream) = (SmallRng::seed_from_u64(seed), streams(3_000));
            let mut routers = [chooser(), chooser()];
            let mut homes = |routers: &[Chooser; 2], both: bool, rng: &mut SmallRng| {
                let keys = stream(rng);
                let of = |router: &Chooser| scene.place(router, &scene.aim(router, &keys)).0;
                if both { of(&routers[0]) == of(&routers[1]) } else { of(&routers[usize::from(rng.random::<bool>())]) < 8 }
            };
            let mut agreed = |routers: &[Chooser; 2], before: usize, rng: &mut SmallRng| {
                (0..before).for_each(|_| assert!(homes(routers, false, rng)));
                (0..1_000).filter(|_| homes(routers, true, rng)).count()
            };
            let together = agreed(&routers, 6_000, &mut rng);
            assert!(together >= 950, "{name}, {seed}: {together}");
            routers[1] = chooser();
            // It sees half of these.
            let restarted = agreed(&routers, 1_000, &mut rng);
            assert!(restarted >= 950, "{name}, {seed}, after a restart: {restarted}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn an_open_home_is_taken_and_counts_are_exact(
        loads in prop::collection::vec((0_usize..30, 0_usize..4), 2..6),
        sends in prop::collection::vec((0_u64..40, prop::option::of(0_usize..6), any::<bool>()), 1..60),
        routers in 0_u32..2,
    ) {
        let (mut scene, chooser) = (scene(&vec![1; loads.len()]), Chooser::new(&Settings { routers, ..auto() }));
        for (replica, &(working, waiting)) in loads.iter().enumerate() {
            scene.add(replica, working, waiting);
        }
        let mut homes: HashMap<u64, usize> = HashMap::new();
        let mut kept = Vec::new();
        for (key, tried, keeps) in sends {
            let snapshot = scene.fleet.snapshot();
            let counts: Vec<u64> = snapshot.replicas().iter().map(|replica| replica.outstanding()).collect();
            let total: u64 = counts.iter().sum();
            let tried: Vec<usize> = tried.into_iter().filter(|&tried| tried < loads.len()).collect();
            let choice = scene.take(&chooser, &scene.aim(&chooser, &[hash(key)]), &tried, None).expect("somebody");
            let (taken, reason) = told(&choice);
            for (index, replica) in snapshot.replicas().iter().enumerate() {
                prop_assert_eq!(replica.outstanding(), counts[index] + u64::from(index == taken));
            }
            prop_assert!(!tried.contains(&taken));
            if tried.is_empty() {
                let others = (total - counts[taken]) as f64 / (loads.len() - 1) as f64;
                let is_open = |index: usize| counts[index] < 24.max((2.4 * (total - counts[index]) as f64 / (loads.len() - 1) as f64).ceil() as u64);
                if reason == Reason::Home {
                    // Its home, whether by the ring or remembered, is the same each time, until all are gated.
                    prop_assert!(is_open(taken) || scene.order(hash(key))[..loads.len().min(3)].iter().all(|&index| !is_open(index)) || loads.len() > 3, "{}", others);
                    if is_open(taken) {
                        prop_assert_eq!(*homes.entry(key).or_insert(taken), taken);
                    }
                } else if let Some(&home) = homes.get(&key) {
                    prop_assert!(!is_open(home), "an open home is left");
                }
            }
            if keeps {
                kept.push(choice);
            }
        }
        drop((kept, scene.leases));
        prop_assert!(scene.fleet.snapshot().replicas().iter().all(|replica| replica.outstanding() == 0 && replica.waiting() == 0));
    }
}

#[test]
fn a_tag_is_never_that_of_the_rings_home() {
    assert!((0..10_000).all(|number: u64| tag(&number.to_string()) > 0));
}
