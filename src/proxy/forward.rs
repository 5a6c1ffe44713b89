//! Sends a request to a chosen replica. Until the first byte of an answer's body is here, a replica that fails is replaced by another.
//!
//! After that byte nothing is sent again, ever: what follows is `stream`'s.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, Limited};
use hyper::StatusCode;
use hyper::http::response::Parts;
use tokio::time::{Instant, sleep_until, timeout};

use super::error::ProxyError;
use super::{Proxy, Rules, Settings};
use crate::exchange::{Body, Broken};
use crate::fleet::{Lease, Outcome, Replica, Snapshot, State};
use crate::request::{Ask, Surface};
use crate::routing::{Candidates, Choice, Reason};
use crate::telemetry::{Record, RetryCause, UpstreamError};
use crate::upstream::{Outgoing, SendError, Upstream};

/// A replica's answer that has begun: its head, and the first piece of its body unless there is none yet.
pub(super) struct Answer {
    pub(super) head: Parts,
    pub(super) first: Option<Frame<Bytes>>,
    pub(super) rest: Body,
    pub(super) upstream: Arc<Upstream>,
    pub(super) lease: Lease,
    /// When the first byte has to be here; `None`: no limit.
    pub(super) first_byte_by: Option<Instant>,
}

/// A whole 429 or 503, kept while other replicas are tried.
pub(super) struct Busy {
    pub(super) head: Parts,
    pub(super) body: Bytes,
    replica: String,
    reason: Reason,
}

/// What a request that could be forwarded comes to.
pub(super) enum Forwarded {
    Answer(Box<Answer>),
    /// Nobody answered better.
    Busy(Busy),
}

/// A choice, and the connections to the replica chosen, from one picture.
struct Chosen {
    choice: Choice,
    upstream: Arc<Upstream>,
}

/// Why a try brought no answer.
enum Failure {
    Sending(SendError),
    /// The head came, the body did not.
    BodyBroke(Broken),
    /// The replica was taken out meanwhile, and another one can be tried.
    Ejected,
    FirstByteTimeout,
    /// The router stops.
    Cut,
}

/// The largest 429 or 503 that is kept, and how long its body may take.
const BUSY_BODY: usize = 64 << 10;
const BUSY_PATIENCE: Duration = Duration::from_secs(1);

/// One request on its way to an answer.
pub(super) struct Forward<'a> {
    proxy: &'a Proxy,
    rules: &'a Rules,
    outgoing: &'a Outgoing,
    ask: &'a Ask,
    /// Whether sending it again does no harm even where a replica has seen it.
    repeatable: bool,
    tried: Vec<Arc<Replica>>,
}

impl<'a> Forward<'a> {
    pub(super) fn new(proxy: &'a Proxy, rules: &'a Rules, outgoing: &'a Outgoing, ask: &'a Ask, surface: Surface) -> Self {
        Self { proxy, rules, outgoing, ask, repeatable: surface.is_inference() || outgoing.method.is_safe(), tried: Vec::new() }
    }

    /// Brings the answer of the first replica that gives one.
    pub(super) async fn run(mut self, record: &mut Record) -> Result<Forwarded, ProxyError> {
        self.proxy.budget.deposit(self.settings().retry_budget, now());
        let mut chosen = self.choose()?.ok_or(ProxyError::NoReplica)?;
        let mut busy = None;
        loop {
            let Chosen { choice, upstream } = chosen;
            self.note(&choice, record);
            let reason = choice.reason;
            let (cause, error) = match self.attempt(choice.lease, upstream).await {
                Ok(answer) if is_busy(answer.head.status) => {
                    record.metrics().failed(answer.lease.replica(), UpstreamError::Busy);
                    if !self.repeatable || !self.may_retry() || !self.is_another(|_, _| true) {
                        return Ok(Forwarded::Answer(Box::new(answer)));
                    }
                    busy = keep(answer, reason).await.or(busy);
                    (Some(RetryCause::Busy), ProxyError::ReplicaBroke)
                }
                Ok(answer) => {
                    if answer.head.status.is_server_error() {
                        record.metrics().failed(answer.lease.replica(), UpstreamError::Status5xx);
                    }
                    return Ok(Forwarded::Answer(Box::new(answer)));
                }
                Err(failure) => self.assess(&failure, record),
            };
            match cause.map(|cause| self.next(cause, record)).transpose()?.flatten() {
                Some(next) => chosen = next,
                None => {
                    let busy = busy.ok_or(error)?;
                    (record.replica, record.reason) = (Some(busy.replica.clone()), Some(busy.reason));
                    return Ok(Forwarded::Busy(busy));
                }
            }
        }
    }

