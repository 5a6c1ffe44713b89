//! The request path. `Proxy::handle` is one request's story: judge the head, read the body, ask where it belongs, forward it, pass the
//! answer on.
//!
//! It holds no policy: what a request asks is `request`'s, where it goes is `routing`'s, who is up is `fleet`'s.

mod admission;
mod answer;
mod body;
mod boundaries;
mod budget;
mod buffers;
mod error;
mod events;
mod explain;
mod forward;
mod headers;
mod local;
mod response;
mod stream;
mod usage;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::live::LiveFleet;
use crate::request::{self, Ask, Dialect, Key, Refusal, Surface};
use crate::routing::{Aim, Chooser};
use crate::telemetry::{Limit, Metrics, Record, Tracer};
use crate::upstream::Outgoing;
pub use budget::RetryBudget;
pub use explain::{Described, Explained, Unexplained};
pub use response::{Body, Response};

use admission::{Admission, Slot};
use answer::{Answer, Patience};
use body::Inbound;
use boundaries::Boundaries;
use budget::Budget;
use buffers::Buffers;
use error::ProxyError;
use forward::{Forward, Forwarded};

const REPLICA: HeaderName = HeaderName::from_static("x-prefix-router-replica");
const REASON: HeaderName = HeaderName::from_static("x-prefix-router-reason");

/// The request path: retries, timeouts, limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether answers name the replica and the reason of its choice.
    pub response_headers: bool,
    /// Paths that are exposed besides the known ones; one that ends in `*` stands for all that begin so.
    pub expose_paths: Vec<String>,
    /// Further replicas tried, at most, before the first byte.
    pub retries: u32,
    /// How many retries a living fleet may be asked for. (What died with its replica is sent again in any case.)
    pub retry_budget: RetryBudget,
    /// A larger body is not sent twice.
    pub replay_buffer: usize,
    /// A larger body is refused.
    pub max_body: usize,
    /// Larger headers are refused.
    pub max_header_bytes: usize,
    /// Further header fields are refused.
    pub max_headers: usize,
    /// Bytes that the bodies of all requests together may hold; not below `max_body`.
    pub max_buffered_bytes: usize,
    /// How long a body may wait for its share of these.
    pub buffer_timeout: Duration,
    /// Time between two pieces of a request's body; zero: no limit.
    pub body_timeout: Duration,
    /// Time for all of a request's body; zero: no limit.
    pub body_total_timeout: Duration,
    /// Time until the first byte of an answer's body; zero: no limit.
    pub first_byte_timeout: Duration,
    /// Time between two pieces of an answer's body; zero: no limit.
    pub idle_timeout: Duration,
    /// How long the head of an answer is held back for its first body byte.
    pub hold_head: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            response_headers: true,
            expose_paths: Vec::new(),
            retries: 2,
            retry_budget: RetryBudget { percent: 20, floor: 3 },
            replay_buffer: 16 << 20,
            max_body: 64 << 20,
            max_header_bytes: 64 << 10,
            max_headers: 100,
            max_buffered_bytes: 1 << 30,
            buffer_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            body_total_timeout: Duration::from_secs(600),
            first_byte_timeout: Duration::from_secs(600),
            idle_timeout: Duration::from_secs(300),
            hold_head: Duration::from_secs(30),
        }
    }
}

/// What the request path needs of the rest.
pub struct Parties {
    /// Who can serve, and how to reach them.
    pub fleet: Arc<LiveFleet>,
    /// Where counts go.
    pub metrics: Arc<Metrics>,
    /// Where spans go, if they go anywhere.
    pub tracer: Option<Arc<Tracer>>,
    /// Turns true when the router is to stop.
    pub draining: watch::Receiver<bool>,
    /// Cancelled when what is still in flight is to be cut off.
    pub cut: CancellationToken,
    /// Where metrics are, for those who ask here.
    pub admin: SocketAddr,
}

/// What a request goes by, from its head to its end, whatever is reloaded meanwhile.
pub struct Rules {
    /// Retries, timeouts, limits.
    pub settings: Settings,
    /// What makes the key.
    pub key: request::Settings,
    /// Who is chosen.
    pub chooser: Arc<Chooser>,
    /// How much runs at one time, and who may wait for it.
    pub admission: crate::admission::Settings,
}

/// The traffic port's service.
pub struct Proxy {
    rules: ArcSwap<Rules>,
    parties: Parties,
    budget: Budget,
    admission: Arc<Admission>,
    buffers: Arc<Buffers>,
    boundaries: Boundaries,
}

