//! Faults that a replica shows when it is told to, at `/demo/faults`. docs/demo-replica.md describes them.
//!
//! They are the replica's: what a client or a router makes of them is not its business.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use http_body_util::{BodyExt, Limited};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::App;
use super::cut::{At, Cut};
use super::http;
use super::journal::Entry;
use super::refusal::Refusal;
use super::reply::Reply;

/// The control path.
pub(super) const PATHS: [(&str, &str); 1] = [("/demo/faults", "GET, POST, DELETE")];

/// Control bodies are short.
const MAX_BODY: usize = 64 << 10;

/// Faults that are on at one time.
const MOST_FAULTS: usize = 100;

/// Faults that are switched on, in the order in which they were.
#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<Vec<Fault>>);

#[derive(Clone, Debug)]
struct Fault {
    /// As it was asked for.
    asked: Asked,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Stall,
    Cut(At),
    Status {
        status: StatusCode,
        retry_after: Option<String>,
        body: bool,
    },
    SlowStart {
        until: Instant,
    },
    /// Steps are slowed down in the engine; this is before it.
    Slow {
        delay: Duration,
    },
}

/// A fault as clients write it. Which fields go with which fault is checked in [`Asked::kind`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    fault: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<u64>,
}

/// Each fault, and the fields that go with it besides `times`.
const FAULTS: [(&str, &[&str]); 7] = [
    ("stall", &["health"]),
    ("reset", &["at"]),
    ("truncate", &["at"]),
    ("status", &["status", "retry_after", "body", "health"]),
    ("slow_start", &["seconds"]),
    ("slow", &["factor", "seconds"]),
    ("cache_reset", &[]),
];

impl Asked {
    /// What it means; or what is wrong: a field, its value, and what is allowed.
    fn kind(&self) -> Result<Kind, String> {
        let Some((_, fields)) = FAULTS.iter().find(|(name, _)| *name == self.fault) else {
            let names: Vec<&str> = FAULTS.iter().map(|(name, _)| *name).collect();
            return Err(format!("fault: {:?} is unknown; allowed: {}", self.fault, names.join(", ")));
        };
        let given = [
            ("at", self.at.is_some()),
            ("status", self.status.is_some()),
            ("retry_after", self.retry_after.is_some()),
            ("body", self.body.is_some()),
            ("seconds", self.seconds.is_some()),
            ("factor", self.factor.is_some()),
            ("health", self.health.is_some()),
        ];
        if let Some((name, _)) = given.iter().find(|(name, given)| *given && !fields.contains(name)) {
            let allowed = [fields, &["times"][..]].concat().join(", ");
            return Err(format!("{name}: does not go with the fault {}; allowed: {allowed}", self.fault));
        }
        if self.times == Some(0) {
            return Err("times: 0 is out of range; allowed: 1 or more".into());
        }
        match self.fault.as_str() {
            "stall" => Ok(Kind::Stall),
            "reset" => Ok(Kind::Cut(self.reset_at()?)),
            "truncate" => match self.at.as_ref().map_or(Some(1), Value::as_u64) {
                Some(events) => Ok(Kind::Cut(At::Clean(usize::try_from(events).unwrap_or(usize::MAX)))),
                None => Err(format!("at: {} is not allowed; allowed: a number of events", self.at.clone().unwrap_or_default())),
            },
            "status" => match self.status.map(StatusCode::from_u16) {
                Some(Ok(status)) if status.as_u16() >= 400 => {
                    Ok(Kind::Status { status, retry_after: self.retry_after.clone(), body: self.body.unwrap_or(true) })
                }
                _ => Err(format!("status: {} is out of range; allowed: 400 to 999", json!(self.status))),
            },
            "slow_start" => Ok(Kind::SlowStart { until: Instant::now() + self.seconds()? }),
            // Steps are everybody's, so no request is its last.
            "slow" if self.factor.is_some() && self.times.is_some() => {
                Err("times: does not go with factor, which lasts until DELETE; allowed: times with seconds".into())
            }
            "slow" => match self.factor.unwrap_or(1.0) {
                0.001..=1_000.0 if self.factor.or(self.seconds).is_some() => Ok(Kind::Slow { delay: self.seconds()? }),
                factor if self.factor.is_some() => Err(format!("factor: {factor} is out of range; allowed: 0.001 to 1000")),
                _ => Err("factor: it is missing; allowed: 0.001 to 1000, or seconds instead".into()),
            },
            // `cache_reset`: it is done at once, and not kept.
            _ => Ok(Kind::Slow { delay: Duration::ZERO }),
        }
    }

