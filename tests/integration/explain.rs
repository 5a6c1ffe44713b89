//! "Where would this go?": what is said is what happens next, and asking changes nothing.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::answers::{ok, ok_after};
use crate::client::{Client, Response};
use crate::replica::{Gate, Replica};
use crate::support::{Filed, Router, api, chat, eventually};

const CHAT: &str = "/v1/chat/completions";
const IDENTIFIER: &str = "x-amzn-sagemaker-prefix-aware-id";

fn fleet<const N: usize>(names: [&'static str; N]) -> [Replica; N] {
    names.map(|name| Replica::start(name, ok))
}

async fn start(fleet: &[Replica], settings: &[(&str, &str)]) -> Router {
    Router::start(&fleet.iter().collect::<Vec<_>>(), settings).await
}

async fn explain(router: &Router, path: &str, body: impl AsRef<[u8]>) -> Value {
    let (status, answer) = router.api_with("POST", &format!("/api/v1/explain?path={path}"), body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

fn story(explained: &Value) -> String {
    explained["steps"].as_array().expect("steps").iter().map(|step| step.as_str().expect("a sentence")).collect::<Vec<_>>().join("\n")
}

/// The ways that the next requests would go.
fn next(explained: &Value) -> Vec<&str> {
    explained["next"].as_array().expect("next").iter().map(|next| next["replica"].as_str().expect("a name")).collect()
}

/// What metrics and decisions show of the router's work; not of the process.
async fn picture(router: &Router) -> String {
    let metrics = router.metrics().await;
    // How old something is, and who is connected here, goes on by itself.
    let of_work = |line: &&str| {
        line.starts_with("prefix_router_")
            && !line.contains("_seconds ")
            && !line.contains("age")
            && !line.contains("connections")
            && !line.contains("_process_")
    };
    let lines: Vec<&str> = metrics.lines().filter(of_work).collect();
    let (_, decisions) = router.api("GET", "/api/v1/decisions").await;
    let (_, hot) = router.api("GET", "/api/v1/hot-keys").await;
    format!("{}\n{decisions}\n{hot}", lines.join("\n"))
}

fn is_as_said(explained: &Value, response: &Response) {
    assert_eq!(
        (explained["replica"].as_str(), explained["reason"].as_str()),
        (Some(response.replica()), Some(response.reason())),
        "{explained}"
    );
}

#[tokio::test]
async fn what_is_said_happens_next_and_asking_changes_nothing() {
    for strategy in ["prefix_aware", "cache_aware"] {
        let fleet = fleet(["a", "b", "c"]);
        let router = start(&fleet, &[("strategy", strategy), ("routers", "1")]).await;
        let system = "You are a pirate. ".repeat(300);
        let mut homes = BTreeSet::new();
        for number in 0..24 {
            let text = format!("{system}{}", number % 3);
            let (path, body) = match number % 4 {
                0 => (CHAT, json!({"model": "m", "messages": [{"role": "system", "content": text}]})),
                1 => ("/v1/messages", json!({"model": "m", "max_tokens": 1, "system": number.to_string(), "messages": []})),
                2 => ("/v1/completions", json!({"model": "m", "prompt": format!("{number} {text}")})),
                _ => ("/v1/responses", json!({"model": "m", "input": number.to_string()})),
            };
            let before = picture(&router).await;
            let said = explain(&router, path, body.to_string()).await;
            for _ in 0..3 {
                assert_eq!(explain(&router, path, body.to_string()).await["replica"], said["replica"]);
            }
            let after = picture(&router).await;
            let seen: Vec<&str> = after.lines().filter(|line| !before.contains(line)).collect();
            assert!(seen.is_empty(), "{strategy}: asking is seen: {seen:#?}");
            assert_eq!((&said["outcome"], &said["strategy"], &said["error"]), (&json!("sent"), &json!(strategy), &Value::Null));
            let response = router.post(path, body.to_string()).await;
            is_as_said(&said, &response);
            assert!(story(&said).contains(&format!("It goes to {}", response.replica())), "{said}");
            homes.insert(response.replica().to_owned());
            eventually("it has ended", async || router.api("GET", "/api/v1/decisions").await.1["last"] == number + 1).await;
            let (_, decisions) = router.api("GET", "/api/v1/decisions?limit=1").await;
            assert_eq!(decisions["decisions"][0]["key"], said["key"], "{strategy}: the same key looks the same");
            assert_eq!(decisions["decisions"][0]["depth"], said["depth"], "{strategy}");
        }
        assert!(homes.len() > 1, "{strategy}");
    }
}

#[tokio::test]
async fn each_step_has_its_figures() {
    let fleet = fleet(["a", "b", "c"]);
    let router = start(&fleet, &[("concurrency_threshold", "7")]).await;
    let said = explain(&router, CHAT, chat("hello")).await;
    assert_eq!(
        (&said["surface"], &said["model"], &said["pool"], &said["prompt_bytes"]),
        (&json!("chat_completions"), &json!("m"), &json!("any_name"), &json!(35))
    );
    assert_eq!((&said["identifier"], &said["by_chance"]), (&Value::Null, &json!(false)));
    assert_eq!((&said["seen"], &said["boundaries"].as_array().map(Vec::len)), (&json!("new"), &Some(1)));
    assert_eq!(said["boundaries"][0]["is_chosen"], true);
    let candidates = said["candidates"].as_array().expect("candidates");
    let ranks: Vec<u64> = candidates.iter().filter_map(|candidate| candidate["rank"].as_u64()).collect();
    assert_eq!(ranks, [0, 1, 2]);
    assert_eq!(candidates[0]["name"], said["replica"]);
    for candidate in candidates {
        assert_eq!((&candidate["state"], &candidate["is_eligible"], &candidate["is_full"]), (&json!("up"), &json!(true), &json!(false)));
        assert_eq!(
            (&candidate["threshold"], &candidate["gate"], &candidate["outstanding"]),
            (&json!(7), &json!("open"), &json!(0)),
            "{candidate}"
        );
    }
    // Two retries, so two more, in the key's order.
    assert_eq!(next(&said), [candidates[1]["name"].as_str().expect("a name"), candidates[2]["name"].as_str().expect("a name")]);
    // The identifier, from where it is.
    let (_, by_header) = api(router.admin, "POST", "/api/v1/explain", &format!("{IDENTIFIER}: me\r\n"), chat("hello")).await;
    assert_eq!(by_header["identifier"], "header");
    assert_ne!(by_header["key"], said["key"]);
    let in_body = json!({"model": "m", "prompt_cache_key": "me", "messages": [{"role": "user", "content": "hello"}]});
    let by_body = explain(&router, CHAT, in_body.to_string()).await;
    assert_eq!((&by_body["identifier"], &by_body["key"]), (&json!("body"), &by_header["key"]));
}

#[tokio::test]
async fn a_closed_gate_a_full_replica_and_a_dead_one_are_seen() {
    let fleet = fleet(["a", "b", "c"]);
    let router = start(&fleet, &[("concurrency_threshold", "1"), ("max_outstanding", "2")]).await;
    let home = router.post(CHAT, chat("x")).await.replica().to_owned();
    let at_home = fleet.iter().find(|replica| replica.name == home).expect("one of them");
    let gate = Gate::new();
    fleet.iter().for_each(|replica| replica.script(ok_after(&gate)));
    let mut held = Vec::new();
    let hold = async |count: usize, held: &mut Vec<Client>| {
        for _ in 0..count {
            let mut client = Client::connect(router.traffic).await;
            client.start("POST", CHAT, "", chat("x")).await;
            held.push(client);
        }
        eventually("they are in flight", async || router.metric("prefix_router_outstanding", &[]).await == held.len() as f64).await;
    };
    hold(1, &mut held).await;
    let said = explain(&router, CHAT, chat("x")).await;
    assert_eq!(
        (&said["reason"], &said["candidates"][0]["name"], &said["candidates"][0]["gate"]),
        (&json!("overflow"), &json!(home), &json!("closed"))
    );
    assert!(story(&said).contains("its gate closes at 1, and so is closed"), "{said}");
    assert_ne!(said["replica"], json!(home));
    // Everybody has two, and more may not be.
    hold(5, &mut held).await;
    let said = explain(&router, CHAT, chat("x")).await;
    assert_eq!((&said["outcome"], &said["replica"]), (&json!("waits"), &Value::Null));
    assert!(said["candidates"].as_array().expect("candidates").iter().all(|candidate| candidate["is_full"] == true), "{said}");
    assert!(story(&said).contains("it waits"), "{said}");
    gate.open();
    for client in &mut held {
        assert_eq!(client.response("POST").await.status, 200);
    }
    router.is_at_rest().await;
    // Its home dies.
    at_home.stop().await;
    router.has_state(&home, "down").await;
    let said = explain(&router, CHAT, chat("x")).await;
    assert_eq!((&said["outcome"], &said["reason"]), (&json!("sent"), &json!("failover")));
    let last = said["candidates"].as_array().expect("candidates").last().expect("the dead one").clone();
    assert_eq!((&last["name"], &last["state"], &last["is_eligible"]), (&json!(home), &json!("down"), &json!(false)));
    assert!(story(&said).contains(&format!("It cannot go to {home} (down) now.")), "{said}");
    fleet.iter().for_each(|replica| replica.script(ok));
    is_as_said(&said, &router.post(CHAT, chat("x")).await);
    // A drain moves it, and says so before it is done to others.
    let (status, _) = router.api("POST", &format!("/api/v1/replicas/{}/drain", said["replica"].as_str().expect("a name"))).await;
    assert_eq!(status, 200);
    let drained = explain(&router, CHAT, chat("x")).await;
    assert_eq!(drained["replica"], said["next"][0]["replica"], "who would have been next");
}

#[tokio::test]
async fn whatever_is_asked_is_answered_or_refused_with_words() {
    let a = Replica::start("a", ok);
    let listing = format!("replicas:\n  - {{url: {}, name: a, models: [m]}}\n", a.url());
    let filed = Filed::start_with(&listing, &[("max_body", "1KiB")]).await;
    let router = &filed.router;
    router.has_state("a", "up").await;
    for (path, body, outcome, error) in [
        (CHAT, chat("x"), "sent", Value::Null),
        (CHAT, json!({"model": "other", "messages": []}).to_string(), "refused", json!("model_not_found")),
        (CHAT, "not JSON".to_owned(), "sent", Value::Null),
        (CHAT, String::new(), "sent", Value::Null),
        ("/health", String::new(), "answered", Value::Null),
        ("/v1/audio/transcriptions", String::new(), "sent", Value::Null),
    ] {
        let said = explain(router, path, &body).await;
        assert_eq!((said["outcome"].as_str(), &said["error"]), (Some(outcome), &error), "{path} {body}: {said}");
        assert!(!story(&said).is_empty(), "{said}");
        let method = if outcome == "answered" { "GET" } else { "POST" };
        let response = router.send(method, path, "", &body).await;
        let code = response.head.get("x-prefix-router-error").map_or(Value::Null, |code| json!(code));
        assert_eq!(code, error, "{path} {body}: what really happens");
    }
    for (path, body, word) in [
        ("/nothing", "", "not served"),
        ("/metrics", "", "admin port"),
        ("nothing", "", "not served"),
        (CHAT, "x".repeat(1_025).as_str(), "1024"),
    ] {
        let (status, answer) = router.api_with("POST", &format!("/api/v1/explain?path={path}"), body).await;
        assert_eq!(status, if path == CHAT { 413 } else { 404 }, "{path}: {answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains(word)), "{path}: {answer}");
    }
    for wrong in [" ".repeat(3), "x".repeat(65), "\u{e9}".to_owned()] {
        let (status, answer) = api(router.admin, "POST", "/api/v1/explain", &format!("{IDENTIFIER}: {wrong}\r\n"), chat("x")).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("1 to 64")), "{answer}");
    }
    let twice = format!("{IDENTIFIER}: one\r\n{IDENTIFIER}: two\r\n");
    assert_eq!(api(router.admin, "POST", "/api/v1/explain", &twice, chat("x")).await.0, 400);
}

#[tokio::test]
async fn strategies_that_go_by_load_turn_or_chance_say_so() {
    for (strategy, word) in [("least_outstanding", "as little loaded"), ("round_robin", "whose turn it is"), ("random", "Chance")] {
        let fleet = fleet(["a", "b", "c"]);
        let router = start(&fleet, &[("strategy", strategy)]).await;
        let said = explain(&router, CHAT, chat("x")).await;
        assert_eq!(
            (&said["outcome"], &said["by_chance"], &said["reason"], &said["replica"]),
            (&json!("sent"), &json!(true), &json!("load"), &Value::Null)
        );
        assert!(story(&said).contains(word), "{strategy}: {said}");
        assert_eq!(said["key"], Value::Null, "{strategy}");
    }
}

#[tokio::test]
async fn a_strategy_with_pictures_shows_what_it_expects() {
    let fleet = fleet(["a", "b"]);
    let router = start(&fleet, &[("strategy", "cache_aware"), ("routers", "1")]).await;
    let body = json!({"model": "m", "messages": [{"role": "system", "content": "Document 1. ".repeat(3_000)}]}).to_string();
    let before = explain(&router, CHAT, &body).await;
    for candidate in before["candidates"].as_array().expect("candidates") {
        assert_eq!(candidate["overlap"], 0.0, "{before}");
        assert!(candidate["cost_seconds"].as_f64() > Some(0.0) && candidate["first_token_seconds"].as_f64() > Some(0.0), "{before}");
    }
    let home = router.post(CHAT, &body).await;
    router.is_at_rest().await;
    let after = explain(&router, CHAT, &body).await;
    let of = |name: &str| {
        after["candidates"].as_array().expect("candidates").iter().find(|one| one["name"] == name).expect("a candidate").clone()
    };
    assert!(of(home.replica())["overlap"].as_f64() > Some(0.9), "{after}");
    assert!(of(home.replica())["cost_seconds"].as_f64() < before["candidates"][0]["cost_seconds"].as_f64(), "{after}");
    assert!(story(&after).contains("is expected to hold"), "{after}");
}
