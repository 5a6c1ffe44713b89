//! The live page: files that a browser gets as they are. They show nothing by themselves; what they show they ask of the API, which decides who may.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};

/// A page that loads nothing from elsewhere, sends nothing elsewhere, and stands in no other page.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

/// Each file: its path, its kind and what it holds.
pub(super) const FILES: &[(&str, &str, &str)] = &[
    ("/ui", HTML, include_str!("ui/index.html")),
    ("/ui/api.js", SCRIPT, include_str!("ui/api.js")),
    ("/ui/app.css", CSS, include_str!("ui/app.css")),
    ("/ui/app.js", SCRIPT, include_str!("ui/app.js")),
    ("/ui/decisions.js", SCRIPT, include_str!("ui/decisions.js")),
    ("/ui/dom.js", SCRIPT, include_str!("ui/dom.js")),
    ("/ui/drain.js", SCRIPT, include_str!("ui/drain.js")),
    ("/ui/explain.js", SCRIPT, include_str!("ui/explain.js")),
    ("/ui/fleet.js", SCRIPT, include_str!("ui/fleet.js")),
    ("/ui/flow.js", SCRIPT, include_str!("ui/flow.js")),
    ("/ui/format.js", SCRIPT, include_str!("ui/format.js")),
    ("/ui/icon.svg", PICTURE, include_str!("ui/icon.svg")),
    ("/ui/ring.js", SCRIPT, include_str!("ui/ring.js")),
];

/// One of them.
pub(super) fn file((_, kind, text): (&'static str, &'static str, &'static str)) -> Response {
    let mut response = text.into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // An upgraded router serves another page.
        (header::CACHE_CONTROL, "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// `/` and `/ui/`.
pub(super) async fn home() -> Response {
    (StatusCode::TEMPORARY_REDIRECT, Redirect::temporary("/ui")).into_response()
}
