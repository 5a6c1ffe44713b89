//! The way to a replica: at once where there is room, else through the queue, whose rules are `crate::admission`'s.
//!
//! # Why limits are exact
//!
//! Where anything is limited, choices are made one after the other, under one lock; whatever happens meanwhile only lowers counts.
//!
//! # Why nobody is forgotten
//!
//! A request that waits goes when there is room, and room comes in three ways: a request ends, the fleet changes, a limit is raised. Each of them calls
//! [`Admission::pump`] afterwards. That looks, without the lock, whether anybody waits; and who begins to wait first says so, then looks once more for
//! room. Between the two steps both sides have a fence, so at least one of them sees the other: either the request that ended finds somebody
//! waiting, or the one that begins to wait finds the room.

use std::future::pending;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::error::ProxyError;
use crate::admission::{Entry, Full, Pace, Queue, Settings, Ticket};
use crate::fleet::{Lease, PoolName, Replica, Trial};
use crate::live::{LiveFleet, View};
use crate::request::Ask;
use crate::routing::{Candidates, Chooser, Reason};
use crate::telemetry::{Metrics, QueueBound, Record};
use crate::upstream::Upstream;

/// How often those who wait are looked after where nothing happens: a replica may become eligible by time alone.
const TICK: Duration = Duration::from_millis(500);

/// A choice, and the connections to the replica chosen, from one picture.
pub(super) struct Chosen {
    pub(super) slot: Slot,
    pub(super) reason: Reason,
    pub(super) trial: Option<Trial>,
    pub(super) upstream: Arc<Upstream>,
}

/// A request's place at work. When it goes, the next one that waits may come.
pub(super) struct Slot {
    // In this order: the count goes down before somebody else is let in.
    lease: Lease,
    release: Release,
}

impl Slot {
    /// The replica that works.
    pub(super) fn replica(&self) -> &Arc<Replica> {
        self.lease.replica()
    }
}

struct Release {
    admission: Arc<Admission>,
    /// Not so where somebody holds the lock who looks for the next one himself.
    pumps: bool,
}

impl Drop for Release {
    fn drop(&mut self) {
        self.admission.total.fetch_sub(1, Ordering::Relaxed);
        if self.pumps {
            self.admission.pump();
        }
    }
}

/// A request that wants a replica.
#[derive(Clone, Copy)]
pub(super) struct Caller<'a> {
    pub(super) ask: &'a Ask,
    pub(super) tried: &'a [Arc<Replica>],
    pub(super) chooser: &'a Arc<Chooser>,
    /// What it began with: whether it may have to wait, and how long.
    pub(super) settings: &'a Settings,
    /// Bytes of its body.
    pub(super) size: usize,
    /// Since when it is on its way.
    pub(super) arrived: std::time::Instant,
    /// The client's own limit, from its request's head to the first byte.
    pub(super) timeout: Option<(Instant, Duration)>,
}

/// All that must be known of a request to choose for it while its own task sleeps.
struct Waiter {
    ask: Ask,
    tried: Vec<Arc<Replica>>,
    chooser: Arc<Chooser>,
    /// Takes `None` where there is nobody any more who could serve it.
    tell: oneshot::Sender<Option<Chosen>>,
}

/// Requests that can go to the same replicas: those of a pool, without those already tried, by incarnation.
type Line = (PoolName, Vec<u64>);

enum Found {
    Chosen(Chosen),
    /// There are replicas, and no room.
    Full,
    Nobody,
}

/// What lets requests in.
pub(super) struct Admission {
    fleet: Arc<LiveFleet>,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
    /// Slots there are.
    total: AtomicU64,
    /// How many wait, as the queue says, to be read without the lock.
    waiting: AtomicUsize,
}

struct State {
    queue: Queue<Line, Waiter>,
    settings: Settings,
    pace: Pace,
}

/// A place in the queue, which is free again at once when this goes.
struct Place<'a> {
    admission: &'a Admission,
    ticket: Ticket<Line>,
    /// A choice that nobody takes out of here any more is given back when this is dropped, after the place.
    told: oneshot::Receiver<Option<Chosen>>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.admission.lock();
        if state.queue.remove(&self.ticket).is_some() {
            self.admission.show(&state);
        }
    }
}

