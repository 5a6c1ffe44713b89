//! Requests that are held back for as long as the replica that each should go to has enough to do, and who of them goes first.
//!
//! A replica is not sooner done for having more in its queue; but what waits here can be overtaken, and can still go elsewhere. So those go first that have
//! waited longest for what they have to compute (highest response ratio next): of those that came together the shortest, and one that has next to nothing to
//! compute after a moment. The longer one waits the fewer overtake it, and nobody is by who came later and has as much to compute. What is held of one
//! identifier counts as one piece of work, so that many small requests of one do not go before all others'.
//!
//! That a request waits for where it should go, and does not go where there is less to do, is on purpose: what it would have to compute there once more
//! is what a fleet that has enough to do lacks time for.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::Settings;
use crate::routing::Estimate;

/// What a request takes beside its prompt, in seconds: so much longer counts what there is to compute. It is some steps of an engine's batch.
const BESIDE: f64 = 0.1;

/// What has to be known of a request that is held back.
#[derive(Clone, Copy, Debug)]
pub struct Holdable {
    /// Lower goes first, as in vLLM: one less is as having waited for [`Settings::queue_aging`].
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

/// Why a request is let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The replica it should go to has less to do now, or it is not known any more what it has to do.
    Turn,
    /// It has waited for [`Settings::hold_timeout`].
    Timeout,
    /// More are held than may, and it is next.
    Full,
    /// Nobody is held back any more.
    Off,
}

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
    request: Holdable,
    waited: Duration,
    /// Where it should go.
    best: Estimate,
    /// What it has to compute, and all that goes before of the same identifier.
    seconds: f64,
    /// The lowest goes first.
    rank: f64,
}

impl<T> Default for Hold<T> {
    fn default() -> Self {
        Self { held: BTreeMap::new(), leaving: BTreeMap::new(), bytes: 0, places: 0 }
    }
}

impl<T: Clone> Hold<T> {
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

    /// Holds a request back, until it is let go. Bounds are kept by those who are let go then.
    pub fn push(&mut self, request: Holdable, value: T) -> Place {
        let place = Place(self.places);
        self.places += 1;
        self.bytes += request.size;
        self.held.insert(place, Held { request, value });
        place
    }

    /// Takes note that a request waits no longer: it is on its way, or has been given up.
    pub fn remove(&mut self, place: Place) {
        self.leaving.remove(&place);
        self.take(place);
    }

    /// All that are held back, in the order of coming.
    pub fn all(&self) -> Vec<(Place, T)> {
        self.held.iter().map(|(&place, held)| (place, held.value.clone())).collect()
    }

    /// Lets those go whose turn it is at `now`, and shows them to `go`, the next one first. `estimates` say of each what it would be to send it; where that
    /// is not known there is nothing to wait for. Who has left meanwhile is left out, and so is who has come. Each of them is to be removed when it is on
    /// its way, and then the next ones are to be looked for.
    pub fn release(
        &mut self,
        now: Instant,
        settings: &Settings,
        estimates: &[(Place, Option<Estimate>)],
        mut go: impl FnMut(T, Place, Release),
    ) {
        let (mut released, mut standings) = (Vec::new(), Vec::with_capacity(estimates.len()));
        let (mut requests, mut bytes) = (self.held.len(), self.bytes);
        for &(place, best) in estimates {
            let Some(&Held { request, .. }) = self.held.get(&place) else { continue };
            if let Some(best) = best {
                let waited = now.saturating_duration_since(request.arrived);
                standings.push(Standing { place, request, waited, best, seconds: best.uncached, rank: 0.0 });
            } else {
                (requests, bytes) = (requests - 1, bytes - request.size);
                released.push((place, Release::Turn, None));
            }
        }
        rank(&mut standings, settings);
        let mut before: HashMap<u64, f64> = HashMap::new();
        for (replica, seconds) in self.leaving.values() {
            *before.entry(*replica).or_default() += seconds;
        }
        for Standing { place, request, waited, best, .. } in standings {
            let before = before.entry(best.incarnation).or_default();
            let why = if !settings.holds() {
                Some(Release::Off)
            } else if best.ahead + *before < settings.hold.as_secs_f64() {
                Some(Release::Turn)
            } else if waited >= settings.hold_timeout {
                Some(Release::Timeout)
            } else if requests > settings.hold_max_requests || bytes > settings.queue_max_bytes {
                Some(Release::Full)
            } else {
                None
            };
            if let Some(why) = why {
                (requests, bytes) = (requests - 1, bytes - request.size);
                released.push((place, why, Some((best.incarnation, best.uncached))));
            }
            // Whoever comes after one that is held is held, too.
            *before += best.uncached;
        }
        for (place, why, leaving) in released {
            if let Some(value) = self.take(place) {
                self.leaving.extend(leaving.map(|leaving| (place, leaving)));
                go(value, place, why);
            }
        }
    }

    fn take(&mut self, place: Place) -> Option<T> {
        let Held { request, value } = self.held.remove(&place)?;
        self.bytes -= request.size;
        Some(value)
    }
}

