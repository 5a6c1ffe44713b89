//! What is read of recorded answers, of made-up ones, and of any at all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, str};

use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::proxy::events::EVENT_STREAM;
use crate::proxy::headers::plain_kind;

const JSON: &str = "application/json";

/// An answer's kind and body.
struct Answer {
    kind: String,
    body: Vec<u8>,
}

fn usage(prompt_tokens: u64, cached_tokens: impl Into<Option<u64>>, completion_tokens: impl Into<Option<u64>>) -> Option<Usage> {
    Some(Usage { prompt_tokens, cached_tokens: cached_tokens.into(), completion_tokens: completion_tokens.into() })
}

fn reader(kind: &str) -> UsageReader {
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_str(kind).expect("a header"))]);
    UsageReader::of(plain_kind(&headers)).expect("it can be read")
}

/// What is told by a whole answer that passes in these pieces.
fn told<'a>(kind: &str, pieces: impl IntoIterator<Item = &'a [u8]>) -> Option<Usage> {
    let mut reader = reader(kind);
    for piece in pieces {
        reader.passed_on(piece);
        assert!(reader.object.capacity() <= 2 * MOST_BYTES, "no more is kept");
    }
    reader.end();
    reader.usage()
}

fn whole(kind: &str, body: impl AsRef<[u8]>) -> Option<Usage> {
    told(kind, [body.as_ref()])
}

/// All recorded answers that are of a kind to be read, by their file's name.
fn recorded() -> BTreeMap<String, Answer> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/engines");
    let files = |engine: &str| fs::read_dir(root.join(engine)).expect("recordings").map(|entry| entry.expect("a file").path());
    let all: Vec<PathBuf> = ["vllm", "llama-cpp"].into_iter().flat_map(files).collect();
    let all = all.iter().filter(|path| path.extension().is_some_and(|extension| extension == "http" || extension == "sse"));
    all.filter_map(|path| {
        let name = path.strip_prefix(&root).expect("below").display().to_string();
        Some((name, answer(&fs::read(path).expect("a recording"))?))
    })
    .collect()
}

/// A recorded answer, without its framing.
fn answer(raw: &[u8]) -> Option<Answer> {
    let end = memmem::find(raw, b"\r\n\r\n").expect("a head");
    let (head, mut body) = (str::from_utf8(&raw[..end]).expect("text").to_lowercase(), &raw[end + 4..]);
    if head.starts_with("http/1.1 100") {
        return answer(body);
    }
    let kind = head.lines().find_map(|line| line.strip_prefix("content-type: "))?.to_owned();
    if !kind.starts_with(JSON) && !kind.starts_with(EVENT_STREAM) {
        return None;
    }
    if !head.contains("transfer-encoding: chunked") {
        return Some(Answer { kind, body: body.to_vec() });
    }
    let mut whole = Vec::new();
    loop {
        let line = memmem::find(body, b"\r\n").expect("a chunk's length");
        let length = usize::from_str_radix(str::from_utf8(&body[..line]).expect("text"), 16).expect("a length");
        if length == 0 {
            return Some(Answer { kind, body: whole });
        }
        whole.extend_from_slice(&body[line + 2..][..length]);
        body = &body[line + 2 + length + 2..];
    }
}

/// What somebody finds who parses all of it.
fn parsed(answer: &Answer) -> Option<Usage> {
    let text = str::from_utf8(&answer.body).expect("text");
    let documents: Vec<&str> = match answer.kind.starts_with(JSON) {
        true => vec![text],
        false => text.lines().filter_map(|line| line.strip_prefix("data: ")).collect(),
    };
    let documents = documents.into_iter().filter_map(|document| serde_json::from_str::<Value>(document).ok());
    let all =
        documents.flat_map(|document| ["", "/message", "/response"].map(|place| document.pointer(&format!("{place}/usage")).cloned()));
    let last = all.flatten().rfind(Value::is_object)?;
    let number = |place: &str| last.pointer(place).and_then(Value::as_u64);
    let (read, written) = (number("/cache_read_input_tokens"), number("/cache_creation_input_tokens"));
    Some(Usage {
        prompt_tokens: number("/prompt_tokens").or(number("/input_tokens"))? + read.unwrap_or(0) + written.unwrap_or(0),
        cached_tokens: number("/prompt_tokens_details/cached_tokens").or(number("/input_tokens_details/cached_tokens")).or(read),
        completion_tokens: number("/completion_tokens").or(number("/output_tokens")),
    })
}