impl Admission {
    pub(super) fn new(fleet: Arc<LiveFleet>, metrics: Arc<Metrics>, settings: Settings) -> Arc<Self> {
        let state = State { queue: Queue::default(), settings, pace: Pace::default() };
        Arc::new(Self { fleet, metrics, state: Mutex::new(state), total: AtomicU64::new(0), waiting: AtomicUsize::new(0) })
    }

    /// Limits and bounds from now on.
    pub(super) fn follow(self: &Arc<Self>, settings: Settings) {
        let mut state = self.lock();
        state.settings = settings;
        self.serve(&mut state);
    }

    /// Looks after those who wait whenever the fleet changes.
    pub(super) async fn attend(self: &Arc<Self>) {
        let mut changes = self.fleet.changes();
        loop {
            if let Ok(Err(_)) = timeout(TICK, changes.changed()).await {
                // Nobody changes the fleet any more.
                sleep(TICK).await;
            }
            self.pump();
        }
    }

    /// A replica for `caller`, when there is room; `None` where nobody can serve it. Where this is dropped, nobody waits any longer.
    pub(super) async fn admit(
        self: &Arc<Self>,
        caller: Caller<'_>,
        cut: &CancellationToken,
        record: &mut Record,
    ) -> Result<Option<Chosen>, ProxyError> {
        let Caller { ask, tried, chooser, settings, .. } = caller;
        if !settings.is_on() {
            return Ok(match self.choose(&self.fleet.view(), settings, ask, tried, chooser)? {
                Found::Chosen(chosen) => Some(chosen),
                Found::Full | Found::Nobody => None,
            });
        }
        let mut place = match self.enter(caller)? {
            Ok(chosen) => return Ok(chosen),
            Err(place) => place,
        };
        record.begins_waiting();
        let limit = (!settings.queue_timeout.is_zero()).then(|| Instant::now() + settings.queue_timeout);
        let clients = caller.timeout.map(|(by, _)| by);
        let result = tokio::select! {
            biased;
            told = &mut place.told => Ok(told.ok().flatten()),
            () = until(clients) => Err(ProxyError::TimeoutExceeded(caller.timeout.map(|(_, limit)| limit).unwrap_or_default())),
            () = until(limit) => Err(self.refuse(&self.lock(), QueueBound::Time)),
            () = cut.cancelled() => Err(ProxyError::Draining),
        };
        record.ends_waiting();
        result
    }

    /// A choice at once, or a place in the queue.
    fn enter(self: &Arc<Self>, caller: Caller<'_>) -> Result<Result<Option<Chosen>, Place<'_>>, ProxyError> {
        let Caller { ask, tried, chooser, size, arrived, .. } = caller;
        let mut state = self.lock();
        // Those who wait come first. What room there is afterwards is none that anybody of them could use.
        self.serve(&mut state);
        let view = self.fleet.view();
        match self.choose(&view, &state.settings, ask, tried, chooser)? {
            Found::Chosen(chosen) => return Ok(Ok(Some(chosen))),
            Found::Nobody => return Ok(Ok(None)),
            Found::Full => {}
        }
        if state.queue.requests() == 0 {
            state.pace.begins(Instant::now().into_std());
        }
        let mut incarnations: Vec<u64> = tried.iter().map(|replica| replica.incarnation()).collect();
        incarnations.sort_unstable();
        let line = (view.pool_name(ask.model.as_deref()), incarnations);
        let entry = Entry { line, priority: ask.priority, flow: ask.identifier, size, arrived };
        let (tell, told) = oneshot::channel();
        let waiter = Waiter { ask: ask.clone(), tried: tried.to_vec(), chooser: Arc::clone(chooser), tell };
        let State { queue, settings, .. } = &mut *state;
        let ticket = queue.push(entry, waiter, settings).map_err(|full| {
            let bound = match full {
                Full::Requests => QueueBound::Requests,
                Full::Bytes => QueueBound::Bytes,
            };
            self.refuse(&state, bound)
        })?;
        self.show(&state);
        // See above why nobody is forgotten.
        fence(Ordering::SeqCst);
        self.serve(&mut state);
        drop(state);
        Ok(Err(Place { admission: self, ticket, told }))
    }

    /// Lets those who wait go where there is room. To be called after room has come.
    fn pump(self: &Arc<Self>) {
        // See above why nobody is forgotten.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.serve(&mut self.lock());
        }
    }

