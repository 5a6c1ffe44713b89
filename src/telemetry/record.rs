//! One request's record: filled in on the way, written once, when it goes: one log line, its share of the metrics, and its span where it is traced.
//!
//! It never holds prompt text, a model's name or an identifier: only what is listed here. Its key is shown nowhere as it is.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use hyper::header::HeaderValue;
use hyper::{Method, StatusCode};
use prometheus::local::LocalHistogram;

use super::Trace;
use super::access_log;
use super::decisions::{Decision, name_of};
use super::labels::RetryCause;
use super::metrics::{CLIENT_GONE, Metrics};
use super::models::ModelLabel;
use super::requests::Finished;
use crate::fleet::Replica;
use crate::request::{Key, Surface, Usage};
use crate::routing::{PassedOver, Reason, Sight, StrategyName};

/// Bytes of an identifier that are shown.
const MOST_OF_AN_ID: usize = 128;

/// The status of a request whose client left before the answer's end. No client sees it.
const STATUS_CLIENT_GONE: u16 = 499;

/// How a request ended, for its line and its span.
pub(super) struct Ended<'a> {
    /// 499 where the client left.
    pub(super) status: u16,
    pub(super) error: Option<&'a str>,
    /// Since it began, as is the next.
    pub(super) first_byte: Option<Duration>,
    pub(super) whole: Duration,
    /// Of its span, where it has one.
    pub(super) trace_id: Option<&'a str>,
}

/// What is said of one request in log and metrics. Dropped before [`Record::complete`], it tells of a client that left.
pub struct Record {
    metrics: Arc<Metrics>,
    begun: Instant,
    complete: bool,
    /// The request's identifier, as the log shows it: what the client sent as `X-Request-Id`, or made here. Whatever its length, a line stays a line.
    pub request_id: Box<str>,
    pub(super) method: Method,
    /// Without its query. A copy, as the identifier: what hyper hands out is a part of all that was read with it, which may be half a megabyte, and a
    /// record stays for as long as an answer streams.
    pub(super) path: Box<str>,
    /// What the path stands for; `None` where it is not served.
    pub surface: Option<Surface>,
    /// The model that it names, as metrics know it.
    pub model: ModelLabel,
    strategy: StrategyName,
    /// What the client was told.
    pub status: Option<StatusCode>,
    /// Why the last replica tried was chosen.
    pub reason: Option<Reason>,
    /// The last replica tried.
    pub replica: Option<Arc<Replica>>,
    /// What it is placed by, and how many characters that covers where traffic decides that. It is not shown as it is.
    key: Option<(Key, Option<u32>)>,
    /// Of the last choice: who was passed over, and what the replica is expected to hold.
    instead_of: Option<PassedOver>,
    overlap: Option<f64>,
    /// Replicas tried.
    pub tries: u32,
    /// The replicas that failed before the last one, and how: `a busy, b broke`.
    pub failed: String,
    /// Bytes of the request's body.
    pub body_bytes: usize,
    /// Bytes of its prompt, where it has one.
    pub prompt_bytes: Option<usize>,
    /// Bytes of the answer's body, as passed on so far.
    pub response_bytes: u64,
    /// What the answer said that the request took, where it did.
    pub usage: Option<Usage>,
    /// What went wrong, as the `x-prefix-router-error` header names it.
    pub error: Option<&'static str>,
    /// Whether its answer is good and comes piece by piece, the first when its prompt is computed.
    pub streams: bool,
    /// When such an answer first said something.
    first_token: Option<Instant>,
    /// Its place in a trace, where traces are on.
    pub trace: Option<Box<Trace>>,
    first_byte: Option<Instant>,
    /// When the last piece of an answer passed that comes piece by piece, and the times between them.
    last_piece: Option<Instant>,
    gaps: Option<LocalHistogram>,
    /// When all of the request had been read.
    read: Option<Instant>,
    /// What the router took from then on until it sent it for the first time, without what it waited.
    overhead: Option<Duration>,
    /// How long it waited for a replica with room, or with less to do, until now or until `waits_since`.
    pub(super) queued: Duration,
    waits_since: Option<Instant>,
}

impl Record {
    /// A request that begins now.
    pub fn new(metrics: Arc<Metrics>, strategy: StrategyName, method: Method, path: &str, request_id: &HeaderValue) -> Self {
        let shown = request_id.as_bytes();
        let shown = &shown[..shown.len().min(MOST_OF_AN_ID)];
        Self {
            metrics,
            begun: Instant::now(),
            complete: false,
            request_id: String::from_utf8_lossy(shown).into(),
            method,
            path: path.into(),
            surface: None,
            model: ModelLabel::default(),
            strategy,
            status: None,
            reason: None,
            replica: None,
            key: None,
            instead_of: None,
            overlap: None,
            tries: 0,
            failed: String::new(),
            body_bytes: 0,
            prompt_bytes: None,
            response_bytes: 0,
            usage: None,
            error: None,
            streams: false,
            trace: None,
            first_byte: None,
            first_token: None,
            last_piece: None,
            gaps: None,
            read: None,
            overhead: None,
            queued: Duration::ZERO,
            waits_since: None,
        }
    }

