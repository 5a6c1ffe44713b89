//! What clients and replicas say is nobody else's: through every surface and every error, nothing of it is in the log, at its most talkative, on the admin port, or in a
//! span.

use std::time::Duration;

use crate::answers::{answer, chunk, event, hang, head, reset};
use crate::client::Client;
use crate::command::{Serving, program};
use crate::replica::{Replica, Step};
use crate::support::{eventually, samples};

/// Whatever has this word in it must not be seen.
const SECRET: &str = "sesame";

/// A path of each surface, and a body with the secret in all that is a prompt there, in the model's name and in what identifies the caller.
fn surfaces() -> Vec<(&'static str, String)> {
    let common = r#""model":"sesame-model","prompt_cache_key":"sesame-key","cache_salt":"sesame-salt","user":"sesame-user""#;
    let messages = r#""messages":[{"role":"system","content":"sesame system"},{"role":"user","content":[{"type":"text","text":"sesame \u0022 text"},{"type":"image_url","image_url":{"url":"data:sesame"}}]}]"#;
    let tools = r#""tools":[{"type":"function","function":{"name":"sesame_tool"}}]"#;
    [
        ("/v1/chat/completions", format!("{messages},{tools}")),
        ("/v1/completions", r#""prompt":["sesame one","sesame two"]"#.to_owned()),
        ("/v1/responses", r#""instructions":"sesame","input":[{"role":"user","content":"sesame"}]"#.to_owned()),
        ("/v1/messages", format!(r#""system":"sesame",{messages}"#)),
        ("/v1/embeddings", r#""input":"sesame""#.to_owned()),
        ("/invocations", r#""inputs":"sesame""#.to_owned()),
        ("/tokenize", r#""prompt":"sesame""#.to_owned()),
        ("/v1/score", r#""text_1":"sesame","text_2":"sesame""#.to_owned()),
        ("/v1/audio/transcriptions", r#""prompt":"sesame""#.to_owned()),
    ]
    .map(|(path, fields)| (path, format!("{{{common},{fields}}}")))
    .into()
}

const FIELDS: &str = "authorization: Bearer sesame-caller\r\nx-api-key: sesame-api-key\r\ncookie: sesame=1\r\nx-amzn-sagemaker-prefix-aware-id: sesame-id\r\nx-other: sesame\r\n";

fn broken_stream() -> Vec<Step> {
    vec![head(), chunk(event(0)), chunk("data: sesame\n\n"), Step::Reset]
}

#[tokio::test]
async fn nothing_of_what_passes_is_seen_anywhere_else() {
    let replica = Replica::start("a", |_| answer(200, "", SECRET));
    let collector = Replica::start("collector", |_| answer(200, "content-type: application/x-protobuf\r\n", ""));
    let mut command = program();
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--replica", &format!("{};name=a", replica.url())]);
    for (key, value) in [
        ("LOG_FORMAT", "json"),
        ("LOG_LEVEL", "trace"),
        ("MAX_BODY", "4KiB"),
        ("MAX_BUFFERED_BYTES", "64KiB"),
        ("MAX_HEADER_BYTES", "4096"),
        ("MAX_OUTSTANDING", "1"),
        ("QUEUE_MAX_REQUESTS", "1"),
        ("QUEUE_TIMEOUT", "300ms"),
        ("BODY_TIMEOUT", "200ms"),
        ("FIRST_BYTE_TIMEOUT", "300ms"),
        ("IDLE_TIMEOUT", "300ms"),
        ("RETRIES", "0"),
        ("HEALTH_CHECK_INTERVAL", "60s"),
        ("EJECT_FAILURES", "100"),
        ("EJECT_ERROR_PERCENT", "100"),
        ("EJECT_ERROR_VOLUME", "1000"),
    ] {
        command.env(format!("PREFIX_ROUTER_{key}"), value);
    }
    command.env("PREFIX_ROUTER_OTLP_ENDPOINT", collector.url());
    let serving = Serving::start(&mut command, &[&replica]).await;
    let send = async |method: &str, path: &str, fields: &str, body: &str| {
        let mut client = Client::connect(serving.traffic).await;
        client.request(method, &format!("{path}?query=sesame"), &format!("{FIELDS}{fields}"), body).await
    };
    let mut statuses = std::collections::BTreeMap::new();
    let mut count = async |method: &str, path: &str, fields: &str, body: &str| {
        *statuses.entry(send(method, path, fields, body).await.status).or_insert(0) += 1;
    };
    // Every surface, with every way in which a replica may answer it, or not.
    let ways: [fn() -> Vec<Step>; 6] = [
        || answer(200, "x-sesame: sesame\r\n", r#"{"choices":[{"text":"sesame"}],"usage":{"prompt_tokens":"sesame"}}"#),
        || answer(400, "content-type: application/json\r\n", r#"{"error":{"message":"sesame"}}"#),
        || answer(500, "", "sesame"),
        || vec![Step::Write(b"HTTP/1.1 sesame\r\nsesame: sesame\r\n\r\n".to_vec())],
        broken_stream,
        || vec![Step::Reset],
    ];
    for (path, body) in surfaces() {
        for way in ways {
            replica.script(move |_| way());
            count("POST", path, "", &body).await;
        }
        // What cannot be read, and what is nested too deep.
        count("POST", path, "", &body[..body.len() - 3]).await;
        count("POST", path, "", &format!("{}\"sesame\"{}", "[".repeat(400), "]".repeat(400))).await;
    }
    // Every error of a head, or of a body.
    let (chat, body) = ("/v1/chat/completions", &surfaces()[0].1);
    for (method, path, fields) in [
        ("POST", chat, "x-amzn-sagemaker-prefix-aware-id: sesame again\r\n"),
        ("POST", chat, "x-prefix-router-priority: sesame\r\n"),
        ("POST", chat, "x-prefix-router-timeout: sesame\r\n"),
        ("POST", "/sleep", ""),
        ("POST", "/metrics", ""),
        ("PUT", chat, ""),
        ("POST", chat, &format!("x-long: {}\r\n", SECRET.repeat(1_000))),
        ("POST", chat, &"x-many: sesame\r\n".repeat(120)),
        ("GET", chat, "connection: upgrade\r\nupgrade: websocket\r\n"),
    ] {
        count(method, path, fields, body).await;
    }
    count("POST", chat, "", &format!("{{\"model\":\"{}\"}}", SECRET.repeat(1_000))).await;
    // Waits that end in a limit: of the replica's first byte, of the queue, of the body.
    replica.script(hang);
    let waits = async |timeout: &str| send("POST", chat, timeout, body).await.status;
    let waited = tokio::join!(waits(""), waits(""), waits(""), waits("x-prefix-router-timeout: 100ms\r\n"));
    let mut client = Client::connect(serving.traffic).await;
    client.write(format!("POST {chat}?sesame HTTP/1.1\r\nhost: router\r\ncontent-length: 100\r\n\r\n{{\"sesame")).await;
    let slow = client.response("POST").await.status;
    // A client that leaves, and a head that cannot be read.
    let mut client = Client::connect(serving.traffic).await;
    replica.forget();
    client.start("POST", chat, FIELDS, body).await;
    replica.has_requests(1).await;
    drop(client);
    replica.script(reset);
    let mut client = Client::connect(serving.traffic).await;
    client.write("SESAME sesame HTTP/sesame\r\nsesame\r\n\r\n".to_owned()).await;

    let seen: Vec<u16> = statuses.keys().copied().chain([waited.0, waited.1, waited.2, waited.3, slow]).collect();
    for expected in [200, 400, 403, 404, 405, 408, 413, 429, 431, 500, 501, 502, 504] {
        assert!(seen.contains(&expected), "{expected} is not among {seen:?}");
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    eventually("a line for the client that left", async || serving.log().iter().any(|line| line.contains("client_gone"))).await;
    let admin = async |method: &str, path: &str, body: &str| {
        let host = format!("host: {}\r\ncontent-length: {}\r\n\r\n{body}", serving.admin, body.len());
        let mut client = Client::connect(serving.admin).await;
        client.write(format!("{method} {path} HTTP/1.1\r\n{host}")).await;
        let response = client.response(method).await;
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        assert!(!response.text().contains(SECRET), "{path}: {}", response.text());
        response.text()
    };
    let api = ["overview", "fleet", "ring", "decisions?limit=512", "hot-keys", "config", "log-level"].map(|path| format!("/api/v1/{path}"));
    for path in ["/metrics", "/ready"].into_iter().chain(api.iter().map(String::as_str)) {
        admin("GET", path, "").await;
    }
    assert!(admin("GET", "/api/v1/decisions?limit=512", "").await.contains("\"error\":\"client_gone\""), "decisions are there");
    for (path, body) in surfaces() {
        // The model's name is told to who names it.
        let body = body.replace("sesame-model", "m");
        admin("POST", &format!("/api/v1/explain?path={path}"), &body).await;
        admin("POST", &format!("/api/v1/explain?path={path}"), &body[..body.len() - 3]).await;
    }
    eventually("spans of all requests", async || {
        let metrics = Client::connect(serving.admin).await.request("GET", "/metrics", "", "").await.text();
        samples(&metrics, "prefix_router_spans_total", &[("result", "exported")])
            == [samples(&metrics, "prefix_router_requests_total", &[]).iter().sum::<f64>()]
    })
    .await;
    // That a request asks for a model is told there.
    let spans = collector.requests();
    assert!(!spans.is_empty());
    for request in spans {
        let text = String::from_utf8_lossy(&request.body).replace("sesame-model", "").to_lowercase();
        let at = text.find(SECRET).map(|at| text.chars().skip(text[..at].chars().count().saturating_sub(60)).take(100).collect::<String>());
        assert_eq!(at, None);
    }
    let told: Vec<String> = serving.log().into_iter().filter(|line| line.to_lowercase().contains(SECRET)).collect();
    assert!(told.is_empty(), "{told:#?}");
    assert!(serving.log().iter().filter(|line| line.contains("\"access\"")).count() > 60, "the log is there");
}
