//! `/api/v1/`: JSON for operators and their programs. `openapi.json` beside this file describes all of it, and is served.
//!
//! It decides nothing: who is drained is the fleet's, what a reload changes is `app`'s, where a request would go is `proxy`'s.

mod decisions;
mod explain;
mod fleet;
mod overview;
mod recent;
mod router;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

pub(super) use decisions::{decisions, hot_keys};
pub(super) use explain::explain;
pub(super) use fleet::{drain, fleet, ring, undrain, weigh};
pub(super) use overview::overview;
pub(super) use router::{config, log_level, reload, set_log_level};

/// What all of this is, for programs.
const OPENAPI: &str = include_str!("openapi.json");

/// A body of a few words needs no more.
const MOST_OF_A_BODY: usize = 16 << 10;

/// `GET /api/v1/openapi.json`.
pub(super) async fn openapi() -> Response {
    respond(StatusCode::OK, OPENAPI.to_owned())
}

/// What is not here.
pub(super) async fn not_found() -> Response {
    refuse(StatusCode::NOT_FOUND, "nothing is served at this path; the API is described by /api/v1/openapi.json, the page is /ui")
}

/// What is here, but for another method.
pub(super) async fn not_allowed() -> Response {
    refuse(StatusCode::METHOD_NOT_ALLOWED, "this path has another method; the header `allow` names it")
}

/// An error, in the form of all of them.
pub(super) fn refuse(status: StatusCode, message: &str) -> Response {
    answer(status, &json!({"error": {"message": message}}))
}

fn answer(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => respond(status, text + "\n"),
        // No type that is answered can fail so.
        Err(error) => respond(StatusCode::INTERNAL_SERVER_ERROR, json!({"error": {"message": error.to_string()}}).to_string()),
    }
}

fn respond(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// What may be asked for in a query.
pub(super) trait Asked: DeserializeOwned {
    /// All of it, in words.
    const ALLOWED: &str;
}

/// What a query says; a wrong one is told of as all errors are.
pub(super) struct Params<T>(T);

impl<T: Asked, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let told = Query::from_request_parts(parts, state).await;
        told.map(|Query(params)| Self(params))
            .map_err(|rejection| refuse(StatusCode::BAD_REQUEST, &format!("{}; allowed: {}", rejection.body_text(), T::ALLOWED)))
    }
}

/// A name in a path.
pub(super) struct Name(String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let told = Path::from_request_parts(parts, state).await;
        told.map(|Path(name)| Self(name)).map_err(|rejection| refuse(StatusCode::BAD_REQUEST, &rejection.body_text()))
    }
}

/// The body of a request, up to so many bytes; else what its client is told.
async fn read(body: Body, most: usize) -> Result<Bytes, Response> {
    axum::body::to_bytes(body, most)
        .await
        .map_err(|_| refuse(StatusCode::PAYLOAD_TOO_LARGE, &format!("the body is longer than {most} bytes, or was broken off")))
}

/// What a body says, which is to be a JSON object; `allowed` is what it may be.
async fn parse<T: DeserializeOwned>(body: Body, allowed: &str) -> Result<T, Response> {
    let bytes = read(body, MOST_OF_A_BODY).await?;
    // A list would do for serde, in the order of the fields.
    serde_json::from_slice::<Map<String, Value>>(&bytes)
        .and_then(|object| T::deserialize(Value::Object(object)))
        .map_err(|error| refuse(StatusCode::BAD_REQUEST, &format!("the body is not what is expected ({error}); allowed: {allowed}")))
}
