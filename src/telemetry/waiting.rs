//! The series that tell who waits: for a replica with room, or held back while the one that it should go to has enough to do.

use std::time::Duration;

use prometheus::{Histogram, IntCounterVec, IntGauge};

use super::labels::{HoldEnd, QueueBound};
use super::metrics::Metrics;
use super::series::Series;

/// From the time that an answer takes to the longest that somebody waits by default, and beyond.
const QUEUE_BUCKETS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 180.0, 600.0];

/// The series.
pub(super) struct Waiting {
    queue_requests: IntGauge,
    queue_bytes: IntGauge,
    queue_refused: IntCounterVec,
    seconds: Histogram,
    held_requests: IntGauge,
    held_bytes: IntGauge,
    holds: IntCounterVec,
}

impl Waiting {
    pub(super) fn new(series: &mut Series) -> prometheus::Result<Self> {
        let waiting = Self {
            queue_requests: series.gauge("prefix_router_queue_requests", "Requests that wait for a replica with room.")?,
            queue_bytes: series.gauge("prefix_router_queue_bytes", "Bytes of the bodies of requests that wait.")?,
            queue_refused: series.counters(
                "prefix_router_queue_refused_total",
                "Requests that were not let wait, or not any longer, by the bound.",
                &["bound"],
            )?,
            seconds: series.histogram(
                "prefix_router_queue_seconds",
                "Time that requests waited, for room or held back, however that ended.",
                QUEUE_BUCKETS,
            )?,
            held_requests: series.gauge(
                "prefix_router_held_requests",
                "Requests that are held back while the replica that each should go to has enough to do.",
            )?,
            held_bytes: series.gauge("prefix_router_held_bytes", "Bytes of the bodies of requests that are held back.")?,
            holds: series.counters(
                "prefix_router_holds_total",
                "Requests that were held back while replicas had enough to do, by how that ended.",
                &["end"],
            )?,
        };
        for &end in HoldEnd::ALL {
            waiting.holds.with_label_values(&[end.label()]);
        }
        for &bound in QueueBound::ALL {
            waiting.queue_refused.with_label_values(&[bound.label()]);
        }
        Ok(waiting)
    }
}

impl Waiting {
    /// Requests that wait for room, and bytes of their bodies.
    pub(super) fn queue(&self) -> (u64, u64) {
        let of = |gauge: &IntGauge| u64::try_from(gauge.get()).unwrap_or_default();
        (of(&self.queue_requests), of(&self.queue_bytes))
    }
}

impl Metrics {
    /// Shows who waits now: requests, and bytes of their bodies.
    pub fn show_queue(&self, requests: usize, bytes: usize) {
        set(&self.waiting.queue_requests, requests);
        set(&self.waiting.queue_bytes, bytes);
    }

    /// Counts a request that was not let wait, or not any longer.
    pub fn refused_waiting(&self, bound: QueueBound) {
        self.waiting.queue_refused.with_label_values(&[bound.label()]).inc();
    }

    /// Shows who is held back now: requests, and bytes of their bodies.
    pub fn show_held(&self, requests: usize, bytes: usize) {
        set(&self.waiting.held_requests, requests);
        set(&self.waiting.held_bytes, bytes);
    }

    /// Counts a request that was held back, or for which there was no room.
    pub fn held(&self, end: HoldEnd) {
        self.waiting.holds.with_label_values(&[end.label()]).inc();
    }

    /// Takes note of how long a request waited.
    pub(super) fn waited(&self, time: Duration) {
        self.waiting.seconds.observe(time.as_secs_f64());
    }
}

fn set(gauge: &IntGauge, value: usize) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}