    fn reset_at(&self) -> Result<At, String> {
        match self.at.as_ref() {
            None => Ok(At::BeforeHead),
            Some(Value::String(at)) if at == "connect" => Ok(At::BeforeHead),
            Some(Value::String(at)) if at == "head" => Ok(At::Event(0)),
            Some(Value::String(at)) if at == "first_event" => Ok(At::Event(1)),
            Some(Value::Number(events)) if events.is_u64() => {
                Ok(At::Event(usize::try_from(events.as_u64().unwrap_or(0)).unwrap_or(usize::MAX)))
            }
            Some(at) => Err(format!("at: {at} is not allowed; allowed: \"connect\", \"head\", \"first_event\", or a number of events")),
        }
    }

    fn seconds(&self) -> Result<Duration, String> {
        match self.seconds.unwrap_or(0.0) {
            seconds @ 0.0..=86_400.0 => Ok(Duration::from_secs_f64(seconds)),
            seconds => Err(format!("seconds: {seconds} is out of range; allowed: 0 to 86400")),
        }
    }
}

impl Faults {
    /// What a health check is told, if not that all is well.
    pub(super) async fn health(&self) -> Option<Reply> {
        if self.loading().is_some() {
            return Some(Reply::empty(StatusCode::SERVICE_UNAVAILABLE));
        }
        let fault = self.state().iter().find(|fault| fault.asked.health == Some(true)).map(|fault| fault.kind.clone())?;
        match fault {
            Kind::Status { status, retry_after, .. } => Some(with_retry_after(Reply::empty(status), retry_after)),
            _ => std::future::pending().await,
        }
    }

    /// Until when a slow start lasts, if one is on.
    fn loading(&self) -> Option<Instant> {
        let now = Instant::now();
        self.state().iter().find_map(|fault| match fault.kind {
            Kind::SlowStart { until } if until > now => Some(until),
            _ => None,
        })
    }

    /// What happens to the request that comes now: what slows it down, and then the first of what ends it. Each counts as one of its times.
    fn take(&self) -> Vec<Kind> {
        let mut taken = Vec::new();
        let mut ended = false;
        self.state().retain_mut(|fault| {
            if ended || matches!(fault.kind, Kind::SlowStart { .. }) {
                return true;
            }
            taken.push(fault.kind.clone());
            ended = !matches!(fault.kind, Kind::Slow { .. });
            match &mut fault.asked.times {
                None => true,
                Some(left) => {
                    *left -= 1;
                    *left > 0
                }
            }
        });
        taken
    }

    fn show(&self) -> Value {
        let now = Instant::now();
        let mut state = self.state();
        state.retain(|fault| !matches!(fault.kind, Kind::SlowStart { until } if until <= now));
        json!(state.iter().map(|fault| &fault.asked).collect::<Vec<_>>())
    }

