//! Requests that are held back while the replica that each should go to has enough to do. Who goes next is said by `crate::admission`'s rules.
//!
//! Whatever may let somebody go stirs a task of its own, which looks through all that wait. It does so as soon as it is stirred, but never for more than a
//! tenth of the time: a replica has work for much longer than that.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Caller, TICK, now};
use crate::admission::{Hold, Holdable, Place, Settings};
use crate::live::LiveFleet;
use crate::proxy::answer::Patience;
use crate::proxy::error::ProxyError;
use crate::routing::{Aim, Candidates, Chooser};
use crate::telemetry::{HoldEnd, Metrics, Record};

/// Between one look at all that wait and the next, at least: and so many times what the last one took.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_TIMES: u32 = 9;

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
    hold: Hold<Waiter>,
    settings: Settings,
}

/// All that must be known of a request to look for its turn while its own task sleeps.
struct Waiter {
    model: Option<String>,
    aim: Aim,
    chooser: Arc<Chooser>,
    tell: oneshot::Sender<HoldEnd>,
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

    /// Whether anybody waits. Who comes then may have to wait for those who came before.
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
            let _ = timeout(TICK, self.stirred.notified()).await;
            let begun = Instant::now();
            self.release();
            sleep((begun.elapsed() * PAUSE_TIMES).max(PAUSE)).await;
        }
    }

    /// Waits until it is its turn, or its time is over. `None` where nobody else may wait: it goes at once. Where this is dropped it waits no longer.
    pub(super) async fn wait(
        &self,
        caller: &Caller<'_>,
        cut: &CancellationToken,
        record: &mut Record,
    ) -> Result<Option<Stay<'_>>, ProxyError> {
        let Caller { ask, aim, chooser, size, arrived, .. } = *caller;
        let (tell, told) = oneshot::channel();
        let waiter = Waiter { model: ask.model.clone(), aim: aim.clone(), chooser: Arc::clone(chooser), tell };
        let request = Holdable { priority: ask.priority, flow: ask.identifier, size, arrived };
        let mut stay = {
            let mut state = self.lock();
            let State { hold, settings } = &mut *state;
            let Ok(place) = hold.push(request, waiter, settings) else {
                drop(state);
                self.metrics.held(HoldEnd::Full);
                return Ok(None);
            };
            self.show(&state);
            Stay { holding: self, place, end: HoldEnd::Left }
        };
        self.stir();
        record.begins_waiting();
        let result = tokio::select! {
            biased;
            () = cut.cancelled() => Err(ProxyError::Draining),
            end = told => {
                // Its sender is dropped with its place alone.
                stay.end = end.unwrap_or(HoldEnd::Left);
                Ok(Some(stay))
            }
            over = Patience::over(caller.clients) => Err(over.error()),
        };
        record.ends_waiting();
        result
    }

    /// Looks through all that wait for those whose turn it is.
    fn release(&self) {
        if !self.is_anybody() {
            return;
        }
        let (view, now) = (self.fleet.view(), now());
        let mut state = self.lock();
        let State { hold, settings } = &mut *state;
        let estimate = |waiter: &Waiter| match view.pool(waiter.model.as_deref()) {
            Some(pool) => waiter.chooser.estimates(&waiter.aim, &Candidates::new(pool, &[], now)),
            // It is told so when it goes.
            None => Vec::new(),
        };
        hold.release(now, settings, estimate, |waiter, _, is_over| {
            // Who has left has left its place as well: then it would not be here.
            let _ = waiter.tell.send(if is_over { HoldEnd::Time } else { HoldEnd::Turn });
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
