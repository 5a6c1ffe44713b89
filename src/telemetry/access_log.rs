//! The access log: one line for each request, with stable fields (docs/access-log.md), and never a word of any prompt. Which requests get one is configured.

use std::io::Write;
use std::time::{Duration, SystemTime};

use rand::RngExt;

use super::labels::{reason, route};
use super::record::{Ended, Record};
use super::{LogFormat, Settings, log};
use crate::request::Usage;

/// The log target of the lines.
pub(super) const TARGET: &str = "access";

/// All fields that a line may have besides time, level and target, in their order.
pub const FIELDS: [&str; 19] = [
    "request_id",
    "trace_id",
    "method",
    "path",
    "route",
    "status",
    "reason",
    "replica",
    "tries",
    "failed",
    "body_bytes",
    "response_bytes",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "queued_ms",
    "ttfb_ms",
    "duration_ms",
    "error",
];

/// Whether a request gets a line. `chance` is of 0 to 1, without 1.
fn is_logged(ended: &Ended<'_>, settings: &Settings, chance: impl FnOnce() -> f64) -> bool {
    if !settings.access_log || ended.status >= 400 || ended.error.is_some() {
        return settings.access_log;
    }
    let share = f64::from(settings.access_log_sample.millionths()) / 1e6;
    ended.whole >= settings.access_log_slower_than && (share >= 1.0 || chance() < share)
}

/// Writes a request's line, where it gets one.
pub(super) fn write(record: &Record, ended: &Ended<'_>) {
    let Some((format, settings)) = log::at_work() else { return };
    if is_logged(ended, &settings, || rand::rng().random()) {
        log::write(&line(record, ended, format, SystemTime::now()));
    }
}

