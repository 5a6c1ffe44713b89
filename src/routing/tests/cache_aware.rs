//! `cache_aware`: where prompts go that begin as others did, on fleets whose work is set by hand.

use std::collections::HashMap;

use super::*;
use crate::request::{Ask, Boundary, Chunks, Key, Placement, end_of};
use crate::routing::cache_aware::Beyond;

const CHUNKS: usize = 60;

/// A prompt of 60 chunks, 15,360 bytes, of which so many are common to all of its tree; each tree has a key of its own.
fn ask(tree: u64, common: usize, own: u64) -> Ask {
    let hash = |numbers: [u64; 3]| xxhash_rust::xxh3::xxh3_64(&numbers.map(u64::to_le_bytes).concat());
    let hashes = (0..CHUNKS).map(|index| hash([tree, if index < common { 0 } else { own + 1 }, index as u64])).collect();
    let key = Key(hash([tree, 0, u64::MAX]));
    Ask {
        placement: Placement::ByKey([Boundary { depth: 1_024, key }].into_iter().collect()),
        chunks: Some(Arc::new(Chunks { hashes, bytes: end_of(CHUNKS), ..Chunks::default() })),
        streams: true,
        ..Ask::default()
    }
}

fn usage(prompt_tokens: u64, cached_tokens: u64) -> Usage {
    Usage { prompt_tokens, cached_tokens: Some(cached_tokens), completion_tokens: Some(20) }
}

fn cache_aware() -> Chooser {
    one_of(1)
}

/// One of so many routers.
fn one_of(routers: u32) -> Chooser {
    Chooser::new(&Settings { strategy: StrategyName::CacheAware, routers, ..Settings::default() })
}

struct Way<'a> {
    scene: &'a Scene,
    chooser: &'a Chooser,
    now: Instant,
}

impl Way<'_> {
    fn send(&self, ask: &Ask) -> Choice {
        let pool = self.scene.snapshot.pool(None).expect("there is one");
        let aim = self.chooser.aim(ask, pool);
        self.chooser.choose(&aim, &Candidates::new(pool, &[], self.now), &mut SmallRng::seed_from_u64(0)).expect("somebody")
    }

    fn begins(&self, choice: &Choice) {
        let forecast = choice.forecast.as_ref().expect("one of each");
        // As fast as it is taken for at first.
        self.chooser.began(forecast, Some(Duration::from_secs_f64(forecast.tokens * 60e-6)));
    }

    /// Who takes it, when nobody has anything to do.
    fn sends(&self, ask: &Ask) -> (usize, Reason) {
        let choice = self.send(ask);
        (choice.lease.replica().incarnation() as usize, choice.reason)
    }

    fn order(&self, ask: &Ask) -> Vec<usize> {
        let Placement::ByKey(boundaries) = &ask.placement else { panic!("it has a key") };
        self.scene.order(boundaries[0].key.0)
    }
}

fn way<'a>(scene: &'a Scene, chooser: &'a Chooser) -> Way<'a> {
    Way { scene, chooser, now: Instant::now() }
}

#[test]
fn what_nobody_holds_goes_to_its_keys_first_choice() {
    let (scene, chooser) = (scene(&[(1, 0, true); 5]), cache_aware());
    let way = way(&scene, &chooser);
    for tree in 0..40 {
        let ask = ask(tree, CHUNKS, 0);
        assert_eq!(way.sends(&ask), (way.order(&ask)[0], Reason::Home));
    }
}

