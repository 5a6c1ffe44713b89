//! The body of a request: an object of JSON, or a refusal in the words of FastAPI and pydantic.
//!
//! What the object's fields must be is the surfaces' business.

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderMap};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use memchr::memchr3_iter;
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::ask::Fields;
use super::refusal::Refusal;

/// Bodies longer than this are not read; uvicorn has no limit, but a simulated replica shares its host's memory. So much the router takes, too.
const MAX_BODY: usize = 64 << 20;

/// Values in a body, lists of tokens above all: each takes far more memory than its few bytes.
const MAX_VALUES: usize = 1 << 21;

/// Bodies longer than this take milliseconds to be read, so that no one else should wait for it.
const LONG: usize = 1 << 20;

/// The body's object.
pub(super) async fn fields(headers: &HeaderMap, body: Body) -> Result<Fields, Refusal> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default().to_ascii_lowercase();
    if content_type.split(';').next() != Some("application/json") {
        return Err(Refusal::invalid("Unsupported Media Type: Only 'application/json' is allowed", None));
    }
    let body = Limited::new(body, MAX_BODY).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            too_large(&format!("The request's body is larger than {MAX_BODY} bytes."))
        } else {
            Refusal::bad(format!("cannot read the body: {error}"))
        }
    })?;
    let body = body.to_bytes();
    if body.len() <= LONG {
        return read(&body);
    }
    spawn_blocking(move || read(&body)).await.unwrap_or_else(|error| Err(Refusal::bad(format!("cannot read the body: {error}"))))
}

fn too_large(message: &str) -> Refusal {
    Refusal { status: StatusCode::PAYLOAD_TOO_LARGE, early: true, ..Refusal::bad(message) }
}

fn read(body: &[u8]) -> Result<Fields, Refusal> {
    if body.is_empty() {
        return Err(Refusal::missing("body", "None"));
    }
    // Each value but the first of its list or object has a comma before it.
    if memchr3_iter(b',', b'[', b'{', body).count() > MAX_VALUES {
        return Err(too_large(&format!("The request's body has more than {MAX_VALUES} values.")));
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(other) => {
            let input = match &other {
                Value::Array(items) => format!("<list of {} items>", items.len()),
                other => other.as_str().map_or_else(|| other.to_string(), str::to_owned),
            };
            let details = format!(
                "{{'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid dictionary or object to extract fields from', \
                 'input': '{input}'}}"
            );
            Err(Refusal::invalid(&details, Some("body".into())))
        }
        Err(error) => {
            let at = position(body, &error);
            let details = format!(
                "{{'type': 'json_invalid', 'loc': 'body.{at}', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {{'error': \
                 '{}'}}}}",
                python_says(&error)
            );
            Err(Refusal::invalid(&details, Some(format!("body.{at}"))))
        }
    }
}

/// Where in the body, in characters, an error is.
fn position(body: &[u8], error: &serde_json::Error) -> usize {
    if error.is_eof() {
        return String::from_utf8_lossy(body).chars().count();
    }
    let before: usize = body.split_inclusive(|byte| *byte == b'\n').take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
    let at = (before + error.column()).saturating_sub(1).min(body.len());
    String::from_utf8_lossy(&body[..at]).chars().count()
}

fn python_says(error: &serde_json::Error) -> &'static str {
    let text = error.to_string();
    let said = [
        ("expected `:`", "Expecting \\':\\' delimiter"),
        ("expected `,`", "Expecting \\',\\' delimiter"),
        ("key must be a string", "Expecting property name enclosed in double quotes"),
        ("trailing characters", "Extra data"),
        ("control character", "Invalid control character at"),
    ];
    said.into_iter().find(|(ours, _)| !error.is_eof() && text.contains(ours)).map_or("Expecting value", |(_, python)| python)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[track_caller]
    fn check(body: &str, at: usize, says: &str) {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8"))]);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("it starts");
        let refusal = runtime.block_on(fields(&headers, Body::from(body.to_owned()))).expect_err("it is no JSON");
        assert_eq!(refusal.param, Some(format!("body.{at}")), "{body}");
        assert!(refusal.message.contains(&format!("'error': '{says}'")), "{body}: {}", refusal.message);
    }

    #[test]
    fn what_is_no_json_is_told_as_by_python() {
        check("{\"a\":", 5, "Expecting value");
        check("{\"ä\":", 5, "Expecting value");
        check("{\n\"a\": x}", 7, "Expecting value");
        check("{\"a\": 1} x", 9, "Extra data");
        check("{\"a\" 1}", 5, "Expecting \\':\\' delimiter");
        check("{\"a\": 1 2}", 8, "Expecting \\',\\' delimiter");
        check("{a}", 1, "Expecting property name enclosed in double quotes");
    }
}
