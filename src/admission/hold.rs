//! Requests that are held back for as long as the replica that each should go to has enough to do, and who of them goes first.
//!
//! A replica is not sooner done for having more in its queue; but what waits here can be overtaken, and can still go elsewhere. So those go first that have
//! the least to compute, as in shortest job first; and nobody is overtaken for long: having a second to compute is as having come [`PATIENCE`]
//! seconds later. What is held of one identifier counts as one piece of work, so that many small requests of one do not go before all others'.
//!
//! That a request waits for where it should go, and does not go where there is less to do, is on purpose: what it would have to compute there once more
//! is what a fleet that has enough to do lacks time for.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use super::{Full, Settings};
use crate::routing::Estimate;

/// Requests that have so much less to compute, in seconds, go first although they come so many times that later. Of 1, 3 and 10 (and of the order of coming),
/// three did best in the simulator where fleets have too much to do (docs/placement.md).
const PATIENCE: f64 = 3.0;

/// What has to be known of a request that is held back.
#[derive(Clone, Debug)]
pub struct Holdable {
    /// Lower goes first, as in vLLM: one more is as having come [`Settings::queue_aging`] later.
    pub priority: i32,
    /// Whose it is; `None` where nobody says.
    pub flow: Option<u64>,
    /// Bytes of its body.
    pub size: usize,
    /// Since when it is on its way.
    pub arrived: Instant,
}

/// A place among those that are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u64);

/// Requests that are held back, each with a `T` of the caller's.
pub struct Hold<T> {
    held: BTreeMap<Place, Held<T>>,
    /// Those that have been let go and are not on their way yet: where they should go, and the seconds that they take there.
    leaving: BTreeMap<Place, (u64, f64)>,
    bytes: usize,
    /// Places so far.
    places: u64,
}

struct Held<T> {
    request: Holdable,
    value: T,
}

/// One of those that are held, as it stands at one moment.
struct Standing {
    place: Place,
    /// Where it should go.
    best: Estimate,
    /// In seconds; the lowest goes first.
    rank: f64,
    is_over: bool,
}

impl<T> Default for Hold<T> {
    fn default() -> Self {
        Self { held: BTreeMap::new(), leaving: BTreeMap::new(), bytes: 0, places: 0 }
    }
}

impl<T> Hold<T> {
    /// Requests that are held back, and those that leave.
    pub fn waiting(&self) -> usize {
        self.held.len() + self.leaving.len()
    }

    /// Requests that are held back.
    pub fn requests(&self) -> usize {
        self.held.len()
    }

    /// Bytes of their bodies.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Holds a request back; `value` is dropped where there is no room for it.
    pub fn push(&mut self, request: Holdable, value: T, settings: &Settings) -> Result<Place, Full> {
        settings.room_for(request.size, self.held.len(), self.bytes)?;
        let place = Place(self.places);
        self.places += 1;
        self.bytes += request.size;
        self.held.insert(place, Held { request, value });
        Ok(place)
    }

    /// Takes note that a request waits no longer: it is on its way, or has been given up.
    pub fn remove(&mut self, place: Place) {
        self.leaving.remove(&place);
        self.take(place);
    }

    /// Lets those go whose turn it is at `now`, and shows them to `go`, the next one first, with
    /// whether it goes since its time is over. `estimate` says what it would be to send a request to each
    /// replica; where it says nothing there is nothing to wait for. Each of them is to be removed when it is on its way, and then the next ones are to be
    /// looked for.
    pub fn release(
        &mut self,
        now: Instant,
        settings: &Settings,
        mut estimate: impl FnMut(&T) -> Vec<Estimate>,
        mut go: impl FnMut(T, Place, bool),
    ) {
        let (mut released, mut standings) = (Vec::new(), Vec::with_capacity(self.held.len()));
        let mut of_flows: HashMap<u64, f64> = HashMap::new();
        for (&place, Held { request, value }) in &self.held {
            // The first of equals, as in a choice.
            let best = estimate(value).into_iter().reduce(|best, one| if one.cost < best.cost { one } else { best });
            let Some(best) = best else {
                released.push((place, false, None));
                continue;
            };
            let seconds = request.flow.map_or(best.uncached, |flow| {
                let of_flow = of_flows.entry(flow).or_default();
                *of_flow += best.uncached;
                *of_flow
            });
            let waited = now.saturating_duration_since(request.arrived);
            let steps = f64::from(request.priority) * settings.queue_aging.as_secs_f64();
            let is_over = !settings.holds() || waited >= settings.hold_timeout;
            standings.push(Standing { place, best, rank: steps + PATIENCE * seconds - waited.as_secs_f64(), is_over });
        }
        // Who came first is the first of equals.
        standings.sort_by(|one, other| one.rank.total_cmp(&other.rank));
        let mut before: HashMap<u64, f64> = HashMap::new();
        for (replica, seconds) in self.leaving.values() {
            *before.entry(*replica).or_default() += seconds;
        }
        for Standing { place, best, is_over, .. } in standings {
            let before = before.entry(best.incarnation).or_default();
            if is_over || best.ahead + *before < settings.hold.as_secs_f64() {
                released.push((place, is_over, Some((best.incarnation, best.uncached))));
            }
            // Whoever comes after one that is held is held, too.
            *before += best.uncached;
        }
        for (place, is_over, leaving) in released {
            if let Some(value) = self.take(place) {
                self.leaving.extend(leaving.map(|leaving| (place, leaving)));
                go(value, place, is_over);
            }
        }
    }

