//! The program itself: flags, environment and file, its log, its exit codes.

use std::io::{BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::{env, fs, process, thread};

use serde_json::Value;

use crate::answers::{answer, chunk, event, head, last_chunk, ok, ok_after};
use crate::client::{Client, End};
use crate::replica::{Gate, Replica, Step};
use crate::support::{chat, eventually, within};

const CHAT: &str = "/v1/chat/completions";

pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_prefix-router"));
    command.env_clear().stdin(Stdio::null());
    command
}

pub(crate) fn run(command: &mut Command) -> Output {
    command.output().expect("the program starts")
}

pub(crate) fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

/// A file for as long as it lives.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = env::temp_dir().join(format!("prefix-router-test-{}-{name}", process::id()));
        fs::write(&path, text).expect("a temporary file");
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

/// The program serving, killed with the test.
pub(crate) struct Serving {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    pub(crate) traffic: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Serving {
    /// Starts it on free ports and learns from its log which those are.
    pub(crate) async fn start(command: &mut Command, replicas: &[&Replica]) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let log = Arc::new(Mutex::new(Vec::new()));
        collect(child.stdout.take().expect("piped"), Arc::clone(&log));
        collect(child.stderr.take().expect("piped"), Arc::clone(&log));
        let mut found = None;
        eventually("the log names both addresses", async || {
            let lines = log.lock().expect("no panic under the lock").join("\n");
            // Other lines name replicas.
            let told = lines.lines().find(|line| line.contains("listening on")).unwrap_or_default();
            let mut ours: Vec<SocketAddr> = addresses(told);
            ours.retain(|addr| addr.port() != 0 && replicas.iter().all(|replica| replica.addr != *addr));
            ours.dedup();
            if ours.len() >= 2 {
                found = Some((ours[0], ours[1]));
            }
            found.is_some() || lines.contains("error:")
        })
        .await;
        let lines = log.lock().expect("no panic under the lock").clone();
        let (one, other) = found.unwrap_or_else(|| panic!("no addresses in {lines:?}"));
        let is_admin = Client::connect(one).await.request("GET", "/live", "", "").await.status == 200;
        let (admin, traffic) = if is_admin { (one, other) } else { (other, one) };
        eventually("ready", async || Client::connect(admin).await.request("GET", "/ready", "", "").await.status == 200).await;
        Self { child, log, traffic, admin }
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().expect("no panic under the lock").clone()
    }

    pub(crate) fn terminate(&self) {
        terminate(self.child.id());
    }

    /// Sends SIGHUP.
    pub(crate) fn hang_up(&self) {
        signal("HUP", self.child.id());
    }

    pub(crate) async fn exit_code(&mut self) -> Option<i32> {
        let mut code = None;
        eventually("the program ends", async || {
            code = self.child.try_wait().expect("our child");
            code.is_some()
        })
        .await;
        code.and_then(|status| status.code())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn terminate(process: u32) {
    signal("TERM", process);
}

fn signal(name: &str, process: u32) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {process}")]).status();
    assert!(status.expect("a shell").success());
}

fn collect(from: impl Read + Send + 'static, into: Arc<Mutex<Vec<String>>>) {
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            into.lock().expect("no panic under the lock").push(line);
        }
    });
}

fn addresses(text: &str) -> Vec<SocketAddr> {
    let word = |sign: char| !(sign.is_ascii_digit() || sign == '.' || sign == ':');
    text.split(word).filter(|word| word.starts_with("127.")).filter_map(|word| word.trim_end_matches([':', '.']).parse().ok()).collect()
}

/// A field of a log line in JSON, wherever it stands.
fn field<'a>(json: &'a Value, name: &str) -> Option<&'a Value> {
    match json {
        Value::Object(fields) => fields.get(name).or_else(|| fields.values().find_map(|value| field(value, name))),
        _ => None,
    }
}

