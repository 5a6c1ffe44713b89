//! The fleet as it lives: one place that takes news from probes and requests, and publishes the picture that choices are made on.
//!
//! It decides nothing; `fleet` does.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::fleet::{Fleet, Outcome, Replica, Snapshot, State};

/// The fleet's one writer, shared.
pub struct LiveFleet {
    fleet: Mutex<Fleet>,
    snapshot: ArcSwap<Snapshot>,
    changes: watch::Sender<()>,
}

impl LiveFleet {
    /// Publishes the first picture of `fleet`.
    pub fn new(fleet: Fleet) -> Arc<Self> {
        let snapshot = ArcSwap::from_pointee(fleet.snapshot());
        Arc::new(Self { fleet: Mutex::new(fleet), snapshot, changes: watch::Sender::new(()) })
    }

    /// The picture as of now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Resolves at each publication from now on.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Takes note of what was seen of a replica, and publishes where that changes the picture. `why` is for the log.
    pub fn report(&self, replica: &Replica, outcome: Outcome, why: &str) {
        // Nothing panics while it holds this lock; were it to, the fleet would still be sound.
        let mut fleet = self.fleet.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((before, after)) = fleet.observe(replica, outcome, Instant::now()) else { return };
        let snapshot = fleet.snapshot();
        let was_the_last = before == State::Up && !snapshot.any_up();
        self.snapshot.store(Arc::new(snapshot));
        drop(fleet);
        self.changes.send_replace(());
        let is_up = after == State::Up;
        let (replica, before, after) = (replica.name(), before.label(), after.label());
        if is_up {
            tracing::info!(replica, before, after, "replica {replica} is {after}");
        } else {
            tracing::warn!(replica, before, after, why, "replica {replica} is {after}: {why}");
        }
        if was_the_last {
            tracing::error!("no replica is up any more; requests are tried nevertheless, and checks go on");
        }
    }
}