#[test]
fn real_answers_are_read_as_somebody_reads_them_who_parses_them() {
    let all = recorded();
    for (name, answer) in &all {
        let expected = parsed(answer);
        assert_eq!(whole(&answer.kind, &answer.body), expected, "{name}");
        assert_eq!(told(&answer.kind, answer.body.chunks(1)), expected, "{name}, byte by byte");
    }
    let tell = all.values().filter(|answer| parsed(answer).is_some()).count();
    assert!(tell > 80 && all.len() - tell > 20, "{tell} of {} tell it", all.len());
}

#[test]
fn what_real_answers_tell() {
    let all = recorded();
    for (name, expected) in [
        ("vllm/chat-stream.sse", usage(130, 0, 12)),
        ("vllm/chat-stream-warm.sse", usage(302, 288, 8)),
        ("vllm/chat-stream-continuous-usage.sse", usage(31, 0, 6)),
        ("vllm/chat-stream-no-usage.sse", None),
        ("vllm/chat-warm-cached-tokens.http", usage(302, 288, 8)),
        ("vllm/messages-stream.sse", usage(130, 128, 8)),
        ("vllm/messages-warm.http", usage(296, 288, 4)),
        ("vllm/messages-count-tokens.http", None),
        ("vllm/responses-stream.sse", usage(37, 0, 8)),
        ("vllm/embeddings.http", usage(1, None, 0)),
        ("vllm/error-prompt-too-long.http", None),
        ("llama-cpp/chat-stream.sse", usage(190, 182, 8)),
        ("llama-cpp/messages.http", usage(31, 30, 6)),
        ("llama-cpp/responses.http", usage(31, 6, 6)),
    ] {
        let answer = &all[name];
        assert_eq!(whole(&answer.kind, &answer.body), expected, "{name}");
    }
}

#[test]
fn real_answers_may_be_cut_anywhere() {
    let all = recorded();
    for name in
        ["vllm/chat-stream-continuous-usage.sse", "vllm/responses-stream.sse", "vllm/messages-stream.sse", "vllm/messages-warm.http"]
    {
        let Answer { kind, body } = &all[name];
        let expected = whole(kind, body);
        assert!(expected.is_some(), "{name}");
        for at in 0..=body.len() {
            assert_eq!(told(kind, [&body[..at], &body[at..]]), expected, "{name} cut at {at}");
        }
    }
}

