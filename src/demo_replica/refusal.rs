//! What vLLM says to a request that it does not take, in its words.
//!
//! It has no opinion on which requests those are; who parses them has.

use axum::http::StatusCode;
use serde_json::{Value, json};

/// A request that gets no answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) message: String,
    pub(super) kind: &'static str,
    pub(super) param: Option<String>,
    /// It was found before the surface saw the request; `/v1/messages` has no shape of its own for that.
    pub(super) early: bool,
}

impl Refusal {
    /// The request asks for something that is not possible.
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.into(), kind: "BadRequestError", param: None, early: false }
    }

    /// One of its parameters has a value that is not possible. vLLM says so at the end of its message.
    pub(super) fn parameter(message: &str, name: &str, value: Option<&Value>) -> Self {
        let value = value.map_or_else(String::new, |value| format!(", value={value}"));
        Self { param: Some(name.into()), ..Self::bad(format!("{message} (parameter={name}{value})")) }
    }

    /// The model is not served here.
    pub(super) fn no_model(asked: &str, served: &str) -> Self {
        let message = format!("The model `{asked}` does not exist. Valid aliases: {served}.");
        Self { status: StatusCode::NOT_FOUND, kind: "NotFoundError", param: Some("model".into()), ..Self::bad(message) }
    }

    /// A response that is not kept. None is.
    pub(super) fn no_response(id: &str) -> Self {
        let message = format!("Response with id '{id}' not found.");
        let param = Some("response_id".into());
        Self { status: StatusCode::NOT_FOUND, kind: "invalid_request_error", param, ..Self::bad(message) }
    }

    /// A prompt of `tokens`, where the model takes `most`. What was text is only counted until it is too much.
    pub(super) fn too_long(tokens: usize, most: usize, text: bool) -> Self {
        let counted = if text { most + 1 } else { tokens };
        let at_least = if counted == most + 1 { "at least " } else { "" };
        let message = format!(
            "This model's maximum context length is {most} tokens. However, your prompt contains {at_least}{counted} input tokens, which \
             exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
        );
        Self::parameter(&message, "input_tokens", Some(&counted.into()))
    }

    /// The request is no such object as it has to be: `details`, as pydantic lists them, at `place`.
    pub(super) fn invalid(details: &str, place: Option<String>) -> Self {
        let message = format!("1 validation error:\n  {details}");
        Self { kind: "Bad Request", param: place, early: true, ..Self::bad(message) }
    }

    /// A field is missing at `place`; `input` says what was there instead.
    pub(super) fn missing(place: &str, input: &str) -> Self {
        let details = format!("{{'type': 'missing', 'loc': '{place}', 'msg': 'Field required', 'input': '{input}'}}");
        Self::invalid(&details, Some(place.into()))
    }

    /// The body in OpenAI's shape.
    pub(super) fn openai(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status.as_u16()}})
    }

    /// The body as `/v1/messages` has it.
    pub(super) fn anthropic(&self) -> Value {
        if self.early { self.openai() } else { json!({"type": "error", "error": {"type": self.kind, "message": self.message}}) }
    }
}
