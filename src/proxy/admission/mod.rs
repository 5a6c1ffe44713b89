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

mod holding;

#[cfg(test)]
mod tests;

use std::future::pending;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::answer::Patience;
use super::error::ProxyError;
use crate::admission::{Entry, Full, Pace, Queue, Settings, Ticket};
use crate::fleet::{Lease, PoolName, Replica, Trial};
use crate::live::{LiveFleet, View};
use crate::request::{Ask, Usage};
use crate::routing::{Aim, Candidates, Chooser, Forecast, PassedOver, Reason};
use crate::telemetry::{Metrics, QueueBound, Record};
use crate::upstream::Upstream;
use holding::Holding;

/// How often those who wait are looked after where nothing happens: a replica may become eligible by time alone.
const TICK: Duration = Duration::from_millis(500);

/// A choice, and the connections to the replica chosen, from one picture.
pub(super) struct Chosen {
    pub(super) slot: Slot,
    pub(super) reason: Reason,
    pub(super) instead_of: Option<PassedOver>,
    pub(super) trial: Option<Trial>,
    pub(super) upstream: Arc<Upstream>,
}

/// A request's place at work. When it goes, the next one that waits may come.
pub(super) struct Slot {
    // In this order: the count goes down before somebody else is let in.
    lease: Lease,
    lesson: Option<Lesson>,
    release: Release,
}

/// What a strategy that learns from what comes is told of a request.
struct Lesson {
    chooser: Arc<Chooser>,
    forecast: Box<Forecast>,
    sent: std::time::Instant,
    /// When its answer began, where that tells how long the prompt took.
    began: Option<std::time::Instant>,
}

impl Slot {
    /// Takes note of the first byte of the answer's body.
    pub(super) fn first_byte(&mut self) {
        self.lease.first_byte();
    }

    /// Whether its strategy learns from what comes.
    pub(super) fn learns(&self) -> bool {
        self.lesson.is_some()
    }

    /// Takes note that a good answer has begun; `tells` where it does so as soon as its prompt is computed.
    pub(super) fn began(&mut self, tells: bool) {
        if let Some(lesson) = &mut self.lesson {
            lesson.began = (tells && lesson.forecast.streams).then(now);
            lesson.chooser.began(&lesson.forecast, lesson.began.map(|began| began - lesson.sent));
            self.release.admission.holding.stir();
        }
    }

    /// Takes note of what an answer said of its request's tokens.
    pub(super) fn told(&self, usage: Usage) {
        if let Some(lesson) = &self.lesson {
            let (replica, generating) = (self.lease.replica(), lesson.began.map(|began| now() - began));
            if let Some(verdict) = lesson.chooser.answered(&lesson.forecast, &usage, generating, replica.outstanding()) {
                self.release.admission.metrics.judged(replica, &verdict);
            }
        }
    }

    /// Which share of the prompt its strategy expects in the replica's cache, where it does.
    pub(super) fn overlap(&self) -> Option<f64> {
        self.lesson.as_ref()?.forecast.overlap()
    }

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
    /// What it is placed by.
    pub(super) aim: &'a Aim,
    pub(super) tried: &'a [Arc<Replica>],
    pub(super) chooser: &'a Arc<Chooser>,
    /// What it began with: whether it may have to wait, and how long.
    pub(super) settings: &'a Settings,
    /// Bytes of its body.
    pub(super) size: usize,
    /// Since when it is on its way.
    pub(super) arrived: std::time::Instant,
    /// The client's own limit, from its request's head to the first byte.
    pub(super) clients: Option<Patience>,
}