    /// Chooses for those who wait, in the queue's order, until there is no room for any of them.
    fn serve(self: &Arc<Self>, state: &mut State) {
        if state.queue.requests() == 0 {
            return;
        }
        let (view, now) = (self.fleet.view(), Instant::now().into_std());
        let State { queue, settings, pace } = state;
        loop {
            let popped = queue.pop(now, settings, |waiter| {
                match self.choose(&view, settings, &waiter.ask, &waiter.tried, &waiter.chooser) {
                    Ok(Found::Chosen(chosen)) => Some(Some(chosen)),
                    Ok(Found::Full) => None,
                    // It is told so; that its model is gone from the fleet comes to the same for it.
                    Ok(Found::Nobody) | Err(_) => Some(None),
                }
            });
            let Some((waiter, chosen)) = popped else { break };
            if chosen.is_some() {
                pace.went(now);
            }
            // It cannot have left: then it would not have been in the queue. If it had, its choice would be the next one's.
            if let Err(Some(mut unheard)) = waiter.tell.send(chosen) {
                unheard.slot.release.pumps = false;
            }
        }
        self.show(state);
    }

    /// Picks a replica that has room.
    fn choose(
        self: &Arc<Self>,
        view: &View,
        settings: &Settings,
        ask: &Ask,
        tried: &[Arc<Replica>],
        chooser: &Chooser,
    ) -> Result<Found, ProxyError> {
        let model = ask.model.as_deref();
        let pool = view.pool(model).ok_or_else(|| ProxyError::unknown_model(model))?;
        let candidates = Candidates::new(pool, tried, Instant::now().into_std());
        let is_anybody = candidates.iter().next().is_some();
        let full = settings.total_limit().is_some_and(|limit| self.total.load(Ordering::Relaxed) >= limit);
        let choice = if full { None } else { chooser.choose(ask.placement, &candidates.below(settings.limit()), &mut rand::rng()) };
        let Some(choice) = choice else {
            return Ok(if is_anybody { Found::Full } else { Found::Nobody });
        };
        // Everybody in the picture can be reached.
        let Some(upstream) = view.upstream(choice.lease.replica()) else { return Ok(Found::Nobody) };
        self.total.fetch_add(1, Ordering::Relaxed);
        let release = Release { admission: Arc::clone(self), pumps: true };
        Ok(Found::Chosen(Chosen {
            slot: Slot { lease: choice.lease, release },
            reason: choice.reason,
            trial: choice.trial,
            upstream: Arc::clone(upstream),
        }))
    }

    /// Counts a refusal and says when to ask again.
    fn refuse(&self, state: &State, bound: QueueBound) -> ProxyError {
        self.metrics.refused_waiting(bound);
        let retry_after = state.pace.retry_after(state.queue.requests(), Instant::now().into_std());
        match bound {
            QueueBound::Time => ProxyError::QueueTimeout { retry_after },
            QueueBound::Requests | QueueBound::Bytes => ProxyError::QueueFull { bound: bound.label(), retry_after },
        }
    }