    /// Whether the answer has no body, whatever it says.
    pub fn is_head(&self) -> bool {
        self.method == Method::HEAD
    }

    /// Where its counts go.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Takes note that the replica tried last failed, so that another is tried.
    pub fn failed_on(&mut self, cause: RetryCause) {
        let replica = self.replica.as_ref().map_or("", |replica| replica.name());
        let separator = if self.failed.is_empty() { "" } else { ", " };
        self.failed += &format!("{separator}{replica} {}", cause.label());
        if let Some(trace) = &mut self.trace {
            trace.retried(replica, cause, self.begun.elapsed());
        }
    }

    /// From now on it waits for a replica with room, or with less to do.
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

    /// All of the request is there.
    pub fn is_read(&mut self, bytes: usize) {
        self.body_bytes = bytes;
        self.read = Some(Instant::now());
    }

    /// That is what it would be placed by, where its strategy looks at prompts.
    pub fn is_placed_by(&mut self, sight: &Sight) {
        self.key = self.strategy.goes_by_key().then_some((sight.key, sight.depth));
    }

    /// It is about to be sent to a replica, which is expected to hold that share of its prompt, where that is known.
    pub fn is_sent(&mut self, replica: &Arc<Replica>, reason: Reason, instead_of: Option<PassedOver>, overlap: Option<f64>) {
        (self.instead_of, self.overlap) = (instead_of, overlap);
        if let (None, Some(read)) = (self.overhead, self.read) {
            self.overhead = Some(read.elapsed().saturating_sub(self.queued));
        }
        self.tries += 1;
        (self.replica, self.reason) = (Some(Arc::clone(replica)), Some(reason));
        self.metrics.chosen(replica, reason);
    }

    /// When its request's head was there.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// Takes note of a piece of the answer's body. Of a stream of events, `says` is asked whether it says something: comments keep a connection open.
    pub fn passed_on(&mut self, data: &[u8], says: impl Fn(&[u8]) -> bool) {
        self.response_bytes += data.len() as u64;
        if data.is_empty() || self.first_byte.is_some() && !self.streams {
            return;
        }
        let now = Instant::now();
        self.first_byte.get_or_insert(now);
        if !self.streams || !says(data) {
            return;
        }
        self.first_token.get_or_insert(now);
        if let Some(last) = self.last_piece.replace(now)
            && self.metrics.is_on()
        {
            self.gaps.get_or_insert_with(|| self.metrics.gaps(self.reason)).observe((now - last).as_secs_f64());
        }
    }

    /// The answer has been passed on to its end, or to where it broke: what happens from now on is not the client's doing.
    pub fn complete(&mut self) {
        self.complete = true;
    }
}

impl Record {
    /// Leaves what is remembered of it. It is over: what it has is taken, not copied.
    fn decided(&mut self, status: u16, error: Option<&'static str>, first_byte: Option<Duration>, whole: Duration) {
        let metrics = Arc::clone(&self.metrics);
        metrics.decisions().add(|id| Decision {
            id,
            ended: SystemTime::now(),
            request_id: std::mem::take(&mut self.request_id),
            method: std::mem::take(&mut self.method),
            surface: self.surface,
            model: self.model,
            strategy: self.strategy,
            status,
            error,
            reason: self.reason,
            replica: self.replica.as_ref().map(|replica| (replica.incarnation(), replica.shared_name())),
            instead_of: self.instead_of.take().map(name_of),
            tries: self.tries,
            failed: std::mem::take(&mut self.failed),
            queued: self.queued,
            first_byte,
            whole,
            usage: self.usage,
            overlap: self.overlap,
            key: self.key,
        });
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.ends_waiting();
        let (status, error) = match self.status {
            Some(status) if self.complete => (status.as_u16(), self.error),
            _ => (STATUS_CLIENT_GONE, Some(CLIENT_GONE)),
        };
        let whole = self.begun.elapsed();
        let first_byte = self.first_byte.map(|at| at - self.begun);
        let finished = Finished {
            surface: self.surface,
            model: self.model,
            strategy: self.strategy,
            reason: self.reason,
            status,
            first_byte,
            first_token: self.first_token.map(|at| at - self.begun),
            whole,
            overhead: self.overhead,
            prompt_bytes: self.prompt_bytes,
            usage: self.usage,
        };
        self.metrics.finished(&finished, error);
        let trace = self.trace.take();
        let trace_id = trace.as_ref().and_then(|trace| trace.shown(self.surface));
        let ended = Ended { status, error, first_byte, whole, trace_id: trace_id.as_deref() };
        if let Some(trace) = trace {
            trace.end(self, &ended);
        }
        access_log::write(self, &ended);
        // What the router is asked all the time by load balancers, and answers itself, is no decision.
        if self.reason.is_some() || error.is_some() {
            self.decided(status, error, first_byte, whole);
        }
    }
}
