//! A replica frames its answers as it likes, or in the manner of its age; each client gets them framed for its own connection.

use crate::answers::ok;
use crate::client::{Client, End, Response};
use crate::h2::H2;
use crate::replica::{Replica, Step};
use crate::support::{Router, check_error};

const CHAT: &str = "/v1/chat/completions";

/// A replica that answers in these bytes (and closes, where it says so) reaches clients of both versions as this status and text, two in
/// a row on one connection of the client's.
async fn check(raw: &'static str, closes: bool, status: u16, text: &str) {
    let replica = Replica::start("a", move |_| {
        let mut steps = vec![Step::Write(raw.as_bytes().to_vec())];
        steps.extend(closes.then_some(Step::Fin));
        steps
    });
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    let mut h2 = H2::connect(&router).await;
    for _ in 0..2 {
        check_http1(raw, &client.request("POST", CHAT, "", "{}").await, status, text);
        let response = h2.request("POST", CHAT, "{}").await;
        assert_eq!((response.head.status.as_u16(), response.broken), (status, None), "{raw}");
        assert_eq!(String::from_utf8_lossy(&response.bytes), text, "{raw}");
    }
    let class = format!("{}xx", status / 100);
    router.has_metric("prefix_router_requests_total", &[("route", "chat_completions"), ("status", &class)], 4.0).await;
    router.has_metric("prefix_router_client_aborts_total", &[], 0.0).await;
    router.has_metric("prefix_router_upstream_errors_total", &[("kind", "broke")], 0.0).await;
    router.is_at_rest().await;
}

fn check_http1(raw: &str, response: &Response, status: u16, text: &str) {
    assert!(response.head.start.starts_with(&format!("HTTP/1.1 {status} ")), "{raw}: {}", response.head.start);
    assert_eq!((response.text().as_str(), response.body.end), (text, End::Whole), "{raw}");
    assert_eq!(response.head.get("connection"), None, "{raw}: the client's connection is not the replica's");
    // One framing, and a true one.
    let lengths = response.head.all("content-length");
    match response.head.all("transfer-encoding")[..] {
        [] => assert_eq!(lengths, [text.len().to_string()], "{raw}"),
        ref encodings => {
            assert_eq!(encodings, ["chunked"], "{raw}");
            assert!(lengths.is_empty(), "{raw}");
        }
    }
}

#[tokio::test]
async fn http10_answers_become_http11() {
    let cases = [
        ("HTTP/1.0 200 OK\r\nserver: SimpleHTTP/0.6 Python/3.12.3\r\ncontent-length: 5\r\n\r\nhello", 200, "hello"),
        ("HTTP/1.0 200 OK\r\nserver: SimpleHTTP/0.6 Python/3.12.3\r\n\r\nhello", 200, "hello"),
        ("HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", 200, ""),
        ("HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\ndata: [DONE]\n\n", 200, "data: 1\n\ndata: [DONE]\n\n"),
        ("HTTP/1.0 404 Not Found\r\n\r\nno", 404, "no"),
        ("HTTP/1.0 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nbusy", 429, "busy"),
    ];
    for (raw, status, text) in cases {
        check(raw, true, status, text).await;
    }
}

#[tokio::test]
async fn chunks_rule_over_a_length() {
    for raw in [
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 300\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    ] {
        check(raw, false, 200, "hello").await;
    }
}

#[tokio::test]
async fn trailers_end_an_answer_as_well() {
    for raw in [
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-checksum: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntrailer: x-checksum\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-checksum: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-a: 1\r\nx-b: 2\r\n\r\n",
    ] {
        check(raw, false, 200, "hello").await;
    }
}

#[tokio::test]
async fn a_connection_with_trailers_behind_it_is_used_again() {
    let trailers = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-checksum: 1\r\n\r\n";
    let replica =
        Replica::start("a", move |request| if request.nth == 0 { vec![Step::Write(trailers.as_bytes().to_vec())] } else { ok(request) });
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    for text in ["hello", r#"{"ok":true}"#] {
        assert_eq!(client.request("POST", CHAT, "te: trailers\r\n", "{}").await.text(), text);
        router.is_at_rest().await;
    }
    assert_eq!(replica.requests().iter().map(|request| request.connection).collect::<Vec<_>>(), [0, 0]);
    router.has_metric("prefix_router_retries_total", &[], 0.0).await;
}

