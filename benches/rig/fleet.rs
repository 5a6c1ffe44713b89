//! A fleet without any I/O.

use std::time::Instant;

use prefix_router::fleet::{Fleet, Outcome, ReplicaSpec, health};
use prefix_router::units::Weight;

/// So many replicas, all up.
pub(crate) fn fleet(replicas: usize) -> Fleet {
    let specs = (0..replicas).map(|index| ReplicaSpec {
        name: format!("10.0.{}.{}:8000", index / 256, index % 256),
        authority: String::new(),
        weight: Weight::clamped(1),
        models: Vec::new(),
        drain: false,
    });
    let mut fleet = Fleet::new(specs.collect(), health::Settings::default(), 0);
    for replica in fleet.snapshot().replicas() {
        fleet.observe(replica, Outcome::CheckPassed, Instant::now(), 0.0);
    }
    fleet
}
