//! Traces: who is sampled, and each request's place in its trace. What a span says is [`span`]'s; the header's form is [`context`]'s.
//!
//! Spans are put into a queue and nothing waits for it: where it is full they are lost, and counted. Nothing here knows who takes them out.

mod context;
mod span;

use std::sync::Arc;
use std::time::SystemTime;

use hyper::HeaderMap;
use hyper::header::{HOST, HeaderName};
use hyper::http::request::Parts;
use opentelemetry_proto::tonic::trace::v1::Span;
use rand::RngExt;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::metrics::Metrics;
use crate::units::Share;
use context::Context;
pub use span::Trace;

/// Says which trace a request belongs to, and which span of it is its client's.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// What others keep with a trace. It means something beside its `traceparent` alone.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Spans that wait to be sent, at most: some 4 MB of them, and half a minute of 140 requests per second while a collector restarts.
const ROOM: usize = 4_096;

/// A longer `tracestate` is passed on, but not kept: the least that everybody has to pass on (W3C trace context, 3.3.1.5).
const MOST_OF_A_STATE: usize = 512;

/// Makes the traces of requests.
pub struct Tracer {
    /// Of 2^63, the numbers of traces that are sampled.
    sampled: u64,
    spans: mpsc::Sender<Span>,
    metrics: Arc<Metrics>,
}

impl Tracer {
    /// One that samples this share of the traces that begin here, and where its spans come out.
    pub fn new(sampled: Share, metrics: Arc<Metrics>) -> (Arc<Self>, mpsc::Receiver<Span>) {
        let (spans, queue) = mpsc::channel(ROOM);
        let sampled = (u128::from(sampled.millionths()) << 63) / 1_000_000;
        (Arc::new(Self { sampled: sampled as u64, spans, metrics }), queue)
    }

    /// A request's place: below its client's span where it names one, in the client's trace, which is sampled if the client says so; else in a trace that
    /// begins here.
    pub fn begin(self: &Arc<Self>, head: &Parts) -> Box<Trace> {
        let mut rng = rand::rng();
        let span = rng.random();
        let parent = parent(&head.headers);
        let context = match parent {
            Some(parent) => parent.child(span),
            None => {
                let trace: u128 = rng.random();
                // By the lower half, as all do who sample by a trace's number: their shares of the same traces are then the same ones.
                Context::root(trace, span, (trace as u64) >> 1 < self.sampled)
            }
        };
        let state = if parent.is_some() && context.is_sampled() { state(&head.headers) } else { String::new() };
        let server = context.is_sampled().then(|| server(head)).flatten();
        Box::new(Trace::new(Arc::clone(self), context, parent.map(|parent| parent.span), state, server, SystemTime::now()))
    }

    /// Queues a span, if there is room.
    fn end(&self, span: Span) {
        match self.spans.try_send(span) {
            Ok(()) => {}
            // At the very end of the process nobody takes spans any more, which comes to the same.
            Err(TrySendError::Full(_) | TrySendError::Closed(_)) => self.metrics.dropped_span(),
        }
    }
}

/// The client's span, if it names one. Who names several names none.
fn parent(headers: &HeaderMap) -> Option<Context> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let context = Context::parse(values.next()?.as_bytes())?;
    values.next().is_none().then_some(context)
}

/// What others keep with the trace, in one line; nothing where that is too long.
fn state(headers: &HeaderMap) -> String {
    let lists: Vec<&str> = headers.get_all(TRACESTATE).iter().filter_map(|list| list.to_str().ok()).collect();
    let state = lists.join(",");
    if state.len() > MOST_OF_A_STATE { String::new() } else { state }
}

/// The host and the port that the client asked for; a longer one than a name may be is no name.
fn server(head: &Parts) -> Option<(String, Option<u16>)> {
    let of_header = || head.headers.get(HOST)?.to_str().ok()?.parse().ok();
    let authority = head.uri.authority().cloned().or_else(of_header)?;
    let host = authority.host().trim_matches(['[', ']']);
    (host.len() <= MOST_OF_A_HOST).then(|| (host.to_owned(), authority.port_u16()))
}

