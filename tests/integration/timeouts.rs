//! Every wait has its end, and 0 means none. Times are short here, so that the tests are.

use std::time::{Duration, Instant};

use tokio::net::{TcpSocket, TcpStream};

use crate::answers::{answer, chunk, event, hang, head, ok};
use crate::client::Client;
use crate::replica::{Replica, Step};
use crate::support::{A_WHILE, PATIENCE, Router, chat, check_error, eventually};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn no_first_byte_in_time() {
    for steps in [vec![Step::Hang], vec![head(), Step::Hang]] {
        let replica = Replica::start("a", move |_| steps.clone());
        let router = Router::start(&[&replica], &[("first_byte_timeout", "300ms")]).await;
        let started = Instant::now();
        let response = router.post(CHAT, chat("x")).await;
        check_error(&response, CHAT, 504, "first_byte_timeout");
        assert!(started.elapsed() >= Duration::from_millis(290));
        eventually("the replica is left alone", async || replica.open() == 0).await;
        router.is_at_rest().await;
        router.has_metric("prefix_router_upstream_errors_total", &[("replica", "a"), ("kind", "first_byte_timeout")], 1.0).await;
    }
}

#[tokio::test]
async fn first_byte_timeout_does_not_bound_a_stream() {
    let steps: Vec<Step> =
        [vec![head()], (0..8).flat_map(|n| [chunk(event(n)), Step::Sleep(Duration::from_millis(100))]).collect()].concat();
    let replica = Replica::start("a", move |_| [steps.clone(), vec![crate::answers::last_chunk()]].concat());
    let router = Router::start(&[&replica], &[("first_byte_timeout", "400ms"), ("idle_timeout", "5s")]).await;
    let response = router.post(CHAT, chat("x")).await;
    assert_eq!(response.text(), (0..8).map(event).collect::<String>());
}

#[tokio::test]
async fn silence_in_mid_answer_is_cut() {
    // Streams get an event as well: see `truncation`.
    let replica = Replica::start("a", |_| vec![Step::Write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_vec()), Step::Hang]);
    let router = Router::start(&[&replica], &[("idle_timeout", "300ms")]).await;
    let response = router.post(CHAT, chat("x")).await;
    assert_eq!((response.text().as_str(), response.body.end), ("half", crate::client::End::Cut));
    router.has_metric("prefix_router_upstream_errors_total", &[("replica", "a"), ("kind", "idle_timeout")], 1.0).await;
    eventually("the replica is left alone", async || replica.open() == 0).await;
}

#[tokio::test]
async fn idle_timeout_does_not_blame_the_replica_for_a_slow_reader() {
    let replica = Replica::start("a", |_| {
        let mut steps = vec![head()];
        steps.extend((0..400).map(|_| chunk(vec![b'x'; 64 * 1024])));
        steps.push(crate::answers::last_chunk());
        steps
    });
    let router = Router::start(&[&replica], &[("idle_timeout", "200ms")]).await;
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", "{}").await;
    let framing = client.head().await.response_framing("POST");
    tokio::time::sleep(A_WHILE * 3).await;
    let body = client.rest(framing).await;
    assert_eq!((body.bytes.len(), body.end), (400 * 64 * 1024, crate::client::End::Whole));
}

#[tokio::test]
async fn a_body_that_stops_coming() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("body_timeout", "300ms")]).await;
    for framing in ["content-length: 100", "transfer-encoding: chunked"] {
        let mut client = Client::connect(router.traffic).await;
        client.write(format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n")).await;
        client.write("10\r\n{\"model\":").await;
        let response = client.response("POST").await;
        check_error(&response, CHAT, 408, "body_too_slow");
    }
    assert_eq!(replica.count(), 0);
}

#[tokio::test]
async fn body_timeout_is_between_pieces() {
    let replica = Replica::start("a", crate::answers::echo);
    let router = Router::start(&[&replica], &[("body_timeout", "600ms")]).await;
    let mut client = Client::connect(router.traffic).await;
    client.write(format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n")).await;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.write("x").await;
    }
    assert_eq!(client.response("POST").await.text(), "x".repeat(10));
}

