//! Traces as a collector gets them: the real protocol, read with its official types. The collector is a scripted server like any replica.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::{ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message as _;
use serde_json::{Value, json};

use crate::answers::{answer, chunk, event, hang, head, ok, ok_after, reset, stream};
use crate::client::Client;
use crate::command::{Serving, program};
use crate::replica::{Gate, Replica, Request, Step};
use crate::support::{A_WHILE, Router, Setting, chat, eventually, list};

const CHAT: &str = "/v1/chat/completions";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
const SPANS: &str = "prefix_router_spans_total";

/// How a server answers.
type Script = fn(&Request) -> Vec<Step>;

/// Takes spans as OTLP has it.
fn taken(_: &Request) -> Vec<Step> {
    answer(200, "content-type: application/x-protobuf\r\n", "")
}

/// A collector, and what it has got.
struct Collector {
    server: Replica,
    url: String,
}

impl Collector {
    fn start(script: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let server = Replica::start("collector", script);
        let url = server.url();
        Self { server, url }
    }

    fn setting(&self) -> Setting<'_> {
        ("otlp_endpoint", &self.url)
    }

    fn messages(&self) -> Vec<ExportTraceServiceRequest> {
        let read = |request: Request| ExportTraceServiceRequest::decode(request.body.as_slice()).expect("a message");
        self.server.requests().into_iter().map(read).collect()
    }

    fn spans(&self) -> Vec<Span> {
        let resources = self.messages().into_iter().flat_map(|message| message.resource_spans);
        resources.flat_map(|of_one| of_one.scope_spans).flat_map(|scope| scope.spans).collect()
    }

    /// Waits for so many spans.
    async fn has(&self, count: usize) -> Vec<Span> {
        eventually(&format!("{count} spans"), async || self.spans().len() >= count).await;
        let spans = self.spans();
        assert_eq!(spans.len(), count, "{spans:#?}");
        spans
    }

    async fn only(&self) -> Span {
        self.has(1).await.remove(0)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(all: &[KeyValue]) -> BTreeMap<&str, Value> {
    let value = |attribute: &KeyValue| match attribute.value.as_ref().and_then(|value| value.value.as_ref()).expect("a value") {
        Any::StringValue(text) => json!(text),
        Any::IntValue(number) => json!(number),
        Any::DoubleValue(number) => json!(number),
        Any::BoolValue(is) => json!(is),
        other => panic!("{other:?}"),
    };
    let map: BTreeMap<_, _> = all.iter().map(|attribute| (attribute.key.as_str(), value(attribute))).collect();
    assert_eq!(map.len(), all.len(), "each once");
    map
}

fn has(span: &Span, expected: &[(&str, Value)]) {
    let all = attributes(&span.attributes);
    for (name, value) in expected {
        assert_eq!(all.get(name), Some(value), "{name} in {all:#?}");
    }
}

fn is_error(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error)
}

fn named<'a>(span: &'a Span, name: &str) -> Vec<&'a Event> {
    span.events.iter().filter(|event| event.name == name).collect()
}

/// `traceparent` of a client.
fn parent(flags: &str) -> String {
    format!("traceparent: 00-{TRACE}-{PARENT}-{flags}\r\n")
}

/// The only one that the replica was sent.
fn sent(request: &Request) -> String {
    let all = request.head.all("traceparent");
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].to_owned()
}

/// What the replica is sent where the router's span is this one.
fn names(span: &Span, flags: &str) -> String {
    format!("00-{}-{}-{flags}", hex(&span.trace_id), hex(&span.span_id))
}