    /// Picks a replica that was not tried yet, on the picture as of now.
    fn choose(&self) -> Result<Option<Chosen>, ProxyError> {
        let parties = &self.proxy.parties;
        let view = parties.fleet.view();
        let model = self.ask.model.as_deref();
        let pool = view.pool(model).ok_or_else(|| ProxyError::unknown_model(model))?;
        let choice = self.rules.chooser.choose(self.ask.placement, &Candidates::new(pool, &self.tried), &mut rand::rng());
        Ok(choice.and_then(|choice| {
            // Everybody in the picture can be reached.
            let upstream = Arc::clone(view.upstream(choice.lease.replica())?);
            Some(Chosen { choice, upstream })
        }))
    }

    /// The next replica to try after a failure, where settings and budget allow one.
    fn next(&self, cause: RetryCause, record: &mut Record) -> Result<Option<Chosen>, ProxyError> {
        if !self.may_retry() {
            return Ok(None);
        }
        let Some(chosen) = self.choose()? else { return Ok(None) };
        // What asks a living fleet for more has to be paid for; `ejected` has done so before it gave a replica up. What died with its replica
        // is asked of nobody any more: sending it again adds no load.
        if cause == RetryCause::Busy && !self.may_spend() {
            record.metrics().refused_retry();
            return Ok(None);
        }
        record.metrics().retried(cause);
        record.failed_on(cause);
        Ok(Some(chosen))
    }

    fn note(&mut self, choice: &Choice, record: &mut Record) {
        let replica = choice.lease.replica();
        record.tries += 1;
        record.reason = Some(choice.reason);
        record.replica = Some(replica.name().to_owned());
        record.metrics().chosen(replica, choice.reason);
        self.tried.push(Arc::clone(replica));
    }

    fn settings(&self) -> &Settings {
        &self.rules.settings
    }

    /// Whether the budget allows one more retry, which is paid for then.
    fn may_spend(&self) -> bool {
        self.proxy.budget.withdraw(self.settings().retry_budget, now())
    }

    /// Whether the settings allow a further try.
    fn may_retry(&self) -> bool {
        self.tried.len() <= self.settings().retries as usize && self.is_replayable()
    }

    /// Whether the body may be sent more than once.
    fn is_replayable(&self) -> bool {
        self.outgoing.body.len() <= self.settings().replay_buffer
    }

    /// Whether a replica that was not tried yet, and is `good`, could be chosen.
    fn is_another(&self, good: impl Fn(&Snapshot, &Replica) -> bool) -> bool {
        let view = self.proxy.parties.fleet.view();
        let pool = view.pool(self.ask.model.as_deref());
        pool.is_some_and(|pool| Candidates::new(pool, &self.tried).iter().any(|other| good(&view, other)))
    }

    /// One try, from sending to the first byte.
    async fn attempt(&self, lease: Lease, upstream: Arc<Upstream>) -> Result<Answer, Failure> {
        let limit = self.settings().first_byte_timeout;
        let first_byte_by = (!limit.is_zero()).then(|| Instant::now() + limit);
        let replica = Arc::clone(lease.replica());
        tokio::select! {
            biased;
            answer = self.send(lease, upstream, first_byte_by) => answer,
            () = self.ejected(&replica) => Err(Failure::Ejected),
            () = until(first_byte_by) => Err(Failure::FirstByteTimeout),
            () = self.proxy.parties.cut.cancelled() => Err(Failure::Cut),
        }
    }

