//! `POST /api/v1/explain`: where would this request go?

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;

use super::{Asked, Params, answer, read, refuse};
use crate::admin::Admin;
use crate::proxy::{Described, Unexplained};
use crate::request::IDENTIFIER_HEADER;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Wanted {
    path: Option<String>,
}

impl Asked for Wanted {
    const ALLOWED: &str = "path, where the request would be sent";
}

/// `POST /api/v1/explain`.
pub(in super::super) async fn explain(
    State(admin): State<Admin>,
    Params(Wanted { path }): Params<Wanted>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let body = match read(body, admin.proxy.rules().settings.max_body).await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let mut identifiers = headers.get_all(IDENTIFIER_HEADER).iter();
    let identifier = identifiers.next().map(|value| value.as_bytes());
    if identifiers.next().is_some() {
        return refuse(StatusCode::BAD_REQUEST, &format!("the header {IDENTIFIER_HEADER} is given more than once"));
    }
    let path = path.as_deref().unwrap_or("/v1/chat/completions");
    match admin.proxy.explain(Described { path, identifier, body: &body }) {
        Ok(explained) => answer(StatusCode::OK, &explained),
        Err(Unexplained::NotServed(why)) => refuse(StatusCode::NOT_FOUND, &why),
        Err(Unexplained::NotAllowed(why)) => refuse(StatusCode::BAD_REQUEST, &why),
    }
}
