//! One request's record: filled in on the way, written once, when it goes: one log line, and its share of the metrics.
//!
//! It never holds prompt text, a model's name, an identifier or a key: only what is listed here.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use hyper::header::HeaderValue;
use hyper::{Method, StatusCode};
use prometheus::local::LocalHistogram;

use super::labels::{RetryCause, reason, route};
use super::metrics::{CLIENT_GONE, Metrics};
use super::models::ModelLabel;
use super::requests::Finished;
use super::{LogFormat, log};
use crate::fleet::Replica;
use crate::request::{Surface, Usage};
use crate::routing::{Reason, StrategyName};

/// The log target of the lines.
pub(super) const TARGET: &str = "access";

/// Bytes of an identifier that are shown.
const MOST_OF_AN_ID: usize = 128;

/// The status of a request whose client left before the answer's end. No client sees it.
const STATUS_CLIENT_GONE: u16 = 499;

/// What is said of one request in log and metrics. Dropped before [`Record::complete`], it tells of a client that left.
pub struct Record {
    metrics: Arc<Metrics>,
    begun: Instant,
    complete: bool,
    /// The request's identifier, as the log shows it: what the client sent as `X-Request-Id`, or made here. Whatever its length, a line stays a line.
    pub request_id: Box<str>,
    method: Method,
    /// Without its query. A copy, as the identifier: what hyper hands out is a part of all that was read with it, which may be half a megabyte, and a
    /// record stays for as long as an answer streams.
    path: Box<str>,
    /// What the path stands for; `None` where it is not served.
    pub surface: Option<Surface>,
    /// The model that it names, as metrics know it.
    pub model: ModelLabel,
    strategy: StrategyName,
    /// What the client was told.
    pub status: Option<StatusCode>,
    /// Why the last replica tried was chosen.
    pub reason: Option<Reason>,
    /// The last replica tried.
    pub replica: Option<Arc<Replica>>,
    /// Replicas tried.
    pub tries: u32,
    /// The replicas that failed before the last one, and how: `a busy, b broke`.
    pub failed: String,
    /// Bytes of the request's body.
    pub body_bytes: usize,
    /// Bytes of its prompt, where it has one.
    pub prompt_bytes: Option<usize>,
    /// Bytes of the answer's body, as passed on so far.
    pub response_bytes: u64,
    /// What the answer said that the request took, where it did.
    pub usage: Option<Usage>,
    /// What went wrong, as the `x-prefix-router-error` header names it.
    pub error: Option<&'static str>,
    /// Whether its answer is good and comes piece by piece.
    pub streams: bool,
    first_byte: Option<Instant>,
    /// When the last piece of an answer passed that comes piece by piece, and the times between them.
    last_piece: Option<Instant>,
    gaps: Option<LocalHistogram>,
    /// When all of the request had been read.
    read: Option<Instant>,
    /// What the router took from then on until it sent it for the first time, without what it waited.
    overhead: Option<Duration>,
    /// How long it waited for a replica with room, or with less to do, until now or until `waits_since`.
    queued: Duration,
    waits_since: Option<Instant>,
}

impl Record {
    /// A request that begins now.
    pub fn new(metrics: Arc<Metrics>, strategy: StrategyName, method: Method, path: &str, request_id: &HeaderValue) -> Self {
        let shown = request_id.as_bytes();
        let shown = &shown[..shown.len().min(MOST_OF_AN_ID)];
        Self {
            metrics,
            begun: Instant::now(),
            complete: false,
            request_id: String::from_utf8_lossy(shown).into(),
            method,
            path: path.into(),
            surface: None,
            model: ModelLabel::default(),
            strategy,
            status: None,
            reason: None,
            replica: None,
            tries: 0,
            failed: String::new(),
            body_bytes: 0,
            prompt_bytes: None,
            response_bytes: 0,
            usage: None,
            error: None,
            streams: false,
            first_byte: None,
            last_piece: None,
            gaps: None,
            read: None,
            overhead: None,
            queued: Duration::ZERO,
            waits_since: None,
        }
    }

    /// Whether the answer has no body, whatever it says.
    pub fn is_head(&self) -> bool {
        self.method == Method::HEAD
    }

