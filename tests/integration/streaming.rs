//! Streams: every chunk goes on as it comes; the head waits for the first byte of the body, but not for ever.

use std::time::Duration;

use http_body_util::BodyExt as _;

use crate::answers::{LAST_CHUNK, STREAM_HEAD, chunk, event, head, last_chunk, ok, stream};
use crate::client::{Client, End, Piece};
use crate::h2::H2;
use crate::replica::{Gate, Replica, Step};
use crate::support::{A_WHILE, Router, chat, within};
use crate::wire::Framing;

const CHAT: &str = "/v1/chat/completions";

/// A stream whose every chunk waits for its gate.
fn gated(count: usize) -> (Vec<Gate>, Vec<Step>) {
    let gates: Vec<Gate> = (0..count).map(|_| Gate::new()).collect();
    let mut steps = vec![head()];
    for (number, gate) in gates.iter().enumerate() {
        steps.extend([Step::Wait(gate.clone()), chunk(event(number))]);
    }
    steps.push(last_chunk());
    (gates, steps)
}

#[tokio::test]
async fn each_chunk_passes_before_the_next_is_made() {
    let (gates, steps) = gated(5);
    let replica = Replica::start("a", move |_| steps.clone());
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", "{}").await;
    gates[0].open();
    let mut framing = client.head().await.response_framing("POST");
    assert_eq!(framing, Framing::Chunked);
    for (number, gate) in gates.iter().enumerate() {
        gate.open();
        assert_eq!(client.text(&mut framing).await, event(number));
    }
    assert_eq!(client.piece(&mut framing).await, Piece::End(End::Whole));
}

#[tokio::test]
async fn each_chunk_passes_before_the_next_is_made_over_http2() {
    let (gates, steps) = gated(5);
    let replica = Replica::start("a", move |_| steps.clone());
    let router = Router::start(&[&replica], &[]).await;
    let mut client = H2::connect(&router).await;
    gates[0].open();
    let mut body = client.start("POST", CHAT, "{}").await.into_body();
    for (number, gate) in gates.iter().enumerate() {
        gate.open();
        let frame = within("piece of a body", body.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), event(number));
    }
    assert!(
        within("end of the body", body.frame())
            .await
            .is_none_or(|frame| frame.is_ok_and(|frame| frame.into_data().is_ok_and(|data| data.is_empty())))
    );
}

#[tokio::test]
async fn parts_of_an_event_are_not_held_back() {
    let gate = Gate::new();
    let steps = vec![head(), chunk("data: {\"a"), Step::Wait(gate.clone()), chunk("\":1}\n\n"), last_chunk()];
    let replica = Replica::start("a", move |_| steps.clone());
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", "{}").await;
    let mut framing = client.head().await.response_framing("POST");
    assert_eq!(client.text(&mut framing).await, "data: {\"a");
    gate.open();
    assert_eq!(client.text(&mut framing).await, "\":1}\n\n");
}

#[tokio::test]
async fn a_long_body_that_is_no_event_stream_is_not_held_back_either() {
    let gate = Gate::new();
    let text = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 6\r\n\r\none".to_vec();
    let steps = vec![Step::Write(text), Step::Wait(gate.clone()), Step::Write(b"two".to_vec())];
    let replica = Replica::start("a", move |_| steps.clone());
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", "{}").await;
    let mut framing = client.head().await.response_framing("POST");
    assert_eq!(client.text(&mut framing).await, "one");
    gate.open();
    assert_eq!(client.text(&mut framing).await, "two");
}

