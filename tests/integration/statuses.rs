//! Statuses that the router makes: each in the shape of the surface that was asked, and with its code in a header.

use std::time::Duration;

use crate::answers::{hang, ok, reset};
use crate::client::Client;
use crate::h2::H2;
use crate::replica::Replica;
use crate::support::{Router, Setting, chat, check_error};

/// OpenAI's shape, Anthropic's, and a native surface, which has OpenAI's.
const TARGETS: [&str; 4] = ["/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/invocations"];

/// What the router says to one request on each of these surfaces.
async fn check(replica: &Replica, settings: &[Setting<'_>], fields: &str, body: &str, status: u16, code: &str) {
    let router = Router::start_cold(&[replica], settings).await;
    for target in TARGETS {
        let response = router.send("POST", target, fields, body).await;
        check_error(&response, target, status, code);
    }
}

#[tokio::test]
async fn bad_identifier() {
    let replica = Replica::start("a", ok);
    let long = "x".repeat(65);
    for identifier in ["", long.as_str(), "caf\u{e9}", "tab\there"] {
        let fields = format!("x-amzn-sagemaker-prefix-aware-id: {identifier}\r\n");
        check(&replica, &[], &fields, "{}", 400, "bad_identifier").await;
    }
    assert_eq!(replica.count(), 0);
}

#[tokio::test]
async fn good_identifiers() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    let long = "x".repeat(64);
    for identifier in ["a", long.as_str(), "~!@# $%^&*()_+|}{\":?><", "a b"] {
        let fields = format!("X-Amzn-SageMaker-Prefix-Aware-Id: {identifier}\r\n");
        replica.forget();
        assert_eq!(router.send("POST", TARGETS[0], &fields, "{}").await.status, 200, "{identifier}");
        assert_eq!(replica.only_request().head.all("x-amzn-sagemaker-prefix-aware-id"), [identifier], "it is forwarded");
    }
}

#[tokio::test]
async fn path_not_exposed_and_method_not_allowed_under_messages() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    check_error(&router.get("/v1/messages").await, "/v1/messages", 405, "method_not_allowed");
    check_error(&router.get("/sleep").await, "/sleep", 403, "path_not_exposed");
}

#[tokio::test]
async fn unknown_model() {
    let replica = Replica::start("a", ok);
    let list = format!("replicas:\n  - url: {}\n    name: a\n    models: [m-1, m-2]\n", replica.url());
    let router = Router::start_with(&list, &[]).await;
    for target in ["/v1/chat/completions", "/v1/messages", "/v1/embeddings", "/v1/responses", "/v1/completions"] {
        let response = router.post(target, r#"{"model":"m-3","messages":[],"prompt":"x","input":"x"}"#).await;
        check_error(&response, target, 404, "model_not_found");
        if !target.starts_with("/v1/messages") {
            let json: serde_json::Value = serde_json::from_slice(&response.body.bytes).unwrap();
            assert_eq!(json["error"]["param"], "model", "{target}");
        }
        assert_eq!(router.post(target, r#"{"model":"m-2"}"#).await.status, 200, "{target}");
    }
}

#[tokio::test]
async fn a_model_is_unknown_only_where_every_replica_lists_its_models() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let list = format!("replicas:\n  - url: {}\n    name: a\n    models: [m-1]\n  - url: {}\n    name: b\n", a.url(), b.url());
    let router = Router::start_with(&list, &[]).await;
    for _ in 0..5 {
        assert_eq!(router.post("/v1/chat/completions", r#"{"model":"m-3"}"#).await.replica(), "b");
    }
}

#[tokio::test]
async fn body_too_slow() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("body_timeout", "200ms")]).await;
    for target in TARGETS {
        let mut client = Client::connect(router.traffic).await;
        client.write(format!("POST {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf")).await;
        check_error(&client.response("POST").await, target, 408, "body_too_slow");
    }
}

#[tokio::test]
async fn body_too_large() {
    let replica = Replica::start("a", ok);
    let settings = [("max_body", "1KiB")];
    check(&replica, &settings, "", &"x".repeat(1_025), 413, "body_too_large").await;
    let router = Router::start(&[&replica], &settings).await;
    assert_eq!(router.post(TARGETS[0], "x".repeat(1_024)).await.status, 200, "up to the limit is not beyond it");
    // Without a length it shows only as it comes.
    let mut client = Client::connect(router.traffic).await;
    client.write(format!("POST {} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", TARGETS[0])).await;
    client.write(format!("401\r\n{}\r\n", "x".repeat(0x401))).await;
    check_error(&client.response("POST").await, TARGETS[0], 413, "body_too_large");
    let response = H2::connect(&router).await.request("POST", TARGETS[0], "x".repeat(1_025)).await;
    assert_eq!(response.head.status, 413);
    assert_eq!(replica.count(), 1);
}

#[tokio::test]
async fn a_client_that_sends_on_can_still_read_why_its_body_is_refused() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("max_body", "1KiB")]).await;
    // More than all buffers on the way hold, so that the router has to take it.
    let body = "x".repeat(16_000_000);
    let chunked: String = [&body[..4_000]; 4_000].iter().map(|piece| format!("{:x}\r\n{piece}\r\n", piece.len())).collect();
    let cases = [
        ("transfer-encoding: chunked\r\n", format!("{chunked}0\r\n\r\n")),
        ("transfer-encoding: chunked\r\nexpect: 100-continue\r\n", format!("{chunked}0\r\n\r\n")),
        ("content-length: 16000000\r\n", body.clone()),
    ];
    for (number, (fields, sent)) in cases.iter().enumerate() {
        let mut client = Client::connect(router.traffic).await;
        client.write(format!("POST {} HTTP/1.1\r\nhost: x\r\n{fields}\r\n", TARGETS[0])).await;
        if fields.contains("expect") {
            assert_eq!(client.head().await.status(), 100, "{fields}: nothing in the head condemns it");
        }
        let (begin, rest) = sent.split_at(5_000);
        client.write(begin).await;
        router.has_metric("prefix_router_requests_total", &[("status", "4xx")], (number + 1) as f64).await;
        // Most clients read no answer before they have sent all, and none after that has failed.
        assert!(client.write(rest).await, "{fields}: the router has closed already");
        check_error(&client.response("POST").await, TARGETS[0], 413, "body_too_large");
    }
    assert_eq!(H2::connect(&router).await.request("POST", TARGETS[0], body).await.head.status, 413);
    assert_eq!(replica.count(), 0);
}