    /// Where its counts go.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Takes note that the replica tried last failed, so that another is tried.
    pub fn failed_on(&mut self, cause: RetryCause) {
        let replica = self.replica.as_ref().map_or("", |replica| replica.name());
        let separator = if self.failed.is_empty() { "" } else { ", " };
        self.failed += &format!("{separator}{replica} {}", cause.label());
    }

    /// From now on it waits for a replica with room, or with less to do.
    pub fn begins_waiting(&mut self) {
        self.waits_since = Some(Instant::now());
    }

    /// It waits no longer, whyever.
    pub fn ends_waiting(&mut self) {
        if let Some(since) = self.waits_since.take() {
            let time = since.elapsed();
            self.queued += time;
            self.metrics.waited(time);
        }
    }

    /// All of the request is there.
    pub fn is_read(&mut self, bytes: usize) {
        self.body_bytes = bytes;
        self.read = Some(Instant::now());
    }

    /// It is about to be sent to a replica.
    pub fn is_sent(&mut self, replica: &Arc<Replica>, reason: Reason) {
        if let (None, Some(read)) = (self.overhead, self.read) {
            self.overhead = Some(read.elapsed().saturating_sub(self.queued));
        }
        self.tries += 1;
        (self.replica, self.reason) = (Some(Arc::clone(replica)), Some(reason));
        self.metrics.chosen(replica, reason);
    }

    /// When its request's head was there.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// Takes note of a piece of the answer's body.
    pub fn passed_on(&mut self, bytes: usize) {
        self.response_bytes += bytes as u64;
        if bytes == 0 || self.first_byte.is_some() && !self.streams {
            return;
        }
        let now = Instant::now();
        self.first_byte.get_or_insert(now);
        if let Some(last) = self.last_piece.replace(now)
            && self.metrics.is_on()
        {
            self.gaps.get_or_insert_with(|| self.metrics.gaps(self.reason)).observe((now - last).as_secs_f64());
        }
    }

    /// The answer has been passed on to its end, or to where it broke: what happens from now on is not the client's doing.
    pub fn complete(&mut self) {
        self.complete = true;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.ends_waiting();
        let (status, error) = match self.status {
            Some(status) if self.complete => (status.as_u16(), self.error),
            _ => (STATUS_CLIENT_GONE, Some(CLIENT_GONE)),
        };
        let whole = self.begun.elapsed();
        let first_byte = self.first_byte.map(|at| at - self.begun);
        let finished = Finished {
            surface: self.surface,
            model: self.model,
            strategy: self.strategy,
            reason: self.reason,
            status,
            streamed: self.streams,
            first_byte,
            whole,
            overhead: self.overhead,
            prompt_bytes: self.prompt_bytes,
            usage: self.usage,
        };
        self.metrics.finished(&finished, error);
        let Some(format) = log::format().filter(|_| tracing::enabled!(target: TARGET, tracing::Level::INFO)) else { return };
        let mut line = Line::new(format, SystemTime::now());
        line.text("request_id", &self.request_id);
        line.word("method", self.method.as_str());
        line.text("path", &self.path);
        line.text("route", route(self.surface));
        line.number("status", status.into());
        line.text("reason", reason(self.reason));
        if let Some(replica) = &self.replica {
            line.text("replica", replica.name());
        }
        line.number("tries", self.tries.into());
        if !self.failed.is_empty() {
            line.text("failed", &self.failed);
        }
        line.number("body_bytes", self.body_bytes as u64);
        line.number("response_bytes", self.response_bytes);
        if let Some(Usage { prompt_tokens, cached_tokens, completion_tokens }) = self.usage {
            let told = [("prompt_tokens", Some(prompt_tokens)), ("cached_tokens", cached_tokens), ("completion_tokens", completion_tokens)];
            for (name, tokens) in told {
                if let Some(tokens) = tokens {
                    line.number(name, tokens);
                }
            }
        }
        if !self.queued.is_zero() {
            line.milliseconds("queued_ms", self.queued);
        }
        if let Some(first_byte) = first_byte {
            line.milliseconds("ttfb_ms", first_byte);
        }
        line.milliseconds("duration_ms", whole);
        if let Some(error) = error {
            line.text("error", error);
        }
        log::write(&line.end());
    }
}