#[tokio::test]
async fn serve_with_flags_alone() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let mut command = program();
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(["--strategy", "prefix_aware", "--prefix-length", "4096", "--concurrency-threshold", "64"]);
    command.args(["--replica", &format!("{};weight=2;name=a", a.url()), "--replica", &b.url()]);
    let serving = Serving::start(&mut command, &[&a, &b]).await;
    let response = Client::connect(serving.traffic).await.request("POST", CHAT, "", chat("x")).await;
    assert_eq!((response.status, response.reason()), (200, "home"));
    let name = response.replica().to_owned();
    assert!(name == "a" || name == b.addr.to_string(), "{name}");
}

#[tokio::test]
async fn serve_with_environment_alone() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let mut command = program();
    command.arg("serve").env("PREFIX_ROUTER_LISTEN", "127.0.0.1:0").env("PREFIX_ROUTER_ADMIN", "127.0.0.1:0");
    command.env("PREFIX_ROUTER_STRATEGY", "round_robin").env("PREFIX_ROUTER_ENGINE_METRICS_INTERVAL", "0s");
    command.env("PREFIX_ROUTER_REPLICAS", format!("{};weight=1;name=a,{};name=b", a.url(), b.url()));
    let serving = Serving::start(&mut command, &[&a, &b]).await;
    let mut client = Client::connect(serving.traffic).await;
    for _ in 0..4 {
        assert_eq!(client.request("POST", CHAT, "", chat("x")).await.status, 200);
    }
    assert_eq!((a.count(), b.count()), (2, 2));
}

#[tokio::test]
async fn a_flag_beats_the_environment_which_beats_the_file() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nstrategy: prefix_aware\nreplicas:\n  - url: {}\n    name: a\n  - url: {}\n    name: b\n",
        a.url(),
        b.url()
    );
    let file = File::new("precedence.yaml", &text);
    // Each strategy names its reason, or takes turns.
    let cases = [(None, None, "home"), (Some("round_robin"), None, "load"), (Some("round_robin"), Some("prefix_aware"), "home")];
    for (environment, flag, reason) in cases {
        let mut command = program();
        command.args(["serve", "--config"]).arg(&file.0);
        if let Some(strategy) = environment {
            command.env("PREFIX_ROUTER_STRATEGY", strategy);
        }
        if let Some(strategy) = flag {
            command.args(["--strategy", strategy]);
        }
        let serving = Serving::start(&mut command, &[&a, &b]).await;
        let response = Client::connect(serving.traffic).await.request("POST", CHAT, "", chat("x")).await;
        assert_eq!(response.reason(), reason, "environment {environment:?}, flag {flag:?}");
    }
}

#[tokio::test]
async fn the_log_has_one_line_for_each_request_and_no_secret() {
    let replica = Replica::start("a", ok);
    for format in ["json", "text"] {
        let mut command = program();
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--replica", &format!("{};name=a", replica.url())]);
        command.env("PREFIX_ROUTER_LOG_FORMAT", format).env("PREFIX_ROUTER_LOG_LEVEL", "trace");
        command.env("PREFIX_ROUTER_UPSTREAM_API_KEY", "sesame-upstream");
        let serving = Serving::start(&mut command, &[&replica]).await;
        let fields =
            "x-request-id: id-4711\r\nauthorization: Bearer sesame-caller\r\nx-amzn-sagemaker-prefix-aware-id: sesame-identifier\r\n";
        let body = r#"{"model":"sesame-model","messages":[{"role":"user","content":"sesame-prompt"}],"prompt_cache_key":"sesame-key"}"#;
        let mut client = Client::connect(serving.traffic).await;
        assert_eq!(client.request("POST", &format!("{CHAT}?q=sesame-query"), fields, body).await.status, 200);
        // One that fails, and one that cannot be read.
        client.request("GET", "/sleep?q=sesame-query", "x-request-id: id-4712\r\n", "").await;
        client.request("POST", CHAT, "x-request-id: id-4713\r\n", "{\"sesame-broken").await;
        let about = |id: &str| serving.log().into_iter().filter(|line| line.contains(id) && line.contains("access")).collect::<Vec<_>>();
        for id in ["id-4711", "id-4712", "id-4713"] {
            eventually("a line for the request", async || about(id).len() == 1).await;
        }
        if format == "json" {
            check_access(&about("id-4711")[0], body.len());
        }
        let log = serving.log().join("\n");
        assert!(!log.contains("sesame"), "{log}");
    }
}

