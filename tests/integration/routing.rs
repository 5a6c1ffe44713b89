//! Which replica a request reaches: homes, gates, identifiers, failover, weights, models, and the other strategies.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::answers::{ok, ok_after};
use crate::client::{Client, Response};
use crate::replica::{Gate, Replica};
use crate::support::{Router, chat, eventually};

const CHAT: &str = "/v1/chat/completions";
const IDENTIFIER: &str = "x-amzn-sagemaker-prefix-aware-id";

fn fleet<const N: usize>(names: [&'static str; N]) -> [Replica; N] {
    names.map(|name| Replica::start(name, ok))
}

async fn start(fleet: &[Replica], settings: &[(&str, &str)]) -> Router {
    Router::start(&fleet.iter().collect::<Vec<_>>(), settings).await
}

/// Where a request goes that has a home there.
async fn home(router: &Router, target: &str, fields: &str, body: &Value) -> String {
    at_home(router.send("POST", target, fields, body.to_string()).await)
}

fn at_home(response: Response) -> String {
    assert_eq!((response.status, response.reason()), (200, "home"), "{}", response.text());
    response.replica().to_owned()
}

/// Whether not all are alike.
fn differ<T: Ord>(all: impl IntoIterator<Item = T>) -> bool {
    all.into_iter().collect::<BTreeSet<_>>().len() > 1
}

/// A text longer than the prefix of 1,024 characters that these tests use, unlike that of any other number.
fn long(number: usize) -> String {
    format!("System prompt {number}, in which é and \u{1f600} are one character each. ").repeat(40)
}

#[tokio::test]
async fn one_system_prompt_has_one_home_on_all_chat_like_surfaces() {
    let fleet = fleet(["a", "b", "c", "d"]);
    let router = start(&fleet, &[("prefix_length", "1024")]).await;
    let mut homes = Vec::new();
    for number in 0..12 {
        let system = long(number);
        let bodies = [
            (CHAT, json!({"model": "m", "messages": [{"role": "system", "content": system}, {"role": "user", "content": "1"}]})),
            (CHAT, json!({"stream": true, "messages": [{"content": [{"type": "text", "text": system}], "role": "system"}], "model": "m"})),
            ("/v1/responses", json!({"model": "m", "instructions": system, "input": "2"})),
            ("/v1/responses", json!({"input": [{"role": "system", "content": [{"type": "input_text", "text": system}]}], "model": "m"})),
            ("/v1/messages", json!({"model": "m", "system": system, "messages": [{"role": "user", "content": "3"}]})),
            ("/v1/messages", json!({"max_tokens": 1, "messages": [], "system": [{"type": "text", "text": system}], "model": "m"})),
        ];
        let mut here = Vec::new();
        for (target, body) in &bodies {
            here.push(home(&router, target, "", body).await);
        }
        // The same text with every character escaped that can be.
        let escaped: String = system.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        let body = format!(r#"{{"model":"m","messages":[{{"role":"system","content":"{escaped}"}}]}}"#);
        here.push(at_home(router.post(CHAT, body).await));
        assert!(!differ(&here), "{here:?}");
        homes.extend(here.pop());
    }
    assert!(differ(homes), "twelve prompts have more than one home");
}

#[tokio::test]
async fn what_differs_within_the_prefix_has_its_own_home_and_what_differs_behind_it_has_not() {
    let fleet = fleet(["a", "b", "c", "d"]);
    let router = start(&fleet, &[("prefix_length", "1024")]).await;
    let same = "é".repeat(1_023);
    let with = |text: String| json!({"model": "m", "prompt": text});
    let mut within = Vec::new();
    let mut behind = Vec::new();
    for number in 0..16 {
        let sign = char::from(b'a' + number);
        within.push(home(&router, "/v1/completions", "", &with(format!("{same}{sign}"))).await);
        behind.push(home(&router, "/v1/completions", "", &with(format!("{same}-{sign}"))).await);
    }
    assert!(differ(within), "character 1,024 is part of the prefix");
    assert!(!differ(behind), "character 1,025 is not");
}

#[tokio::test]
async fn model_and_cache_salt_are_part_of_the_key() {
    let fleet = fleet(["a", "b", "c", "d"]);
    let router = start(&fleet, &[]).await;
    for field in ["model", "cache_salt", "prompt_cache_key"] {
        let mut homes = Vec::new();
        for number in 0..16 {
            let mut body = json!({"model": "m", "prompt": "the same"});
            body[field] = json!(format!("{field} {number}"));
            let first = home(&router, "/v1/completions", "", &body).await;
            assert_eq!(home(&router, "/v1/completions", "", &body).await, first);
            homes.push(first);
        }
        assert!(differ(homes), "{field}");
    }
}

#[tokio::test]
async fn the_identifier_header_places_and_wins() {
    let fleet = fleet(["a", "b", "c", "d"]);
    let router = start(&fleet, &[]).await;
    let mut homes = Vec::new();
    for number in 0..16 {
        let body = json!({"model": "m", "prompt": "the same"});
        let fields = format!("{IDENTIFIER}: tenant-{number}\r\n");
        let first = home(&router, "/v1/completions", &fields, &body).await;
        assert_eq!(home(&router, "/v1/completions", &fields, &body).await, first);
        for key in ["x", "y", "z"] {
            let body = json!({"model": "m", "prompt": "the same", "prompt_cache_key": key});
            assert_eq!(home(&router, "/v1/completions", &fields, &body).await, first, "the header wins");
        }
        // The same identifier in the body has the same home.
        let body = json!({"model": "m", "prompt": "the same", "prompt_cache_key": format!("tenant-{number}")});
        assert_eq!(home(&router, "/v1/completions", "", &body).await, first);
        homes.push(first);
    }
    assert!(differ(homes));
}

#[tokio::test]
async fn nothing_else_is_taken_for_an_identifier() {
    let fleet = fleet(["a", "b", "c", "d"]);
    let router = start(&fleet, &[]).await;
    let mut homes = Vec::new();
    for number in 0..16 {
        let fields = format!(
            "authorization: Bearer {number}\r\nx-request-id: {number}\r\ncookie: s={number}\r\nx-forwarded-for: 10.0.0.{number}\r\n\
             x-session-id: {number}\r\nuser-agent: {number}\r\n"
        );
        let body =
            json!({"model": "m", "prompt": "the same", "user": number.to_string(), "temperature": number, "stream": number % 2 == 0});
        homes.push(home(&router, "/v1/completions", &fields, &body).await);
    }
    assert!(!differ(&homes), "{homes:?}");
}

#[tokio::test]
async fn native_bodies_go_by_their_bytes() {
    let fleet = fleet(["a", "b", "c", "d"]);
    let router = start(&fleet, &[("prefix_length", "1024")]).await;
    for target in ["/invocations", "/endpoints/e/invocations", "/endpoints/e/invocations-response-stream"] {
        let (mut same, mut spaced, mut last) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..16_u8 {
            let body = |before: usize, byte: u8, after: u8| [vec![b' '; before], vec![0xff; 1_023 - before], vec![byte, after]].concat();
            same.push(at_home(router.post(target, body(0, 0, number)).await));
            last.push(at_home(router.post(target, body(0, number, 0)).await));
            spaced.push(at_home(router.post(target, body(number.into(), 0, 0)).await));
        }
        assert!(!differ(same), "{target}: byte 1,025 is not part of the prefix");
        assert!(differ(last), "{target}: byte 1,024 is");
        assert!(differ(spaced), "{target}: white space counts");
    }
}

#[tokio::test]
async fn what_has_no_prefix_goes_by_load() {
    let fleet = fleet(["a", "b", "c"]);
    let router = start(&fleet, &[]).await;
    let image = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,x"}}]}]}"#;
    for body in
        [r#"{"model":"m","messages":[]}"#, r#"{"model":"m"}"#, r#"{"model":"m","messages":[{"role":"user","content":null}]}"#, image]
    {
        assert_eq!(router.post(CHAT, body).await.reason(), "no_key", "{body}");
    }
    assert_eq!(router.post("/invocations", "").await.reason(), "no_key");
    for target in ["/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/audio/transcriptions"] {
        assert_eq!(router.post(target, r#"{"prompt":"x","messages":[{"role":"user","content":"x"}]}"#).await.reason(), "load", "{target}");
    }
}

/// Holds `count` requests at the replica that is this body's home.
async fn hold(router: &Router, replica: &Replica, body: &str, count: usize) -> (Gate, Vec<Client>) {
    let gate = Gate::new();
    replica.script(ok_after(&gate));
    let mut waiting = Vec::new();
    for number in 1..=count {
        let mut client = Client::connect(router.traffic).await;
        client.start("POST", CHAT, "", body).await;
        eventually("the request is held", async || replica.open() >= number).await;
        waiting.push(client);
    }
    (gate, waiting)
}

#[tokio::test]
async fn a_home_at_its_threshold_overflows_and_gets_its_requests_back() {
    let fleet = fleet(["a", "b", "c"]);
    let router = start(&fleet, &[("concurrency_threshold", "2")]).await;
    let body = router.chat_for(&fleet[0], "x").await;
    let (gate, mut waiting) = hold(&router, &fleet[0], &body, 1).await;
    let one = hold(&router, &fleet[0], &body, 0).await;
    drop(one);
    fleet[0].script(ok);
    assert_eq!(router.post(CHAT, &body).await.reason(), "home", "one below the threshold");
    let (second_gate, second) = hold(&router, &fleet[0], &body, 1).await;
    waiting.extend(second);
    eventually("both are held", async || fleet[0].open() == 2).await;
    for _ in 0..5 {
        let response = router.post(CHAT, &body).await;
        assert_eq!((response.status, response.reason()), (200, "overflow"));
        assert_ne!(response.replica(), "a");
    }
    gate.open();
    second_gate.open();
    for mut client in waiting {
        assert_eq!(at_home(client.response("POST").await), "a");
    }
    router.is_at_rest().await;
    assert_eq!(at_home(router.post(CHAT, &body).await), "a");
}

#[tokio::test]
async fn overflow_goes_to_the_least_loaded_and_a_threshold_is_no_limit() {
    let fleet = fleet(["a", "b", "c"]);
    let router = start(&fleet, &[("concurrency_threshold", "1")]).await;
    let bodies = [router.chat_for(&fleet[0], "x").await, router.chat_for(&fleet[1], "x").await, router.chat_for(&fleet[2], "x").await];
    let held_at_a = hold(&router, &fleet[0], &bodies[0], 1).await;
    let held_at_b = hold(&router, &fleet[1], &bodies[1], 1).await;
    for body in &bodies[..2] {
        let response = router.post(CHAT, body).await;
        assert_eq!((response.replica(), response.reason()), ("c", "overflow"));
    }
    let held_at_c = hold(&router, &fleet[2], &bodies[2], 1).await;
    // All gated: it is sent all the same.
    fleet.iter().for_each(|replica| replica.script(ok));
    assert_eq!(router.post(CHAT, &bodies[0]).await.status, 200);
    for (gate, waiting) in [held_at_a, held_at_b, held_at_c] {
        gate.open();
        drop(waiting);
    }
    router.is_at_rest().await;
}

#[tokio::test]
async fn overflow_to_next_choices_stays_with_the_keys_second_and_third() {
    let fleet = fleet(["a", "b", "c", "d", "e", "f"]);
    let router = start(&fleet, &[("concurrency_threshold", "1"), ("overflow", "next_choices")]).await;
    let body = router.chat_for(&fleet[0], "x").await;
    let (gate, waiting) = hold(&router, &fleet[0], &body, 1).await;
    let second = router.post(CHAT, &body).await.replica().to_owned();
    for _ in 0..5 {
        assert_eq!(router.post(CHAT, &body).await.replica(), second, "the second choice, while both are idle");
    }
    let busy = fleet.iter().find(|replica| replica.name == second).unwrap();
    let (second_gate, second_waiting) = hold(&router, busy, &body, 1).await;
    let third = router.post(CHAT, &body).await.replica().to_owned();
    assert!(third != second && third != "a");
    for _ in 0..5 {
        assert_eq!(router.post(CHAT, &body).await.replica(), third, "the third, while the second has more");
    }
    gate.open();
    second_gate.open();
    drop((waiting, second_waiting));
}

#[tokio::test]
async fn keys_of_a_dead_replica_spread_and_come_home() {
    let fleet = fleet(["a", "b", "c"]);
    let router = start(&fleet, &[]).await;
    let mut bodies = Vec::new();
    for number in 0..12 {
        bodies.push(router.chat_for(&fleet[0], &format!("key {number}")).await);
    }
    fleet[0].stop().await;
    let mut places = Vec::new();
    for body in &bodies {
        let response = router.post(CHAT, body).await;
        assert_eq!((response.status, response.reason()), (200, "failover"));
        places.push(response.replica().to_owned());
    }
    for (body, place) in bodies.iter().zip(&places) {
        assert_eq!(router.post(CHAT, body).await.replica(), place, "the next in the key's order, each time");
    }
    assert!(differ(&places), "{places:?}");
    fleet[0].restart();
    router.has_state("a", "up").await;
    for body in &bodies {
        assert_eq!(at_home(router.post(CHAT, body).await), "a");
    }
}

#[tokio::test]
async fn two_routers_agree_whatever_the_order_of_their_lists() {
    let fleet = fleet(["a", "b", "c"]);
    let one = Router::start(&[&fleet[0], &fleet[1], &fleet[2]], &[]).await;
    let other = Router::start(&[&fleet[2], &fleet[0], &fleet[1]], &[]).await;
    for number in 0..30 {
        let body = chat(&number.to_string());
        assert_eq!(at_home(one.post(CHAT, &body).await), at_home(other.post(CHAT, &body).await));
    }
}

#[tokio::test]
async fn a_replica_of_three_times_the_weight_has_three_times_the_keys() {
    let fleet = fleet(["a", "b"]);
    let list = format!("replicas:\n  - url: {}\n    name: a\n    weight: 3\n  - url: {}\n    name: b\n", fleet[0].url(), fleet[1].url());
    for strategy in ["prefix_aware", "random"] {
        let router = Router::start_with(&list, &[("strategy", strategy)]).await;
        router.has_state("a", "up").await;
        router.has_state("b", "up").await;
        fleet.iter().for_each(Replica::forget);
        for number in 0..400 {
            router.post(CHAT, chat(&number.to_string())).await;
        }
        // Three in four of 400, and five standard deviations (8.7) to either side.
        let share = fleet[0].count();
        assert!((257..=343).contains(&share), "{strategy}: {share} of 400");
    }
}

#[tokio::test]
async fn a_model_goes_to_the_replicas_that_serve_it_and_to_no_other() {
    let fleet = fleet(["a", "b", "c"]);
    let list: String = fleet
        .iter()
        .zip(["[m-1]", "[m-2]", "[m-1, m-2]"])
        .map(|(replica, models)| format!("  - url: {}\n    name: {}\n    models: {models}\n", replica.url(), replica.name))
        .collect();
    let router = Router::start_with(&format!("replicas:\n{list}"), &[]).await;
    for name in ["a", "b", "c"] {
        router.has_state(name, "up").await;
    }
    for (model, places) in [("m-1", ["a", "c"]), ("m-2", ["b", "c"])] {
        let mut seen = BTreeSet::new();
        for number in 0..30 {
            seen.insert(home(&router, "/v1/completions", "", &json!({"model": model, "prompt": number.to_string()})).await);
        }
        assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), places, "{model}");
    }
    fleet[0].stop().await;
    fleet[2].stop().await;
    fleet[1].forget();
    let response = router.post("/v1/completions", r#"{"model":"m-1","prompt":"x"}"#).await;
    assert_eq!(response.status, 502, "{}", response.text());
    assert_eq!(fleet[1].count(), 0, "failover stays in the pool");
}

#[tokio::test]
async fn round_robin_takes_turns() {
    let fleet = fleet(["a", "b", "c"]);
    let router = start(&fleet, &[("strategy", "round_robin")]).await;
    for _ in 0..12 {
        assert_eq!(router.post(CHAT, chat("the same")).await.reason(), "load");
    }
    assert_eq!(fleet.each_ref().map(Replica::count), [4, 4, 4]);
}

#[tokio::test]
async fn random_uses_all() {
    let fleet = fleet(["a", "b", "c"]);
    let router = start(&fleet, &[("strategy", "random")]).await;
    for _ in 0..100 {
        assert_eq!(router.post(CHAT, chat("the same")).await.reason(), "load");
    }
    assert!(fleet.iter().all(|replica| replica.count() > 10), "{:?}", fleet.each_ref().map(Replica::count));
}

#[tokio::test]
async fn least_outstanding_avoids_the_busy() {
    let fleet = fleet(["a", "b", "c"]);
    let router = start(&fleet, &[("strategy", "least_outstanding")]).await;
    let gate = Gate::new();
    fleet.iter().for_each(|replica| replica.script(ok_after(&gate)));
    let mut waiting = Vec::new();
    for number in 1..=6 {
        let mut client = Client::connect(router.traffic).await;
        client.start("POST", CHAT, "", chat("the same")).await;
        eventually("the request is held", async || fleet.iter().map(Replica::open).sum::<usize>() == number).await;
        waiting.push(client);
    }
    assert_eq!(fleet.each_ref().map(Replica::open), [2, 2, 2]);
    gate.open();
}
