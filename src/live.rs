//! The fleet as it lives: one place that takes news of replicas from probes, requests and discovery, and publishes the picture that choices are made
//! on, together with the means to reach everybody in it.
//!
//! It decides nothing; `fleet` does.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use rand::RngExt;
use tokio::sync::watch;

use crate::fleet::{Change, Fleet, Membership, Outcome, Replica, ReplicaSpec, Snapshot, State};
use crate::telemetry::Metrics;
use crate::upstream::{Connector, UnusableReplica, Upstream};

/// What a request sees: the fleet's picture, and the connections to the replicas in it. They change together.
pub struct View {
    snapshot: Snapshot,
    upstreams: Arc<Upstreams>,
}

/// By incarnation.
type Upstreams = HashMap<u64, Arc<Upstream>>;

impl View {
    /// The connections to a replica; `None` where it is not in this picture.
    pub fn upstream(&self, replica: &Replica) -> Option<&Arc<Upstream>> {
        self.upstreams.get(&replica.incarnation())
    }

    /// The connections to all replicas in the picture, in no order.
    pub fn upstreams(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.upstreams.values()
    }
}

impl Deref for View {
    type Target = Snapshot;

    fn deref(&self) -> &Snapshot {
        &self.snapshot
    }
}

/// The fleet's one writer, shared.
pub struct LiveFleet {
    fleet: Mutex<Fleet>,
    view: ArcSwap<View>,
    changes: watch::Sender<()>,
    connector: Connector,
    metrics: Arc<Metrics>,
    /// Held while the membership changes, so that one change follows another. Requests do not need it.
    changing: tokio::sync::Mutex<()>,
}

impl LiveFleet {
    /// Publishes the first picture of `fleet`, which has no replicas yet.
    pub fn new(fleet: Fleet, connector: Connector, metrics: Arc<Metrics>) -> Arc<Self> {
        let view = ArcSwap::from_pointee(View { snapshot: fleet.snapshot(), upstreams: Arc::default() });
        let changes = watch::Sender::new(());
        Arc::new(Self { fleet: Mutex::new(fleet), view, changes, connector, metrics, changing: tokio::sync::Mutex::default() })
    }

    /// The picture as of now.
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Resolves at each publication from now on.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Makes the fleet those replicas and no others, and publishes that. `complete` says whether these are all that there are. Who stays keeps
    /// count, health and connections; who left ends its requests and gets no new ones. An error changes nothing.
    pub async fn set(&self, specs: Vec<ReplicaSpec>, complete: bool) -> Result<(), UnusableReplica> {
        let _changing = self.changing.lock().await;
        let before = Arc::clone(self.fleet().membership());
        let next = {
            let before = Arc::clone(&before);
            // Rings take their time: on a thread that serves nobody, and outside of the lock that requests need.
            let built = tokio::task::spawn_blocking(move || before.next(specs, complete)).await;
            match built {
                Ok(next) => Arc::new(next),
                Err(error) => {
                    // Where it did not panic the router ends.
                    if error.is_panic() {
                        tracing::error!(error = error.to_string(), "the fleet stays as it was: its ring could not be built: {error}");
                    }
                    return Ok(());
                }
            }
        };
        let view = self.view();
        let mut upstreams = Upstreams::with_capacity(next.replicas().len());
        for replica in next.replicas() {
            let upstream = match view.upstream(replica) {
                Some(known) => Arc::clone(known),
                None => self.connector.connect(replica)?,
            };
            upstreams.insert(replica.incarnation(), upstream);
        }
        self.metrics.show(next.replicas());
        let mut fleet = self.fleet();
        fleet.adopt(Arc::clone(&next));
        self.view.store(Arc::new(View { snapshot: fleet.snapshot(), upstreams: Arc::new(upstreams) }));
        drop(fleet);
        self.changes.send_replace(());
        tell(&before, &next);
        Ok(())
    }

    /// Takes note of what was seen of a replica, and publishes where that changes the picture. `why` is for the log.
    pub fn report(&self, replica: &Replica, outcome: Outcome, why: &str) {
        let mut fleet = self.fleet();
        let Some(change) = fleet.observe(replica, outcome, Instant::now(), rand::rng().random()) else { return };
        let could_serve = self.view.load().can_serve();
        self.publish(&fleet);
        drop(fleet);
        self.changes.send_replace(());
        if change.before != change.after {
            self.tell_state(replica, change, why);
        }
        if could_serve && !self.view.load().can_serve() {
            tracing::error!("no replica is up any more; requests are tried nevertheless, and checks go on");
        }
    }

    /// Takes note of a good answer that has begun, at next to no cost where that says nothing new.
    pub fn answered(&self, replica: &Replica) {
        if replica.answered() {
            self.report(replica, Outcome::Answered, "it answers");
        }
    }

    /// Draws the picture anew, with everybody who is in it.
    fn publish(&self, fleet: &Fleet) {
        let upstreams = Arc::clone(&self.view.load().upstreams);
        self.view.store(Arc::new(View { snapshot: fleet.snapshot(), upstreams }));
    }

    fn tell_state(&self, replica: &Replica, change: Change, why: &str) {
        let has_left = self.view.load().state(replica).is_none();
        let (name, before, after) = (replica.name(), change.before.label(), change.after.label());
        if has_left {
            tracing::info!(replica = name, before, after, why, "replica {name}, which has left the fleet, is {after}");
        } else if change.after == State::Up {
            tracing::info!(replica = name, before, after, "replica {name} is {after}");
        } else {
            tracing::warn!(replica = name, before, after, why, "replica {name} is {after}: {why}");
        }
    }

    fn fleet(&self) -> std::sync::MutexGuard<'_, Fleet> {
        // Nothing panics while it holds this lock; were it to, the fleet would still be sound.
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs who joined and who left.
fn tell(before: &Membership, after: &Membership) {
    let is_in = |membership: &Membership| {
        membership.replicas().iter().map(|replica| replica.incarnation()).collect::<std::collections::HashSet<_>>()
    };
    let (were, are) = (is_in(before), is_in(after));
    for replica in before.replicas().iter().filter(|replica| !are.contains(&replica.incarnation())) {
        let (replica, outstanding) = (replica.name(), replica.outstanding());
        tracing::info!(replica, outstanding, "replica {replica} left the fleet; {outstanding} requests there go on");
    }
    for replica in after.replicas().iter().filter(|replica| !were.contains(&replica.incarnation())) {
        let replica = replica.name();
        tracing::info!(replica, "replica {replica} joined the fleet");
    }
}