/// Puts them in the order in which they go.
fn rank(standings: &mut [Standing], settings: &Settings) {
    // Of one identifier what goes first counts first.
    standings.sort_by_key(|one| (one.request.priority, one.place));
    let mut of_flows: HashMap<u64, f64> = HashMap::new();
    for standing in &mut *standings {
        if let Some(flow) = standing.request.flow {
            let of_flow = of_flows.entry(flow).or_default();
            *of_flow += standing.best.uncached;
            standing.seconds = *of_flow;
        }
        let lacks = f64::from(standing.request.priority) * settings.queue_aging.as_secs_f64() - standing.waited.as_secs_f64();
        // Whose priority is so low that it has not waited at all yet comes after all others.
        standing.rank = if lacks > 0.0 { lacks + standing.seconds } else { lacks / (standing.seconds + BESIDE) };
    }
    // Of equals the shortest is first, then who came first.
    standings.sort_by(|one, other| {
        one.rank.total_cmp(&other.rank).then(one.seconds.total_cmp(&other.seconds)).then(one.place.cmp(&other.place))
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// What it would be to go to a replica that has `ahead` seconds before, with a prompt of `uncached` seconds.
    fn estimate(incarnation: u64, ahead: f64, uncached: f64) -> Estimate {
        Estimate { incarnation, ahead, uncached }
    }

    /// What is held is what it would be to send it.
    struct Scene {
        hold: Hold<Option<Estimate>>,
        start: Instant,
        settings: Settings,
    }

    impl Scene {
        fn new() -> Self {
            let settings = Settings { hold_timeout: Duration::MAX, ..Settings::default() };
            Self { hold: Hold::default(), start: Instant::now(), settings }
        }

        fn push_as(&mut self, at: Duration, priority: i32, flow: Option<u64>, estimate: impl Into<Option<Estimate>>) -> Place {
            let request = Holdable { priority, flow, size: 10, arrived: self.start + at };
            self.hold.push(request, estimate.into())
        }

        fn push(&mut self, at: Duration, estimate: impl Into<Option<Estimate>>) -> Place {
            self.push_as(at, 0, None, estimate)
        }

        /// Who goes now; they are on their way with that.
        fn go(&mut self, at: Duration) -> Vec<Place> {
            let gone = self.leave(at);
            gone.iter().for_each(|&place| self.hold.remove(place));
            gone
        }

        /// Who goes now, and is not on its way yet.
        fn leave(&mut self, at: Duration) -> Vec<Place> {
            self.leave_for(at).into_iter().map(|(place, _)| place).collect()
        }

        fn leave_for(&mut self, at: Duration) -> Vec<(Place, Release)> {
            let (mut gone, all) = (Vec::new(), self.hold.all());
            self.hold.release(self.start + at, &self.settings, &all, |_, place, why| gone.push((place, why)));
            gone
        }
    }

    #[test]
    fn who_finds_enough_before_it_waits_and_who_finds_less_goes() {
        let mut scene = Scene::new();
        let busy = scene.push(SECOND, estimate(1, 0.25, 0.1));
        let free = scene.push(SECOND, estimate(2, 0.24, 0.1));
        assert_eq!(scene.go(SECOND), [free]);
        assert_eq!((scene.hold.requests(), scene.hold.bytes()), (1, 10));
        scene.hold.remove(busy);
        scene.hold.remove(busy);
        assert_eq!((scene.hold.requests(), scene.hold.bytes()), (0, 0));
    }

    #[test]
    fn who_goes_is_before_all_others_until_it_is_on_its_way_and_counts_there_itself() {
        let mut scene = Scene::new();
        let first = scene.push(SECOND, estimate(1, 0.0, 0.2));
        let second = scene.push(SECOND, estimate(1, 0.0, 0.2));
        scene.push(SECOND, estimate(1, 0.0, 0.2));
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
        scene.push(SECOND, estimate(1, 9.0, 0.1));
        let nowhere = scene.push(SECOND, None);
        assert_eq!(scene.go(SECOND), [nowhere]);
        scene.settings.hold_timeout = 2 * SECOND;
        assert_eq!(scene.leave_for(3 * SECOND - Duration::from_nanos(1)), []);
        assert!(matches!(scene.leave_for(3 * SECOND)[..], [(_, Release::Timeout)]));
        for off in [Settings { hold: Duration::ZERO, ..Settings::default() }, Settings { max_outstanding: 1, ..Settings::default() }] {
            let mut scene = Scene::new();
            scene.push(SECOND, estimate(1, 9.0, 0.1));
            scene.settings = off;
            assert!(matches!(scene.leave_for(SECOND)[..], [(_, Release::Off)]));
        }
    }

    #[test]
    fn who_comes_or_leaves_while_others_are_looked_at_is_left_out() {
        let mut scene = Scene::new();
        let (leaves, stays) = (scene.push(SECOND, estimate(1, 0.0, 0.1)), scene.push(SECOND, estimate(1, 0.0, 0.1)));
        let all = scene.hold.all();
        scene.hold.remove(leaves);
        let comes = scene.push(SECOND, estimate(1, 0.0, 0.0));
        let mut gone = Vec::new();
        scene.hold.release(scene.start + SECOND, &scene.settings, &all, |_, place, _| gone.push(place));
        assert_eq!(gone, [stays]);
        scene.hold.remove(stays);
        assert_eq!(scene.go(SECOND), [comes]);
    }

    #[test]
    fn what_is_held_of_one_identifier_is_one_piece_of_work_and_priorities_are_time() {
        let order = |named: bool, priority: i32| {
            let mut scene = Scene::new();
            let flow = |number: u64| named.then_some(number);
            for _ in 0..4 {
                scene.push_as(SECOND, 0, flow(1), estimate(1, 0.0, 0.3));
            }
            let one = scene.push_as(SECOND, priority, flow(2), estimate(1, 0.0, 0.8));
            // All at once, in their order.
            scene.settings.hold = Duration::from_secs(1_000);
            scene.go(2 * SECOND).iter().position(|&place| place == one)
        };
        // By themselves all four short ones are shorter; together the third has more before it, 0.9 s, than the long one has to compute.
        assert_eq!((order(false, 0), order(true, 0)), (Some(4), Some(2)));
        // A step of priority is worth five seconds of waiting.
        assert_eq!((order(false, -1), order(true, 1)), (Some(0), Some(4)));
        // Of one identifier the more urgent one does not come after the others' work.
        let mut scene = Scene::new();
        (0..20).for_each(|_| {
            scene.push_as(SECOND, 10, Some(1), estimate(1, 9.0, 2.0));
        });
        let urgent = scene.push_as(2 * SECOND, 0, Some(1), estimate(1, 0.0, 0.05));
        scene.settings.hold = Duration::from_secs(1_000);
        assert_eq!(scene.go(2 * SECOND).first(), Some(&urgent));
    }

    /// Not those who come last, or have most to compute: then the others would wait for longer, the more come.
    #[test]
    fn where_more_are_held_than_may_those_go_whose_turn_is_next() {
        for bounds in [Settings { hold_max_requests: 2, ..Settings::default() }, Settings { queue_max_bytes: 29, ..Settings::default() }] {
            let mut scene = Scene::new();
            scene.settings = bounds;
            let long = scene.push(SECOND, estimate(1, 1.0, 3.0));
            let short = scene.push(SECOND, estimate(1, 1.0, 1.0));
            assert_eq!(scene.leave_for(SECOND), []);
            let middle = scene.push(SECOND, estimate(1, 1.0, 2.0));
            let shortest = scene.push(SECOND, estimate(1, 1.0, 0.5));
            assert_eq!(scene.leave_for(SECOND), [(shortest, Release::Full), (short, Release::Full)]);
            assert_eq!(scene.hold.all().iter().map(|(place, _)| *place).collect::<Vec<_>>(), [long, middle]);
            assert_eq!((scene.hold.requests(), scene.hold.bytes(), scene.hold.waiting()), (2, 20, 4));
        }
    }

    proptest! {
        /// All are served by one replica that computes one prompt after the other, and looks for the next one whenever it has nothing to do.
        #[test]
        fn all_go_and_who_overtakes_has_waited_longer_for_what_it_has_to_compute(prompts in prop::collection::vec((0.0..5.0_f64, 0.3..4.0_f64), 1..40)) {
            let mut scene = Scene::new();
            let mut coming: Vec<(f64, f64)> = prompts;
            coming.sort_by(|one, other| one.0.total_cmp(&other.0));
            let (mut now, mut next, mut known, mut order) = (0.0, 0, HashMap::new(), Vec::new());
            while order.len() < coming.len() {
                while next < coming.len() && coming[next].0 <= now {
                    let (at, seconds) = coming[next];
                    let place = scene.push(Duration::from_secs_f64(at), estimate(1, 0.0, seconds));
                    known.insert(place.0, next);
                    next += 1;
                }
                // Each takes longer than `hold`, so one goes at a time.
                let gone = scene.go(Duration::from_secs_f64(now));
                prop_assert!(gone.len() <= 1);
                match gone.first() {
                    Some(place) => {
                        order.push((known[&place.0], now));
                        now += coming[known[&place.0]].1;
                    }
                    None => now = coming[next].0,
                }
            }
            for (turn, &(first, went)) in order.iter().enumerate() {
                for &(later, _) in &order[turn + 1..] {
                    let ((came, seconds), (others_came, others)) = (coming[first], coming[later]);
                    // It has overtaken who came before: with less to compute, and for that it had waited longer.
                    if came > others_came {
                        prop_assert!(seconds < others && (went - came) * (others + BESIDE) >= (went - others_came) * (seconds + BESIDE) - 1e-6);
                    }
                }
            }
            prop_assert_eq!(scene.hold.waiting(), 0);
        }
    }
}
