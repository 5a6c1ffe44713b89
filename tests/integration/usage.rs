//! What answers say that their requests took: read in passing, counted, and told in the log; not a byte is changed for it.

use std::fs;
use std::path::Path;

use crate::answers::{LAST_CHUNK, answer, chunk, head, last_chunk, ok};
use crate::client::End;
use crate::replica::{Replica, Step};
use crate::support::Router;

const CHAT: &str = "/v1/chat/completions";

const TOKENS: &str = "prefix_router_usage_tokens_total";

/// Waits until prompt, cached and completion tokens have these counts.
async fn has_tokens(router: &Router, counts: [u32; 3]) {
    for (kind, count) in ["prompt", "cached", "completion"].into_iter().zip(counts) {
        router.has_metric(TOKENS, &[("kind", kind)], f64::from(count)).await;
    }
}

/// What vLLM sent, with its head and framing.
fn recorded(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/engines/vllm").join(name)).unwrap()
}

/// The body of a recorded answer whose length its head tells.
fn body(recorded: &[u8]) -> &[u8] {
    &recorded[recorded.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4..]
}

#[tokio::test]
async fn a_stream_and_a_whole_answer_pass_as_they_are_and_are_counted() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    has_tokens(&router, [0, 0, 0]).await;

    // Both took 302 tokens, of which 288 were cached, and gave 8.
    let raw = recorded("chat-warm-cached-tokens.http");
    let steps = vec![Step::Write(raw.clone())];
    replica.script(move |_| steps.clone());
    assert_eq!(router.post(CHAT, "{}").await.body.bytes, body(&raw));
    has_tokens(&router, [302, 288, 8]).await;

    let raw = recorded("chat-stream-warm.sse");
    let steps = vec![Step::Write(raw.clone())];
    replica.script(move |_| steps.clone());
    let whole = router.post(CHAT, "{}").await.body;
    assert_eq!(whole.end, End::Whole);
    has_tokens(&router, [604, 576, 16]).await;

    // The same events, each byte a chunk.
    let text = whole.bytes.clone();
    let chunks: Vec<u8> = text.iter().flat_map(|byte| [b"1\r\n".as_slice(), &[*byte], b"\r\n"].concat()).collect();
    let steps = vec![head(), Step::Write([chunks.as_slice(), LAST_CHUNK].concat())];
    replica.script(move |_| steps.clone());
    let response = router.post(CHAT, "{}").await;
    assert_eq!((response.body.bytes, response.body.end), (text, End::Whole));
    has_tokens(&router, [906, 864, 24]).await;

    // Anthropic's `input_tokens` are those without the cached ones: 8 and 288.
    let steps = vec![Step::Write(recorded("messages-warm.http"))];
    replica.script(move |_| steps.clone());
    router.post("/v1/messages", "{}").await;
    has_tokens(&router, [1_202, 1_152, 28]).await;

    // What tells nothing adds nothing.
    replica.script(ok);
    router.post(CHAT, "{}").await;
    let steps = vec![Step::Write(recorded("chat-stream-no-usage.sse"))];
    replica.script(move |_| steps.clone());
    router.post(CHAT, "{}").await;
    router.is_at_rest().await;
    has_tokens(&router, [1_202, 1_152, 28]).await;
}

#[tokio::test]
async fn a_stream_that_breaks_off_counts_what_it_had_told() {
    let replica = Replica::start("a", |_| {
        vec![
            head(),
            chunk("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n"),
            chunk("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}"),
            Step::Fin,
        ]
    });
    let router = Router::start(&[&replica], &[]).await;
    assert_eq!(router.post(CHAT, "{}").await.body.end, End::Cut);
    has_tokens(&router, [5, 0, 1]).await;
}

#[tokio::test]
async fn a_client_that_leaves_leaves_what_was_told_until_then() {
    let replica =
        Replica::start("a", |_| vec![head(), chunk("data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n"), Step::Hang]);
    let router = Router::start(&[&replica], &[]).await;
    let mut client = crate::client::Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", "{}").await;
    let mut framing = client.head().await.response_framing("POST");
    client.text(&mut framing).await;
    drop(client);
    router.has_metric("prefix_router_client_aborts_total", &[], 1.0).await;
    has_tokens(&router, [5, 0, 1]).await;
}

#[tokio::test]
async fn compressed_answers_and_those_of_other_kinds_are_left_alone() {
    let body = r#"{"usage":{"prompt_tokens":5}}"#;
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    for (fields, told) in [
        ("content-type: application/json\r\ncontent-encoding: gzip\r\n", 0),
        ("content-type: text/plain\r\n", 0),
        ("", 0),
        ("content-type: application/json\r\n", 5),
    ] {
        replica.script(move |_| answer(200, fields, body));
        assert_eq!(router.post(CHAT, "{}").await.body.bytes, body.as_bytes());
        router.is_at_rest().await;
        has_tokens(&router, [told, 0, 0]).await;
    }
    let event = format!("data: {body}\n\n");
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: br\r\ntransfer-encoding: chunked\r\n\r\n";
    let steps = vec![Step::Write(head.into()), chunk(&event), last_chunk()];
    replica.script(move |_| steps.clone());
    assert_eq!(router.post(CHAT, "{}").await.body.bytes, event.as_bytes());
    router.is_at_rest().await;
    has_tokens(&router, [5, 0, 0]).await;
}
