//! The admin port.
//!
//! | path | what | who |
//! | --- | --- | --- |
//! | `GET /metrics` | for Prometheus | anybody who can connect |
//! | `GET /live`, `GET /ready` | for probes | anybody who can connect |
//! | `GET /ui`, `/ui/…` | the live page, which shows what it asks of the API | anybody who can connect |
//! | `/api/v1/…` | what `api/openapi.json` describes | see `auth.rs` |
//!
//! Nothing here shows a prompt or a secret. What a drain or a reload does is not decided here.

mod api;
mod auth;
mod ui;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::{get, post, put};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};

use crate::engine::EngineReadings;
use crate::live::LiveFleet;
use crate::proxy::Proxy;
use crate::telemetry::Metrics;
use crate::units::Secret;
use tracing::Level;

/// Who may use the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// What has to be sent as `Authorization: Bearer …`; where there is none, only this host is served.
    pub token: Option<Secret>,
}

/// What is asked of whoever keeps the configuration; the answer goes where it says.
pub enum Order {
    /// To read the file again.
    Reload(oneshot::Sender<Reloaded>),
    /// To log from that level on, or with `None` from the configured one, where it is to change at all.
    LogLevel(Option<Option<Level>>, oneshot::Sender<Result<Levels, NoLog>>),
}

/// From which level on is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// In force.
    pub level: Level,
    /// As configured.
    pub configured: Level,
}

/// This router writes no log of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoLog;

/// The configuration in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Effective {
    /// The file that it is read from, if it is.
    pub file: Option<String>,
    /// All settings.
    pub settings: Vec<Setting>,
}

/// A setting, as it is shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// Its name.
    pub key: &'static str,
    /// Its value, as a file would say it; a secret is not shown.
    pub value: String,
    /// Its default.
    pub default: &'static str,
    /// Whether it is that.
    pub is_default: bool,
    /// Whether a change takes effect at once (`live`) or with a `restart`.
    pub change: &'static str,
}

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
    pub orders: mpsc::Sender<Order>,
    /// The configuration in force.
    pub effective: watch::Receiver<Effective>,
    /// Who serves requests.
    pub proxy: Arc<Proxy>,
    /// What engines say of themselves.
    pub readings: Arc<EngineReadings>,
    /// When the router was started.
    pub started: Instant,
}

impl Admin {
    /// The admin port's paths. Whatever is added here is closed to strangers, unless `auth.rs` opens it; what is not here is a 404 for all.
    pub fn routes(self) -> Router {
        let pages = ui::FILES.iter().fold(Router::new(), |pages, &file| pages.route(file.0, get(move || async move { ui::file(file) })));
        pages
            .route("/", get(ui::home))
            .route("/ui/", get(ui::home))
            .route("/metrics", get(metrics))
            .route("/live", get(|| async { "live\n" }))
            .route("/ready", get(ready))
            .route("/api/v1/openapi.json", get(api::openapi))
            .route("/api/v1/overview", get(api::overview))
            .route("/api/v1/fleet", get(api::fleet))
            .route("/api/v1/ring", get(api::ring))
            .route("/api/v1/replicas/{name}/drain", post(api::drain))
            .route("/api/v1/replicas/{name}/undrain", post(api::undrain))
            .route("/api/v1/replicas/{name}/weight", put(api::weigh))
            .route("/api/v1/decisions", get(api::decisions))
            .route("/api/v1/hot-keys", get(api::hot_keys))
            .route("/api/v1/explain", post(api::explain))
            .route("/api/v1/config", get(api::config))
            .route("/api/v1/reload", post(api::reload))
            .route("/api/v1/log-level", get(api::log_level).put(api::set_log_level))
            .method_not_allowed_fallback(api::not_allowed)
            .route_layer(middleware::from_fn_with_state(self.clone(), auth::check))
            .fallback(api::not_found)
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
