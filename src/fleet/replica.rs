//! One engine server, and the exact count of what this router has in flight there.
//!
//! A replica knows no state: whether it may be chosen is the snapshot's business.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::units::Weight;

/// A replica as configured, or as discovered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSpec {
    /// Its identity on the ring, in metrics and in headers: the configured name, else host and port as written. Unique in a fleet.
    pub name: String,
    /// `host:port`, to connect to and to send as `Host`.
    pub authority: String,
    /// Its share of the ring and of the load.
    pub weight: Weight,
    /// The models that it serves; empty where it takes whatever it is asked for.
    pub models: Vec<String>,
    /// Whether the configuration wants it to take nothing new.
    pub drain: bool,
}

/// An engine server's stay in the fleet, from when it joins to when it leaves and the last request there has ended. One that comes back before that is
/// the same incarnation, so that its count is right; one that comes back later is another: nothing that is known or counted of the earlier one
/// reaches it.
#[derive(Debug)]
pub struct Incarnation {
    number: u64,
    /// Requests in flight. Relaxed everywhere: the count orders nothing but itself.
    outstanding: AtomicU64,
    /// Those of them of whose answer's body no byte has come.
    waiting: AtomicU64,
    /// Good answers that have begun.
    answered: AtomicU64,
    /// Whether its health would hear of a good answer.
    awaits_answer: AtomicBool,
    /// Whether a request is there that shows whether it is well again.
    on_trial: AtomicBool,
    /// How often it has come back after it was out.
    returns: AtomicU64,
}

impl Incarnation {
    /// Requests in flight, counted by this router.
    pub fn outstanding(&self) -> u64 {
        self.outstanding.load(Ordering::Relaxed)
    }
}

/// Something for each of some incarnations, by their numbers.
pub type ByIncarnation<T> = HashMap<u64, T, BuildHasherDefault<NumberHasher>>;

/// Spreads numbers that are given here, in turn, so that nobody can choose them badly: a look-up takes 10 ns less than with the standard hash, and each
/// request makes several.
#[derive(Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write_u64(&mut self, number: u64) {
        // Odd, so that neighbours never meet; 2⁶⁴ divided by the golden ratio, so that the upper bits, which a map looks at too, differ as well.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// An engine server in the fleet: an incarnation, and what is configured for it. Where the latter changes, a new `Replica` goes on with the same
/// incarnation.
pub struct Replica {
    spec: ReplicaSpec,
    /// Its name once more, for those who remember it longer than the replica may be there.
    name: Arc<str>,
    incarnation: Arc<Incarnation>,
}

impl Replica {
    /// A replica with nothing in flight. No two of a fleet's incarnations ever have the same `number`.
    pub(super) fn new(number: u64, spec: ReplicaSpec) -> Arc<Self> {
        let incarnation = Incarnation {
            number,
            outstanding: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            awaits_answer: AtomicBool::new(false),
            on_trial: AtomicBool::new(false),
            returns: AtomicU64::new(0),
        };
        Self::of(Arc::new(incarnation), spec)
    }

    /// The same incarnation as `spec` says from now on.
    pub(super) fn respecified(&self, spec: ReplicaSpec) -> Arc<Self> {
        Self::of(Arc::clone(&self.incarnation), spec)
    }

    /// That incarnation, as `spec` says from now on.
    pub(super) fn of(incarnation: Arc<Incarnation>, spec: ReplicaSpec) -> Arc<Self> {
        Arc::new(Self { name: spec.name.as_str().into(), spec, incarnation })
    }

    /// The number of its incarnation, which no other one has or will have.
    pub fn incarnation(&self) -> u64 {
        self.incarnation.number
    }

    /// Tells, by being alive, that somebody may still count requests on this incarnation.
    pub fn watch(&self) -> Weak<Incarnation> {
        Arc::downgrade(&self.incarnation)
    }

    /// Whether both are one incarnation, whatever is configured for it.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.incarnation, &other.incarnation)
    }

    /// Its identity.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// The same, for somebody to whom it is a name alone: it keeps nothing of the replica alive.
    pub fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// What was configured.
    pub fn spec(&self) -> &ReplicaSpec {
        &self.spec
    }

    /// Its share of the load, relative to the others'.
    pub fn weight(&self) -> u64 {
        self.spec.weight.get()
    }

    /// Requests in flight, counted by this router.
    pub fn outstanding(&self) -> u64 {
        self.incarnation.outstanding()
    }

    /// Requests in flight of whose answer's body no byte has come, counted by this router.
    pub fn waiting(&self) -> u64 {
        self.incarnation.waiting.load(Ordering::Relaxed)
    }

    /// Counts one request, whatever the count is.
    pub fn lease(self: &Arc<Self>) -> Lease {
        self.incarnation.outstanding.fetch_add(1, Ordering::Relaxed);
        Lease::counted(Arc::clone(self))
    }

    /// Counts one request unless `limit` are in flight already. Checked and counted in one step, so no two slip through one gate.
    pub fn lease_below(self: &Arc<Self>, limit: u64) -> Option<Lease> {
        self.incarnation
            .outstanding
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < limit).then_some(count + 1))
            .is_ok()
            .then(|| Lease::counted(Arc::clone(self)))
    }

    /// Counts a good answer that has begun. Whether its health would hear of it.
    pub fn answered(&self) -> bool {
        self.incarnation.answered.fetch_add(1, Ordering::Relaxed);
        self.incarnation.awaits_answer.load(Ordering::Relaxed)
    }

    /// Good answers that have begun.
    pub(super) fn answers(&self) -> u64 {
        self.incarnation.answered.load(Ordering::Relaxed)
    }

    pub(super) fn await_answer(&self, awaits: bool) {
        self.incarnation.awaits_answer.store(awaits, Ordering::Relaxed);
    }

    /// How often it has come back after it was out: its engine may have been started anew.
    pub fn returns(&self) -> u64 {
        self.incarnation.returns.load(Ordering::Relaxed)
    }

    pub(super) fn returned(&self) {
        self.incarnation.returns.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a request is there that shows whether it is well again.
    pub fn is_tried(&self) -> bool {
        self.incarnation.on_trial.load(Ordering::Acquire)
    }

    /// Makes a request the one that shows whether it is well again; `None` where there is one already.
    pub fn begin_trial(&self) -> Option<Trial> {
        let begun = !self.incarnation.on_trial.swap(true, Ordering::AcqRel);
        begun.then(|| Trial(Arc::clone(&self.incarnation)))
    }
}

/// A request that shows whether a replica is well again. Another one may when this is dropped.
#[derive(Debug)]
pub struct Trial(Arc<Incarnation>);

impl Drop for Trial {
    fn drop(&mut self) {
        self.0.on_trial.store(false, Ordering::Release);
    }
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica").field("name", &self.spec.name).field("outstanding", &self.outstanding()).finish_non_exhaustive()
    }
}

/// Counts one request on a replica from the choice until it is dropped: once, whatever happens in between.
#[derive(Debug)]
pub struct Lease {
    replica: Arc<Replica>,
    is_waiting: bool,
}

impl Lease {
    /// Of a request that is counted as outstanding already.
    fn counted(replica: Arc<Replica>) -> Self {
        replica.incarnation.waiting.fetch_add(1, Ordering::Relaxed);
        Self { replica, is_waiting: true }
    }

    /// Takes note of the first byte of the answer's body.
    pub fn first_byte(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            self.replica.incarnation.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The replica that it counts on.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.first_byte();
        self.replica.incarnation.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}
