//! Answers as uvicorn sends them: which fields their heads have, and in which order.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::SystemTime;

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, SERVER, VARY};
use axum::http::{Response, StatusCode};
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use serde_json::Value;

use super::cut::{At, Cut};
use super::http::Call;
use super::metrics;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const LOAD_METRICS: HeaderName = HeaderName::from_static("endpoint-load-metrics");

/// An answer.
pub(super) struct Reply {
    status: StatusCode,
    /// Fields that only some answers have.
    extra: HeaderMap,
    late: Option<(HeaderName, HeaderValue)>,
    content_type: Option<&'static str>,
    body: Body,
}

impl Reply {
    pub(super) fn json(body: &Value) -> Self {
        Self::new(StatusCode::OK, Some("application/json"), Body::from(body.to_string()))
    }

    pub(super) fn stream(body: impl http_body::Body<Data = Bytes, Error = io::Error> + Send + 'static) -> Self {
        Self::new(StatusCode::OK, Some("text/event-stream; charset=utf-8"), Body::new(body))
    }

    pub(super) fn new(status: StatusCode, content_type: Option<&'static str>, body: Body) -> Self {
        Self { status, extra: HeaderMap::new(), late: None, content_type, body }
    }

    /// Without a body.
    pub(super) fn empty(status: StatusCode) -> Self {
        Self::new(status, None, Body::new(Nothing))
    }

    /// Breaks off `at` some point. A whole answer cannot end early in good order: its length is in its head.
    pub(super) fn cut(mut self, at: At) -> Self {
        let whole = self.body.size_hint().exact().is_some();
        if !(whole && matches!(at, At::Clean(_))) {
            self.body = Body::new(Cut::new(self.body, at));
        }
        self
    }

    pub(super) fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    pub(super) fn with(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.extra.insert(name, value);
        }
        self
    }

    /// With a field that uvicorn sends after the length.
    pub(super) fn after_length(mut self, name: HeaderName, value: &str) -> Self {
        self.late = HeaderValue::from_str(value).ok().map(|value| (name, value));
        self
    }

    /// With the engine's load in the head, where the client asked for it (ORCA).
    pub(super) fn with_load(self, call: &Call) -> Self {
        let counts = call.app.engine.counts();
        let (waiting, usage) = (format!("{:?}", counts.waiting as f64), format!("{:?}", metrics::cache_usage(&counts)));
        let value = match call.load_format.to_ascii_lowercase().as_str() {
            "json" => format!(r#"JSON {{"named_metrics": {{"num_requests_waiting": {waiting}, "kv_cache_usage_perc": {usage}}}}}"#),
            "text" => format!("TEXT named_metrics.num_requests_waiting={waiting}, named_metrics.kv_cache_usage_perc={usage}"),
            _ => return self,
        };
        self.with(LOAD_METRICS, &value)
    }

    /// As it goes out: fields in uvicorn's order.
    pub(super) fn finish(self, request_id: Option<&str>) -> Response<Body> {
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status;
        let length = response.body().size_hint().exact();
        let headers = response.headers_mut();
        if let Ok(date) = HeaderValue::from_str(&httpdate::fmt_http_date(SystemTime::now())) {
            headers.insert(DATE, date);
        }
        headers.insert(SERVER, HeaderValue::from_static("uvicorn"));
        headers.extend(self.extra);
        if let Some(length) = length {
            headers.insert(CONTENT_LENGTH, length.into());
        }
        if let Some((name, value)) = self.late {
            headers.insert(name, value);
        }
        if let Some(content_type) = self.content_type {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        headers.insert(VARY, HeaderValue::from_static("Origin"));
        if let Some(id) = request_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            headers.insert(X_REQUEST_ID, id);
        }
        response
    }
}

/// A body of no bytes that hyper does not know to be one: then it leaves `content-length` in its place.
struct Nothing;

impl http_body::Body for Nothing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(0)
    }
}
