//! A client that leaves takes its request along: at once, and the counts stay exact.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::answers::{chunk, event, hang, head, ok, stream};
use crate::client::{Client, request};
use crate::h2::H2;
use crate::replica::{Replica, Step};
use crate::support::{Router, Setting, chat, eventually, within};

const CHAT: &str = "/v1/chat/completions";

/// The rule is 100 ms; the rest is for a machine that does other things too.
const AT_ONCE: Duration = Duration::from_millis(1_000);

/// The replica sees the client's leaving, and the router counts it as the client's.
async fn check_left(router: &Router, replica: &Replica, gone: Instant) {
    eventually("the replica is left alone", async || !replica.left().is_empty()).await;
    let took = replica.left()[0].saturating_duration_since(gone);
    assert!(took < AT_ONCE, "the replica worked on for {took:?}");
    router.is_at_rest().await;
    router.has_metric("prefix_router_client_aborts_total", &[], 1.0).await;
    router.has_metric("prefix_router_requests_total", &[("route", "chat_completions"), ("status", "499")], 1.0).await;
    assert_eq!(router.metric("prefix_router_upstream_errors_total", &[]).await, 0.0);
    assert_eq!(router.metric("prefix_router_retries_total", &[]).await, 0.0);
    router.has_state(replica.name, "up").await;
}

fn stalled(_: &crate::replica::Request) -> Vec<Step> {
    vec![head(), chunk(event(0)), Step::Hang]
}

#[tokio::test]
async fn before_the_first_byte() {
    for abrupt in [false, true] {
        let replica = Replica::start("a", hang);
        let router = Router::start(&[&replica], &[]).await;
        let mut client = Client::connect(router.traffic).await;
        client.start("POST", CHAT, "", "{}").await;
        replica.has_requests(1).await;
        router.has_metric("prefix_router_outstanding", &[("replica", "a")], 1.0).await;
        let gone = Instant::now();
        if abrupt {
            client.reset();
        } else {
            drop(client);
        }
        check_left(&router, &replica, gone).await;
    }
}

#[tokio::test]
async fn behind_a_held_head() {
    let replica = Replica::start("a", |_| vec![head(), Step::Hang]);
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", "{}").await;
    replica.has_requests(1).await;
    client.hears_nothing().await;
    let gone = Instant::now();
    drop(client);
    check_left(&router, &replica, gone).await;
}

#[tokio::test]
async fn in_mid_stream() {
    let replica = Replica::start("a", stalled);
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", "{}").await;
    let mut framing = client.head().await.response_framing("POST");
    assert_eq!(client.text(&mut framing).await, event(0));
    let gone = Instant::now();
    drop(client);
    check_left(&router, &replica, gone).await;
}

#[tokio::test]
async fn over_http2_before_the_first_byte() {
    let replica = Replica::start("a", hang);
    let router = Router::start(&[&replica], &[]).await;
    let mut client = H2::connect(&router).await;
    let waiting = tokio::spawn(async move {
        client.start("POST", CHAT, "{}").await;
    });
    replica.has_requests(1).await;
    let gone = Instant::now();
    waiting.abort();
    check_left(&router, &replica, gone).await;
}

#[tokio::test]
async fn over_http2_in_mid_stream_the_connection_lives_on() {
    let replica = Replica::start("a", stalled);
    let router = Router::start(&[&replica], &[]).await;
    let mut client = H2::connect(&router).await;
    let response = client.start("POST", CHAT, "{}").await;
    let gone = Instant::now();
    drop(response);
    check_left(&router, &replica, gone).await;
    replica.script(ok);
    assert_eq!(client.request("POST", CHAT, "{}").await.head.status, 200);
}

#[tokio::test]
async fn while_it_still_sends_its_body() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    client.write(format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{\"model\"")).await;
    drop(client);
    router.has_metric("prefix_router_client_aborts_total", &[], 1.0).await;
    router.is_at_rest().await;
    assert_eq!(replica.count(), 0, "half a prompt goes nowhere");
}

