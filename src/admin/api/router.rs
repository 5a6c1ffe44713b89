//! The router itself: its configuration, which may be read again, and how much it logs.

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::oneshot;

use super::{answer, parse, refuse};
use crate::admin::{Admin, Levels, NoLog, Order, Reloaded};

/// `POST /api/v1/reload`.
pub(in super::super) async fn reload(State(admin): State<Admin>) -> Response {
    let (tell, told) = oneshot::channel();
    let asked = admin.orders.send(Order::Reload(tell)).await.is_ok();
    match (asked, told.await) {
        (true, Ok(Reloaded::Done { applied, needs_restart })) => {
            answer(StatusCode::OK, &json!({"applied": applied, "needs_restart": needs_restart}))
        }
        (true, Ok(Reloaded::Refused(errors))) => {
            let message = "the configuration is not valid, and nothing was changed";
            answer(StatusCode::UNPROCESSABLE_ENTITY, &json!({"error": {"message": message, "errors": errors}}))
        }
        (true, Ok(Reloaded::NoFile)) => {
            let text = "there is no configuration file to read again: the router was started without --config and PREFIX_ROUTER_CONFIG";
            refuse(StatusCode::CONFLICT, text)
        }
        _ => gone(),
    }
}

/// `GET /api/v1/config`.
pub(in super::super) async fn config(State(admin): State<Admin>) -> Response {
    answer(StatusCode::OK, &*admin.effective.borrow())
}

/// `GET /api/v1/log-level`.
pub(in super::super) async fn log_level(State(admin): State<Admin>) -> Response {
    levels(&admin, None).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewLevel {
    /// Required, and may be null.
    #[serde(deserialize_with = "Option::deserialize")]
    level: Option<String>,
}

/// `PUT /api/v1/log-level`.
pub(in super::super) async fn set_log_level(State(admin): State<Admin>, body: Body) -> Response {
    const ALLOWED: &str = "{\"level\": L} with L one of error, warn, info, debug, trace, or null for what is configured";
    let level = match parse::<NewLevel>(body, ALLOWED).await {
        Ok(NewLevel { level }) => level,
        Err(refusal) => return refusal,
    };
    let known = ["error", "warn", "info", "debug", "trace"];
    match level {
        Some(level) if !known.contains(&level.as_str()) => {
            refuse(StatusCode::BAD_REQUEST, &format!("this is no level; allowed: {ALLOWED}"))
        }
        level => levels(&admin, Some(level.and_then(|level| level.parse().ok()))).await,
    }
}

async fn levels(admin: &Admin, change: Option<Option<tracing::Level>>) -> Response {
    let (tell, told) = oneshot::channel();
    let asked = admin.orders.send(Order::LogLevel(change, tell)).await.is_ok();
    match (asked, told.await) {
        (true, Ok(Ok(Levels { level, configured }))) => {
            let shown = |level: tracing::Level| level.to_string().to_lowercase();
            answer(StatusCode::OK, &json!({"level": shown(level), "configured": shown(configured)}))
        }
        (true, Ok(Err(NoLog))) => {
            refuse(StatusCode::CONFLICT, "this router writes no log of its own: it is part of another program, as in a demo")
        }
        _ => gone(),
    }
}

fn gone() -> Response {
    refuse(StatusCode::SERVICE_UNAVAILABLE, "the router is shutting down")
}
