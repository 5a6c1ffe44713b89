//! Which paths reach a replica, which are refused, and how.

use crate::answers::ok;
use crate::client::Client;
use crate::replica::Replica;
use crate::support::{Router, check_error};

/// Every route that a vLLM server registers, as it prints them.
const VLLM_ROUTES: &str = include_str!("../fixtures/engines/vllm/routes.txt");

/// Those of them that the router exposes, and has an answer for itself or passes on.
const EXPOSED_OUTSIDE_V1: [&str; 8] = ["/health", "/ping", "/version", "/load", "/tokenize", "/detokenize", "/invocations", "/metrics"];

/// (method, target): each arrives as it was written.
const PASSES: [(&str, &str); 32] = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/score"),
    ("POST", "/v1/rerank"),
    ("POST", "/v1/audio/transcriptions"),
    ("POST", "/v1/chat/completions/render"),
    ("POST", "/score"),
    ("POST", "/rerank"),
    ("POST", "/classify"),
    ("POST", "/pooling"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/invocations"),
    ("POST", "/endpoints/my-endpoint/invocations"),
    ("POST", "/endpoints/my-endpoint/invocations-response-stream"),
    ("GET", "/version"),
    ("GET", "/v1/models/m"),
    ("GET", "/v1/responses/resp_1"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("DELETE", "/v1/files/f"),
    ("PUT", "/v1/things/1"),
    ("PATCH", "/v1/things/1"),
    ("OPTIONS", "/v1/chat/completions"),
    ("OPTIONS", "/invocations"),
    ("POST", "/v1/chat/completions?api-version=1&x=%41+b&empty=&=&&y"),
    ("GET", "/v1/files/a%20b%2Fc%C3%A9"),
    ("GET", "/v1/models/org%2Fmodel"),
    ("GET", "/v1/not-yet-known"),
];

/// Refused, whatever the method.
const REFUSED: [&str; 31] = [
    "/",
    "/sleep",
    "/sleep?level=1",
    "/sleep/",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/load_lora_adapter?x=1",
    "/v1/load_lora_adapter/",
    "/v1//load_lora_adapter",
    "//v1/load_lora_adapter",
    "/v1/./load_lora_adapter",
    "/v1/x/../load_lora_adapter",
    "/v1/../sleep",
    "/v1/../../sleep",
    "/v1/%2e%2e/sleep",
    "/v1/%2E%2E/sleep",
    "/v1/.%2e/sleep",
    "/v1/..%2fsleep",
    "/%73leep",
    "/v1/%6coad_lora_adapter",
    "/v1/%6Coad_lora_adapter",
    "/v1/load%5Flora%5Fadapter",
    "/v1/%75nload_lora_adapter",
    "/%76%31/%6coad_lora_adapter",
    "/./sleep",
    "//sleep",
    "/health/../sleep",
    "/v1x/chat/completions",
    "/endpoints/a/b/invocations",
    "/endpoints//invocations",
    "/invocations/../sleep",
];

#[tokio::test]
async fn exposed_paths_pass_as_written() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    for (method, target) in PASSES {
        replica.forget();
        let response = router.send(method, target, "content-type: application/json\r\n", "").await;
        assert_eq!(response.status, 200, "{method} {target}: {}", response.text());
        let request = replica.only_request();
        assert_eq!(request.head.start, format!("{method} {target} HTTP/1.1"));
    }
}

#[tokio::test]
async fn all_else_is_refused() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    for target in REFUSED {
        for method in ["GET", "POST", "OPTIONS"] {
            let response = router.send(method, target, "", "").await;
            check_error(&response, target, 403, "path_not_exposed");
        }
    }
    assert_eq!(replica.count(), 0, "{:?}", replica.requests());
}

