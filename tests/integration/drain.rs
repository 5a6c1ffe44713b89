//! The router's own end: it says so, finishes what runs, and is gone.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::net::TcpStream;

use crate::answers::{chunk, event, head, last_chunk, ok, reset};
use crate::client::{Client, End, Response};
use crate::h2::H2;
use crate::replica::{Gate, Replica, Step};
use crate::support::{A_WHILE, Folder, Router, chat, check_error, eventually, list, text};
use crate::wire::Framing;

const CHAT: &str = "/v1/chat/completions";

/// A router with a stream under way that goes on when the gate opens.
async fn running(settings: &[(&str, &str)]) -> (Replica, Router, Gate, Client, Framing) {
    let gate = Gate::new();
    let steps = vec![head(), chunk(event(0)), Step::Wait(gate.clone()), chunk(event(1)), last_chunk()];
    let replica = Replica::start("a", move |_| steps.clone());
    let router = Router::start(&[&replica], settings).await;
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", "{}").await;
    let mut framing = client.head().await.response_framing("POST");
    assert_eq!(client.text(&mut framing).await, event(0));
    (replica, router, gate, client, framing)
}

fn is_draining(response: &Response) -> bool {
    response.status == 503 && response.head.get("x-prefix-router-error") == Some("draining")
}

#[tokio::test]
async fn a_running_stream_finishes_and_all_is_over() {
    let (_replica, router, gate, mut client, framing) = running(&[("drain_timeout", "30s")]).await;
    router.drain();
    eventually("/ready says draining", async || router.admin("/ready").await.status == 503).await;
    assert_eq!(router.admin("/live").await.status, 200, "draining is not dying");
    assert_eq!(router.metric("prefix_router_outstanding", &[("replica", "a")]).await, 1.0, "metrics stay");
    for (method, target) in [("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")] {
        assert!(is_draining(&router.send(method, target, "", "").await), "{method} {target}");
    }
    gate.open();
    let body = client.rest(framing).await;
    assert_eq!((String::from_utf8(body.bytes).unwrap(), body.end), (event(1), End::Whole));
    client.closed().await;
    let (traffic, admin) = (router.traffic, router.admin);
    router.stopped().await;
    for addr in [traffic, admin] {
        eventually(&format!("{addr} does not listen"), async || TcpStream::connect(addr).await.is_err()).await;
    }
}

#[tokio::test]
async fn a_running_http2_stream_finishes_too() {
    use http_body_util::BodyExt as _;
    let (_replica, router, gate, client, _) = running(&[("drain_timeout", "30s")]).await;
    drop(client);
    let mut h2 = H2::connect(&router).await;
    let mut body = h2.start("POST", CHAT, "{}").await.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    router.drain();
    eventually("/ready says draining", async || router.admin("/ready").await.status == 503).await;
    gate.open();
    let rest = body.collect().await.unwrap().to_bytes();
    assert_eq!([first, rest].concat(), [event(0), event(1)].concat().as_bytes());
    router.stopped().await;
}

#[tokio::test]
async fn a_stream_that_does_not_end_is_cut_after_drain_timeout() {
    let (replica, router, _gate, mut client, framing) = running(&[("drain_timeout", "500ms")]).await;
    let started = Instant::now();
    router.drain();
    let body = client.rest(framing).await;
    assert_eq!(body.end, End::Cut);
    assert!(started.elapsed() >= Duration::from_millis(450), "after {:?}", started.elapsed());
    router.stopped().await;
    eventually("the replica is left alone", async || replica.open() == 0).await;
}

#[tokio::test]
async fn idle_connections_do_not_hold_it_up() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("drain_timeout", "60s")]).await;
    let mut idle = Client::connect(router.traffic).await;
    assert_eq!(idle.request("POST", CHAT, "", "{}").await.status, 200);
    let mut silent = Client::connect(router.traffic).await;
    let h2 = H2::connect(&router).await;
    router.drain();
    idle.closed().await;
    silent.closed().await;
    router.stopped().await;
    drop(h2);
}

