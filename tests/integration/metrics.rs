//! What `/metrics` counts, for a sequence of requests that is known.

use std::time::Duration;

use crate::answers::{answer, chunk, event, hang, head, last_chunk, ok, reset, stream};
use crate::client::Client;
use crate::replica::{Replica, Step};
use crate::support::{Router, chat, samples};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn what_is_there_from_the_start() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let router = Router::start(&[&a, &b], &[]).await;
    let response = router.admin("/metrics").await;
    assert!(response.head.get("content-type").is_some_and(|kind| kind.starts_with("text/plain")), "{:?}", response.head);
    let text = response.text();
    for replica in ["a", "b"] {
        assert_eq!(samples(&text, "prefix_router_outstanding", &[("replica", replica)]), [0.0]);
        assert_eq!(samples(&text, "prefix_router_replica_state", &[("replica", replica), ("state", "up")]), [1.0]);
        assert_eq!(samples(&text, "prefix_router_replica_state", &[("replica", replica), ("state", "down")]), [0.0]);
    }
    assert_eq!(samples(&text, "prefix_router_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), [1.0]);
    assert_eq!(samples(&text, "prefix_router_client_aborts_total", &[]), [0.0]);
    check_names(&text);
}

/// Every series is ours by name and says what it is.
fn check_names(text: &str) {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        assert!(name.starts_with("prefix_router_"), "{line}");
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(text.contains(&format!("# HELP {family} ")) && text.contains(&format!("# TYPE {family} ")), "{line}");
    }
}

#[tokio::test]
async fn a_known_sequence() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let router = Router::start_blind(&[&a, &b], &[("pool_max_idle", "0"), ("retry_budget_floor", "100"), ("busy_time", "0s")]).await;
    let body = router.chat_for(&a, "x").await;
    let base = Counts::read(&router).await;

    // Three streams at home, and one without a key.
    a.script(|_| stream(2, Duration::ZERO));
    for _ in 0..3 {
        assert_eq!(router.post(CHAT, &body).await.reason(), "home");
    }
    let response = router.post(CHAT, r#"{"model":"m","messages":[]}"#).await;
    assert_eq!(response.reason(), "no_key");
    let keyless = response.replica().to_owned();

    // Two that the replica breaks off, so that another answers; one that is busy; one that is the engine's own error.
    a.script(reset);
    for _ in 0..2 {
        assert_eq!(router.post(CHAT, &body).await.reason(), "failover");
    }
    a.script(|_| answer(429, "", "busy"));
    assert_eq!(router.post(CHAT, &body).await.reason(), "failover");
    a.script(|_| answer(500, "", "no"));
    assert_eq!(router.post(CHAT, &body).await.status, 500);
    a.script(|_| answer(422, "", "no"));
    assert_eq!(router.post(CHAT, &body).await.status, 422);

    // Refused here, answered here, and sent by load to whichever.
    a.script(ok);
    assert_eq!(router.get("/sleep").await.status, 403);
    assert_eq!(router.get(CHAT).await.status, 405);
    assert_eq!(router.get("/health").await.status, 200);
    assert_eq!(router.post("/tokenize", "{}").await.reason(), "load");

    // One whose client leaves.
    a.script(hang);
    a.forget();
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", &body).await;
    a.has_requests(1).await;
    router.has_metric("prefix_router_outstanding", &[("replica", "a")], 1.0).await;
    drop(client);
    router.has_metric("prefix_router_client_aborts_total", &[], 1.0).await;
    router.is_at_rest().await;

    let now = Counts::read(&router).await;
    let grown = |name: &str, labels: &[(&str, &str)]| now.value(name, labels) - base.value(name, labels);
    let requests = "prefix_router_requests_total";
    let chat_requests = |status, reason| grown(requests, &[("route", "chat_completions"), ("status", status), ("reason", reason)]);
    assert_eq!(chat_requests("2xx", "home"), 3.0);
    assert_eq!(chat_requests("2xx", "no_key"), 1.0);
    assert_eq!(chat_requests("2xx", "failover"), 3.0);
    assert_eq!(chat_requests("5xx", "home"), 1.0);
    assert_eq!(chat_requests("4xx", "home"), 1.0);
    assert_eq!(chat_requests("499", "home"), 1.0);
    // Whether a refused method still counts as its path's route is open.
    let refused = chat_requests("4xx", "none");
    assert_eq!(grown(requests, &[("route", "chat_completions")]) - refused, 10.0);
    assert_eq!(grown(requests, &[("route", "health"), ("status", "2xx"), ("reason", "none")]), 1.0);
    assert_eq!(grown(requests, &[("route", "tokenize"), ("status", "2xx"), ("reason", "load")]), 1.0);
    assert_eq!(grown(requests, &[("status", "4xx"), ("reason", "none")]), 2.0);

    let choices = "prefix_router_choices_total";
    // Each try is a choice: 3 answers, 2 resets, 1 busy, 2 errors, 1 abort.
    assert_eq!(grown(choices, &[("replica", "a"), ("reason", "home")]), 9.0);
    assert_eq!(grown(choices, &[("replica", "b"), ("reason", "failover")]), 3.0);
    assert_eq!(grown(choices, &[("replica", &keyless), ("reason", "no_key")]), 1.0);
    assert_eq!(grown(choices, &[("reason", "overflow")]), 0.0);

    let retries = "prefix_router_retries_total";
    assert_eq!(grown(retries, &[("cause", "broke")]), 2.0);
    assert_eq!(grown(retries, &[("cause", "busy")]), 1.0);
    assert_eq!(grown(retries, &[]), 3.0);

    let errors = "prefix_router_upstream_errors_total";
    assert_eq!(grown(errors, &[("replica", "a"), ("kind", "broke")]), 2.0);
    assert_eq!(grown(errors, &[("replica", "a"), ("kind", "busy")]), 1.0);
    assert_eq!(grown(errors, &[("replica", "a"), ("kind", "status_5xx")]), 1.0);
    assert_eq!(grown(errors, &[]), 4.0);

    let of_chat = [("route", "chat_completions")];
    // Answers with a first byte: all of the chats but the refused and the left one.
    assert_eq!(grown("prefix_router_time_to_first_byte_seconds_count", &of_chat), 9.0);
    assert_eq!(grown("prefix_router_request_duration_seconds_count", &of_chat) - refused, 10.0);
    check_names(&now.0);
}