#[tokio::test]
async fn chunks_that_come_together_stay_apart() {
    let events: Vec<String> = (0..50).map(event).collect();
    let mut raw = STREAM_HEAD.to_vec();
    for event in &events {
        raw.extend(format!("{:x}\r\n{event}\r\n", event.len()).bytes());
    }
    raw.extend(LAST_CHUNK);
    let replica = Replica::start("a", move |_| vec![Step::Write(raw.clone())]);
    let router = Router::start(&[&replica], &[]).await;
    let response = router.post(CHAT, "{}").await;
    assert_eq!(response.body.bytes, events.concat().as_bytes());
    assert_eq!(response.body.chunks, events.iter().map(String::len).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_stream_without_framing_ends_with_the_connection() {
    let replica = Replica::start("a", |_| {
        let raw = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: 1\n\ndata: [DONE]\n\n";
        vec![Step::Write(raw.to_vec()), Step::Fin]
    });
    let router = Router::start(&[&replica], &[]).await;
    let response = router.post(CHAT, "{}").await;
    assert_eq!(response.text(), "data: 1\n\ndata: [DONE]\n\n");
    assert_eq!(response.body.end, End::Whole);
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_the_replica() {
    const PIECE: usize = 64 * 1024;
    const PIECES: usize = 2_000;
    let replica = Replica::start("a", |_| {
        let mut steps = vec![head()];
        steps.extend((0..PIECES).map(|_| chunk(vec![b'x'; PIECE])));
        steps.push(last_chunk());
        steps
    });
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", "{}").await;
    replica.has_requests(1).await;
    // 125 MiB fit in no buffers on the way, so the replica cannot be done; a router without back-pressure swallows all in this time.
    tokio::time::sleep(A_WHILE * 5).await;
    assert_eq!(replica.open(), 1, "the replica could write all of it");
    let framing = client.head().await.response_framing("POST");
    assert_eq!(client.rest(framing).await.bytes.len(), PIECE * PIECES);
}

#[tokio::test]
async fn the_head_of_a_stream_waits_for_the_first_byte() {
    let gate = Gate::new();
    let steps = vec![head(), Step::Wait(gate.clone()), chunk(event(0)), last_chunk()];
    let replica = Replica::start("a", move |_| steps.clone());
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", "{}").await;
    replica.has_requests(1).await;
    client.hears_nothing().await;
    gate.open();
    let response = client.response("POST").await;
    assert_eq!((response.status, response.text()), (200, event(0)));
}

#[tokio::test]
async fn the_head_of_a_stream_waits_no_longer_than_hold_head() {
    for hold in ["100ms", "0s"] {
        let gate = Gate::new();
        let steps = vec![head(), Step::Wait(gate.clone()), chunk(event(0)), last_chunk()];
        let replica = Replica::start("a", move |_| steps.clone());
        let router = Router::start(&[&replica], &[("hold_head", hold)]).await;
        let mut client = Client::connect(router.traffic).await;
        client.start("POST", CHAT, "", "{}").await;
        let head = client.head().await;
        assert_eq!(head.status(), 200);
        gate.open();
        let mut framing = head.response_framing("POST");
        assert_eq!(client.text(&mut framing).await, event(0));
    }
}

#[tokio::test]
async fn a_stream_that_ends_without_a_byte_is_whole() {
    let replica = Replica::start("a", |_| vec![head(), last_chunk()]);
    let router = Router::start(&[&replica], &[]).await;
    let response = router.post(CHAT, "{}").await;
    assert_eq!((response.status, response.text().as_str(), response.body.end), (200, "", End::Whole));
}

#[tokio::test]
async fn a_replica_that_dies_behind_a_held_head_is_replaced() {
    for last in [Step::Fin, Step::Reset] {
        let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
        let router = Router::start_blind(&[&a, &b], &[("pool_max_idle", "0")]).await;
        let body = router.chat_for(&a, "x").await;
        a.forget();
        b.forget();
        let gate = Gate::new();
        let steps = vec![head(), Step::Wait(gate.clone()), last];
        a.script(move |_| steps.clone());
        b.script(|_| stream(3, Duration::ZERO));
        let mut client = Client::connect(router.traffic).await;
        client.start("POST", CHAT, "", &body).await;
        a.has_requests(1).await;
        client.hears_nothing().await;
        gate.open();
        let response = client.response("POST").await;
        assert_eq!((response.status, response.replica(), response.reason()), (200, "b", "failover"));
        let expected = format!("{}{}{}data: [DONE]\n\n", event(0), event(1), event(2));
        assert_eq!(response.text(), expected);
        assert_eq!((a.count(), b.only_request().body), (1, body.into_bytes()));
    }
}

#[tokio::test]
async fn once_the_head_has_passed_nothing_is_tried_again() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let router = Router::start_blind(&[&a, &b], &[("pool_max_idle", "0"), ("hold_head", "100ms")]).await;
    let body = router.chat_for(&a, "x").await;
    b.forget();
    let gate = Gate::new();
    let steps = vec![head(), Step::Wait(gate.clone()), Step::Fin];
    a.script(move |_| steps.clone());
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", &body).await;
    let framing = client.head().await.response_framing("POST");
    gate.open();
    let rest = client.rest(framing).await;
    assert!(String::from_utf8_lossy(&rest.bytes).contains("replica_broke"));
    assert_eq!((rest.end, b.count()), (End::Cut, 0));
}

#[tokio::test]
async fn comments_before_the_first_event_pass() {
    let replica = Replica::start("a", |_| vec![head(), chunk(": waiting\n\n"), chunk(event(0)), last_chunk()]);
    let router = Router::start(&[&replica], &[]).await;
    assert_eq!(router.post(CHAT, chat("x")).await.text(), format!(": waiting\n\n{}", event(0)));
}
