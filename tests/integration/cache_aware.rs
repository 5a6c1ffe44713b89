//! `cache_aware` from outside: a prompt goes where its beginning is held, unless too much is to be computed there first.

use std::time::Duration;

use serde_json::json;

use crate::answers::{answer, ok, ok_after};
use crate::client::Client;
use crate::replica::{Gate, Replica, Request, Step};
use crate::support::{Router, eventually};

const CHAT: &str = "/v1/chat/completions";
const STRATEGY: (&str, &str) = ("strategy", "cache_aware");

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
    let router = Router::start(&fleet.iter().collect::<Vec<_>>(), &[STRATEGY]).await;
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
    let router = Router::start(&fleet.iter().collect::<Vec<_>>(), &[STRATEGY]).await;
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
    let router = Router::start(&[&fleet[0], &fleet[1]], &[STRATEGY, ("engine_metrics_interval", "100ms")]).await;
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
