//! What the router answers itself: health, ping, the union of the models, the sum of the load.

use serde_json::Value;

use crate::answers::{answer, ok};
use crate::client::{Client, Response};
use crate::h2::H2;
use crate::replica::{Health, Replica, Request, Step};
use crate::support::{Router, check_error, eventually};

const JSON: &str = "content-type: application/json\r\n";

/// Written as no serializer would, to see that nobody wrote it anew.
const MODEL_1: &str = r#"{ "id" : "m-1","object":"model", "x":1.0e2 ,"n":12345678901234567890123,"u":"\u00e9/é" ,"y":[ ]}"#;
const MODEL_2: &str = r#"{"id":"m-2","permission":[{"id":"p"}],"parent":null}"#;
const MODEL_3: &str = r#"{"owned_by":"me","id":"m-3"}"#;

fn models(objects: &[&str]) -> impl Fn(&Request) -> Vec<Step> + Send + Sync + use<> {
    let body = format!(r#"{{"object":"list", "data":[ {} ]}}"#, objects.join(" , "));
    move |request| match request.head.target() {
        "/v1/models" => answer(200, JSON, &body),
        _ => ok(request),
    }
}

fn ids(response: &Response) -> Vec<String> {
    let json: Value = serde_json::from_slice(&response.body.bytes).unwrap();
    assert_eq!(json["object"], "list");
    json["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn models_are_the_union_and_each_object_is_whole() {
    let a = Replica::start("a", models(&[MODEL_1, MODEL_2]));
    let b = Replica::start("b", models(&[r#"{"id":"m-2","from":"b"}"#, MODEL_3]));
    let router = Router::start(&[&a, &b], &[]).await;
    let response = router.get("/v1/models").await;
    assert_eq!((response.status, response.head.get("content-type")), (200, Some("application/json")));
    assert_eq!(ids(&response), ["m-1", "m-2", "m-3"]);
    for object in [MODEL_1, MODEL_2, MODEL_3] {
        assert!(response.text().contains(object), "{} has no {object}", response.text());
    }
    let mut client = Client::connect(router.traffic).await;
    let head = client.request("HEAD", "/v1/models", "", "").await;
    assert_eq!((head.status, head.body.bytes.len()), (200, 0));
}

#[tokio::test]
async fn no_answer_to_head_has_a_body() {
    let replica = Replica::start("a", models(&[MODEL_1]));
    let router = Router::start(&[&replica], &[]).await;
    let mut h2 = H2::connect(&router).await;
    for (path, status) in [("/v1/models", 200), ("/health", 200), ("/sleep", 403), ("/metrics", 404)] {
        let whole = router.get(path).await;
        let length = whole.body.bytes.len().to_string();
        let one = Client::connect(router.traffic).await.request("HEAD", path, "", "").await;
        assert_eq!((one.status, one.body.bytes.len(), one.head.get("content-length")), (status, 0, Some(&*length)), "{path}");
        let two = h2.request("HEAD", path, "").await;
        let told = two.head.headers.get("content-length").map(|length| length.to_str().expect("a number"));
        assert_eq!((two.head.status.as_u16(), two.bytes.len(), two.broken, told), (status, 0, None, Some(&*length)), "{path}");
    }
}

#[tokio::test]
async fn models_do_without_replicas_that_are_down_or_have_none() {
    let a = Replica::start("a", models(&[MODEL_1]));
    let b = Replica::refusing("b", ok);
    let c = Replica::start("c", |_| answer(404, JSON, "{}"));
    let d = Replica::start("d", |_| answer(200, JSON, "not JSON"));
    let e = Replica::start("e", |_| vec![Step::Reset]);
    let router = Router::start_cold(&[&b, &c, &d, &e, &a], &[]).await;
    router.has_state("a", "up").await;
    let response = router.get("/v1/models").await;
    assert_eq!(response.status, 200);
    assert_eq!(ids(&response), ["m-1"]);
}

#[tokio::test]
async fn recorded_model_lists_are_kept_whole() {
    let vllm = include_bytes!("../fixtures/engines/vllm/models.http");
    let replica = Replica::start("a", |request| match request.head.target() {
        "/v1/models" => vec![Step::Write(vllm.to_vec())],
        _ => ok(request),
    });
    let router = Router::start(&[&replica], &[]).await;
    let text = router.get("/v1/models").await.text();
    let recorded = String::from_utf8_lossy(vllm);
    let object = &recorded[recorded.find("[{").unwrap() + 1..recorded.rfind(']').unwrap()];
    assert!(text.contains(object), "{text} has no {object}");
}

#[tokio::test]
async fn load_is_the_sum() {
    let load = |sum: &'static str| {
        move |request: &Request| match request.head.target() {
            "/load" => answer(200, JSON, sum),
            _ => vec![Step::Hang],
        }
    };
    let a = Replica::start("a", load(r#"{"server_load":3}"#));
    let b = Replica::start("b", load(r#"{"server_load": 40, "more": 1}"#));
    let router = Router::start(&[&a, &b], &[]).await;
    let response = router.get("/load").await;
    assert_eq!((response.status, response.text().as_str()), (200, r#"{"server_load":43}"#));
    assert_eq!(response.head.get("content-type"), Some("application/json"));
}

#[tokio::test]
async fn a_replica_without_load_counts_as_this_routers_outstanding() {
    let a = Replica::start("a", |_| answer(200, JSON, r#"{"server_load":3}"#));
    let b = Replica::start("b", |request| match request.head.target() {
        "/load" => answer(404, JSON, "{}"),
        _ => vec![Step::Hang],
    });
    let c = Replica::refusing("c", ok);
    let router = Router::start_cold(&[&a, &b, &c], &[("strategy", "round_robin"), ("health_check_fall", "1")]).await;
    router.has_state("b", "up").await;
    router.has_state("a", "up").await;
    assert_eq!(router.get("/load").await.text(), r#"{"server_load":3}"#);
    let mut waiting = Vec::new();
    while b.open() < 2 {
        let before = a.count() + b.count();
        let mut client = Client::connect(router.traffic).await;
        client.start("POST", "/v1/completions", "", "{}").await;
        eventually("the request arrives", async || a.count() + b.count() > before).await;
        waiting.push(client);
    }
    assert_eq!(router.get("/load").await.text(), r#"{"server_load":5}"#);
}

#[tokio::test]
async fn load_is_what_a_replica_says_or_what_this_router_has_there_whichever_is_more() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let router = Router::start(&[&a, &b], &[]).await;
    let body = router.chat_for(&a, "x").await;
    let says = |load: &'static str| {
        move |request: &Request| match request.head.target() {
            "/load" => answer(200, JSON, load),
            _ => vec![Step::Hang],
        }
    };
    a.script(says(r#"{"server_load":0}"#));
    let mut waiting = Vec::new();
    for number in 1..=2 {
        let mut client = Client::connect(router.traffic).await;
        client.start("POST", "/v1/chat/completions", "", &body).await;
        eventually("the request arrives", async || a.open() == number).await;
        waiting.push(client);
    }
    // `a` has two requests of this router, `b` has none: each counts by itself, not their sums.
    let cases = [
        (r#"{"server_load":0}"#, r#"{"server_load":0}"#, 2),
        (r#"{"server_load":1}"#, r#"{"server_load":7}"#, 9),
        (r#"{"server_load":7}"#, r#"{"server_load":0}"#, 7),
        (r#"{"server_load":"?"}"#, "not JSON", 2),
    ];
    for (at_a, at_b, sum) in cases {
        a.script(says(at_a));
        b.script(says(at_b));
        assert_eq!(router.get("/load").await.text(), format!(r#"{{"server_load":{sum}}}"#), "{at_a} {at_b}");
    }
}

#[tokio::test]
async fn health_and_ping_say_whether_a_replica_can_be_used() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let router = Router::start(&[&a, &b], &[("health_check_fall", "1")]).await;
    let ways = [("GET", "/health"), ("HEAD", "/health"), ("GET", "/ping"), ("HEAD", "/ping"), ("POST", "/ping")];
    a.health(Health::Status(500));
    router.has_state("a", "down").await;
    for (method, target) in ways {
        let response = router.send(method, target, "", "").await;
        assert_eq!(response.status, 200, "{method} {target} while one of two is up");
        if target == "/ping" {
            assert_eq!(response.body.bytes, b"", "{method} {target}");
        }
    }
    b.health(Health::Status(500));
    router.has_state("b", "down").await;
    for (method, target) in ways {
        let response = router.send(method, target, "", "").await;
        assert_eq!(response.status, 503, "{method} {target} while none is up");
    }
    assert_eq!(router.admin("/ready").await.status, 503);
    assert_eq!(router.admin("/live").await.status, 200);
    b.health(Health::Good);
    eventually("healthy", async || router.get("/health").await.status == 200).await;
    // None of these went to a replica.
    assert_eq!((a.count(), b.count()), (0, 0));
}

#[tokio::test]
async fn health_says_no_replica_in_the_routers_error_shape() {
    let replica = Replica::refusing("a", ok);
    let router = Router::start_cold(&[&replica], &[]).await;
    router.has_state("a", "down").await;
    check_error(&router.get("/health").await, "/health", 503, "no_replica");
}
