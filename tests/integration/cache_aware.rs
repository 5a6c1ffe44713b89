//! `cache_aware` from outside: a prompt goes where its beginning is held, unless too much is to be computed there first.

use std::time::Duration;

use serde_json::json;

use crate::answers::{answer, chunk, head, last_chunk, ok, ok_after};
use crate::client::Client;
use crate::replica::{Gate, Replica, Request, Step};
use crate::support::{Router, Setting, eventually};

const CHAT: &str = "/v1/chat/completions";
const STRATEGY: Setting<'_> = ("strategy", "cache_aware");
const ALONE: Setting<'_> = ("routers", "1");

/// A stream's request under a system prompt of 40 KB: 10,000 tokens.
fn under(system: usize, question: &str) -> String {
    let system = format!("Document {system}. ").repeat(3_000);
    json!({"model": "m", "stream": true, "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}]})
        .to_string()
}

/// Holds a request without a first byte, and says where.
async fn hold<'a>(router: &Router, fleet: &'a [Replica], gate: &Gate, body: &str) -> (Client, &'a Replica) {
    let before: Vec<usize> = fleet.iter().map(Replica::open).collect();
    fleet.iter().for_each(|replica| replica.script(ok_after(gate)));
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", body).await;
    let holds = || fleet.iter().zip(&before).find(|(replica, before)| replica.open() > **before).map(|(replica, _)| replica);
    eventually("the request is held", async || holds().is_some()).await;
    fleet.iter().for_each(|replica| replica.script(ok));
    (client, holds().expect("somebody holds it"))
}

fn fleet() -> [Replica; 3] {
    ["a", "b", "c"].map(|name| Replica::start(name, ok))
}

#[tokio::test]
async fn a_prompt_goes_where_its_beginning_is() {
    let fleet = fleet();
    let router = Router::start(&fleet.iter().collect::<Vec<_>>(), &[STRATEGY, ALONE]).await;
    let first = router.post(CHAT, under(1, "a")).await;
    assert_eq!((first.status, first.reason()), (200, "home"));
    for question in ["b", "c", "d"] {
        let response = router.post(CHAT, under(1, question)).await;
        assert_eq!((response.replica(), response.reason()), (first.replica(), "home"));
    }
    // Its home has another long prompt to compute, so it goes elsewhere, and stays there for what is held there too.
    let gate = Gate::new();
    let mut others = Vec::new();
    for number in 2.. {
        let (client, replica) = hold(&router, &fleet, &gate, &under(number, "x")).await;
        let is_there = replica.name == first.replica();
        others.push(client);
        if is_there {
            break;
        }
    }
    for number in 100..103 {
        // Not known anywhere: none goes to who has most to do.
        let response = router.post(CHAT, under(number, "x")).await;
        assert_eq!(response.status, 200);
    }
    // What it holds need not be computed: it waits for the other one, which is sooner than to compute all of it elsewhere twice over.
    assert_eq!(router.post(CHAT, under(1, "e")).await.replica(), first.replica());
    gate.open();
    drop(others);
    router.is_at_rest().await;
}

#[tokio::test]
async fn others_go_elsewhere_while_a_long_prompt_is_computed_and_who_needs_it_does_not() {
    let fleet = fleet();
    let router = Router::start(&fleet.iter().collect::<Vec<_>>(), &[STRATEGY, ALONE]).await;
    let gate = Gate::new();
    let (held, home) = hold(&router, &fleet, &gate, &under(1, "a")).await;
    // Of another prompt nothing is anywhere, so it goes to its first choice unless that is busy: one of several would go to the busy one.
    for number in 2..12 {
        assert_ne!(router.post(CHAT, under(number, "x")).await.replica(), home.name, "{number}");
    }
    // What is being computed there will be there.
    assert_eq!(router.post(CHAT, under(1, "b")).await.replica(), home.name);
    gate.open();
    drop(held);
    router.is_at_rest().await;
    assert_eq!(router.post(CHAT, under(1, "c")).await.replica(), home.name);
}

#[tokio::test]
async fn what_an_engine_says_of_its_queue_is_believed() {
    let page = |waiting: u32| {
        move |request: &Request| -> Vec<Step> {
            let text = format!("vllm:num_requests_running{{engine=\"0\"}} 1.0\nvllm:num_requests_waiting{{engine=\"0\"}} {waiting}.0\n");
            if request.head.start.starts_with("GET /metrics ") { answer(200, "content-type: text/plain\r\n", &text) } else { ok(request) }
        }
    };
    let fleet = ["a", "b"].map(|name| Replica::start(name, page(0)));
    let router = Router::start(&[&fleet[0], &fleet[1]], &[STRATEGY, ALONE, ("engine_metrics_interval", "100ms")]).await;
    let home = router.post(CHAT, under(1, "a")).await.replica().to_owned();
    let (home, other) = if home == "a" { (&fleet[0], &fleet[1]) } else { (&fleet[1], &fleet[0]) };
    home.script(page(500));
    router.has_metric("prefix_router_engine_waiting", &[("replica", home.name)], 500.0).await;
    // It is shown a moment before it is believed.
    eventually("it goes elsewhere", async || router.post(CHAT, under(1, "b")).await.replica() == other.name).await;
    home.script(page(0));
    router.has_metric("prefix_router_engine_waiting", &[("replica", home.name)], 0.0).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    // Both hold it now; the first choice is the one to go to.
    assert_eq!(router.post(CHAT, under(1, "c")).await.replica(), home.name);
}

/// A whole answer that tells so of its prompt of 10,000 tokens.
fn tells(cached: u64) -> impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static {
    let usage = json!({"prompt_tokens": 10_000, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}});
    let body = json!({"object": "chat.completion", "choices": [], "usage": usage}).to_string();
    move |_: &Request| answer(200, "content-type: application/json\r\n", &body)
}