#[tokio::test]
async fn the_log_says_how_long_a_request_waited_also_where_its_client_left() {
    let gate = Gate::new();
    let replica = Replica::start("a", ok_after(&gate));
    let mut command = program();
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--replica", &format!("{};name=a", replica.url())]);
    command.env("PREFIX_ROUTER_LOG_FORMAT", "json").env("PREFIX_ROUTER_MAX_OUTSTANDING", "1");
    command.env("PREFIX_ROUTER_ENGINE_METRICS_INTERVAL", "0s");
    let serving = Serving::start(&mut command, &[&replica]).await;
    let start = async |id: &str| {
        let mut client = Client::connect(serving.traffic).await;
        client.start("POST", CHAT, &format!("x-request-id: {id}\r\n"), chat("x")).await;
        client
    };
    let mut first = start("id-1").await;
    replica.has_requests(1).await;
    let (mut second, third) = (start("id-2").await, start("id-3").await);
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    drop(third);
    let about = |id: &str| serving.log().into_iter().find(|line| line.contains(id) && line.contains("access"));
    eventually("a line for the client that left", async || about("id-3").is_some()).await;
    gate.open();
    assert_eq!((first.response("POST").await.status, second.response("POST").await.status), (200, 200));
    for (id, waited) in [("id-1", false), ("id-2", true), ("id-3", true)] {
        eventually("a line for the request", async || about(id).is_some()).await;
        let line = about(id).unwrap();
        let json: Value = serde_json::from_str(&line).unwrap();
        let queued = field(&json, "queued_ms").and_then(Value::as_f64);
        assert_eq!(queued.is_some_and(|queued| queued >= 50.0), waited, "{line}");
        assert_eq!(queued.is_some(), waited, "{line}");
    }
}