#[tokio::test]
async fn a_request_under_way_is_served() {
    let gate = Gate::new();
    let replica = Replica::start("a", crate::answers::ok_after(&gate));
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", "{}").await;
    replica.has_requests(1).await;
    router.drain();
    client.hears_nothing().await;
    gate.open();
    assert_eq!(client.response("POST").await.status, 200);
    router.stopped().await;
}

#[tokio::test]
async fn without_requests_it_ends_at_once() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("drain_timeout", "60s")]).await;
    router.drain();
    router.stopped().await;
    let probes = replica.probes().len();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(replica.probes().len(), probes, "health checks go on after the end");
}

/// The replicas that answered so many different prompts.
async fn answered(router: &Router, count: usize) -> Vec<String> {
    let mut all = Vec::new();
    for number in 0..count {
        let response = router.post(CHAT, chat(&format!("prompt {number}"))).await;
        assert_eq!(response.status, 200, "{}", response.text());
        all.push(response.replica().to_owned());
    }
    all
}

#[tokio::test]
async fn a_drained_replica_gets_nothing_new_under_any_strategy() {
    for strategy in ["prefix_aware", "cache_aware", "least_outstanding", "round_robin", "random"] {
        let (a, b, c) = (Replica::start("a", ok), Replica::start("b", ok), Replica::start("c", ok));
        let router = Router::start(&[&a, &b, &c], &[("strategy", strategy)]).await;
        let before = answered(&router, 30).await;
        assert!(before.iter().any(|replica| replica == "a"), "{strategy}: {before:?}");
        let (status, told) = router.api("POST", "/api/v1/replicas/a/drain").await;
        assert_eq!((status, &told["draining"], &told["changed"]), (200, &json!(true), &json!(true)), "{strategy}: {told}");
        router.has_state("a", "draining").await;
        a.forget();
        let (probes, during) = (a.probes().len(), answered(&router, 30).await);
        assert!(during.iter().all(|replica| replica != "a"), "{strategy}: {during:?}");
        // Retries neither.
        b.script(reset);
        c.script(reset);
        for number in 0..5 {
            assert_ne!(router.post(CHAT, chat(&format!("{number}"))).await.status, 200, "{strategy}");
        }
        assert_eq!(a.count(), 0, "{strategy}");
        eventually("it is checked all the same", async || a.probes().len() > probes).await;
        // Once more is no error, and there is a way back.
        let (status, told) = router.api("POST", "/api/v1/replicas/a/drain").await;
        assert_eq!((status, &told["changed"]), (200, &json!(false)), "{strategy}: {told}");
        for changed in [true, false] {
            let (status, told) = router.api("POST", "/api/v1/replicas/a/undrain").await;
            assert_eq!((status, &told["draining"], &told["changed"]), (200, &json!(false), &json!(changed)), "{strategy}: {told}");
        }
        router.has_state("a", "up").await;
        eventually(&format!("{strategy}: it is used again"), async || {
            router.post(CHAT, chat("x")).await;
            a.count() > 0
        })
        .await;
    }
}

#[tokio::test]
async fn what_a_drained_replica_has_begun_ends_in_peace_though_it_is_the_last() {
    let (_replica, router, gate, mut client, framing) = running(&[]).await;
    let (_, told) = router.api("POST", "/api/v1/replicas/a/drain").await;
    assert_eq!(told["outstanding"], 1, "{told}");
    let refused = router.post(CHAT, "{}").await;
    check_error(&refused, CHAT, 503, "no_replica");
    assert!(refused.head.get("retry-after").is_some(), "{refused:?}");
    check_error(&router.get("/health").await, "/health", 503, "no_replica");
    assert_eq!(router.admin("/ready").await.status, 503);
    assert_eq!(router.metric("prefix_router_outstanding", &[("replica", "a")]).await, 1.0);
    gate.open();
    let body = client.rest(framing).await;
    assert_eq!((String::from_utf8(body.bytes).unwrap(), body.end), (event(1), End::Whole));
    router.api("POST", "/api/v1/replicas/a/undrain").await;
    assert_eq!(router.post(CHAT, "{}").await.status, 200);
    assert_eq!(router.admin("/ready").await.status, 200);
}