#[test]
fn who_has_much_to_compute_is_left_until_the_first_byte() {
    let (scene, chooser) = (scene(&[(1, 0, true); 5]), cache_aware());
    let way = way(&scene, &chooser);
    let order = way.order(&ask(1, 0, 0));
    // A prompt alone costs 2 · 3,840 · 60 µs, everywhere the same; another one ahead 3,840 · 60 µs, which is more than a rank's 100 ms.
    let first = way.send(&ask(1, 0, 0));
    let second = way.send(&ask(1, 0, 1));
    assert_eq!([&first, &second].map(|choice| choice.lease.replica().incarnation() as usize), [order[0], order[1]]);
    assert_eq!(second.reason, Reason::Overflow);
    way.begins(&first);
    assert_eq!(way.sends(&ask(1, 0, 2)).0, order[0], "it only generates now");
    drop(second);
    assert_eq!(way.sends(&ask(1, 0, 1)).0, order[0], "what never began is nowhere");
}

#[test]
fn a_prompt_goes_where_its_beginning_is_though_others_wait_there() {
    let (scene, chooser) = (scene(&[(1, 0, true); 5]), cache_aware());
    let way = way(&scene, &chooser);
    let order = way.order(&ask(1, 50, 0));
    let busy = way.send(&ask(1, 0, 0));
    let elsewhere = way.send(&ask(1, 50, 1));
    way.begins(&elsewhere);
    assert_eq!((elsewhere.lease.replica().incarnation() as usize, elsewhere.reason), (order[1], Reason::Overflow));
    drop(busy);
    // Its first choice is idle, but would have to compute all of it.
    assert_eq!(way.sends(&ask(1, 50, 2)), (order[1], Reason::Cached));
    let forecast = elsewhere.forecast.as_ref().expect("one of each");
    assert_eq!((forecast.held_bytes, forecast.prompt_bytes, forecast.beyond), (0, end_of(CHUNKS), None));
    let again = way.send(&ask(1, 50, 3));
    assert_eq!(again.forecast.as_ref().map(|forecast| forecast.held_bytes), Some(end_of(50)));
    // Much more work there than it saves: what it lacks is computed elsewhere.
    let others: Vec<Choice> = (0..20).map(|number| way.send(&ask(1, 50, 10 + number))).collect();
    let mut counts = [0; 5];
    others.iter().for_each(|choice| counts[choice.lease.replica().incarnation() as usize] += 1);
    assert!(counts[order[1]] >= 4 && counts.iter().filter(|&&count| count > 0).count() >= 2, "{counts:?}");
}

#[test]
fn an_answer_that_comes_whole_counts_only_until_it_should_have_begun() {
    let (scene, chooser) = (scene(&[(1, 0, true); 3]), cache_aware());
    let mut way = way(&scene, &chooser);
    let order = way.order(&ask(1, 0, 0));
    let whole = |own| Ask { streams: false, ..ask(1, 0, own) };
    let _first = way.send(&whole(0));
    let second = way.send(&whole(1));
    assert_eq!(second.lease.replica().incarnation() as usize, order[1]);
    drop(second);
    // 3,840 · 60 µs are 230 ms, of which some may be done soon.
    way.now += Duration::from_millis(50);
    assert_ne!(way.sends(&whole(2)).0, order[0]);
    way.now += Duration::from_millis(150);
    assert_eq!(way.sends(&whole(2)).0, order[0]);
    way.now += Duration::from_millis(500);
    assert_eq!(way.sends(&whole(3)).0, order[0]);
    // Sooner where it is over sooner.
    let third = way.send(&whole(4));
    assert_ne!(way.sends(&whole(5)).0, order[0]);
    drop(third);
    assert_eq!(way.sends(&whole(6)).0, order[0]);
}

#[test]
fn what_engines_say_of_others_counts_until_it_is_old() {
    let (scene, chooser) = (scene(&[(1, 0, true); 3]), cache_aware());
    let mut way = way(&scene, &chooser);
    let order = way.order(&ask(1, 0, 0));
    let report = Report { running: Some(3), waiting: Some(4), ..Report::default() };
    chooser.hear(&scene.replica(order[0]), &report, way.now);
    assert_eq!(way.sends(&ask(1, 0, 0)).0, order[1], "four of another router wait there");
    way.now += Duration::from_secs(11);
    assert_eq!(way.sends(&ask(1, 0, 1)).0, order[0]);
    // Where only a part is said, that part counts.
    chooser.hear(&scene.replica(order[0]), &Report { running: None, ..report }, way.now);
    assert_eq!(way.sends(&ask(1, 0, 2)).0, order[0]);
}

