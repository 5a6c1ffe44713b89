//! The queue's rules, on times and sizes that are made up.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::class::LEAST_COST;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn unbounded() -> Settings {
    Settings { queue_max_requests: usize::MAX, queue_max_bytes: usize::MAX, ..Settings::default() }
}

/// A queue whose values are numbers, at times that are counted from its start.
struct Scene {
    queue: Queue<u8, u64>,
    start: Instant,
    settings: Settings,
    tickets: HashMap<u64, Ticket<u8>>,
    next: u64,
}

impl Scene {
    fn new() -> Self {
        Self { queue: Queue::default(), start: Instant::now(), settings: unbounded(), tickets: HashMap::new(), next: 0 }
    }

    /// Its number.
    fn push(&mut self, line: u8, priority: i32, flow: Option<u64>, size: usize, at: Duration) -> u64 {
        let number = self.next;
        self.next += 1;
        let entry = Entry { line, priority, flow, size, arrived: self.start + at };
        let ticket = self.queue.push(entry, number, &self.settings).expect("no bounds");
        self.tickets.insert(number, ticket);
        number
    }

    /// The next one in any line.
    fn pop(&mut self, at: Duration) -> Option<u64> {
        self.pop_where(at, |_| true)
    }

    fn pop_where(&mut self, at: Duration, good: impl Fn(u64) -> bool) -> Option<u64> {
        let (number, ()) = self.queue.pop(self.start + at, &self.settings, |&number| good(number).then_some(()))?;
        self.tickets.remove(&number);
        Some(number)
    }

    fn all(&mut self, at: Duration) -> Vec<u64> {
        std::iter::from_fn(|| self.pop(at)).collect()
    }
}

#[test]
fn one_flow_goes_in_the_order_of_coming() {
    let mut scene = Scene::new();
    for size in [1, 100_000, 0, 5, 16_384] {
        scene.push(0, 0, Some(1), size, Duration::ZERO);
    }
    assert_eq!(scene.all(SECOND), [0, 1, 2, 3, 4]);
}

#[test]
fn flows_take_turns_by_bytes() {
    let mut scene = Scene::new();
    let quantum = QUANTUM as usize;
    // One sends whole quanta, the other quarters: four of the one's go for each of the other's.
    let large: Vec<u64> = (0..3).map(|_| scene.push(0, 0, Some(1), quantum, Duration::ZERO)).collect();
    let small: Vec<u64> = (0..12).map(|_| scene.push(0, 0, None, quantum / 4, Duration::ZERO)).collect();
    let expected: Vec<u64> = (0..3).flat_map(|turn| [vec![large[turn]], small[4 * turn..4 * (turn + 1)].to_vec()].concat()).collect();
    assert_eq!(scene.all(SECOND), expected);
}

#[test]
fn a_newcomer_is_served_before_a_flows_whole_backlog() {
    let mut scene = Scene::new();
    for _ in 0..1_000 {
        scene.push(0, 0, Some(1), QUANTUM as usize, Duration::ZERO);
    }
    let newcomer = scene.push(0, 0, Some(2), 10, SECOND);
    let before = std::iter::from_fn(|| scene.pop(SECOND)).take_while(|&number| number != newcomer).count();
    assert!(before <= 1, "{before}");
}

#[test]
fn lower_priorities_go_first_unless_others_have_waited_long_enough() {
    let check = |aging: u64, waited_seconds: f64, expected: [u64; 2]| {
        let mut scene = Scene::new();
        scene.settings.queue_aging = Duration::from_secs(aging);
        scene.push(0, 2, Some(1), 10, Duration::ZERO);
        let at = Duration::from_secs_f64(waited_seconds);
        scene.push(0, 0, Some(2), 10, at);
        assert_eq!(scene.all(at), expected, "{waited_seconds} s, {aging} s a step");
    };
    check(5, 0.0, [1, 0]);
    check(5, 9.9, [1, 0]);
    check(5, 10.1, [0, 1]);
    check(1, 2.1, [0, 1]);
    check(1, 1.9, [1, 0]);
    check(3_600, 100.0, [1, 0]);
}

#[test]
fn a_flow_of_better_ones_leaves_each_eighth_place_to_who_has_waited_longest() {
    let mut scene = Scene::new();
    let poor = scene.push(0, 1_000, None, 1, Duration::ZERO);
    let better: Vec<u64> = (1..20).map(|_| scene.push(0, -1_000, None, 1, SECOND)).collect();
    let all = scene.all(2 * SECOND);
    assert_eq!(all[..7], better[..7]);
    assert_eq!(all[7], poor);
}

#[test]
fn extreme_priorities_do_no_harm() {
    let mut scene = Scene::new();
    scene.settings.queue_aging = Duration::MAX;
    for priority in [i32::MAX, 0, i32::MIN] {
        scene.push(0, priority, None, usize::MAX / 8, Duration::ZERO);
    }
    assert_eq!(scene.all(SECOND), [2, 1, 0]);
}

