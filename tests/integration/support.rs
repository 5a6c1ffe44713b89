//! The router under test, on free ports, in the test's own runtime. Everything the tests know of the product's API is in this file.

use std::fmt::Write as _;
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, process};

use prefix_router::app::{self, Running};
use prefix_router::config::{self, Reading, Sources};

use crate::client::{self, Client, Response};
use crate::contract;
use crate::replica::Replica;

/// Longer than anything takes on a slow machine: only a failing test waits so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Long enough to say that something does not happen, since what does happen takes well under a millisecond.
pub(crate) const A_WHILE: Duration = Duration::from_millis(300);

/// Waits for `what`, but not for ever.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("no {what} within {PATIENCE:?}"),
    }
}

/// Asks again until it is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Names of key and value in the configuration file.
pub(crate) type Setting<'a> = (&'a str, &'a str);

/// A router in front of `replicas`. Checks are quick and one is enough, so that tests wait little; `settings` change that.
pub(crate) struct Router {
    pub(crate) traffic: SocketAddr,
    pub(crate) admin: SocketAddr,
    running: Running,
}

impl Router {
    /// Started, and every replica known to be up.
    pub(crate) async fn start(replicas: &[&Replica], settings: &[Setting<'_>]) -> Self {
        let router = Self::start_cold(replicas, settings).await;
        for replica in replicas {
            router.has_state(replica.name, "up").await;
        }
        router
    }

    /// One whose picture of the replicas stays as it was at the start: a replica's death is found by requests alone.
    pub(crate) async fn start_blind(replicas: &[&Replica], settings: &[Setting<'_>]) -> Self {
        let settings = [&[("health_check_interval", "60s")], settings].concat();
        Self::start(replicas, &settings).await
    }

    /// Started, whatever the replicas are.
    pub(crate) async fn start_cold(replicas: &[&Replica], settings: &[Setting<'_>]) -> Self {
        Self::start_with(&list(replicas), settings).await
    }

    /// Started with this text as the list of replicas.
    pub(crate) async fn start_with(replicas: &str, settings: &[Setting<'_>]) -> Self {
        let text = text(replicas, settings);
        let config = config::load_str(&text, "test.yaml").unwrap_or_else(|error| panic!("{error}\nin\n{text}"));
        let running = app::start(config).await.expect("the router starts");
        Self { traffic: running.traffic, admin: running.admin, running }
    }

    /// Started with a configuration file, which it looks at.
    pub(crate) async fn start_file(file: &Path) -> Self {
        let sources = Sources { file: Some(file.to_owned()), ..Sources::default() };
        let reading = Reading::new(sources).unwrap_or_else(|error| panic!("{error}"));
        let running = app::start_reading(reading).await.expect("the router starts");
        Self { traffic: running.traffic, admin: running.admin, running }
    }

    /// A request to the API, as from this host.
    pub(crate) async fn api(&self, method: &str, target: &str) -> (u16, serde_json::Value) {
        api(self.admin, method, target, "", "").await
    }

    /// One with a body.
    pub(crate) async fn api_with(&self, method: &str, target: &str, body: impl AsRef<[u8]>) -> (u16, serde_json::Value) {
        api(self.admin, method, target, "", body).await
    }

    /// Has the configuration file read again, and gives the keys that were applied.
    pub(crate) async fn reload(&self) -> Vec<String> {
        let (status, json) = self.api("POST", "/api/v1/reload").await;
        assert_eq!(status, 200, "{json}");
        assert_eq!(json["needs_restart"], serde_json::json!([]), "{json}");
        json["applied"].as_array().expect("a list").iter().map(|key| key.as_str().expect("a text").to_owned()).collect()
    }

    /// What SIGTERM does.
    pub(crate) fn drain(&self) {
        self.running.drain();
    }

    /// Waits for the end of all.
    pub(crate) async fn stopped(mut self) {
        within("end of the router", self.running.stopped()).await;
    }

    /// One request on a connection of its own.
    pub(crate) async fn send(&self, method: &str, target: &str, fields: &str, body: impl AsRef<[u8]>) -> Response {
        let mut client = Client::connect(self.traffic).await;
        client.request(method, target, fields, body).await
    }

    /// `POST` with a JSON content type.
    pub(crate) async fn post(&self, target: &str, body: impl AsRef<[u8]>) -> Response {
        self.send("POST", target, "content-type: application/json\r\n", body).await
    }

    pub(crate) async fn get(&self, target: &str) -> Response {
        self.send("GET", target, "", "").await
    }

    /// `GET` on the admin port.
    pub(crate) async fn admin(&self, target: &str) -> Response {
        let mut client = Client::connect(self.admin).await;
        client.request("GET", target, "", "").await
    }

    /// The text of `/metrics`.
    pub(crate) async fn metrics(&self) -> String {
        let response = self.admin("/metrics").await;
        assert_eq!(response.status, 200);
        response.text()
    }

    /// The sum of a metric's samples that carry all these labels; 0 when there is none.
    pub(crate) async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        samples(&self.metrics().await, name, labels).iter().sum()
    }

    /// Waits until a metric has this value: some are counted just after the last byte is out.
    pub(crate) async fn has_metric(&self, name: &str, labels: &[(&str, &str)], value: f64) {
        let mut last = f64::NAN;
        let started = Instant::now();
        while last != value {
            assert!(started.elapsed() < PATIENCE, "{name}{labels:?} is {last}, not {value}, in\n{}", self.metrics().await);
            tokio::time::sleep(Duration::from_millis(5)).await;
            last = self.metric(name, labels).await;
        }
    }

    pub(crate) async fn has_state(&self, replica: &str, state: &str) {
        self.has_metric("prefix_router_replica_state", &[("replica", replica), ("state", state)], 1.0).await;
    }

    /// Waits until nothing is outstanding, and nothing is counted twice on the way there.
    pub(crate) async fn is_at_rest(&self) {
        eventually("every outstanding count at 0", async || {
            let values = samples(&self.metrics().await, "prefix_router_outstanding", &[]);
            assert!(values.iter().all(|&value| value >= 0.0), "a count fell below 0: {values:?}");
            !values.is_empty() && values.iter().all(|&value| value == 0.0)
        })
        .await;
    }

    /// A chat body whose first choice is this replica, other than those of other `seed`s.
    pub(crate) async fn chat_for(&self, replica: &Replica, seed: &str) -> String {
        for number in 0..400 {
            let body = chat(&format!("{seed} {number}"));
            let response = self.post("/v1/chat/completions", &body).await;
            if response.replica() == replica.name {
                return body;
            }
        }
        panic!("no prompt of 400 goes to replica {}", replica.name);
    }
}

/// The shortest chat body with this text.
pub(crate) fn chat(text: &str) -> String {
    serde_json::json!({"model": "m", "messages": [{"role": "user", "content": text}]}).to_string()
}

/// The replicas as the configuration lists them.
pub(crate) fn list(replicas: &[&Replica]) -> String {
    let mut text = String::from("replicas:\n");
    for replica in replicas {
        writeln!(text, "  - url: {}\n    name: {}", replica.url(), replica.name).expect("a string takes it");
    }
    text
}

/// The text of a configuration file.
pub(crate) fn text(replicas: &str, settings: &[Setting<'_>]) -> String {
    let mut all = vec![
        ("listen", "127.0.0.1:0"),
        ("admin", "127.0.0.1:0"),
        ("health_check_interval", "100ms"),
        ("health_check_rise", "1"),
        // Tests count what replicas are asked.
        ("engine_metrics_interval", "0s"),
        ("access_log", "false"),
    ];
    for &(key, value) in settings {
        all.retain(|(known, _)| *known != key);
        all.push((key, value));
    }
    let mut text: String = all.iter().map(|(key, value)| format!("{key}: {value}\n")).collect();
    text.push_str(replicas);
    text
}

/// A request to the API of the admin port `admin`: status and JSON, which is as described.
pub(crate) async fn api(admin: SocketAddr, method: &str, target: &str, fields: &str, body: impl AsRef<[u8]>) -> (u16, serde_json::Value) {
    let (mut client, body) = (Client::connect(admin).await, body.as_ref());
    client.write(format!("{method} {target} HTTP/1.1\r\nhost: {admin}\r\n{fields}content-length: {}\r\n\r\n", body.len())).await;
    client.write(body).await;
    let response = client.response(method).await;
    assert_eq!(response.head.get("content-type"), Some("application/json"), "{method} {target}: {response:?}");
    let json = serde_json::from_str(&response.text()).unwrap_or_else(|error| panic!("{method} {target}: {error}: {response:?}"));
    contract::check(method, target, response.status, &json);
    (response.status, json)
}

/// A folder for as long as it lives.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("prefix-router-test-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let path = env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    /// The file of that name, with this text.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a temporary file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Values of a metric's samples that carry all these labels, from the text that `/metrics` shows.
pub(crate) fn samples(text: &str, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
    let carries = |set: &str| labels.iter().all(|(label, value)| set.contains(&format!("{label}=\"{value}\"")));
    text.lines()
        .filter_map(|line| line.strip_prefix(name))
        .filter_map(|rest| match rest.strip_prefix('{') {
            Some(rest) => rest.rsplit_once("} "),
            None => rest.strip_prefix(' ').map(|value| ("", value)),
        })
        .filter(|(set, _)| carries(set))
        .map(|(_, value)| value.trim().parse().expect("a sample has a number"))
        .collect()
}

/// What every error made by the router has in common, and its shape on this path.
pub(crate) fn check_error(response: &Response, target: &str, status: u16, code: &str) {
    let text = response.text();
    assert_eq!(response.status, status, "{target}: {text}");
    assert_eq!(response.head.all("x-prefix-router-error"), [code], "{target}: {text}");
    assert_eq!(response.head.get("content-type"), Some("application/json"), "{target}: {text}");
    let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{target}: {error}: {text}"));
    let error = &json["error"];
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{target}: {text}");
    assert!(error["type"].is_string(), "{target}: {text}");
    if target.starts_with("/v1/messages") {
        assert_eq!(json["type"], "error", "{target}: {text}");
    } else {
        assert_eq!(error["code"], code, "{target}: {text}");
        assert!(error.as_object().is_some_and(|fields| fields.contains_key("param")), "{target}: {text}");
    }
    assert_eq!(response.body.end, client::End::Whole, "{target}: an error is a whole response");
}

/// A router that reads a file, and only when it is asked to.
pub(crate) struct Filed {
    pub(crate) folder: Folder,
    pub(crate) file: PathBuf,
    pub(crate) router: Router,
}

impl Filed {
    /// With these replicas, all up.
    pub(crate) async fn start(replicas: &[&Replica], settings: &[Setting<'_>]) -> Self {
        let filed = Self::start_with(&list(replicas), settings).await;
        for replica in replicas {
            filed.router.has_state(replica.name, "up").await;
        }
        filed
    }

    /// Started with this text as the list of replicas.
    pub(crate) async fn start_with(replicas: &str, settings: &[Setting<'_>]) -> Self {
        let folder = Folder::new();
        let file = folder.file("router.yaml", &content(replicas, settings));
        let router = Router::start_file(&file).await;
        Self { folder, file, router }
    }

    /// Rewrites the file.
    pub(crate) fn write(&self, replicas: &[&Replica], settings: &[Setting<'_>]) {
        fs::write(&self.file, content(&list(replicas), settings)).expect("a temporary file");
    }

    /// Rewrites it, and has it read; the keys that were applied.
    pub(crate) async fn change(&self, replicas: &[&Replica], settings: &[Setting<'_>]) -> Vec<String> {
        self.write(replicas, settings);
        self.router.reload().await
    }
}

/// The text of a file that is read only when somebody asks, unless `settings` say otherwise.
pub(crate) fn content(replicas: &str, settings: &[Setting<'_>]) -> String {
    text(replicas, &[&[("reload_interval", "0s")], settings].concat())
}