#[tokio::test]
async fn predicted_and_observed_are_counted_and_a_picture_that_is_wrong_is_shown_until_it_is_right() {
    let fleet = fleet();
    let router = Router::start(&fleet.iter().collect::<Vec<_>>(), &[STRATEGY, ALONE, ("prefix_length", "4096")]).await;
    let of_home = async |name: &str, home: &str| router.metric(name, &[("replica", home)]).await;
    let counted = async |kind: &str, home: &str| {
        router.metric("prefix_router_forecast_cached_tokens_total", &[("replica", home), ("kind", kind)]).await
    };
    let send = async |cached: u64, times: usize| {
        fleet.iter().for_each(|replica| replica.script(tells(cached)));
        let mut home = String::new();
        for number in 0..times {
            home = router.post(CHAT, under(1, &number.to_string())).await.replica().to_owned();
        }
        home
    };
    // The first finds nothing, as was to be expected; the others all of it.
    send(0, 1).await;
    let home = send(9_900, 20).await;
    let (predicted, observed) = (counted("predicted", &home).await, counted("observed", &home).await);
    assert_eq!(observed, 198_000.0);
    assert!((predicted / observed - 1.0).abs() < 0.05, "{predicted}");
    assert_eq!(of_home("prefix_router_picture_wrong", &home).await, 0.0);
    assert!(of_home("prefix_router_learnt_kept_ratio", &home).await > 0.9);
    // A document has 36 KB.
    let bytes = of_home("prefix_router_learnt_prompt_bytes_per_token", &home).await;
    assert!((3.5..3.7).contains(&bytes), "{bytes}");
    assert!(of_home("prefix_router_picture_held_bytes", &home).await > 30_000.0);
    assert_eq!(router.metric("prefix_router_forecast_error_ratio_count", &[("replica", &home)]).await, 21.0);
    // Its cache is gone, and stays so.
    assert_eq!(send(0, 60).await, home);
    router.has_metric("prefix_router_picture_wrong", &[("replica", &home)], 1.0).await;
    assert_eq!(counted("observed", &home).await, observed);
    assert_eq!(send(9_900, 60).await, home);
    router.has_metric("prefix_router_picture_wrong", &[("replica", &home)], 0.0).await;
}

#[tokio::test]
async fn what_comes_before_a_prompt_is_computed_is_no_beginning() {
    let created = "event: response.created\ndata: {\"type\":\"response.created\"}\n\n";
    let delta = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
    for (path, first, is_computed) in
        [(CHAT, ": ping\n\n", false), ("/v1/responses", created, false), (CHAT, delta, true), (CHAT, ": ping\n\ndata: {}\n\n", true)]
    {
        let fleet = fleet();
        let router = Router::start(&fleet.iter().collect::<Vec<_>>(), &[STRATEGY, ALONE]).await;
        let gate = Gate::new();
        let steps = [head(), chunk(first), Step::Wait(gate.clone()), last_chunk()];
        fleet.iter().for_each(|replica| {
            let steps = steps.to_vec();
            replica.script(move |_: &Request| steps.clone());
        });
        let body = match path {
            CHAT => under(1, "a"),
            _ => json!({"model": "m", "stream": true, "input": "Document 1. ".repeat(3_000)}).to_string(),
        };
        let mut client = Client::connect(router.traffic).await;
        client.start("POST", path, "", &body).await;
        let mut framing = client.head().await.response_framing("POST");
        assert_eq!(client.text(&mut framing).await, first);
        let home = fleet.iter().find(|replica| replica.open() > 0).expect("somebody holds it").name;
        fleet.iter().for_each(|replica| replica.script(ok));
        // Nobody holds these: they go to their first choice unless it has something to compute.
        let mut there = 0;
        for number in 2..12 {
            there += usize::from(router.post(CHAT, under(number, "x")).await.replica() == home);
        }
        assert_eq!(there > 0, is_computed, "{path} {first:?}: {there}");
        gate.open();
    }
}
