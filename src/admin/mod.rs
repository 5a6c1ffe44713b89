//! The admin port.
//!
//! | path | what | who |
//! | --- | --- | --- |
//! | `GET /metrics` | for Prometheus | anybody who can connect |
//! | `GET /live`, `GET /ready` | for probes | anybody who can connect |
//! | `GET /api/v1/fleet` | the replicas as they are now | see `auth.rs` |
//! | `POST /api/v1/replicas/{name}/drain`, `…/undrain` | no new requests for one replica, or some again | see `auth.rs` |
//! | `POST /api/v1/reload` | the configuration file is read again | see `auth.rs` |
//!
//! Nothing here shows a prompt or a secret. What a drain or a reload does is not decided here.

mod api;
mod auth;

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use tokio::sync::{mpsc, oneshot, watch};

use crate::live::LiveFleet;
use crate::telemetry::Metrics;
use crate::units::Secret;

/// Who may use the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// What has to be sent as `Authorization: Bearer …`; where there is none, only this host is served.
    pub token: Option<Secret>,
}

/// Asks for the configuration to be read again; the answer goes where the message says.
pub type Reloading = mpsc::Sender<oneshot::Sender<Reloaded>>;

/// What a reload came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// The file is in force, but for what needs a restart. Nothing has changed where both lists are empty.
    Done {
        /// The keys that have changed.
        applied: Vec<&'static str>,
        /// The keys that have changed in the file, and keep the value of the start.
        needs_restart: Vec<&'static str>,
    },
    /// Nothing has changed, as something is wrong: each error as `check` shows it.
    Refused(Vec<String>),
    /// There is no file that could be read again.
    NoFile,
}

/// What the admin port shows.
#[derive(Clone)]
pub struct Admin {
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Replicas.
    pub fleet: Arc<LiveFleet>,
    /// Whether the router is to stop.
    pub draining: watch::Receiver<bool>,
    /// Who may use the API, as of now.
    pub access: watch::Receiver<Settings>,
    /// The address that it is reached by.
    pub address: IpAddr,
    /// Who reads the configuration again.
    pub reloading: Reloading,
}

impl Admin {
    /// The admin port's paths. Whatever is added here is closed to strangers, unless `auth.rs` opens it; what is not here is a 404 for all.
    pub fn routes(self) -> Router {
        Router::new()
            .route("/metrics", get(metrics))
            .route("/live", get(|| async { "live\n" }))
            .route("/ready", get(ready))
            .route("/api/v1/fleet", get(api::fleet))
            .route("/api/v1/replicas/{name}/drain", post(api::drain))
            .route("/api/v1/replicas/{name}/undrain", post(api::undrain))
            .route("/api/v1/reload", post(api::reload))
            .route_layer(middleware::from_fn_with_state(self.clone(), auth::check))
            .with_state(self)
    }
}

async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    if !admin.metrics.is_on() {
        let text = "metrics are off by the configuration (metrics: false)\n".to_owned();
        return (StatusCode::NOT_FOUND, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text);
    }
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
        (StatusCode::SERVICE_UNAVAILABLE, "no replica can be used\n")
    }
}
