//! The admin port's API: who may use it, and what it says.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::answers::{answer, ok};
use crate::client::{Client, Response};
use crate::command::{Serving, program};
use crate::contract::OPENAPI;
use crate::replica::Replica;
use crate::support::{A_WHILE, Filed, Folder, Router, Setting, api, chat, content, eventually, list};

/// What needs to be allowed, and what it answers then.
const CLOSED: [(&str, &str, u16); 14] = [
    ("GET", "/api/v1/openapi.json", 200),
    ("GET", "/api/v1/overview", 200),
    ("GET", "/api/v1/fleet", 200),
    ("GET", "/api/v1/ring", 200),
    ("GET", "/api/v1/decisions", 200),
    ("GET", "/api/v1/hot-keys", 200),
    ("GET", "/api/v1/config", 200),
    ("GET", "/api/v1/log-level", 200),
    ("PUT", "/api/v1/log-level", 400),
    ("PUT", "/api/v1/replicas/a/weight", 400),
    ("POST", "/api/v1/explain", 200),
    ("POST", "/api/v1/replicas/a/drain", 200),
    ("POST", "/api/v1/replicas/a/undrain", 200),
    ("POST", "/api/v1/reload", 409),
];

const OPEN: [&str; 4] = ["/metrics", "/live", "/ready", "/ui"];

async fn ask(admin: SocketAddr, method: &str, target: &str, fields: &str) -> Response {
    let mut client = Client::connect(admin).await;
    client.write(format!("{method} {target} HTTP/1.1\r\n{fields}content-length: 0\r\n\r\n")).await;
    client.response(method).await
}

fn message(response: &Response) -> String {
    let json: Value = serde_json::from_str(&response.text()).unwrap_or_else(|error| panic!("{error}: {response:?}"));
    json["error"]["message"].as_str().expect("an error has a message").to_owned()
}

#[tokio::test]
async fn with_a_token_who_has_it_may_from_anywhere() {
    let a = Replica::start("a", ok);
    let router = Router::start(&[&a], &[("admin_token", "sesame")]).await;
    for (method, target, status) in CLOSED {
        let good =
            ask(router.admin, method, target, "host: evil.test\r\norigin: http://evil.test\r\nauthorization: Bearer sesame\r\n").await;
        assert_eq!(good.status, status, "{method} {target}");
        for wrong in ["", "authorization: Bearer open\r\n", "authorization: Bearer sesame2\r\n", "authorization: Basic sesame\r\n"] {
            let refused = ask(router.admin, method, target, &format!("host: localhost\r\n{wrong}")).await;
            assert_eq!(refused.status, 401, "{method} {target} {wrong}");
            assert_eq!(refused.head.get("www-authenticate"), Some("Bearer"));
            assert!(message(&refused).contains("Authorization: Bearer TOKEN"), "{}", refused.text());
            assert!(!refused.text().contains("sesame"), "{}", refused.text());
        }
    }
    let (_, fleet) = api(router.admin, "GET", "/api/v1/fleet", "authorization: Bearer sesame\r\n", "").await;
    assert_eq!(fleet["replicas"][0]["draining"], false, "it was drained and undrained by whoever had the token: {fleet}");
    for target in OPEN {
        assert_eq!(ask(router.admin, "GET", target, "host: evil.test\r\n").await.status, 200, "{target}");
    }
    for target in ["/nothing", "/api/v1/whatever", "/ui/nothing"] {
        assert_eq!(ask(router.admin, "GET", target, "host: evil.test\r\n").await.status, 404, "{target}: there is nothing to guard");
    }
}

#[tokio::test]
async fn without_a_token_only_this_host_may_and_no_page_of_others() {
    let a = Replica::start("a", ok);
    let router = Router::start(&[&a], &[]).await;
    let port = router.admin.port();
    for (method, target, status) in CLOSED {
        for good in [
            format!("host: 127.0.0.1:{port}\r\n"),
            "host: localhost:9999\r\n".to_owned(),
            "host: [::1]\r\n".to_owned(),
            format!("host: localhost:{port}\r\norigin: http://localhost:{port}\r\n"),
        ] {
            assert_eq!(ask(router.admin, method, target, &good).await.status, status, "{method} {target} {good}");
        }
        for wrong in [
            "host: evil.test\r\n".to_owned(),
            format!("host: localhost.evil.test:{port}\r\n"),
            format!("host: localhost:{port}\r\norigin: http://evil.test\r\n"),
            format!("host: localhost:{port}\r\norigin: null\r\n"),
            format!("host: localhost:{port}\r\norigin: http://localhost:1\r\n"),
        ] {
            let refused = ask(router.admin, method, target, &wrong).await;
            assert_eq!(refused.status, 403, "{method} {target} {wrong}");
            assert!(message(&refused).contains("admin_token"), "{}", refused.text());
        }
    }
    for target in OPEN {
        assert_eq!(ask(router.admin, "GET", target, "host: evil.test\r\norigin: http://evil.test\r\n").await.status, 200, "{target}");
    }
}

