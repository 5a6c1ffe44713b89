//! The fleet as it lives: one place that takes news of replicas from probes, requests and discovery, and publishes the picture that choices are made
//! on, together with the means to reach everybody in it.
//!
//! It decides nothing; `fleet` does.

mod wishes;

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::{ArcSwap, Guard};
use rand::RngExt;
use tokio::sync::watch;

use crate::fleet::{ByIncarnation, Change, Fleet, Membership, Outcome, Replica, ReplicaSpec, Snapshot, State, health};
use crate::resolver::HostNames;
use crate::telemetry::Metrics;
use crate::units::Weight;
use crate::upstream::{self, Connector, UnusableReplica, Upstream};
use wishes::Wishes;

/// What holds for all replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// When one counts as up.
    pub health: health::Settings,
    /// Connections to them.
    pub upstream: upstream::Settings,
    /// Seeds the rings.
    pub hash_seed: u64,
}

/// What a request sees: the fleet's picture, and the connections to the replicas in it. They change together.
pub struct View {
    snapshot: Snapshot,
    upstreams: Arc<Upstreams>,
}

type Upstreams = ByIncarnation<Arc<Upstream>>;

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
    inner: Mutex<Inner>,
    view: ArcSwap<View>,
    changes: watch::Sender<()>,
    metrics: Arc<Metrics>,
    health: watch::Sender<health::Settings>,
    /// Held while the membership changes, so that one change follows another. Requests do not need it.
    changing: tokio::sync::Mutex<Rest>,
}

/// The fleet, and what is asked of its replicas by the API.
struct Inner {
    fleet: Fleet,
    wishes: Wishes,
}

/// What only a change of the membership needs.
struct Rest {
    connector: Connector,
    hash_seed: u64,
    /// What was configured and discovered, and whether that is all.
    specs: Vec<ReplicaSpec>,
    complete: bool,
}

/// Why the fleet stays as it was.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// Somebody in it could not be sent anything.
    #[error(transparent)]
    Unusable(#[from] UnusableReplica),
    /// What went wrong with the rings.
    #[error("its ring could not be built: {0}")]
    Ring(String),
}

/// Why a replica is not drained, or still is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainError {
    /// There is no such replica; the names of those that there are.
    Unknown(Vec<String>),
    /// The configuration drains it.
    Configured,
}

/// Why a replica's weight stays what it is.
#[derive(Debug)]
pub enum WeighError {
    /// There is no such replica; the names of those that there are.
    Unknown(Vec<String>),
    /// The fleet could not be changed.
    Unchanged(ChangeError),
}

/// What a replica's weight is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weighed {
    /// In force.
    pub weight: Weight,
    /// As configured.
    pub configured: Weight,
    /// Whether it was another one.
    pub changed: bool,
}

impl LiveFleet {
    /// A fleet without replicas. Fails where the key for replicas cannot stand in a header.
    pub fn new(settings: Settings, names: HostNames, metrics: Arc<Metrics>) -> Result<Arc<Self>, UnusableReplica> {
        let Settings { health, upstream, hash_seed } = settings;
        let connector = Connector::new(upstream, names)?;
        let fleet = Fleet::new(Vec::new(), health.clone(), hash_seed);
        Ok(Arc::new(Self {
            view: ArcSwap::from_pointee(View { snapshot: fleet.snapshot(), upstreams: Arc::default() }),
            inner: Mutex::new(Inner { fleet, wishes: Wishes::default() }),
            changes: watch::Sender::new(()),
            metrics,
            health: watch::Sender::new(health),
            changing: tokio::sync::Mutex::new(Rest { connector, hash_seed, specs: Vec::new(), complete: true }),
        }))
    }

