//! `top` and `explain`: the program as somebody has it in a terminal, before a running router.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tokio::task::spawn_blocking;

use crate::answers::ok;
use crate::command::{program, run, said};
use crate::replica::Replica;
use crate::support::{Folder, Router, chat, samples};

const CHAT: &str = "/v1/chat/completions";

/// The router is in this process: it goes on while the program runs.
async fn runs(mut command: Command) -> Output {
    spawn_blocking(move || run(&mut command)).await.expect("no panic")
}

fn asks(router: &Router, args: &[&str]) -> Command {
    let mut command = program();
    command.args(args).args(["--url", &format!("http://{}", router.admin)]);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_picture_says_what_metrics_say() {
    let fleet = ["a", "b"].map(|name| Replica::start(name, ok));
    let router = Router::start(&fleet.iter().collect::<Vec<_>>(), &[]).await;
    let mut replica = String::new();
    for number in 0..7 {
        replica = router.post(CHAT, chat(&number.to_string())).await.replica().to_owned();
    }
    router.has_metric("prefix_router_requests_total", &[], 7.0).await;
    let output = runs(asks(&router, &["top", "--once", "--json"])).await;
    assert!(output.status.success(), "{}", said(&output));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let metrics = router.metrics().await;
    let home: f64 = samples(&metrics, "prefix_router_requests_total", &[("reason", "home")]).iter().sum();
    assert_eq!(
        (json["overview"]["requests"]["total"].as_f64(), json["overview"]["requests"]["by_reason"]["home"].as_f64()),
        (Some(7.0), Some(home))
    );
    assert_eq!(json["fleet"]["replicas"].as_array().map(Vec::len), Some(2));
    assert_eq!(json["decisions"]["decisions"].as_array().map(Vec::len), Some(7));
    assert!(json["hot_keys"]["pools"].is_array(), "{json}");
    let output = runs(asks(&router, &["top", "--once"])).await;
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    for word in [
        "2 of 2 replicas up; 7 requests, 0 in flight",
        "Nobody says what was found",
        "replica",
        "0 of 24",
        &format!("belong to {replica}."),
    ] {
        assert!(text.contains(word), "no {word:?} in\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "a file gets no colours: {text:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_tells_the_story_of_a_body() {
    let fleet = ["a", "b"].map(|name| Replica::start(name, ok));
    let router = Router::start(&fleet.iter().collect::<Vec<_>>(), &[]).await;
    let folder = Folder::new();
    let file = folder.file("body.json", &chat("hello"));
    let file = file.to_str().expect("a path");
    let replica = router.post(CHAT, chat("hello")).await.replica().to_owned();
    let output = runs(asks(&router, &["explain", "--body", file])).await;
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    for word in [&format!("It goes to {replica}"), "1. /v1/chat/completions is the surface chat_completions", "0 of 24", "Reason: home"] {
        assert!(text.contains(word), "no {word:?} in\n{text}");
    }
    // From the standard input, as JSON, with an identifier.
    let mut command = asks(&router, &["explain", "--body", "-", "--identifier", "me", "--json"]);
    let output = spawn_blocking(move || {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        child.stdin.take().expect("piped").write_all(chat("hello").as_bytes()).expect("it reads");
        child.wait_with_output().expect("it ends")
    });
    let output = output.await.expect("no panic");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&json["identifier"], &json["outcome"]), (&"header".into(), &"sent".into()));
    let wrong = folder.file("wrong.json", "{");
    let text = said(&runs(asks(&router, &["explain", "--body", wrong.to_str().expect("a path")])).await);
    assert!(text.starts_with("The body is not JSON"), "{text}");
    for (args, word) in [
        (&["explain", "--body", file, "--path", "/no?thing"][..], "\"/no?thing\" is not served"),
        (&["explain", "--body", file, "--identifier", " "], "1 to 64"),
        (&["explain", "--body", "/no/such/file"], "cannot read /no/such/file"),
    ] {
        let output = runs(asks(&router, args)).await;
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(word), "no {word:?} in {}", said(&output));
    }
    router.has_metric("prefix_router_requests_total", &[], 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_cannot_ask_is_told_what_to_do() {
    let a = Replica::start("a", ok);
    let router = Router::start(&[&a], &[("admin_token", "sesame")]).await;
    let fails = async |command: Command, code: i32, word: &str| {
        let output = runs(command).await;
        assert_eq!(output.status.code(), Some(code), "{}", said(&output));
        assert!(said(&output).contains(word), "no {word:?} in {}", said(&output));
        assert!(!said(&output).contains("sesame"), "{}", said(&output));
    };
    fails(asks(&router, &["top", "--once"]), 1, "admin_token").await;
    let mut wrong = asks(&router, &["top", "--once"]);
    wrong.env("PREFIX_ROUTER_ADMIN_TOKEN", "open");
    fails(wrong, 1, "admin_token").await;
    let mut right = asks(&router, &["top", "--once"]);
    right.env("PREFIX_ROUTER_ADMIN_TOKEN", "sesame");
    assert!(runs(right).await.status.success());
    // The configuration has both, the address and the token.
    let folder = Folder::new();
    let file = folder.file("router.yaml", &format!("admin: {}\nadmin_token: sesame\n", router.admin));
    let mut configured = program();
    configured.args(["top", "--once", "--config"]).arg(file);
    assert!(runs(configured).await.status.success());
    // No terminal, nobody there, something else, no URL.
    fails(asks(&router, &["top"]), 1, "--once").await;
    let with = |url: String| {
        let mut command = program();
        command.args(["top", "--once", "--url", &url]);
        command
    };
    fails(with("http://127.0.0.1:1".to_owned()), 1, "no router answers at http://127.0.0.1:1").await;
    fails(with(format!("http://{}", router.traffic)), 1, "is a router's traffic port").await;
    fails(with(a.url()), 1, "says something else").await;
    fails(with("https://127.0.0.1:1".to_owned()), 2, "not https").await;
    fails(asks(&router, &["top", "--once", "--interval", "1ms"]), 2, "100ms to 1m").await;
    fails(asks(&router, &["top", "--json"]), 2, "--once").await;
}
