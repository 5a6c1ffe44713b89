//! The configuration changes while the router serves: what takes effect, what stays, and what is said of it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::answers::{chunk, event, head, last_chunk, ok, ok_after, reset};
use crate::client::{Client, End};
use crate::command::{Serving, program};
use crate::dns::Dns;
use crate::replica::{Gate, Replica, Step};
use crate::support::{A_WHILE, Filed, Folder, Router, Setting, api, chat, content, eventually, list, samples, text};

const CHAT: &str = "/v1/chat/completions";
const RELOADS: &str = "prefix_router_config_reloads_total";
const SUCCESSFUL: &str = "prefix_router_config_last_reload_successful";
const SINCE: &str = "prefix_router_config_last_reload_success_timestamp_seconds";

/// The answers to so many requests, one after the other: their statuses, and the replicas that the router names.
async fn answers(router: &Router, count: usize) -> Vec<(u16, String)> {
    let mut answers = Vec::new();
    for number in 0..count {
        let response = router.post(CHAT, chat(&format!("prompt {number}"))).await;
        answers.push((response.status, response.head.get("x-prefix-router-replica").unwrap_or_default().to_owned()));
    }
    answers
}

#[tokio::test]
async fn how_requests_are_placed() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let all = [&a, &b];
    let filed = Filed::start(&all, &[]).await;
    let reason = async || filed.router.post(CHAT, chat("x")).await.reason().to_owned();
    assert_eq!(reason().await, "home");
    assert_eq!(filed.change(&all, &[("strategy", "round_robin")]).await, ["strategy"]);
    assert_eq!(reason().await, "load");

    // What prompts share is 1,100 characters: with the whole of them as the key they spread, with less they have one home.
    let homes = async || {
        let mut homes = Vec::new();
        for number in 0..20 {
            homes.push(filed.router.post(CHAT, chat(&format!("{}{number}", "x".repeat(1_100)))).await.replica().to_owned());
        }
        homes.sort();
        homes.dedup();
        homes.len()
    };
    assert_eq!(filed.change(&all, &[]).await, ["strategy"]);
    assert_eq!(homes().await, 2);
    assert_eq!(filed.change(&all, &[("prefix_length", "1024")]).await, ["prefix_length"]);
    assert_eq!(homes().await, 1);

    // Another seed, other homes; the same one, the same again.
    filed.change(&all, &[]).await;
    let before = answers(&filed.router, 30).await;
    assert_eq!(filed.change(&all, &[("hash_seed", "7")]).await, ["hash_seed"]);
    assert_ne!(answers(&filed.router, 30).await, before);
    filed.change(&all, &[]).await;
    assert_eq!(answers(&filed.router, 30).await, before);
}

#[tokio::test]
async fn limits_and_who_waits() {
    let gate = Gate::new();
    let a = Replica::start("a", ok_after(&gate));
    let limited = |limit, bound| [("max_outstanding", limit), ("queue_max_requests", bound)];
    let filed = Filed::start(&[&a], &[]).await;
    let start = async || {
        let mut client = Client::connect(filed.router.traffic).await;
        client.start("POST", CHAT, "", chat("x")).await;
        client
    };
    let waits = async |count: f64| filed.router.has_metric("prefix_router_queue_requests", &[], count).await;
    // Two that began without any limit count as well.
    let mut clients = vec![start().await, start().await];
    a.has_requests(2).await;
    assert_eq!(filed.change(&[&a], &limited("2", "9")).await, ["max_outstanding", "queue_max_requests"]);
    for count in 1..=4 {
        clients.push(start().await);
        waits(f64::from(count)).await;
    }
    // A lower bound throws nobody out, and lets nobody in.
    assert_eq!(filed.change(&[&a], &limited("2", "1")).await, ["queue_max_requests"]);
    assert_eq!(filed.router.post(CHAT, chat("x")).await.status, 429);
    waits(4.0).await;
    // A raised limit lets in as many more, and none at all everybody.
    assert_eq!(filed.change(&[&a], &limited("3", "1")).await, ["max_outstanding"]);
    a.has_requests(3).await;
    waits(3.0).await;
    filed.change(&[&a], &[]).await;
    a.has_requests(6).await;
    waits(0.0).await;
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response("POST").await.status, 200);
    }
    filed.router.is_at_rest().await;
}

