//! Every failure that a client is told of, and how: status, code and the error shape of the surface's own API.
//!
//! Texts say what to do next and nothing of the prompt; what only the operator needs is in the log.

use std::time::Duration;

use bytes::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::response::{Body, Response};
use crate::request::{Dialect, IDENTIFIER_HEADER, PRIORITIES, PRIORITY_HEADER};
use crate::telemetry::Limit;

/// Names the code of an answer that the router made itself.
pub(super) const ERROR_HEADER: HeaderName = HeaderName::from_static("x-prefix-router-error");

/// How long a client is ready to wait for the first byte of an answer.
pub(super) const TIMEOUT_HEADER: HeaderName = HeaderName::from_static("x-prefix-router-timeout");

/// How long a client should wait before it asks a pool without replicas again, in seconds.
const RETRY_AFTER_SECONDS: u64 = 1;

/// Why the router answers by itself, or cuts an answer off.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyError {
    #[error("the header {IDENTIFIER_HEADER} must be given once, with 1 to 64 printable ASCII characters, the first not a space")]
    BadIdentifier,
    #[error("the header {PRIORITY_HEADER} must be given once, with a whole number of {} to {}", PRIORITIES.start(), PRIORITIES.end())]
    BadPriority,
    #[error("the header {TIMEOUT_HEADER} must be given once, as a time of more than 0 and at most 24 hours, like 30, 2.5s or 800ms")]
    BadTimeout,
    #[error("this path is not exposed; the operator can list it in expose_paths")]
    PathNotExposed,
    #[error("metrics are served on the admin port, {0}")]
    MetricsOnAdminPort(std::net::SocketAddr),
    #[error("the model `{0}` is served by no replica")]
    UnknownModel(String),
    #[error("{method} is not allowed here; allowed: {allowed}")]
    MethodNotAllowed { method: Method, allowed: String },
    #[error("the request's body did not go on within {0:?}")]
    BodyTooSlow(Duration),
    #[error("the request's body was not complete within {0:?} (body_total_timeout)")]
    BodyTooLong(Duration),
    #[error("the request's body is not what its head says")]
    BodyBroken,
    #[error("the request's body ended before its end")]
    ClientGone,
    #[error("the request's body is larger than {0} bytes (max_body)")]
    BodyTooLarge(usize),
    #[error("the request's headers are larger than {0} bytes (max_header_bytes)")]
    HeadersTooLarge(usize),
    #[error("the request has more than {0} header fields (max_headers)")]
    TooManyHeaders(usize),
    #[error("WebSocket is not supported")]
    UpgradeUnsupported,
    #[error("no replica could be reached")]
    ConnectFailed,
    #[error("the replica broke the connection before it answered")]
    ReplicaBroke,
    #[error("the replica broke the connection in mid-stream")]
    StreamBroke,
    #[error("the replica sent nothing for {0:?}")]
    StreamIdle(Duration),
    #[error("no replica can take this request now")]
    NoReplica,
    #[error("too many requests wait for a replica ({bound}); ask again in {retry_after} s")]
    QueueFull { bound: &'static str, retry_after: u64 },
    #[error("no replica had room for this request in time (queue_timeout); ask again in {retry_after} s")]
    QueueTimeout { retry_after: u64 },
    #[error("the bodies of other requests take all the memory there is for them (max_buffered_bytes)")]
    BuffersFull,
    #[error("the router is shutting down")]
    Draining,
    #[error("no first byte came from the replica within {0:?}")]
    FirstByteTimeout(Duration),
    #[error("no first byte of an answer came within {0:?}, which is what the request's {TIMEOUT_HEADER} allows")]
    TimeoutExceeded(Duration),
}

impl ProxyError {
    /// The model is a client's text: as much of it as tells which one was meant.
    pub(super) fn unknown_model(model: Option<&str>) -> Self {
        Self::UnknownModel(model.unwrap_or_default().chars().take(128).collect())
    }

