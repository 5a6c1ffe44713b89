//! What the router answers itself: its own health, the models of all replicas, the load of all replicas.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use serde_json::value::RawValue;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Proxy;
use super::error::ProxyError;
use super::response::{Body, Response};
use crate::fleet::Replica;
use crate::request::Surface;

/// A replica that does not answer within this time is left out.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest list of models that is read.
const MAX_ANSWER: usize = 16 << 20;

/// A replica's answer to a question of the router's; `None` where none came.
type Told = Option<(StatusCode, Bytes)>;

/// The answer to a request on one of the router's own surfaces; `None` on all others.
pub(super) async fn answer(proxy: &Proxy, surface: Surface, head: &Parts) -> Option<Result<Response, ProxyError>> {
    let authorization = head.headers.get(AUTHORIZATION);
    match surface {
        Surface::Health | Surface::Ping => Some(health(proxy)),
        Surface::Models => Some(models(ask_all(proxy, "/v1/models", authorization).await)),
        Surface::Load => Some(Ok(load(ask_all(proxy, "/load", authorization).await))),
        _ => None,
    }
}

/// 200 while a replica can be used and the router is not about to stop.
fn health(proxy: &Proxy) -> Result<Response, ProxyError> {
    if *proxy.parties.draining.borrow() {
        Err(ProxyError::Draining)
    } else if proxy.parties.fleet.view().can_serve() {
        Ok(Response::new(Body::empty()))
    } else {
        Err(ProxyError::NoReplica)
    }
}

/// The union of what the replicas list, each object kept as the replica wrote it; of several with one id the first.
fn models(told: Vec<(Arc<Replica>, Told)>) -> Result<Response, ProxyError> {
    #[derive(serde::Deserialize)]
    struct List<'a> {
        #[serde(borrow)]
        data: Vec<&'a RawValue>,
    }
    #[derive(serde::Deserialize)]
    struct Model {
        id: String,
    }
    let (mut union, mut ids, mut refusal, mut any) = (Vec::new(), HashSet::new(), None, false);
    for (status, body) in told.iter().filter_map(|(_, told)| told.as_ref()) {
        if !status.is_success() {
            refusal.get_or_insert((*status, body));
            continue;
        }
        let Ok(list) = serde_json::from_slice::<List<'_>>(body) else { continue };
        any = true;
        for object in list.data {
            let new = serde_json::from_str::<Model>(object.get()).is_ok_and(|model| ids.insert(model.id));
            if new {
                union.push(object.get());
            }
        }
    }
    match refusal {
        // Nobody lists anything, and somebody says why (as for a wrong API key): the client should know.
        Some((status, body)) if !any => Ok(json(status, body.clone())),
        _ if !any => Err(ProxyError::NoReplica),
        _ => Ok(json(StatusCode::OK, format!(r#"{{"object":"list","data":[{}]}}"#, union.join(",")))),
    }
}

/// The sum of what runs on the replicas: what each says, or what this router has there, whichever is more.
fn load(told: Vec<(Arc<Replica>, Told)>) -> Response {
    #[derive(serde::Deserialize)]
    struct Load {
        server_load: u64,
    }
    let sum = told
        .iter()
        .map(|(replica, told)| {
            let said = told.as_ref().and_then(|(_, body)| serde_json::from_slice::<Load>(body).ok());
            // An engine that does not track its load says 0.
            said.map_or(0, |load| load.server_load).max(replica.outstanding())
        })
        .fold(0, u64::saturating_add);
    json(StatusCode::OK, format!(r#"{{"server_load":{sum}}}"#))
}

fn json(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Asks every replica that can be used, all at once, with the caller's credentials.
async fn ask_all(proxy: &Proxy, path: &'static str, authorization: Option<&HeaderValue>) -> Vec<(Arc<Replica>, Told)> {
    // Dropped with this future, when the client leaves: then nobody is asked any longer.
    let mut answers = JoinSet::new();
    let mut told: Vec<(Arc<Replica>, Told)> = Vec::new();
    // The view is given back before anybody is waited for.
    {
        let view = proxy.parties.fleet.view();
        let Some(pool) = view.pool(None) else { return Vec::new() };
        let asked = pool.eligible(&[], Instant::now());
        for (index, replica) in pool.members().iter().enumerate() {
            told.push((Arc::clone(replica), None));
            if let (true, Some(upstream)) = (asked[index], view.upstream(replica)) {
                let (upstream, authorization) = (Arc::clone(upstream), authorization.cloned());
                answers.spawn(async move { (index, timeout(PATIENCE, upstream.get(path, authorization, MAX_ANSWER)).await) });
            }
        }
    }
    while let Some(answer) = answers.join_next().await {
        if let Ok((index, Ok(Ok(answer)))) = answer {
            told[index].1 = Some(answer);
        }
    }
    told
}
