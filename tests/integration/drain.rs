//! The router's own end: it says so, finishes what runs, and is gone.

use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::answers::{chunk, event, head, last_chunk, ok};
use crate::client::{Client, End, Response};
use crate::h2::H2;
use crate::replica::{Gate, Replica, Step};
use crate::support::{A_WHILE, Router, eventually};
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
