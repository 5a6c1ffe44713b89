//! Which header fields pass, which do not, and which the router adds.

use std::net::SocketAddr;

use crate::answers::{answer, ok};
use crate::client::Client;
use crate::h2::H2;
use crate::replica::{Replica, Request, Step};
use crate::support::{Router, eventually};

const CHAT: &str = "/v1/chat/completions";

/// What the replica was sent for a request with these fields.
async fn sent(settings: &[(&str, &str)], fields: &str) -> (Request, SocketAddr) {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], settings).await;
    assert_eq!(router.send("POST", CHAT, fields, "{}").await.status, 200);
    (replica.only_request(), replica.addr)
}

#[tokio::test]
async fn end_to_end_fields_pass_as_they_are() {
    let fields = "X-Custom: Value, with  Signs;q=\"1\"\r\nuser-agent: \r\ncookie: a=1\r\nAccept: */*\r\nx-stainless-lang: python\r\n\
                  x-latin: caf\u{e9}\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\ntracestate: a=b\r\n\
                  openai-organization: org\r\nx-prefix-router-custom: mine\r\n";
    let (request, _) = sent(&[], fields).await;
    for line in fields.split("\r\n").filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').unwrap();
        let bytes: String = value.trim_start().bytes().map(char::from).collect();
        assert_eq!(request.head.all(&name.to_ascii_lowercase()), [bytes], "{name}");
    }
}

#[tokio::test]
async fn fields_of_several_values_keep_values_and_order() {
    let replica = Replica::start("a", |_| answer(200, "set-cookie: one=1\r\nx-many: b\r\nset-cookie: two=2\r\nx-many: a, c\r\n", "x"));
    let router = Router::start(&[&replica], &[]).await;
    let response = router.send("POST", CHAT, "x-many: 2\r\nx-other: x\r\nx-many: 1\r\nx-many: 3, 4\r\n", "{}").await;
    assert_eq!(replica.only_request().head.all("x-many"), ["2", "1", "3, 4"]);
    assert_eq!(response.head.all("set-cookie"), ["one=1", "two=2"]);
    assert_eq!(response.head.all("x-many"), ["b", "a, c"]);
}

/// Fields of one connection, and one that `Connection` names.
const HOP: &str = "connection: keep-alive, x-secret-hop\r\nx-secret-hop: 1\r\nkeep-alive: timeout=77\r\nte: trailers\r\ntrailer: x-t\r\n\
                   proxy-connection: keep-alive\r\nproxy-authenticate: Basic\r\nproxy-authorization: Basic x\r\n";
const HOP_NAMES: [&str; 7] =
    ["x-secret-hop", "keep-alive", "te", "trailer", "proxy-connection", "proxy-authenticate", "proxy-authorization"];

#[tokio::test]
async fn hop_by_hop_fields_stop_at_the_router_both_ways() {
    let replica = Replica::start("a", |_| answer(200, HOP, "x"));
    let router = Router::start(&[&replica], &[]).await;
    let response = router.send("POST", CHAT, HOP, "{}").await;
    let request = replica.only_request();
    for (head, way) in [(&request.head, "to the replica"), (&response.head, "to the client")] {
        for name in HOP_NAMES {
            assert_eq!(head.get(name), None, "{name} {way}");
        }
        let named = head.all("connection").join(",");
        assert!(!named.contains("x-secret-hop"), "connection: {named} {way}");
    }
}

#[tokio::test]
async fn connection_cannot_name_away_what_the_router_needs() {
    let fields = "connection: close, content-length, host, content-type, authorization\r\nauthorization: Bearer x\r\n";
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    let response = router.send("POST", CHAT, fields, "{\"model\":\"m\"}").await;
    assert_eq!(response.status, 200);
    let request = replica.only_request();
    assert_eq!(request.body, b"{\"model\":\"m\"}");
    assert_eq!(request.head.all("host"), [replica.addr.to_string()]);
}

#[tokio::test]
async fn host_becomes_the_replicas_authority() {
    let (request, addr) = sent(&[], "").await;
    assert_eq!(request.head.all("host"), [addr.to_string()]);
    assert_eq!(request.head.target(), CHAT);
}