#[test]
fn a_stream_that_breaks_off_has_told_what_its_whole_events_tell() {
    let mut reader = reader(EVENT_STREAM);
    reader.passed_on(br#"data: {"type":"message_start","message":{"usage":{"input_tokens":130,"output_tokens":0}}}"#);
    assert_eq!(reader.usage(), None, "its line has no end yet");
    reader.passed_on(b"\n");
    assert_eq!(reader.usage(), usage(130, None, 0));
    reader.passed_on(b"\ndata: {\"usage\":{\"input_tokens\":2,\"output_tokens\":8,\"cache_read_input_tokens\":128},");
    assert_eq!(reader.usage(), usage(130, None, 0));
    reader.passed_on(b"\"type\":\"message_delta\"}\r\n");
    assert_eq!(reader.usage(), usage(130, 128, 8));
}

#[test]
fn a_document_tells_nothing_before_its_end() {
    let mut reader = reader(JSON);
    // It could have stood in a tool's input.
    reader.passed_on(br#"{"content":[{"input":{"usage":{"input_tokens":9}}"#);
    assert_eq!(reader.usage(), None);
    reader.passed_on(br#"}],"usage":{"input_tokens":3}}"#);
    assert_eq!(reader.usage(), None);
    reader.end();
    assert_eq!(reader.usage(), usage(3, None, None));
}

#[test]
fn only_the_engines_own_word_counts() {
    let own = r#""usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}"#;
    let expected = usage(3, 1, 2);
    for other in [
        json!({"text": r#""usage": {"prompt_tokens": 9}"#}),
        json!({"text": r#"{"usage":{"prompt_tokens":9}}"#}),
        json!({"text": r#"\"usage":{"prompt_tokens":9}"#}),
        json!({"text": r#"ends with a backslash \"#}),
        json!({"text": r#"ends with "usage"#, "then": {"prompt_tokens": 9}}),
        json!({"usage": {"prompt_tokens": 9}}),
        json!([[{"deep": {"usage": {"prompt_tokens": 9}}}]]),
        json!({"deep": {"usage": "usage", "a": {"usage": {"usage": {"prompt_tokens": 9}}}}}),
        json!("usage"),
        json!(["usage", {"prompt_tokens": 9}]),
        json!({"usage": null}),
        json!({"usage": [{"prompt_tokens": 9}]}),
        json!({"usage": {"type": "object", "text": "}{\"\\"}}),
        json!({"usage": {"text": "a".repeat(MOST_BYTES), "prompt_tokens": 9}}),
    ] {
        for body in
            [format!("{{\"other\":{other},{own}}}"), format!("{{{own},\"other\":{other}}}"), format!("{{\"a\" : {other} ,\n{own}\n}}\n")]
        {
            assert_eq!(whole(JSON, &body), expected, "{body}");
            assert_eq!(told(JSON, body.as_bytes().chunks(1)), expected, "{body}");
        }
        let deep = format!("{{\"content\":[{{\"input\":{other}}}]}}");
        assert_eq!(whole(JSON, &deep), None, "{deep}");
        assert_eq!(whole(EVENT_STREAM, format!("data: {deep}\n\ndata: {{{own}}}\n\ndata: {deep}\n\n")), expected, "{deep}");
    }
}

#[test]
fn the_last_that_says_something_rules() {
    for (lines, expected) in [
        (&[r#"{"usage":{"prompt_tokens":3}}"#, r#"{"usage":null}"#, "[DONE]"][..], usage(3, None, None)),
        (&[r#"{"usage":{"prompt_tokens":3}}"#, r#"{"usage":{"prompt_tokens":4,"completion_tokens":1}}"#], usage(4, None, 1)),
        (
            &[r#"{"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}"#, r#"{"usage":{"prompt_tokens":3}}"#],
            usage(3, None, None),
        ),
        (&[r#"{"usage":{"prompt_tokens":3}}"#, r#"{"usage":{"prompt_tokens":-4}}"#, r#"{"usage":{}}"#], usage(3, None, None)),
        // As Anthropic itself counts: what the cache is not in, what it had, what it has from now on; and in the end what was generated.
        (
            &[
                r#"{"message":{"usage":{"input_tokens":3,"cache_read_input_tokens":20,"cache_creation_input_tokens":100}}}"#,
                r#"{"usage":{"output_tokens":7}}"#,
            ],
            usage(123, 20, 7),
        ),
        (&[r#"{"response":{"usage":null}}"#, r#"{"response":{"usage":{"input_tokens":3,"output_tokens":2}}}"#], usage(3, None, 2)),
        (&[r#"{"usage":{"completion_tokens":3}}"#], None),
    ] {
        for line_end in ["\n\n", "\r\n\r\n", "\r\r"] {
            let body: String = lines.iter().map(|line| format!("event: e{line_end}data: {line}{line_end}")).collect();
            assert_eq!(whole(EVENT_STREAM, &body), expected, "{body:?}");
            assert_eq!(whole("Text/Event-Stream; charset=utf-8", body.trim_end()), expected, "{body:?} without its end");
        }
    }
}

#[test]
fn a_number_that_is_none_is_not_told() {
    for bad in ["null", "-1", "1.0", "1e3", "1e999", "\"5\"", "[5]", "{}", "true", "99999999999", "99999999999999999999999"] {
        let body = |prompt: &str, cached: &str, completion: &str| {
            let details = format!(r#""prompt_tokens_details":{{"cached_tokens":{cached}}}"#);
            format!(r#"{{"usage":{{"prompt_tokens":{prompt},"completion_tokens":{completion},{details}}}}}"#)
        };
        assert_eq!(whole(JSON, body(bad, "1", "2")), None, "{bad}");
        assert_eq!(whole(JSON, body("3", bad, "2")), usage(3, None, 2), "{bad}");
        assert_eq!(whole(JSON, body("3", "1", bad)), usage(3, 1, None), "{bad}");
        assert_eq!(
            whole(JSON, format!(r#"{{"usage":{{"prompt_tokens":3,"prompt_tokens_details":{bad}}}}}"#)),
            usage(3, None, None),
            "{bad}"
        );
    }
    assert_eq!(whole(JSON, r#"{"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}"#), usage(3, None, None));
}

#[test]
fn what_is_no_json_tells_nothing() {
    for body in [
        r#"{"usage":{"prompt_tokens":3}"#,
        r#"{"usage":{"prompt_tokens":3,}}"#,
        r#"{"usage":{"prompt_tokens":3"#,
        r#""usage""#,
        r#"{"usage":"#,
        "\"usage\":}}}}",
    ] {
        assert_eq!(whole(JSON, body), None, "{body}");
    }
    assert_eq!(
        whole(JSON, b"{\"usage\":{\"prompt_tokens\":3,\"a\":\"\xff\"}}"),
        usage(3, None, None),
        "nobody has looked at the other field"
    );
    assert_eq!(whole(EVENT_STREAM, "data: {\"usage\":{\"prompt_tokens\":3\n}}\n"), None, "a line is a document");
}

#[test]
fn other_kinds_and_compressed_answers_are_left_alone() {
    let of = |fields: &[(HeaderName, &'static str)]| {
        let headers: HeaderMap = fields.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
        UsageReader::of(plain_kind(&headers)).is_some()
    };
    assert!(of(&[(CONTENT_TYPE, "application/json; charset=utf-8")]) && of(&[(CONTENT_TYPE, JSON), (CONTENT_ENCODING, "identity")]));
    for encoding in ["gzip", "br", "zstd"] {
        assert!(
            !of(&[(CONTENT_TYPE, JSON), (CONTENT_ENCODING, encoding)])
                && !of(&[(CONTENT_TYPE, EVENT_STREAM), (CONTENT_ENCODING, encoding)])
        );
    }
    assert!(!of(&[]) && !of(&[(CONTENT_TYPE, "text/plain")]) && !of(&[(CONTENT_TYPE, "application/octet-stream")]));
}

/// Any JSON, with names and texts that matter here.
fn any_json() -> impl Strategy<Value = Value> {
    let text =
        prop::sample::select(vec!["", "usage", "\"usage\"", "\\", "\\\"usage", "\"usage\": {\"prompt_tokens\": 9}", "}", "{\"", "é\n"]);
    let leaf = prop_oneof![text.prop_map(Value::from), any::<Option<u16>>().prop_map(Value::from), (-3..3_i64).prop_map(Value::from)];
    let name = prop::sample::select(vec![
        "usage",
        "a",
        "\"usage\"",
        "prompt_tokens",
        "completion_tokens",
        "prompt_tokens_details",
        "cached_tokens",
    ]);
    leaf.prop_recursive(5, 60, 6, move |inner| {
        let object = vec((name.clone(), inner.clone()), 0..6)
            .prop_map(|fields| Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()));
        prop_oneof![3 => object, 1 => vec(inner, 0..4).prop_map(Value::Array)]
    })
}

/// Bytes of which some make sense.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        4 => prop::sample::select(vec![
            "\"usage\"", ":", "{", "}", "\"", "\\", "\n", "\r\n", "data: ", "\"prompt_tokens\":3", "\"usage\":{\"prompt_tokens\":4}", "\"message\":{", ",", "us", "age", "\"usage\":null", " ",
        ]).prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..4),
        1 => (MOST_BYTES - 30..MOST_BYTES + 30).prop_map(|length| vec![b' '; length]),
    ];
    vec(part, 0..40).prop_map(|parts| parts.concat())
}

/// `body` in pieces that end where `cuts` say, in shares of its length.
fn pieces<'a>(body: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).chain([body.len()]).collect();
    ends.sort_unstable();
    ends.iter().scan(0, |from, &end| Some(&body[std::mem::replace(from, end)..end])).collect()
}

proptest! {
    #[test]
    fn where_pieces_end_makes_no_difference(body in any_bytes(), cuts in vec(any::<prop::sample::Index>(), 0..12)) {
        for kind in [JSON, EVENT_STREAM] {
            let expected = whole(kind, &body);
            prop_assert_eq!(told(kind, pieces(&body, &cuts)), expected);
            prop_assert_eq!(told(kind, body.chunks(1)), expected);
        }
    }

    #[test]
    fn any_document_is_read_as_by_a_parser(
        fields in vec((prop::sample::select(vec!["usage", "a", "b"]), any_json()), 0..4), is_wide in any::<bool>(),
        cuts in vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let document = Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
        let body = if is_wide { format!("{document:#}") } else { document.to_string() };
        let number = |place: &str| document.pointer(&format!("/usage/{place}")).and_then(Value::as_u64);
        let expected = number("prompt_tokens").map(|prompt_tokens| Usage {
            prompt_tokens,
            cached_tokens: number("prompt_tokens_details/cached_tokens").filter(|&cached| cached <= prompt_tokens),
            completion_tokens: number("completion_tokens"),
        });
        prop_assert_eq!(told(JSON, pieces(body.as_bytes(), &cuts)), expected, "{}", body);
    }
}