/// Bytes of a name in the DNS, at most.
const MOST_OF_A_HOST: usize = 255;

#[cfg(test)]
mod tests {
    use hyper::Request;
    use hyper::header::HeaderValue;
    use opentelemetry_proto::tonic::common::v1::any_value::Value;

    use super::*;
    use crate::telemetry::Record;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn tracer(share: f64) -> (Arc<Tracer>, mpsc::Receiver<Span>, Arc<Metrics>) {
        let metrics = Metrics::new(&Default::default()).expect("metrics");
        let (tracer, spans) = Tracer::new(Share::new(share).expect("a share"), Arc::clone(&metrics));
        (tracer, spans, metrics)
    }

    fn head(fields: &[(&str, &str)]) -> Parts {
        let request = fields.iter().fold(Request::get("/v1/models"), |request, (name, value)| request.header(*name, *value));
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn one_parent_is_a_parent() {
        let (tracer, ..) = tracer(0.0);
        let is_continued = |fields: &[(&str, &str)]| tracer.begin(&head(fields)).traceparent().starts_with(&PARENT[..36]);
        assert!(is_continued(&[("traceparent", PARENT)]));
        assert!(!is_continued(&[]));
        assert!(!is_continued(&[("traceparent", PARENT), ("traceparent", PARENT)]));
        assert!(!is_continued(&[("traceparent", "00-1-2-3")]));
    }

    #[test]
    fn a_share_of_those_that_begin_here_is_sampled() {
        for (share, expected) in [(0.0, 0..=0), (0.25, 1_500..=2_500), (1.0, 8_000..=8_000)] {
            let (tracer, ..) = tracer(share);
            let sampled = (0..8_000).filter(|_| tracer.begin(&head(&[])).traceparent().ends_with("-01")).count();
            assert!(expected.contains(&sampled), "{share}: {sampled}");
            let (yes, no) = (head(&[("traceparent", PARENT)]), head(&[("traceparent", &PARENT.replace("-01", "-00"))]));
            assert!(tracer.begin(&yes).traceparent().ends_with("-01"), "the client's word counts");
            assert!(tracer.begin(&no).traceparent().ends_with("-00"), "the client's word counts");
        }
    }

    #[test]
    fn a_queue_that_is_full_loses_spans_and_counts_them() {
        let (tracer, mut spans, metrics) = tracer(1.0);
        for _ in 0..ROOM + 7 {
            let mut record = Record::new(
                Arc::clone(&metrics),
                crate::routing::StrategyName::PrefixAware,
                hyper::Method::GET,
                "/",
                &HeaderValue::from_static("id"),
            );
            record.trace = Some(tracer.begin(&head(&[])));
        }
        assert_eq!(metrics.lost_spans(), 7);
        assert_eq!(spans.len(), ROOM);
        let span = spans.try_recv().expect("a span");
        let status =
            span.attributes.iter().find(|attribute| attribute.key == "http.response.status_code").and_then(|found| found.value.clone());
        assert_eq!(status.and_then(|status| status.value), Some(Value::IntValue(499)), "nobody was answered");
    }

    #[test]
    fn what_the_client_asked_for_and_what_others_keep() {
        let authority = |host: &str| server(&head(&[("host", host)]));
        assert_eq!(authority(&"a".repeat(256)), None, "a span keeps no more of a client's head than a name");
        assert_eq!(authority("router.test:8080"), Some(("router.test".to_owned(), Some(8_080))));
        assert_eq!(authority("[::1]"), Some(("::1".to_owned(), None)));
        assert_eq!(authority("a b"), None);
        assert_eq!(state(&head(&[("tracestate", "a=1"), ("tracestate", "b=2")]).headers), "a=1,b=2");
        assert_eq!(state(&head(&[("tracestate", &"a".repeat(600))]).headers), "");
    }
}