/// A line, which looks as all others of the log do, but never in colour. There is one for each request, so it is written out by itself: the general way, which asks
/// for each field's type and formats it by that, takes ten times as many instructions.
struct Line {
    format: LogFormat,
    bytes: Vec<u8>,
}

impl Line {
    fn new(format: LogFormat, now: SystemTime) -> Self {
        let mut line = Self { format, bytes: Vec::with_capacity(512) };
        let now = humantime::format_rfc3339_micros(now);
        match format {
            LogFormat::Text => line.put(format_args!("{now}  INFO {TARGET}:")),
            LogFormat::Json => line.put(format_args!(r#"{{"timestamp":"{now}","level":"INFO""#)),
        }
        line
    }

    /// A text that may be anything.
    fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\');
        match self.format {
            _ if is_plain => self.quoted(text),
            LogFormat::Text => self.put(format_args!("{text:?}")),
            // Writing to memory does not fail.
            LogFormat::Json => drop(serde_json::to_writer(&mut self.bytes, text)),
        }
    }

    /// A text that is a word.
    fn word(&mut self, name: &str, word: &str) {
        self.name(name);
        match self.format {
            LogFormat::Text => self.bytes.extend_from_slice(word.as_bytes()),
            LogFormat::Json => self.quoted(word),
        }
    }

    fn number(&mut self, name: &str, number: u64) {
        self.name(name);
        self.digits(number);
    }

    /// To the microsecond; more digits would only be noise.
    fn milliseconds(&mut self, name: &str, time: Duration) {
        self.name(name);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.digits(micros / 1_000);
        // A 1 before them keeps the leading zeros; the point takes its place.
        let place = self.bytes.len();
        self.digits(1_000 + micros % 1_000);
        self.bytes[place] = b'.';
    }

    fn end(mut self) -> Vec<u8> {
        match self.format {
            LogFormat::Text => self.bytes.push(b'\n'),
            LogFormat::Json => self.put(format_args!(",\"target\":\"{TARGET}\"}}\n")),
        }
        self.bytes
    }

    fn name(&mut self, name: &str) {
        match self.format {
            LogFormat::Text => {
                self.bytes.push(b' ');
                self.bytes.extend_from_slice(name.as_bytes());
                self.bytes.push(b'=');
            }
            LogFormat::Json => {
                self.bytes.push(b',');
                self.quoted(name);
                self.bytes.push(b':');
            }
        }
    }

    fn digits(&mut self, number: u64) {
        self.bytes.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    fn quoted(&mut self, text: &str) {
        self.bytes.push(b'"');
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(b'"');
    }

    fn put(&mut self, what: std::fmt::Arguments<'_>) {
        // Writing to memory does not fail.
        let _ = self.bytes.write_fmt(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(format: LogFormat, text: &str) -> String {
        let mut line = Line::new(format, SystemTime::UNIX_EPOCH + Duration::from_micros(1_500_000));
        line.word("method", "POST");
        line.text("path", text);
        line.number("status", 200);
        line.milliseconds("duration_ms", Duration::from_micros(12_034));
        String::from_utf8(line.end()).expect("text")
    }

    #[test]
    fn a_line_of_text_looks_like_all_others() {
        let expected = "1970-01-01T00:00:01.500000Z  INFO access: method=POST path=\"/v1\" status=200 duration_ms=12.034\n";
        assert_eq!(line(LogFormat::Text, "/v1"), expected);
    }

    #[test]
    fn a_line_is_json_and_a_line_whatever_is_in_it() {
        for text in ["/v1", "a \"quote\"", "back\\slash", "new\nline", "\u{7f}\u{0}", "é 😀", ""] {
            let json = line(LogFormat::Json, text);
            let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
            let expected = serde_json::json!({
                "timestamp": "1970-01-01T00:00:01.500000Z", "level": "INFO", "method": "POST", "path": text, "status": 200, "duration_ms": 12.034,
                "target": "access",
            });
            assert_eq!(value, expected);
            for whole in [json, line(LogFormat::Text, text)] {
                assert_eq!(whole.find('\n'), Some(whole.len() - 1), "{whole:?}");
            }
        }
    }
}
