//! The last requests, each with where it went and why; and what all of them come to.

use std::time::Duration;

use serde_json::{Value, json};

use crate::answers::{answer, chunk, event, head, last_chunk, ok, ok_after, reset};
use crate::client::Client;
use crate::replica::{Gate, Replica, Step};
use crate::support::{Filed, Router, chat, eventually, samples};

const CHAT: &str = "/v1/chat/completions";

/// The last decisions, the newest first, once so many requests have ended.
async fn decisions(router: &Router, ended: usize) -> Vec<Value> {
    eventually("all requests have ended", async || router.api("GET", "/api/v1/decisions").await.1["last"] == ended).await;
    let (status, answer) = router.api("GET", "/api/v1/decisions?limit=512").await;
    assert_eq!(status, 200, "{answer}");
    answer["decisions"].as_array().expect("decisions").clone()
}

fn text<'a>(decision: &'a Value, field: &str) -> &'a str {
    decision[field].as_str().unwrap_or_else(|| panic!("no {field} in {decision}"))
}

#[tokio::test]
async fn a_request_is_there_as_its_client_saw_it() {
    let usage = r#"{"usage":{"prompt_tokens":100,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":75}}}"#;
    let a = Replica::start("a", move |_| answer(200, "content-type: application/json\r\n", usage));
    let router = Router::start(&[&a], &[]).await;
    let answered = router.send("POST", CHAT, "x-request-id: mine-1\r\n", chat("x")).await;
    // What load balancers ask all the time, and the router answers itself, is none.
    router.get("/health").await;
    router.post(CHAT, "{}").await;
    router.get("/nothing").await;
    let all = decisions(&router, 3).await;
    let [refused, keyless, first] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!([&first["id"], &keyless["id"], &refused["id"]], [1, 2, 3]);
    assert_eq!(
        (text(first, "request_id"), text(first, "replica"), text(first, "reason")),
        ("mine-1", answered.replica(), answered.reason())
    );
    assert_eq!(
        (text(first, "method"), text(first, "route"), &first["status"], &first["error"]),
        ("POST", "chat_completions", &json!(200), &Value::Null)
    );
    assert_eq!((&first["prompt_tokens"], &first["cached_tokens"], &first["completion_tokens"]), (&json!(100), &json!(75), &json!(7)));
    assert_eq!((&first["tries"], text(first, "failed"), &first["queued"]), (&json!(1), "", &Value::Null));
    assert!(first["first_byte"].as_f64() <= first["duration"].as_f64() && first["key"].is_string(), "{first}");
    assert_eq!(text(first, "why"), "Prompts that begin with the same character belong to a.");
    assert_eq!((text(keyless, "reason"), &keyless["key"]), ("no_key", &Value::Null));
    assert_eq!((&refused["status"], text(refused, "error"), text(refused, "reason")), (&json!(403), "path_not_exposed", "none"));
    assert!(text(refused, "why").contains("path_not_exposed"), "{refused}");
    // Only what is new, and only so many.
    let ids = async |query: &str| -> Vec<u64> {
        let (_, answer) = router.api("GET", &format!("/api/v1/decisions{query}")).await;
        answer["decisions"].as_array().expect("decisions").iter().map(|decision| decision["id"].as_u64().expect("a number")).collect()
    };
    assert_eq!(ids("?after=1").await, [3, 2]);
    assert_eq!(ids("?after=1&limit=1").await, [3]);
    assert_eq!(ids("?after=18446744073709551615").await, [0; 0]);
}

