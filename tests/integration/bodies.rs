//! Bodies reach the replica and the client byte for byte, whatever they are.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::answers::{answer, echo, ok};
use crate::client::{Client, End};
use crate::replica::Replica;
use crate::support::Router;
use crate::wire::Framing;

/// Not a power of two, and larger than any buffer on the way.
const LARGE: usize = 5 * 1024 * 1024 + 13;

fn random(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    StdRng::seed_from_u64(length as u64).fill_bytes(&mut bytes);
    bytes
}

fn gzip() -> Vec<u8> {
    // The first bytes of a gzip stream; nobody on the way may look further.
    [&[0x1f, 0x8b, 0x08, 0x00, 0, 0, 0, 0, 0, 0xff][..], &random(300)].concat()
}

/// Bodies that a parser could be tempted to change, reject or choke on.
fn bodies() -> Vec<(&'static str, Vec<u8>)> {
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    vec![
        ("empty", Vec::new()),
        ("random", random(4_097)),
        ("not JSON", b"{\"model\": \"m\", \"messages\": [".to_vec()),
        ("not UTF-8", b"{\"model\":\"m\",\"prompt\":\"\xff\xfe\"}".to_vec()),
        ("odd white space", b" {\r\n\t\"prompt\" :\"x\" , \"model\":\"m\"}\n\n".to_vec()),
        ("one key twice", br#"{"model":"a","model":"b","messages":[],"messages":[{"role":"user","content":"x"}]}"#.to_vec()),
        ("numbers as written", br#"{"prompt":"x","temperature":0.10000000000000000001,"seed":1e400,"n":-0}"#.to_vec()),
        ("escapes", br#"{"prompt":"\u00e9\ud83d\ude00\/","messages":[{"role":"user","content":"\ud800 alone"}]}"#.to_vec()),
        ("unknown fields", br#"{"model":"m","messages":[{"role":"oracle","content":{"a":[1]},"x":null}],"surprise":{}}"#.to_vec()),
        ("wrong shapes", br#"{"model":7,"messages":"x","prompt":{"a":1},"input":[[[]]],"prompt_cache_key":{}}"#.to_vec()),
        ("nested deep", deep),
        ("nul bytes", b"\0\0\0\0".to_vec()),
        ("large", random(LARGE)),
    ]
}

#[tokio::test]
async fn requests_and_responses_keep_every_byte() {
    let replica = Replica::start("a", echo);
    let router = Router::start(&[&replica], &[]).await;
    let surfaces = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/invocations",
        "/v1/score",
        "/tokenize",
    ];
    for target in surfaces {
        for (name, body) in bodies() {
            replica.forget();
            let response = router.post(target, &body).await;
            assert_eq!(response.status, 200, "{target}, {name}: {}", response.text());
            assert!(replica.only_request().body == body, "{target}, {name}: the replica got other bytes");
            assert!(response.body.bytes == body, "{target}, {name}: the client got other bytes");
            assert_eq!(response.body.end, End::Whole, "{target}, {name}");
        }
    }
}

/// Bodies that take for ever where each key, escape or message is looked for from the beginning.
fn laborious() -> Vec<(&'static str, String)> {
    const MANY: usize = 100_000;
    let many = |each: &dyn Fn(usize) -> String| (0..MANY).map(each).collect::<Vec<_>>().join(",");
    let text = r#""messages":[{"role":"user","content":"x"}],"prompt":"x","input":"x""#;
    vec![
        ("keys", format!("{{{},{text}}}", many(&|n| format!(r#""key-{n}":{n}"#)))),
        ("keys with escapes", format!("{{{},{text}}}", many(&|n| format!(r#""\u006b\n{n}":"\"\\\u00e9""#)))),
        ("one key again and again", format!("{{{}}}", many(&|n| format!(r#"{text},"prompt_cache_key":"{n}""#)))),
        (
            "escapes in a text",
            format!(r#"{{"prompt":"{0}","input":"{0}","messages":[{{"content":"{0}"}}]}}"#, r#"\n\ud83d\ude00\ud800"#.repeat(MANY)),
        ),
        ("messages", format!(r#"{{"messages":[{}]}}"#, many(&|_| r#"{"role":"\u0075ser","content":""}"#.to_owned()))),
        ("keys of a message", format!(r#"{{"messages":[{{{},"content":"x"}}]}}"#, many(&|n| format!(r#""\t{n}":[{{}}]"#)))),
    ]
}

#[tokio::test]
async fn a_hundred_thousand_keys_and_escapes_are_answered() {
    let replica = Replica::start("a", echo);
    let router = Router::start(&[&replica], &[]).await;
    for target in ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"] {
        for (name, body) in laborious() {
            let response = router.post(target, &body).await;
            assert_eq!(response.status, 200, "{target}, {name}: {}", response.text());
            assert!(response.body.bytes == body.as_bytes(), "{target}, {name}: the client got other bytes");
        }
    }
}

#[tokio::test]
async fn a_chunked_request_keeps_every_byte() {
    let replica = Replica::start("a", echo);
    let router = Router::start(&[&replica], &[]).await;
    for length in [1, 4_097, LARGE] {
        replica.forget();
        let body = random(length);
        let mut client = Client::connect(router.traffic).await;
        client.write("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").await;
        for piece in body.chunks(60_000) {
            client.write(format!("{:x};extension=1\r\n", piece.len())).await;
            client.write(piece).await;
            client.write("\r\n").await;
        }
        client.write("0\r\nx-trailer: 1\r\n\r\n").await;
        let response = client.response("POST").await;
        assert_eq!(response.status, 200, "{length}: {}", response.text());
        assert!(replica.only_request().body == body, "{length}: the replica got other bytes");
        assert!(response.body.bytes == body, "{length}: the client got other bytes");
    }
}

#[tokio::test]
async fn encoded_bodies_are_not_decoded() {
    let replica = Replica::start("a", |_| answer(200, "content-type: application/json\r\ncontent-encoding: gzip\r\n", gzip()));
    let router = Router::start(&[&replica], &[]).await;
    let fields = "content-type: application/json\r\ncontent-encoding: gzip\r\naccept-encoding: gzip, br\r\n";
    let response = router.send("POST", "/v1/chat/completions", fields, gzip()).await;
    let request = replica.only_request();
    assert_eq!(request.body, gzip());
    assert_eq!(request.head.all("content-encoding"), ["gzip"]);
    assert_eq!(request.head.all("accept-encoding"), ["gzip, br"]);
    assert_eq!(response.head.all("content-encoding"), ["gzip"]);
    assert_eq!(response.body.bytes, gzip());
}

#[tokio::test]
async fn no_encoding_is_added_or_asked_for() {
    let replica = Replica::start("a", |_| answer(200, "content-type: application/json\r\n", "x".repeat(10_000)));
    let router = Router::start(&[&replica], &[]).await;
    let response = router.post("/v1/chat/completions", "{}").await;
    assert_eq!(replica.only_request().head.get("accept-encoding"), None);
    let response2 = router.send("POST", "/v1/chat/completions", "accept-encoding: gzip\r\n", "{}").await;
    for response in [response, response2] {
        assert_eq!(response.head.get("content-encoding"), None);
        assert_eq!(response.text(), "x".repeat(10_000));
    }
}

#[tokio::test]
async fn a_request_without_a_body_gets_none() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    for method in ["GET", "DELETE", "OPTIONS"] {
        replica.forget();
        assert_eq!(router.send(method, "/v1/files/x", "", "").await.status, 200);
        let request = replica.only_request();
        assert_eq!(request.head.request_framing(), Framing::Length(0), "{method}: {:?}", request.head);
    }
}

#[tokio::test]
async fn a_response_to_head_has_no_body_and_ends() {
    let replica = Replica::start("a", |request| match request.head.method() {
        "HEAD" => vec![crate::replica::Step::Write(b"HTTP/1.1 200 OK\r\ncontent-length: 77\r\n\r\n".to_vec())],
        _ => ok(request),
    });
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    let response = client.request("HEAD", "/v1/files/x", "", "").await;
    assert_eq!(response.status, 200);
    assert_eq!(response.head.get("content-length"), Some("77"));
    // The connection is still in step.
    assert_eq!(client.request("GET", "/v1/files/x", "", "").await.status, 200);
}

#[tokio::test]
async fn one_connection_carries_many_requests() {
    let replica = Replica::start("a", echo);
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    for number in 0..20 {
        let body = random(number * 1_000);
        let response = client.request("POST", "/invocations", "", &body).await;
        assert!(response.body.bytes == body, "request {number}");
    }
}

#[tokio::test]
async fn requests_written_at_once_are_answered_in_order() {
    let replica = Replica::start("a", echo);
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    let all: Vec<u8> = (0..5).flat_map(|number| crate::client::request("POST", "/invocations", "", number.to_string())).collect();
    client.write(all).await;
    for number in 0..5 {
        assert_eq!(client.response("POST").await.text(), number.to_string());
    }
}

#[tokio::test]
async fn an_http10_client_gets_an_answer_it_can_read() {
    let replica = Replica::start("a", |_| crate::answers::stream(3, std::time::Duration::ZERO));
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    client.write("POST /v1/completions HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}").await;
    let response = client.response("POST").await;
    assert_eq!(response.head.get("transfer-encoding"), None);
    assert!(response.text().ends_with("data: [DONE]\n\n"), "{}", response.text());
    assert_eq!(replica.only_request().body, b"{}");
}

#[tokio::test]
async fn http2_keeps_every_byte() {
    let replica = Replica::start("a", echo);
    let router = Router::start(&[&replica], &[]).await;
    let mut client = crate::h2::H2::connect(&router).await;
    for (name, body) in bodies() {
        replica.forget();
        let response = client.request("POST", "/v1/chat/completions", body.clone()).await;
        assert_eq!(response.head.status, 200, "{name}");
        assert!(replica.only_request().body == body, "{name}: the replica got other bytes");
        assert!(response.bytes == body, "{name}: the client got other bytes");
        assert_eq!(response.broken, None, "{name}");
    }
}
