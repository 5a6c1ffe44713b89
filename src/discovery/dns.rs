//! Replicas as a DNS name has them: the addresses under a name, or the servers of a service. Asked again as the answers' TTL says, within limits.
//!
//! A question that is not answered takes nobody away: the last good answer stays until there is a better one, or until the name has been said to be
//! gone for so long that its addresses may be somebody else's.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Findings;
use crate::pause::pause;
use crate::resolver::{self, Absence, Found, LookupError, Resolver, Target};
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
    /// Whether each replica found is to take nothing new.
    pub drain: bool,
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

/// And where some of what was asked for is not known.
const PARTIAL: &str = "partial";

/// A failure that goes on is told again after this time.
const REMINDER: Duration = Duration::from_secs(60);

/// Whoever asks for one source.
pub struct Watcher {
    /// What it asks for.
    pub source: Source,
    /// Whom it asks.
    pub resolver: Arc<Resolver>,
    /// How long answers hold, as of now.
    pub settings: watch::Receiver<resolver::Settings>,
    /// Where it writes what it finds.
    pub findings: Arc<watch::Sender<Findings>>,
    /// Where it counts.
    pub metrics: Arc<Metrics>,
}

/// What an answered question brought.
struct Answer {
    /// In an order that does not depend on that of the answer.
    addresses: Vec<SocketAddr>,
    /// How long it holds by its own account.
    ttl: Duration,
    /// A host that is not known, or only half, and why.
    missing: Option<(String, LookupError)>,
}

/// What a question may come to, for metrics.
pub fn results() -> Vec<&'static str> {
    [&[OK, PARTIAL], &LookupError::LABELS[..]].concat()
}

impl Watcher {
    /// Asks for ever.
    pub async fn run(mut self) {
        self.metrics.show_source(&self.source.url, &results());
        let mut earlier = HashMap::new();
        let (mut told, mut absence) = (Told::default(), Absence::default());
        let mut backoff = Duration::ZERO;
        loop {
            let answer = self.ask(&mut earlier).await;
            let settings = self.settings.borrow_and_update().clone();
            backoff = backoff.max(settings.min_ttl);
            let now = Instant::now();
            let holds = match answer {
                Ok(answer) => {
                    let is_back = told.answered(now);
                    self.publish(&answer, is_back);
                    if told.is_news_of_part(answer.missing.is_some(), now) {
                        self.complain_of_part(answer.missing.as_ref());
                    }
                    absence = Absence::default();
                    backoff = settings.min_ttl;
                    settings.holds(answer.ttl)
                }
                Err(error) => {
                    self.metrics.looked_up(&self.source.url, error.label(), None);
                    if absence.is_believed(&error, now, &settings) && self.forget(&error, settings.forget_after) {
                        earlier.clear();
                    } else if told.is_news(error.label(), now) {
                        self.complain(&error, told.since_answer(now));
                    }
                    let holds = backoff;
                    backoff = (2 * backoff).min(LONGEST_BACKOFF.max(settings.min_ttl));
                    holds
                }
            };
            tokio::select! {
                () = pause(holds) => {}
                // An answer may hold for less now. Without a sender nothing changes any more.
                Ok(()) = self.settings.changed() => {}
            }
        }
    }