#[tokio::test]
async fn who_failed_who_was_passed_over_and_who_waited_is_said() {
    let fleet = ["a", "b", "c"].map(|name| Replica::start(name, ok));
    let replicas: Vec<&Replica> = fleet.iter().collect();
    let router = Router::start(&replicas, &[("concurrency_threshold", "1"), ("max_outstanding", "1")]).await;
    let home = router.post(CHAT, chat("x")).await.replica().to_owned();
    let at_home = fleet.iter().find(|replica| replica.name == home).expect("one of them");
    // Its home breaks.
    at_home.script(reset);
    let moved = router.post(CHAT, chat("x")).await;
    assert_eq!((moved.status, moved.reason()), (200, "failover"));
    let all = decisions(&router, 2).await;
    assert_eq!((&all[0]["tries"], text(&all[0], "failed")), (&json!(2), format!("{home} broke").as_str()));
    assert_eq!(text(&all[0], "why"), format!("Tried before: {home} broke; so {} took it.", moved.replica()));
    // Its home is at its threshold.
    let gate = Gate::new();
    at_home.script(ok_after(&gate));
    let mut held = Client::connect(router.traffic).await;
    held.start("POST", CHAT, "", chat("x")).await;
    eventually("its home has one", async || router.metric("prefix_router_outstanding", &[("replica", &home)]).await == 1.0).await;
    let over = router.post(CHAT, chat("x")).await;
    assert_eq!((over.status, over.reason()), (200, "overflow"));
    let all = decisions(&router, 3).await;
    assert_eq!(text(&all[0], "why"), format!("As {home}, its home with 1 in flight, took no more, {} took it.", over.replica()));
    let (_, seen) = router.api("GET", "/api/v1/fleet").await;
    let seen =
        seen["replicas"].as_array().expect("replicas").iter().find(|replica| replica["name"] == home.as_str()).expect("its home").clone();
    assert_eq!((&seen["threshold"], &seen["outstanding"]), (&json!(1), &json!(1)));
    // All are full, and it waits; then its client leaves.
    let mut others = Vec::new();
    for replica in fleet.iter().filter(|replica| replica.name != home) {
        replica.script(ok_after(&gate));
    }
    for _ in 0..2 {
        let mut client = Client::connect(router.traffic).await;
        client.start("POST", CHAT, "", chat("x")).await;
        others.push(client);
    }
    eventually("all are full", async || router.metric("prefix_router_outstanding", &[]).await == 3.0).await;
    let mut waiting = Client::connect(router.traffic).await;
    waiting.start("POST", CHAT, "", chat("x")).await;
    eventually("one waits", async || router.api("GET", "/api/v1/overview").await.1["queue"]["requests"] == 1).await;
    assert!(router.api("GET", "/api/v1/overview").await.1["queue"]["bytes"].as_u64() > Some(0));
    drop(waiting);
    let all = decisions(&router, 4).await;
    assert_eq!((&all[0]["status"], text(&all[0], "why")), (&json!(499), "The client left before a replica was chosen."));
    let mut waiting = Client::connect(router.traffic).await;
    waiting.start("POST", CHAT, "", chat("x")).await;
    eventually("one waits", async || router.api("GET", "/api/v1/overview").await.1["queue"]["requests"] == 1).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    gate.open();
    assert_eq!(waiting.response("POST").await.status, 200);
    let all = decisions(&router, 8).await;
    let queued: Vec<f64> = all.iter().filter_map(|decision| decision["queued"].as_f64()).collect();
    assert!(queued.iter().any(|&seconds| seconds >= 0.02), "{all:?}");
}

#[tokio::test]
async fn as_many_are_kept_as_is_configured() {
    let a = Replica::start("a", ok);
    let filed = Filed::start(&[&a], &[("recent_decisions", "3")]).await;
    let router = &filed.router;
    let send = async |count: usize| {
        for _ in 0..count {
            router.post(CHAT, chat("x")).await;
        }
    };
    send(5).await;
    let all = decisions(router, 5).await;
    assert_eq!(all.iter().map(|decision| decision["id"].as_u64()).collect::<Vec<_>>(), [Some(5), Some(4), Some(3)]);
    filed.change(&[&a], &[("recent_decisions", "1")]).await;
    assert_eq!(decisions(router, 5).await.len(), 1);
    filed.change(&[&a], &[("recent_decisions", "0")]).await;
    send(2).await;
    router.has_metric("prefix_router_requests_total", &[], 7.0).await;
    let (_, answer) = router.api("GET", "/api/v1/decisions").await;
    assert_eq!(answer, json!({"kept": 0, "last": 5, "decisions": []}), "none are kept, and none are counted");
}

#[tokio::test]
async fn a_stream_that_breaks_is_one_that_failed() {
    let a = Replica::start("a", |_| vec![head(), chunk(event(0)), Step::Reset]);
    let router = Router::start(&[&a], &[]).await;
    router.post(CHAT, chat("x")).await;
    let all = decisions(&router, 1).await;
    assert_eq!((&all[0]["status"], text(&all[0], "replica")), (&json!(200), "a"));
    assert!(all[0]["error"].is_string(), "{all:?}");
    assert_eq!(router.api("GET", "/api/v1/fleet").await.1["replicas"][0]["recent"]["failed"], 1);
}