#[tokio::test]
async fn an_answer_in_another_protocol_that_nobody_asked_for_is_none() {
    let raw = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: other\r\n\r\nother";
    let replica = Replica::start("a", move |_| vec![Step::Write(raw.as_bytes().to_vec())]);
    let router = Router::start(&[&replica], &[]).await;
    for fields in ["", "connection: upgrade\r\nupgrade: other\r\n"] {
        check_error(&router.send("POST", CHAT, fields, "{}").await, CHAT, 502, "replica_broke");
    }
    let response = H2::connect(&router).await.request("POST", CHAT, "{}").await;
    assert_eq!((response.head.status.as_u16(), response.broken), (502, None));
    router.is_at_rest().await;
}

#[tokio::test]
async fn a_length_without_a_body_is_one_or_none() {
    for (lengths, passed) in [
        ("content-length: 3\r\ncontent-length: 4\r\n", None),
        ("content-length: 3, 4\r\n", None),
        ("content-length: many\r\n", None),
        ("content-length: -1\r\n", None),
        ("content-length: 99999999999999999999\r\n", None),
        ("content-length: 3, 3\r\ncontent-length: 3\r\n", Some("3")),
        ("content-length: 3\r\n", Some("3")),
    ] {
        let raw = format!("HTTP/1.1 200 OK\r\n{lengths}\r\n");
        let replica = Replica::start("a", move |_| vec![Step::Write(raw.clone().into_bytes())]);
        let router = Router::start(&[&replica], &[]).await;
        let response = router.send("HEAD", "/version", "", "").await;
        assert_eq!((response.status, response.head.all("content-length")), (200, passed.into_iter().collect()), "{lengths}");
        assert_eq!(H2::connect(&router).await.request("HEAD", "/version", "").await.broken, None, "{lengths}");
        router.is_at_rest().await;
    }
}

#[tokio::test]
async fn what_is_no_answer_in_http_is_a_broken_replica() {
    let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n", "y".repeat(600_000));
    for raw in [
        "HTTP/1.1 764 Odd\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 099 Odd\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nx",
        long.as_str(),
    ] {
        let bytes = raw.as_bytes().to_vec();
        let replica = Replica::start("a", move |_| vec![Step::Write(bytes.clone()), Step::Hang]);
        let router = Router::start(&[&replica], &[]).await;
        check_error(&router.send("POST", "/v1/completions", "", "{}").await, "/v1/completions", 502, "replica_broke");
    }
}

#[tokio::test]
async fn a_large_head_passes_however_it_comes() {
    let field = "z".repeat(40_000);
    let raw = format!("HTTP/1.1 200 OK\r\nx-large: {field}\r\ncontent-length: 2\r\n\r\nok");
    for pieces in [1, 7, 997, raw.len()] {
        let steps: Vec<Step> = raw.as_bytes().chunks(pieces.max(raw.len() / 500)).map(|piece| Step::Write(piece.to_vec())).collect();
        let replica = Replica::start("a", move |_| steps.clone());
        let router = Router::start(&[&replica], &[]).await;
        let response = router.send("POST", "/v1/completions", "", "{}").await;
        assert_eq!((response.status, response.text().as_str(), response.head.get("x-large")), (200, "ok", Some(field.as_str())));
    }
}

#[tokio::test]
async fn a_connection_with_two_framings_is_not_used_again() {
    let raw = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    let replica = Replica::start("a", move |_| vec![Step::Write(raw.as_bytes().to_vec())]);
    let router = Router::start_blind(&[&replica], &[]).await;
    for _ in 0..3 {
        assert_eq!(router.send("POST", "/v1/completions", "", "{}").await.text(), "ok");
    }
    let connections: std::collections::HashSet<usize> = replica.requests().iter().map(|request| request.connection).collect();
    assert_eq!(connections.len(), replica.count(), "each its own");
}