#[tokio::test]
async fn headers_too_large() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("max_header_bytes", "8KiB")]).await;
    let fields = |length: usize| format!("x-long: {}\r\n", "x".repeat(length));
    assert_eq!(router.send("POST", TARGETS[0], &fields(7_000), "{}").await.status, 200);
    let response = router.send("POST", TARGETS[0], &fields(9_000), "{}").await;
    check_error(&response, TARGETS[0], 431, "headers_too_large");
    let mut many = String::new();
    for number in 0..2_000 {
        many.push_str(&format!("x-{number}: {number}\r\n"));
    }
    assert_eq!(router.send("POST", TARGETS[0], &many, "{}").await.status, 431);
    assert_eq!(replica.count(), 1);
}

#[tokio::test]
async fn no_replica() {
    let router = Router::start_with("replicas: []\n", &[]).await;
    for target in TARGETS {
        let response = router.post(target, "{}").await;
        check_error(&response, target, 503, "no_replica");
        let after: u64 = response.head.get("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&after), "{after}");
    }
}

#[tokio::test]
async fn connect_failed() {
    let replica = Replica::refusing("a", ok);
    check(&replica, &[], "", "{}", 502, "connect_failed").await;
}

#[tokio::test]
async fn replica_broke() {
    let replica = Replica::start("a", reset);
    check(&replica, &[], "", "{}", 502, "replica_broke").await;
}

#[tokio::test]
async fn first_byte_timeout() {
    let replica = Replica::start("a", hang);
    check(&replica, &[("first_byte_timeout", "100ms")], "", "{}", 504, "first_byte_timeout").await;
}

#[tokio::test]
async fn nonsense_is_refused_without_harm() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    let cases: [&[u8]; 7] = [
        b"\r\n\r\n\0\0\0\0",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnot a frame at all",
    ];
    for bytes in cases {
        let mut client = Client::connect(router.traffic).await;
        client.write(bytes).await;
        client.closed().await;
    }
    assert_eq!(replica.count(), 0);
    assert_eq!(router.post(TARGETS[0], chat("x")).await.status, 200);
    router.is_at_rest().await;
}

#[tokio::test]
async fn a_request_with_two_framings_reaches_no_replica_as_two_requests() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    let smuggled = "GET /sleep HTTP/1.1\r\nhost: x\r\n\r\n";
    client
        .write(format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}",
            5 + smuggled.len()
        ))
        .await;
    let status = client.head().await.status();
    assert!(status == 400 || status == 200, "{status}");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(replica.requests().iter().all(|request| request.head.target() == "/v1/completions"), "{:?}", replica.requests());
}

#[tokio::test]
async fn nobody_gets_a_tunnel() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    for target in ["/score", "/v1/chat/completions", "/v1/files"] {
        let response = router.send("CONNECT", target, "", "").await;
        check_error(&response, target, 405, "method_not_allowed");
    }
}
