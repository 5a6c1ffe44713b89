//! Sends a request to a chosen replica. Until the first byte of an answer's body is here, a replica that fails is replaced by another.
//!
//! After that byte nothing is sent again, ever: what follows is `stream`'s.

use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::time::{Instant, sleep, timeout};

use super::admission::{Caller, Chosen, Slot};
use super::answer::{Answer, Busy, Patience, is_busy};
use super::error::ProxyError;
use super::{Proxy, Rules, Settings, at_once};
use crate::exchange::Broken;
use crate::fleet::{Outcome, Replica, Snapshot, State};
use crate::request::{Ask, Surface};
use crate::routing::{Aim, Candidates};
use crate::telemetry::{Record, RetryCause, UpstreamError};
use crate::upstream::{Outgoing, SendError, Upstream};

/// What a request that could be forwarded comes to.
pub(super) enum Forwarded {
    Answer(Box<Answer>, Slot),
    /// Nobody answered better.
    Busy(Busy),
}

/// Why a try brought no answer.
enum Failure {
    Sending(SendError),
    /// The head came, the body did not.
    BodyBroke(Broken),
    /// The replica was taken out meanwhile, and another one can be tried.
    Ejected,
    FirstByteTimeout(Patience),
    /// The router stops.
    Cut,
}

/// Before each look whether a replica is still there.
const DEATH_CHECKS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(50), Duration::from_millis(200)];

/// How long one who waits on a lost replica pauses before it asks for a retry again.
const BUDGET_PAUSE: Duration = Duration::from_millis(250);

/// One request on its way to an answer.
pub(super) struct Forward<'a> {
    proxy: &'a Proxy,
    rules: &'a Rules,
    outgoing: &'a Outgoing,
    ask: &'a Ask,
    aim: Aim,
    surface: Surface,
    /// Whether sending it again does no harm even where a replica has seen it.
    repeatable: bool,
    /// The client's own limit, from its request's head to the first byte.
    clients: Option<Patience>,
    tried: Vec<Arc<Replica>>,
    /// Since when it is on its way: where it has to wait again, it does so as one that came then.
    arrived: std::time::Instant,
}

impl<'a> Forward<'a> {
    pub(super) fn new(
        proxy: &'a Proxy,
        rules: &'a Rules,
        outgoing: &'a Outgoing,
        ask: &'a Ask,
        aim: Aim,
        surface: Surface,
        clients: Option<Patience>,
    ) -> Self {
        let repeatable = surface.is_inference() || outgoing.method.is_safe();
        Self { proxy, rules, outgoing, ask, aim, surface, repeatable, clients, tried: Vec::new(), arrived: now() }
    }

    /// Brings the answer of the first replica that gives one.
    pub(super) async fn run(mut self, record: &mut Record) -> Result<Forwarded, ProxyError> {
        self.proxy.budget.deposit(self.settings().retry_budget, now());
        let mut chosen = self.choose(record).await?.ok_or(ProxyError::NoReplica)?;
        let mut busy = None;
        loop {
            self.note(&mut chosen, record);
            let Chosen { slot, reason, trial, upstream, .. } = chosen;
            let result = self.attempt(Arc::clone(&upstream)).await;
            self.report(&result);
            // What came of it is known before anybody else goes there.
            drop(trial);
            let (cause, error) = match result {
                Ok(answer) if answer.is_busy() => {
                    record.metrics().failed(slot.replica(), UpstreamError::Busy);
                    if !self.repeatable || !self.may_retry() || !self.is_another(|_, _| true) {
                        return Ok(Forwarded::Answer(Box::new(answer), slot));
                    }
                    busy = answer.keep(slot, reason).await.or(busy);
                    (Some(RetryCause::Busy), ProxyError::ReplicaBroke)
                }
                Ok(answer) => {
                    if answer.head.status.is_server_error() {
                        record.metrics().failed(slot.replica(), UpstreamError::Status5xx);
                    }
                    return Ok(Forwarded::Answer(Box::new(answer), slot));
                }
                Err(failure) => {
                    drop(slot);
                    self.assess(&failure, record)
                }
            };
            let next = match cause {
                Some(cause) => self.next(cause, &upstream, record).await,
                None => Ok(None),
            };
            // One that may not wait for another replica is told that, unless a replica said better what is wrong.
            let (next, error) = next.map_or_else(|refused| (None, refused), |next| (next, error));
            match next {
                Some(next) => chosen = next,
                None => {
                    let busy = busy.ok_or(error)?;
                    (record.replica, record.reason) = (Some(Arc::clone(&busy.replica)), Some(busy.reason));
                    return Ok(Forwarded::Busy(busy));
                }
            }
        }
    }