#[tokio::test]
async fn the_log_says_how_many_tokens_a_request_took_where_its_answer_does() {
    let replica = Replica::start("a", ok);
    let mut command = program();
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--replica", &replica.url()]);
    command.env("PREFIX_ROUTER_LOG_FORMAT", "json");
    let serving = Serving::start(&mut command, &[&replica]).await;
    let cases = [
        (
            "id-1",
            r#"{"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}"#,
            [Some(5), Some(4), Some(2)],
        ),
        ("id-2", r#"{"usage":{"prompt_tokens":5,"prompt_tokens_details":null}}"#, [Some(5), None, None]),
        ("id-3", "{}", [None; 3]),
    ];
    for (id, body, told) in cases {
        replica.script(move |_| answer(200, "content-type: application/json\r\n", body));
        let mut client = Client::connect(serving.traffic).await;
        client.request("POST", CHAT, &format!("x-request-id: {id}\r\n"), chat("x")).await;
        let about = || serving.log().into_iter().find(|line| line.contains(id) && line.contains("access"));
        eventually("a line for the request", async || about().is_some()).await;
        let line = about().unwrap();
        let json: Value = serde_json::from_str(&line).unwrap();
        let shown = ["prompt_tokens", "cached_tokens", "completion_tokens"].map(|name| field(&json, name).and_then(Value::as_u64));
        assert_eq!(shown, told, "{line}");
    }
}

fn check_access(line: &str, body: usize) {
    let json: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let texts = [
        ("request_id", "id-4711"),
        ("method", "POST"),
        ("path", CHAT),
        ("route", "chat_completions"),
        ("reason", "home"),
        ("replica", "a"),
    ];
    for (name, value) in texts {
        assert_eq!(field(&json, name).and_then(Value::as_str), Some(value), "{name} in {line}");
    }
    for (name, value) in [("status", 200), ("tries", 1), ("body_bytes", body as u64), ("response_bytes", 11)] {
        assert_eq!(field(&json, name).and_then(Value::as_u64), Some(value), "{name} in {line}");
    }
    for name in ["ttfb_ms", "duration_ms"] {
        assert!(field(&json, name).is_some_and(Value::is_number), "{name} in {line}");
    }
    assert!(field(&json, "queued_ms").is_none(), "it did not wait: {line}");
}

#[tokio::test]
async fn it_opens_as_many_files_as_it_may_and_says_where_these_are_too_few() {
    let replica = Replica::start("a", ok);
    for (connections, fits) in [("20", true), ("1000000", false)] {
        let mut command = Command::new("sh");
        let program = env!("CARGO_BIN_EXE_prefix-router");
        let serve = format!("ulimit -Sn 100; exec {program} serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --replica {}", replica.url());
        command.env_clear().env("PREFIX_ROUTER_MAX_CONNECTIONS", connections).args(["-c", &serve]);
        let serving = Serving::start(&mut command, &[&replica]).await;
        let limits = fs::read_to_string(format!("/proc/{}/limits", serving.child.id())).unwrap();
        let open_files: Vec<&str> = limits.lines().find(|line| line.starts_with("Max open files")).unwrap().split_whitespace().collect();
        assert_eq!(open_files[3], open_files[4], "soft and hard: {open_files:?}");
        let warning = format!("the system allows {} open files; {connections} connections (max_connections)", open_files[4]);
        let warned = serving.log().iter().any(|line| line.contains(&warning));
        assert_eq!(warned, !fits, "{:?}", serving.log());
    }
}

#[tokio::test]
async fn sigterm_lets_a_stream_finish_and_exits_0() {
    let gate = Gate::new();
    let steps = vec![head(), chunk(event(0)), Step::Wait(gate.clone()), chunk(event(1)), last_chunk()];
    let replica = Replica::start("a", move |_| steps.clone());
    let mut command = program();
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--replica", &replica.url()]);
    let mut serving = Serving::start(&mut command, &[&replica]).await;
    let mut client = Client::connect(serving.traffic).await;
    client.start("POST", CHAT, "", chat("x")).await;
    let mut framing = client.head().await.response_framing("POST");
    assert_eq!(client.text(&mut framing).await, event(0));
    serving.terminate();
    let ready = async || Client::connect(serving.admin).await.request("GET", "/ready", "", "").await.status;
    eventually("/ready says draining", async || ready().await == 503).await;
    gate.open();
    let body = client.rest(framing).await;
    assert_eq!((body.bytes, body.end), (event(1).into_bytes(), End::Whole));
    assert_eq!(serving.exit_code().await, Some(0), "{:?}", serving.log());
}

#[tokio::test]
async fn a_second_signal_ends_it_though_it_would_still_wait() {
    let replica = Replica::start("a", ok);
    let mut command = program();
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--replica", &replica.url()]);
    command.env("PREFIX_ROUTER_DRAIN_DELAY", "1h");
    let mut serving = Serving::start(&mut command, &[&replica]).await;
    serving.terminate();
    let ready = async || Client::connect(serving.admin).await.request("GET", "/ready", "", "").await.status;
    eventually("/ready says draining", async || ready().await == 503).await;
    let response = Client::connect(serving.traffic).await.request("POST", CHAT, "", chat("x")).await;
    assert_eq!(response.status, 200, "it serves as before");
    serving.terminate();
    assert_eq!(serving.exit_code().await, Some(0), "{:?}", serving.log());
}

#[test]
fn a_wrong_configuration_exits_2_and_names_every_error() {
    let text = "strategi: random\nprefix_length: 12\nreplicas:\n  - url: http://127.0.0.1:1\nconcurrency_threshold: 4096\n";
    let file = File::new("wrong.yaml", text);
    for verb in ["check", "serve"] {
        let output = run(program().arg(verb).arg("--config").arg(&file.0));
        assert_eq!(output.status.code(), Some(2), "{verb}: {}", said(&output));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let plain = text.replace([',', '_'], "");
        for part in ["wrong.yaml", "strategi", "strategy", "12", "1024", "65536", "4096"] {
            assert!(plain.contains(part), "{verb}: no {part} in {text}");
        }
        for key in ["prefix_length", "concurrency_threshold"] {
            assert!(text.contains(key), "{verb}: no {key} in {text}");
        }
    }
}

#[test]
fn wrong_flags_and_environment_exit_2_too() {
    let replica = ["--replica", "http://127.0.0.1:1"];
    let wrong = run(program().args(["serve", "--prefix-length", "12"]).args(replica));
    assert_eq!(wrong.status.code(), Some(2), "{}", said(&wrong));
    let wrong = run(program().arg("serve").args(replica).env("PREFIX_ROUTER_STRATEGY", "best"));
    assert_eq!(wrong.status.code(), Some(2), "{}", said(&wrong));
    assert!(said(&wrong).contains("PREFIX_ROUTER_STRATEGY") && said(&wrong).contains("round_robin"), "{}", said(&wrong));
    let wrong = run(program().args(["serve", "--no-such-flag"]));
    assert_eq!(wrong.status.code(), Some(2), "{}", said(&wrong));
    let wrong = run(program().args(["check", "--config", "no-such-file.yaml"]));
    assert_ne!(wrong.status.code(), Some(0));
    assert!(said(&wrong).contains("no-such-file.yaml"), "{}", said(&wrong));
}

#[test]
fn check_prints_the_effective_configuration_without_secrets() {
    let text = "strategy: round_robin\nupstream_api_key: sesame\nreplicas:\n  - url: http://127.0.0.1:1\n    name: the-first\n";
    let file = File::new("right.yaml", text);
    let output = run(program().args(["check", "--config"]).arg(&file.0).env("PREFIX_ROUTER_PREFIX_LENGTH", "2048"));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let shown = String::from_utf8_lossy(&output.stdout);
    for part in ["round_robin", "2048", "the-first", "concurrency_threshold: auto", "overflow: auto"] {
        assert!(shown.contains(part), "no {part} in {shown}");
    }
    assert!(!said(&output).contains("sesame"), "{}", said(&output));
}

#[tokio::test]
async fn healthcheck_says_by_its_exit_code_whether_the_router_is_well() {
    let replica = Replica::start("a", ok);
    let mut command = program();
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--replica", &replica.url()]);
    let mut serving = Serving::start(&mut command, &[&replica]).await;
    let check = |listen: SocketAddr, admin: SocketAddr| {
        let mut command = program();
        command.arg("healthcheck").env("PREFIX_ROUTER_LISTEN", listen.to_string()).env("PREFIX_ROUTER_ADMIN", admin.to_string());
        tokio::task::spawn_blocking(move || run(&mut command))
    };
    let output = check(serving.traffic, serving.admin).await.expect("no panic");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    serving.terminate();
    serving.exit_code().await;
    let output = check(serving.traffic, serving.admin).await.expect("no panic");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
}

#[tokio::test]
async fn an_address_in_use_is_an_error_that_names_it() {
    let (replica, other) = (Replica::start("a", ok), Replica::start("b", ok));
    let taken = other.addr.to_string();
    let mut command = program();
    command.args(["serve", "--listen", &taken, "--admin", "127.0.0.1:0", "--replica", &replica.url()]);
    let output = tokio::task::spawn_blocking(move || run(&mut command)).await.expect("no panic");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains(&taken), "{}", said(&output));
}

