//! Sends a request to a chosen replica. Until the first byte of an answer's body is here, a replica that fails is replaced by another.
//!
//! After that byte nothing is sent again, ever: what follows is `stream`'s.

use std::future::pending;
use std::sync::Arc;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::http::response::Parts;
use tokio::time::{Instant, sleep_until, timeout};
use tower::retry::budget::Budget;

use super::Proxy;
use super::error::ProxyError;
use crate::fleet::{Lease, Outcome, Replica, State};
use crate::request::{Ask, Surface};
use crate::routing::{Candidates, Choice};
use crate::telemetry::{Record, RetryCause, UpstreamError};
use crate::upstream::{Connection, Outgoing, SendError, Upstream};

/// A replica's answer that has begun: its head, and the first piece of its body unless there is none yet.
pub(super) struct Answer {
    pub(super) head: Parts,
    pub(super) first: Option<Frame<Bytes>>,
    pub(super) rest: Incoming,
    pub(super) connection: Connection,
    pub(super) upstream: Arc<Upstream>,
    pub(super) lease: Lease,
    /// When the first byte has to be here; `None`: no limit.
    pub(super) first_byte_by: Option<Instant>,
}

/// Why a try brought no answer.
enum Failure {
    Sending(SendError),
    /// The head came, the body did not.
    BodyBroke(hyper::Error),
    /// The replica was taken out meanwhile; another can be tried, and the budget has been charged.
    Ejected,
    FirstByteTimeout,
}

/// One request on its way to an answer.
struct Forward<'a> {
    proxy: &'a Proxy,
    outgoing: &'a Outgoing,
    ask: &'a Ask,
    /// Whether sending it again does no harm even where a replica has seen it.
    repeatable: bool,
    tried: Vec<Arc<Replica>>,
}

/// Brings the answer of the first replica that gives one.
pub(super) async fn forward(
    proxy: &Proxy,
    outgoing: &Outgoing,
    ask: &Ask,
    surface: Surface,
    record: &mut Record,
) -> Result<Answer, ProxyError> {
    let repeatable = surface.is_inference() || outgoing.method.is_safe();
    let mut forward = Forward { proxy, outgoing, ask, repeatable, tried: Vec::new() };
    proxy.budget.deposit();
    let mut choice = forward.choose()?.ok_or(ProxyError::NoReplica)?;
    // A 429 or 503 that is kept in case nobody answers better.
    let mut busy = None;
    loop {
        forward.note(&choice, record);
        let (cause, paid, error) = match forward.attempt(choice).await {
            Ok(answer) if is_busy(answer.head.status) => {
                record.metrics().failed(answer.lease.replica(), UpstreamError::Busy);
                busy = Some(answer);
                (forward.repeatable.then_some(RetryCause::Busy), false, ProxyError::NoReplica)
            }
            Ok(answer) => {
                if answer.head.status.is_server_error() {
                    record.metrics().failed(answer.lease.replica(), UpstreamError::Status5xx);
                }
                return Ok(answer);
            }
            Err(failure) => forward.judge(&failure, record),
        };
        let next = match cause {
            Some(cause) if forward.may_retry() && (paid || proxy.budget.withdraw()) => forward.choose()?.map(|next| (cause, next)),
            _ => None,
        };
        let Some((cause, next)) = next else { return busy.ok_or(error) };
        record.metrics().retried(cause);
        choice = next;
    }
}