/// This machine's own address on a network, if it has one.
fn network_address() -> Option<SocketAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent.
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().filter(|addr| !addr.ip().is_loopback() && !addr.ip().is_unspecified())
}

#[tokio::test]
async fn without_a_token_nobody_may_who_comes_by_the_network() {
    let Some(own) = network_address() else {
        eprintln!("not tested: this machine has no network");
        return;
    };
    let a = Replica::start("a", ok);
    let check = async |settings: &[Setting<'_>], fields: &str, expected: u16| {
        let router = Router::start(&[&a], &[&[("admin", "0.0.0.0:0")], settings].concat()).await;
        let admin = SocketAddr::new(own.ip(), router.admin.port());
        let response = ask(admin, "GET", "/api/v1/fleet", &format!("host: localhost\r\n{fields}")).await;
        assert_eq!(response.status, expected, "{}", response.text());
        for target in OPEN {
            assert_eq!(ask(admin, "GET", target, "host: x\r\n").await.status, 200, "{target}");
        }
        response
    };
    let refused = check(&[], "", 403).await;
    assert!(message(&refused).contains("admin_token"), "{}", refused.text());
    check(&[("admin_token", "sesame")], "authorization: Bearer sesame\r\n", 200).await;
}

#[tokio::test]
async fn the_fleet_as_it_is() {
    let (a, b) = (Replica::start("a", ok), Replica::refusing("b", ok));
    let list = format!(
        "replicas:\n  - {{url: {}, name: a, weight: 3, models: [m, n]}}\n  - {{url: {}, name: 'b/1%', drain: true}}\n",
        a.url(),
        b.url()
    );
    let router = Router::start_with(&list, &[]).await;
    router.has_state("a", "up").await;
    let health = async || router.api("GET", "/api/v1/fleet").await.1["replicas"][1]["health"].clone();
    eventually("a draining replica's health", async || health().await == "down").await;
    let (status, fleet) = router.api("GET", "/api/v1/fleet").await;
    assert_eq!(status, 200);
    let nothing = json!({"requests": 0, "share": 0.0, "failed": 0, "prompt_tokens": 0, "cached_tokens": 0, "cached_share": null,
        "first_byte_p50": null, "first_byte_p90": null});
    let expected = json!({"recent_requests": 0, "replicas": [
        {"name": "a", "address": a.addr.to_string(), "state": "up", "health": "up", "draining": false, "drained_by": null, "outstanding": 0, "weight": 3,
         "configured_weight": 3, "models": ["m", "n"], "threshold": null, "recent": nothing, "engine": null},
        {"name": "b/1%", "address": b.addr.to_string(), "state": "draining", "health": "down", "draining": true, "drained_by": "configuration",
         "outstanding": 0, "weight": 1, "configured_weight": 1, "models": [], "threshold": null, "recent": nothing, "engine": null},
    ]});
    assert_eq!(fleet, expected);
}