    /// Where the replicas are.
    async fn ask(&self, earlier: &mut HashMap<String, Found>) -> Result<Answer, LookupError> {
        let (targets, mut ttl) = match &self.source.question {
            Question::Addresses { host, port } => (vec![Target { host: host.clone(), port: *port }], Duration::MAX),
            Question::Service(name) => self.resolver.services(name).await?,
        };
        let mut hosts: Vec<&str> = targets.iter().map(|target| target.host.as_str()).collect();
        hosts.dedup();
        let mut found: HashMap<String, Found> = HashMap::new();
        let mut outcome = Err(LookupError::Empty);
        let mut missing = None;
        for (host, answer) in self.addresses(&hosts).await {
            match answer {
                Ok(answer) => {
                    ttl = ttl.min(answer.ttl);
                    missing = missing.or_else(|| Some((host.clone(), answer.missing.clone()?)));
                    let answer = answer.or_earlier(earlier.get(&host));
                    found.insert(host, answer);
                    outcome = Ok(());
                }
                Err(error) => {
                    // Of one among several servers of a service: what was known of it stays, unless it is known to be gone.
                    if !error.is_certain()
                        && let Some(answer) = earlier.get(&host)
                    {
                        found.insert(host.clone(), answer.clone());
                    }
                    ttl = Duration::ZERO;
                    missing = missing.or_else(|| Some((host, error.clone())));
                    outcome = match outcome {
                        // Where somebody may be there, it is not certain that nobody is.
                        Err(known) if !known.is_certain() => Err(known),
                        outcome => outcome.or(Err(error)),
                    };
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
        Ok(Answer { addresses, ttl, missing })
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

    fn publish(&self, answer: &Answer, failed_before: bool) {
        let addresses = &answer.addresses;
        let url = &self.source.url;
        let found: Vec<SocketAddr> = addresses.iter().take(MOST_REPLICAS).copied().collect();
        let count = found.len();
        self.metrics.looked_up(url, if answer.missing.is_some() { PARTIAL } else { OK }, Some(count));
        let mut changed = false;
        self.findings.send_if_modified(|findings| {
            changed = findings.get(url) != Some(&found);
            if changed {
                findings.insert(url.clone(), found);
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

    /// Gives up the last good answer; whether there was one. It is not an empty answer that takes its place: that there are replicas, and which models
    /// they serve, may show again.
    fn forget(&self, error: &LookupError, after: Duration) -> bool {
        let url = &self.source.url;
        let mut lost = 0;
        let changed = self.findings.send_if_modified(|findings| {
            let known = findings.remove(url);
            lost = known.as_ref().map_or(0, Vec::len);
            known.is_some()
        });
        if changed {
            self.metrics.nothing_is_known(url);
            tracing::warn!(
                source = url,
                error = error.to_string(),
                "{url} is gone for {after:?} (dns_forget_after), its last {lost} replicas are given up: {error}"
            );
        }
        changed
    }

    fn complain(&self, error: &LookupError, since_answer: Option<Duration>) {
        let url = &self.source.url;
        let known = self.findings.borrow().get(url).map(Vec::len);
        match (known, since_answer.map(|time| time.as_secs())) {
            (Some(known), Some(age)) => {
                tracing::warn!(
                    source = url,
                    error = error.to_string(),
                    age,
                    "{url} does not resolve, its last {known} replicas, found {age} s ago, stay: {error}"
                );
            }
            _ => tracing::warn!(
                source = url,
                error = error.to_string(),
                "{url} does not resolve, and has no replicas until it does: {error}"
            ),
        }
    }

    fn complain_of_part(&self, missing: Option<&(String, LookupError)>) {
        let url = &self.source.url;
        match missing {
            Some((host, error)) => {
                tracing::warn!(source = url, host, error = error.to_string(), "{url} resolves only in part, for {host}: {error}")
            }
            None => tracing::info!(source = url, "{url} resolves as a whole again"),
        }
    }
}

/// What the log was told of a source, and when: a failure is told when it begins or is another, and now and then while it goes on.
#[derive(Default)]
struct Told {
    /// The last failure, until a question is answered.
    failure: Option<(&'static str, Instant)>,
    answered: Option<Instant>,
    /// Whether the last answer that was told of was one in part.
    in_part: bool,
    /// When that was told.
    part: Option<Instant>,
}

impl Told {
    /// Takes note of an answer; whether there was a failure before.
    fn answered(&mut self, now: Instant) -> bool {
        self.answered = Some(now);
        self.failure.take().is_some()
    }

    fn since_answer(&self, now: Instant) -> Option<Duration> {
        self.answered.map(|answered| now.duration_since(answered))
    }

    /// Whether a failure of this kind is to be told.
    fn is_news(&mut self, kind: &'static str, now: Instant) -> bool {
        let is_news = self.failure.is_none_or(|(last, at)| last != kind || now.duration_since(at) >= REMINDER);
        if is_news {
            self.failure = Some((kind, now));
        }
        is_news
    }

    /// Whether it is to be told that answers are now `in_part`, or as a whole. An old firewall makes each of them so, a slow server every other one:
    /// neither may fill the log.
    fn is_news_of_part(&mut self, in_part: bool, now: Instant) -> bool {
        let is_news = self.in_part != in_part && self.part.is_none_or(|at| now.duration_since(at) >= REMINDER);
        if is_news {
            (self.in_part, self.part) = (in_part, Some(now));
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_hears_of_changes_and_now_and_then_of_what_goes_on() {
        let (mut told, start) = (Told::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(told.is_news("timeout", at(0)));
        assert!(!told.is_news("timeout", at(59)));
        assert!(told.is_news("timeout", at(60)));
        assert!(!told.is_news("timeout", at(61)));
        assert!(told.is_news("not_found", at(62)));
        assert_eq!(told.since_answer(at(62)), None);
        assert!(told.answered(at(70)));
        assert!(!told.answered(at(71)));
        assert!(told.is_news("not_found", at(75)));
        assert_eq!(told.since_answer(at(75)), Some(Duration::from_secs(4)));
    }

    #[test]
    fn answers_in_part_are_told_of_when_they_begin_and_no_more_than_once_a_minute() {
        let (mut told, start) = (Told::default(), Instant::now());
        let mut news = |in_part, seconds| told.is_news_of_part(in_part, start + Duration::from_secs(seconds));
        assert!(!news(false, 0));
        assert!(news(true, 1));
        assert!(!news(true, 500));
        assert!(news(false, 501));
        assert!(!news(true, 502));
        assert!(!news(false, 503));
        assert!(news(true, 561));
    }
}