#[test]
fn a_line_without_room_holds_up_no_other() {
    let mut scene = Scene::new();
    let stuck: Vec<u64> = (0..10).map(|_| scene.push(0, -5, Some(1), 10, Duration::ZERO)).collect();
    let free = scene.push(1, 5, Some(1), 10, SECOND);
    assert_eq!(scene.pop_where(SECOND, |number| !stuck.contains(&number)), Some(free));
    assert_eq!(scene.pop_where(SECOND, |number| !stuck.contains(&number)), None);
    assert_eq!(scene.queue.requests(), 10);
}

#[test]
fn lines_that_wait_for_the_same_take_turns() {
    let mut scene = Scene::new();
    let first: Vec<u64> = (0..100).map(|_| scene.push(0, 0, Some(1), 10, Duration::ZERO)).collect();
    scene.pop(SECOND);
    let second = [scene.push(1, 0, Some(2), 10, SECOND), scene.push(1, 0, Some(2), 10, SECOND)];
    let order: Vec<u64> = (0..4).filter_map(|_| scene.pop(SECOND)).collect();
    assert_eq!(order, [first[1], second[0], first[2], second[1]]);
}

#[test]
fn bounds_refuse_who_comes_and_keep_who_waits() {
    let start = Instant::now();
    let mut queue: Queue<u8, ()> = Queue::default();
    let settings = Settings { queue_max_requests: 3, queue_max_bytes: 100, ..Settings::default() };
    let entry = |size| Entry { line: 0, priority: 0, flow: None, size, arrived: start };
    assert_eq!(queue.push(entry(101), (), &settings).err(), Some(Full::Bytes));
    let first = queue.push(entry(90), (), &settings).expect("room");
    assert_eq!(queue.push(entry(11), (), &settings).err(), Some(Full::Bytes));
    queue.push(entry(10), (), &settings).expect("room");
    queue.push(entry(0), (), &settings).expect("room");
    assert_eq!(queue.push(entry(0), (), &settings).err(), Some(Full::Requests));
    let lower = Settings { queue_max_requests: 0, queue_max_bytes: 0, ..Settings::default() };
    assert_eq!(queue.push(entry(0), (), &lower).err(), Some(Full::Requests));
    assert_eq!((queue.requests(), queue.bytes()), (3, 100));
    assert!(queue.remove(&first).is_some());
    assert!(queue.remove(&first).is_none(), "once");
    assert_eq!((queue.requests(), queue.bytes()), (2, 10));
}

#[test]
fn a_large_request_that_leaves_buys_nothing_for_those_behind_it() {
    let mut scene = Scene::new();
    let quantum = QUANTUM as usize;
    let large = scene.push(0, 0, Some(1), 100 * quantum, Duration::ZERO);
    let other = scene.push(0, 0, Some(2), 99 * quantum, Duration::ZERO);
    assert_eq!(scene.pop(SECOND), Some(other), "99 rounds have passed");
    let mine: Vec<u64> = (0..50).map(|_| scene.push(0, 0, Some(1), quantum, Duration::ZERO)).collect();
    let theirs: Vec<u64> = (0..50).map(|_| scene.push(0, 0, Some(2), quantum, Duration::ZERO)).collect();
    let ticket = scene.tickets.remove(&large).expect("it waits");
    scene.queue.remove(&ticket);
    let order: Vec<u64> = (0..20).filter_map(|_| scene.pop(SECOND)).collect();
    let count = |of: &[u64]| order.iter().filter(|number| of.contains(number)).count();
    assert!(count(&mine).abs_diff(count(&theirs)) <= 2, "{order:?}");
}

#[derive(Clone, Debug)]
enum Step {
    Push {
        line: u8,
        priority: i32,
        flow: Option<u64>,
        size: usize,
    },
    /// Pops what is in none of the lines of this mask.
    Pop(u8),
    Leave(prop::sample::Index),
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![0_usize..100, 0_usize..200_000, Just(10 << 20)];
    prop_oneof![
        4 => (0_u8..3, -2_i32..3, prop::option::of(0_u64..4), size)
            .prop_map(|(line, priority, flow, size)| Step::Push { line, priority, flow, size }),
        3 => (0_u8..8).prop_map(Step::Pop),
        1 => any::<prop::sample::Index>().prop_map(Step::Leave),
        1 => (0_u64..10_000).prop_map(Step::Wait),
    ]
}

/// Line, priority and flow.
type Group = (u8, i32, Option<u64>);

/// What is known of a request outside of the queue.
#[derive(Clone, Copy)]
struct Known {
    line: u8,
    priority: i32,
    flow: Option<u64>,
    size: usize,
}

