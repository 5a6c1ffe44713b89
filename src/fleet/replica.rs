//! One engine server, and the exact count of what this router has in flight there.
//!
//! A replica knows no state: whether it may be chosen is the snapshot's business.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::units::Weight;

/// A replica as configured.
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
}

/// An engine server for as long as it is in the fleet (an incarnation: one that leaves and comes back is a new one).
pub struct Replica {
    index: usize,
    spec: ReplicaSpec,
    /// Requests in flight. Relaxed everywhere: the count orders nothing but itself.
    outstanding: AtomicU64,
}

impl Replica {
    /// A replica with nothing in flight; `index` is its place in the fleet.
    pub fn new(index: usize, spec: ReplicaSpec) -> Arc<Self> {
        Arc::new(Self { index, spec, outstanding: AtomicU64::new(0) })
    }

    /// Its place in the fleet.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its identity.
    pub fn name(&self) -> &str {
        &self.spec.name
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
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Counts one request, whatever the count is.
    pub fn lease(self: &Arc<Self>) -> Lease {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        Lease { replica: Arc::clone(self) }
    }

    /// Counts one request unless `limit` are in flight already. Checked and counted in one step, so no two slip through one gate.
    pub fn lease_below(self: &Arc<Self>, limit: u64) -> Option<Lease> {
        self.outstanding
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < limit).then_some(count + 1))
            .is_ok()
            .then(|| Lease { replica: Arc::clone(self) })
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
}

impl Lease {
    /// The replica that it counts on.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.replica.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}
