//! Sends spans to a collector: OTLP over HTTP, in protobuf, many spans in one message. It decides nothing of what is traced, and no request waits for it.
//!
//! The SDK of OpenTelemetry has a part that does this, which does not fit: it keeps to itself how many spans it loses, and it works on a thread without the
//! runtime that our connections need. So only its message types are used.

mod endpoint;
mod trouble;

use std::fmt::Display;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::{HeaderMap, Method, StatusCode};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::exchange::Connection;
use crate::resolver::HostNames;
use crate::telemetry::Metrics;
use crate::units::Share;
pub use endpoint::Endpoint;
use trouble::Trouble;

/// Traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where spans go; without it nothing is traced.
    pub endpoint: Option<Endpoint>,
    /// What the router is called there.
    pub service_name: String,
    /// How many of the traces that begin here are recorded.
    pub sample_ratio: Share,
}

impl Default for Settings {
    fn default() -> Self {
        Self { endpoint: None, service_name: "prefix-router".to_owned(), sample_ratio: Share::WHOLE }
    }
}

/// Spans in one message, at most, as most exporters have it: half a megabyte of them.
const BATCH: usize = 512;

/// How long spans are gathered for one message. Long enough to be rare, and short enough for somebody who waits for the trace of his request.
const GATHER: Duration = Duration::from_secs(1);

/// Where collectors listen for OTLP over gRPC, which is not spoken here.
const GRPC_PORT: u16 = 4_317;

/// How long a collector may take for a message.
const PATIENCE: Duration = Duration::from_secs(10);

/// Before each further try of a message that was not taken. The queue fills meanwhile.
const PAUSES: [Duration; 4] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8)];

/// The longest pause that a collector may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How long the end of the process may wait for the last spans to be taken.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// What is read of an answer.
const MOST_OF_AN_ANSWER: usize = 64 << 10;

/// Why spans were not taken.
struct Refusal {
    why: String,
    /// Whether it makes sense to send them again, and in which time the collector wants that.
    again: Option<Duration>,
}

impl Refusal {
    /// It may be otherwise in a moment.
    fn for_now(why: impl ToString) -> Self {
        Self { why: why.to_string(), again: Some(Duration::ZERO) }
    }

    fn for_good(why: impl ToString) -> Self {
        Self { why: why.to_string(), again: None }
    }
}

/// Sends what comes out of a queue.
pub struct Exporter {
    endpoint: Endpoint,
    names: HostNames,
    resource: Resource,
    spans: mpsc::Receiver<Span>,
    metrics: Arc<Metrics>,
    /// Kept open between messages.
    connection: Option<Connection>,
    /// Spans of the message under way.
    in_hand: u64,
    trouble: Trouble,
}

impl Exporter {
    /// One that sends `spans` to `endpoint`, as those of a router called `service_name`.
    pub fn new(endpoint: Endpoint, service_name: &str, names: HostNames, spans: mpsc::Receiver<Span>, metrics: Arc<Metrics>) -> Self {
        let attribute = |key: &str, value: String| KeyValue {
            key: key.to_owned(),
            value: Some(AnyValue { value: Some(Value::StringValue(value)) }),
            ..KeyValue::default()
        };
        // Tells this process from others, and from itself before a restart.
        let instance = format!("{:032x}", rand::random::<u128>());
        let attributes = vec![
            attribute("service.name", service_name.to_owned()),
            attribute("service.version", env!("CARGO_PKG_VERSION").to_owned()),
            attribute("service.instance.id", instance),
        ];
        let resource = Resource { attributes, ..Resource::default() };
        let trouble = Trouble::new(endpoint.to_string(), metrics.lost_spans());
        Self { endpoint, names, resource, spans, metrics, connection: None, in_hand: 0, trouble }
    }

    /// Sends until `stop`, and then what is left, as far as that goes in good time.
    pub async fn run(mut self, stop: CancellationToken) {
        let url = self.endpoint.to_string();
        let late = async {
            stop.cancelled().await;
            sleep(LAST_WORDS).await;
        };
        tokio::select! {
            () = self.work(&stop) => self.trouble.end(self.metrics.lost_spans()),
            () = late => {
                let lost = self.in_hand + self.spans.len() as u64;
                self.metrics.sent_spans(0, lost);
                tracing::warn!(url, spans = lost, "the last spans are lost, {lost} of them: {url} did not take them within {LAST_WORDS:?}");
            }
        }
    }