#[tokio::test]
async fn what_the_last_answers_and_the_engines_say_of_each_replica() {
    let usage = r#"{"usage":{"prompt_tokens":100,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":75}}}"#;
    let a = Replica::start("a", move |request| match request.head.target() {
        "/metrics" => answer(
            200,
            "content-type: text/plain\r\n",
            "vllm:num_requests_running 3\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n",
        ),
        _ => answer(200, "content-type: application/json\r\n", usage),
    });
    let b = Replica::start("b", |_| answer(500, "", "broken"));
    let router = Router::start(&[&a, &b], &[("strategy", "round_robin"), ("engine_metrics_interval", "100ms"), ("retries", "0")]).await;
    for _ in 0..4 {
        router.post("/v1/chat/completions", chat("x")).await;
    }
    router.has_metric("prefix_router_requests_total", &[], 4.0).await;
    eventually("the engine is asked", async || router.api("GET", "/api/v1/fleet").await.1["replicas"][0]["engine"].is_object()).await;
    let (_, fleet) = router.api("GET", "/api/v1/fleet").await;
    let (good, bad) = (&fleet["replicas"][0], &fleet["replicas"][1]);
    assert_eq!(fleet["recent_requests"], 4);
    assert_eq!(
        (&good["recent"]["share"], &good["recent"]["failed"], &good["recent"]["cached_share"]),
        (&json!(0.5), &json!(0), &json!(0.75))
    );
    assert!(good["recent"]["first_byte_p50"].as_f64() > Some(0.0) && good["recent"]["first_byte_p90"].as_f64() < Some(20.0), "{good}");
    assert_eq!((&bad["recent"]["failed"], &bad["recent"]["first_byte_p50"], &bad["engine"]), (&json!(2), &Value::Null, &Value::Null));
    assert_eq!(
        (&good["engine"]["running"], &good["engine"]["waiting"], &good["engine"]["kv_cache_usage"]),
        (&json!(3), &json!(2), &json!(0.5))
    );
}

/// The shares of the ring by name.
async fn shares(router: &Router) -> HashMap<String, f64> {
    let (status, ring) = router.api("GET", "/api/v1/ring").await;
    assert_eq!(status, 200, "{ring}");
    let names = ring["replicas"].as_array().expect("names").iter().map(|name| name.as_str().expect("a name").to_owned());
    let shares: HashMap<String, f64> =
        names.zip(ring["shares"].as_array().expect("shares").iter().map(|share| share.as_f64().expect("a share"))).collect();
    assert!((shares.values().sum::<f64>() - 1.0).abs() < 1e-6, "{ring}");
    assert_eq!(ring["owners"].as_array().expect("owners").len(), 720);
    shares
}

