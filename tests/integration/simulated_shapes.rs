//! The simulated replica beside the real engine: to every request whose real answer is recorded it gives one of the same shape. Heads and
//! refusals are the same byte for byte; answers have the same fields in the same order, streams the same events, each in a chunk of its own.

use std::fs;
use std::path::{Path, PathBuf};

use prefix_router::demo_replica;
use serde_json::Value;

use crate::client::Client;
use crate::simulated::{Simulated, settings};
use crate::wire::{Body, Buffer, End, Head};

/// Recordings that the simulated replica answers otherwise, and why.
const OTHERWISE: [(&str, &str); 26] = [
    ("error-tools-named.http", PARSER),
    ("error-tools-named-stream.http", PARSER),
    ("error-tools-required.http", PARSER),
    ("error-tools-auto.http", PARSER),
    ("messages-error-tools.http", PARSER),
    ("responses-tools-no-parser.http", PARSER),
    ("responses-tools-no-parser-stream.sse", PARSER),
    ("chat-tools-auto-stream.sse", CALLS),
    ("chat-tools-auto.http", CALLS),
    ("error-image.http", ALL_TASKS),
    ("error-embeddings.http", ALL_TASKS),
    ("embeddings-error-chat.http", ALL_TASKS),
    ("embeddings-error-completions.http", ALL_TASKS),
    ("embeddings-error-dimensions.http", "vectors may have any length"),
    ("embeddings-error-missing-input.http", LISTED),
    ("error-role.http", LISTED),
    ("messages-error-tool-input.http", "what tools were called with is not checked"),
    ("error-token-out-of-vocabulary.http", "every number of 32 bits is a token"),
    ("chat-stop-stream.sse", "it says other words, and ends elsewhere"),
    ("chat-stop-token.http", "stop_token_ids is ignored"),
    ("chat-echo.http", PROMPT_LOGPROBS),
    ("completion-prompt-logprobs.http", PROMPT_LOGPROBS),
    ("completion-logprobs.http", "the keys of top_logprobs are words"),
    ("completion-two-prompts-stream.sse", "which answer ends first is chance"),
    ("health-options-cors.http", "no CORS"),
    ("kv-event-sources.http", "no KV cache events"),
];

const PARSER: &str = "the simulated replica has always a parser for tool calls";
const CALLS: &str = "where a tool may be called, it is called";
const ALL_TASKS: &str = "one replica generates, embeds and looks at images";
const LISTED: &str = "not every form that a field might have is listed";
const PROMPT_LOGPROBS: &str = "prompts have no log probabilities";

/// Requests that need another word, or more room, for an answer that ends as the recorded one.
const CHANGED: [(&str, &str, &str); 5] = [
    ("chat-stop-string.http", "\"France\"", "\" \""),
    ("chat-stop-string-included.http", "\"France\"", "\" \""),
    ("messages-stop-sequence.http", "\"France\"", "\" \""),
    ("responses.http", "\"max_output_tokens\":12", "\"max_output_tokens\":99"),
    ("responses-stream.sse", "\"max_output_tokens\":8", "\"max_output_tokens\":99"),
];

struct Line {
    name: String,
    method: String,
    path: String,
    server: String,
    fields: String,
    body: Vec<u8>,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/engines")
}

fn lines() -> Vec<Line> {
    let text = fs::read_to_string(fixtures().join("requests.jsonl")).unwrap();
    text.lines().map(line).collect()
}

fn line(line: &str) -> Line {
    let mut line: Value = serde_json::from_str(line).unwrap();
    let text = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_owned();
    if let Some(times) = line["long"].as_u64() {
        let long = "word ".repeat(usize::try_from(times).unwrap());
        line = serde_json::from_str(&line.to_string().replace("{long}", &long)).unwrap();
    }
    let mut fields: Vec<(String, String)> =
        line["headers"].as_object().into_iter().flatten().map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect();
    let mut body = if line["body"].is_null() { text(&line, "text") } else { line["body"].to_string() };
    for (_, from, to) in CHANGED.iter().filter(|(name, ..)| line["file"] == format!("vllm/{name}")) {
        assert!(body.contains(from), "{from} is not in the request for {}", line["file"]);
        body = body.replace(from, to);
    }
    let has_body = !line["body"].is_null() || line["text"].is_string();
    if has_body && !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
        fields.push(("content-type".into(), "application/json".into()));
    }
    Line {
        name: text(&line, "file"),
        method: text(&line, "method"),
        path: text(&line, "path"),
        server: text(&line, "server"),
        fields: fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect(),
        body: body.into_bytes(),
    }
}