    /// Picks a replica that was not tried yet, on the picture of the moment when there is room.
    async fn choose(&self, record: &mut Record) -> Result<Option<Chosen>, ProxyError> {
        let caller = Caller {
            ask: self.ask,
            aim: &self.aim,
            tried: &self.tried,
            chooser: &self.rules.chooser,
            settings: &self.rules.admission,
            size: self.outgoing.body.len(),
            arrived: self.arrived,
            clients: self.clients,
        };
        self.proxy.admission.admit(caller, &self.proxy.parties.cut, record).await
    }

    /// The next replica to try after a failure of `upstream`'s, where settings and budget allow one.
    async fn next(&self, cause: RetryCause, upstream: &Upstream, record: &mut Record) -> Result<Option<Chosen>, ProxyError> {
        if !self.may_retry() || !self.is_another(|_, _| true) {
            return Ok(None);
        }
        // What asks a living fleet for more has to be paid for; `ejected` has done so before it gave a replica up. What died with its replica
        // is asked of nobody any more: sending it again adds no load.
        let is_free = match cause {
            RetryCause::Ejected => true,
            RetryCause::Busy | RetryCause::Stale => false,
            RetryCause::Connect | RetryCause::Broke => self.is_lost(upstream.replica()),
        };
        if !is_free && !self.may_spend() && (cause == RetryCause::Busy || !self.has_died(upstream).await) {
            record.metrics().refused_retry();
            return Ok(None);
        }
        let Some(chosen) = self.choose(record).await? else { return Ok(None) };
        record.metrics().retried(cause);
        record.failed_on(cause);
        Ok(Some(chosen))
    }

    /// Whether a replica is out while another one is up.
    fn is_lost(&self, replica: &Replica) -> bool {
        self.proxy.parties.fleet.view().is_out(replica) && self.is_another(|view, other| view.state(other) == Some(State::Up))
    }

    /// Whether a replica that broke a request takes no connections either. Asked where it matters, and where nobody has noticed yet; more than
    /// once, as what dies closes one thing after another.
    async fn has_died(&self, upstream: &Upstream) -> bool {
        for pause in DEATH_CHECKS {
            sleep(pause).await;
            if self.is_lost(upstream.replica()) {
                return true;
            }
            if let Err(SendError::Connect(error)) = upstream.try_connect().await
                && is_the_replicas_fault(&error)
            {
                self.proxy.parties.fleet.report(upstream.replica(), Outcome::ConnectFailed, &error.to_string());
                return self.is_lost(upstream.replica());
            }
        }
        false
    }

    fn note(&mut self, chosen: &mut Chosen, record: &mut Record) {
        let (replica, overlap) = (chosen.slot.replica(), chosen.slot.overlap());
        record.is_sent(replica, chosen.reason, chosen.instead_of.take(), overlap);
        if let Some(trace) = &mut record.trace {
            trace.chosen(overlap);
        }
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
        let is_in_time = self.clients.is_none_or(|clients| Instant::now() < clients.by);
        self.tried.len() <= self.settings().retries as usize && self.is_replayable() && is_in_time
    }

    /// Whether the body may be sent more than once.
    fn is_replayable(&self) -> bool {
        self.outgoing.body.len() <= self.settings().replay_buffer
    }

    /// Whether a replica that was not tried yet, and is `good`, could be chosen.
    fn is_another(&self, good: impl Fn(&Snapshot, &Replica) -> bool) -> bool {
        self.is_another_below(None, good)
    }

    /// The same among those with fewer than `limit` in flight.
    fn is_another_below(&self, limit: Option<u64>, good: impl Fn(&Snapshot, &Replica) -> bool) -> bool {
        let view = self.proxy.parties.fleet.view();
        let pool = view.pool(self.ask.model.as_deref());
        pool.is_some_and(|pool| Candidates::new(pool, &self.tried, now()).below(limit).iter().any(|other| good(&view, other)))
    }

    /// One try, from sending to the first byte.
    async fn attempt(&self, upstream: Arc<Upstream>) -> Result<Answer, Failure> {
        let patience = self.patience();
        let replica = Arc::clone(upstream.replica());
        tokio::select! {
            biased;
            answer = self.send(upstream, patience) => answer,
            () = self.ejected(&replica) => Err(Failure::Ejected),
            over = Patience::over(patience) => Err(Failure::FirstByteTimeout(over)),
            () = self.proxy.parties.cut.cancelled() => Err(Failure::Cut),
        }
    }