#[tokio::test]
async fn a_request_is_a_span_with_all_that_is_known_of_it() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/engines/vllm/chat-stream-warm.sse");
    let steps = vec![Step::Write(fs::read(recorded).unwrap())];
    let replica = Replica::start("a", move |_| steps.clone());
    let collector = Collector::start(taken);
    let settings = [collector.setting(), ("otlp_service_name", "edge"), ("strategy", "cache_aware"), ("routers", "1")];
    let replicas = format!("{}    models: [org/known]\n", list(&[&replica]));
    let router = Router::start_with(&replicas, &settings).await;
    router.has_state("a", "up").await;
    let ask = |model: &str| {
        json!({"model": model, "stream": true, "messages": [{"role": "user", "content": "Hello. ".repeat(2_000)}]}).to_string()
    };
    let fields = format!("content-type: application/json\r\n{}tracestate: a=1\r\ntracestate: b=2\r\n", parent("01"));
    let before = std::time::SystemTime::now();
    for _ in 0..2 {
        assert_eq!(router.send("POST", CHAT, &fields, ask("org/known")).await.status, 200);
    }
    let after = std::time::SystemTime::now();
    let spans = collector.has(2).await;
    let span = &spans[1];
    assert_eq!((span.name.as_str(), span.kind()), ("chat org/known", SpanKind::Server));
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    assert_eq!((span.trace_state.as_str(), span.flags), ("a=1,b=2", 0x301));
    assert!(!is_error(span));
    has(
        span,
        &[
            ("http.request.method", json!("POST")),
            ("http.route", json!("chat_completions")),
            ("http.response.status_code", json!(200)),
            ("url.scheme", json!("http")),
            ("server.address", json!("router.test")),
            ("gen_ai.operation.name", json!("chat")),
            ("gen_ai.provider.name", json!("openai")),
            ("gen_ai.request.model", json!("org/known")),
            ("gen_ai.request.stream", json!(true)),
            ("gen_ai.usage.input_tokens", json!(302)),
            ("gen_ai.usage.cache_read.input_tokens", json!(288)),
            ("gen_ai.usage.output_tokens", json!(8)),
            ("prefix_router.reason", json!("home")),
            ("prefix_router.replica", json!("a")),
            ("prefix_router.tries", json!(1)),
        ],
    );
    let all = attributes(&span.attributes);
    assert!(!all.contains_key("error.type") && !all.contains_key("prefix_router.queued"), "{all:#?}");
    let number = |span: &Span, name: &str| attributes(&span.attributes)[name].as_f64().unwrap();
    assert!(number(span, "prefix_router.overlap") > 0.5, "the same prompt was there");
    assert!(number(&spans[0], "prefix_router.overlap") < 0.1, "nothing was there");
    let first = number(span, "prefix_router.time_to_first_byte");
    assert!(first > 0.0 && first == number(span, "gen_ai.response.time_to_first_chunk"));
    // By the wall clock, which may be set, but not in a test.
    let nanos = |time: std::time::SystemTime| time.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    assert!(nanos(before) <= span.start_time_unix_nano && span.start_time_unix_nano < span.end_time_unix_nano);
    assert!(span.end_time_unix_nano <= nanos(after) + 50_000_000);
    assert_eq!(named(span, "first_byte").len(), 1);

    let request = collector.server.requests().remove(0);
    assert_eq!((request.head.method(), request.head.target()), ("POST", "/v1/traces"));
    assert_eq!(request.head.get("content-type"), Some("application/x-protobuf"));
    let message = collector.messages().remove(0);
    let resource = message.resource_spans[0].resource.clone().unwrap();
    let resource = attributes(&resource.attributes);
    assert_eq!((&resource["service.name"], &resource["service.version"]), (&json!("edge"), &json!(env!("CARGO_PKG_VERSION"))));
    assert_eq!(resource["service.instance.id"].as_str().unwrap().len(), 32);
    router.has_metric(SPANS, &[("result", "exported")], 2.0).await;
}