    /// Status and code, side by side for all.
    fn status(&self) -> (StatusCode, &'static str) {
        match self {
            Self::BadIdentifier => (StatusCode::BAD_REQUEST, "bad_identifier"),
            Self::BadPriority => (StatusCode::BAD_REQUEST, "bad_priority"),
            Self::BadTimeout => (StatusCode::BAD_REQUEST, "bad_timeout"),
            Self::BodyBroken | Self::ClientGone => (StatusCode::BAD_REQUEST, "body_broken"),
            Self::PathNotExposed => (StatusCode::FORBIDDEN, "path_not_exposed"),
            Self::MetricsOnAdminPort(_) => (StatusCode::NOT_FOUND, "metrics_on_admin_port"),
            Self::UnknownModel(_) => (StatusCode::NOT_FOUND, "model_not_found"),
            Self::MethodNotAllowed { .. } => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::BodyTooSlow(_) | Self::BodyTooLong(_) => (StatusCode::REQUEST_TIMEOUT, "body_too_slow"),
            Self::BodyTooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            Self::HeadersTooLarge(_) => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large"),
            Self::QueueFull { .. } => (StatusCode::TOO_MANY_REQUESTS, "queue_full"),
            Self::QueueTimeout { .. } => (StatusCode::TOO_MANY_REQUESTS, "queue_timeout"),
            Self::TooManyHeaders(_) => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too_many_headers"),
            Self::UpgradeUnsupported => (StatusCode::NOT_IMPLEMENTED, "upgrade_unsupported"),
            Self::ConnectFailed => (StatusCode::BAD_GATEWAY, "connect_failed"),
            Self::ReplicaBroke | Self::StreamBroke => (StatusCode::BAD_GATEWAY, "replica_broke"),
            Self::NoReplica => (StatusCode::SERVICE_UNAVAILABLE, "no_replica"),
            Self::BuffersFull => (StatusCode::SERVICE_UNAVAILABLE, "buffers_full"),
            Self::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
            Self::FirstByteTimeout(_) => (StatusCode::GATEWAY_TIMEOUT, "first_byte_timeout"),
            Self::TimeoutExceeded(_) => (StatusCode::GATEWAY_TIMEOUT, "timeout_exceeded"),
            Self::StreamIdle(_) => (StatusCode::GATEWAY_TIMEOUT, "idle_timeout"),
        }
    }

    /// The code, for header, body, log and metrics.
    pub(super) fn code(&self) -> &'static str {
        self.status().1
    }

    /// The limit that was reached, where it is one.
    pub(super) fn limit(&self) -> Option<Limit> {
        match self {
            Self::BodyTooLarge(_) => Some(Limit::MaxBody),
            Self::HeadersTooLarge(_) => Some(Limit::MaxHeaderBytes),
            Self::TooManyHeaders(_) => Some(Limit::MaxHeaders),
            Self::BodyTooSlow(_) => Some(Limit::BodyTimeout),
            Self::BodyTooLong(_) => Some(Limit::BodyTotalTimeout),
            Self::BuffersFull => Some(Limit::BufferTimeout),
            _ => None,
        }
    }

    /// The answer that tells it.
    pub(super) fn response(&self, dialect: Dialect) -> Response {
        let (status, code) = self.status();
        let mut response = Response::new(Body::from(self.object(dialect).to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ERROR_HEADER, HeaderValue::from_static(code));
        if let Self::MethodNotAllowed { allowed, .. } = self
            && let Ok(allowed) = HeaderValue::from_str(allowed)
        {
            headers.insert(ALLOW, allowed);
        }
        let retry_after = match self {
            Self::QueueFull { retry_after, .. } | Self::QueueTimeout { retry_after } => Some(*retry_after),
            _ => (status == StatusCode::SERVICE_UNAVAILABLE).then_some(RETRY_AFTER_SECONDS),
        };
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    /// The event that tells it inside a stream which has begun.
    pub(super) fn event(&self, dialect: Dialect) -> Bytes {
        let event = match dialect {
            Dialect::OpenAi => format!("data: {}\n\n", self.object(dialect)),
            Dialect::Anthropic => format!("event: error\ndata: {}\n\n", self.object(dialect)),
            Dialect::Responses => {
                let object = json!({"type": "error", "code": self.code(), "message": self.to_string(), "param": null});
                format!("event: error\ndata: {object}\n\n")
            }
        };
        Bytes::from(event)
    }

    fn object(&self, dialect: Dialect) -> Value {
        let (status, code) = self.status();
        let message = self.to_string();
        let kind = kind(status, dialect);
        match dialect {
            Dialect::Anthropic => json!({"type": "error", "error": {"type": kind, "message": message}}),
            Dialect::OpenAi | Dialect::Responses => {
                let param = if matches!(self, Self::UnknownModel(_)) { Value::from("model") } else { Value::Null };
                json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
            }
        }
    }
}

/// The `type` that each API's clients know for a status.
fn kind(status: StatusCode, dialect: Dialect) -> &'static str {
    match (dialect, status) {
        (Dialect::Anthropic, StatusCode::FORBIDDEN) => "permission_error",
        (Dialect::Anthropic, StatusCode::NOT_FOUND) => "not_found_error",
        (Dialect::Anthropic, StatusCode::PAYLOAD_TOO_LARGE) => "request_too_large",
        (Dialect::Anthropic, StatusCode::GATEWAY_TIMEOUT) => "timeout_error",
        (Dialect::Anthropic, StatusCode::SERVICE_UNAVAILABLE) => "overloaded_error",
        (_, StatusCode::TOO_MANY_REQUESTS) => "rate_limit_error",
        (_, status) if status.is_client_error() => "invalid_request_error",
        (Dialect::Anthropic, _) => "api_error",
        (_, _) => "server_error",
    }
}
