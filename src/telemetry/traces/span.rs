//! What a request's span says: the semantic conventions of OpenTelemetry for HTTP servers and for generative AI, as far as they fit, and what only this
//! router knows. `docs/tracing.md` lists it.
//!
//! Never a prompt, an identifier, a key, a path or a query: the only text of a client's that is here is the name of a model, cut short, the host that it asked
//! for, and the `tracestate` that it wants to be told.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::Method;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, SpanFlags, Status};

use super::Tracer;
use super::context::Context;
use crate::request::{Ask, Surface, Usage};
use crate::telemetry::labels::{RetryCause, route};
use crate::telemetry::record::{Ended, Record};

/// Characters of a model's name that are shown.
const MOST_OF_A_MODEL: usize = 128;

/// Declares the names of attributes and events, and a list of them all, which a test holds against the documentation.
macro_rules! names {
    ($($name:ident = $text:literal;)*) => {
        $(const $name: &str = $text;)*
        #[cfg(test)]
        const ALL: &[&str] = &[$($text),*];
    };
}

names! {
    METHOD = "http.request.method";
    ROUTE = "http.route";
    STATUS = "http.response.status_code";
    ERROR = "error.type";
    SCHEME = "url.scheme";
    SERVER = "server.address";
    PORT = "server.port";
    OPERATION = "gen_ai.operation.name";
    PROVIDER = "gen_ai.provider.name";
    MODEL = "gen_ai.request.model";
    STREAM = "gen_ai.request.stream";
    FIRST_CHUNK = "gen_ai.response.time_to_first_chunk";
    INPUT_TOKENS = "gen_ai.usage.input_tokens";
    CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens";
    OUTPUT_TOKENS = "gen_ai.usage.output_tokens";
    REASON = "prefix_router.reason";
    REPLICA = "prefix_router.replica";
    TRIES = "prefix_router.tries";
    OVERLAP = "prefix_router.overlap";
    QUEUED = "prefix_router.queued";
    FIRST_BYTE = "prefix_router.time_to_first_byte";
    CAUSE = "prefix_router.retry.cause";
    RETRY = "retry";
    FIRST_BYTE_EVENT = "first_byte";
}

/// One request's place in its trace, and what its span is to say beside what its record knows.
pub struct Trace {
    tracer: Arc<Tracer>,
    context: Context,
    /// The client's span.
    parent: Option<u64>,
    state: String,
    server: Option<(String, Option<u16>)>,
    begun: SystemTime,
    /// The model that it names, and whether any replica lists it.
    model: Option<(String, bool)>,
    streams: bool,
    overlap: Option<f64>,
    retries: Vec<Event>,
}

impl Trace {
    pub(super) fn new(
        tracer: Arc<Tracer>,
        context: Context,
        parent: Option<u64>,
        state: String,
        server: Option<(String, Option<u16>)>,
        begun: SystemTime,
    ) -> Self {
        Self { tracer, context, parent, state, server, begun, model: None, streams: false, overlap: None, retries: Vec::new() }
    }

    /// What the replica is told: that its client is this request's span.
    pub fn traceparent(&self) -> String {
        self.context.to_string()
    }

    /// Whether the trace is its client's, and so what the client says of it.
    pub fn is_continued(&self) -> bool {
        self.parent.is_some()
    }

    /// Takes note of what the request asks; and whether any replica lists its model, so that its name is one of a few.
    pub fn asks(&mut self, ask: &Ask, is_listed: bool) {
        if self.context.is_sampled() {
            self.model = ask.model.as_ref().map(|model| (model.chars().take(MOST_OF_A_MODEL).collect(), is_listed));
            self.streams = ask.streams;
        }
    }

    /// Takes note of a choice: which share of the prompt is expected in the chosen replica's cache, where that is known.
    pub fn chosen(&mut self, overlap: Option<f64>) {
        self.overlap = overlap;
    }

    /// The trace's number, for the log, where the request has a span that can be found by it.
    pub(in crate::telemetry) fn shown(&self, surface: Option<Surface>) -> Option<String> {
        self.has_span(surface).then(|| format!("{:032x}", self.context.trace))
    }

    /// Those who only ask whether the router lives ask all the time, and nobody looks for them in a trace of their own.
    fn has_span(&self, surface: Option<Surface>) -> bool {
        let is_noise = matches!(surface, Some(Surface::Health | Surface::Ping)) && !self.is_continued();
        self.context.is_sampled() && !is_noise
    }

    /// A replica failed, so long after the request began, and another one is tried.
    pub(in crate::telemetry) fn retried(&mut self, replica: &str, cause: RetryCause, after: Duration) {
        if self.context.is_sampled() {
            let attributes = vec![text(REPLICA, replica), text(CAUSE, cause.label())];
            self.retries.push(self.event(RETRY, after, attributes));
        }
    }

    /// The request is over.
    pub(in crate::telemetry) fn end(self: Box<Self>, record: &Record, ended: &Ended<'_>) {
        if !self.has_span(record.surface) {
            return;
        }
        let mut span = Span {
            trace_id: self.context.trace.to_be_bytes().to_vec(),
            span_id: self.context.span.to_be_bytes().to_vec(),
            parent_span_id: self.parent.map(|parent| parent.to_be_bytes().to_vec()).unwrap_or_default(),
            flags: self.flags(),
            name: self.name(record),
            kind: SpanKind::Server.into(),
            start_time_unix_nano: self.nanos(Duration::ZERO),
            end_time_unix_nano: self.nanos(ended.whole),
            attributes: self.attributes(record, ended),
            status: is_failure(ended.status, ended.error).then(|| Status { code: StatusCode::Error.into(), message: String::new() }),
            ..Span::default()
        };
        let first_byte = ended.first_byte.map(|after| self.event(FIRST_BYTE_EVENT, after, Vec::new()));
        let Self { tracer, state, retries, .. } = *self;
        (span.trace_state, span.events) = (state, retries);
        span.events.extend(first_byte);
        tracer.end(span);
    }