#[tokio::test]
async fn while_its_answer_waits_for_it_to_read() {
    let replica = Replica::start("a", |_| {
        let mut steps = vec![head()];
        steps.extend((0..2_000).map(|_| chunk(vec![b'x'; 64 * 1024])));
        steps
    });
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", "{}").await;
    drop(client.head().await);
    let gone = Instant::now();
    drop(client);
    check_left(&router, &replica, gone).await;
}

#[tokio::test]
async fn while_the_replicas_are_asked_what_they_have() {
    for target in ["/v1/models", "/load"] {
        let (a, b) = (Replica::start("a", ok), Replica::start("b", hang));
        let router = Router::start(&[&a, &b], &[]).await;
        let mut client = Client::connect(router.traffic).await;
        client.start("GET", target, "", "").await;
        b.has_requests(1).await;
        let gone = Instant::now();
        drop(client);
        eventually("the replica is left alone", async || !b.left().is_empty()).await;
        let took = b.left()[0].saturating_duration_since(gone);
        assert!(took < AT_ONCE, "{target}: the replica worked on for {took:?}");
        router.has_metric("prefix_router_client_aborts_total", &[], 1.0).await;
        router.has_metric("prefix_router_upstream_errors_total", &[], 0.0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_at_random_points_leave_nothing_behind() {
    check_random_aborts(&[("concurrency_threshold", "4")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_do_they_where_most_have_to_wait() {
    let limits = [("max_outstanding", "1"), ("max_outstanding_total", "2"), ("queue_max_requests", "8"), ("queue_timeout", "20ms")];
    check_random_aborts(&limits).await;
}

async fn check_random_aborts(settings: &[Setting<'_>]) {
    const SEED: u64 = 20_261_129;
    const CLIENTS: u64 = 10;
    const EACH: usize = 50;
    let answers = |request: &crate::replica::Request| match request.body.len() % 4 {
        0 => hang(request),
        1 => vec![head(), Step::Hang],
        2 => stream(20, Duration::from_millis(2)),
        _ => ok(request),
    };
    let replicas = [Replica::start("a", answers), Replica::start("b", answers), Replica::start("c", answers)];
    let all = [&replicas[0], &replicas[1], &replicas[2]];
    let router = Router::start(&all, settings).await;
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let traffic = router.traffic;
        let mut h2 = H2::connect(&router).await;
        clients.spawn(async move {
            let mut rng = StdRng::seed_from_u64(SEED + client);
            for number in 0..EACH {
                let body = chat(&"x".repeat(rng.random_range(0..64)));
                if number % 5 == 0 {
                    let time = Duration::from_millis(rng.random_range(0..40));
                    drop(tokio::time::timeout(time, h2.request("POST", CHAT, body)).await);
                } else {
                    abort_somewhere(traffic, &body, &mut rng).await;
                }
            }
        });
    }
    within("end of the aborts", clients.join_all()).await;
    router.is_at_rest().await;
    for gauge in ["prefix_router_queue_requests", "prefix_router_queue_bytes"] {
        router.has_metric(gauge, &[], 0.0).await;
    }
    for replica in all {
        eventually("no open request at any replica", async || replica.open() == 0).await;
        replica.script(ok);
        router.has_state(replica.name, "up").await;
    }
    assert_eq!(router.metric("prefix_router_upstream_errors_total", &[]).await, 0.0);
    for number in 0..20 {
        assert_eq!(router.post(CHAT, chat(&number.to_string())).await.status, 200);
    }
    router.is_at_rest().await;
}

/// Leaves after a random part of the request, or a random part of the response, in either way.
async fn abort_somewhere(traffic: std::net::SocketAddr, body: &str, rng: &mut StdRng) {
    let mut client = Client::connect(traffic).await;
    let bytes = request("POST", CHAT, "content-type: application/json\r\n", body);
    if rng.random_range(0..3) == 0 {
        client.write(&bytes[..rng.random_range(0..bytes.len())]).await;
    } else {
        client.write(&bytes).await;
        let time = Duration::from_millis(rng.random_range(0..40));
        drop(tokio::time::timeout(time, client.response("POST")).await);
    }
    if rng.random_range(0..2) == 0 {
        client.reset();
    }
}
