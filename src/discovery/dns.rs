//! Replicas as a DNS name has them: the addresses under a name, or the servers of a service. Asked again as the answers' TTL says, within limits.
//!
//! A question that is not answered takes nobody away: the last good answer stays until there is a better one.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Findings;
use crate::fleet::ReplicaSpec;
use crate::resolver::{self, Found, LookupError, Resolver, Target};
use crate::telemetry::Metrics;
use crate::units::Weight;

/// A name behind which there are replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// As written, `dns://vllm:8000`; also its label in metrics.
    pub url: String,
    /// What is asked.
    pub question: Question,
    /// The share of each replica found.
    pub weight: Weight,
    /// The models that each replica found serves; empty where they take whatever they are asked for.
    pub models: Vec<String>,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// The addresses of `host`: A and AAAA.
    Addresses {
        /// A name, to which the system's search list applies.
        host: String,
        /// The port of all replicas.
        port: u16,
    },
    /// The servers of a service, with their ports: SRV. Weights are not used: Kubernetes makes them up from the number of servers, so that each
    /// change would move homes.
    Service(String),
}

/// Replicas of one source, at most; further ones are left out, with a warning.
const MOST_REPLICAS: usize = 1_024;

/// Names of a service's servers that are asked for at one time.
const AT_ONCE: usize = 16;

/// The longest pause after failures in a row, unless `dns_min_ttl` is longer.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

/// What an answered question counts as.
const OK: &str = "ok";

/// Whoever asks for one source.
pub struct Watcher {
    /// What it asks for.
    pub source: Source,
    /// Its place in the findings.
    pub place: usize,
    /// Whom it asks.
    pub resolver: Arc<Resolver>,
    /// How long answers hold.
    pub settings: resolver::Settings,
    /// Where it writes what it finds.
    pub findings: Arc<watch::Sender<Findings>>,
    /// Where it counts.
    pub metrics: Arc<Metrics>,
}

impl Watcher {
    /// Asks for ever.
    pub async fn run(self) {
        self.metrics.show_source(&self.source.url, &[&[OK], &LookupError::LABELS[..]].concat());
        let mut earlier = HashMap::new();
        // The kind of the last failure, until a question is answered.
        let mut failed: Option<&str> = None;
        let mut backoff = self.settings.min_ttl;
        loop {
            let pause = match self.ask(&mut earlier).await {
                Ok((addresses, ttl)) => {
                    self.publish(&addresses, failed.take().is_some());
                    backoff = self.settings.min_ttl;
                    self.settings.holds(ttl)
                }
                Err(error) => {
                    self.metrics.looked_up(&self.source.url, error.label(), None);
                    if failed.replace(error.label()) != Some(error.label()) {
                        self.complain(&error);
                    }
                    let pause = backoff;
                    backoff = (2 * backoff).min(LONGEST_BACKOFF.max(self.settings.min_ttl));
                    pause
                }
            };
            sleep(pause.mul_f64(jitter())).await;
        }
    }

    /// Where the replicas are, in an order that does not depend on the answer's, and how long that holds by its own account.
    async fn ask(&self, earlier: &mut HashMap<String, Found>) -> Result<(Vec<SocketAddr>, Duration), LookupError> {
        let (targets, mut ttl) = match &self.source.question {
            Question::Addresses { host, port } => (vec![Target { host: host.clone(), port: *port }], Duration::MAX),
            Question::Service(name) => self.resolver.services(name).await?,
        };
        let mut hosts: Vec<&str> = targets.iter().map(|target| target.host.as_str()).collect();
        hosts.dedup();
        let mut found: HashMap<String, Found> = HashMap::new();
        let mut outcome = Err(LookupError::Empty);
        for (host, answer) in self.addresses(&hosts).await {
            match answer {
                Ok(answer) => {
                    ttl = ttl.min(answer.ttl);
                    let answer = answer.or_earlier(earlier.get(&host));
                    found.insert(host, answer);
                    outcome = Ok(());
                }
                Err(error) => {
                    // Of one among several servers of a service: what was known of it stays, unless it is known to be gone.
                    if !error.is_certain()
                        && let Some(answer) = earlier.get(&host)
                    {
                        found.insert(host, answer.clone());
                    }
                    ttl = Duration::ZERO;
                    outcome = outcome.or(Err(error));
                }
            }
        }
        outcome?;
        let at = |target: &Target| {
            found
                .get(&target.host)
                .map(Found::addresses)
                .unwrap_or_default()
                .into_iter()
                .map(|ip| SocketAddr::new(ip, target.port))
                .collect::<Vec<_>>()
        };
        let mut addresses: Vec<SocketAddr> = targets.iter().flat_map(at).collect();
        addresses.sort_unstable();
        addresses.dedup();
        *earlier = found;
        Ok((addresses, ttl))
    }

    async fn addresses(&self, hosts: &[&str]) -> Vec<(String, Result<Found, LookupError>)> {
        let mut all = Vec::with_capacity(hosts.len());
        for some in hosts.chunks(AT_ONCE) {
            let mut asked = JoinSet::new();
            for &host in some {
                let (resolver, host) = (Arc::clone(&self.resolver), host.to_owned());
                asked.spawn(async move {
                    let answer = resolver.addresses(&host).await;
                    (host, answer)
                });
            }
            all.extend(asked.join_all().await);
        }
        all
    }

    fn publish(&self, addresses: &[SocketAddr], failed_before: bool) {
        let Source { url, weight, models, .. } = &self.source;
        let spec = |address: &SocketAddr| {
            let identity = address.to_string();
            ReplicaSpec { name: identity.clone(), authority: identity, weight: *weight, models: models.clone() }
        };
        let specs: Vec<ReplicaSpec> = addresses.iter().take(MOST_REPLICAS).map(spec).collect();
        let count = specs.len();
        self.metrics.looked_up(url, OK, Some(count));
        let mut changed = false;
        self.findings.send_if_modified(|findings| {
            changed = findings.get(self.place).is_some_and(|known| known.as_ref() != Some(&specs));
            if changed && let Some(known) = findings.get_mut(self.place) {
                *known = Some(specs);
            }
            changed
        });
        if changed || failed_before {
            tracing::info!(source = url, replicas = count, "{url} has {count} replicas");
        }
        if changed && addresses.len() > count {
            tracing::warn!(source = url, "{url} has {} addresses; only {MOST_REPLICAS} are used", addresses.len());
        }
    }

    fn complain(&self, error: &LookupError) {
        let url = &self.source.url;
        let known = self.findings.borrow().get(self.place).and_then(Option::as_ref).map(Vec::len);
        match known {
            Some(known) => tracing::warn!(source = url, %error, "{url} does not resolve, its last {known} replicas stay: {error}"),
            None => tracing::warn!(source = url, %error, "{url} does not resolve, and has no replicas until it does: {error}"),
        }
    }
}

/// Spreads the questions of many routers over time, and never waits longer than configured.
fn jitter() -> f64 {
    rand::rng().random_range(0.9..=1.0)
}