proptest! {
    #[test]
    fn counts_are_exact_and_nothing_is_left_behind(steps in prop::collection::vec(any_step(), 0..300)) {
        let mut scene = Scene::new();
        let mut waiting: Vec<(u64, Known)> = Vec::new();
        let mut at = Duration::ZERO;
        for step in steps {
            match step {
                Step::Push { line, priority, flow, size } => {
                    let number = scene.push(line, priority, flow, size, at);
                    waiting.push((number, Known { line, priority, flow, size }));
                }
                Step::Pop(mask) => {
                    let free = |line: u8| mask & (1 << line) == 0;
                    let lines: HashMap<u64, u8> = waiting.iter().map(|&(number, known)| (number, known.line)).collect();
                    let popped = scene.pop_where(at, |number| free(lines[&number]));
                    prop_assert_eq!(popped.is_some(), waiting.iter().any(|(_, known)| free(known.line)), "whoever has room goes");
                    if let Some(number) = popped {
                        let place = waiting.iter().position(|&(other, _)| other == number).expect("it waited");
                        let (_, known) = waiting.remove(place);
                        let same = |other: &Known| (other.line, other.priority, other.flow) == (known.line, known.priority, known.flow);
                        prop_assert!(waiting.iter().all(|(other, of)| !same(of) || *other > number), "first come first of a flow");
                    }
                }
                Step::Leave(which) if !waiting.is_empty() => {
                    let (number, _) = waiting.remove(which.index(waiting.len()));
                    let ticket = scene.tickets.remove(&number).expect("it waits");
                    prop_assert_eq!(scene.queue.remove(&ticket), Some(number));
                    prop_assert_eq!(scene.queue.remove(&ticket), None);
                }
                Step::Leave(_) => {}
                Step::Wait(milliseconds) => at += Duration::from_millis(milliseconds),
            }
            prop_assert_eq!(scene.queue.requests(), waiting.len());
            prop_assert_eq!(scene.queue.bytes(), waiting.iter().map(|(_, known)| known.size).sum::<usize>());
            let distinct = |key: &dyn Fn(&Known) -> Group| {
                waiting.iter().map(|(_, known)| key(known)).collect::<std::collections::BTreeSet<_>>().len()
            };
            let flows = distinct(&|known| (known.line, known.priority, known.flow));
            let expected = [distinct(&|known| (known.line, 0, None)), distinct(&|known| (known.line, known.priority, None)), flows, flows];
            prop_assert_eq!(scene.queue.footprint(), expected);
        }
        let left = scene.all(at).len();
        prop_assert_eq!(left, waiting.len());
        prop_assert_eq!(scene.queue.footprint(), [0; 4]);
    }

    #[test]
    fn two_flows_with_a_backlog_are_served_alike(
        sizes in prop::collection::vec(prop::collection::vec(prop_oneof![1_usize..2_000, 1_usize..100_000], 60), 2..5),
    ) {
        let mut scene = Scene::new();
        let mut known = HashMap::new();
        let largest = (sizes.iter().flatten().max().copied().unwrap_or_default() as u64).max(LEAST_COST);
        for (flow, sizes) in sizes.iter().enumerate() {
            for &size in sizes {
                known.insert(scene.push(0, 0, Some(flow as u64), size, Duration::ZERO), (flow, (size as u64).max(LEAST_COST)));
            }
        }
        let (mut charged, mut left) = (vec![0_u64; sizes.len()], vec![60; sizes.len()]);
        // As long as all have something waiting.
        while left.iter().all(|&left| left > 0) {
            let (flow, charge) = known[&scene.pop(SECOND).expect("they wait")];
            charged[flow] += charge;
            left[flow] -= 1;
            let (least, most) = (charged.iter().min().expect("flows"), charged.iter().max().expect("flows"));
            prop_assert!(most - least <= QUANTUM + largest, "{charged:?}");
        }
    }

    #[test]
    fn a_flow_of_the_shortest_requests_sends_eight_in_a_row(size in 0_usize..2_048) {
        let mut scene = Scene::new();
        for _ in 0..100 {
            scene.push(0, 0, Some(1), size, Duration::ZERO);
        }
        let other = scene.push(0, 0, Some(2), size, Duration::ZERO);
        let before = (0..101).take_while(|_| scene.pop(Duration::ZERO) != Some(other)).count();
        prop_assert_eq!(before, 8);
    }

    #[test]
    fn nobody_starves(priority in 0_i32..20, flows in 1_u64..5, size in 1_usize..100_000) {
        // Newcomers of the best priority come as fast as requests go, and each flow has some waiting.
        let mut scene = Scene::new();
        scene.settings.queue_aging = SECOND;
        for flow in 0..flows {
            scene.push(0, 0, Some(flow), size, Duration::ZERO);
        }
        let patient = scene.push(0, priority, Some(99), 10, Duration::ZERO);
        let mut at = Duration::ZERO;
        let mut popped = None;
        while popped != Some(patient) {
            at += Duration::from_millis(100);
            // Its priority's worth of time, and as long as the others have waited themselves.
            prop_assert!(at <= SECOND * (priority as u32 + 2) + Duration::from_millis(100) * (flows as u32 * 8), "it waits still after {at:?}");
            scene.push(0, 0, Some(at.as_millis() as u64 % flows), size, at);
            popped = scene.pop(at);
        }
    }
}
