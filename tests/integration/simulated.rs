//! Simulated replicas for tests, and what they have counted.

use std::net::SocketAddr;

use prefix_router::demo_replica::{self, Replica, Settings};
use prefix_router::sim::cost::Cost;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::client::{Client, Response};
use crate::support::eventually;

/// A simulated replica on a port of its own.
pub(crate) struct Simulated(Replica);

/// Steps of a millisecond, whatever they do.
pub(crate) fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.engine.cost = Cost { step: 1e-3, prefill_token: 0.0, prefill_context: 0.0, decode_sequence: 0.0, decode_context_token: 0.0 };
    settings
}

impl Simulated {
    pub(crate) async fn start(settings: Settings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self(demo_replica::start(listener, settings).unwrap())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }

    pub(crate) async fn stop(self) {
        self.0.stop().await;
    }

    /// A request on a connection of its own; a body is JSON.
    pub(crate) async fn send(&self, method: &str, path: &str, body: &Value) -> Response {
        let (fields, body) = if body.is_null() { ("", String::new()) } else { ("content-type: application/json\r\n", body.to_string()) };
        Client::connect(self.address()).await.request(method, path, fields, body).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        let response = self.send("POST", path, &body).await;
        assert_eq!(response.status, 200, "{path} {body}: {}", response.text());
        serde_json::from_slice(&response.body.bytes).unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        serde_json::from_slice(&self.send("GET", path, &Value::Null).await.body.bytes).unwrap()
    }

    /// A request that is written, and whose answer nobody has read yet.
    pub(crate) async fn begin(&self, path: &str, body: &Value) -> Client {
        let mut client = Client::connect(self.address()).await;
        client.start("POST", path, "content-type: application/json\r\n", body.to_string()).await;
        client
    }

    /// The journal comes to say that.
    pub(crate) async fn counts(&self, name: &str, count: u64) {
        eventually(&format!("{count} {name}"), async || self.get("/demo/requests").await[name] == count).await;
    }

    /// A sample of `/metrics`.
    pub(crate) async fn metric(&self, name: &str, label: &str) -> f64 {
        let page = self.send("GET", "/metrics", &Value::Null).await.text();
        let line = page.lines().find(|line| line.split('{').next() == Some(name) && line.contains(label));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {name} {label} in\n{page}"))
    }
}