#[tokio::test]
async fn of_an_engines_own_routes_only_the_inference_ones_are_exposed() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    let mut refused = 0;
    for line in VLLM_ROUTES.lines() {
        let (path, methods) = line.split_once(", Methods: ").unwrap();
        if path.starts_with("/v1/") || EXPOSED_OUTSIDE_V1.contains(&path) {
            continue;
        }
        for method in methods.split(", ").filter(|&method| method != "HEAD") {
            check_error(&router.send(method, path, "", "").await, path, 403, "path_not_exposed");
            refused += 1;
        }
    }
    assert!(refused > 30, "the list of routes is there");
    assert_eq!(replica.count(), 0);
}

#[tokio::test]
async fn a_target_in_absolute_form_is_judged_by_its_path() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    let response = router.get("http://elsewhere.test/sleep").await;
    assert_eq!(response.status, 403);
    let response = router.send("POST", "http://elsewhere.test/v1/completions?a=b", "", "{}").await;
    assert_eq!(response.status, 200);
    let request = replica.only_request();
    assert_eq!(request.head.target(), "/v1/completions?a=b");
    assert_eq!(request.head.all("host"), [replica.addr.to_string()]);
}

#[tokio::test]
async fn expose_paths_exposes_exactly_what_it_lists() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("expose_paths", "[/sleep, /adm/*, /v1/load_lora_adapter]")]).await;
    let cases = [
        ("/sleep", 200),
        ("/sleep?level=1", 200),
        ("/adm/x/y", 200),
        ("/v1/load_lora_adapter", 200),
        ("/v1/unload_lora_adapter", 403),
        ("/sleepy", 403),
        ("/sleep/x", 403),
        ("/wake_up", 403),
        ("/adm/../wake_up", 403),
        ("/adm/%2e%2e/wake_up", 403),
    ];
    for (target, status) in cases {
        let response = router.send("POST", target, "", "").await;
        assert_eq!(response.status, status, "{target}: {}", response.text());
    }
    assert_eq!(replica.count(), 4);
}

#[tokio::test]
async fn known_surfaces_take_their_method_only() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    let cases = [
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/completions", "POST"),
        ("DELETE", "/v1/embeddings", "POST"),
        ("GET", "/v1/messages", "POST"),
        ("PATCH", "/invocations", "POST"),
        ("POST", "/health", "GET"),
        ("DELETE", "/ping", "GET"),
        ("DELETE", "/v1/models", "GET"),
        ("POST", "/load", "GET"),
    ];
    for (method, target, allowed) in cases {
        let response = router.send(method, target, "", "").await;
        check_error(&response, target, 405, "method_not_allowed");
        let allow = response.head.all("allow").join(", ");
        assert!(allow.split(", ").any(|method| method == allowed), "{method} {target}: {allow}");
        assert!(!allow.split(", ").any(|word| word == method), "{method} {target}: {allow}");
    }
    assert_eq!(replica.count(), 0);
}

#[tokio::test]
async fn metrics_are_elsewhere_and_the_refusal_says_where() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    let response = router.get("/metrics").await;
    check_error(&response, "/metrics", 404, "metrics_on_admin_port");
    let port = router.admin.port().to_string();
    assert!(response.text().contains(&port), "{} names no port {port}", response.text());
    assert_eq!(replica.count(), 0);
}

#[tokio::test]
async fn admin_paths_are_not_on_the_traffic_port_nor_traffic_on_the_admin_port() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    for target in ["/live", "/ready", "/ui", "/api/v1/fleet"] {
        assert_eq!(router.get(target).await.status, 403, "{target}");
    }
    let mut client = Client::connect(router.admin).await;
    let response = client.request("POST", "/v1/chat/completions", "", "{}").await;
    assert_eq!(response.status, 404);
    assert_eq!(replica.count(), 0);
}

#[tokio::test]
async fn upgrades_are_not_supported() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    let fields =
        "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for target in ["/v1/realtime", "/v1/responses"] {
        let response = router.send("GET", target, fields, "").await;
        check_error(&response, target, 501, "upgrade_unsupported");
    }
    // An upgrade that the client merely offers is no reason to refuse.
    let response =
        router.send("POST", "/v1/completions", "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: x\r\n", "{}").await;
    assert_eq!(response.status, 200);
    assert_eq!(replica.only_request().head.get("upgrade"), None);
}
