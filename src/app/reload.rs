//! Reads the configuration again: when the file has changed, on SIGHUP, and when the API asks; one after another, whole or not at all.
//!
//! The file is looked at rather than watched: what counts is what it holds, through links of any kind, as Kubernetes changes a ConfigMap by swapping
//! one. What is read twice alike is taken, so that a file which is being written is not.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::Level;

use super::roster::{Listed, Order};
use super::{ADMIN_CONNECTIONS, choosing, rules};
use crate::admin::{self, Effective, Levels, NoLog, Order as Asked, Reloaded};
use crate::config::{Config, ConfigErrors, Contents, Reading};
use crate::proxy::Proxy;
use crate::routing::StrategyName;
use crate::telemetry::{self, Log, Metrics, Reload};
use crate::{live, resolver, scrape, server};

/// Where a changed configuration goes.
pub(super) struct Live {
    pub(super) roster: mpsc::Sender<Order>,
    pub(super) proxy: Arc<Proxy>,
    pub(super) traffic: watch::Sender<server::Settings>,
    pub(super) admin: watch::Sender<server::Settings>,
    pub(super) access: watch::Sender<admin::Settings>,
    pub(super) effective: watch::Sender<Effective>,
    pub(super) dns: watch::Sender<resolver::Settings>,
    pub(super) engine_metrics: watch::Sender<scrape::Settings>,
    /// `None` where somebody else's log is written to.
    pub(super) log: Option<Arc<Log>>,
}

/// The task that reads the configuration again.
pub(super) struct Reloader {
    /// What is in force.
    pub(super) config: Config,
    /// Where it comes from; `None` where it was made by a program.
    pub(super) reading: Option<Reading>,
    pub(super) live: Live,
    pub(super) metrics: Arc<Metrics>,
    pub(super) requests: mpsc::Receiver<Asked>,
    /// From which level on is logged, where somebody has asked for another one than is configured.
    pub(super) log_level: Option<Level>,
    /// Whether the file was refused when it was last read.
    pub(super) is_refused: bool,
}

/// Two looks at a file: what was acted upon, and what was seen last if that is something else.
struct Seen {
    taken: Option<Contents>,
    new: Option<Contents>,
}

impl Seen {
    /// Takes note of what the file holds; whether that is to be acted upon.
    fn is_due(&mut self, now: &Contents) -> bool {
        if self.taken.as_ref() == Some(now) {
            self.new = None;
            return false;
        }
        let is_settled = self.new.as_ref() == Some(now);
        self.new = Some(now.clone());
        is_settled
    }

    fn take(&mut self, contents: Contents) {
        *self = Self { taken: Some(contents), new: None };
    }
}

impl Reloader {
    /// Reads again whenever there is a reason to.
    pub(super) async fn run(mut self) {
        let mut seen = Seen { taken: self.reading.as_ref().and_then(|reading| reading.contents.clone()), new: None };
        loop {
            let interval = self.config.reload_interval;
            let watched = self.reading.as_ref().is_some_and(|reading| reading.path().is_some()) && !interval.is_zero();
            tokio::select! {
                asked = self.requests.recv() => {
                    // Without anybody who could ask, the router is gone.
                    let Some(asked) = asked else { return };
                    let tell = match asked {
                        Asked::Reload(tell) => tell,
                        Asked::LogLevel(change, tell) => {
                            let _ = tell.send(self.levels(change));
                            continue;
                        }
                    };
                    let outcome = match self.look().await {
                        Some(contents) => {
                            seen.take(contents.clone());
                            self.reload(&contents).await
                        }
                        None => {
                            tracing::warn!("there is no configuration file to read again; flags and variables change with a restart");
                            Reloaded::NoFile
                        }
                    };
                    // Whoever asked may have gone.
                    let _ = tell.send(outcome);
                }
                () = sleep(interval.max(Duration::from_millis(1))), if watched => {
                    if let Some(contents) = self.look().await && seen.is_due(&contents) {
                        seen.take(contents.clone());
                        self.reload(&contents).await;
                    }
                }
            }
        }
    }

    /// From which level on is logged, changed first where that is asked for. Another level holds until the configured one changes.
    fn levels(&mut self, change: Option<Option<Level>>) -> Result<Levels, NoLog> {
        let configured = self.config.telemetry.level;
        match (change, self.live.log.is_some()) {
            (Some(_), false) => return Err(NoLog),
            (Some(level), true) => {
                self.log_level = level.filter(|&level| level != configured);
                let level = self.log_level.unwrap_or(configured);
                self.follow_log();
                tracing::info!(%level, %configured, "log level {level} by the API; {configured} is configured");
            }
            (None, _) => {}
        }
        Ok(Levels { level: self.log_level.unwrap_or(configured), configured })
    }

    fn follow_log(&self) {
        if let Some(log) = &self.live.log {
            let configured = &self.config.telemetry;
            log.follow(&telemetry::Settings { level: self.log_level.unwrap_or(configured.level), ..configured.clone() });
        }
    }

    /// What the file holds. A disk may take its time, which no request waits for.
    async fn look(&self) -> Option<Contents> {
        let reading = self.reading.clone()?;
        spawn_blocking(move || reading.look()).await.ok().flatten()
    }