/// An answer: whole, or a replica's that has begun.
enum Reply {
    Whole(Response),
    Begun(Box<Answer>, Slot),
}

impl Proxy {
    /// A service over the given parties.
    pub fn new(rules: Rules, parties: Parties) -> Arc<Self> {
        let budget = Budget::new(rules.settings.retry_budget, Instant::now());
        let admission = Admission::new(Arc::clone(&parties.fleet), Arc::clone(&parties.metrics), rules.admission.clone());
        let buffers = Buffers::new(Arc::clone(&parties.metrics));
        parties.metrics.show_chooser(&rules.chooser);
        let boundaries = Boundaries::default();
        Arc::new(Self { rules: ArcSwap::from_pointee(rules), parties, budget, admission, buffers, boundaries })
    }

    /// What requests that come from now on go by. Those that are under way end by what they began with.
    /// Limits hold for all at once: who waits goes where there is room now, and stays where bounds are lower now.
    pub fn follow(&self, rules: Rules) {
        let admission = rules.admission.clone();
        self.parties.metrics.show_chooser(&rules.chooser);
        self.rules.store(Arc::new(rules));
        self.admission.follow(admission);
    }

    /// Lets those who wait go when the fleet changes. To be run as long as requests are served.
    pub async fn attend_to_waiting(self: Arc<Self>) {
        self.admission.attend().await;
    }

    /// What a key is shown as: nobody can find it out by trying prompts elsewhere, and here all show it alike.
    pub fn masked(&self, key: Key) -> String {
        self.boundaries.masked(key)
    }

    /// What requests that come now go by.
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    /// Answers a request of `client`, whatever its path.
    pub async fn handle(self: Arc<Self>, request: Request<Incoming>, client: SocketAddr) -> Response {
        let rules = self.rules();
        let (head, body) = request.into_parts();
        let request_id = headers::request_id(&head.headers);
        let metrics = Arc::clone(&self.parties.metrics);
        let mut record = Record::new(metrics, rules.chooser.name(), head.method.clone(), head.uri.path(), &request_id);
        record.trace = self.parties.tracer.as_ref().map(|tracer| tracer.begin(&head));
        let dialect = Dialect::of(head.uri.path());
        let mut body = Inbound::new(body, &head.headers);

        let reply = self.answer(&rules, head, &request_id, &mut body, client, &mut record).await;
        let is_head = record.is_head();
        let mut response = match reply {
            Ok(Reply::Begun(answer, slot)) => answer.into_response(slot, &rules.settings, &self.parties, dialect, record),
            Ok(Reply::Whole(response)) => finish(response, record, &rules.settings),
            // It may still listen; its record says that it left.
            Err(error @ ProxyError::ClientGone) => error.response(dialect),
            Err(error) => {
                body.discard();
                if let Some(limit) = error.limit() {
                    self.parties.metrics.hit(limit);
                }
                record.error = Some(error.code());
                finish(error.response(dialect), record, &rules.settings)
            }
        };
        response.headers_mut().entry(headers::REQUEST_ID).or_insert(request_id);
        if is_head { response::without_body(response) } else { response }
    }

    /// From a request's head to who answers it.
    async fn answer(
        &self,
        rules: &Rules,
        head: Parts,
        request_id: &HeaderValue,
        body: &mut Inbound,
        client: SocketAddr,
        record: &mut Record,
    ) -> Result<Reply, ProxyError> {
        let surface = self.judge(&rules.settings, &head, record)?;
        let identifier = headers::identifier(&head.headers)?;
        // Where nobody waits it means nothing here, and passes whatever it is.
        let may_wait = rules.admission.is_on() || rules.admission.holds() && rules.chooser.wants_chunks();
        let priority = if may_wait { headers::priority(&head.headers)? } else { None };
        let patience = headers::timeout(&head.headers)?.map(|limit| Patience::of_client(record.begun(), limit));
        if head.method != Method::OPTIONS
            && let Some(own) = local::answer(self, surface, &head).await
        {
            return own.map(Reply::Whole);
        }

        let bytes = body.read(&rules.settings, &self.buffers).await?;
        record.is_read(bytes.len());
        let target = head.uri.path_and_query().cloned().ok_or(ProxyError::PathNotExposed)?;
        let (mut ask, aim) =
            if head.method == Method::POST { self.read(rules, surface, &bytes, identifier, record) } else { Default::default() };
        ask.priority = priority.unwrap_or(ask.priority);
        if let Some(trace) = &mut record.trace {
            trace.asks(&ask, ask.model.as_deref().is_some_and(|model| self.parties.fleet.view().lists(model)));
        }
        if ask.too_deep {
            self.parties.metrics.hit(Limit::MaxJsonDepth);
        }

        let fields = headers::toward_replica(&head, client, request_id, record.trace.as_deref(), bytes.len());
        let authorization = headers::credentials(&head.headers);
        let outgoing = Outgoing { method: head.method, target, fields, authorization, body: bytes };
        Ok(match Forward::new(self, rules, &outgoing, &ask, aim, surface, patience).run(record).await? {
            Forwarded::Answer(answer, slot) => Reply::Begun(answer, slot),
            Forwarded::Busy(busy) => Reply::Whole(busy.into_response()),
        })
    }

