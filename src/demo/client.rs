//! A client that streams chat completions and measures what its user would feel.
//!
//! It follows no other API, and tries nothing again.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Request, Uri};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// Sends requests to one server.
#[derive(Clone)]
pub(super) struct Client {
    http: HttpClient<HttpConnector, Full<Bytes>>,
    server: String,
}

/// A message of a conversation.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Message {
    /// Who says it.
    pub(super) role: &'static str,
    /// What.
    pub(super) content: String,
}

/// A whole answer, and what it took.
#[derive(Debug)]
pub(super) struct Answer {
    /// What was said.
    pub(super) text: String,
    /// From when it was due to the first event of the stream.
    pub(super) first_token: Duration,
    /// And to the stream's end.
    pub(super) total: Duration,
    /// Tokens of the prompt, as the replica counts them.
    pub(super) prompt_tokens: usize,
    /// Tokens of the prompt that it found in its cache.
    pub(super) cached_tokens: usize,
    /// `x-prefix-router-replica`.
    pub(super) replica: String,
    /// `x-prefix-router-reason`.
    pub(super) reason: String,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Delta,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: usize,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<usize>,
}

impl Client {
    /// A client of `http://{server}`.
    pub(super) fn new(server: std::net::SocketAddr) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        // hyper tries again by itself what was not yet sent when a kept connection closed.
        let http = HttpClient::builder(TokioExecutor::new()).retry_canceled_requests(false).build(connector);
        Self { http, server: format!("http://{server}") }
    }

    /// The body of `GET path`, as text.
    pub(super) async fn get(&self, path: &str) -> Result<String> {
        let response = self.http.get(self.uri(path)?).await?;
        ensure!(response.status().is_success(), "{path} answered {}", response.status());
        Ok(String::from_utf8_lossy(&response.into_body().collect().await?.to_bytes()).into_owned())
    }

    /// Streams the answer to `messages`, which is to have `max_tokens` tokens. Times count from when it was `due`: where this client is late, its
    /// user waits for that as well.
    pub(super) async fn chat(&self, model: &str, messages: &[Message], max_tokens: usize, due: Instant) -> Result<Answer> {
        let body = serde_json::json!({
            "model": model,
            "messages": messages,
            "max_tokens": max_tokens,
            "ignore_eos": true,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let request = Request::post(self.uri("/v1/chat/completions")?)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))?;
        let response = self.http.request(request).await.context("no answer")?;
        let status = response.status();
        let (replica, reason) = (text(response.headers(), "x-prefix-router-replica"), text(response.headers(), "x-prefix-router-reason"));
        let mut body = response.into_body();
        if !status.is_success() {
            let body = body.collect().await?.to_bytes();
            bail!("status {status}: {}", String::from_utf8_lossy(&body));
        }
        let mut events = Events::default();
        let mut first_token = None;
        while let Some(frame) = body.frame().await {
            if let Some(data) = frame.context("the stream broke off")?.data_ref() {
                events.read(data)?;
            }
            if events.seen && first_token.is_none() {
                first_token = Some(due.elapsed());
            }
        }
        let total = due.elapsed();
        ensure!(events.done, "the stream ended without [DONE]");
        let usage = events.usage.context("the stream had no usage")?;
        Ok(Answer {
            text: events.text,
            first_token: first_token.context("the stream had no event")?,
            total,
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0),
            replica,
            reason,
        })
    }

    fn uri(&self, path: &str) -> Result<Uri> {
        Ok(format!("{}{path}", self.server).parse()?)
    }
}

fn text(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).unwrap_or_default()
}

/// What the events of a stream have said so far.
#[derive(Default)]
struct Events {
    rest: Vec<u8>,
    text: String,
    usage: Option<Usage>,
    seen: bool,
    done: bool,
}

impl Events {
    fn read(&mut self, data: &[u8]) -> Result<()> {
        self.rest.extend_from_slice(data);
        let whole = self.rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
        let rest = self.rest.split_off(whole);
        let lines = std::mem::replace(&mut self.rest, rest);
        for line in lines.split(|&byte| byte == b'\n') {
            let Some(event) = line.strip_prefix(b"data: ") else { continue };
            self.seen = true;
            if event == b"[DONE]" {
                self.done = true;
                continue;
            }
            let chunk: Chunk = serde_json::from_slice(event).with_context(|| format!("not a chunk: {}", String::from_utf8_lossy(event)))?;
            self.text.extend(chunk.choices.into_iter().filter_map(|choice| choice.delta.content));
            self.usage = chunk.usage.or(self.usage.take());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_read_wherever_it_is_cut() {
        let stream = concat!(
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" sun\"}}]}\n\n: comment\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" sea\"}}],\"usage\":null}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":5}}}\n\ndata: [DONE]\n\n",
        )
        .as_bytes();
        for cut in 0..stream.len() {
            let mut events = Events::default();
            for part in [&stream[..cut], &stream[cut..]] {
                events.read(part).expect("sound events");
            }
            let usage = events.usage.expect("usage");
            assert_eq!((events.text.as_str(), usage.prompt_tokens, events.done), (" sun sea", 7, true), "cut at {cut}");
        }
    }
}