#[tokio::test]
async fn a_weight_moves_keys_and_holds_until_it_is_taken_back() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let filed = Filed::start(&[&a, &b], &[]).await;
    let router = &filed.router;
    let before = shares(router).await["a"];
    assert!((0.4..0.6).contains(&before), "{before}");
    let answered = router.api_with("PUT", "/api/v1/replicas/a/weight", r#"{"weight": 9}"#).await;
    assert_eq!(answered, (200, json!({"name": "a", "weight": 9, "configured_weight": 1, "changed": true})));
    let heavy = shares(router).await["a"];
    assert!((0.85..0.95).contains(&heavy), "{heavy}");
    assert_eq!(router.api_with("PUT", "/api/v1/replicas/a/weight", r#"{"weight": 9}"#).await.1["changed"], false);
    // A reload that changes the fleet keeps it.
    let c = Replica::start("c", ok);
    filed.change(&[&a, &b, &c], &[]).await;
    let (_, fleet) = router.api("GET", "/api/v1/fleet").await;
    assert_eq!((&fleet["replicas"][0]["weight"], &fleet["replicas"][0]["configured_weight"]), (&json!(9), &json!(1)));
    let answered = router.api_with("PUT", "/api/v1/replicas/a/weight", r#"{"weight": null}"#).await;
    assert_eq!(answered, (200, json!({"name": "a", "weight": 1, "configured_weight": 1, "changed": true})));
    filed.change(&[&a, &b], &[]).await;
    assert_eq!(shares(router).await["a"], before, "the ring is the one of the start again");
    for wrong in [
        "",
        "{}",
        "[]",
        "[null]",
        r#"{"weight": 0}"#,
        r#"{"weight": 101}"#,
        r#"{"weight": -1}"#,
        r#"{"weight": 1.5}"#,
        r#"{"weight": "2"}"#,
        r#"{"weight": 2, "x": 1}"#,
    ] {
        let (status, answer) = router.api_with("PUT", "/api/v1/replicas/a/weight", wrong).await;
        assert_eq!(status, 400, "{wrong}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("1 to 100")), "{wrong}: {answer}");
    }
    let (status, answer) = router.api_with("PUT", "/api/v1/replicas/z/weight", r#"{"weight": 2}"#).await;
    assert_eq!((status, &answer["error"]["message"]), (404, &json!("no replica has this name; known: a, b")));
}

#[tokio::test]
async fn the_ring_of_each_pool() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let list = format!("replicas:\n  - {{url: {}, name: a, models: [m]}}\n  - {{url: {}, name: b, models: [n]}}\n", a.url(), b.url());
    let router = Router::start_with(&list, &[]).await;
    let (_, all) = router.api("GET", "/api/v1/ring").await;
    assert_eq!((&all["pool"], &all["replicas"]), (&json!("all"), &json!(["a", "b"])));
    let (_, one) = router.api("GET", "/api/v1/ring?pool=m").await;
    assert_eq!((&one["replicas"], &one["shares"]), (&json!(["a"]), &json!([1.0])));
    let (status, unknown) = router.api("GET", "/api/v1/ring?pool=o").await;
    assert_eq!(status, 404);
    let known = all["pools"].as_array().expect("pools").iter().map(|pool| pool.as_str().expect("a name")).collect::<Vec<_>>().join(", ");
    assert_eq!(unknown["error"]["message"], format!("no pool has this name; known: {known}"));
}

#[tokio::test]
async fn the_configuration_in_force_without_its_secrets() {
    let a = Replica::start("a", ok);
    let filed = Filed::start(&[&a], &[("retries", "1"), ("admin_token", "sesame")]).await;
    let read = async || {
        let (status, config) = api(filed.router.admin, "GET", "/api/v1/config", "authorization: Bearer sesame\r\n", "").await;
        assert_eq!(status, 200, "{config}");
        assert!(!config.to_string().contains("sesame"), "{config}");
        config
    };
    let of = |config: &Value, key: &str| {
        let settings = config["settings"].as_array().expect("settings");
        settings.iter().find(|setting| setting["key"] == key).unwrap_or_else(|| panic!("no {key} in {config}")).clone()
    };
    let config = read().await;
    assert_eq!(config["file"], filed.file.display().to_string());
    assert_eq!(of(&config, "retries"), json!({"key": "retries", "value": "1", "default": "2", "is_default": false, "change": "live"}));
    assert_eq!(of(&config, "listen")["change"], "restart");
    assert_eq!(of(&config, "strategy")["is_default"], true);
    filed.write(&[&a], &[("retries", "0"), ("admin_token", "sesame")]);
    let (status, _) = api(filed.router.admin, "POST", "/api/v1/reload", "authorization: Bearer sesame\r\n", "").await;
    assert_eq!((status, &of(&read().await, "retries")["value"]), (200, &json!("0")));
}

#[tokio::test]
async fn wrong_questions_are_told_what_is_allowed() {
    let a = Replica::start("a", ok);
    let router = Router::start(&[&a], &[]).await;
    for (method, target, status, word) in [
        ("GET", "/api/v1/decisions?limit=0", 400, "1 to 512"),
        ("GET", "/api/v1/decisions?limit=513", 400, "1 to 512"),
        ("GET", "/api/v1/decisions?limit=many", 400, "1 to 512"),
        ("GET", "/api/v1/decisions?after=-1", 400, "the number of a decision"),
        ("GET", "/api/v1/decisions?last=3", 400, "last"),
        ("GET", "/api/v1/ring?model=m", 400, "allowed: pool"),
        ("POST", "/api/v1/explain?method=GET", 400, "allowed: path"),
        ("POST", "/api/v1/replicas/%FF/drain", 400, "UTF-8"),
        ("POST", "/api/v1/replicas/b/drain", 404, "known: a"),
        ("POST", "/api/v1/fleet", 405, "allow"),
        ("DELETE", "/api/v1/replicas/a/weight", 405, "allow"),
        ("GET", "/api/v1/nothing", 404, "openapi.json"),
    ] {
        let (got, answer) = router.api(method, target).await;
        assert_eq!(got, status, "{method} {target}: {answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains(word)), "{method} {target}: {answer}");
    }
    assert_eq!(ask(router.admin, "POST", "/api/v1/fleet", "host: localhost\r\n").await.head.get("allow"), Some("GET,HEAD"));
    for wrong in [r#"{"level": "verbose"}"#, r#"{"level": 3}"#, "{}", r#"{"level": "info", "for": "1h"}"#] {
        let (status, answer) = router.api_with("PUT", "/api/v1/log-level", wrong).await;
        assert_eq!(status, 400, "{wrong}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("trace")), "{wrong}: {answer}");
    }
    let (status, answer) = router.api_with("PUT", "/api/v1/log-level", format!(r#"{{"level": "{}"}}"#, "x".repeat(20_000))).await;
    assert_eq!(status, 413, "{answer}");
    let (status, answer) = router.api_with("PUT", "/api/v1/log-level", r#"{"level": "debug"}"#).await;
    assert_eq!(status, 409, "in a test the log is not the router's: {answer}");
}

#[tokio::test]
async fn the_log_says_more_or_less_until_it_is_configured_otherwise() {
    let a = Replica::start("a", ok);
    let folder = Folder::new();
    let configured = |level: &str| content(&list(&[&a]), &[("log_level", level)]);
    let file = folder.file("router.yaml", &configured("info"));
    let serving = Serving::start(program().args(["serve", "--config"]).arg(&file), &[&a]).await;
    let levels = async |method: &str, body: &str| {
        let (status, levels) = api(serving.admin, method, "/api/v1/log-level", "", body).await;
        assert_eq!(status, 200, "{levels}");
        (levels["level"].as_str().expect("a level").to_owned(), levels["configured"].as_str().expect("a level").to_owned())
    };
    let is = |level: &str, configured: &str| (level.to_owned(), configured.to_owned());
    // What the log says of the replica that is drained and undrained meanwhile.
    let drains = async || {
        let before = serving.log().len();
        for order in ["drain", "undrain"] {
            let (status, _) = api(serving.admin, "POST", &format!("/api/v1/replicas/a/{order}"), "", "").await;
            assert_eq!(status, 200);
        }
        tokio::time::sleep(A_WHILE).await;
        serving.log()[before..].iter().filter(|line| line.contains("is drained")).count()
    };
    assert_eq!(levels("GET", "").await, is("info", "info"));
    assert_eq!(drains().await, 2);
    assert_eq!(levels("PUT", r#"{"level": "error"}"#).await, is("error", "info"));
    assert_eq!(drains().await, 0, "an order is told at info");
    assert_eq!(levels("PUT", r#"{"level": null}"#).await, is("info", "info"));
    assert_eq!(drains().await, 2);
    // What is configured otherwise wins over what was asked for before.
    levels("PUT", r#"{"level": "error"}"#).await;
    std::fs::write(&file, configured("debug")).expect("a temporary file");
    assert_eq!(api(serving.admin, "POST", "/api/v1/reload", "", "").await.1["applied"], json!(["log_level"]));
    assert_eq!(levels("GET", "").await, is("debug", "debug"));
    assert_eq!(drains().await, 2);
}

#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere_and_the_way_there_is_short() {
    let a = Replica::start("a", ok);
    let router = Router::start(&[&a], &[]).await;
    for target in ["/", "/ui/"] {
        let response = router.admin(target).await;
        assert_eq!((response.status, response.head.get("location")), (307, Some("/ui")), "{target}");
    }
    let page = router.admin("/ui").await;
    assert_eq!((page.status, page.head.get("content-type")), (200, Some("text/html; charset=utf-8")));
    assert_eq!(page.head.get("x-content-type-options"), Some("nosniff"));
    let policy = page.head.get("content-security-policy").expect("a policy");
    assert!(policy.contains("default-src 'self'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    // All that it names is there.
    let (text, mut files) = (page.text(), 0);
    for file in text.split('"').filter(|part| part.starts_with("ui/")) {
        assert_eq!(router.admin(&format!("/{file}")).await.status, 200, "{file}");
        files += 1;
    }
    assert!(files >= 2, "{text}");
}

#[tokio::test]
async fn the_description_that_is_served_names_all_that_is_served() {
    let a = Replica::start("a", ok);
    let router = Router::start(&[&a], &[]).await;
    let (_, served) = router.api("GET", "/api/v1/openapi.json").await;
    assert_eq!(served, *OPENAPI);
    let described: BTreeSet<&str> = served["paths"].as_object().expect("paths").keys().map(String::as_str).collect();
    let code: BTreeSet<&str> = include_str!("../../src/admin/mod.rs").split('"').filter(|part| part.starts_with("/api/v1/")).collect();
    assert!(described.len() > 10);
    assert_eq!(described, code, "paths of the description, and of the code");
    for (path, operations) in served["paths"].as_object().expect("paths") {
        for method in ["get", "put", "post", "delete", "patch"] {
            let method_is_described = operations.get(method).is_some();
            let (status, _) = router.api(&method.to_uppercase(), &path.replace("{name}", "nobody")).await;
            assert_eq!(status != 405, method_is_described, "{method} {path}");
        }
    }
}
