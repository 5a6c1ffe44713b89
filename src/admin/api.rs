//! `/api/v1/`: JSON for operators and their programs.
//!
//! It decides nothing: who is drained is the fleet's, what a reload changes is `app`'s.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{Admin, Reloaded};
use crate::fleet;
use crate::live::DrainError;

/// Names in an error text, at most: a fleet may have a thousand.
const MOST_NAMES: usize = 50;

/// `GET /api/v1/fleet`.
pub(super) async fn fleet(State(admin): State<Admin>) -> Response {
    let drained = admin.fleet.drained();
    let view = admin.fleet.view();
    let replicas = view.replicas().iter().map(|replica| {
        let spec = replica.spec();
        let by_request = drained.contains(&spec.name);
        json!({
            "name": spec.name,
            "address": spec.authority,
            "state": view.state(replica).map(fleet::State::label),
            "health": view.health(replica).map(fleet::State::label),
            "draining": spec.drain || by_request,
            "drained_by": if spec.drain { Some("configuration") } else { by_request.then_some("api") },
            "outstanding": replica.outstanding(),
            "weight": replica.weight(),
            "models": spec.models,
        })
    });
    answer(StatusCode::OK, &json!({"replicas": replicas.collect::<Vec<_>>()}))
}

/// `POST /api/v1/replicas/{name}/drain`.
pub(super) async fn drain(State(admin): State<Admin>, Path(name): Path<String>) -> Response {
    set_draining(&admin, &name, true)
}

/// `POST /api/v1/replicas/{name}/undrain`.
pub(super) async fn undrain(State(admin): State<Admin>, Path(name): Path<String>) -> Response {
    set_draining(&admin, &name, false)
}

fn set_draining(admin: &Admin, name: &str, draining: bool) -> Response {
    match admin.fleet.drain(name, draining) {
        Ok(changed) => {
            let view = admin.fleet.view();
            let replica = view.replicas().iter().find(|replica| replica.name() == name);
            let outstanding = replica.map_or(0, |replica| replica.outstanding());
            let health = replica.and_then(|replica| view.health(replica)).map(fleet::State::label);
            let said = json!({"name": name, "draining": draining, "changed": changed, "outstanding": outstanding, "health": health});
            answer(StatusCode::OK, &said)
        }
        Err(DrainError::Unknown(known)) => {
            let more = known.len().saturating_sub(MOST_NAMES);
            let listed = known.iter().take(MOST_NAMES).cloned().collect::<Vec<_>>().join(", ");
            let listed = match (known.is_empty(), more) {
                (true, _) => "the fleet is empty".to_owned(),
                (false, 0) => format!("known: {listed}"),
                (false, more) => format!("known: {listed} and {more} more"),
            };
            refuse(StatusCode::NOT_FOUND, &format!("no replica has this name; {listed}"))
        }
        Err(DrainError::Configured) => {
            let text = "the configuration drains this replica (drain: true); change it there";
            refuse(StatusCode::CONFLICT, text)
        }
    }
}

/// `POST /api/v1/reload`.
pub(super) async fn reload(State(admin): State<Admin>) -> Response {
    let (tell, told) = oneshot::channel();
    let asked = admin.reloading.send(tell).await.is_ok();
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
        _ => refuse(StatusCode::SERVICE_UNAVAILABLE, "the router is shutting down"),
    }
}

/// An error, in the form of all of them.
pub(super) fn refuse(status: StatusCode, message: &str) -> Response {
    answer(status, &json!({"error": {"message": message}}))
}

fn answer(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(format!("{value}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