    async fn work(&mut self, stop: &CancellationToken) {
        while let Some(batch) = self.gather(stop).await {
            self.in_hand = batch.len() as u64;
            self.deliver(batch, stop).await;
            self.in_hand = 0;
        }
    }

    /// The spans of the next message; `None` when there will be no more.
    async fn gather(&mut self, stop: &CancellationToken) -> Option<Vec<Span>> {
        let (mut batch, mut until) = (Vec::new(), None);
        while batch.len() < BATCH {
            let room = BATCH - batch.len();
            tokio::select! {
                biased;
                count = self.spans.recv_many(&mut batch, room) => match count {
                    0 => break,
                    _ => drop(until.get_or_insert_with(|| Instant::now() + GATHER)),
                },
                () = stop.cancelled(), if !self.spans.is_closed() => self.spans.close(),
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => break,
            }
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// Sends one message until it is taken, or there is no sense in it any more.
    async fn deliver(&mut self, spans: Vec<Span>, stop: &CancellationToken) {
        let count = spans.len() as u64;
        let body = self.message(spans);
        let mut pauses = PAUSES.iter();
        loop {
            let is_last = stop.is_cancelled();
            let sent = timeout(PATIENCE, self.send(body.clone())).await;
            let Refusal { why, again } = match sent.unwrap_or_else(|_| Err(Refusal::for_now(format!("no answer within {PATIENCE:?}")))) {
                Ok(None) => {
                    self.metrics.sent_spans(count, 0);
                    return self.trouble.is_over(self.metrics.lost_spans());
                }
                Ok(Some((rejected, why))) => {
                    let rejected = rejected.min(count);
                    self.metrics.sent_spans(count - rejected, rejected);
                    return self.trouble.tell(&why, self.metrics.lost_spans());
                }
                Err(refusal) => refusal,
            };
            match again.zip(pauses.next()).filter(|_| !is_last) {
                Some((asked, &pause)) => {
                    self.trouble.tell(&why, self.metrics.lost_spans());
                    let _ = timeout(pause.max(asked), stop.cancelled()).await;
                }
                None => {
                    self.metrics.sent_spans(0, count);
                    return self.trouble.tell(&why, self.metrics.lost_spans());
                }
            }
        }
    }

    fn message(&self, spans: Vec<Span>) -> Bytes {
        let scope = InstrumentationScope {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, schema_url: String::new() }];
        let resource_spans = vec![ResourceSpans { resource: Some(self.resource.clone()), scope_spans, schema_url: String::new() }];
        ExportTraceServiceRequest { resource_spans }.encode_to_vec().into()
    }

    /// Sends a message once. Of one that was taken, how many of its spans were not, and why, where there are such.
    async fn send(&mut self, body: Bytes) -> Result<Option<(u64, String)>, Refusal> {
        let connection = match self.connection.take().filter(Connection::is_surely_open) {
            Some(connection) => connection,
            None => Connection::new(self.connect().await?),
        };
        let head = self.endpoint.head(body.len()).into();
        let answer = connection.exchange(&Method::POST, head, body).await.map_err(|(error, _)| self.no_answer(&error))?;
        let (head, mut body) = answer.into_parts();
        // What an answer says that is too long, or breaks off, is nothing; its status counts.
        let text = Limited::new(&mut body, MOST_OF_AN_ANSWER).collect().await.map(|whole| whole.to_bytes());
        self.connection = body.finish();
        judge(head.status, &head.headers, text.ok().as_deref())
    }

    fn no_answer(&self, error: &impl Display) -> Refusal {
        let hint = if self.endpoint.port() == GRPC_PORT { "; 4317 is the port for gRPC, OTLP over HTTP is 4318 in general" } else { "" };
        Refusal::for_now(format!("{error}{hint}"))
    }

    /// A connection to the first address that takes one.
    async fn connect(&self) -> Result<TcpStream, Refusal> {
        let (host, port) = (self.endpoint.host(), self.endpoint.port());
        let addresses = match host.parse::<IpAddr>() {
            Ok(literal) => vec![literal],
            Err(_) => {
                self.names.get(host).addresses().await.map_err(|error| Refusal::for_now(format!("{host} does not resolve: {error}")))?
            }
        };
        let mut refusal = Refusal::for_now(format!("{host} has no address"));
        for address in addresses {
            match first_of(PATIENCE / 4, TcpStream::connect(SocketAddr::new(address, port))).await {
                Ok(stream) => return Ok(stream),
                Err(error) => refusal = Refusal::for_now(format!("cannot connect to {address}, port {port}: {error}")),
            }
        }
        Err(refusal)
    }
}

/// A connection, if it is there in time: of several addresses one that is silent must not take all of it.
async fn first_of(limit: Duration, connecting: impl Future<Output = io::Result<TcpStream>>) -> io::Result<TcpStream> {
    timeout(limit, connecting).await.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")))
}

/// What an answer means: the spans that were not taken of those sent, or why none was. `body` is `None` where it is not whole.
fn judge(status: StatusCode, headers: &HeaderMap, body: Option<&[u8]>) -> Result<Option<(u64, String)>, Refusal> {
    let field = |name| headers.get(name).and_then(|value| value.to_str().ok());
    match status.as_u16() {
        200..300 => {}
        // Those of which OTLP says so.
        429 | 502 | 503 | 504 => {
            let asked = field(RETRY_AFTER).and_then(|text| text.trim().parse().ok()).map_or(Duration::ZERO, Duration::from_secs);
            return Err(Refusal { why: format!("it answers {status}"), again: Some(asked.min(LONGEST_PAUSE)) });
        }
        404 | 405 => return Err(Refusal::for_good(format!("it answers {status}: it takes no OTLP over HTTP here"))),
        _ => return Err(Refusal::for_good(format!("it answers {status}"))),
    }
    if field(CONTENT_TYPE).is_some_and(|kind| kind.starts_with("application/json")) {
        // Not what was asked for, but from one who has understood.
        return Ok(None);
    }
    let answer = body.and_then(|body| ExportTraceServiceResponse::decode(body).ok());
    let answer = answer
        .ok_or_else(|| Refusal::for_good(format!("it answers {status} with something that is not OTLP: another server listens there")))?;
    let rejected = answer.partial_success.filter(|partial| partial.rejected_spans > 0);
    // The text is somebody else's, and goes into the log: it is quoted, and short.
    let why = |text: String| format!("it rejects spans, saying {:?}", text.chars().take(200).collect::<String>());
    Ok(rejected.map(|partial| (partial.rejected_spans.unsigned_abs(), why(partial.error_message))))
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;

    use super::*;

    /// What an answer comes to: the spans rejected, or whether to send again, and after how many seconds.
    fn check(status: u16, fields: &[(&'static str, &str)], body: Option<&[u8]>, expected: Result<u64, Option<u64>>) {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.insert(*name, value.parse().expect("a value"));
        }
        let judged = judge(StatusCode::from_u16(status).expect("a status"), &headers, body);
        let judged =
            judged.map(|rejected| rejected.map_or(0, |(count, _)| count)).map_err(|refusal| refusal.again.map(|time| time.as_secs()));
        assert_eq!(judged, expected, "{status} {fields:?} {body:?}");
    }

    #[test]
    fn answers() {
        let partial = |rejected_spans| {
            let partial_success = Some(ExportTracePartialSuccess { rejected_spans, error_message: "too\nold".to_owned() });
            ExportTraceServiceResponse { partial_success }.encode_to_vec()
        };
        check(200, &[], Some(b""), Ok(0));
        check(202, &[("content-type", "application/x-protobuf")], Some(&partial(0)), Ok(0));
        check(200, &[], Some(&partial(3)), Ok(3));
        check(200, &[("content-type", "application/json; charset=utf-8")], Some(b"{}"), Ok(0));
        check(200, &[("content-type", "text/html")], Some(b"<html></html>"), Err(None));
        check(200, &[], None, Err(None));
        check(301, &[], Some(b""), Err(None));
        check(400, &[], Some(b""), Err(None));
        check(404, &[], Some(b""), Err(None));
        check(500, &[], Some(b""), Err(None));
        check(429, &[("retry-after", "7")], Some(b""), Err(Some(7)));
        check(503, &[("retry-after", "86400")], None, Err(Some(30)));
        check(503, &[("retry-after", "soon")], None, Err(Some(0)));
    }
}