/// The text of `/metrics` at one time.
struct Counts(String);

impl Counts {
    async fn read(router: &Router) -> Self {
        router.is_at_rest().await;
        Self(router.metrics().await)
    }

    fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        samples(&self.0, name, labels).iter().sum()
    }
}

#[tokio::test]
async fn times_are_those_of_the_body() {
    let pause = Duration::from_millis(300);
    let replica = Replica::start("a", move |_| {
        let sleep = Step::Sleep(pause);
        vec![head(), sleep.clone(), chunk(event(0)), sleep, chunk(event(1)), last_chunk()]
    });
    let router = Router::start(&[&replica], &[]).await;
    router.post(CHAT, chat("x")).await;
    let labels = [("route", "chat_completions")];
    router.has_metric("prefix_router_request_duration_seconds_count", &labels, 1.0).await;
    let first = router.metric("prefix_router_time_to_first_byte_seconds_sum", &labels).await;
    let whole = router.metric("prefix_router_request_duration_seconds_sum", &labels).await;
    assert!(first >= 0.29, "the first byte is the body's, not the head's: {first}");
    assert!(whole >= first + 0.29, "the end is the body's: {first} {whole}");
}

#[tokio::test]
async fn labels_are_bounded_whatever_clients_send() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    for number in 0..50 {
        router.send("POST", &format!("/v1/invented-{number}"), "", "{}").await;
        router.send(&format!("METHOD{number}"), "/v1/completions", "", "{}").await;
        router.post(CHAT, format!(r#"{{"model":"model-{number}","prompt_cache_key":"key-{number}"}}"#)).await;
        router.get(&format!("/nowhere-{number}")).await;
    }
    let text = router.metrics().await;
    assert!(
        !text.contains("invented")
            && !text.contains("model-")
            && !text.contains("key-")
            && !text.contains("METHOD")
            && !text.contains("nowhere")
    );
}