/// `less` on hold, a log driver that hangs: nobody reads, and the pipe is full.
#[tokio::test]
async fn a_log_that_nobody_reads_keeps_nobody_from_stopping() {
    let replica = Replica::start("a", ok);
    let mut command = program();
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--replica", &replica.url()]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("it starts");
    let mut stdout = std::io::BufReader::new(child.stdout.take().expect("it is piped"));
    let traffic = loop {
        let mut said = String::new();
        std::io::BufRead::read_line(&mut stdout, &mut said).expect("it says something");
        if let [traffic, ..] = addresses(&said)[..] {
            break traffic;
        }
    };
    // A pipe holds 64 KiB, a line has some hundred bytes.
    let mut client = Client::connect(traffic).await;
    for _ in 0..1_000 {
        client.request("GET", "/ping", "", "").await;
    }
    terminate(child.id());
    let code = tokio::task::spawn_blocking(move || child.wait());
    assert_eq!(within("the end", code).await.expect("no panic").expect("it ends").code(), Some(0));
    drop(stdout);
}

#[tokio::test]
async fn a_simulated_replica_says_where_it_listens_and_ends_at_sigterm() {
    let file = File::new("replica.json", r#"{"model": "of the file", "engine": {"cost": {"step": 0.001}}}"#);
    let mut command = program();
    command.args(["demo-replica", "--listen", "127.0.0.1:0", "--model", "m", "--settings"]).arg(&file.0);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("it starts");
    let mut said = String::new();
    let mut stdout = std::io::BufReader::new(child.stdout.take().expect("it is piped"));
    std::io::BufRead::read_line(&mut stdout, &mut said).expect("it says something");
    let [address] = addresses(&said)[..] else { panic!("no address in {said}") };
    let response = Client::connect(address).await.request("GET", "/v1/models", "", "").await;
    assert!(response.text().contains("\"id\":\"m\""), "{}", response.text());
    terminate(child.id());
    let code = tokio::task::spawn_blocking(move || child.wait()).await.expect("no panic").expect("it ends").code();
    assert_eq!(code, Some(0));
}

#[test]
fn a_simulated_replica_names_what_is_wrong_in_its_file() {
    let file = File::new("wrong.json", r#"{"engine": {"block_size": 0}}"#);
    let output = run(program().args(["demo-replica", "--listen", "127.0.0.1:0", "--settings"]).arg(&file.0));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("wrong.json: engine.block_size: 0 is out of range; allowed: 1 to 1024"), "{}", said(&output));
}

#[test]
fn a_simulation_gives_the_same_figures_again() {
    let simulate = || {
        let words = ["simulate", "-w", "aws,unique", "-s", "random,prefix_aware,oracle", "--requests", "400", "--seeds", "2", "--json"];
        let output = run(program().args(words));
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON and nothing else")
    };
    let figures = simulate();
    assert_eq!(figures.to_string().matches("\"strategy\"").count(), 6, "{figures}");
    assert_eq!(figures, simulate());
}

#[test]
fn a_simulation_says_when_it_has_seen_too_little() {
    for (requests, is_little) in [("400", true), ("1500", false)] {
        let output = run(program().args(["simulate", "-w", "unique", "-s", "random", "--seeds", "1", "--requests", requests]));
        assert_eq!(
            said(&output).contains("warning: unique: of 400 requests no more than 320 are measured"),
            is_little,
            "{}",
            said(&output)
        );
    }
}

#[test]
fn a_simulation_says_what_it_does_not_know() {
    for (words, problem) in [
        (["-w", "aws:x"], "is not a number of uses"),
        (["-w", "docs"], "mixed"),
        (["-s", "fastest"], "least_outstanding"),
        (["-w", "pool+closed:7+bursty"], "one too many"),
        (["--traces", "/nowhere"], "/nowhere"),
        (["-w", "agentic"], "are over before 7 replicas have too much to do"),
    ] {
        let mut command = program();
        command.args(["simulate", "--requests", "100"]).args(words);
        if words[0] == "--traces" {
            command.args(["-w", "mooncake"]);
        }
        let output = run(&mut command);
        assert_ne!(output.status.code(), Some(0), "{words:?}");
        assert!(said(&output).contains(problem), "{words:?}: {}", said(&output));
    }
}

#[test]
fn help_and_version() {
    let output = run(program().arg("--help"));
    assert_eq!(output.status.code(), Some(0));
    for verb in ["serve", "check", "healthcheck", "demo-replica", "simulate"] {
        assert!(said(&output).contains(verb), "{}", said(&output));
    }
    let output = run(program().arg("--version"));
    assert_eq!(said(&output).trim(), format!("prefix-router {}", env!("CARGO_PKG_VERSION")));
}