    async fn reload(&mut self, contents: &Contents) -> Reloaded {
        let Some(reading) = &self.reading else { return Reloaded::NoFile };
        let outcome = match reading.again(contents) {
            Ok(next) => self.follow(&next).await,
            Err(errors) => Err(errors.lines()),
        };
        match outcome {
            Ok(Reloaded::Done { applied, needs_restart }) => {
                if std::mem::take(&mut self.is_refused) {
                    tracing::info!("the configuration file is right again");
                }
                self.metrics.reloaded(if applied.is_empty() { Reload::Unchanged } else { Reload::Applied });
                tell(&applied, &needs_restart);
                Reloaded::Done { applied, needs_restart }
            }
            Ok(other) => other,
            Err(errors) => {
                self.is_refused = true;
                self.metrics.reloaded(Reload::Refused);
                let count = errors.len();
                tracing::error!(errors = count, "the configuration is not reloaded and nothing has changed; errors: {count}");
                for error in &errors {
                    tracing::error!("{error}");
                }
                Reloaded::Refused(errors)
            }
        }
    }

    /// Puts `next` in force, as far as that goes without a restart. An error changes nothing.
    async fn follow(&mut self, next: &Config) -> Result<Reloaded, Vec<String>> {
        let (config, changes) = self.config.follow(next).map_err(|errors: ConfigErrors| errors.lines())?;
        if !changes.applied.is_empty() {
            // First what can fail, and what has to be there before any request counts on it.
            let (tell, told) = oneshot::channel();
            let gone = |_| vec!["the router is shutting down".to_owned()];
            self.live.roster.send((listed(&config), tell)).await.map_err(|_| gone(()))?;
            told.await.map_err(|_| gone(()))?.map_err(|error| vec![error.to_string()])?;
            let chooser = (choosing(&config) == choosing(&self.config)).then(|| Arc::clone(&self.live.proxy.rules().chooser));
            self.live.proxy.follow(rules(&config, chooser));
            replace(&self.live.traffic, config.server.clone());
            replace(&self.live.admin, admin_server(&config));
            replace(&self.live.access, config.access.clone());
            replace(&self.live.dns, config.resolver.clone());
            replace(&self.live.engine_metrics, config.engine_metrics.clone());
            self.metrics.show_limits(&limits(&config));
            self.metrics.decisions().keep(config.metrics.recent_decisions);
            self.live.effective.send_modify(|effective| effective.settings = config.settings());
            let before = std::mem::replace(&mut self.config, config);
            if before.telemetry != self.config.telemetry {
                self.log_level = self.log_level.filter(|_| before.telemetry.level == self.config.telemetry.level);
                self.follow_log();
            }
        }
        Ok(Reloaded::Done { applied: changes.applied, needs_restart: changes.needs_restart })
    }
}

/// What `config` says of the fleet.
pub(super) fn listed(config: &Config) -> Listed {
    let Config { replicas, sources, health, upstream, key, .. } = config.clone();
    Listed { replicas, sources, settings: live::Settings { health, upstream, hash_seed: key.hash_seed } }
}

/// The limits whose use is shown beside them; `None` where nothing is limited.
pub(super) fn limits(config: &Config) -> Vec<(&'static str, Option<u64>)> {
    let (admission, waits) = (&config.admission, config.admission.is_on());
    let holds = admission.holds() && config.routing.strategy == StrategyName::CacheAware;
    vec![
        ("max_connections", Some(config.server.max_connections as u64)),
        ("max_buffered_bytes", Some(config.proxy.max_buffered_bytes as u64)),
        ("queue_max_requests", waits.then_some(admission.queue_max_requests as u64)),
        ("queue_max_bytes", (waits || holds).then_some(admission.queue_max_bytes as u64)),
        ("hold_max_requests", holds.then_some(admission.hold_max_requests as u64)),
    ]
}

/// The admin port's share of the server's settings.
pub(super) fn admin_server(config: &Config) -> server::Settings {
    server::Settings { max_connections: ADMIN_CONNECTIONS, ..config.server.clone() }
}

/// Wakes nobody where nothing has changed.
fn replace<T: PartialEq>(place: &watch::Sender<T>, value: T) {
    place.send_if_modified(|old| {
        let is_new = *old != value;
        *old = value;
        is_new
    });
}

/// Says what a reload has changed, by name: a value may be a secret.
fn tell(applied: &[&'static str], needs_restart: &[&'static str]) {
    let (changed, waiting) = (applied.join(", "), needs_restart.join(", "));
    match (applied, needs_restart) {
        ([], []) => tracing::info!("configuration reloaded: nothing has changed"),
        ([], _) => {}
        _ => tracing::info!(changed, "configuration reloaded: {changed}"),
    }
    if applied.contains(&"hash_seed") {
        tracing::warn!("hash_seed has changed: any prompt may have another home now");
    }
    if !needs_restart.is_empty() {
        tracing::warn!(waiting, "configuration: changed in the file, and in force only after a restart: {waiting}");
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;
    use crate::config::Sources;

    /// What a file with this text holds.
    fn contents(text: &str) -> Contents {
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("prefix-router-seen-{}-{number}.yaml", std::process::id()));
        std::fs::write(&path, format!("replicas: [http://a]\n# {text}\n")).unwrap();
        let reading = Reading::new(Sources { file: Some(path.clone()), ..Sources::default() }).unwrap();
        std::fs::remove_file(&path).unwrap();
        reading.contents.unwrap()
    }

    #[test]
    fn what_is_seen_twice_is_taken_once() {
        let [a, b, c] = ["a", "b", "c"].map(contents);
        let mut seen = Seen { taken: Some(a.clone()), new: None };
        for (now, due) in [(&a, false), (&b, false), (&c, false), (&b, false), (&a, false), (&b, false), (&b, true)] {
            assert_eq!(seen.is_due(now), due);
        }
        seen.take(b.clone());
        for (now, due) in [(&b, false), (&b, false), (&a, false), (&a, true)] {
            assert_eq!(seen.is_due(now), due);
        }
    }
}