/// As the engine was started that gave the recorded answer.
fn started_as(server: &str) -> demo_replica::Settings {
    let mut settings = settings();
    settings.model = if server.starts_with('r') { "tiny-llama" } else { "smollm2-135m" }.into();
    settings.engine.max_model_len = 8_192;
    settings.engine.block_size = if server.starts_with('r') { 32 } else { 128 };
    settings.request_id_headers = server == "r2";
    settings
}

async fn recorded(name: &str) -> (Head, Body) {
    let raw = fs::read(fixtures().join(name)).unwrap();
    let (mut buffer, mut from) = (Buffer::default(), raw.as_slice());
    let mut head = buffer.head(&mut from).await.unwrap();
    while head.status() == 100 {
        head = buffer.head(&mut from).await.unwrap();
    }
    let method = if name.contains("health-head") { "HEAD" } else { "POST" };
    let body = buffer.body(&mut from, head.response_framing(method)).await;
    (head, body)
}

#[tokio::test]
async fn every_recorded_request_gets_an_answer_of_the_recorded_shape() {
    let mut wrong = Vec::new();
    let lines = lines();
    assert!(lines.len() > 150, "the requests are there");
    for server in ["", "tools", "pooling", "r1", "r2"] {
        let replica = Simulated::start(started_as(server)).await;
        for line in lines.iter().filter(|line| line.server == server) {
            if OTHERWISE.iter().any(|(name, _)| line.name.ends_with(name)) {
                continue;
            }
            let mut client = Client::connect(replica.address()).await;
            client.start(&line.method, &line.path, &line.fields, &line.body).await;
            let mut head = client.head().await;
            while head.status() == 100 {
                head = client.head().await;
            }
            let body = client.rest(head.response_framing(&line.method)).await;
            let (recorded_head, recorded_body) = recorded(&line.name).await;
            if let Err(problem) = compare(&head, &body, &recorded_head, &recorded_body) {
                wrong.push(format!("{}: {problem}", line.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), lines.len(), wrong.join("\n"));
}

fn compare(head: &Head, body: &Body, recorded_head: &Head, recorded_body: &Body) -> Result<(), String> {
    same("head", &known(head), &known(recorded_head))?;
    if body.end != End::Whole {
        return Err("the body was cut".into());
    }
    let (text, recorded) = (String::from_utf8_lossy(&body.bytes), String::from_utf8_lossy(&recorded_body.bytes));
    if recorded_head.get("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
        let (events, recorded) = (events(&text, body)?, events(&recorded, recorded_body)?);
        return same("events", &events.join("\n"), &recorded.join("\n"));
    }
    match (serde_json::from_str::<Value>(&text), serde_json::from_str::<Value>(&recorded)) {
        (Ok(value), Ok(recorded)) if recorded_head.status() == 200 => same("body", &shape(&value), &shape(&recorded)),
        _ => same("bytes", &text.to_string(), &recorded.to_string()),
    }
}

fn same(what: &str, ours: &String, recorded: &String) -> Result<(), String> {
    if ours == recorded { Ok(()) } else { Err(format!("{what}\n  ours     {ours}\n  recorded {recorded}")) }
}

/// A head without what is never twice the same.
fn known(head: &Head) -> String {
    let value = |name: &str, value: &str| match name {
        "date" | "content-length" | "location" => String::new(),
        _ => value.to_owned(),
    };
    let fields: Vec<String> = head.fields.iter().map(|(name, given)| format!("{name}: {}", value(name, given))).collect();
    format!("{} {}", head.start, fields.join(", "))
}

/// The shapes of a stream's events, one for each run of like ones. Each event must be a chunk.
fn events(text: &str, body: &Body) -> Result<Vec<String>, String> {
    let events: Vec<&str> = text.split_inclusive("\n\n").collect();
    let lengths: Vec<usize> = events.iter().map(|event| event.len()).collect();
    if lengths != body.chunks {
        return Err(format!("chunks of {:?} for events of {lengths:?}", body.chunks));
    }
    let shape = |event: &&str| -> String {
        let lines = event.trim_end().lines().map(|line| match line.strip_prefix("data: ") {
            Some(data) => serde_json::from_str(data).map_or_else(|_| line.to_owned(), |value| shape(&value)),
            None => line.to_owned(),
        });
        lines.collect::<Vec<_>>().join(" ")
    };
    let mut shapes: Vec<String> = events.iter().map(shape).collect();
    shapes.dedup();
    Ok(shapes)
}

/// Fields whose values are words of the protocol.
const WORDS: [&str; 9] = ["object", "type", "role", "model", "owned_by", "code", "id", "call_id", "item_id"];

/// Fields in order, with the kinds of their values, and the values where they are words of the protocol; of ids, how they begin.
fn shape(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| match value {
                Value::String(text) if WORDS.contains(&name.as_str()) => format!("{name}={}", form(text)),
                value => format!("{name}:{}", shape(value)),
            });
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => {
            let mut shapes: Vec<String> = items.iter().map(shape).collect();
            shapes.dedup();
            format!("[{}]", shapes.join(","))
        }
        Value::String(_) => "text".into(),
        Value::Number(number) if number.is_f64() => "float".into(),
        Value::Number(_) => "integer".into(),
        Value::Bool(_) => "bool".into(),
        Value::Null => "null".into(),
    }
}

/// Random ids are told apart by what is before their digits, and how many these are.
fn form(id: &str) -> String {
    let digits = id.chars().rev().take_while(char::is_ascii_hexdigit).count();
    if digits >= 16 { format!("{}<{digits}>", &id[..id.len() - digits]) } else { id.to_owned() }
}

/// `metrics-after-requests.txt` and ours have the same families in the same order: names, types, help, labels, buckets. Families of the Python
/// process and of FastAPI are vLLM's own.
#[tokio::test]
async fn metrics_have_the_recorded_families() {
    let lines = |page: &str| -> Vec<String> {
        let mut ours = false;
        let mut lines = Vec::new();
        for line in page.lines() {
            if let Some(name) = line.strip_prefix("# HELP ").or(line.strip_prefix("# TYPE ")) {
                ours = name.starts_with("vllm:");
            }
            if ours {
                lines.push(known_sample(line));
            }
        }
        lines
    };
    let mut settings = started_as("");
    settings.engine.blocks = 182;
    let replica = Simulated::start(settings).await;
    let page = replica.send("GET", "/metrics", &Value::Null).await;
    assert_eq!(page.head.get("content-type"), Some("text/plain; version=1.0.0; charset=utf-8"));
    let recorded = fs::read_to_string(fixtures().join("vllm/metrics-after-requests.txt")).unwrap();
    let (ours, recorded) = (lines(&page.text()), lines(&recorded));
    assert!(recorded.len() > 300);
    for (ours, recorded) in ours.iter().zip(&recorded) {
        assert_eq!(ours, recorded);
    }
    assert_eq!(ours.len(), recorded.len());
}

/// A line of `/metrics` without its value, and without what the cache's size makes of it.
fn known_sample(line: &str) -> String {
    if line.starts_with('#') {
        return line.to_owned();
    }
    let labels = line.rsplit_once(' ').unwrap().0;
    let sized = ["kv_cache_max_concurrency", "kv_cache_size_tokens"];
    let labels = labels.split(',').map(|label| match label.split_once('=') {
        Some((name, _)) if sized.contains(&name) => name,
        _ => label,
    });
    labels.collect::<Vec<_>>().join(",")
}