    fn take(&mut self, place: Place) -> Option<T> {
        let Held { request, value } = self.held.remove(&place)?;
        self.bytes -= request.size;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// What it would be to go to a replica that has `ahead` seconds before, with a prompt of `uncached` seconds.
    fn estimate(incarnation: u64, ahead: f64, uncached: f64) -> Estimate {
        Estimate { incarnation, cost: ahead + 2.0 * uncached, ahead, uncached }
    }

    /// What is held is what it would be to go to each replica.
    struct Scene {
        hold: Hold<Vec<Estimate>>,
        start: Instant,
        settings: Settings,
    }

    impl Scene {
        fn new() -> Self {
            let settings = Settings { queue_max_requests: 100, hold_timeout: Duration::MAX, ..Settings::default() };
            Self { hold: Hold::default(), start: Instant::now(), settings }
        }

        fn push_as(&mut self, at: Duration, priority: i32, flow: Option<u64>, estimates: &[Estimate]) -> Place {
            let request = Holdable { priority, flow, size: 10, arrived: self.start + at };
            self.hold.push(request, estimates.to_vec(), &self.settings).expect("no bounds")
        }

        fn push(&mut self, at: Duration, estimates: &[Estimate]) -> Place {
            self.push_as(at, 0, None, estimates)
        }

        /// Who goes now; they are on their way with that.
        fn go(&mut self, at: Duration) -> Vec<Place> {
            let gone = self.leave(at);
            gone.iter().for_each(|&place| self.hold.remove(place));
            gone
        }

        /// Who goes now, and is not on its way yet.
        fn leave(&mut self, at: Duration) -> Vec<Place> {
            let mut gone = Vec::new();
            self.hold.release(self.start + at, &self.settings, Clone::clone, |_, place, _| gone.push(place));
            gone
        }
    }

    #[test]
    fn who_finds_enough_before_it_waits_and_who_finds_less_goes() {
        let mut scene = Scene::new();
        let busy = scene.push(SECOND, &[estimate(1, 0.25, 0.1)]);
        let free = scene.push(SECOND, &[estimate(2, 0.24, 0.1)]);
        // Where it should go is what counts, not whether another one has less to do.
        scene.push(SECOND, &[estimate(1, 0.3, 0.1), estimate(2, 0.0, 1.0)]);
        assert_eq!(scene.go(SECOND), [free]);
        assert_eq!((scene.hold.requests(), scene.hold.bytes()), (2, 20));
        scene.hold.remove(busy);
        scene.hold.remove(busy);
        assert_eq!((scene.hold.requests(), scene.hold.bytes()), (1, 10));
    }

    #[test]
    fn who_goes_is_before_all_others_until_it_is_on_its_way_and_counts_there_itself() {
        let mut scene = Scene::new();
        let first = scene.push(SECOND, &[estimate(1, 0.0, 0.2)]);
        let second = scene.push(SECOND, &[estimate(1, 0.0, 0.2)]);
        scene.push(SECOND, &[estimate(1, 0.0, 0.2)]);
        assert_eq!(scene.leave(SECOND), [first, second]);
        assert_eq!((scene.hold.requests(), scene.hold.waiting()), (1, 3));
        assert_eq!(scene.leave(SECOND), []);
        scene.hold.remove(first);
        scene.hold.remove(second);
        assert_eq!(scene.go(SECOND).len(), 1);
        assert_eq!(scene.hold.waiting(), 0);
    }

    #[test]
    fn whoever_has_nothing_to_wait_for_goes() {
        let mut scene = Scene::new();
        scene.push(SECOND, &[estimate(1, 9.0, 0.1)]);
        let nowhere = scene.push(SECOND, &[]);
        assert_eq!(scene.go(SECOND), [nowhere]);
        scene.settings.hold_timeout = 2 * SECOND;
        assert_eq!(scene.go(3 * SECOND - Duration::from_nanos(1)), []);
        assert_eq!(scene.go(3 * SECOND).len(), 1);
        for off in [Settings { hold: Duration::ZERO, ..Settings::default() }, Settings { max_outstanding: 1, ..Settings::default() }] {
            let mut scene = Scene::new();
            scene.push(SECOND, &[estimate(1, 9.0, 0.1)]);
            scene.settings = off;
            assert_eq!(scene.go(SECOND).len(), 1);
        }
    }

    #[test]
    fn what_is_held_of_one_identifier_is_one_piece_of_work_and_priorities_are_time() {
        let order = |named: bool, priority: i32| {
            let mut scene = Scene::new();
            let flow = |number: u64| named.then_some(number);
            for _ in 0..4 {
                scene.push_as(SECOND, 0, flow(1), &[estimate(1, 0.0, 0.3)]);
            }
            let one = scene.push_as(SECOND, priority, flow(2), &[estimate(1, 0.0, 0.8)]);
            // All at once, in their order.
            scene.settings.hold = Duration::from_secs(1_000);
            scene.go(SECOND).iter().position(|&place| place == one)
        };
        // By themselves all four short ones are shorter; together the third has more before it, 0.9 s, than the long one has to compute.
        assert_eq!((order(false, 0), order(true, 0)), (Some(4), Some(2)));
        // A step of priority is worth five seconds of waiting, and so 1.7 s of a prompt.
        assert_eq!((order(false, -1), order(true, 1)), (Some(0), Some(4)));
    }

    #[test]
    fn bounds_hold_for_whoever_comes() {
        let mut scene = Scene::new();
        let request = |size| Holdable { priority: 0, flow: None, size, arrived: Instant::now() };
        scene.settings = Settings { queue_max_requests: 2, queue_max_bytes: 100, ..Settings::default() };
        let Scene { hold, settings, .. } = &mut scene;
        assert_eq!(hold.push(request(101), Vec::new(), settings), Err(Full::Bytes));
        assert!(hold.push(request(60), Vec::new(), settings).is_ok());
        assert_eq!(hold.push(request(41), Vec::new(), settings), Err(Full::Bytes));
        assert!(hold.push(request(40), Vec::new(), settings).is_ok());
        assert_eq!(hold.push(request(0), Vec::new(), settings), Err(Full::Requests));
        assert_eq!((hold.requests(), hold.bytes()), (2, 100));
    }

    proptest! {
        /// All are served by one replica that computes one prompt after the other, and looks for the next one whenever it has nothing to do.
        #[test]
        fn all_go_and_nobody_is_overtaken_by_who_came_much_later(prompts in prop::collection::vec((0.0..5.0_f64, 0.3..4.0_f64), 1..40)) {
            let mut scene = Scene::new();
            let mut coming: Vec<(f64, f64)> = prompts;
            coming.sort_by(|one, other| one.0.total_cmp(&other.0));
            let (mut now, mut next, mut known, mut order) = (0.0, 0, HashMap::new(), Vec::new());
            while order.len() < coming.len() {
                while next < coming.len() && coming[next].0 <= now {
                    let (at, seconds) = coming[next];
                    let place = scene.push(Duration::from_secs_f64(at), &[estimate(1, 0.0, seconds)]);
                    known.insert(place.0, next);
                    next += 1;
                }
                // Each takes longer than `hold`, so one goes at a time.
                let gone = scene.go(Duration::from_secs_f64(now));
                prop_assert!(gone.len() <= 1);
                match gone.first() {
                    Some(place) => {
                        order.push(known[&place.0]);
                        now += coming[known[&place.0]].1;
                    }
                    None => now = coming[next].0,
                }
            }
            for (turn, &one) in order.iter().enumerate() {
                for &later in &order[turn + 1..] {
                    let ((came, seconds), (others_came, others)) = (coming[one], coming[later]);
                    // Who overtakes has come no later than that.
                    prop_assert!(came - others_came <= PATIENCE * (others - seconds).max(0.0) + 1e-6);
                }
            }
            prop_assert_eq!(scene.hold.waiting(), 0);
        }
    }
}
