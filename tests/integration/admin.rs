//! The admin port's API: who may use it, and what it says.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::answers::ok;
use crate::client::{Client, Response};
use crate::replica::Replica;
use crate::support::{Router, Setting, api, eventually};

/// What needs to be allowed, and what it answers then.
const CLOSED: [(&str, &str, u16); 4] = [
    ("GET", "/api/v1/fleet", 200),
    ("POST", "/api/v1/replicas/a/drain", 200),
    ("POST", "/api/v1/replicas/a/undrain", 200),
    ("POST", "/api/v1/reload", 409),
];

const OPEN: [&str; 3] = ["/metrics", "/live", "/ready"];

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
    let (_, fleet) = api(router.admin, "GET", "/api/v1/fleet", "authorization: Bearer sesame\r\n").await;
    assert_eq!(fleet["replicas"][0]["draining"], false, "it was drained and undrained by whoever had the token: {fleet}");
    for target in OPEN {
        assert_eq!(ask(router.admin, "GET", target, "host: evil.test\r\n").await.status, 200, "{target}");
    }
    for target in ["/", "/api/v1/whatever"] {
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
    let expected = json!({"replicas": [
        {"name": "a", "address": a.addr.to_string(), "state": "up", "health": "up", "draining": false, "drained_by": null, "outstanding": 0, "weight": 3,
         "models": ["m", "n"]},
        {"name": "b/1%", "address": b.addr.to_string(), "state": "draining", "health": "down", "draining": true, "drained_by": "configuration",
         "outstanding": 0, "weight": 1, "models": []},
    ]});
    assert_eq!(fleet, expected);
    // Names are percent-encoded.
    assert_eq!(router.api("POST", "/api/v1/replicas/b%2F1%25/drain").await.0, 200);
    assert_eq!(ask(router.admin, "GET", "/api/v1/replicas/a/drain", "host: localhost\r\n").await.status, 405);
    assert_eq!(ask(router.admin, "GET", "/api/v1/reload", "host: localhost\r\n").await.status, 405);
}