/// All that must be known of a request to choose for it while its own task sleeps.
struct Waiter {
    model: Option<String>,
    aim: Aim,
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
    holding: Holding,
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
        let holding = Holding::new(Arc::clone(&fleet), Arc::clone(&metrics), settings.clone());
        let state = State { queue: Queue::default(), settings, pace: Pace::default() };
        Arc::new(Self { fleet, metrics, holding, state: Mutex::new(state), total: AtomicU64::new(0), waiting: AtomicUsize::new(0) })
    }

    /// Limits and bounds from now on.
    pub(super) fn follow(self: &Arc<Self>, settings: Settings) {
        self.holding.follow(settings.clone());
        let mut state = self.lock();
        state.settings = settings;
        self.serve(&mut state);
    }

    /// Looks after those who wait whenever the fleet changes.
    pub(super) async fn attend(self: &Arc<Self>) {
        tokio::join!(self.look_after_the_queue(), self.holding.attend());
    }

    async fn look_after_the_queue(self: &Arc<Self>) {
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
        if caller.settings.is_on() {
            return self.admit_within_limits(caller, cut, record).await;
        }
        let Caller { ask, aim, tried, chooser, settings, .. } = caller;
        let choose = |hold| self.choose(&self.fleet.view(), settings, hold, (ask.model.as_deref(), aim), tried, chooser);
        // What is tried again has waited before.
        let hold = (settings.holds() && aim.is_by_cost() && tried.is_empty()).then_some(settings.hold);
        let found = if hold.is_some() && self.holding.is_anybody() { Found::Full } else { choose(hold)? };
        let found = match (found, hold) {
            (Found::Full, Some(_)) => {
                // It counts among those that wait until it is chosen for.
                let stay = self.holding.wait(&caller, cut, record).await?;
                let settings = self.holding.settings();
                if settings.is_on() {
                    // There are limits by now.
                    drop(stay);
                    return self.admit_within_limits(Caller { settings: &settings, ..caller }, cut, record).await;
                }
                choose(None)?
            }
            (found, _) => found,
        };
        Ok(match found {
            Found::Chosen(chosen) => Some(chosen),
            Found::Full | Found::Nobody => None,
        })
    }

    /// The same where limits are on.
    async fn admit_within_limits(
        self: &Arc<Self>,
        caller: Caller<'_>,
        cut: &CancellationToken,
        record: &mut Record,
    ) -> Result<Option<Chosen>, ProxyError> {
        let settings = caller.settings;
        let mut place = match self.enter(caller)? {
            Ok(chosen) => return Ok(chosen),
            Err(place) => place,
        };
        record.begins_waiting();
        let limit = (!settings.queue_timeout.is_zero()).then(|| Instant::now() + settings.queue_timeout);
        let result = tokio::select! {
            biased;
            // What is cut off makes room, which is for nobody any more.
            () = cut.cancelled() => Err(ProxyError::Draining),
            told = &mut place.told => Ok(told.ok().flatten()),
            over = Patience::over(caller.clients) => Err(over.error()),
            () = until(limit) => Err(self.refuse(&self.lock(), QueueBound::Time)),
        };
        record.ends_waiting();
        result
    }

    /// A choice at once, or a place in the queue.
    fn enter(self: &Arc<Self>, caller: Caller<'_>) -> Result<Result<Option<Chosen>, Place<'_>>, ProxyError> {
        let Caller { ask, aim, tried, chooser, size, arrived, .. } = caller;
        let mut state = self.lock();
        // Those who wait come first. What room there is afterwards is none that anybody of them could use.
        self.serve(&mut state);
        let view = self.fleet.view();
        match self.choose(&view, &state.settings, None, (ask.model.as_deref(), aim), tried, chooser)? {
            Found::Chosen(chosen) => return Ok(Ok(Some(chosen))),
            Found::Nobody => return Ok(Ok(None)),
            Found::Full => {}
        }
        if state.queue.requests() == 0 {
            state.pace.begins(now());
        }
        let mut incarnations: Vec<u64> = tried.iter().map(|replica| replica.incarnation()).collect();
        incarnations.sort_unstable();
        let line = (view.pool_name(ask.model.as_deref()), incarnations);
        let entry = Entry { line, priority: ask.priority, flow: ask.identifier, size, arrived };
        let (tell, told) = oneshot::channel();
        let waiter = Waiter { model: ask.model.clone(), aim: aim.clone(), tried: tried.to_vec(), chooser: Arc::clone(chooser), tell };
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
        self.holding.stir();
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.serve(&mut self.lock());
        }
    }

    /// Chooses for those who wait, in the queue's order, until there is no room for any of them.
    fn serve(self: &Arc<Self>, state: &mut State) {
        if state.queue.requests() == 0 {
            return;
        }
        let (view, now) = (self.fleet.view(), now());
        let State { queue, settings, pace } = state;
        loop {
            let popped = queue.pop(now, settings, |waiter| {
                match self.choose(&view, settings, None, (waiter.model.as_deref(), &waiter.aim), &waiter.tried, &waiter.chooser) {
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

    /// Picks a replica that has room; and less than `hold` to do, where there is one.
    fn choose(
        self: &Arc<Self>,
        view: &View,
        settings: &Settings,
        hold: Option<Duration>,
        (model, aim): (Option<&str>, &Aim),
        tried: &[Arc<Replica>],
        chooser: &Arc<Chooser>,
    ) -> Result<Found, ProxyError> {
        let pool = view.pool(model).ok_or_else(|| ProxyError::unknown_model(model))?;
        let sent = now();
        let candidates = Candidates::new(pool, tried, sent).below(settings.limit()).within(hold);
        let choice = if self.is_full(settings) { None } else { chooser.choose(aim, &candidates, &mut rand::rng()) };
        let Some(choice) = choice else {
            return Ok(if candidates.is_anybody() { Found::Full } else { Found::Nobody });
        };
        // Everybody in the picture can be reached.
        let Some(upstream) = view.upstream(choice.lease.replica()) else { return Ok(Found::Nobody) };
        choice.first_sight.into_iter().for_each(|outcome| self.metrics.first_seen(outcome));
        self.total.fetch_add(1, Ordering::Relaxed);
        let release = Release { admission: Arc::clone(self), pumps: true };
        let lesson = choice.forecast.map(|forecast| Lesson { chooser: Arc::clone(chooser), forecast, sent, began: None });
        Ok(Found::Chosen(Chosen {
            slot: Slot { lease: choice.lease, release, lesson },
            reason: choice.reason,
            instead_of: choice.instead_of,
            trial: choice.trial,
            upstream: Arc::clone(upstream),
        }))
    }

    /// Whether so many are in flight that the next one has to wait, wherever it goes.
    pub(super) fn is_full(&self, settings: &Settings) -> bool {
        settings.total_limit().is_some_and(|limit| self.total.load(Ordering::Relaxed) >= limit)
    }

    /// Counts a refusal and says when to ask again.
    fn refuse(&self, state: &State, bound: QueueBound) -> ProxyError {
        self.metrics.refused_waiting(bound);
        let retry_after = state.pace.retry_after(state.queue.requests(), now());
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

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
