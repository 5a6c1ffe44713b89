//! `demo`, as somebody who has just built the router would run it.

use std::collections::HashMap;
use std::process::Command;

use serde_json::Value;

use crate::client::Client;
use crate::command::{Serving, program, run, said};
use crate::support::eventually;

#[test]
fn strategies_get_the_same_requests_and_their_figures_stand_side_by_side() {
    let output = run(program().args(["demo", "--replicas", "3", "--seconds", "2", "--seed", "5", "--json"]));
    assert!(output.status.success(), "{}", said(&output));
    let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    let (requests, seconds) = (shown["requests"].as_u64().expect("a count"), shown["seconds"].as_f64());
    assert_eq!((shown["replicas"].as_u64(), shown["seed"].as_u64()), (Some(3), Some(5)));
    assert_eq!((&shown["prefix_length"], &shown["concurrency_threshold"]), (&"auto".into(), &"auto".into()));
    assert!(requests > 100 && seconds == Some(2.0), "{shown}");
    let strategies: HashMap<&str, &Value> =
        shown["strategies"].as_array().expect("a list").iter().map(|one| (one["strategy"].as_str().expect("a name"), one)).collect();
    assert_eq!(strategies.len(), 4);
    for (name, one) in &strategies {
        let count = |phase: &Value| phase["requests"].as_u64().expect("a count");
        assert_eq!((count(one), one["failed"].as_u64()), (requests, Some(0)), "{name}");
        assert_eq!(count(&one["cold"]) + count(&one["warm"]), requests, "{name}");
        let shares: Vec<f64> = one["shares"].as_array().expect("a list").iter().filter_map(Value::as_f64).collect();
        assert!(shares.len() == 3 && (shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{name}: {shares:?}");
        let first = |quantile: &str| one["first_token_ms"][quantile].as_f64().expect("a time");
        let total = one["total_ms"]["p50"].as_f64().expect("a time");
        assert!(
            0.0 < first("p50") && first("p50") <= first("p90") && first("p90") <= first("p99") && first("p50") < total,
            "{name}: {one}"
        );
    }
    let hit_rate = |name: &str| strategies[name]["hit_rate"].as_f64().expect("a share");
    // Two seconds are mostly cold; still, a document asked about again on the same replica is found there.
    assert!(hit_rate("prefix_aware") > hit_rate("random") + 0.1, "{} {}", hit_rate("prefix_aware"), hit_rate("random"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(strategies.keys().all(|name| errors.contains(name)), "progress is told beside the figures: {errors}");
}

#[test]
fn the_table_names_what_was_done() {
    let output = run(program().args(["demo", "--replicas", "2", "--seconds", "1", "--workload", "unique"]));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", said(&output));
    for part in [
        "2 simulated replicas",
        "prefix_length auto, concurrency_threshold auto.",
        "never repeat",
        "First token    p50",
        "prefix_aware",
        "Overflow",
        "With prefix_aware, the median first token comes",
        "the best of the others",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80 && !line.ends_with(' ')), "it fits a terminal: {text}");
}

#[test]
fn where_requests_fail_nothing_is_concluded() {
    let demo = |arguments: &[&str]| {
        // So few files that the fleet starts and its clients do not get all their connections.
        let line = "ulimit -n 48; exec \"$0\" demo --replicas 2 --seconds 1 --workload unique \"$@\"";
        run(Command::new("sh").args(["-c", line, env!("CARGO_BIN_EXE_prefix-router")]).args(arguments))
    };
    let (table, json) = (demo(&[]), demo(&["--json"]));
    assert_eq!(table.status.code(), Some(1), "{}", said(&table));
    let text = String::from_utf8_lossy(&table.stdout);
    assert!(text.contains("requests failed, so nothing follows from these figures."), "{}", said(&table));
    assert!(!text.contains("With prefix_aware"), "{text}");
    assert_eq!(json.status.code(), Some(1), "{}", said(&json));
    let shown: Value = serde_json::from_slice(&json.stdout).expect("JSON all the same");
    let strategies = shown["strategies"].as_array().expect("a list");
    let failed = strategies.iter().find(|one| one["failed"] != 0).expect("one that failed");
    assert!(failed["first_failure"].as_str().is_some_and(|why| !why.is_empty()), "{failed}");
}

#[test]
fn wrong_numbers_and_names_are_refused() {
    for (arguments, why) in [
        (&["--replicas", "0"][..], "1..=64"),
        (&["--replicas", "65"], "1..=64"),
        (&["--seconds", "0"], "1..=600"),
        (&["--seed", "x"], "--seed"),
        (&["--workload", "docs"], "allowed: documents, chat, hot, unique"),
        (&["--listen", "127.0.0.1:0"], "--serve"),
        (&["--serve", "--json"], "--json"),
        (&["--serve", "--listen", "here"], "listen"),
    ] {
        let output = run(program().arg("demo").args(arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(why), "{arguments:?}: {}", said(&output));
    }
}

#[tokio::test]
async fn it_can_be_kept_up_and_tried() {
    let arguments = ["demo", "--serve", "--replicas", "2", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let mut serving = Serving::start(program().args(arguments), &[]).await;
    let mut said = String::new();
    eventually("it says what to try", async || {
        said = serving.log().join("\n");
        said.contains("Ctrl-C")
    })
    .await;
    let traffic = format!("http://{}/v1/chat/completions", serving.traffic);
    for part in [traffic.as_str(), "OpenAI(base_url=", "curl -N", &format!("http://{}/metrics", serving.admin)] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    let body = r#"{"model": "demo-model", "max_tokens": 3, "messages": [{"role": "user", "content": "Good morning"}]}"#;
    let answer =
        Client::connect(serving.traffic).await.request("POST", "/v1/chat/completions", "content-type: application/json\r\n", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.replica().starts_with("replica-"), "{}", answer.replica());
    assert_eq!(answer.reason(), "home");
    serving.terminate();
    assert_eq!(serving.exit_code().await, Some(0));
}
