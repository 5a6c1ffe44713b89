//! Clients that leave the simulated replica, and faults that it is told to have.

use std::time::Instant;

use serde_json::{Value, json};

use crate::client::Client;
use crate::simulated::{Simulated, settings};
use crate::wire::{End, Piece};

const CHAT: &str = "/v1/chat/completions";

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Good morning"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn fault(replica: &Simulated, fault: Value) {
    let response = replica.send("POST", "/demo/faults", &fault).await;
    assert_eq!(response.status, 200, "{}", response.text());
}

/// An answer, or as much of it as comes: the status (0 without a head), the body, and how it ended.
async fn answer(replica: &Simulated, body: &Value) -> (u16, String, End) {
    let mut client = replica.begin(CHAT, body).await;
    match client.try_response("POST").await {
        Some(response) => (response.status, response.text(), response.body.end),
        None => (0, String::new(), End::Cut),
    }
}

#[tokio::test]
async fn whoever_leaves_is_taken_out_at_once() {
    let mut slow = settings();
    // The prefill alone takes long: nothing is written while the client leaves.
    slow.engine.cost.step = 60.0;
    let replica = Simulated::start(slow).await;
    for (aborted, stream) in [(1, true), (2, false)] {
        let mut client = replica.begin(CHAT, &chat(json!({ "stream": stream }))).await;
        if stream {
            assert_eq!(client.head().await.status(), 200, "the head comes before the prefill");
        }
        replica.counts("open", 1).await;
        assert_eq!(replica.get("/load").await["server_load"], 1);
        drop(client);
        replica.counts("aborted", aborted).await;
    }
    assert_eq!(replica.metric("vllm:request_success_total", "abort").await, 2.0);
    assert_eq!(replica.metric("vllm:num_requests_running", "").await, 0.0);
    assert_eq!(replica.get("/load").await["server_load"], 0);
}

#[tokio::test]
async fn leaving_a_stream_in_the_middle_is_an_abort_too() {
    let replica = Simulated::start(settings()).await;
    let body = chat(json!({"stream": true, "ignore_eos": true}));
    let mut client = replica.begin(CHAT, &body).await;
    let mut framing = client.head().await.response_framing("POST");
    assert!(matches!(client.piece(&mut framing).await, Piece::Data(_)));
    drop(client);
    replica.counts("aborted", 1).await;
    assert_eq!(replica.metric("vllm:num_requests_running", "").await, 0.0);
    // What was in the cache stays there, and what was counted.
    assert!(replica.metric("vllm:generation_tokens_total", "").await >= 1.0);
}

#[tokio::test]
async fn answers_break_off_where_they_are_told_to() {
    let replica = Simulated::start(settings()).await;
    let stream = chat(json!({"stream": true, "max_tokens": 5}));
    for (at, events) in [(json!("connect"), None), (json!("head"), Some(0)), (json!("first_event"), Some(1)), (json!(3), Some(3))] {
        fault(&replica, json!({"fault": "reset", "at": at, "times": 1})).await;
        let (status, body, end) = answer(&replica, &stream).await;
        assert_eq!((status, end), (if events.is_some() { 200 } else { 0 }, End::Cut), "{at}");
        assert_eq!(body.matches("data: ").count(), events.unwrap_or(0), "{at}: {body}");
        let (status, body, end) = answer(&replica, &stream).await;
        assert_eq!((status, end, body.ends_with("data: [DONE]\n\n")), (200, End::Whole, true), "it was only once");
    }
    for at in ["connect", "head", "first_event"] {
        fault(&replica, json!({"fault": "reset", "at": at, "times": 1})).await;
        let (status, body, end) = answer(&replica, &chat(json!({"max_tokens": 5}))).await;
        assert_eq!((status, end, body.is_empty()), (if at == "connect" { 0 } else { 200 }, End::Cut, at != "first_event"), "{at}: {body}");
    }
    fault(&replica, json!({"fault": "truncate", "at": 2, "times": 1})).await;
    let (status, body, end) = answer(&replica, &stream).await;
    assert_eq!((status, end, body.matches("data: ").count(), body.contains("[DONE]")), (200, End::Whole, 2, false));
}

