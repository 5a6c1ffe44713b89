//! A replica that dies in mid-answer: an event stream gets one last event that says so, and every client sees the cut.

use std::time::Duration;

use serde_json::Value;

use crate::answers::{chunk, event, head, last_chunk, ok};
use crate::client::End;
use crate::h2::H2;
use crate::replica::{Replica, Step};
use crate::support::Router;

const CHAT: &str = "/v1/chat/completions";

/// An event as a client of event streams sees it: its name and data.
type Event = (String, String);

/// Reads events as browsers and SDKs do. What follows the last blank line is no event.
fn events(text: &str) -> Vec<Event> {
    let mut all = Vec::new();
    let (mut name, mut data) = (String::new(), Vec::new());
    for line in text.replace("\r\n", "\n").replace('\r', "\n").split_inclusive('\n') {
        let Some(line) = line.strip_suffix('\n') else { break };
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => name = value.to_owned(),
            "data" => data.push(value.to_owned()),
            "" if line.is_empty() => {
                let (name, data) = (std::mem::take(&mut name), std::mem::take(&mut data));
                if !data.is_empty() {
                    all.push((name, data.join("\n")));
                }
            }
            _ => {}
        }
    }
    all
}

/// The error event that ends a stream of this path.
fn check_error_event(target: &str, (name, data): &Event, code: &str) {
    let json: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{target}: {error} in {data:?}"));
    if target.starts_with("/v1/messages") {
        assert_eq!(name, "error", "{target}");
        assert_eq!(json["type"], "error", "{target}: {data}");
        assert_eq!(json["error"]["type"], "api_error", "{target}: {data}");
        assert!(json["error"]["message"].is_string(), "{target}: {data}");
    } else if target.starts_with("/v1/responses") {
        assert_eq!(name, "error", "{target}");
        assert_eq!(json["type"], "error", "{target}: {data}");
        assert_eq!(json["code"], code, "{target}: {data}");
        assert!(json["message"].is_string(), "{target}: {data}");
    } else {
        assert_eq!(name, "", "{target}");
        assert_eq!(json["error"]["code"], code, "{target}: {data}");
        assert!(json["error"]["message"].is_string(), "{target}: {data}");
    }
}