#[tokio::test]
async fn forwarded_fields_are_made() {
    let (request, _) = sent(&[], "").await;
    assert_eq!(request.head.all("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(request.head.all("x-forwarded-proto"), ["http"]);
    assert_eq!(request.head.all("x-forwarded-host"), ["router.test"]);
}

#[tokio::test]
async fn forwarded_fields_are_appended_to() {
    let fields = "x-forwarded-for: 203.0.113.7\r\nx-forwarded-proto: https\r\nx-forwarded-host: api.example\r\n";
    let (request, _) = sent(&[], fields).await;
    // As one field or as several, which mean the same.
    let joined = |name: &str| request.head.all(name).join(", ");
    assert_eq!(joined("x-forwarded-for"), "203.0.113.7, 127.0.0.1");
    assert_eq!(joined("x-forwarded-proto"), "https, http");
    assert_eq!(joined("x-forwarded-host"), "api.example, router.test");
}

#[tokio::test]
async fn a_request_id_is_made_where_there_is_none() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    for _ in 0..2 {
        router.post(CHAT, "{}").await;
    }
    let ids: Vec<String> = replica.requests().iter().map(|request| request.head.all("x-request-id").concat()).collect();
    assert!(ids.iter().all(|id| id.len() >= 16), "{ids:?}");
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn a_request_id_passes_unchanged() {
    let (request, _) = sent(&[], "X-Request-Id: My Id/1\r\n").await;
    assert_eq!(request.head.all("x-request-id"), ["My Id/1"]);
}

#[tokio::test]
async fn a_request_id_for_this_connection_alone_does_not_pass() {
    let (request, _) = sent(&[], "X-Request-Id: mine\r\nConnection: x-request-id\r\n").await;
    let ids = request.head.all("x-request-id");
    assert!(ids.len() == 1 && ids[0].len() >= 16, "{ids:?}");
}

#[tokio::test]
async fn authorization_passes() {
    let (request, _) = sent(&[], "authorization: Bearer callers-key\r\n").await;
    assert_eq!(request.head.all("authorization"), ["Bearer callers-key"]);
    let (request, _) = sent(&[], "").await;
    assert_eq!(request.head.get("authorization"), None);
}

#[tokio::test]
async fn upstream_api_key_replaces_authorization_everywhere() {
    let replica = Replica::start("a", |request| match request.head.target() {
        "/v1/models" => answer(200, "content-type: application/json\r\n", r#"{"object":"list","data":[{"id":"m"}]}"#),
        _ => ok(request),
    });
    let router = Router::start(&[&replica], &[("upstream_api_key", "replicas-key")]).await;
    router.send("POST", CHAT, "authorization: Bearer callers-key\r\nauthorization: Bearer other\r\n", "{}").await;
    router.post(CHAT, "{}").await;
    router.send("GET", "/v1/models", "authorization: Bearer callers-key\r\n", "").await;
    eventually("a health check", async || !replica.probes().is_empty()).await;
    let heads = replica.requests().into_iter().map(|request| request.head).chain(replica.probes());
    for head in heads {
        assert_eq!(head.all("authorization"), ["Bearer replicas-key"], "{}", head.start);
    }
    assert!(replica.count() >= 3, "two prompts and a list of models");
}

#[tokio::test]
async fn callers_authorization_reads_the_models() {
    let replica = Replica::start("a", |_| answer(200, "content-type: application/json\r\n", r#"{"object":"list","data":[{"id":"m"}]}"#));
    let router = Router::start(&[&replica], &[]).await;
    let response = router.send("GET", "/v1/models", "authorization: Bearer callers-key\r\n", "").await;
    assert_eq!(response.status, 200);
    let last = replica.requests().pop().unwrap();
    assert_eq!(last.head.all("authorization"), ["Bearer callers-key"]);
}

#[tokio::test]
async fn status_and_replicas_own_fields_pass_to_the_client() {
    for status in [200, 201, 206, 299, 400, 401, 404, 422, 500, 529, 599] {
        let fields = "server: engine\r\ndate: Sun, 29 Nov 2026 17:49:33 GMT\r\nvary: Origin\r\nx-engine: 1\r\n";
        let replica = Replica::start("a", move |_| answer(status, fields, "body"));
        let router = Router::start(&[&replica], &[]).await;
        let response = router.post(CHAT, "{}").await;
        assert_eq!(response.status, status);
        assert_eq!(response.text(), "body");
        for line in fields.trim_end().split("\r\n") {
            let (name, value) = line.split_once(": ").unwrap();
            assert_eq!(response.head.all(name), [value], "{status}");
        }
        assert_eq!(response.head.get("x-prefix-router-error"), None, "{status} is the replica's, not the router's");
    }
}

#[tokio::test]
async fn answering_replica_and_reason_are_named() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    let response = router.post(CHAT, crate::support::chat("x")).await;
    assert_eq!((response.replica(), response.reason()), ("a", "home"));
    let router = Router::start(&[&replica], &[("response_headers", "false")]).await;
    let response = router.post(CHAT, crate::support::chat("x")).await;
    assert_eq!(response.head.get("x-prefix-router-replica"), None);
    assert_eq!(response.head.get("x-prefix-router-reason"), None);
}

#[tokio::test]
async fn expect_is_answered_by_the_router_and_goes_no_further() {
    let replica = Replica::start("a", crate::answers::echo);
    let router = Router::start(&[&replica], &[]).await;
    let mut client = Client::connect(router.traffic).await;
    client.write(format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n")).await;
    assert_eq!(client.head().await.status(), 100);
    assert_eq!(replica.count(), 0, "the replica hears of it when the body is there");
    client.write("body").await;
    let response = client.response("POST").await;
    assert_eq!((response.status, response.text().as_str()), (200, "body"));
    assert_eq!(replica.only_request().head.get("expect"), None);
}

#[tokio::test]
async fn what_the_head_condemns_is_refused_before_the_body_is_asked_for() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("max_body", "1KiB")]).await;
    let cases = [
        ("POST", CHAT, "x-amzn-sagemaker-prefix-aware-id: \r\ncontent-length: 4\r\n", 400),
        ("POST", CHAT, "x-amzn-sagemaker-prefix-aware-id: caf\u{e9}\r\ncontent-length: 4\r\n", 400),
        ("POST", "/sleep", "content-length: 4\r\n", 403),
        ("PUT", CHAT, "content-length: 4\r\n", 405),
        ("POST", CHAT, "content-length: 1025\r\n", 413),
    ];
    for (method, target, fields, status) in cases {
        let mut client = Client::connect(router.traffic).await;
        client.write(format!("{method} {target} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n{fields}\r\n")).await;
        assert_eq!(client.head().await.status(), status, "{method} {target} {fields}");
    }
    assert_eq!(replica.count(), 0);
}

#[tokio::test]
async fn interim_responses_of_a_replica_do_not_end_the_answer() {
    let replica = Replica::start("a", |request| {
        let mut steps = vec![Step::Write(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n".to_vec())];
        steps.extend(ok(request));
        steps
    });
    let router = Router::start(&[&replica], &[]).await;
    let response = router.post(CHAT, "{}").await;
    assert_eq!((response.status, response.text().as_str()), (200, r#"{"ok":true}"#));
}

#[tokio::test]
async fn http2_requests_become_plain_ones() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    let mut client = H2::connect(&router).await;
    let response = client.request("POST", CHAT, "{}").await;
    assert_eq!(response.head.status, 200);
    assert_eq!(response.head.headers.get("transfer-encoding"), None);
    let request = replica.only_request();
    assert_eq!(request.head.start, format!("POST {CHAT} HTTP/1.1"));
    assert_eq!(request.head.all("host"), [replica.addr.to_string()]);
    assert_eq!(request.head.all("x-forwarded-host"), [router.traffic.to_string()]);
    assert!(request.head.fields.iter().all(|(name, _)| !name.starts_with(':')));
}

#[tokio::test]
async fn a_cookie_in_pieces_becomes_one_field() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    let cases = [(vec!["a=1"], "a=1"), (vec!["a=1", "b=2"], "a=1; b=2"), (vec!["a=1", "b=2; c=3", "d=4"], "a=1; b=2; c=3; d=4")];
    let mut client = H2::connect(&router).await;
    for (pieces, whole) in cases {
        replica.forget();
        // Another field between each two.
        let fields: Vec<(&str, &str)> = pieces.iter().flat_map(|&piece| [("cookie", piece), ("x-between", "x")]).collect();
        assert_eq!(client.start_with("POST", CHAT, &fields, "{}").await.status(), 200);
        let head = replica.only_request().head;
        assert_eq!((head.all("cookie"), head.all("x-between").len()), (vec![whole], pieces.len()), "{pieces:?}");
    }
}