    /// Until when the first byte of a try that begins now has to be here: as the configuration has it, or the client, whoever is first.
    fn patience(&self) -> Option<Patience> {
        let limit = self.settings().first_byte_timeout;
        let own = (!limit.is_zero()).then(|| Patience { by: Instant::now() + limit, limit, is_clients: false });
        own.into_iter().chain(self.clients).min_by_key(|patience| patience.by)
    }

    /// Sends, and holds the head until the first piece of the body is here: an engine sends the head of a stream before it has done anything for it,
    /// of an error it matters whether it has a body, and a head whose body breaks off at once is no answer. (Of a busy replica the head says it all.)
    async fn send(&self, upstream: Arc<Upstream>, patience: Option<Patience>) -> Result<Answer, Failure> {
        let stale = || self.proxy.parties.metrics.retried(RetryCause::Stale);
        let resend = self.repeatable && self.is_replayable();
        let (head, mut rest) = upstream.send(self.outgoing, resend, stale).await.map_err(Failure::Sending)?.into_parts();
        let (mut first, mut is_over) = (None, rest.is_end_stream());
        if !is_over && !is_busy(head.status) {
            let mut frame = pin!(rest.frame());
            let held = match at_once(frame.as_mut()).await {
                Poll::Ready(held) => Ok(held),
                Poll::Pending => timeout(self.settings().hold_head, frame).await,
            };
            // Where none comes in time the head goes ahead without it.
            if let Ok(held) = held {
                first = held.transpose().map_err(Failure::BodyBroke)?;
                is_over = first.is_none();
            }
        }
        let is_good = head.status.as_u16() < 400 && self.surface.reaches_engine();
        Ok(Answer { head, first, rest, is_over, is_good, upstream, patience })
    }

    /// Tells the fleet what a try says of its replica.
    fn report(&self, result: &Result<Answer, Failure>) {
        let (fleet, Some(replica)) = (&self.proxy.parties.fleet, self.tried.last()) else { return };
        match result {
            Ok(answer) if answer.is_busy() => {
                fleet.report(replica, Outcome::Busy(answer.retry_after()), "it is busy");
            }
            Ok(answer) if answer.is_bare_failure() => {
                fleet.report(replica, Outcome::ServerError, &format!("too many requests failed, the last with {}", answer.head.status));
            }
            Ok(answer) if answer.is_good && answer.has_begun() => fleet.answered(replica),
            Ok(_) | Err(Failure::Ejected | Failure::Cut | Failure::FirstByteTimeout(Patience { is_clients: true, .. })) => {}
            Err(Failure::Sending(SendError::Connect(error))) if is_the_replicas_fault(error) => {
                fleet.report(replica, Outcome::ConnectFailed, &error.to_string());
            }
            Err(Failure::Sending(SendError::Connect(_))) => {}
            Err(Failure::Sending(SendError::Broke { .. }) | Failure::BodyBroke(_)) => {
                fleet.report(replica, Outcome::Broke, "it broke too many requests before the first byte");
            }
            Err(Failure::FirstByteTimeout(_)) => fleet.report(replica, Outcome::Broke, "too many requests had no first byte in time"),
        }
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
            // It keeps its place there until there is another one.
            let is_lost = self.is_lost(replica) && self.is_another_below(self.rules.admission.limit(), |_, _| true);
            if is_lost && self.may_spend() {
                return;
            }
            // The budget fills, and room comes, while nothing changes.
            let changed = timeout(if fleet.view().is_out(replica) { BUDGET_PAUSE } else { Duration::MAX }, changes.changed()).await;
            if changed.is_ok_and(|changed| changed.is_err()) {
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
            Failure::FirstByteTimeout(over) => (over.kind(), "no first byte in time".to_owned()),
            Failure::Ejected => (UpstreamError::Ejected, "it was taken out meanwhile".to_owned()),
            Failure::Cut => return (None, ProxyError::Draining),
        };
        record.metrics().failed(replica, kind);
        let (request_id, name) = (&*record.request_id, replica.name());
        tracing::warn!(request_id, replica = name, kind = kind.label(), "request {request_id} failed on replica {name}: {why}");
        match failure {
            Failure::Sending(SendError::Connect(_)) => (Some(RetryCause::Connect), ProxyError::ConnectFailed),
            Failure::Sending(SendError::Broke { written: false, .. }) => (Some(RetryCause::Broke), ProxyError::ReplicaBroke),
            Failure::FirstByteTimeout(over) => (None, over.error()),
            Failure::Ejected => (Some(RetryCause::Ejected), ProxyError::ReplicaBroke),
            _ => (self.repeatable.then_some(RetryCause::Broke), ProxyError::ReplicaBroke),
        }
    }
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