#[tokio::test]
async fn names_of_spans_are_few_whatever_clients_send() {
    let replica = Replica::start("a", ok);
    let collector = Collector::start(taken);
    let router = Router::start(&[&replica], &[collector.setting()]).await;
    let long = "m".repeat(500);
    for (method, target, body) in [
        ("POST", CHAT, json!({"model": long, "messages": []}).to_string()),
        ("POST", "/v1/completions", r#"{"model":"invented","prompt":"x"}"#.to_owned()),
        ("POST", "/v1/messages", r#"{"model":"invented","messages":[]}"#.to_owned()),
        ("POST", "/v1/embeddings", "{}".to_owned()),
        ("POST", "/endpoints/mine/invocations", "x".to_owned()),
        ("GET", "/v1/files/mine", String::new()),
        ("INVENTED", "/v1/files/mine", String::new()),
        ("GET", "/nowhere", String::new()),
        ("GET", "/health", String::new()),
    ] {
        router.send(method, target, "", body).await;
    }
    // Somebody wants to know of this one.
    router.send("GET", "/ping", &parent("01"), "").await;
    let spans = collector.has(9).await;
    let names: HashSet<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    let expected = ["chat", "text_completion", "embeddings", "POST invocations", "GET other", "HTTP other", "GET", "GET ping"];
    assert_eq!(names, HashSet::from(expected));
    let find = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
    has(find("chat"), &[("gen_ai.request.model", json!("m".repeat(128)))]);
    has(find("HTTP other"), &[("http.request.method", json!("_OTHER"))]);
    has(
        find("GET"),
        &[("http.route", json!("refused")), ("http.response.status_code", json!(403)), ("error.type", json!("path_not_exposed"))],
    );
    assert!(spans.iter().all(|span| !is_error(span)));
    let messages = spans.iter().find(|span| attributes(&span.attributes)["http.route"] == "messages").unwrap();
    has(messages, &[("gen_ai.provider.name", json!("anthropic"))]);
}

#[tokio::test]
async fn a_trace_is_continued_where_there_is_one() {
    let replica = Replica::start("a", ok);
    let collector = Collector::start(taken);
    let router = Router::start(&[&replica], &[collector.setting()]).await;
    let state = "tracestate: a=1\r\ntracestate: b=2\r\n";
    let is_continued = async |fields: &str| {
        replica.forget();
        collector.server.forget();
        assert_eq!(router.send("POST", CHAT, &format!("{fields}{state}"), "{}").await.status, 200);
        let (span, request) = (collector.only().await, replica.only_request());
        assert_eq!(sent(&request), names(&span, "01"), "{fields:?}");
        assert_ne!(hex(&span.span_id), PARENT);
        let is_continued = hex(&span.trace_id) == TRACE;
        // What others keep means something with its own trace alone.
        assert_eq!(request.head.all("tracestate"), if is_continued { vec!["a=1", "b=2"] } else { vec![] }, "{fields:?}");
        assert_eq!(hex(&span.parent_span_id), if is_continued { PARENT } else { "" }, "{fields:?}");
        assert_eq!(span.flags, if is_continued { 0x301 } else { 0x101 }, "{fields:?}");
        is_continued
    };
    assert!(is_continued(&parent("01")).await);
    assert!(is_continued(&format!("traceparent: cc-{TRACE}-{PARENT}-09-more\r\n")).await);
    for fields in [
        String::new(),
        format!("{}{}", parent("01"), parent("01")),
        format!("traceparent: ff-{TRACE}-{PARENT}-01\r\n"),
        format!("traceparent: 00-{TRACE}-{PARENT}-01-more\r\n"),
        format!("traceparent: 00-{}-{PARENT}-01\r\n", "0".repeat(32)),
        "traceparent: \r\n".to_owned(),
        "traceparent: caf\u{e9}\r\n".to_owned(),
    ] {
        assert!(!is_continued(&fields).await, "{fields}");
    }
}

#[tokio::test]
async fn what_is_not_sampled_is_passed_on_all_the_same() {
    let replica = Replica::start("a", ok);
    let collector = Collector::start(taken);
    let router = Router::start(&[&replica], &[collector.setting(), ("trace_sample_ratio", "0")]).await;
    for fields in [String::new(), parent("00"), parent("01")] {
        assert_eq!(router.send("POST", CHAT, &fields, "{}").await.status, 200);
    }
    let all: Vec<String> = replica.requests().iter().map(sent).collect();
    assert!(all[0].ends_with("-00") && !all[0].contains(TRACE), "{all:?}");
    assert!(all[1].starts_with(&format!("00-{TRACE}-")) && all[1].ends_with("-00") && !all[1].contains(PARENT), "{all:?}");
    // Who is sampled by its client is so, and is the only one.
    assert_eq!(names(&collector.only().await, "01"), all[2]);
}

#[tokio::test]
async fn tries_are_events() {
    let (a, b, c) = (Replica::start("a", reset), Replica::start("b", |_| answer(429, "", "busy")), Replica::start("c", ok));
    let collector = Collector::start(taken);
    let settings = [collector.setting(), ("retry_budget_floor", "100"), ("eject_time", "0s"), ("busy_time", "0s")];
    let router = Router::start_blind(&[&a, &b, &c], &settings).await;
    for number in 0..20 {
        assert_eq!(router.post(CHAT, chat(&number.to_string())).await.status, 200);
    }
    let spans = collector.has(20).await;
    let mut seen = HashSet::new();
    for span in &spans {
        let all = attributes(&span.attributes);
        let retries = named(span, "retry");
        assert_eq!(all["prefix_router.tries"], json!(retries.len() + 1));
        assert_eq!(all["prefix_router.replica"], json!("c"));
        let mut last = span.start_time_unix_nano;
        for retry in retries {
            let of_retry = attributes(&retry.attributes);
            let cause = if of_retry["prefix_router.replica"] == "a" { "broke" } else { "busy" };
            assert_eq!(of_retry["prefix_router.retry.cause"], cause);
            assert!(retry.time_unix_nano >= last && retry.time_unix_nano <= span.end_time_unix_nano);
            last = retry.time_unix_nano;
            seen.insert(cause);
        }
        assert!(!is_error(span), "it was answered");
    }
    assert_eq!(seen, HashSet::from(["broke", "busy"]));
    // One span for a request, whoever gets it.
    let of_one = a.requests().iter().chain(&b.requests()).chain(&c.requests()).map(sent).collect::<HashSet<_>>();
    assert_eq!(of_one, spans.iter().map(|span| names(span, "01")).collect());
}

#[tokio::test]
async fn what_goes_wrong_and_whose_fault_it_is() {
    let replica = Replica::start("a", ok);
    let collector = Collector::start(taken);
    let router = Router::start_blind(&[&replica], &[collector.setting(), ("retries", "0"), ("eject_failures", "1000")]).await;
    let cases: [(Script, i64, Option<&str>, bool); 6] = [
        (|_| answer(500, "", "no"), 500, Some("500"), true),
        (|_| answer(503, "", "no"), 503, Some("503"), true),
        (|_| answer(422, "", "no"), 422, None, false),
        (reset, 502, Some("replica_broke"), true),
        (|_| vec![head(), chunk(event(0)), Step::Sleep(A_WHILE), Step::Reset], 200, Some("replica_broke"), true),
        (|_| vec![Step::Write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n123".to_vec()), Step::Fin], 200, Some("replica_broke"), true),
    ];
    for (script, status, error, is_failure) in cases {
        replica.script(script);
        collector.server.forget();
        let mut client = Client::connect(router.traffic).await;
        client.start("POST", CHAT, "", "{}").await;
        drop(client.try_response("POST").await);
        let span = collector.only().await;
        let all = attributes(&span.attributes);
        assert_eq!(
            (&all["http.response.status_code"], all.get("error.type")),
            (&json!(status), error.map(Value::from).as_ref()),
            "{all:#?}"
        );
        assert_eq!(is_error(&span), is_failure, "{all:#?}");
    }

    // Clients that leave: before the first byte, and after it.
    for script in [hang, |_: &Request| vec![head(), chunk(event(0)), Step::Hang]] {
        replica.script(script);
        collector.server.forget();
        replica.forget();
        let mut client = Client::connect(router.traffic).await;
        client.start("POST", CHAT, "", "{}").await;
        replica.has_requests(1).await;
        tokio::time::sleep(A_WHILE / 3).await;
        drop(client);
        let span = collector.only().await;
        has(
            &span,
            &[("http.response.status_code", json!(499)), ("error.type", json!("client_gone")), ("prefix_router.replica", json!("a"))],
        );
        assert!(!is_error(&span), "that is the client's business");
    }
}

#[tokio::test]
async fn time_in_the_queue_is_told() {
    let gate = Gate::new();
    let replica = Replica::start("a", ok_after(&gate));
    let collector = Collector::start(taken);
    let router = Router::start(&[&replica], &[collector.setting(), ("max_outstanding", "1")]).await;
    let mut clients = [Client::connect(router.traffic).await, Client::connect(router.traffic).await];
    for client in &mut clients {
        client.start("POST", CHAT, "", chat("x")).await;
    }
    router.has_metric("prefix_router_queue_requests", &[], 1.0).await;
    tokio::time::sleep(A_WHILE).await;
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response("POST").await.status, 200);
    }
    let spans = collector.has(2).await;
    let queued: Vec<f64> = spans.iter().filter_map(|span| attributes(&span.attributes).get("prefix_router.queued")?.as_f64()).collect();
    assert!(queued.len() == 1 && queued[0] >= A_WHILE.as_secs_f64() * 0.9, "{queued:?}");
}

#[tokio::test]
async fn nothing_of_a_client_s_own_is_in_a_span() {
    // What is asked and answered, who asks, and with which key; in all places where it may stand.
    const SECRET: &str = "Xyzzy";
    let replica = Replica::start("a", |_| answer(200, "content-type: application/json\r\n", format!(r#"{{"choices":["{SECRET}"]}}"#)));
    let collector = Collector::start(taken);
    let settings = [collector.setting(), ("strategy", "cache_aware"), ("expose_paths", "[/custom/*]")];
    let router = Router::start(&[&replica], &settings).await;
    let fields = format!(
        "authorization: Bearer sk-{SECRET}\r\nx-api-key: {SECRET}\r\nx-amzn-sagemaker-prefix-aware-id: {SECRET}\r\nx-request-id: {SECRET}\r\n\
         user-agent: {SECRET}\r\ncookie: {SECRET}\r\nbaggage: user={SECRET}\r\nx-{SECRET}: {SECRET}\r\nreferer: {SECRET}\r\n{}",
        parent("01")
    );
    let body = json!({
        "model": "m", "prompt_cache_key": SECRET, "cache_salt": SECRET, "user": SECRET, SECRET: SECRET, "input": SECRET,
        "messages": [{"role": "system", "content": SECRET}, {"role": "user", "content": [{"type": "text", "text": SECRET}]}],
        "tools": [{"type": "function", "function": {"name": SECRET}}],
    });
    let targets = [
        CHAT,
        "/v1/responses",
        "/v1/embeddings",
        "/invocations",
        "/v1/files/Xyzzy",
        "/custom/Xyzzy",
        "/Xyzzy",
        "/endpoints/Xyzzy/invocations",
    ];
    for target in targets {
        router.send("POST", &format!("{target}?q={SECRET}"), &fields, body.to_string()).await;
    }
    // Bad ones are told of in other ways.
    router.send("POST", CHAT, &format!("x-amzn-sagemaker-prefix-aware-id: {}\r\n", SECRET.repeat(20)), "{}").await;
    router.send("POST", CHAT, &format!("traceparent: {SECRET}\r\ntracestate: {SECRET}=1\r\n"), SECRET).await;
    router.send(&SECRET.to_uppercase(), CHAT, "", "").await;
    collector.has(targets.len() + 3).await;
    for request in collector.server.requests() {
        let text = String::from_utf8_lossy(&request.body).to_lowercase();
        assert!(!text.contains(&SECRET.to_lowercase()), "{text}");
    }
}

#[tokio::test]
async fn a_collector_that_is_away_changes_nothing_and_costs_no_span_for_a_moment() {
    let replica = Replica::start("a", |_| stream(3, Duration::ZERO));
    let collector = Collector::start(taken);
    collector.server.stop().await;
    let router = Router::start(&[&replica], &[collector.setting()]).await;
    for _ in 0..20 {
        let response = router.post(CHAT, chat("x")).await;
        assert_eq!((response.status, response.text().matches("data: ").count()), (200, 4));
    }
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(router.metric(SPANS, &[]).await, 0.0, "they wait");
    collector.server.restart();
    collector.has(20).await;
    router.has_metric(SPANS, &[("result", "exported")], 20.0).await;
}

#[tokio::test]
async fn a_collector_that_is_busy_is_asked_again_and_one_that_talks_nonsense_is_not() {
    let replica = Replica::start("a", ok);
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let collector = Collector::start(move |request| match counted.fetch_add(1, Ordering::SeqCst) {
        0 => answer(503, "retry-after: 0\r\n", "busy"),
        1 => vec![Step::Reset],
        _ => taken(request),
    });
    let router = Router::start(&[&replica], &[collector.setting()]).await;
    router.post(CHAT, chat("x")).await;
    router.has_metric(SPANS, &[("result", "exported")], 1.0).await;
    assert_eq!(count.load(Ordering::SeqCst), 3);
    // The same message, three times.
    let ids: HashSet<Vec<u8>> = collector.spans().into_iter().map(|span| span.span_id).collect();
    assert_eq!(ids.len(), 1);

    let nonsense: [Script; 4] = [
        |_| answer(200, "content-type: text/html\r\n", "<html>welcome</html>"),
        |_| answer(404, "", ""),
        |_| answer(400, "", "what?"),
        |_| {
            let partial_success = Some(ExportTracePartialSuccess { rejected_spans: 1, error_message: "too old".to_owned() });
            answer(200, "content-type: application/x-protobuf\r\n", ExportTraceServiceResponse { partial_success }.encode_to_vec())
        },
    ];
    for (number, script) in nonsense.into_iter().enumerate() {
        collector.server.script(script);
        collector.server.forget();
        assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
        router.has_metric(SPANS, &[("result", "failed")], number as f64 + 1.0).await;
        assert_eq!(collector.server.count(), 1, "once");
    }
    // What is no HTTP may be a moment's, and is asked again.
    collector.server.script(|_| vec![Step::Write(b"\x00\x00\x12\x04 not http\r\n\r\n".to_vec()), Step::Fin]);
    collector.server.forget();
    assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
    collector.server.has_requests(2).await;
    router.has_metric(SPANS, &[("result", "failed")], 4.0).await;
}

#[tokio::test]
async fn the_last_spans_are_sent_before_the_end() {
    let gate = Gate::new();
    let replica = Replica::start("a", ok_after(&gate));
    let collector = Collector::start(taken);
    let router = Router::start(&[&replica], &[collector.setting()]).await;
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", chat("x")).await;
    replica.has_requests(1).await;
    router.drain();
    gate.open();
    assert_eq!(client.response("POST").await.status, 200);
    router.stopped().await;
    // At once: nothing is sent any more.
    has(&collector.spans()[0], &[("http.response.status_code", json!(200))]);
}

#[tokio::test]
async fn many_spans_are_several_messages_on_one_connection() {
    let replica = Replica::start("a", ok);
    let collector = Collector::start(taken);
    let router = Router::start(&[&replica], &[collector.setting()]).await;
    let mut client = Client::connect(router.traffic).await;
    for _ in 0..1_300 {
        assert_eq!(client.request("GET", "/nowhere", "", "").await.status, 403);
    }
    collector.has(1_300).await;
    let requests = collector.server.requests();
    assert!(requests.len() >= 3 && requests.iter().all(|request| request.connection == 0), "{}", requests.len());
    assert!(collector.messages().iter().all(|message| message.resource_spans[0].scope_spans[0].spans.len() <= 512));
    let ids: HashSet<Vec<u8>> = collector.spans().into_iter().map(|span| span.span_id).collect();
    assert_eq!(ids.len(), 1_300);
}

#[tokio::test]
async fn without_a_collector_nothing_is_made_and_headers_pass_untouched() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    let fields = "traceparent: not one\r\ntraceparent: 00-1-2-3\r\ntracestate: a=1\r\ntracestate: ,\u{e9}\r\n";
    router.send("POST", CHAT, fields, "{}").await;
    router.send("POST", CHAT, "", "{}").await;
    let requests = replica.requests();
    assert_eq!(requests[0].head.all("traceparent"), ["not one", "00-1-2-3"]);
    assert_eq!(requests[0].head.all("tracestate"), ["a=1".to_owned(), ",\u{c3}\u{a9}".to_owned()]);
    assert!(requests[1].head.all("traceparent").is_empty() && requests[1].head.all("tracestate").is_empty());
    assert_eq!(router.metric(SPANS, &[]).await, 0.0);
}

#[tokio::test]
async fn the_log_says_what_is_wrong_once_and_names_traces() {
    let replica = Replica::start("a", ok);
    // Takes connections, and says nothing.
    let collector = Collector::start(hang);
    let mut command = program();
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--replica", &replica.url()]);
    command.env("PREFIX_ROUTER_OTLP_ENDPOINT", &collector.url);
    let mut serving = Serving::start(&mut command, &[&replica, &collector.server]).await;
    let post = async |fields: &str| Client::connect(serving.traffic).await.request("POST", CHAT, fields, chat("x")).await;
    assert_eq!(post(&parent("01")).await.status, 200);
    collector.server.has_requests(1).await;
    eventually("the log names the trace", async || serving.log().iter().any(|line| line.contains(&format!("trace_id=\"{TRACE}\"")))).await;
    assert_eq!(post(&parent("00")).await.status, 200);
    let before = Instant::now();
    serving.terminate();
    assert_eq!(serving.exit_code().await, Some(0));
    let took = before.elapsed();
    assert!(took > Duration::from_secs(2) && took < Duration::from_secs(8), "the last spans have 3 s: {took:?}");
    let log = serving.log();
    assert!(
        log.iter().any(|line| line.contains("WARN") && line.contains("the last spans are lost") && line.contains("/v1/traces")),
        "{log:#?}"
    );
    assert_eq!(log.iter().filter(|line| line.contains("trace_id=") && line.contains(CHAT)).count(), 1, "{log:#?}");

    // Nobody there: a warning that is not repeated until spans are lost, what the end cost, and an end that waits for nobody.
    collector.server.stop().await;
    let mut serving = Serving::start(&mut command, &[&replica, &collector.server]).await;
    for _ in 0..3 {
        let mut client = Client::connect(serving.traffic).await;
        assert_eq!(client.request("POST", CHAT, "", chat("x")).await.status, 200);
        tokio::time::sleep(Duration::from_millis(1_100)).await;
    }
    let before = Instant::now();
    serving.terminate();
    assert_eq!(serving.exit_code().await, Some(0));
    assert!(before.elapsed() < Duration::from_secs(2), "{:?}", before.elapsed());
    let log = serving.log();
    let warnings: Vec<&String> = log.iter().filter(|line| line.contains("traces do not reach")).collect();
    assert!(warnings.iter().all(|line| line.contains("refused") && line.contains("Requests are served as ever")), "{log:#?}");
    assert!(warnings.len() == 2 && warnings[0].contains("lost=0") && !warnings[1].contains("lost=0"), "{log:#?}");
    assert!(log.iter().any(|line| line.contains("did not take since that was last said")), "{log:#?}");
}