    /// The picture as of now. It is lent, as every request looks several times and all of them would count on one place; not to be kept for long.
    pub fn view(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// Resolves at each publication from now on.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Makes the fleet those replicas and no others, and publishes that. `complete` says whether these are all that there are. Who stays keeps
    /// count, health and connections; who left ends its requests and gets no new ones. An error changes nothing.
    pub async fn set(&self, specs: Vec<ReplicaSpec>, complete: bool) -> Result<(), ChangeError> {
        self.change(&mut *self.changing.lock().await, specs, complete, None).await
    }

    /// The same, under other settings from the same moment on.
    pub async fn set_under(&self, settings: Settings, specs: Vec<ReplicaSpec>, complete: bool) -> Result<(), ChangeError> {
        self.change(&mut *self.changing.lock().await, specs, complete, Some(settings)).await
    }

    /// Gives the replica `name` that weight, or with `None` the configured one: its share of the ring and of the load. It holds as long as a drain does.
    pub async fn weigh(&self, name: &str, weight: Option<Weight>) -> Result<Weighed, WeighError> {
        let mut rest = self.changing.lock().await;
        let Some(configured) = rest.specs.iter().find(|spec| spec.name == name).map(|spec| spec.weight) else {
            return Err(WeighError::Unknown(rest.specs.iter().map(|spec| spec.name.clone()).collect()));
        };
        let before = self.inner().wishes.weigh(name, weight);
        let (old, new) = (before.unwrap_or(configured), weight.unwrap_or(configured));
        if old != new {
            let (specs, complete) = (rest.specs.clone(), rest.complete);
            if let Err(error) = self.change(&mut rest, specs, complete, None).await {
                self.inner().wishes.weigh(name, before);
                return Err(WeighError::Unchanged(error));
            }
            let (old, new) = (old.get(), new.get());
            tracing::info!(replica = name, old, new, "replica {name} has weight {new} by the API; it was {old}");
        }
        Ok(Weighed { weight: new, configured, changed: old != new })
    }

    /// The weights as configured, by name.
    pub async fn configured_weights(&self) -> HashMap<String, u64> {
        self.changing.lock().await.specs.iter().map(|spec| (spec.name.clone(), spec.weight.get())).collect()
    }

    async fn change(
        &self,
        rest: &mut Rest,
        specs: Vec<ReplicaSpec>,
        complete: bool,
        settings: Option<Settings>,
    ) -> Result<(), ChangeError> {
        let (connector, hash_seed) = match &settings {
            Some(settings) => (rest.connector.with(settings.upstream.clone())?, settings.hash_seed),
            None => (rest.connector.clone(), rest.hash_seed),
        };
        let (before, asked) = {
            let inner = self.inner();
            let as_asked =
                |spec: &ReplicaSpec| ReplicaSpec { weight: inner.wishes.weight(&spec.name).unwrap_or(spec.weight), ..spec.clone() };
            (Arc::clone(inner.fleet.membership()), specs.iter().map(as_asked).collect())
        };
        let next = {
            let before = Arc::clone(&before);
            // Rings take their time: on a thread that serves nobody, and outside of the lock that requests need.
            let built = tokio::task::spawn_blocking(move || before.next_seeded(asked, complete, hash_seed)).await;
            match built {
                Ok(next) => Arc::new(next),
                Err(error) => {
                    // Where it did not panic the router ends.
                    return if error.is_panic() { Err(ChangeError::Ring(error.to_string())) } else { Ok(()) };
                }
            }
        };
        let view = self.view();
        let mut upstreams = Upstreams::default();
        for replica in next.replicas() {
            let upstream = match view.upstream(replica) {
                Some(known) => connector.adopt(known),
                None => connector.connect(replica)?,
            };
            upstreams.insert(replica.incarnation(), upstream);
        }
        self.metrics.show(next.replicas());
        let mut inner = self.inner();
        inner.adopt(&before, &next, Instant::now());
        if let Some(settings) = settings {
            inner.fleet.configure(settings.health.clone());
            self.health.send_if_modified(|health| std::mem::replace(health, settings.health.clone()) != settings.health);
        }
        self.view.store(Arc::new(View { snapshot: inner.fleet.snapshot(), upstreams: Arc::new(upstreams) }));
        drop(inner);
        *rest = Rest { connector, hash_seed, specs, complete };
        self.changes.send_replace(());
        tell(&before, &next);
        Ok(())
    }

    /// When a replica counts as up, as of now.
    pub fn health(&self) -> watch::Receiver<health::Settings> {
        self.health.subscribe()
    }

    /// Gives the replica `name` no new requests, or some again; whether that changed anything. It holds whatever is reloaded, and for a replica that
    /// leaves and returns within ten minutes.
    pub fn drain(&self, name: &str, draining: bool) -> Result<bool, DrainError> {
        let mut inner = self.inner();
        let membership = Arc::clone(inner.fleet.membership());
        let Some(replica) = membership.replicas().iter().find(|replica| replica.name() == name) else {
            return Err(DrainError::Unknown(membership.replicas().iter().map(|replica| replica.name().to_owned()).collect()));
        };
        if !draining && replica.spec().drain {
            return Err(DrainError::Configured);
        }
        let changed = inner.wishes.drain(name, draining);
        if changed {
            inner.fleet.set_draining(name, draining, Instant::now());
            let turn = self.publish(inner);
            let outstanding = replica.outstanding();
            if draining {
                tracing::info!(replica = name, outstanding, "replica {name} is drained by the API; in flight there: {outstanding}");
            } else {
                let health = self.view.load().health(replica).map_or("", State::label);
                tracing::info!(replica = name, health, "replica {name} is drained no longer; it is {health}");
            }
            if turn == Some(false) {
                tracing::warn!("no replica is left that is up and not draining; where all are draining, requests are answered with 503");
            }
        }
        Ok(changed)
    }

    /// The names of the replicas that are drained by request.
    pub fn drained(&self) -> HashSet<String> {
        self.inner().wishes.drained()
    }

    /// Takes note of what was seen of a replica, and publishes where that changes the picture. `why` is for the log.
    pub fn report(&self, replica: &Replica, outcome: Outcome, why: &str) {
        let mut inner = self.inner();
        let Some(change) = inner.fleet.observe(replica, outcome, Instant::now(), rand::rng().random()) else { return };
        let turn = self.publish(inner);
        if change.before != change.after {
            self.tell_state(replica, change, why);
        }
        match turn {
            Some(false) => tracing::error!("no replica is up any more; requests are tried nevertheless, and checks go on"),
            Some(true) => tracing::info!("a replica can be used: requests are served"),
            None => {}
        }
    }

    /// Takes note of a good answer that has begun, at next to no cost where that says nothing new.
    pub fn answered(&self, replica: &Replica) {
        if replica.answered() {
            self.report(replica, Outcome::Answered, "it answers");
        }
    }

    /// Draws the picture anew, with everybody who is in it. Whether anybody can serve now, where that has changed.
    fn publish(&self, inner: MutexGuard<'_, Inner>) -> Option<bool> {
        let before = self.view.load_full();
        let snapshot = inner.fleet.snapshot();
        let turn = Some(snapshot.can_serve()).filter(|&can| can != before.can_serve());
        self.view.store(Arc::new(View { snapshot, upstreams: Arc::clone(&before.upstreams) }));
        drop(inner);
        self.changes.send_replace(());
        turn
    }

    fn tell_state(&self, replica: &Replica, change: Change, why: &str) {
        let has_left = self.view.load().state(replica).is_none();
        let (name, before, after) = (replica.name(), change.before.label(), change.after.label());
        if has_left {
            tracing::info!(replica = name, before, after, why, "replica {name}, which has left the fleet, is {after}");
        } else if change.before == State::Down && change.after == State::Suspect {
            tracing::info!(
                replica = name,
                before,
                after,
                "replica {name} is {after}: its checks are good again, and a request is to show that it is well"
            );
        } else if change.after == State::Up {
            tracing::info!(replica = name, before, after, "replica {name} is {after}");
        } else {
            tracing::warn!(replica = name, before, after, why, "replica {name} is {after}: {why}");
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it holds this lock; were it to, the fleet would still be sound.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Goes on with `next`, in which are drained whom the configuration or a request drains.
    fn adopt(&mut self, before: &Membership, next: &Arc<Membership>, now: Instant) {
        let present: HashSet<&str> = next.replicas().iter().map(|replica| replica.name()).collect();
        self.wishes.look(&present, now);
        for gone in before.replicas().iter().filter(|replica| !present.contains(replica.name())) {
            self.fleet.set_draining(gone.name(), false, now);
        }
        self.fleet.adopt(Arc::clone(next));
        for replica in next.replicas() {
            self.fleet.set_draining(replica.name(), replica.spec().drain || self.wishes.is_drained(replica.name()), now);
        }
    }
}

/// Logs who joined and who left.
fn tell(before: &Membership, after: &Membership) {
    let is_in = |membership: &Membership| membership.replicas().iter().map(|replica| replica.incarnation()).collect::<HashSet<_>>();
    let (were, are) = (is_in(before), is_in(after));
    for replica in before.replicas().iter().filter(|replica| !are.contains(&replica.incarnation())) {
        let (replica, outstanding) = (replica.name(), replica.outstanding());
        tracing::info!(replica, outstanding, "replica {replica} left the fleet; {outstanding} requests there go on");
    }
    for replica in after.replicas().iter().filter(|replica| !were.contains(&replica.incarnation())) {
        let (replica, address) = (replica.name(), &replica.spec().authority);
        tracing::info!(replica, address, "replica {replica} joined the fleet, at {address}");
    }
    let drained = |membership: &Membership| -> HashSet<u64> {
        membership.replicas().iter().filter(|replica| replica.spec().drain).map(|replica| replica.incarnation()).collect()
    };
    let (was_drained, is_drained) = (drained(before), drained(after));
    for replica in after.replicas().iter().filter(|replica| were.contains(&replica.incarnation())) {
        let (number, outstanding, replica) = (replica.incarnation(), replica.outstanding(), replica.name());
        match (was_drained.contains(&number), is_drained.contains(&number)) {
            (false, true) => {
                tracing::info!(replica, outstanding, "replica {replica} is drained by the configuration; in flight there: {outstanding}")
            }
            (true, false) => tracing::info!(replica, "replica {replica} is drained by the configuration no longer"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_drain_by_request_outlives_a_short_absence_and_no_long_one() {
        let specs = |names: &[&str]| {
            let spec = |name: &&str| ReplicaSpec {
                name: (*name).to_owned(),
                authority: (*name).to_owned(),
                weight: Weight::clamped(1),
                models: Vec::new(),
                drain: *name == "by configuration",
            };
            names.iter().map(spec).collect::<Vec<_>>()
        };
        let fleet = Fleet::new(specs(&["a", "b"]), health::Settings::default(), 0);
        let mut inner = Inner { fleet, wishes: Wishes::default() };
        inner.wishes.drain("a", true);
        let start = Instant::now();
        // The names in the fleet from that second on, and those of them that are drained then.
        let steps: [(u64, &[&str], &[&str]); 8] = [
            (0, &["a", "b"], &["a"]),
            (1, &["b", "by configuration"], &["by configuration"]),
            (300, &["b"], &[]),
            (600, &["b", "a"], &["a"]),
            (900, &["b", "c"], &[]),
            // Nothing happens for long: what counts is the absence, not when somebody looks.
            (1_500, &["a"], &[]),
            (1_501, &["b"], &[]),
            (1_502, &["a"], &[]),
        ];
        for (at, names, drained) in steps {
            let before = Arc::clone(inner.fleet.membership());
            inner.adopt(&before, &Arc::new(before.next(specs(names), true)), start + Duration::from_secs(at));
            let snapshot = inner.fleet.snapshot();
            let is_drained = |replica: &&Arc<Replica>| snapshot.state(replica) == Some(State::Draining);
            let found: Vec<&str> = snapshot.replicas().iter().filter(is_drained).map(|replica| replica.name()).collect();
            assert_eq!(found, drained, "at {at} s");
        }
    }
}
