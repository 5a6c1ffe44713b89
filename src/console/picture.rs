//! What the API says, as far as it is shown.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::try_join;

use super::Client;

/// One look at a router.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Picture {
    pub(super) overview: Overview,
    pub(super) fleet: Fleet,
    pub(super) hot_keys: HotKeys,
    pub(super) decisions: Decisions,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Overview {
    pub(super) version: String,
    pub(super) started: f64,
    pub(super) now: f64,
    pub(super) strategy: String,
    pub(super) draining: bool,
    pub(super) counted: bool,
    pub(super) requests: Requests,
    pub(super) queue: Queue,
    pub(super) flow: Flow,
    pub(super) savings: Savings,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Requests {
    pub(super) total: u64,
    pub(super) in_flight: u64,
    pub(super) by_status: Map<String, Value>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Queue {
    pub(super) requests: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Flow {
    pub(super) reasons: Vec<String>,
    pub(super) counts: Vec<Vec<u64>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Savings {
    pub(super) text: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Fleet {
    pub(super) recent_requests: u64,
    pub(super) replicas: Vec<Replica>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Replica {
    pub(super) name: String,
    pub(super) state: Option<String>,
    pub(super) health: Option<String>,
    pub(super) outstanding: u64,
    pub(super) threshold: Option<u64>,
    pub(super) recent: Recent,
    pub(super) engine: Option<Engine>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Recent {
    pub(super) share: f64,
    pub(super) failed: u64,
    pub(super) cached_share: Option<f64>,
    pub(super) first_byte_p50: Option<f64>,
    pub(super) first_byte_p90: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Engine {
    pub(super) running: Option<u64>,
    pub(super) waiting: Option<u64>,
    pub(super) kv_cache_usage: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct HotKeys {
    pub(super) pools: Vec<HotPool>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct HotPool {
    pub(super) replicas: u64,
    pub(super) keys: Vec<HotKey>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct HotKey {
    pub(super) key: String,
    pub(super) share: f64,
    pub(super) home: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Decisions {
    pub(super) kept: u64,
    pub(super) decisions: Vec<Decision>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Decision {
    pub(super) time: f64,
    pub(super) request_id: String,
    pub(super) status: u64,
    pub(super) error: Option<String>,
    pub(super) replica: Option<String>,
    pub(super) reason: String,
    pub(super) why: String,
    pub(super) first_byte: Option<f64>,
}

impl Picture {
    /// The state of a replica in a word.
    pub(super) fn state(replica: &Replica) -> &str {
        replica.state.as_deref().unwrap_or("leaving")
    }

    /// How many replicas are up.
    pub(super) fn up(&self) -> usize {
        self.fleet.replicas.iter().filter(|replica| Self::state(replica) == "up").count()
    }

    /// What the router is like, in a line.
    pub(super) fn headline(&self) -> String {
        let Overview { version, strategy, requests, queue, started, now, .. } = &self.overview;
        let bad = requests.by_status.get("5xx").and_then(Value::as_u64).unwrap_or(0);
        let bad = if bad > 0 { format!(", {bad} ended with 5xx") } else { String::new() };
        let counted =
            if self.overview.counted { format!("{} requests", requests.total) } else { "requests not counted (metrics: false)".to_owned() };
        let stopping = if self.overview.draining { "IT IS STOPPING; " } else { "" };
        format!(
            "{stopping}{} of {} replicas up; {counted}{bad}, {} in flight, {} waiting; {strategy}, up for {}, {version}",
            self.up(),
            self.fleet.replicas.len(),
            requests.in_flight,
            queue.requests,
            span(now - started),
        )
    }

    /// Each reason with what it had in the last minutes, where that is something.
    pub(super) fn reasons(&self) -> Vec<(&str, u64)> {
        let Flow { reasons, counts, .. } = &self.overview.flow;
        let sum = |place: usize| counts.iter().filter_map(|step| step.get(place)).sum();
        let all = reasons.iter().enumerate().map(|(place, reason)| (reason.as_str(), sum(place)));
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// Requests that ended in each step, the oldest first.
    pub(super) fn steps(&self) -> Vec<u64> {
        self.overview.flow.counts.iter().map(|step| step.iter().sum()).collect()
    }

    /// The hottest key of all pools, in a sentence, where there is one.
    pub(super) fn hottest(&self) -> Option<String> {
        let keys = self.hot_keys.pools.iter().filter_map(|pool| Some((pool, pool.keys.first()?)));
        let (pool, key) = keys.max_by(|one, other| one.1.share.total_cmp(&other.1.share))?;
        let too_much = if pool.replicas > 1 && key.share > 1.0 / pool.replicas as f64 { ", more than one replica's share" } else { "" };
        let home = key.home.as_deref().map_or(String::new(), |home| format!(", at home with {home}"));
        Some(format!("Hottest key: {}, {} of the last requests at least{too_much}{home}", key.key, percent(Some(key.share))))
    }
}

/// What the API says, as it is.
pub(super) async fn look(client: &Client) -> Result<Value> {
    let (overview, fleet, hot_keys, decisions) =
        try_join!(client.get("overview"), client.get("fleet"), client.get("hot-keys"), client.get("decisions?limit=50"))?;
    Ok(serde_json::json!({"overview": overview, "fleet": fleet, "hot_keys": hot_keys, "decisions": decisions}))
}

/// The same, read.
pub(super) async fn take(client: &Client) -> Result<Picture> {
    let said = look(client).await?;
    serde_json::from_value(said).with_context(|| format!("the router at {} is of another version, and says something else", client.url()))
}

/// 0.1234 is 12 %.
pub(super) fn percent(share: Option<f64>) -> String {
    match share.map(|share| share * 100.0) {
        None => "-".to_owned(),
        Some(value) if value > 0.0 && value < 10.0 => format!("{value:.1} %"),
        Some(value) => format!("{value:.0} %"),
    }
}

/// Seconds as people read them.
pub(super) fn seconds(time: Option<f64>) -> String {
    match time {
        None => "-".to_owned(),
        Some(time) if time < 0.0995 => format!("{:.1} ms", time * 1e3),
        Some(time) if time < 1.0 => format!("{:.0} ms", time * 1e3),
        Some(time) => format!("{time:.2} s"),
    }
}

/// 75 s is 1 min.
fn span(seconds: f64) -> String {
    let all = seconds.max(0.0) as u64;
    match (all / 86_400, all / 3_600 % 24, all / 60 % 60) {
        (0, 0, 0) => format!("{all} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}
