//! One request's record: filled in on the way, written once, when it goes: one log line, and its share of the metrics.
//!
//! It never holds prompt text, a model's name, an identifier or a key: only what is listed here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::StatusCode;

use super::labels::{RetryCause, reason, route};
use super::metrics::{CLIENT_GONE, Metrics};
use crate::request::Surface;
use crate::routing::Reason;

/// The log target of the lines.
pub(super) const TARGET: &str = "access";

/// The status of a request whose client left before the answer's end. No client sees it.
const STATUS_CLIENT_GONE: u16 = 499;

/// What is said of one request in log and metrics. Dropped before [`Record::complete`], it tells of a client that left.
pub struct Record {
    metrics: Arc<Metrics>,
    begun: Instant,
    complete: bool,
    /// The request's identifier in logs: what the client sent as `X-Request-Id`, or made here.
    pub request_id: String,
    /// The request's method and path, without its query.
    pub what: (hyper::Method, String),
    /// What the path stands for; `None` where it is not served.
    pub surface: Option<Surface>,
    /// What the client was told.
    pub status: Option<StatusCode>,
    /// Why the last replica tried was chosen.
    pub reason: Option<Reason>,
    /// The last replica tried.
    pub replica: Option<String>,
    /// Replicas tried.
    pub tries: u32,
    /// The replicas that failed before the last one, and how: `a busy, b broke`.
    pub failed: String,
    /// Bytes of the request's body.
    pub body_bytes: usize,
    /// Bytes of the answer's body, as passed on so far.
    pub response_bytes: u64,
    /// What went wrong, as the `x-prefix-router-error` header names it.
    pub error: Option<&'static str>,
    first_byte: Option<Instant>,
    /// How long it waited for a replica with room, until now or until `waits_since`.
    queued: Duration,
    waits_since: Option<Instant>,
}

impl Record {
    /// A request that begins now.
    pub fn new(metrics: Arc<Metrics>, method: hyper::Method, path: &str) -> Self {
        Self {
            metrics,
            begun: Instant::now(),
            complete: false,
            request_id: String::new(),
            what: (method, path.to_owned()),
            surface: None,
            status: None,
            reason: None,
            replica: None,
            tries: 0,
            failed: String::new(),
            body_bytes: 0,
            response_bytes: 0,
            error: None,
            first_byte: None,
            queued: Duration::ZERO,
            waits_since: None,
        }
    }

    /// Where its counts go.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Takes note that the replica tried last failed, so that another is tried.
    pub fn failed_on(&mut self, cause: RetryCause) {
        let replica = self.replica.as_deref().unwrap_or_default();
        let separator = if self.failed.is_empty() { "" } else { ", " };
        self.failed += &format!("{separator}{replica} {}", cause.label());
    }

    /// From now on it waits for a replica with room.
    pub fn begins_waiting(&mut self) {
        self.waits_since = Some(Instant::now());
    }

    /// It waits no longer, whyever.
    pub fn ends_waiting(&mut self) {
        if let Some(since) = self.waits_since.take() {
            let time = since.elapsed();
            self.queued += time;
            self.metrics.waited(time);
        }
    }

    /// When its request's head was there.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// Takes note of a piece of the answer's body.
    pub fn passed_on(&mut self, bytes: usize) {
        if bytes > 0 && self.first_byte.is_none() {
            self.first_byte = Some(Instant::now());
        }
        self.response_bytes += bytes as u64;
    }

    /// The answer has been passed on to its end, or to where it broke: what happens from now on is not the client's doing.
    pub fn complete(&mut self) {
        self.complete = true;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.ends_waiting();
        let (status, error) = match self.status {
            Some(status) if self.complete => (status.as_u16(), self.error),
            _ => (STATUS_CLIENT_GONE, Some(CLIENT_GONE)),
        };
        let (route, reason) = (route(self.surface), reason(self.reason));
        let whole = self.begun.elapsed();
        let first_byte = self.first_byte.map(|at| at - self.begun);
        self.metrics.finished((self.surface, self.reason), status, error, first_byte, whole);
        tracing::info!(
            target: TARGET,
            request_id = self.request_id,
            method = %self.what.0,
            path = self.what.1,
            route,
            status,
            reason,
            replica = self.replica,
            tries = self.tries,
            failed = (!self.failed.is_empty()).then_some(&self.failed),
            body_bytes = self.body_bytes,
            response_bytes = self.response_bytes,
            queued_ms = (!self.queued.is_zero()).then(|| milliseconds(self.queued)),
            ttfb_ms = first_byte.map(milliseconds),
            duration_ms = milliseconds(whole),
            error,
        );
    }
}

/// To the microsecond; more digits would only be noise.
fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}
