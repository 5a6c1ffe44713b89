//! What `/metrics` tells of the quality of routing: by model and strategy, how well keys divide the traffic, how long the parts of an answer take, who is full.

use std::time::Duration;

use crate::answers::{answer, chunk, event, hang, head, last_chunk, ok, response, stream};
use crate::client::Client;
use crate::replica::{Replica, Step};
use crate::support::{Filed, Router, content, eventually, samples};

const CHAT: &str = "/v1/chat/completions";

fn chat(model: &str, text: &str) -> String {
    serde_json::json!({"model": model, "messages": [{"role": "user", "content": text}]}).to_string()
}

async fn sum(router: &Router, name: &str, labels: &[(&str, &str)]) -> f64 {
    samples(&router.metrics().await, name, labels).iter().sum()
}

#[tokio::test]
async fn models_that_replicas_list_have_series_of_their_own_up_to_the_bound() {
    const REQUESTS: &str = "prefix_router_requests_total";
    let replica = Replica::start("a", ok);
    let listing = |models: &str| format!("replicas:\n  - url: {}\n    name: a\n    models: [{models}]\n", replica.url());
    let filed = Filed::start_with(&listing("one, two, three"), &[("metrics_max_models", "2"), ("strategy", "least_outstanding")]).await;
    let router = &filed.router;
    router.has_state("a", "up").await;
    for model in ["two", "one", "two", "three", "unheard of"] {
        router.post(CHAT, chat(model, "x")).await;
    }
    router.post(CHAT, r#"{"messages":[]}"#).await;
    router.get("/health").await;
    router.has_metric(REQUESTS, &[], 7.0).await;
    for (model, count) in [("one", 1.0), ("two", 2.0), ("other", 2.0), ("none", 2.0)] {
        assert_eq!(sum(router, REQUESTS, &[("model", model)]).await, count, "{model}");
    }
    assert_eq!(sum(router, REQUESTS, &[("strategy", "least_outstanding")]).await, 7.0);
    // What nobody lists any more goes, and its place with it; the strategy is the one that a request went by.
    std::fs::write(&filed.file, content(&listing("one, three"), &[("metrics_max_models", "2"), ("strategy", "random")])).expect("a file");
    router.reload().await;
    eventually("the place of a model that has gone is another's", async || {
        router.post(CHAT, chat("three", "x")).await;
        sum(router, REQUESTS, &[("model", "three"), ("strategy", "random")]).await > 0.0
    })
    .await;
    let text = router.metrics().await;
    assert!(!text.contains("model=\"two\""), "{text}");
    assert_eq!(samples(&text, REQUESTS, &[("model", "one")]), [1.0]);
}

#[tokio::test]
async fn the_times_of_a_stream_are_counted_by_reason() {
    let pause = Duration::from_millis(120);
    let replica = Replica::start("a", move |_| {
        let sleep = Step::Sleep(pause);
        let open = chunk(": keep open\n\n");
        vec![
            head(),
            open.clone(),
            sleep.clone(),
            chunk(event(0)),
            sleep.clone(),
            open,
            chunk(event(1)),
            sleep,
            chunk(event(2)),
            last_chunk(),
        ]
    });
    let router = Router::start(&[&replica], &[]).await;
    router.post(CHAT, chat("m", "x")).await;
    let home = [("reason", "home")];
    router.has_metric("prefix_router_time_to_first_token_seconds_count", &home, 1.0).await;
    assert!(sum(&router, "prefix_router_time_to_first_token_seconds_sum", &home).await >= 0.12);
    router.has_metric("prefix_router_inter_chunk_seconds_count", &home, 2.0).await;
    let gaps = sum(&router, "prefix_router_inter_chunk_seconds_sum", &home).await;
    assert!((0.239..5.0).contains(&gaps), "{gaps}");
    // What comes whole, or is an error, has no first token.
    replica.script(|_| answer(200, "content-type: application/json\r\n", "{}"));
    router.post(CHAT, chat("m", "x")).await;
    replica.script(|_| {
        let mut steps = stream(2, Duration::ZERO);
        steps[0] =
            Step::Write(b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec());
        steps
    });
    assert_eq!(router.post(CHAT, chat("m", "x")).await.status, 400);
    // The first event of this surface comes before the prompt is computed.
    replica.script(|_| stream(2, Duration::ZERO));
    router.post("/v1/responses", r#"{"model":"m","input":"x","stream":true}"#).await;
    router.has_metric("prefix_router_time_to_first_byte_seconds_count", &home, 4.0).await;
    assert_eq!(sum(&router, "prefix_router_time_to_first_token_seconds_count", &[]).await, 1.0);
    assert_eq!(sum(&router, "prefix_router_inter_chunk_seconds_count", &[]).await, 2.0);
}

#[tokio::test]
async fn prompts_and_the_routers_own_part_are_measured_without_what_was_waited() {
    let replica = Replica::start("a", |_| vec![Step::Sleep(Duration::from_millis(300)), Step::Write(response(200, "", "{}"))]);
    let router = Router::start(&[&replica], &[("max_outstanding", "1")]).await;
    let (one, other) = (chat("m", "x"), chat("m", "y"));
    let both = tokio::join!(router.post(CHAT, &one), router.post(CHAT, &other));
    assert_eq!((both.0.status, both.1.status), (200, 200));
    router.has_metric("prefix_router_overhead_seconds_count", &[], 2.0).await;
    let (own, waited) =
        (sum(&router, "prefix_router_overhead_seconds_sum", &[]).await, sum(&router, "prefix_router_queue_seconds_sum", &[]).await);
    assert!(waited > 0.25, "{waited}");
    assert!(own > 0.0 && own < waited / 2.0, "{own} of which nothing was waited: {waited}");
    assert_eq!(sum(&router, "prefix_router_prompt_bytes_sum", &[]).await, 2.0 * r#"[{"role":"user","content":"x"}]"#.len() as f64);
    // What has no prompt, or never went out, counts in neither.
    router.post("/tokenize", "{}").await;
    router.get("/sleep").await;
    router.has_metric("prefix_router_requests_total", &[], 4.0).await;
    assert_eq!(sum(&router, "prefix_router_prompt_bytes_count", &[]).await, 2.0);
    assert_eq!(sum(&router, "prefix_router_overhead_seconds_count", &[]).await, 3.0);
}

/// So many prompts with a system prompt of two thousand characters, then one of so many documents, then a question of its own.
fn prompts(count: usize, document: impl Fn(usize) -> usize) -> Vec<String> {
    let text = |number: usize| {
        let system = serde_json::json!({"role": "system", "content": "s".repeat(2_000)});
        let user = serde_json::json!({"role": "user", "content": format!("{:04}{} question {number}", document(number), "d".repeat(600))});
        serde_json::json!({"model": "m", "messages": [system, user]}).to_string()
    };
    (0..count).map(text).collect()
}

async fn fits(settings: &[(&str, &str)], prompts: &[String]) -> [f64; 5] {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let router = Router::start(&[&a, &b], settings).await;
    for prompt in prompts {
        assert_eq!(router.post(CHAT, prompt).await.status, 200);
    }
    let text = router.metrics().await;
    let share: f64 = samples(&text, "prefix_router_top_key_share_ratio", &[]).iter().sum();
    assert_eq!(samples(&text, "prefix_router_pool_replicas", &[]), [2.0]);
    let of = |fit| samples(&text, "prefix_router_keys_total", &[("fit", fit)]).iter().sum::<f64>() / prompts.len() as f64;
    [of("known"), of("new"), of("hot"), of("short"), share]
}

#[tokio::test]
async fn how_well_keys_divide_the_traffic_shows() {
    let documents = prompts(400, |number| number % 25);
    let [known, new, hot, short, share] = fits(&[("prefix_length", "2500")], &documents).await;
    assert!(known > 0.9 && new < 0.1 && hot + short < 0.01 && share < 0.1, "25 documents: {known} {new} {hot} {short} {share}");
    let [_, _, hot, short, share] = fits(&[("prefix_length", "1024")], &documents).await;
    assert!(short > 0.85 && hot < 0.1 && share > 0.99, "too short: {hot} {short} {share}");
    let [known, new, _, _, share] = fits(&[("prefix_length", "65536")], &documents).await;
    assert!(new > 0.99 && known < 0.01 && share < 0.05, "too long: {known} {new} {share}");
    let hot_one = prompts(400, |number| if number % 4 < 3 { 0 } else { number });
    let [_, _, hot, short, share] = fits(&[("prefix_length", "2500")], &hot_one).await;
    assert!(hot > 0.5 && short < 0.02 && share > 0.7, "one is hot: {hot} {short} {share}");
    // With a length that is worked out nothing is too short.
    let [_, _, _, short, share] = fits(&[("prefix_length", "auto")], &documents).await;
    assert!(short == 0.0 && share < 0.2, "auto: {short} {share}");
}

#[tokio::test]
async fn the_time_that_a_gate_is_closed_is_counted() {
    const SATURATED: &str = "prefix_router_saturated_seconds_total";
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let router = Router::start(&[&a, &b], &[("concurrency_threshold", "1")]).await;
    let body = router.chat_for(&a, "x").await;
    a.script(hang);
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", &body).await;
    eventually("two seconds are counted", async || sum(&router, SATURATED, &[("replica", "a")]).await > 1.9).await;
    assert_eq!(samples(&router.metrics().await, SATURATED, &[("replica", "b")]), [0.0]);
    drop(client);
}

#[tokio::test]
async fn limits_are_shown_beside_their_use_and_follow_a_reload() {
    const LIMIT: &str = "prefix_router_limit";
    let replica = Replica::start("a", ok);
    let filed = Filed::start(&[&replica], &[("max_connections", "100")]).await;
    let text = filed.router.metrics().await;
    assert_eq!(samples(&text, LIMIT, &[("limit", "max_connections")]), [100.0]);
    assert_eq!(samples(&text, LIMIT, &[("limit", "queue_max_requests")]), [] as [f64; 0], "nobody waits");
    filed.change(&[&replica], &[("max_connections", "200"), ("max_outstanding", "4"), ("queue_max_requests", "9")]).await;
    let text = filed.router.metrics().await;
    assert_eq!(samples(&text, LIMIT, &[("limit", "max_connections")]), [200.0]);
    assert_eq!(samples(&text, LIMIT, &[("limit", "queue_max_requests")]), [9.0]);
    filed.change(&[&replica], &[]).await;
    assert_eq!(samples(&filed.router.metrics().await, LIMIT, &[("limit", "queue_max_requests")]), [] as [f64; 0]);
}

#[tokio::test]
async fn metrics_can_be_off() {
    let replica = Replica::start("a", |_| stream(3, Duration::ZERO));
    let router = Router::start_cold(&[&replica], &[("metrics", "false")]).await;
    eventually("the replica answers", async || router.post(CHAT, chat("m", "x")).await.status == 200).await;
    let response = router.admin("/metrics").await;
    assert_eq!(response.status, 404);
    assert!(response.text().contains("metrics: false"), "{response:?}");
}
