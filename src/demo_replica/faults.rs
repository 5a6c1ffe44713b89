//! Faults that a replica shows when it is told to, at `/demo/faults`.

use axum::extract::Request;
use serde_json::json;

use super::App;
use super::http::Reply;
use super::journal::Entry;

/// The control paths.
pub(super) const PATHS: [(&str, &str); 1] = [("/demo/faults", "GET, POST, DELETE")];

/// Faults that are switched on.
#[derive(Debug, Default)]
pub(super) struct Faults {}

impl Faults {
    pub(super) async fn health(&self) -> Option<Reply> {
        None
    }
}

/// Runs an inference request, and what faults do to it.
pub(super) async fn around<F: Future<Output = Reply>>(app: &App, path: &str, run: impl FnOnce(Entry) -> F) -> Reply {
    run(app.journal.begin(path)).await
}

pub(super) async fn control(_app: &App, _request: Request) -> Reply {
    Reply::json(&json!([]))
}
