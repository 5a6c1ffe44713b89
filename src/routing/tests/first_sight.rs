//! First sight, and what is remembered of it: each sentence of the rule.

use super::auto::{Scene, auto, chooser, hash, scene, spec, told};
use super::*;
use crate::request::Boundary;

/// A key and its order in a fleet of seven.
fn fresh(number: u64) -> (Scene, u64, Vec<usize>) {
    let (scene, key) = (scene(&[1; 7]), hash(number));
    let order = scene.order(key);
    (scene, key, order)
}

#[test]
fn a_key_seen_first_leaves_its_first_choice_only_where_two_wait_and_the_second_is_idle() {
    // (waiting by rank, rank taken)
    let cases: [([usize; 7], usize); 7] = [
        ([0, 0, 0, 0, 0, 0, 0], 0),
        ([1, 0, 0, 0, 0, 0, 0], 0),
        ([2, 0, 0, 0, 0, 0, 0], 1),
        ([2, 1, 0, 0, 0, 0, 0], 0),
        ([2, 0, 4, 0, 0, 0, 0], 1),
        ([2, 0, 4, 0, 0, 0, 1], 0),
        ([5, 0, 1, 0, 0, 0, 0], 1),
    ];
    for (waiting, expected) in cases {
        let ((mut scene, key, order), chooser) = (fresh(1), chooser());
        (0..7).for_each(|rank| scene.add(order[rank], 3, waiting[rank]));
        let aim = scene.aim(&chooser, &[key]);
        let choice = scene.take(&chooser, &aim, &[], None).expect("somebody");
        assert_eq!(told(&choice), (order[expected], Reason::Home), "{waiting:?}");
        let outcome = if expected == 0 { FirstSight::FirstChoice } else { FirstSight::FurtherChoice };
        assert_eq!(choice.first_sight, Some(outcome));
        drop(choice);
        // That is its home from now on, whoever waits where.
        scene.rest();
        scene.add(order[expected], 0, 6);
        for _ in 0..3 {
            let again = scene.take(&chooser, &scene.aim(&chooser, &[key]), &[], None).expect("somebody");
            assert_eq!((told(&again), again.first_sight), ((order[expected], Reason::Home), None));
        }
        // Its gate and overflow work from there.
        scene.add(order[expected], 18, 0);
        let next = order.iter().copied().find(|&rank| rank != order[expected]).expect("another");
        assert_eq!(scene.send(&chooser, key), (next, Reason::Overflow));
    }
}

#[test]
fn waiting_is_relative_to_weight() {
    // (weights by rank, waiting at the first, rank taken): two on a replica that is twice as strong are as one.
    for (weights, waiting, expected) in [([2, 1], 2, 0), ([2, 1], 4, 1), ([1, 2], 1, 1), ([10, 10], 1, 0), ([10, 10], 2, 1)] {
        let key = (0..).map(hash).find(|&key| scene(&weights).order(key) == [0, 1]).expect("one of them");
        let (mut scene, chooser) = (scene(&[weights[0], weights[1], 1, 1, 1, 1, 1]), chooser());
        let key =
            if scene.order(key)[..2] == [0, 1] { key } else { (0..).map(hash).find(|&key| scene.order(key)[..2] == [0, 1]).expect("one") };
        scene.add(0, 0, waiting);
        assert_eq!(scene.send(&chooser, key), (expected, Reason::Home), "{weights:?} {waiting}");
    }
}

#[test]
fn one_router_alone_leaves_at_one_for_the_first_idle_of_two() {
    let cases: [([usize; 7], usize); 4] =
        [([1, 0, 0, 0, 0, 0, 0], 1), ([1, 1, 0, 0, 0, 0, 0], 2), ([1, 1, 1, 0, 0, 0, 0], 0), ([0, 0, 0, 0, 0, 0, 0], 0)];
    for (routers, alone) in [(0, false), (1, true), (2, false)] {
        for (waiting, expected) in cases {
            let ((mut scene, key, order), chooser) = (fresh(2), Chooser::new(&Settings { routers, ..auto() }));
            (0..7).for_each(|rank| scene.add(order[rank], 0, waiting[rank]));
            assert_eq!(scene.send(&chooser, key).0, order[if alone { expected } else { 0 }], "{routers} {waiting:?}");
        }
    }
}