#[tokio::test]
async fn the_overview_says_what_metrics_say() {
    let usage = r#"data: {"usage":{"prompt_tokens":100,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":75}}}"#;
    let a = Replica::start("a", move |_| vec![head(), chunk(event(0)), chunk(format!("{usage}\n\n")), last_chunk()]);
    let router = Router::start(&[&a], &[]).await;
    for number in 0..5 {
        router.post(CHAT, chat(&number.to_string())).await;
    }
    router.post(CHAT, "{}").await;
    router.get("/health").await;
    router.get("/nothing").await;
    router.has_metric("prefix_router_requests_total", &[], 8.0).await;
    let (_, overview) = router.api("GET", "/api/v1/overview").await;
    let metrics = router.metrics().await;
    let sum = |name: &str, label: &str, value: &str| samples(&metrics, name, &[(label, value)]).iter().sum::<f64>();
    let requests = &overview["requests"];
    assert_eq!(requests["total"], 8);
    for (group, label) in [("by_reason", "reason"), ("by_status", "status")] {
        let group = requests[group].as_object().expect("counts");
        for (value, count) in group {
            assert_eq!(count.as_f64(), Some(sum("prefix_router_requests_total", label, value)), "{label} {value}");
        }
        assert_eq!(group.values().filter_map(Value::as_u64).sum::<u64>(), 8);
    }
    assert_eq!(
        (&requests["by_reason"]["home"], &requests["by_reason"]["none"], &requests["by_status"]["4xx"]),
        (&json!(5), &json!(2), &json!(1))
    );
    assert_eq!((&overview["savings"]["source"], &overview["savings"]["share"]), (&json!("usage"), &json!(0.75)));
    assert_eq!(overview["savings"]["cached_tokens"].as_f64(), Some(sum("prefix_router_usage_tokens_total", "kind", "cached")));
    assert_eq!(overview["strategy"], "prefix_aware");
    assert!(overview["started"].as_f64() < overview["now"].as_f64(), "{overview}");
}

#[tokio::test]
async fn hot_keys_are_those_that_many_requests_have() {
    let fleet = ["a", "b"].map(|name| Replica::start(name, ok));
    let router = Router::start(&fleet.iter().collect::<Vec<_>>(), &[]).await;
    assert_eq!(router.api("GET", "/api/v1/hot-keys").await, (200, json!({"pools": []})));
    let mut home = String::new();
    for number in 0..90 {
        home = router.post(CHAT, chat("the same")).await.replica().to_owned();
        if number % 3 == 0 {
            router.post(CHAT, chat(&number.to_string())).await;
        }
    }
    let all = decisions(&router, 120).await;
    let (_, hot) = router.api("GET", "/api/v1/hot-keys").await;
    let pool = &hot["pools"][0];
    assert_eq!((&pool["pool"], &pool["replicas"], &pool["keys"][0]["home"]), (&json!("any_name"), &json!(2), &json!(home)));
    assert_eq!(pool["keys"][0]["key"], all[0]["key"], "the key of its requests");
    let share = pool["keys"][0]["share"].as_f64().expect("a share");
    assert!((0.6..=0.76).contains(&share), "{hot}");
}

#[tokio::test]
async fn without_metrics_decisions_are_kept_and_what_is_not_counted_is_said() {
    let a = Replica::start("a", ok);
    let router = Router::start_cold(&[&a], &[("metrics", "false")]).await;
    eventually("it is up", async || router.api("GET", "/api/v1/fleet").await.1["replicas"][0]["state"] == "up").await;
    router.post(CHAT, chat("x")).await;
    assert_eq!(text(&decisions(&router, 1).await[0], "replica"), "a");
    let (_, overview) = router.api("GET", "/api/v1/overview").await;
    assert_eq!((&overview["counted"], &overview["requests"]["total"]), (&json!(false), &json!(0)));
    assert!(overview["savings"]["text"].as_str().is_some_and(|text| text.contains("metrics: false")), "{overview}");
}

#[tokio::test]
async fn how_many_answers_tell_of_cached_tokens_does_not_depend_on_the_strategy() {
    let usage = r#"{"usage":{"prompt_tokens":100,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":75}}}"#;
    for strategy in ["prefix_aware", "least_outstanding", "random"] {
        let a = Replica::start("a", move |_| answer(200, "content-type: application/json\r\n", usage));
        let router = Router::start(&[&a], &[("strategy", strategy)]).await;
        router.post(CHAT, chat("x")).await;
        a.script(ok);
        router.post(CHAT, chat("x")).await;
        router.has_metric("prefix_router_requests_total", &[], 2.0).await;
        decisions(&router, 2).await;
        assert_eq!(router.api("GET", "/api/v1/overview").await.1["savings"]["telling"], 0.5, "{strategy}");
    }
}