    /// What a body asks, and what it is placed by. Its prompt is read only as far as the strategy wants to know it. It is counted, and told of where it
    /// is news.
    fn read(&self, rules: &Rules, surface: Surface, body: &[u8], identifier: Option<&str>, record: &mut Record) -> (Ask, Aim) {
        let view = self.parties.fleet.view();
        let ask = Ask::read_until(surface, body, identifier, &rules.key, |model, boundary| {
            view.pool(model).is_none_or(|pool| rules.chooser.is_enough(boundary, pool))
        });
        record.prompt_bytes = ask.prompt_bytes;
        let pool = view.pool(ask.model.as_deref());
        record.model = self.parties.metrics.model(ask.model.as_deref(), pool.map(|pool| pool.name()));
        let Some(pool) = pool else { return (ask, Aim::default()) };
        let aim = rules.chooser.aim(&ask, pool);
        if let Aim::ByKey(sight) = &aim {
            self.parties.metrics.aimed(sight);
            record.is_placed_by(sight);
            if !sight.moved.is_empty() {
                self.boundaries.tell(pool.name(), &sight.moved, Instant::now());
            }
        }
        (ask, aim)
    }

    /// What the head alone tells: the surface, or why the request is refused before its body is asked for.
    fn judge(&self, settings: &Settings, head: &Parts, record: &mut Record) -> Result<Surface, ProxyError> {
        let surface = Surface::of(head.uri.path(), &settings.expose_paths).map_err(|refusal| match refusal {
            Refusal::NotExposed => ProxyError::PathNotExposed,
            Refusal::MetricsOnAdmin => ProxyError::MetricsOnAdminPort(self.parties.admin),
        })?;
        record.surface = Some(surface);
        if head.uri.path_and_query().map_or(0, |path| path.as_str().len()) + headers::size(&head.headers) > settings.max_header_bytes {
            return Err(ProxyError::HeadersTooLarge(settings.max_header_bytes));
        }
        if head.headers.len() > settings.max_headers {
            return Err(ProxyError::TooManyHeaders(settings.max_headers));
        }
        if headers::wants_websocket(&head.headers) {
            return Err(ProxyError::UpgradeUnsupported);
        }
        match surface.methods() {
            Some(methods) if head.method != Method::OPTIONS && !methods.contains(&head.method.as_str()) => {
                Err(ProxyError::MethodNotAllowed { method: head.method.clone(), allowed: methods.join(", ") })
            }
            // It asks for a tunnel, and nothing that a replica says to it could be passed on.
            _ if head.method == Method::CONNECT => Err(ProxyError::MethodNotAllowed {
                method: Method::CONNECT,
                allowed: "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS".to_owned(),
            }),
            _ => Ok(surface),
        }
    }
}

/// What a future brings without any waiting. Asked before a timer is made for it: mostly there is nothing to wait for, and no clock to read.
async fn at_once<F: Future>(mut coming: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(coming.as_mut().poll(cx))).await
}

/// Ends the record of an answer that the router made itself and that is all there.
fn finish(mut response: Response, mut record: Record, settings: &Settings) -> Response {
    record.status = Some(response.status());
    // Not a first byte in the sense of the metrics: those time replicas.
    record.response_bytes = if record.is_head() { 0 } else { response.body().size_hint().lower() };
    name_choice(&mut response, &record, settings);
    record.complete();
    response
}

/// Tells the client which replica was chosen (or tried last) and why.
fn name_choice<B>(response: &mut hyper::Response<B>, record: &Record, settings: &Settings) {
    let (Some(replica), Some(reason), true) = (&record.replica, record.reason, settings.response_headers) else { return };
    // Set rather than added: a replica may be a router itself.
    if let Ok(replica) = HeaderValue::from_str(replica.name()) {
        response.headers_mut().insert(REPLICA, replica);
    }
    response.headers_mut().insert(REASON, HeaderValue::from_static(reason.label()));
}