    /// Of the trace, and that the parent is not of this process, where there is one.
    fn flags(&self) -> u32 {
        let remote = if self.is_continued() { SpanFlags::ContextIsRemoteMask as u32 } else { 0 };
        u32::from(self.context.flags()) | SpanFlags::ContextHasIsRemoteMask as u32 | remote
    }

    /// One of a few, whatever clients send.
    fn name(&self, record: &Record) -> String {
        match (operation(record), &self.model) {
            (Some(operation), Some((model, true))) => format!("{operation} {model}"),
            (Some(operation), _) => operation.to_owned(),
            (None, _) => {
                let method = method(&record.method).unwrap_or("HTTP");
                record.surface.map_or_else(|| method.to_owned(), |surface| format!("{method} {}", surface.label()))
            }
        }
    }

    fn attributes(&self, record: &Record, ended: &Ended<'_>) -> Vec<KeyValue> {
        let &Ended { status, error, first_byte, .. } = ended;
        // As many as there may be.
        let mut all = Vec::with_capacity(21);
        all.push(text(METHOD, method(&record.method).unwrap_or("_OTHER")));
        all.push(text(ROUTE, route(record.surface)));
        all.push(whole(STATUS, status.into()));
        all.push(text(SCHEME, "http"));
        let of_status = (status >= 500).then(|| status.to_string());
        all.extend(error.or(of_status.as_deref()).map(|error| text(ERROR, error)));
        if let Some((host, port)) = &self.server {
            all.push(text(SERVER, host));
            all.extend(port.map(|port| whole(PORT, port.into())));
        }
        if let Some(operation) = operation(record) {
            all.push(text(OPERATION, operation));
            all.push(text(PROVIDER, if record.surface == Some(Surface::Messages) { "anthropic" } else { "openai" }));
        }
        all.extend(self.model.as_ref().map(|(model, _)| text(MODEL, model)));
        if self.streams {
            all.push(attribute(STREAM, Value::BoolValue(true)));
            all.extend(first_byte.map(|after| number(FIRST_CHUNK, after.as_secs_f64())));
        }
        if let Some(Usage { prompt_tokens, cached_tokens, completion_tokens }) = record.usage {
            let told = [(INPUT_TOKENS, Some(prompt_tokens)), (CACHED_TOKENS, cached_tokens), (OUTPUT_TOKENS, completion_tokens)];
            all.extend(told.into_iter().filter_map(|(name, tokens)| Some(whole(name, tokens?))));
        }
        all.extend(record.reason.map(|reason| text(REASON, reason.label())));
        all.extend(record.replica.as_ref().map(|replica| text(REPLICA, replica.name())));
        if record.tries > 0 {
            all.push(whole(TRIES, record.tries.into()));
        }
        all.extend(self.overlap.map(|overlap| number(OVERLAP, overlap)));
        if !record.queued.is_zero() {
            all.push(number(QUEUED, record.queued.as_secs_f64()));
        }
        all.extend(first_byte.map(|after| number(FIRST_BYTE, after.as_secs_f64())));
        all
    }

    fn event(&self, name: &str, after: Duration, attributes: Vec<KeyValue>) -> Event {
        Event { time_unix_nano: self.nanos(after), name: name.to_owned(), attributes, dropped_attributes_count: 0 }
    }

    /// The time so long after the request began, by the clock of that moment: one that is set meanwhile does not make a span longer.
    fn nanos(&self, after: Duration) -> u64 {
        let begun = self.begun.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from((begun + after).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What a client did, or did wrong, is no failure of its server's. An answer that was cut off is, whatever its head said.
fn is_failure(status: u16, error: Option<&str>) -> bool {
    status >= 500 || error.is_some() && status < 400
}

/// What the conventions call it; `None` for what they have no word for.
fn operation(record: &Record) -> Option<&'static str> {
    match record.surface.filter(|_| record.method == Method::POST)? {
        Surface::ChatCompletions | Surface::Responses | Surface::Messages => Some("chat"),
        Surface::Completions => Some("text_completion"),
        Surface::Embeddings => Some("embeddings"),
        _ => None,
    }
}

/// A method that everybody knows: clients may invent others.
fn method(method: &Method) -> Option<&'static str> {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    KNOWN.into_iter().find(|known| method == known)
}

fn text(name: &str, value: &str) -> KeyValue {
    attribute(name, Value::StringValue(value.to_owned()))
}

fn whole(name: &str, value: u64) -> KeyValue {
    attribute(name, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn number(name: &str, value: f64) -> KeyValue {
    attribute(name, Value::DoubleValue(value))
}

fn attribute(name: &str, value: Value) -> KeyValue {
    KeyValue { key: name.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_lists_what_there_is() {
        let page = include_str!("../../../docs/tracing.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let mut listed: Vec<&str> = rows.filter(|name| !name.starts_with("otlp_") && *name != "trace_sample_ratio").collect();
        listed.sort_unstable();
        let mut all = ALL.to_vec();
        all.sort_unstable();
        assert_eq!(listed, all);
    }
}
