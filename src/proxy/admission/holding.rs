//! Requests that are held back while the replica that each should go to has enough to do. Who goes next is said by `crate::admission`'s rules.
//!
//! Whatever may let somebody go stirs a task of its own, which looks through all that wait, without any lock. It does so as soon as it is stirred, but never
//! for more than a fifth of the time: a replica has work for longer than that.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{Caller, now};
use crate::admission::{Hold, Holdable, Place, Release, Settings};
use crate::live::LiveFleet;
use crate::proxy::answer::Patience;
use crate::proxy::error::ProxyError;
use crate::routing::{Aim, Candidates, Chooser};
use crate::telemetry::{HoldEnd, Metrics, Record};

/// Between one look at all that wait and the next, at least: and so many times what the last one took.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_TIMES: u32 = 4;

/// How often they are looked through where nothing happens.
const TICK: Duration = Duration::from_millis(50);

/// What lets requests wait.
pub(super) struct Holding {
    fleet: Arc<LiveFleet>,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
    /// How many wait, or leave, to be read without the lock.
    held: AtomicUsize,
    stirred: Notify,
}

struct State {
    hold: Hold<Arc<Waiter>>,
    settings: Settings,
}

/// All that must be known of a request to look for its turn while its own task sleeps.
struct Waiter {
    model: Option<String>,
    aim: Aim,
    chooser: Arc<Chooser>,
    /// Why it may go; set before it is woken.
    release: OnceLock<Release>,
    released: Notify,
}

/// A place among those that wait. To be kept until the request is on its way, so that it counts meanwhile; it is free when this goes.
pub(super) struct Stay<'a> {
    holding: &'a Holding,
    place: Place,
    end: HoldEnd,
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        let mut state = self.holding.lock();
        state.hold.remove(self.place);
        self.holding.show(&state);
        drop(state);
        self.holding.metrics.held(self.end);
        self.holding.stir();
    }
}

impl Holding {
    pub(super) fn new(fleet: Arc<LiveFleet>, metrics: Arc<Metrics>, settings: Settings) -> Self {
        let state = Mutex::new(State { hold: Hold::default(), settings });
        Self { fleet, metrics, state, held: AtomicUsize::new(0), stirred: Notify::new() }
    }

    /// Rules from now on.
    pub(super) fn follow(&self, settings: Settings) {
        self.lock().settings = settings;
        self.stir();
    }

    /// Whether anybody waits. Who comes then waits as well until it was looked at.
    pub(super) fn is_anybody(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    /// Something has happened that may let somebody go.
    pub(super) fn stir(&self) {
        if self.is_anybody() {
            self.stirred.notify_one();
        }
    }

    /// Lets those go whose turn it is, as long as this runs.
    pub(super) async fn attend(&self) {
        loop {
            // A replica has less to do by time alone, too.
            let tick = if self.is_anybody() { TICK } else { Duration::MAX };
            let _ = timeout(tick, self.stirred.notified()).await;
            let begun = Instant::now();
            self.release();
            sleep((begun.elapsed() * PAUSE_TIMES).max(PAUSE)).await;
        }
    }

    /// Waits until it is its turn, or its time is over. Where this is dropped it waits no longer.
    pub(super) async fn wait(&self, caller: &Caller<'_>, cut: &CancellationToken, record: &mut Record) -> Result<Stay<'_>, ProxyError> {
        let Caller { ask, aim, chooser, settings, size, arrived, .. } = *caller;
        let waiter = Arc::new(Waiter {
            model: ask.model.clone(),
            aim: aim.clone(),
            chooser: Arc::clone(chooser),
            release: OnceLock::new(),
            released: Notify::new(),
        });
        let mut stay = {
            let mut state = self.lock();
            let request = Holdable { priority: ask.priority, flow: ask.identifier, size, arrived };
            let place = state.hold.push(request, Arc::clone(&waiter));
            self.show(&state);
            Stay { holding: self, place, end: HoldEnd::Left }
        };
        self.stir();
        record.begins_waiting();
        let result = tokio::select! {
            biased;
            () = cut.cancelled() => Err(ProxyError::Draining),
            () = waiter.released.notified() => {
                stay.end = waiter.release.get().map_or(HoldEnd::Turn, |release| match release {
                    Release::Turn => HoldEnd::Turn,
                    Release::Timeout => HoldEnd::Time,
                    Release::Full => HoldEnd::Full,
                    Release::Off => HoldEnd::Off,
                });
                Ok(stay)
            }
            over = Patience::over(caller.clients) => Err(over.error()),
            // Whatever becomes of who looks through them.
            () = sleep_until(Instant::from_std(arrived) + settings.hold_timeout) => {
                stay.end = HoldEnd::Time;
                Ok(stay)
            }
        };
        record.ends_waiting();
        result
    }

    /// What holds for all that wait now.
    pub(super) fn settings(&self) -> Settings {
        self.lock().settings.clone()
    }

    /// Looks through all that wait for those whose turn it is.
    fn release(&self) {
        if !self.is_anybody() {
            return;
        }
        let (view, now) = (self.fleet.view(), now());
        let estimate = |(place, waiter): (Place, Arc<Waiter>)| {
            // Where its model is gone it is told so when it goes.
            let pool = view.pool(waiter.model.as_deref());
            (place, pool.and_then(|pool| waiter.chooser.estimate(&waiter.aim, &Candidates::new(pool, &[], now))))
        };
        let all = self.lock().hold.all();
        let estimates: Vec<_> = all.into_iter().map(estimate).collect();
        let mut state = self.lock();
        let State { hold, settings } = &mut *state;
        hold.release(now, settings, &estimates, |waiter, _, release| {
            if waiter.release.set(release).is_ok() {
                waiter.released.notify_one();
            }
        });
        self.show(&state);
    }

    fn show(&self, state: &State) {
        self.held.store(state.hold.waiting(), Ordering::Relaxed);
        self.metrics.show_held(state.hold.requests(), state.hold.bytes());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