#[test]
fn where_hardly_anything_repeats_a_key_goes_where_the_fewest_wait() {
    let ((mut scene, key, order), chooser) = (fresh(3), chooser());
    scene.others(&chooser, 600);
    let choose = |scene: &Scene, key| scene.take(&chooser, &scene.aim(&chooser, &[key]), &[], None).expect("somebody");
    (0..7).for_each(|rank| scene.add(order[rank], 0, [3, 2, 2, 2, 1, 2, 1][rank]));
    let choice = choose(&scene, key);
    assert_eq!((told(&choice), choice.first_sight), ((order[4], Reason::Home), Some(FirstSight::FewestWaiting)), "ties by the key's order");
    drop(choice);
    scene.rest();
    assert_eq!(told(&choose(&scene, key)), (order[4], Reason::Home), "it is remembered");
    let other = hash(4);
    assert_eq!(told(&choose(&scene, other)), (scene.order(other)[0], Reason::Home), "idle ones are equal");
}

#[test]
fn what_is_not_known_to_repeat_nor_not_to_goes_by_first_choices() {
    // A router that has just started: what it does not know the replicas may hold.
    for (before, expected) in [(0, 0), (498, 0), (499, 1)] {
        let ((mut scene, key, order), chooser) = (fresh(3), chooser());
        scene.others(&chooser, before);
        scene.add(order[0], 0, 1);
        assert_eq!(scene.send(&chooser, key).0, order[expected], "after {before} requests");
    }
}

#[test]
fn where_keys_repeat_first_sights_go_by_first_choices() {
    let ((mut scene, key, order), chooser) = (fresh(3), chooser());
    for number in 0..2_000 {
        scene.aim(&chooser, &[hash(if number % 4 == 0 { number % 16 } else { 0xffff_0000 + number })]);
    }
    scene.add(order[0], 0, 1);
    assert_eq!(scene.send(&chooser, key).0, order[0]);
}

#[test]
fn what_is_forgotten_is_seen_first_again() {
    let ((mut scene, key, order), chooser) = (fresh(3), chooser());
    scene.add(order[0], 0, 2);
    assert_eq!(scene.send(&chooser, key).0, order[1]);
    scene.rest();
    scene.others(&chooser, 3_998);
    assert_eq!(scene.send(&chooser, key).0, order[1], "touched within the last 4,000");
    scene.others(&chooser, 4_000);
    assert_eq!(scene.send(&chooser, key).0, order[0]);
}

#[test]
fn a_fixed_length_has_no_first_sight_and_is_placed_by_no_memory() {
    let fixed = OrAuto::Fixed(PrefixLength::clamped(4_096));
    let ((mut scene, key, order), chooser) = (fresh(3), Chooser::new(&Settings { prefix_length: fixed, ..auto() }));
    scene.others(&chooser, 600);
    scene.add(order[0], 0, 9);
    for _ in 0..20 {
        assert_eq!(scene.send(&chooser, key), (order[0], Reason::Home));
        let Aim::ByKey(sight) = scene.aim(&chooser, &[key]) else { panic!("it has a key") };
        assert_eq!((sight.key, sight.depth, sight.moved.len()), (Key(key), None, 0));
    }
    let snapshot = scene.fleet.snapshot();
    let insight = chooser.insight(snapshot.pool(None).expect("there is one"), Instant::now());
    assert_eq!(insight.thresholds.len(), 7);
    // What is seen of it is for people.
    assert!(insight.reuse.is_some_and(|reuse| reuse > 0.05), "{:?}", insight.reuse);
}

/// A key whose home is its second choice.
fn remembered() -> (Scene, Chooser, u64, Vec<usize>) {
    let ((mut scene, key, order), chooser) = (fresh(5), chooser());
    scene.add(order[0], 0, 2);
    assert_eq!(scene.send(&chooser, key).0, order[1]);
    scene.rest();
    (scene, chooser, key, order)
}

#[test]
fn a_key_is_at_its_first_choice_while_its_home_is_away_and_comes_back() {
    let (mut scene, chooser, key, order) = remembered();
    scene.set_up(order[1], false);
    assert_eq!(scene.send(&chooser, key), (order[0], Reason::Home));
    scene.set_up(order[0], false);
    assert_eq!(scene.send(&chooser, key), (order[2], Reason::Failover));
    scene.set_up(order[1], true);
    assert_eq!(scene.send(&chooser, key), (order[1], Reason::Home), "the ring's home does not matter");
}