#[tokio::test]
async fn weights_and_who_is_there() {
    let (a, b, c) = (Replica::start("a", ok), Replica::start("b", ok), Replica::start("c", ok));
    let settings = [("strategy", "round_robin"), ("slow_start", "0s")];
    let filed = Filed::start(&[&a, &b], &settings).await;
    let share = async |of: &str| answers(&filed.router, 12).await.iter().filter(|(_, replica)| replica == of).count();
    assert_eq!(share("a").await, 6);
    let weighted = list(&[&a, &b]).replace("name: a", "name: a\n    weight: 3");
    fs::write(&filed.file, content(&weighted, &settings)).unwrap();
    assert_eq!(filed.router.reload().await, ["replicas"]);
    assert_eq!(share("a").await, 9);

    assert_eq!(filed.change(&[&a, &c], &settings).await, ["replicas"]);
    filed.router.has_state("c", "up").await;
    let told = answers(&filed.router, 12).await;
    assert!(told.iter().all(|(status, replica)| *status == 200 && replica != "b"), "{told:?}");
    assert!(told.iter().any(|(_, replica)| replica == "c"), "{told:?}");
    let (_, fleet) = filed.router.api("GET", "/api/v1/fleet").await;
    let names: Vec<&str> = fleet["replicas"].as_array().unwrap().iter().map(|replica| replica["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "c"]);
    assert_eq!(samples(&filed.router.metrics().await, "prefix_router_replica_state", &[("replica", "b")]), [0.0; 0]);

    // A model that nobody serves is known to be unknown.
    let models = list(&[&a, &c]).replace("name: a", "name: a\n    models: [x]").replace("name: c", "name: c\n    models: [x]");
    fs::write(&filed.file, content(&models, &settings)).unwrap();
    filed.router.reload().await;
    assert_eq!(filed.router.post(CHAT, chat("x")).await.status, 404);
}

#[tokio::test]
async fn the_request_path() {
    let (a, b) = (Replica::start("a", reset), Replica::start("b", reset));
    let all = [&a, &b];
    // Failures have no consequence but further tries.
    let calm = [("eject_failures", "1000"), ("eject_error_volume", "1000000"), ("strategy", "round_robin")];
    let with = |more: &[Setting<'static>]| [&calm[..], more].concat();
    let filed = Filed::start(&all, &with(&[("retries", "0")])).await;
    let tries = async || {
        let before = a.count() + b.count();
        assert_eq!(filed.router.post(CHAT, chat("x")).await.status, 502);
        a.count() + b.count() - before
    };
    assert_eq!(tries().await, 1);
    assert_eq!(filed.change(&all, &with(&[("retries", "1")])).await, ["retries"]);
    assert_eq!(tries().await, 2);

    a.script(ok);
    b.script(ok);
    let large = chat(&"x".repeat(4_000));
    assert_eq!(filed.router.post(CHAT, &large).await.status, 200);
    assert_eq!(filed.change(&all, &with(&[("retries", "1"), ("max_body", "2KiB")])).await, ["max_body"]);
    assert_eq!(filed.router.post(CHAT, &large).await.status, 413);

    assert_eq!(filed.router.get("/sleep").await.status, 403);
    filed.change(&all, &with(&[("expose_paths", "[/sleep]"), ("response_headers", "false"), ("upstream_api_key", "key-1")])).await;
    a.forget();
    b.forget();
    let response = filed.router.get("/sleep").await;
    assert_eq!((response.status, response.head.get("x-prefix-router-replica")), (200, None));
    let sent = [a.requests(), b.requests()].concat();
    assert_eq!(sent[0].head.all("authorization"), ["Bearer key-1"]);
    let changed = filed.change(&all, &with(&[("upstream_api_key", "key-2")])).await;
    assert_eq!(changed, ["upstream_api_key", "response_headers", "expose_paths"]);
    a.forget();
    b.forget();
    filed.router.post(CHAT, chat("x")).await;
    assert_eq!([a.requests(), b.requests()].concat()[0].head.all("authorization"), ["Bearer key-2"]);

    let hang = |_: &crate::replica::Request| vec![Step::Hang];
    a.script(hang);
    b.script(hang);
    filed.change(&all, &with(&[("first_byte_timeout", "100ms"), ("retries", "0")])).await;
    assert_eq!(filed.router.post(CHAT, chat("x")).await.status, 504);
}

#[tokio::test]
async fn health_checks() {
    let a = Replica::start("a", ok);
    let filed = Filed::start(&[&a], &[("health_check_interval", "60s")]).await;
    // It does not wait for the end of the old interval.
    assert_eq!(filed.change(&[&a], &[("health_check_path", "/alive")]).await.len(), 2);
    eventually("checks at the new path", async || a.requests().iter().filter(|request| request.head.target() == "/alive").count() > 2)
        .await;
    let told = filed.router.metric("prefix_router_replica_state", &[("replica", "a"), ("state", "up")]).await;
    assert_eq!(told, 1.0, "what is known stays");
    a.script(|_| crate::answers::answer(500, "", ""));
    filed.change(&[&a], &[("health_check_path", "/alive"), ("health_check_fall", "1")]).await;
    filed.router.has_state("a", "down").await;
}

#[tokio::test]
async fn connections_from_clients() {
    let a = Replica::start("a", ok);
    let filed = Filed::start(&[&a], &[("max_connections", "1")]).await;
    let mut first = Client::connect(filed.router.traffic).await;
    assert_eq!(first.request("POST", CHAT, "", chat("x")).await.status, 200);
    let mut second = Client::connect(filed.router.traffic).await;
    second.start("POST", CHAT, "", chat("x")).await;
    second.hears_nothing().await;
    assert_eq!(filed.change(&[&a], &[("header_timeout", "300ms")]).await, ["max_connections", "header_timeout"]);
    assert_eq!(second.response("POST").await.status, 200, "it waits no longer");
    // The new time holds for new connections; the old one keeps its own.
    second.closed().await;
    assert_eq!(first.request("POST", CHAT, "", chat("x")).await.status, 200);
}

#[tokio::test]
async fn who_may_use_the_admin_port_and_how_the_router_ends() {
    let gate = Gate::new();
    let steps = vec![head(), chunk(event(0)), Step::Wait(gate.clone()), last_chunk()];
    let a = Replica::start("a", move |_| steps.clone());
    let filed = Filed::start(&[&a], &[("drain_timeout", "1h")]).await;
    let settings = [("drain_timeout", "200ms"), ("drain_delay", "300ms"), ("admin_token", "sesame")];
    assert_eq!(filed.change(&[&a], &settings).await, ["admin_token", "drain_delay", "drain_timeout"]);
    assert_eq!(filed.router.api("POST", "/api/v1/reload").await.0, 401);
    let (status, json) = api(filed.router.admin, "POST", "/api/v1/reload", "authorization: Bearer sesame\r\n", "").await;
    assert_eq!((status, json), (200, json!({"applied": [], "needs_restart": []})));

    let mut client = Client::connect(filed.router.traffic).await;
    client.start("POST", CHAT, "", chat("x")).await;
    let mut framing = client.head().await.response_framing("POST");
    assert_eq!(client.text(&mut framing).await, event(0));
    let begun = std::time::Instant::now();
    filed.router.drain();
    assert_eq!(client.rest(framing).await.end, End::Cut);
    assert!(begun.elapsed() >= Duration::from_millis(450), "{:?}", begun.elapsed());
    filed.router.stopped().await;
}

#[tokio::test]
async fn what_needs_a_restart_is_said_each_time_and_stays() {
    let a = Replica::start("a", ok);
    let filed = Filed::start(&[&a], &[]).await;
    filed.write(&[&a], &[("listen", "127.0.0.1:1"), ("worker_threads", "3"), ("log_format", "json"), ("retries", "1")]);
    let (status, json) = filed.router.api("POST", "/api/v1/reload").await;
    assert_eq!((status, json), (200, json!({"applied": ["retries"], "needs_restart": ["listen", "worker_threads", "log_format"]})));
    let (status, json) = filed.router.api("POST", "/api/v1/reload").await;
    assert_eq!((status, json), (200, json!({"applied": [], "needs_restart": ["listen", "worker_threads", "log_format"]})));
    assert_eq!(filed.router.post(CHAT, chat("x")).await.status, 200);
    assert_eq!(filed.change(&[&a], &[]).await, ["retries"]);
    for (result, count) in [("applied", 2.0), ("unchanged", 1.0), ("refused", 0.0)] {
        assert_eq!(filed.router.metric(RELOADS, &[("result", result)]).await, count, "{result}");
    }
}

#[tokio::test]
async fn without_a_file_there_is_nothing_to_read() {
    let a = Replica::start("a", ok);
    let router = Router::start(&[&a], &[]).await;
    let (status, json) = router.api("POST", "/api/v1/reload").await;
    assert_eq!(status, 409);
    assert!(json["error"]["message"].as_str().unwrap().contains("no configuration file"), "{json}");
    assert_eq!(router.metric(RELOADS, &[]).await, 0.0);
    assert_eq!(router.metric(SUCCESSFUL, &[]).await, 1.0, "the start has read it");
}

#[tokio::test]
async fn a_file_that_changes_is_taken_when_it_is_whole() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let folder = Folder::new();
    let quick = [("reload_interval", "100ms")];
    let file = folder.file("router.yaml", &text(&list(&[&a]), &quick));
    let router = Router::start_file(&file).await;
    router.has_state("a", "up").await;
    let reloads = async || router.metric(RELOADS, &[]).await;

    // Written piece by piece, with never the time to be seen twice.
    let new = text(&list(&[&a, &b]), &quick);
    for part in 1..=12 {
        fs::write(&file, &new[..new.len() * part / 13]).unwrap();
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    fs::write(&file, &new).unwrap();
    router.has_state("b", "up").await;
    assert_eq!(router.metric(RELOADS, &[("result", "applied")]).await, 1.0);
    assert_eq!(reloads().await, 1.0, "half a file was never read");

    // Touched is not changed.
    fs::write(&file, &new).unwrap();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(reloads().await, 1.0);

    // Gone, and back.
    let since = router.metric(SINCE, &[]).await;
    fs::remove_file(&file).unwrap();
    router.has_metric(SUCCESSFUL, &[], 0.0).await;
    assert_eq!(router.metric(SINCE, &[]).await, since);
    assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(router.metric(RELOADS, &[("result", "refused")]).await, 1.0, "once is enough");
    fs::write(&file, &new).unwrap();
    router.has_metric(SUCCESSFUL, &[], 1.0).await;
    assert!(router.metric(SINCE, &[]).await > since);
    assert_eq!(router.metric(RELOADS, &[("result", "unchanged")]).await, 1.0);

    // From now on only when somebody asks.
    fs::write(&file, text(&list(&[&a]), &[("reload_interval", "0s")])).unwrap();
    router.has_metric(RELOADS, &[("result", "applied")], 2.0).await;
    fs::write(&file, &new).unwrap();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(router.metric(RELOADS, &[("result", "applied")]).await, 2.0);
    assert_eq!(router.reload().await, ["replicas", "reload_interval"]);
}

/// A ConfigMap as the kubelet writes it: the file is a link into `..data`, which is a link to the version in force.
struct ConfigMap(Folder);

impl ConfigMap {
    fn new(text: &str) -> Self {
        let map = Self(Folder::new());
        map.put("..2026_01", text);
        symlink("..2026_01", map.0.0.join("..data")).unwrap();
        symlink("..data/router.yaml", map.file()).unwrap();
        map
    }

    fn put(&self, version: &str, text: &str) {
        fs::create_dir(self.0.0.join(version)).unwrap();
        fs::write(self.0.0.join(version).join("router.yaml"), text).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.0.0.join("router.yaml")
    }

    /// The kubelet's update: a new version beside the old one, one rename, and the old one goes.
    fn update(&self, old: &str, new: &str, text: &str) {
        self.put(new, text);
        symlink(new, self.0.0.join("..data_tmp")).unwrap();
        fs::rename(self.0.0.join("..data_tmp"), self.0.0.join("..data")).unwrap();
        fs::remove_dir_all(self.0.0.join(old)).unwrap();
    }
}

#[tokio::test]
async fn a_config_map_is_followed() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let quick = [("reload_interval", "50ms")];
    let map = ConfigMap::new(&text(&list(&[&a]), &quick));
    let router = Router::start_file(&map.file()).await;
    router.has_state("a", "up").await;
    map.update("..2026_01", "..2026_02", &text(&list(&[&b]), &quick));
    router.has_state("b", "up").await;
    assert_eq!(router.post(CHAT, chat("x")).await.replica(), "b");
    map.update("..2026_02", "..2026_03", &text(&list(&[&a, &b]), &[("reload_interval", "50ms"), ("retries", "99")]));
    router.has_metric(SUCCESSFUL, &[], 0.0).await;
    assert_eq!(router.post(CHAT, chat("x")).await.replica(), "b");
    map.update("..2026_03", "..2026_04", &text(&list(&[&a, &b]), &quick));
    router.has_state("a", "up").await;
    router.has_metric(SUCCESSFUL, &[], 1.0).await;
    assert_eq!(router.metric(RELOADS, &[]).await, 3.0);
}

/// The program with a configuration file.
async fn serving(file: &Path, replicas: &[&Replica]) -> Serving {
    let mut command = program();
    command.args(["serve", "--config"]).arg(file);
    Serving::start(&mut command, replicas).await
}

#[tokio::test]
async fn an_invalid_file_changes_nothing_and_says_why_in_three_places() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let folder = Folder::new();
    let file = folder.file("router.yaml", &content(&list(&[&a]), &[("upstream_api_key", "sesame-1")]));
    let serving = serving(&file, &[&a]).await;
    let wrong = [("upstream_api_key", "sesame-2"), ("retries", "99"), ("strategi", "random"), ("log_level", "debug")];
    fs::write(&file, content(&list(&[&b]), &wrong)).unwrap();

    let (status, json) = api(serving.admin, "POST", "/api/v1/reload", "", "").await;
    assert_eq!(status, 422, "{json}");
    let errors: Vec<&str> = json["error"]["errors"].as_array().unwrap().iter().map(|error| error.as_str().unwrap()).collect();
    let checked = program().args(["check", "--config"]).arg(&file).output().unwrap();
    let checked = String::from_utf8(checked.stderr).unwrap();
    assert_eq!(errors, checked.lines().collect::<Vec<_>>(), "as `check` says it");
    assert!(errors.len() == 2 && errors.iter().any(|error| error.contains("retries: 99 is out of range; allowed: 0 to 10")), "{errors:?}");
    for error in &errors {
        eventually("the error is in the log", async || serving.log().iter().any(|line| line.contains(error))).await;
    }
    let metrics = async || Client::connect(serving.admin).await.request("GET", "/metrics", "", "").await.text();
    assert_eq!(samples(&metrics().await, RELOADS, &[("result", "refused")]), [1.0]);
    assert_eq!(samples(&metrics().await, SUCCESSFUL, &[]), [0.0]);

    let response = Client::connect(serving.traffic).await.request("POST", CHAT, "", chat("x")).await;
    assert_eq!((response.status, response.replica()), (200, "a"));
    assert_eq!(a.only_request().head.all("authorization"), ["Bearer sesame-1"]);
    assert_eq!(b.probes().len(), 0);

    serving.hang_up();
    eventually("SIGHUP finds it wrong too", async || samples(&metrics().await, RELOADS, &[("result", "refused")]) == [2.0]).await;
    fs::write(&file, content(&list(&[&a, &b]), &[("upstream_api_key", "sesame-2")])).unwrap();
    serving.hang_up();
    eventually("SIGHUP finds it right", async || samples(&metrics().await, RELOADS, &[("result", "applied")]) == [1.0]).await;
    assert_eq!(samples(&metrics().await, SUCCESSFUL, &[]), [1.0]);
    let is_told = |line: &String| line.contains("configuration reloaded: replicas, upstream_api_key");
    eventually("the log names what has changed", async || serving.log().iter().any(is_told)).await;
    let log = serving.log().join("\n");
    assert!(!log.contains("sesame"), "{log}");
}

#[tokio::test]
async fn the_log() {
    let a = Replica::start("a", ok);
    let folder = Folder::new();
    let file = folder.file("router.yaml", &content(&list(&[&a]), &[]));
    let serving = serving(&file, &[&a]).await;
    let change = async |settings: &[Setting<'_>], expected: &[&str]| {
        fs::write(&file, content(&list(&[&a]), settings)).unwrap();
        let (status, json) = api(serving.admin, "POST", "/api/v1/reload", "", "").await;
        assert_eq!((status, json), (200, json!({"applied": expected, "needs_restart": []})));
    };
    let ask = async |id: &str| {
        let fields = format!("x-request-id: {id}\r\n");
        assert_eq!(Client::connect(serving.traffic).await.request("POST", CHAT, &fields, chat("x")).await.status, 200);
    };
    let is_logged = |text: &str| serving.log().iter().any(|line| line.contains(text));
    ask("the-first").await;
    change(&[("access_log", "true")], &["access_log"]).await;
    ask("the-second").await;
    eventually("a line for the second", async || is_logged("the-second")).await;
    assert!(!is_logged("the-first"));
    change(&[("log_level", "error")], &["log_level", "access_log"]).await;
    change(&[("log_level", "error"), ("retries", "7")], &["retries"]).await;
    change(&[("retries", "5")], &["retries", "log_level"]).await;
    eventually("it is talkative again", async || is_logged("configuration reloaded: retries, log_level")).await;
    assert!(!serving.log().iter().any(|line| line.ends_with("configuration reloaded: retries")), "{:?}", serving.log());
}

#[tokio::test]
async fn a_stream_goes_on_through_the_reload_that_takes_its_replica_away() {
    let gate = Gate::new();
    let steps = vec![head(), chunk(event(0)), Step::Wait(gate.clone()), chunk(event(1)), last_chunk()];
    let (a, b) = (Replica::start("a", move |_| steps.clone()), Replica::start("b", ok));
    let filed = Filed::start(&[&a], &[]).await;
    let mut client = Client::connect(filed.router.traffic).await;
    client.start("POST", CHAT, "", chat("x")).await;
    let mut framing = client.head().await.response_framing("POST");
    assert_eq!(client.text(&mut framing).await, event(0));

    // It stays, with its count, whatever else changes.
    filed
        .change(&[&a, &b], &[("strategy", "round_robin"), ("pool_max_idle", "0"), ("health_check_path", "/health?x"), ("hash_seed", "3")])
        .await;
    assert_eq!(filed.router.metric("prefix_router_outstanding", &[("replica", "a")]).await, 1.0);
    assert_eq!(filed.router.metric("prefix_router_replica_state", &[("replica", "a"), ("state", "up")]).await, 1.0);
    filed.change(&[&b], &[]).await;
    assert_eq!(filed.router.metric("prefix_router_outstanding", &[("replica", "a")]).await, 1.0);
    assert_eq!(filed.router.post(CHAT, chat("x")).await.replica(), "b");
    // And returns as busy as it was.
    filed.change(&[&b, &a], &[]).await;
    let (_, fleet) = filed.router.api("GET", "/api/v1/fleet").await;
    assert_eq!((&fleet["replicas"][1]["name"], &fleet["replicas"][1]["outstanding"]), (&json!("a"), &json!(1)), "{fleet}");
    gate.open();
    let body = client.rest(framing).await;
    assert_eq!((String::from_utf8(body.bytes).unwrap(), body.end), (event(1), End::Whole));
    filed.router.is_at_rest().await;
}

#[tokio::test]
async fn connections_to_replicas_are_kept() {
    let a = Replica::start("a", ok);
    let filed = Filed::start(&[&a], &[]).await;
    let changes: [&[Setting<'_>]; 4] = [&[("connect_timeout", "2s")], &[("upstream_api_key", "k")], &[("hash_seed", "1")], &[]];
    for settings in changes {
        assert_eq!(filed.router.post(CHAT, chat("x")).await.status, 200);
        filed.change(&[&a], settings).await;
    }
    assert_eq!(filed.router.post(CHAT, chat("x")).await.status, 200);
    assert!(a.requests().iter().all(|request| request.connection == 0), "one connection did it all");
}

#[tokio::test]
async fn two_hundred_reloads_under_load_fail_nobody() {
    let (a, b, c) = (Replica::start("a", ok), Replica::start("b", ok), Replica::start("c", ok));
    let filed = Arc::new(Filed::start(&[&a, &b, &c], &[]).await);
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..8)
        .map(|number| {
            let (filed, over) = (Arc::clone(&filed), Arc::clone(&over));
            tokio::spawn(async move {
                let mut client = Client::connect(filed.router.traffic).await;
                let mut served = 0;
                while !over.load(Ordering::SeqCst) {
                    let response = client.request("POST", CHAT, "", chat(&format!("{number} {served}"))).await;
                    assert_eq!(response.status, 200, "{}", response.text());
                    served += 1;
                }
                served
            })
        })
        .collect();
    let strategies = ["prefix_aware", "round_robin", "cache_aware", "least_outstanding", "random"];
    let lists: [&[&Replica]; 3] = [&[&a, &b, &c], &[&a, &b], &[&c, &a]];
    for number in 0..200 {
        let seed = (number % 7).to_string();
        filed.change(lists[number % 3], &[("strategy", strategies[number % 5]), ("hash_seed", &seed), ("retries", "3")]).await;
    }
    over.store(true, Ordering::SeqCst);
    let mut served = 0;
    for client in clients {
        served += client.await.expect("no request failed");
    }
    assert!(served > 200, "only {served} requests");
    filed.router.is_at_rest().await;
    assert_eq!(filed.router.metric(RELOADS, &[("result", "applied")]).await, 200.0);
}

#[tokio::test]
async fn names_that_stay_keep_what_was_found_and_new_ones_are_awaited() {
    let ip = |last: u8| IpAddr::from(Ipv4Addr::new(127, 0, 0, last));
    let (dns, a) = (Dns::start().await, Replica::start_at(SocketAddr::new(ip(1), 0), ok));
    let port = a.addr.port();
    dns.set("one.test", &[ip(1)]);
    dns.set("two.test", &[ip(1)]);
    let (one, two) = (format!("dns://one.test:{port}"), format!("dns://two.test:{port}"));
    let servers = dns.addr.to_string();
    let settings = [("dns_servers", servers.as_str()), ("dns_max_ttl", "60s"), ("dns_min_ttl", "60s")];
    let filed = Filed::start_with(&format!("replicas: ['{one}']\n"), &settings).await;
    filed.router.has_state(a.name, "up").await;
    let asked = dns.asked();
    let write = |replicas: &str| fs::write(&filed.file, content(&format!("replicas: [{replicas}]\n"), &settings)).unwrap();

    write(&format!("'{one};weight=5;drain=false'"));
    assert_eq!(filed.router.reload().await, ["replicas"]);
    let (_, fleet) = filed.router.api("GET", "/api/v1/fleet").await;
    assert_eq!((&fleet["replicas"][0]["weight"], &fleet["replicas"][0]["state"]), (&json!(5), &json!("up")), "{fleet}");
    assert_eq!(dns.asked(), asked, "nobody had to be asked again");

    // Another name for the same replica: it never leaves.
    write(&format!("'{two}'"));
    filed.router.reload().await;
    let (_, fleet) = filed.router.api("GET", "/api/v1/fleet").await;
    assert_eq!((&fleet["replicas"][0]["name"], &fleet["replicas"][0]["state"]), (&json!(a.name), &json!("up")), "{fleet}");
    assert_eq!(samples(&filed.router.metrics().await, "prefix_router_discovery_replicas", &[("source", &one)]), [0.0; 0]);
    assert_eq!(samples(&filed.router.metrics().await, "prefix_router_discovery_replicas", &[("source", &two)]), [1.0]);

    // Answers hold for as long as the file says now, not for the minute that it said when they came.
    dns.set("two.test", &[ip(1), ip(2)]);
    let settings = [("dns_servers", servers.as_str()), ("dns_max_ttl", "50ms"), ("dns_min_ttl", "50ms")];
    let write = |replicas: &str| fs::write(&filed.file, content(&format!("replicas: [{replicas}]\n"), &settings)).unwrap();
    write(&format!("'{two}'"));
    assert_eq!(filed.router.reload().await, ["dns_min_ttl", "dns_max_ttl"]);
    filed.router.has_metric("prefix_router_discovery_replicas", &[("source", &two)], 2.0).await;

    // One that does not resolve takes nobody away.
    write(&format!("'{two}', 'dns://nobody.test:1', 'http://localhost:{port};name=fixed'"));
    filed.router.reload().await;
    assert_eq!(filed.router.post(CHAT, chat("x")).await.status, 200);
    assert!(filed.folder.0.exists());
}
