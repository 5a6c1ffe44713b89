//! The admin port: `/metrics` for Prometheus, `/live` and `/ready` for probes. Nothing here changes anything, and nothing shows a prompt.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::sync::watch;

use crate::live::LiveFleet;
use crate::telemetry::Metrics;

/// What the admin port shows.
#[derive(Clone)]
pub struct Admin {
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Replicas.
    pub fleet: Arc<LiveFleet>,
    /// Whether the router is to stop.
    pub draining: watch::Receiver<bool>,
}

impl Admin {
    /// The admin port's paths.
    pub fn routes(self) -> Router {
        Router::new()
            .route("/metrics", get(metrics))
            .route("/live", get(|| async { "live\n" }))
            .route("/ready", get(ready))
            .with_state(self)
    }
}

async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    match admin.metrics.render(&admin.fleet.view()) {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], error.to_string()),
    }
}

async fn ready(State(admin): State<Admin>) -> impl IntoResponse {
    if *admin.draining.borrow() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else if admin.fleet.view().can_serve() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "no replica is up\n")
    }
}