    /// Sends, and holds a successful head until the first piece of the body is here: an engine sends the head of a stream before it has
    /// done anything for it.
    async fn send(&self, lease: Lease, upstream: Arc<Upstream>, first_byte_by: Option<Instant>) -> Result<Answer, Failure> {
        let proxy = self.proxy;
        let stale = || proxy.parties.metrics.retried(RetryCause::Stale);
        let resend = self.repeatable && self.is_replayable();
        let (head, mut rest) = upstream.send(self.outgoing, resend, stale).await.map_err(Failure::Sending)?.into_parts();
        let mut first = None;
        if head.status.is_success() && !rest.is_end_stream() {
            // Where none comes in time the head goes ahead without it.
            let held = timeout(self.settings().hold_head, rest.frame()).await.ok().flatten();
            first = held.transpose().map_err(Failure::BodyBroke)?;
        }
        Ok(Answer { head, first, rest, upstream, lease, first_byte_by })
    }

    /// Resolves when the replica on which this request waits has been taken out, another one is up, and a retry is allowed, which this pays
    /// for: a request that cannot be sent elsewhere is better off waiting on.
    async fn ejected(&self, replica: &Replica) {
        if !self.repeatable || !self.may_retry() {
            return pending().await;
        }
        let fleet = &self.proxy.parties.fleet;
        let mut changes = fleet.changes();
        loop {
            // One that has left the fleet ends what it has begun, and is out only when its checks fail as any other's.
            let is_out = fleet.view().is_out(replica);
            if is_out && self.is_another(|snapshot, other| snapshot.state(other) == Some(State::Up)) && self.may_spend() {
                return;
            }
            if changes.changed().await.is_err() {
                return pending().await;
            }
        }
    }

    /// What a failure means: why the request may be sent again, if it may, and what the client is told otherwise.
    fn assess(&self, failure: &Failure, record: &Record) -> (Option<RetryCause>, ProxyError) {
        let Some(replica) = self.tried.last() else { return (None, ProxyError::NoReplica) };
        let (kind, why) = match failure {
            Failure::Sending(error @ SendError::Connect(_)) => (UpstreamError::Connect, error.to_string()),
            Failure::Sending(error @ SendError::Broke { .. }) => (UpstreamError::Broke, error.to_string()),
            Failure::BodyBroke(error) => {
                (UpstreamError::Broke, format!("the connection broke before the first byte of the answer's body: {error}"))
            }
            Failure::FirstByteTimeout => (UpstreamError::FirstByteTimeout, "no first byte in time".to_owned()),
            Failure::Ejected => (UpstreamError::Ejected, "it was taken out meanwhile".to_owned()),
            Failure::Cut => return (None, ProxyError::Draining),
        };
        record.metrics().failed(replica, kind);
        let (request_id, name) = (&record.request_id, replica.name());
        tracing::warn!(request_id, replica = name, kind = kind.label(), "request {request_id} failed on replica {name}: {why}");
        match failure {
            Failure::Sending(SendError::Connect(error)) => {
                if is_the_replicas_fault(error) {
                    self.proxy.parties.fleet.report(replica, Outcome::ConnectFailed, &why);
                }
                (Some(RetryCause::Connect), ProxyError::ConnectFailed)
            }
            Failure::Sending(SendError::Broke { written: false, .. }) => (Some(RetryCause::Broke), ProxyError::ReplicaBroke),
            Failure::FirstByteTimeout => (None, ProxyError::FirstByteTimeout(self.settings().first_byte_timeout)),
            Failure::Ejected => (Some(RetryCause::Ejected), ProxyError::ReplicaBroke),
            _ => (self.repeatable.then_some(RetryCause::Broke), ProxyError::ReplicaBroke),
        }
    }
}

/// Reads a busy replica's answer to its end, so that nothing is outstanding there while another replica is tried. `None` where that fails.
async fn keep(answer: Answer, reason: Reason) -> Option<Busy> {
    let Answer { head, mut rest, upstream, lease, .. } = answer;
    let body = timeout(BUSY_PATIENCE, Limited::new(&mut rest, BUSY_BODY).collect()).await.ok()?.ok()?.to_bytes();
    upstream.give_back(&mut rest);
    Some(Busy { head, body, replica: lease.replica().name().to_owned(), reason })
}

/// The replica lives but wants no more work now.
fn is_busy(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

/// Whether an attempt to connect failed at the other end. Of a lack of ports or files here, or of a name that does not resolve just now, every
/// replica would look guilty in turn.
fn is_the_replicas_fault(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
    )
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
