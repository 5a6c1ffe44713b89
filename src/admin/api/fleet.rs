//! The replicas: what they are like, what belongs to each, and what an operator may ask of them.

use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::recent::{OfAll, Recent};
use super::{Asked, Name, Params, answer, parse, refuse};
use crate::admin::Admin;
use crate::fleet::{self, Replica};
use crate::live::{DrainError, WeighError};
use crate::request::Key;
use crate::units::Weight;

/// Names in an error text, at most: a fleet may have a thousand.
const MOST_NAMES: usize = 50;

/// Parts of the ring that are told apart.
const PARTS: u64 = 720;

#[derive(Serialize)]
struct Fleet {
    replicas: Vec<Shown>,
    recent_requests: u64,
}

#[derive(Serialize)]
struct Shown {
    name: String,
    address: String,
    state: Option<&'static str>,
    health: Option<&'static str>,
    draining: bool,
    drained_by: Option<&'static str>,
    outstanding: u64,
    weight: u64,
    configured_weight: u64,
    models: Vec<String>,
    threshold: Option<u64>,
    recent: Recent,
    engine: Option<Engine>,
}

#[derive(Serialize)]
struct Engine {
    running: Option<u64>,
    waiting: Option<u64>,
    kv_cache_usage: Option<f64>,
    prefix_hit_share: Option<f64>,
    prefix_caching: Option<bool>,
    age_seconds: f64,
}

/// `GET /api/v1/fleet`.
pub(in super::super) async fn fleet(State(admin): State<Admin>) -> Response {
    let configured = admin.fleet.configured_weights().await;
    let drained = admin.fleet.drained();
    let view = admin.fleet.view();
    let thresholds = admin.metrics.thresholds(&view);
    let mut recent = OfAll::look(admin.metrics.decisions());
    let recent_requests = recent.requests;
    let shown = |replica: &std::sync::Arc<Replica>| {
        let spec = replica.spec();
        let by_request = drained.contains(&spec.name);
        Shown {
            name: spec.name.clone(),
            address: spec.authority.clone(),
            state: view.state(replica).map(fleet::State::label),
            health: view.health(replica).map(fleet::State::label),
            draining: spec.drain || by_request,
            drained_by: if spec.drain { Some("configuration") } else { by_request.then_some("api") },
            outstanding: replica.outstanding(),
            weight: replica.weight(),
            configured_weight: configured.get(&spec.name).copied().unwrap_or(replica.weight()),
            models: spec.models.clone(),
            threshold: thresholds.get(&replica.incarnation()).copied(),
            recent: recent.take(replica.incarnation()),
            engine: engine(&admin, replica),
        }
    };
    let replicas = view.replicas().iter().map(shown).collect();
    answer(StatusCode::OK, &Fleet { replicas, recent_requests })
}

/// What its engine said last.
fn engine(admin: &Admin, replica: &Replica) -> Option<Engine> {
    let latest = admin.readings.get(replica.incarnation())?;
    let reading = &latest.reading;
    let share = |queries: u64, hits: u64| (queries > 0).then(|| hits as f64 / queries as f64);
    Some(Engine {
        running: reading.running,
        waiting: reading.waiting,
        kv_cache_usage: reading.kv_usage,
        prefix_hit_share: reading.prefix_queries.zip(reading.prefix_hits).and_then(|(queries, hits)| share(queries, hits)),
        prefix_caching: reading.prefix_caching,
        age_seconds: Instant::now().saturating_duration_since(latest.asked).as_secs_f64(),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct OfPool {
    pool: Option<String>,
}

impl Asked for OfPool {
    const ALLOWED: &str = "pool, the name of one";
}

/// `GET /api/v1/ring`: who owns it.
pub(in super::super) async fn ring(State(admin): State<Admin>, Params(OfPool { pool: name }): Params<OfPool>) -> Response {
    let view = admin.fleet.view();
    let mut pools: Vec<&str> = view.pools().map(|pool| pool.name().label()).collect();
    pools.sort_unstable();
    let name = name.as_deref().unwrap_or("all");
    let Some(pool) = view.pools().find(|pool| pool.name().label() == name) else {
        let known = pools.iter().take(MOST_NAMES).copied().collect::<Vec<_>>().join(", ");
        return refuse(StatusCode::NOT_FOUND, &format!("no pool has this name; known: {known}"));
    };
    let (part, ring) = (u64::MAX / PARTS, pool.ring());
    let owners: Vec<usize> = (0..PARTS).filter_map(|number| ring.home(Key(number * part + part / 2))).collect();
    let mut owned = vec![0_u32; pool.members().len()];
    owners.iter().for_each(|&owner| owned[owner] += 1);
    let shares: Vec<f64> = owned.into_iter().map(|parts| f64::from(parts) / PARTS as f64).collect();
    let replicas: Vec<&str> = pool.members().iter().map(|member| member.name()).collect();
    answer(StatusCode::OK, &json!({"pool": name, "pools": pools, "replicas": replicas, "shares": shares, "owners": owners}))
}

/// `POST /api/v1/replicas/{name}/drain`.
pub(in super::super) async fn drain(State(admin): State<Admin>, Name(name): Name) -> Response {
    set_draining(&admin, &name, true)
}

/// `POST /api/v1/replicas/{name}/undrain`.
pub(in super::super) async fn undrain(State(admin): State<Admin>, Name(name): Name) -> Response {
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
        Err(DrainError::Unknown(known)) => unknown(&known),
        Err(DrainError::Configured) => {
            let text = "the configuration drains this replica (drain: true); change it there";
            refuse(StatusCode::CONFLICT, text)
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewWeight {
    /// Required, and may be null.
    #[serde(deserialize_with = "Option::deserialize")]
    weight: Option<f64>,
}

/// `PUT /api/v1/replicas/{name}/weight`.
pub(in super::super) async fn weigh(State(admin): State<Admin>, Name(name): Name, body: Body) -> Response {
    const ALLOWED: &str = "{\"weight\": N} with N of 1 to 100, or null for what is configured";
    let weight = match parse::<NewWeight>(body, ALLOWED).await {
        Ok(NewWeight { weight }) => weight,
        Err(refusal) => return refusal,
    };
    // In JSON 2.0 is as whole as 2.
    let legal = weight.filter(|weight| weight.fract() == 0.0 && *weight >= 0.0).and_then(|weight| Weight::new(weight as u64));
    if weight.is_some() && legal.is_none() {
        return refuse(StatusCode::BAD_REQUEST, &format!("this is no weight; allowed: {ALLOWED}"));
    }
    match admin.fleet.weigh(&name, legal).await {
        Ok(weighed) => {
            let (weight, configured) = (weighed.weight.get(), weighed.configured.get());
            answer(StatusCode::OK, &json!({"name": name, "weight": weight, "configured_weight": configured, "changed": weighed.changed}))
        }
        Err(WeighError::Unknown(known)) => unknown(&known),
        Err(WeighError::Unchanged(error)) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn unknown(known: &[String]) -> Response {
    let more = known.len().saturating_sub(MOST_NAMES);
    let listed = known.iter().take(MOST_NAMES).cloned().collect::<Vec<_>>().join(", ");
    let listed = match (known.is_empty(), more) {
        (true, _) => "the fleet is empty".to_owned(),
        (false, 0) => format!("known: {listed}"),
        (false, more) => format!("known: {listed} and {more} more"),
    };
    refuse(StatusCode::NOT_FOUND, &format!("no replica has this name; {listed}"))
}