#[test]
fn a_remembered_home_outlasts_changes_of_the_fleet_and_goes_with_its_replica() {
    let (mut scene, chooser, key, order) = remembered();
    // Others come and go, and its place in the key's order with them.
    scene.become_of(&(0..30).rev().collect::<Vec<_>>());
    assert_eq!(scene.send(&chooser, key), (order[1], Reason::Home));
    scene.become_of(&[order[4], order[1], order[5]]);
    assert_eq!(scene.send(&chooser, key), (order[1], Reason::Home));
    scene.become_of(&order.iter().copied().filter(|&replica| replica != order[1]).collect::<Vec<_>>());
    assert_eq!(scene.send(&chooser, key), (order[0], Reason::Home));
    scene.become_of(&order);
    assert_eq!(scene.send(&chooser, key), (order[1], Reason::Home), "it has come back under its name");
}

#[test]
fn a_router_that_has_forgotten_goes_by_the_ring() {
    let (scene, _, key, order) = remembered();
    assert_eq!(scene.send(&chooser(), key), (order[0], Reason::Home));
}

#[test]
fn a_key_that_was_asked_for_while_its_first_request_waited_stays_where_that_went() {
    let ((mut scene, key, order), chooser) = (fresh(6), chooser());
    let waits = scene.aim(&chooser, &[key]);
    // No room anywhere.
    (0..7).for_each(|replica| scene.add(replica, 4, 0));
    assert!(scene.take(&chooser, &waits, &[], Some(4)).is_none());
    scene.rest();
    assert_eq!(scene.send(&chooser, key).0, order[0]);
    scene.add(order[0], 0, 2);
    assert_eq!(scene.place(&chooser, &waits).0, order[1], "who waited goes where it is best");
    scene.rest();
    assert_eq!(scene.send(&chooser, key), (order[0], Reason::Home));
}

#[test]
fn room_decides_no_home() {
    let ((mut scene, key, order), chooser) = (fresh(6), chooser());
    // All but the last are full; nobody waits anywhere.
    order[..6].iter().for_each(|&replica| scene.add(replica, 4, 0));
    let choice = scene.take(&chooser, &scene.aim(&chooser, &[key]), &[], Some(4)).expect("the last has room");
    assert_eq!(told(&choice), (order[6], Reason::Overflow));
    drop(choice);
    scene.rest();
    assert_eq!(scene.send(&chooser, key), (order[0], Reason::Home));
}

#[test]
fn a_further_try_decides_no_home() {
    let ((mut scene, key, order), chooser) = (fresh(7), chooser());
    let aim = scene.aim(&chooser, &[key]);
    scene.add(order[0], 0, 2);
    scene.add(order[1], 0, 1);
    assert_eq!(scene.place(&chooser, &aim).0, order[0]);
    let further = scene.take(&chooser, &aim, &[order[0]], None).expect("somebody");
    assert_eq!((told(&further), further.first_sight), ((order[1], Reason::Failover), None));
    drop(further);
    scene.rest();
    assert_eq!(scene.send(&chooser, key), (order[0], Reason::Home));
}

#[test]
fn while_the_rings_home_is_away_nothing_is_remembered() {
    let ((mut scene, key, order), chooser) = (fresh(8), chooser());
    scene.set_up(order[0], false);
    scene.add(order[1], 0, 2);
    assert_eq!(scene.send(&chooser, key), (order[2], Reason::Failover));
    scene.rest();
    scene.set_up(order[0], true);
    assert_eq!(scene.send(&chooser, key), (order[0], Reason::Home));
}

#[test]
fn pools_are_remembered_apart() {
    let specs = (0..7).map(|index| ReplicaSpec { models: vec!["a".to_owned(), "b".to_owned()], ..spec(index, 1) }).collect();
    let mut scene = Scene { fleet: Fleet::new(specs, health::Settings::default(), 0), leases: Vec::new() };
    scene.all_up();
    let (snapshot, chooser) = (scene.fleet.snapshot(), chooser());
    let known = |model: &str| {
        let pool = snapshot.pool(Some(model)).expect("it is served");
        let boundaries = [Boundary { depth: 9, key: Key(1) }].into_iter().collect();
        chooser.aim(&Ask { placement: Placement::ByKey(boundaries), ..Ask::default() }, pool);
        chooser.insight(pool, Instant::now()).reuse
    };
    assert_eq!([known("a"), known("b")], [Some(0.0), Some(0.0)]);
    assert!(known("a").is_some_and(|reuse| reuse > 0.4));
}