#[tokio::test]
async fn statuses_are_as_told() {
    let replica = Simulated::start(settings()).await;
    fault(&replica, json!({"fault": "status", "status": 503, "retry_after": "7", "body": false, "health": true})).await;
    let busy = replica.send("POST", CHAT, &chat(json!({}))).await;
    assert_eq!((busy.status, busy.head.get("retry-after"), busy.text().as_str()), (503, Some("7"), ""));
    assert_eq!(replica.send("GET", "/health", &Value::Null).await.status, 503);
    assert_eq!(replica.send("DELETE", "/demo/faults", &Value::Null).await.text(), "[]");
    fault(&replica, json!({"fault": "status", "status": 500, "times": 1})).await;
    let failed = replica.send("POST", CHAT, &chat(json!({}))).await;
    assert_eq!((failed.status, failed.text().contains("\"type\":\"InternalServerError\"")), (500, true));
    assert_eq!(replica.send("POST", CHAT, &chat(json!({}))).await.status, 200);
    assert_eq!(replica.get("/demo/requests").await["refused"], 2);
}

#[tokio::test]
async fn a_stalled_replica_takes_requests_and_says_nothing() {
    let replica = Simulated::start(settings()).await;
    fault(&replica, json!({"fault": "stall", "health": true})).await;
    let mut stalled = replica.begin(CHAT, &chat(json!({}))).await;
    let mut probe = Client::connect(replica.address()).await;
    probe.start("GET", "/health", "", "").await;
    stalled.hears_nothing().await;
    probe.hears_nothing().await;
    drop(stalled);
    replica.counts("aborted", 1).await;
    replica.send("DELETE", "/demo/faults", &Value::Null).await;
    assert_eq!(replica.send("GET", "/health", &Value::Null).await.status, 200);
}

#[tokio::test]
async fn an_engine_that_starts_or_is_slow_answers_later() {
    let replica = Simulated::start(settings()).await;
    let timed = async |seconds: f64| {
        let begun = Instant::now();
        assert_eq!(replica.send("POST", CHAT, &chat(json!({"max_tokens": 5}))).await.status, 200);
        assert!(begun.elapsed().as_secs_f64() > seconds, "{:?} instead of {seconds} s", begun.elapsed());
    };
    fault(&replica, json!({"fault": "slow_start", "seconds": 0.3})).await;
    assert_eq!(replica.send("GET", "/health", &Value::Null).await.status, 503);
    timed(0.2).await;
    assert_eq!(replica.send("GET", "/health", &Value::Null).await.status, 200);
    fault(&replica, json!({"fault": "slow", "seconds": 0.2, "times": 1})).await;
    timed(0.2).await;
    fault(&replica, json!({"fault": "slow", "factor": 40})).await;
    timed(0.16).await;
    // Those that are over are not shown.
    assert_eq!(replica.get("/demo/faults").await, json!([{"fault": "slow", "factor": 40.0}]));
}

#[tokio::test]
async fn the_cache_can_be_emptied() {
    let replica = Simulated::start(settings()).await;
    let ask = async || {
        let answer = replica.post("/v1/completions", json!({"prompt": "a ".repeat(200), "max_tokens": 1})).await;
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!((ask().await, ask().await), (0, 96));
    fault(&replica, json!({"fault": "cache_reset"})).await;
    assert_eq!((ask().await, ask().await), (0, 96));
    assert_eq!(replica.send("POST", "/reset_prefix_cache", &Value::Null).await.text(), r#"{"success":true}"#);
    assert_eq!(ask().await, 0);
    assert_eq!(replica.metric("vllm:prefix_cache_hits_total", "").await, 192.0);
    assert_eq!(replica.metric("vllm:prompt_tokens_total", "").await, 500.0);
}

#[tokio::test]
async fn wrong_faults_are_refused() {
    let replica = Simulated::start(settings()).await;
    let response = replica.send("POST", "/demo/faults", &json!({"fault": "reset", "at": "tail"})).await;
    assert_eq!(response.status, 400);
    assert!(response.text().contains("allowed: \\\"connect\\\""), "{}", response.text());
    assert_eq!(replica.get("/demo/faults").await, json!([]));
}

#[tokio::test]
async fn a_stopped_replica_is_gone() {
    let replica = Simulated::start(settings()).await;
    let address = replica.address();
    let mut client = replica.begin(CHAT, &chat(json!({"stream": true, "ignore_eos": true}))).await;
    assert_eq!(client.head().await.status(), 200);
    replica.stop().await;
    client.closed().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}