    fn state(&self) -> MutexGuard<'_, Vec<Fault>> {
        // Nothing panics while it holds this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs an inference request, and what faults do to it.
pub(super) async fn around<F: Future<Output = Reply>>(app: &App, path: &str, run: impl FnOnce(Entry) -> F) -> Reply {
    let mut entry = app.journal.begin(path);
    while let Some(until) = app.faults.loading() {
        sleep_until(until).await;
    }
    let mut cut = None;
    for kind in app.faults.take() {
        match kind {
            Kind::Slow { delay } => sleep(delay).await,
            Kind::Stall => std::future::pending().await,
            Kind::Cut(At::BeforeHead) => return Reply::new(StatusCode::OK, None, Body::new(Cut::now())),
            Kind::Cut(at) => cut = Some(at),
            Kind::Status { status, retry_after, body } => {
                entry.refuse();
                let kind = if status.is_client_error() { "BadRequestError" } else { "InternalServerError" };
                let refusal = Refusal { status, kind, ..Refusal::bad("A fault was asked for at /demo/faults.") };
                let reply = if body { http::refused(&refusal, path == "/v1/messages") } else { Reply::empty(status) };
                return with_retry_after(reply, retry_after);
            }
            Kind::SlowStart { .. } => {}
        }
    }
    let run = pin!(run(entry));
    let reply = run.await;
    match cut {
        Some(at) => reply.cut(at),
        None => reply,
    }
}

/// `/demo/faults` itself.
pub(super) async fn control(app: &App, request: Request) -> Reply {
    match request.method().as_str() {
        "POST" => match Limited::new(request.into_body(), MAX_BODY).collect().await {
            Ok(body) => match switch_on(app, &body.to_bytes()) {
                Ok(shown) => Reply::json(&shown),
                Err(problem) => Reply::json(&json!({ "error": problem })).status(StatusCode::BAD_REQUEST),
            },
            Err(error) => Reply::json(&json!({"error": error.to_string()})).status(StatusCode::BAD_REQUEST),
        },
        "DELETE" => {
            app.faults.state().clear();
            app.engine.slow_down(1.0);
            Reply::json(&app.faults.show())
        }
        _ => Reply::json(&app.faults.show()),
    }
}

fn switch_on(app: &App, body: &[u8]) -> Result<Value, String> {
    let asked: Asked = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let kind = asked.kind()?;
    if asked.fault == "cache_reset" {
        return if app.engine.reset_cache() { Ok(app.faults.show()) } else { Err("cache_reset: not while requests run".into()) };
    }
    let factor = asked.factor;
    {
        let mut faults = app.faults.state();
        if faults.len() >= MOST_FAULTS {
            return Err(format!("{} faults are on; allowed: {MOST_FAULTS}; DELETE clears them", faults.len()));
        }
        faults.push(Fault { asked, kind });
    }
    if let Some(factor) = factor {
        app.engine.slow_down(factor);
    }
    Ok(app.faults.show())
}

fn with_retry_after(reply: Reply, retry_after: Option<String>) -> Reply {
    match retry_after {
        Some(value) => reply.with(RETRY_AFTER, &value),
        None => reply,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<Kind, &str>) {
        let asked: Result<Asked, _> = serde_json::from_str(text);
        let kind = asked.map_err(|error| error.to_string()).and_then(|asked| asked.kind());
        match (kind, expected) {
            (Ok(kind), Ok(expected)) => assert_eq!(kind, expected, "{text}"),
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{text}: {error}"),
            (kind, expected) => panic!("{text}: {kind:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn faults_are_read_and_their_errors_are_clear() {
        check(r#"{"fault": "stall", "health": true}"#, Ok(Kind::Stall));
        check(r#"{"fault": "reset"}"#, Ok(Kind::Cut(At::BeforeHead)));
        check(r#"{"fault": "reset", "at": "head"}"#, Ok(Kind::Cut(At::Event(0))));
        check(r#"{"fault": "reset", "at": 3, "times": 2}"#, Ok(Kind::Cut(At::Event(3))));
        check(r#"{"fault": "truncate", "at": 2}"#, Ok(Kind::Cut(At::Clean(2))));
        let busy = Kind::Status { status: StatusCode::SERVICE_UNAVAILABLE, retry_after: Some("1".into()), body: true };
        check(r#"{"fault": "status", "status": 503, "retry_after": "1"}"#, Ok(busy));
        check(r#"{"fault": "slow", "seconds": 0.5}"#, Ok(Kind::Slow { delay: Duration::from_millis(500) }));
        check(r#"{"fault": "dies"}"#, Err("fault: \"dies\" is unknown; allowed: stall, reset"));
        check(r#"{"fault": "reset", "at": "tail"}"#, Err("at: \"tail\" is not allowed; allowed: \"connect\""));
        check(r#"{"fault": "stall", "at": "head"}"#, Err("at: does not go with the fault stall; allowed: health, times"));
        check(r#"{"fault": "status", "status": 200}"#, Err("status: 200 is out of range; allowed: 400 to 999"));
        check(r#"{"fault": "status"}"#, Err("status: null is out of range"));
        check(r#"{"fault": "slow", "factor": 2, "times": 1}"#, Err("times: does not go with factor, which lasts until DELETE"));
        check(r#"{"fault": "slow"}"#, Err("factor: it is missing"));
        check(r#"{"fault": "slow", "factor": 0}"#, Err("factor: 0 is out of range"));
        check(r#"{"fault": "slow_start", "seconds": -1}"#, Err("seconds: -1 is out of range; allowed: 0 to 86400"));
        check(r#"{"fault": "stall", "times": 0}"#, Err("times: 0 is out of range"));
        check(r#"{"fault": "stall", "time": 1}"#, Err("unknown field `time`, expected one of `fault`, `at`"));
    }
}