#[tokio::test]
async fn who_drains_and_who_cannot_undrain() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let folder = Folder::new();
    let quiet = [("reload_interval", "0s")];
    let plain = list(&[&a, &b]);
    let drained = plain.replace("name: b", "name: b\n    drain: true");
    let file = folder.file("router.yaml", &text(&drained, &quiet));
    let router = Router::start_file(&file).await;
    router.has_state("a", "up").await;
    router.has_state("b", "draining").await;
    assert!(answered(&router, 10).await.iter().all(|replica| replica == "a"));
    let (status, told) = router.api("POST", "/api/v1/replicas/b/undrain").await;
    assert_eq!(status, 409);
    assert!(told["error"]["message"].as_str().unwrap().contains("configuration"), "{told}");
    let (status, told) = router.api("POST", "/api/v1/replicas/nobody/drain").await;
    assert_eq!(status, 404);
    assert!(told["error"]["message"].as_str().unwrap().ends_with("known: a, b"), "{told}");

    // Taken back in the file, it serves; what was asked of the API holds whatever is reloaded, and while a replica is away for a moment.
    folder.file("router.yaml", &text(&plain, &quiet));
    router.reload().await;
    router.has_state("b", "up").await;
    router.api("POST", "/api/v1/replicas/b/drain").await;
    for replicas in [&list(&[&a]), &plain, &plain.replace("name: b", "name: b\n    weight: 2"), &drained, &plain] {
        folder.file("router.yaml", &text(replicas, &quiet));
        assert_eq!(router.reload().await, ["replicas"]);
        assert!(answered(&router, 10).await.iter().all(|replica| replica == "a"));
    }
    let (_, fleet) = router.api("GET", "/api/v1/fleet").await;
    assert_eq!(fleet["replicas"][1]["drained_by"], "api", "{fleet}");
    assert_eq!(router.api("POST", "/api/v1/replicas/b/undrain").await.0, 200);
    router.has_state("b", "up").await;
}

#[tokio::test]
async fn before_it_stops_it_serves_as_before_for_a_while() {
    let (_replica, router, gate, mut client, framing) = running(&[("drain_delay", "1s"), ("drain_timeout", "30s")]).await;
    let mut kept = Client::connect(router.traffic).await;
    assert_eq!(kept.request("GET", "/ping", "", "").await.status, 200);
    let begun = Instant::now();
    router.drain();
    eventually("/ready says draining", async || router.admin("/ready").await.status == 503).await;
    assert!(is_draining(&router.get("/health").await));
    gate.open();
    assert_eq!(client.rest(framing).await.end, End::Whole);
    let mut rounds = 0;
    while begun.elapsed() < Duration::from_millis(600) {
        for client in [&mut kept, &mut Client::connect(router.traffic).await] {
            let response = client.request("POST", CHAT, "", "{}").await;
            assert_eq!((response.status, response.head.get("connection")), (200, None), "as before");
        }
        rounds += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(rounds > 3);
    kept.closed().await;
    router.stopped().await;
    let took = begun.elapsed();
    assert!((Duration::from_millis(950)..Duration::from_secs(5)).contains(&took), "{took:?}");
}

#[tokio::test]
async fn who_comes_while_it_stops_is_served_once() {
    let (_replica, router, gate, mut client, framing) = running(&[("drain_timeout", "30s")]).await;
    // Under way since before.
    let mut kept = Client::connect(router.traffic).await;
    kept.start("POST", CHAT, "", "{}").await;
    let mut rest = kept.head().await.response_framing("POST");
    assert_eq!(kept.text(&mut rest).await, event(0));
    router.drain();
    let mut late = None;
    eventually("a new connection is told that it is its only request", async || {
        let mut client = Client::connect(router.traffic).await;
        let response = client.request("GET", "/ping", "", "").await;
        let is_told = response.head.get("connection") == Some("close");
        late = is_told.then_some(client);
        is_told
    })
    .await;
    late.unwrap().closed().await;
    gate.open();
    assert_eq!(kept.rest(rest).await.end, End::Whole);
    kept.closed().await;
    assert_eq!(client.rest(framing).await.end, End::Whole);
    router.stopped().await;
}