#[tokio::test]
async fn a_head_that_stops_coming() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("header_timeout", "300ms")]).await;
    let mut client = Client::connect(router.traffic).await;
    client.write("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-slow: ").await;
    client.closed().await;
}

/// A listener whose queue of connections is full: Linux then leaves further ones unanswered.
struct Full {
    listener: tokio::net::TcpListener,
    _queued: Vec<TcpStream>,
}

impl Full {
    async fn start() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let addr = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(addr)).await {
            queued.push(stream);
            assert!(queued.len() < 1_000, "the queue never fills");
        }
        Self { listener, _queued: queued }
    }
}

#[tokio::test]
async fn no_connection_in_time() {
    let full = Full::start().await;
    let b = Replica::start("b", ok);
    let url = full.listener.local_addr().unwrap();
    let only = format!("replicas:\n  - url: http://{url}\n    name: a\n");
    let router = Router::start_with(&only, &[("connect_timeout", "200ms")]).await;
    let started = Instant::now();
    check_error(&router.post(CHAT, chat("x")).await, CHAT, 502, "connect_failed");
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());

    let both = format!("{only}  - url: {}\n    name: b\n", b.url());
    let router = Router::start_with(&both, &[("connect_timeout", "200ms"), ("strategy", "round_robin")]).await;
    for _ in 0..2 {
        assert_eq!(router.post(CHAT, chat("x")).await.replica(), "b");
    }
}

#[tokio::test]
async fn zero_means_no_timeout() {
    let zeros =
        [("first_byte_timeout", "0s"), ("idle_timeout", "0s"), ("body_timeout", "0s"), ("connect_timeout", "0s"), ("header_timeout", "0s")];
    let replica = Replica::start("a", |_| {
        let sleep = || Step::Sleep(A_WHILE);
        vec![sleep(), head(), sleep(), chunk(event(0)), sleep(), chunk(event(1)), crate::answers::last_chunk()]
    });
    let router = Router::start(&[&replica], &zeros).await;
    let mut client = Client::connect(router.traffic).await;
    client.write("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n").await;
    tokio::time::sleep(A_WHILE).await;
    client.write("content-length: 2\r\n\r\n").await;
    tokio::time::sleep(A_WHILE).await;
    client.write("{}").await;
    assert_eq!(client.response("POST").await.text(), [event(0), event(1)].concat());
}

#[tokio::test]
async fn connections_to_a_replica_are_reused_while_they_are_young() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("pool_idle_timeout", "400ms")]).await;
    // The first again if the machine was too slow for the second to be in time.
    eventually("two requests on one connection", async || {
        replica.forget();
        for _ in 0..2 {
            router.post(CHAT, chat("x")).await;
        }
        let requests = replica.requests();
        requests[0].connection == requests[1].connection
    })
    .await;
    replica.forget();
    router.post(CHAT, chat("x")).await;
    tokio::time::sleep(Duration::from_millis(450)).await;
    router.post(CHAT, chat("x")).await;
    let requests = replica.requests();
    assert_ne!(requests[0].connection, requests[1].connection, "an old connection was used");
}

#[tokio::test]
async fn a_connection_that_the_replica_closes_is_not_reused() {
    let replica = Replica::start("a", |_| [answer(200, "connection: close\r\n", "x"), vec![Step::Fin]].concat());
    let router = Router::start(&[&replica], &[("retries", "0")]).await;
    for _ in 0..10 {
        assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
    }
    router.has_metric("prefix_router_retries_total", &[], 0.0).await;
}

#[tokio::test]
async fn a_hung_replica_does_not_hold_up_the_others() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let router = Router::start(&[&a, &b], &[]).await;
    let (at_a, at_b) = (router.chat_for(&a, "x").await, router.chat_for(&b, "x").await);
    a.script(hang);
    a.forget();
    let mut waiting = Client::connect(router.traffic).await;
    waiting.start("POST", CHAT, "", at_a).await;
    a.has_requests(1).await;
    for _ in 0..10 {
        assert_eq!(router.post(CHAT, &at_b).await.replica(), "b");
    }
}