fn line(record: &Record, ended: &Ended<'_>, format: LogFormat, now: SystemTime) -> Vec<u8> {
    let mut line = Line::new(format, now);
    line.text("request_id", &record.request_id);
    if let Some(trace_id) = ended.trace_id {
        line.text("trace_id", trace_id);
    }
    line.word("method", record.method.as_str());
    line.text("path", &record.path);
    line.text("route", route(record.surface));
    line.number("status", ended.status.into());
    line.text("reason", reason(record.reason));
    if let Some(replica) = &record.replica {
        line.text("replica", replica.name());
    }
    line.number("tries", record.tries.into());
    if !record.failed.is_empty() {
        line.text("failed", &record.failed);
    }
    line.number("body_bytes", record.body_bytes as u64);
    line.number("response_bytes", record.response_bytes);
    if let Some(Usage { prompt_tokens, cached_tokens, completion_tokens }) = record.usage {
        let told = [("prompt_tokens", Some(prompt_tokens)), ("cached_tokens", cached_tokens), ("completion_tokens", completion_tokens)];
        for (name, tokens) in told {
            if let Some(tokens) = tokens {
                line.number(name, tokens);
            }
        }
    }
    if !record.queued.is_zero() {
        line.milliseconds("queued_ms", record.queued);
    }
    if let Some(first_byte) = ended.first_byte {
        line.milliseconds("ttfb_ms", first_byte);
    }
    line.milliseconds("duration_ms", ended.whole);
    if let Some(error) = ended.error {
        line.text("error", error);
    }
    line.end()
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
        debug_assert!(FIELDS.contains(&name), "{name} is not a field");
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
    use crate::units::Share;

    fn written(format: LogFormat, text: &str) -> String {
        let mut line = Line::new(format, SystemTime::UNIX_EPOCH + Duration::from_micros(1_500_000));
        line.word("method", "POST");
        line.text("path", text);
        line.number("status", 200);
        line.milliseconds("duration_ms", Duration::from_micros(12_034));
        String::from_utf8(line.end()).expect("text")
    }

    /// The fields of a request's line.
    fn fields(record: &Record, ended: &Ended<'_>) -> Vec<String> {
        let line = line(record, ended, LogFormat::Json, SystemTime::UNIX_EPOCH);
        let json: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&line).expect("JSON");
        let besides = ["timestamp", "level", "target"];
        json.keys().filter(|name| !besides.contains(&name.as_str())).cloned().collect()
    }

    #[test]
    fn a_line_has_the_fields_that_are_known_in_their_order() {
        let metrics = super::super::Metrics::new(&Default::default()).expect("metrics");
        let id = hyper::header::HeaderValue::from_static("id");
        let mut record = Record::new(metrics, crate::routing::StrategyName::PrefixAware, hyper::Method::POST, "/v1/completions", &id);
        let mut ended = Ended { status: 200, error: None, first_byte: None, whole: Duration::from_secs(1), trace_id: None };
        let least = ["request_id", "method", "path", "route", "status", "reason", "tries", "body_bytes", "response_bytes", "duration_ms"];
        assert_eq!(fields(&record, &ended), least);
        let spec = crate::fleet::ReplicaSpec {
            name: "a".to_owned(),
            authority: "a".to_owned(),
            weight: crate::units::Weight::clamped(1),
            models: Vec::new(),
            drain: false,
        };
        record.replica = crate::fleet::Fleet::new(vec![spec], Default::default(), 0).snapshot().replicas().first().cloned();
        record.failed = "b broke".to_owned();
        record.usage = Some(Usage { prompt_tokens: 1, cached_tokens: Some(1), completion_tokens: Some(1) });
        record.queued = Duration::from_millis(1);
        ended = Ended { error: Some("stream_broke"), first_byte: Some(Duration::ZERO), trace_id: Some("0af7"), ..ended };
        assert_eq!(fields(&record, &ended), FIELDS);
    }

    #[test]
    fn what_failed_is_always_logged_and_the_rest_as_configured() {
        let share = |share| Share::new(share).expect("is a share");
        let ended = |status, error, millis| Ended { status, error, first_byte: None, whole: Duration::from_millis(millis), trace_id: None };
        let all = Settings::default();
        let few = Settings { access_log_sample: share(0.1), ..Settings::default() };
        let slow = Settings { access_log_slower_than: Duration::from_secs(1), ..Settings::default() };
        let none = Settings { access_log_sample: share(0.0), ..Settings::default() };
        let off = Settings { access_log: false, ..Settings::default() };
        for (settings, expected) in [(&all, [1, 1, 1, 1]), (&few, [1, 0, 1, 0]), (&slow, [0, 0, 1, 1]), (&none, [0; 4]), (&off, [0; 4])] {
            let of = [(5, 0.05), (5, 0.1), (1_000, 0.05), (1_000, 0.999)];
            let got_lines = of.map(|(millis, chance)| u8::from(is_logged(&ended(200, None, millis), settings, || chance)));
            assert_eq!(got_lines, expected, "{settings:?}");
            for failed in [ended(499, None, 5), ended(404, None, 5), ended(503, Some("no_replica"), 5), ended(200, Some("stream_broke"), 5)]
            {
                assert_eq!(is_logged(&failed, settings, || 0.999), settings.access_log, "{settings:?}");
            }
        }
    }

    #[test]
    fn a_line_of_text_looks_like_all_others() {
        let expected = "1970-01-01T00:00:01.500000Z  INFO access: method=POST path=\"/v1\" status=200 duration_ms=12.034\n";
        assert_eq!(written(LogFormat::Text, "/v1"), expected);
    }

    #[test]
    fn a_line_is_json_and_a_line_whatever_is_in_it() {
        for text in ["/v1", "a \"quote\"", "back\\slash", "new\nline", "\u{7f}\u{0}", "é 😀", ""] {
            let json = written(LogFormat::Json, text);
            let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
            let expected = serde_json::json!({
                "timestamp": "1970-01-01T00:00:01.500000Z", "level": "INFO", "method": "POST", "path": text, "status": 200, "duration_ms": 12.034,
                "target": "access",
            });
            assert_eq!(value, expected);
            for whole in [json, written(LogFormat::Text, text)] {
                assert_eq!(whole.find('\n'), Some(whole.len() - 1), "{whole:?}");
            }
        }
    }
}