    /// Makes known outside of the lock who waits.
    fn show(&self, state: &State) {
        self.waiting.store(state.queue.requests(), Ordering::Relaxed);
        self.metrics.show_queue(state.queue.requests(), state.queue.bytes());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use tokio::sync::watch;
    use tokio::time::advance;

    use super::*;
    use crate::fleet::{Outcome, ReplicaSpec, health};
    use crate::live;
    use crate::resolver::{self, HostNames, Resolver};
    use crate::routing;
    use crate::units::Weight;
    use crate::upstream;

    /// Admission to a fleet of replicas "0", "1", …, all up, to which nothing is sent.
    struct Scene {
        admission: Arc<Admission>,
        chooser: Arc<Chooser>,
        settings: Settings,
        cut: CancellationToken,
    }

    /// What a request waits for.
    type Admitted<'a> = Pin<Box<dyn Future<Output = Result<Option<Chosen>, ProxyError>> + 'a>>;

    impl Scene {
        async fn new(replicas: usize, settings: Settings) -> Self {
            let metrics = Metrics::new().expect("metrics");
            let resolver = resolver::Settings { servers: vec![([127, 0, 0, 1], 9).into()], ..resolver::Settings::default() };
            let asking = Arc::new(Resolver::new(&resolver).expect("it asks nobody yet"));
            let names = HostNames::new(asking, watch::channel(resolver).1);
            let under = live::Settings { health: health::Settings::default(), upstream: upstream::Settings::default(), hash_seed: 0 };
            let fleet = LiveFleet::new(under, names, Arc::clone(&metrics)).expect("a fleet");
            let specs = (0..replicas).map(|number| ReplicaSpec {
                name: number.to_string(),
                authority: format!("127.0.0.1:{}", number + 1),
                weight: Weight::clamped(1),
                models: Vec::new(),
                drain: false,
            });
            fleet.set(specs.collect(), true).await.expect("replicas");
            for replica in fleet.view().replicas() {
                fleet.report(replica, Outcome::CheckPassed, "");
            }
            let admission = Admission::new(fleet, metrics, settings.clone());
            let chooser = Arc::new(Chooser::new(&routing::Settings::default()));
            Self { admission, chooser, settings, cut: CancellationToken::new() }
        }

        /// A request that has tried to get in once. It waits no longer when it is dropped.
        fn ask(&self, timeout: Option<(Instant, Duration)>) -> Admitted<'_> {
            let arrived = Instant::now().into_std();
            let mut admitted: Admitted<'_> = Box::pin(async move {
                let ask = Ask::default();
                let caller = Caller { ask: &ask, tried: &[], chooser: &self.chooser, settings: &self.settings, size: 10, arrived, timeout };
                let mut record = Record::new(Arc::clone(&self.admission.metrics), hyper::Method::POST, "/");
                self.admission.admit(caller, &self.cut, &mut record).await
            });
            assert!(poll(&mut admitted).is_none(), "there is room");
            admitted
        }

        /// A request that finds room at once.
        fn get(&self) -> Chosen {
            let arrived = Instant::now().into_std();
            let ask = Ask::default();
            let caller =
                Caller { ask: &ask, tried: &[], chooser: &self.chooser, settings: &self.settings, size: 10, arrived, timeout: None };
            match self.admission.enter(caller) {
                Ok(Ok(Some(chosen))) => chosen,
                _ => panic!("there is no room"),
            }
        }

        fn limit(&self, max_outstanding: u64, queue_max_requests: usize) {
            self.admission.follow(Settings { max_outstanding, queue_max_requests, ..self.settings.clone() });
        }

        fn waiting(&self) -> usize {
            self.admission.waiting.load(Ordering::Relaxed)
        }

        fn total(&self) -> u64 {
            self.admission.total.load(Ordering::Relaxed)
        }
    }

    fn poll(admitted: &mut Admitted<'_>) -> Option<Result<Option<Chosen>, ProxyError>> {
        match pin!(admitted).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    fn one_at_a_time() -> Settings {
        Settings { max_outstanding: 1, ..Settings::default() }
    }

    #[tokio::test]
    async fn a_raised_limit_lets_in_at_once_and_a_lowered_bound_throws_nobody_out() {
        let scene = Scene::new(1, one_at_a_time()).await;
        let _first = scene.get();
        let mut waiting = [scene.ask(None), scene.ask(None), scene.ask(None)];
        scene.limit(1, 0);
        assert_eq!(scene.waiting(), 3);
        scene.limit(3, 0);
        let got = waiting.each_mut().map(|waiting| poll(waiting).map(|result| result.expect("no error").expect("a replica")));
        assert_eq!(got.iter().filter(|got| got.is_some()).count(), 2);
        assert_eq!((scene.waiting(), scene.total()), (1, 3));
        // Off: whoever waits yet goes.
        scene.limit(0, 0);
        assert_eq!((scene.waiting(), scene.total()), (0, 4));
    }

    #[tokio::test]
    async fn a_choice_that_nobody_fetches_is_the_next_ones() {
        let scene = Scene::new(1, one_at_a_time()).await;
        let first = scene.get();
        let (given, mut next) = (scene.ask(None), scene.ask(None));
        drop(first);
        assert_eq!((scene.waiting(), scene.total()), (1, 1), "it is given, and not yet fetched");
        drop(given);
        assert_eq!((scene.waiting(), scene.total()), (0, 1));
        let chosen = poll(&mut next).expect("it is given on").expect("no error").expect("a replica");
        assert_eq!(chosen.slot.replica().outstanding(), 1);
        drop(chosen);
        assert_eq!(scene.total(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_by_the_earlier_of_timeout_and_deadline() {
        let scene = Scene::new(1, Settings { queue_timeout: Duration::from_secs(30), ..one_at_a_time() }).await;
        let _first = scene.get();
        for (clients, expected) in [(None, 30), (Some(10), 10), (Some(60), 30)] {
            let begun = Instant::now();
            let timeout = clients.map(Duration::from_secs).map(|limit| (begun + limit, limit));
            match scene.ask(timeout).await {
                Err(ProxyError::QueueTimeout { .. }) => assert_eq!(expected, 30),
                Err(ProxyError::TimeoutExceeded(limit)) => assert_eq!((limit.as_secs(), expected), (10, 10)),
                _ => panic!("it got something"),
            }
            assert_eq!(begun.elapsed().as_secs(), expected);
            assert_eq!(scene.waiting(), 0);
        }
        let patient = Scene { settings: Settings { queue_timeout: Duration::ZERO, ..one_at_a_time() }, ..scene };
        let mut waiting = patient.ask(None);
        advance(Duration::from_secs(100_000)).await;
        assert!(poll(&mut waiting).is_none(), "0s is no limit");
        patient.cut.cancel();
        assert!(matches!(waiting.await, Err(ProxyError::Draining)));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_refused_is_told_when_by_the_pace_of_the_queue() {
        let scene = Scene::new(1, Settings { queue_max_requests: 3, ..one_at_a_time() }).await;
        let mut working = scene.get();
        let mut waiting = std::collections::VecDeque::from([scene.ask(None), scene.ask(None), scene.ask(None)]);
        for _ in 0..20 {
            sleep(Duration::from_secs(2)).await;
            drop(working);
            let mut next = waiting.pop_front().expect("somebody waits");
            working = poll(&mut next).expect("it is its turn").expect("no error").expect("a replica");
            waiting.push_back(scene.ask(None));
        }
        let ask = Ask::default();
        let arrived = Instant::now().into_std();
        let caller = Caller { ask: &ask, tried: &[], chooser: &scene.chooser, settings: &scene.settings, size: 0, arrived, timeout: None };
        let Err(ProxyError::QueueFull { bound, retry_after }) = scene.admission.enter(caller) else { panic!("there is room") };
        assert_eq!((bound, retry_after), ("queue_max_requests", 6));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn under_many_threads_limits_hold_and_everybody_is_served() {
        let scene = Arc::new(Scene::new(2, Settings { max_outstanding: 2, max_outstanding_total: 3, ..Settings::default() }).await);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let scene = Arc::clone(&scene);
            tasks.spawn(async move {
                let ask = Ask::default();
                for round in 0..500 {
                    let arrived = Instant::now().into_std();
                    let (chooser, settings) = (&scene.chooser, &scene.settings);
                    let caller = Caller { ask: &ask, tried: &[], chooser, settings, size: 1, arrived, timeout: None };
                    let mut record = Record::new(Arc::clone(&scene.admission.metrics), hyper::Method::POST, "/");
                    let admitted = scene.admission.admit(caller, &scene.cut, &mut record);
                    if round % 5 == 0 {
                        // Leaves somewhere on the way.
                        drop(timeout(Duration::from_micros(round), admitted).await);
                        continue;
                    }
                    let chosen = admitted.await.expect("no bound").expect("a replica");
                    assert!(chosen.slot.replica().outstanding() <= 2 && scene.total() <= 3);
                    tokio::task::yield_now().await;
                }
            });
        }
        timeout(Duration::from_secs(60), tasks.join_all()).await.expect("nobody is forgotten");
        assert_eq!((scene.waiting(), scene.total()), (0, 0));
    }
}