impl Forward<'_> {
    /// Picks a replica that was not tried yet, on the picture as of now.
    fn choose(&self) -> Result<Option<Choice>, ProxyError> {
        let parties = &self.proxy.parties;
        let snapshot = parties.fleet.snapshot();
        let model = self.ask.model.as_deref();
        let pool = snapshot.pool(model).ok_or_else(|| ProxyError::UnknownModel(model.unwrap_or_default().to_owned()))?;
        Ok(parties.router.choose(self.ask.placement, &Candidates::new(pool, &self.tried), &mut rand::rng()))
    }

    fn note(&mut self, choice: &Choice, record: &mut Record) {
        let replica = choice.lease.replica();
        record.tries += 1;
        record.reason = Some(choice.reason);
        record.replica = Some(replica.name().to_owned());
        record.metrics().chosen(replica, choice.reason);
        self.tried.push(Arc::clone(replica));
    }

    /// Whether the settings allow a further try (the budget is asked only when it comes to that).
    fn may_retry(&self) -> bool {
        let settings = &self.proxy.settings;
        self.tried.len() <= settings.retries as usize && self.outgoing.body.len() <= settings.replay_buffer
    }

    /// One try, from sending to the first byte.
    async fn attempt(&self, choice: Choice) -> Result<Answer, Failure> {
        let limit = self.proxy.settings.first_byte_timeout;
        let first_byte_by = (!limit.is_zero()).then(|| Instant::now() + limit);
        let replica = Arc::clone(choice.lease.replica());
        tokio::select! {
            biased;
            answer = self.send(choice.lease, first_byte_by) => answer,
            () = self.ejected(&replica) => Err(Failure::Ejected),
            () = until(first_byte_by) => Err(Failure::FirstByteTimeout),
        }
    }

    /// Sends, and holds a successful head until the first piece of the body is here: an engine sends the head of a stream before it has
    /// done anything for it.
    async fn send(&self, lease: Lease, first_byte_by: Option<Instant>) -> Result<Answer, Failure> {
        let proxy = self.proxy;
        let upstream = Arc::clone(&proxy.parties.upstreams[lease.replica().index()]);
        let stale = || proxy.parties.metrics.retried(RetryCause::Stale);
        let resend = self.repeatable && self.outgoing.body.len() <= proxy.settings.replay_buffer;
        let (response, connection) = upstream.send(self.outgoing, resend, stale).await.map_err(Failure::Sending)?;
        let (head, mut rest) = response.into_parts();
        let mut first = None;
        if head.status.is_success() && !rest.is_end_stream() {
            // Where none comes in time the head goes ahead without it.
            let held = timeout(proxy.settings.hold_head, rest.frame()).await.ok().flatten();
            first = held.transpose().map_err(Failure::BodyBroke)?;
        }
        Ok(Answer { head, first, rest, connection, upstream, lease, first_byte_by })
    }

    /// Resolves when the replica on which this request waits has been taken out and another one is up, if a retry is still allowed.
    async fn ejected(&self, replica: &Replica) {
        if !self.repeatable || !self.may_retry() {
            return pending().await;
        }
        let fleet = &self.proxy.parties.fleet;
        let mut changes = fleet.changes();
        loop {
            let snapshot = fleet.snapshot();
            if snapshot.state(replica) == State::Down
                && let Some(pool) = snapshot.pool(self.ask.model.as_deref())
                && Candidates::new(pool, &self.tried).iter().any(|other| snapshot.state(other) == State::Up)
                && self.proxy.budget.withdraw()
            {
                return;
            }
            if changes.changed().await.is_err() {
                return pending().await;
            }
        }
    }

    /// What a failure means: whether and why to try again, whether that has been paid for, and what the client is told otherwise.
    fn judge(&self, failure: &Failure, record: &Record) -> (Option<RetryCause>, bool, ProxyError) {
        let Some(replica) = self.tried.last() else { return (None, false, ProxyError::NoReplica) };
        let (kind, why) = match failure {
            Failure::Sending(error @ SendError::Connect(_)) => (UpstreamError::Connect, error.to_string()),
            Failure::Sending(error @ SendError::Broke { .. }) => (UpstreamError::Broke, error.to_string()),
            Failure::BodyBroke(error) => (UpstreamError::Broke, error.to_string()),
            Failure::FirstByteTimeout => (UpstreamError::FirstByteTimeout, "no first byte in time".to_owned()),
            Failure::Ejected => return (Some(RetryCause::Ejected), true, ProxyError::ReplicaBroke),
        };
        record.metrics().failed(replica, kind);
        let (request_id, name) = (&record.request_id, replica.name());
        tracing::warn!(request_id, replica = name, kind = kind.label(), "request {request_id} failed on replica {name}: {why}");
        match failure {
            Failure::Sending(SendError::Connect(_)) => {
                self.proxy.parties.fleet.report(replica, Outcome::ConnectFailed, &why);
                (Some(RetryCause::Connect), false, ProxyError::ConnectFailed)
            }
            Failure::Sending(SendError::Broke { written: false, .. }) => (Some(RetryCause::Broke), false, ProxyError::ReplicaBroke),
            Failure::FirstByteTimeout => (None, false, ProxyError::FirstByteTimeout(self.proxy.settings.first_byte_timeout)),
            _ => (self.repeatable.then_some(RetryCause::Broke), false, ProxyError::ReplicaBroke),
        }
    }
}

/// The replica lives but wants no more work now.
fn is_busy(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