#[test]
fn an_engine_that_has_begun_anew_holds_nothing_and_a_small_one_little() {
    let (scene, chooser) = (scene(&[(1, 0, true); 3]), cache_aware());
    let way = way(&scene, &chooser);
    let held = |own| {
        let choice = way.send(&ask(1, 50, own));
        way.begins(&choice);
        choice.forecast.expect("one of each").held_bytes
    };
    assert_eq!([held(0), held(1)], [0, end_of(50)]);
    let home = scene.replica(way.order(&ask(1, 50, 0))[0]);
    chooser.restarted(&home);
    assert_eq!([held(2), held(3)], [0, end_of(50)]);
    // 1,000 tokens, four bytes each: 15 chunks.
    chooser.hear(&home, &Report { cache_tokens: Some(1_000), ..Report::default() }, way.now);
    assert_eq!(held(4), end_of(15));
}

#[test]
fn what_other_routers_leave_at_first_choices_is_learnt() {
    let (scene, chooser) = (scene(&[(1, 0, true); 3]), one_of(2));
    let way = way(&scene, &chooser);
    let order = way.order(&ask(1, 0, 0));
    let busy = |way: &Way<'_>| (0..3).map(|own| way.send(&ask(1, 0, own))).collect::<Vec<_>>();
    // All alike at first: what comes fourth goes to the second again as soon as the first has two.
    for number in 0..400 {
        let mut choice = way.send(&ask(100 + number, 0, 0));
        let forecast = choice.forecast.as_mut().expect("one of each");
        assert_eq!(forecast.beyond, Some(Beyond::Nothing));
        chooser.answered(forecast, &usage(3_840, 3_800), None, 0);
        // Of what was sent elsewhere nothing is learnt.
        forecast.beyond = None;
        chooser.answered(forecast, &usage(3_840, 0), None, 0);
    }
    let kept = busy(&way);
    assert!(kept.iter().all(|choice| choice.lease.replica().incarnation() as usize == order[0]), "it is most likely there");
}

#[test]
fn two_routers_that_know_nothing_of_each_other_look_in_the_same_place() {
    let scene = scene(&[(1, 0, true); 7]);
    let routers = [one_of(2), one_of(2)];
    let ways = routers.each_ref().map(|chooser| way(&scene, chooser));
    for number in 0..600_u64 {
        let ask = ask(number % 90, 40, number);
        assert_eq!(ways[0].sends(&ask).0, ways[1].sends(&ask).0);
    }
}

