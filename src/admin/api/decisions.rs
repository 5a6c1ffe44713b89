//! Where requests went of late, and why; and which keys most of them have.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};

use super::{Asked, Params, answer, refuse};
use crate::admin::Admin;
use crate::telemetry::Decision;

/// Decisions that are shown where nobody says how many.
const SOME: usize = 50;

/// Decisions in one answer, at most.
const MOST: usize = 512;

/// Keys of one pool, and pools, that are shown at most.
const MOST_KEYS: usize = 20;
const MOST_POOLS: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Wanted {
    limit: Option<usize>,
    after: Option<u64>,
}

impl Asked for Wanted {
    const ALLOWED: &str = "limit, from 1 to 512, and after, the number of a decision";
}

#[derive(Serialize)]
struct Shown {
    id: u64,
    time: f64,
    request_id: String,
    method: String,
    route: &'static str,
    model: String,
    status: u16,
    error: Option<&'static str>,
    replica: Option<String>,
    reason: &'static str,
    why: String,
    tries: u32,
    failed: String,
    queued: Option<f64>,
    first_byte: Option<f64>,
    duration: f64,
    prompt_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    overlap: Option<f64>,
    key: Option<String>,
    depth: Option<u32>,
}

#[derive(Serialize)]
struct Answer {
    kept: usize,
    last: u64,
    decisions: Vec<Shown>,
}

/// `GET /api/v1/decisions`.
pub(in super::super) async fn decisions(State(admin): State<Admin>, Params(Wanted { limit, after }): Params<Wanted>) -> Response {
    let limit = limit.unwrap_or(SOME);
    if !(1..=MOST).contains(&limit) {
        return refuse(StatusCode::BAD_REQUEST, &format!("limit is {limit}; allowed: 1 to {MOST}"));
    }
    let kept = admin.metrics.decisions();
    let (latest, last) = kept.latest(after.unwrap_or(0), limit);
    let shown = |decision: Decision| Shown {
        id: decision.id,
        time: unix(decision.ended),
        method: decision.method.to_string(),
        route: decision.route(),
        model: admin.metrics.model_name(decision.model),
        status: decision.status,
        error: decision.error,
        reason: decision.reason(),
        why: decision.why(),
        tries: decision.tries,
        queued: (!decision.queued.is_zero()).then_some(decision.queued.as_secs_f64()),
        first_byte: decision.first_byte.map(|time| time.as_secs_f64()),
        duration: decision.whole.as_secs_f64(),
        prompt_tokens: decision.usage.map(|usage| usage.prompt_tokens),
        cached_tokens: decision.usage.and_then(|usage| usage.cached_tokens),
        completion_tokens: decision.usage.and_then(|usage| usage.completion_tokens),
        overlap: decision.overlap,
        key: decision.key.map(|(key, _)| admin.proxy.masked(key)),
        depth: decision.key.and_then(|(_, depth)| depth),
        replica: decision.replica.map(|(_, name)| name.to_string()),
        request_id: decision.request_id.into(),
        failed: decision.failed,
    };
    answer(StatusCode::OK, &Answer { kept: kept.most(), last, decisions: latest.into_iter().map(shown).collect() })
}

#[derive(Serialize)]
struct HotKeys {
    pools: Vec<OfPool>,
}

#[derive(Serialize)]
struct OfPool {
    pool: String,
    replicas: usize,
    keys: Vec<HotKey>,
}

#[derive(Serialize)]
struct HotKey {
    key: String,
    share: f64,
    home: Option<String>,
}

/// `GET /api/v1/hot-keys`.
pub(in super::super) async fn hot_keys(State(admin): State<Admin>) -> Response {
    let (view, rules) = (admin.fleet.view(), admin.proxy.rules());
    let of_pool = |pool: &crate::fleet::Pool| OfPool {
        pool: pool.name().label().to_owned(),
        replicas: pool.members().len(),
        keys: rules
            .chooser
            .hot_keys(pool, MOST_KEYS)
            .into_iter()
            .map(|hot| HotKey { key: admin.proxy.masked(hot.key), share: hot.share, home: hot.home.map(|home| home.name().to_owned()) })
            .collect(),
    };
    let mut pools: Vec<OfPool> = view.pools().map(of_pool).filter(|pool| !pool.keys.is_empty()).take(MOST_POOLS).collect();
    pools.sort_by(|one, other| one.pool.cmp(&other.pool));
    answer(StatusCode::OK, &HotKeys { pools })
}

/// Seconds since the epoch.
pub(super) fn unix(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}