/// What comes of an answer that breaks off: the bytes as they were, then these events where `error` is set, then the cut.
async fn check(target: &str, steps: Vec<Step>, sent: &str, error: Option<&str>) {
    let replica = Replica::start("a", move |_| steps.clone());
    let router = Router::start(&[&replica], &[("idle_timeout", "300ms")]).await;
    let response = router.post(target, r#"{"model":"m","stream":true}"#).await;
    let text = response.text();
    assert_eq!(response.status, 200, "{target}");
    assert!(text.starts_with(sent), "{target}: {text:?} does not begin with {sent:?}");
    let added = text[sent.len()..].to_owned();
    check_added(target, &text, &added, sent, error);
    assert_eq!(response.body.end, End::Cut, "{target}: {text:?}");

    let over_h2 = H2::connect(&router).await.request("POST", target, r#"{"model":"m","stream":true}"#).await;
    assert_eq!(String::from_utf8_lossy(&over_h2.bytes), text, "{target}: HTTP/2 differs");
    let broken = over_h2.broken.unwrap_or_else(|| panic!("{target}: the HTTP/2 stream looks whole"));
    assert!(broken.contains("Reset"), "{target}: {broken}");
    router.is_at_rest().await;
}

fn check_added(target: &str, text: &str, added: &str, sent: &str, error: Option<&str>) {
    let Some(code) = error else {
        assert_eq!(added, "", "{target}");
        return;
    };
    let before = events(&format!("{sent}\n\n"));
    let after = events(text);
    assert_eq!(after.len(), before.len() + 1, "{target}: {text:?} has not one event more");
    assert_eq!(after[..before.len()], before, "{target}: {text:?}");
    check_error_event(target, &after[before.len()], code);
    assert!(text.ends_with("\n\n"), "{target}: {text:?}");
}

fn cut(parts: &[&str], last: Step) -> Vec<Step> {
    let mut steps = vec![head()];
    steps.extend(parts.iter().map(chunk));
    // The router reads what was written before the reset can overtake it.
    steps.extend([Step::Sleep(Duration::from_millis(50)), last]);
    steps
}

#[tokio::test]
async fn each_surface_gets_the_error_in_its_own_form() {
    for target in ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/invocations"] {
        for last in [Step::Fin, Step::Reset] {
            check(target, cut(&["data: {\"a\":1}\n\n"], last), "data: {\"a\":1}\n\n", Some("replica_broke")).await;
        }
    }
}

#[tokio::test]
async fn a_partial_line_or_event_is_ended_first() {
    let first = event(0);
    for part in [
        "data: {\"b\":",
        "data: {\"b\":2}",
        "data: {\"b\":2}\n",
        "event: x\ndata: {\"b\":2}\n",
        "event: x\n",
        "event",
        ": comment",
        "\n",
        "\r\n",
        "data: {\"b\":2}\r\n",
    ] {
        check(CHAT, cut(&[&first, part], Step::Fin), &format!("{first}{part}"), Some("replica_broke")).await;
    }
}

#[tokio::test]
async fn a_cut_inside_a_chunk_is_one_too() {
    let raw = b"400\r\ndata: {\"a\":1}\n\ndata: {\"b".to_vec();
    let steps = vec![head(), Step::Write(raw), Step::Sleep(Duration::from_millis(50)), Step::Fin];
    check(CHAT, steps, "data: {\"a\":1}\n\ndata: {\"b", Some("replica_broke")).await;
}

#[tokio::test]
async fn a_chunk_that_is_none_is_a_broken_replica() {
    let steps = vec![head(), chunk(event(0)), Step::Write(b"zzz\r\n".to_vec()), Step::Hang];
    check(CHAT, steps, &event(0), Some("replica_broke")).await;
}

#[tokio::test]
async fn silence_is_a_broken_replica_after_idle_timeout() {
    let steps = vec![head(), chunk(event(0)), chunk("data: {\"b"), Step::Hang];
    check(CHAT, steps, &format!("{}data: {{\"b", event(0)), Some("idle_timeout")).await;
}

#[tokio::test]
async fn after_done_there_is_nothing_to_add() {
    let done = "data: [DONE]\n\n";
    check(CHAT, cut(&[&event(0), done], Step::Fin), &format!("{}{done}", event(0)), None).await;
    // In two pieces.
    check(CHAT, cut(&[&event(0), "data: [DO", "NE]\n\n"], Step::Fin), &format!("{}{done}", event(0)), None).await;
    check(CHAT, cut(&[&event(0), "da", "ta: [DONE]", "\n"], Step::Fin), &format!("{}data: [DONE]\n", event(0)), None).await;
    // Without the space, which is optional.
    check(CHAT, cut(&["data:[DONE]\r\n\r\n"], Step::Fin), "data:[DONE]\r\n\r\n", None).await;
}

#[tokio::test]
async fn done_in_a_text_is_not_the_end() {
    for text in ["data: {\"content\":\"[DONE]\"}\n\n", "data: {\"content\":\"data: [DONE]\"}\n\n", ": data: [DONE]\n\n"] {
        check(CHAT, cut(&[text], Step::Fin), text, Some("replica_broke")).await;
    }
}

#[tokio::test]
async fn nothing_is_added_to_what_is_no_plain_event_stream() {
    let sleep = Step::Sleep(Duration::from_millis(50));
    let encoded = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n";
    let steps = vec![Step::Write(encoded.to_vec()), chunk("\u{1f}gzip"), sleep.clone(), Step::Fin];
    check(CHAT, steps, "\u{1f}gzip", None).await;

    let json = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let steps = vec![Step::Write(json.to_vec()), chunk("{\"a\":"), sleep.clone(), Step::Reset];
    check(CHAT, steps, "{\"a\":", None).await;

    let length = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"a\":";
    let steps = vec![Step::Write(length.to_vec()), sleep.clone(), Step::Fin];
    check(CHAT, steps, "{\"a\":", None).await;

    // An event stream with a length has no room for another event.
    let length = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100\r\n\r\ndata: 1\n\n";
    let steps = vec![Step::Write(length.to_vec()), sleep, Step::Fin];
    check(CHAT, steps, "data: 1\n\n", None).await;
}

#[tokio::test]
async fn an_event_stream_that_ends_well_is_left_alone() {
    for parts in [vec!["data: 1\n\n"], vec!["data: 1"], vec!["data: 1\n\n", "data: [DONE]\n\n"]] {
        let mut steps = vec![head()];
        steps.extend(parts.iter().map(chunk));
        steps.push(last_chunk());
        let replica = Replica::start("a", move |_| steps.clone());
        let router = Router::start(&[&replica], &[]).await;
        let response = router.post(CHAT, "{}").await;
        assert_eq!((response.text(), response.body.end), (parts.concat(), End::Whole));
    }
}

#[tokio::test]
async fn a_broken_replica_is_counted_and_the_next_request_served() {
    let replica = Replica::start("a", |_| cut(&["data: 1\n\n"], Step::Reset));
    let router = Router::start(&[&replica], &[]).await;
    router.post(CHAT, "{}").await;
    router.has_metric("prefix_router_upstream_errors_total", &[("replica", "a"), ("kind", "broke")], 1.0).await;
    router.has_metric("prefix_router_retries_total", &[], 0.0).await;
    replica.script(ok);
    assert_eq!(router.post(CHAT, "{}").await.status, 200);
}

#[tokio::test]
async fn the_error_event_is_never_lost_to_the_reset_that_follows_it_over_http2() {
    let replica = Replica::start("a", |_| vec![head(), chunk(event(0)), Step::Fin]);
    let router = Router::start(&[&replica], &[]).await;
    let check = |response: crate::h2::H2Response| {
        let text = String::from_utf8_lossy(&response.bytes).into_owned();
        check_added(CHAT, &text, text.strip_prefix(&event(0)).unwrap(), &event(0), Some("replica_broke"));
        assert!(response.broken.is_some_and(|broken| broken.contains("Reset")), "{text}");
    };
    // One after the other on one connection, then all at once.
    let mut client = H2::connect(&router).await;
    for _ in 0..30 {
        check(client.request("POST", CHAT, "{}").await);
    }
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..30 {
        let mut client = H2::connect(&router).await;
        all.spawn(async move { client.request("POST", CHAT, "{}").await });
    }
    all.join_all().await.into_iter().for_each(check);
    router.is_at_rest().await;
}