#[test]
fn a_prompt_without_text_goes_by_load_and_a_further_try_elsewhere() {
    let (scene, chooser) = (scene(&[(1, 2, true), (1, 0, true), (1, 3, true)]), cache_aware());
    assert_eq!(scene.choose(&chooser, &Aim::NoKey, &[], 0), Some((1, Reason::NoKey)));
    assert_eq!(scene.choose(&chooser, &Aim::ByLoad, &[], 0), Some((1, Reason::Load)));
    let way = way(&scene, &chooser);
    let order = way.order(&ask(1, 0, 0));
    let aim = chooser.aim(&ask(1, 0, 0), scene.snapshot.pool(None).expect("there is one"));
    let (taken, reason) = scene.choose(&chooser, &aim, &order[..1], 0).expect("two are left");
    assert!(taken != order[0] && reason == Reason::Failover);
    assert_eq!(scene.choose(&chooser, &aim, &[0, 1, 2], 0), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever is sent and however it ends, at rest every count is 0.
    #[test]
    fn counts_are_exact(sends in prop::collection::vec((0_u64..6, 0_usize..60, 0_u64..50, any::<bool>(), 0_u8..4), 1..80)) {
        let (scene, chooser) = (scene(&[(1, 0, true), (3, 0, true), (1, 0, true), (2, 0, true)]), cache_aware());
        let way = way(&scene, &chooser);
        let mut kept: HashMap<usize, Choice> = HashMap::new();
        for (number, (tree, common, own, streams, end)) in sends.into_iter().enumerate() {
            let choice = way.send(&Ask { streams, ..ask(tree, common, own) });
            let forecast = choice.forecast.as_ref().expect("one of each");
            prop_assert!(forecast.held_bytes <= forecast.prompt_bytes && forecast.tokens >= 1.0);
            match end {
                0 | 1 => chooser.began(forecast, (end == 0).then(|| Duration::from_millis(own))),
                2 => drop(chooser.answered(forecast, &usage(own, own * 2), Some(Duration::from_millis(own)), own)),
                _ => {}
            }
            kept.insert(number % 20, choice);
        }
        drop(kept);
        prop_assert!(scene.snapshot.replicas().iter().all(|replica| replica.outstanding() + replica.waiting() == 0));
        // Nobody has anything left to compute, so there is nothing to wait for.
        let choice = way.send(&ask(99, 0, 0));
        prop_assert!(choice.forecast.as_ref().is_some_and(|forecast| forecast.tokens <= forecast.prompt_bytes as f64 / 0.5));
        prop_assert_eq!(choice.lease.replica().incarnation() as usize, way.order(&ask(99, 0, 0))[0]);
    }
}

#[test]
fn weights_are_relative() {
    for factor in [1, 30] {
        let (scene, chooser) = (scene(&[(factor, 0, true), (3 * factor, 0, true), (2 * factor, 0, true)]), cache_aware());
        let way = way(&scene, &chooser);
        for tree in 0..20 {
            let choice = way.send(&ask(tree, 0, 0));
            let speed = choice.forecast.as_ref().map(|forecast| forecast.seconds_per_token);
            let expected = 60e-6 / [0.5, 1.5, 1.0][choice.lease.replica().incarnation() as usize];
            assert!(speed.is_some_and(|speed| (speed / expected - 1.0).abs() < 1e-9), "{factor}: {speed:?}");
        }
    }
}

/// Where three prompts go that nobody holds, one on top of the other, after answers have told what was found of what was thought to be held: how many of
/// them go to their key's first choice.
fn at_first_choice(found: impl Fn(u64) -> u64) -> usize {
    let (scene, chooser) = (scene(&[(1, 0, true); 3]), cache_aware());
    let way = way(&scene, &chooser);
    for number in 0..400 {
        let choice = way.send(&ask(number % 40, 50, number));
        way.begins(&choice);
        let forecast = choice.forecast.as_ref().expect("one of each");
        let held = (forecast.held_bytes / 4) as u64;
        chooser.answered(forecast, &usage(3_840, found(held)), None, 0);
    }
    let first = way.order(&ask(99, 0, 0))[0];
    let sent: Vec<Choice> = (0..3).map(|own| way.send(&ask(99, 0, own))).collect();
    sent.iter().filter(|choice| choice.lease.replica().incarnation() as usize == first).count()
}

#[test]
fn where_pictures_are_wrong_for_long_the_ring_decides() {
    assert!(at_first_choice(|held| held) < 3, "what is ahead there counts");
    assert_eq!(at_first_choice(|_| 0), 3, "three are far from the gate");
}

#[test]
fn where_engines_say_that_they_cache_nothing_the_ring_decides_at_once() {
    let (scene, chooser) = (scene(&[(1, 0, true); 3]), cache_aware());
    let way = way(&scene, &chooser);
    let first = way.order(&ask(99, 0, 0))[0];
    let turns = (0..3).filter_map(|index| {
        let report = Report { caches: Some(false), ..Report::default() };
        chooser.hear(&scene.replica(index), &report, way.now)?.turned
    });
    assert!(turns.map(|turn| turn.is_wrong).eq([true; 3]));
    let sent: Vec<Choice> = (0..3).map(|own| way.send(&ask(99, 0, own))).collect();
    assert!(sent.iter().all(|choice| choice.lease.replica().incarnation() as usize == first));
}

#[test]
fn what_was_expected_of_an_engine_that_began_anew_is_not_judged() {
    let (scene, chooser) = (scene(&[(1, 0, true); 3]), cache_aware());
    let way = way(&scene, &chooser);
    way.begins(&way.send(&ask(1, 50, 0)));
    let choice = way.send(&ask(1, 50, 1));
    let forecast = choice.forecast.as_ref().expect("one of each");
    assert!(forecast.held_bytes > 0);
    chooser.restarted(choice.lease.replica());
    assert_eq!(chooser.answered(forecast, &usage(3_840, 0), None, 0), None);
    drop(choice);
    let choice = way.send(&ask(1, 50, 2));
    let forecast = choice.forecast.as_ref().expect("one of each");
    assert_eq!(forecast.held_bytes, 0);
    assert!(chooser.answered(forecast, &usage(3_840, 0), None, 0).is_some());
}

#[test]
fn one_that_has_been_away_holds_nothing_unless_its_engine_says_otherwise() {
    for heard in [false, true] {
        let specs = ["a", "b"].map(|name| ReplicaSpec {
            name: name.to_owned(),
            authority: String::new(),
            weight: Weight::clamped(1),
            models: Vec::new(),
            drain: false,
        });
        let (mut fleet, chooser, now) = (Fleet::new(specs.into(), health::Settings::default(), 0), cache_aware(), Instant::now());
        let all = fleet.snapshot().replicas().to_vec();
        let held = |fleet: &mut Fleet, outcomes: &[Outcome]| {
            for &outcome in outcomes {
                for replica in &all {
                    fleet.observe(replica, outcome, now, 0.0);
                }
            }
            let (snapshot, ask) = (fleet.snapshot(), ask(1, 50, 0));
            let pool = snapshot.pool(None).expect("there is one");
            let choice = chooser.choose(&chooser.aim(&ask, pool), &Candidates::new(pool, &[], now), &mut SmallRng::seed_from_u64(0));
            let choice = choice.expect("somebody");
            if heard {
                chooser.hear(choice.lease.replica(), &Report { shows_restarts: true, ..Report::default() }, now);
            }
            let forecast = choice.forecast.as_ref().expect("one of each");
            chooser.began(forecast, Some(Duration::from_millis(100)));
            forecast.held_bytes
        };
        let up = [Outcome::CheckPassed; 5];
        assert_eq!([held(&mut fleet, &up), held(&mut fleet, &[])], [0, end_of(60)]);
        let away = [&[Outcome::CheckFailed; 5][..], &up].concat();
        assert_eq!(held(&mut fleet, &away), if heard { end_of(60) } else { 0 });
    }
}

#[test]
fn what_comes_again_is_looked_for_where_all_look_and_the_more_so_the_more_routers_there_are() {
    let scene = scene(&[(1, 0, true); 5]);
    // How many prompts that nobody holds a first choice takes, one on top of the other, before one goes elsewhere.
    let [alone, shared] = [1, 4].map(|routers| {
        let chooser = one_of(routers);
        let way = way(&scene, &chooser);
        let order = way.order(&ask(1, 0, 0));
        let mut sent = Vec::new();
        (0..100)
            .take_while(|&own| {
                sent.push(way.send(&ask(1, 0, own)));
                sent.last().is_some_and(|choice| choice.lease.replica().incarnation() as usize == order[0])
            })
            .count()
    });
    assert!(alone < shared, "{alone} {shared}");
}
