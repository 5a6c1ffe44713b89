//! Clients that hold a connection and do nothing with it: they are let go, and keep nobody else out.

use std::time::{Duration, Instant};

use crate::answers::{chunk, head, last_chunk, ok};
use crate::client::{Client, End};
use crate::h2::H2;
use crate::replica::{Replica, Request, Step};
use crate::support::{Router, chat, eventually};

const CHAT: &str = "/v1/chat/completions";

const HEADER_TIMEOUT: Duration = Duration::from_secs(1);

/// What is sent and leaves open what is asked: nothing, half a request line, half a preface of HTTP/2, and that preface with empty settings.
const SILENT: [&[u8]; 4] = [b"", b"POST /v1/chat/comp", b"PRI * HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"];

async fn silent(router: &Router, bytes: &[u8]) -> Client {
    let mut client = Client::connect(router.traffic).await;
    client.write(bytes).await;
    client
}

#[tokio::test]
async fn who_asks_nothing_is_let_go_after_header_timeout() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("header_timeout", "1s")]).await;
    let started = Instant::now();
    let mut clients = Vec::new();
    for bytes in SILENT {
        clients.push(silent(&router, bytes).await);
    }
    for client in &mut clients {
        client.closed().await;
        assert!(started.elapsed() >= HEADER_TIMEOUT, "closed after {:?}", started.elapsed());
    }
}

async fn check_not_kept_out(bytes: &'static [u8]) {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("header_timeout", "1s"), ("max_connections", "2")]).await;
    let started = Instant::now();
    let _silent = (silent(&router, bytes).await, silent(&router, bytes).await);
    assert_eq!(router.post(CHAT, chat("x")).await.status, 200, "{}", bytes.escape_ascii());
    assert!(started.elapsed() >= HEADER_TIMEOUT, "{}: more connections than allowed", bytes.escape_ascii());
}

#[tokio::test]
async fn silent_clients_do_not_keep_others_out() {
    let [nothing, line, half, preface] = SILENT.map(check_not_kept_out);
    tokio::join!(nothing, line, half, preface);
}

#[tokio::test]
async fn header_timeout_bounds_no_request() {
    let slow = |request: &Request| [vec![Step::Sleep(Duration::from_millis(900))], ok(request)].concat();
    let replica = Replica::start("a", slow);
    let router = Router::start(&[&replica], &[("header_timeout", "300ms")]).await;
    assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
    let mut h2 = H2::connect(&router).await;
    for _ in 0..2 {
        assert_eq!(h2.request("POST", CHAT, chat("x")).await.head.status, 200);
    }
}

const PIECE: usize = 64 * 1024;

/// More than all buffers on the way hold.
fn endless(_: &Request) -> Vec<Step> {
    let mut steps = vec![head()];
    steps.extend((0..2_000).map(|_| chunk(vec![b'x'; PIECE])));
    steps.push(last_chunk());
    steps
}

#[tokio::test]
async fn who_stops_reading_is_cut_off_after_write_timeout() {
    let replica = Replica::start("a", endless);
    let router = Router::start(&[&replica], &[("write_timeout", "1s")]).await;
    let mut client = Client::connect_narrow(router.traffic, 4_096).await;
    client.start("POST", CHAT, "", "{}").await;
    let framing = client.head().await.response_framing("POST");
    assert_eq!(router.metric("prefix_router_outstanding", &[("replica", "a")]).await, 1.0);
    // Nothing else ends it: neither is the answer done nor has the client left.
    router.has_metric("prefix_router_outstanding", &[("replica", "a")], 0.0).await;
    eventually("the replica is left alone", async || replica.left().len() == 1).await;
    router.has_metric("prefix_router_client_aborts_total", &[], 1.0).await;
    router.has_metric("prefix_router_requests_total", &[("status", "499")], 1.0).await;
    assert_eq!(router.metric("prefix_router_upstream_errors_total", &[]).await, 0.0);
    assert_eq!(client.rest(framing).await.end, End::Cut);
}

#[tokio::test]
async fn who_reads_slowly_but_reads_is_not_cut_off() {
    let replica = Replica::start("a", endless);
    let router = Router::start(&[&replica], &[("write_timeout", "2s")]).await;
    let mut client = Client::connect_narrow(router.traffic, 2 * PIECE as u32).await;
    client.start("POST", CHAT, "", "{}").await;
    let mut framing = client.head().await.response_framing("POST");
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut read = 0;
        while read < PIECE {
            read += client.text(&mut framing).await.len();
        }
    }
    assert_eq!(router.metric("prefix_router_outstanding", &[("replica", "a")]).await, 1.0);
}
