//! Requests to the simulated replica that ask for more than its host has: each is refused, or cut short, at once.

use std::time::Instant;

use serde_json::{Value, json};

use crate::client::Client;
use crate::simulated::{Simulated, settings};
use crate::support::PATIENCE;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const EMBEDDINGS: &str = "/v1/embeddings";

#[tokio::test]
async fn what_costs_too_much_is_refused_at_once() {
    let replica = Simulated::start(settings()).await;
    let user = json!([{"role": "user", "content": "x"}]);
    let tokens = "This simulated replica takes at most 1048576 tokens";
    for (path, body, param, message) in [
        (COMPLETIONS, json!({"prompt": "x", "max_tokens": 131_000, "n": 1_024, "ignore_eos": true}), json!("n"), tokens),
        (COMPLETIONS, json!({"prompt": vec!["x"; 1_024], "max_tokens": 131_000, "ignore_eos": true}), json!("prompt"), tokens),
        (COMPLETIONS, json!({"prompt": vec!["x".repeat(8_000); 1_024], "max_tokens": 1}), json!("prompt"), tokens),
        (COMPLETIONS, json!({"prompt": "x", "max_tokens": 100_000, "n": 3, "ignore_eos": true, "logprobs": 1}), json!("logprobs"), tokens),
        (CHAT, json!({"messages": user, "n": 16_384, "ignore_eos": true}), json!("n"), tokens),
        (CHAT, json!({"messages": user, "n": 16_385}), json!(null), "n must be at most 16384, got 16385. To increase this limit, set the"),
        (
            COMPLETIONS,
            json!({"prompt": vec!["x"; 1_025]}),
            json!("prompt"),
            "prompt list length 1025 exceeds the maximum allowed count of 1024",
        ),
        (COMPLETIONS, json!({"prompt": "x", "stop": vec!["x"; 65]}), json!("stop"), "stop list length 65 exceeds"),
        (EMBEDDINGS, json!({"input": vec!["x"; 2_049]}), json!("input"), "input list length 2049 exceeds"),
        (
            EMBEDDINGS,
            json!({"input": vec!["x"; 2_048], "dimensions": 8_192}),
            json!("input"),
            "2048 inputs with 8192 dimensions each exceed",
        ),
        (EMBEDDINGS, json!({"input": vec!["x".repeat(8_000); 2_000], "dimensions": 1}), json!("input"), tokens),
        ("/tokenize", json!({"prompt": "x".repeat(5_000_000)}), json!("prompt"), tokens),
    ] {
        let begun = Instant::now();
        let response = replica.send("POST", path, &body).await;
        assert!(begun.elapsed() < PATIENCE, "{param} took {:?}", begun.elapsed());
        let answer: Value = serde_json::from_slice(&response.body.bytes).unwrap();
        assert_eq!((response.status, &answer["error"]["param"]), (400, &param), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().starts_with(message), "{answer}");
    }
}

#[tokio::test]
async fn what_is_only_much_is_answered() {
    let replica = Simulated::start(settings()).await;
    let many = replica.post(CHAT, json!({"messages": [{"role": "user", "content": "x"}], "n": 100})).await;
    assert_eq!(many["choices"].as_array().map(Vec::len), Some(100));
    let long = replica.post(COMPLETIONS, json!({"prompt": "x", "max_tokens": 3_000, "ignore_eos": true, "stop": "no such"})).await;
    assert_eq!(long["usage"]["completion_tokens"], 3_000);
    let vectors = replica.post(EMBEDDINGS, json!({"input": vec!["x"; 1_000], "dimensions": 1_024, "encoding_format": "base64"})).await;
    assert_eq!(vectors["data"].as_array().map(Vec::len), Some(1_000));
}

#[tokio::test]
async fn short_schemas_that_ask_for_much_get_little() {
    let replica = Simulated::start(settings()).await;
    let many = |items: Value| json!({"type": "array", "minItems": 10_000, "items": items});
    let schema = many(many(many(json!({"type": "string", "minLength": 1_000_000_000}))));
    let format = json!({"type": "json_schema", "json_schema": {"name": "much", "schema": schema}});
    let begun = Instant::now();
    let body = json!({"messages": [{"role": "user", "content": "x"}], "n": 100, "max_tokens": 5, "response_format": format});
    let answer = replica.post(CHAT, body).await;
    assert_eq!(answer["choices"][99]["finish_reason"], "length");
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn bodies_have_a_limit() {
    let replica = Simulated::start(settings()).await;
    let values = format!("{{\"prompt\": [{}1]}}", "1,".repeat(1 << 21));
    let response =
        Client::connect(replica.address()).await.request("POST", COMPLETIONS, "content-type: application/json\r\n", values).await;
    assert_eq!(response.status, 413, "{}", response.text());
    let mut client = Client::connect(replica.address()).await;
    let fields = "content-type: application/json\r\nexpect: 100-continue\r\n";
    assert!(client.write(format!("POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\n{fields}content-length: {}\r\n\r\n", (64 << 20) + 1)).await);
    let part = vec![b' '; 1 << 20];
    for _ in 0..64 {
        assert!(client.write(&part).await);
    }
    assert!(client.write(" ").await);
    let mut head = client.head().await;
    while head.status() == 100 {
        head = client.head().await;
    }
    assert_eq!(head.status(), 413);
}

#[tokio::test]
async fn faults_have_a_limit() {
    let replica = Simulated::start(settings()).await;
    for _ in 0..100 {
        assert_eq!(replica.send("POST", "/demo/faults", &json!({"fault": "slow", "seconds": 0})).await.status, 200);
    }
    let more = replica.send("POST", "/demo/faults", &json!({"fault": "stall"})).await;
    assert_eq!((more.status, more.text().contains("100 faults are on; allowed: 100; DELETE clears them")), (400, true));
    assert_eq!(replica.get("/demo/faults").await.as_array().map(Vec::len), Some(100));
}

#[tokio::test]
async fn a_step_under_way_goes_on_at_the_old_pace_when_faults_are_cleared() {
    let mut settings = settings();
    settings.engine.cost.step = 0.06;
    let replica = Simulated::start(settings).await;
    assert_eq!(replica.send("POST", "/demo/faults", &json!({"fault": "slow", "factor": 1_000})).await.status, 200);
    let mut client = replica.begin(COMPLETIONS, &json!({"prompt": "x", "max_tokens": 2})).await;
    replica.counts("open", 1).await;
    let begun = Instant::now();
    replica.send("DELETE", "/demo/faults", &Value::Null).await;
    assert_eq!(client.response("POST").await.status, 200);
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn the_dearest_steps_are_only_long() {
    let mut dear = settings();
    dear.engine.cost.prefill_token = 60.0;
    dear.engine.step_tokens = 1 << 24;
    let replica = Simulated::start(dear).await;
    assert_eq!(replica.send("POST", "/demo/faults", &json!({"fault": "slow", "factor": 1_000})).await.status, 200);
    let client = replica.begin(COMPLETIONS, &json!({"prompt": "x".repeat(400_000), "max_tokens": 2})).await;
    replica.counts("open", 1).await;
    assert_eq!(replica.send("GET", "/health", &Value::Null).await.status, 200, "its engine is not broken");
    drop(client);
    replica.counts("aborted", 1).await;
}
