//! Every series that the router publishes, each with its labels. All labels come from closed lists, from the configuration, or from the fleet, so
//! that no client can add a series; those of a replica that has left go when nobody can count on it any more.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use prometheus::process_collector::ProcessCollector;
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use super::engine::Engines;
use super::forecasts::Forecasts;
use super::labels::{HoldEnd, Limit, QueueBound, Reload, RetryCause, UpstreamError};
use super::placement::Placement;
use super::requests::Requests;
use crate::fleet::{ByIncarnation, Incarnation, Replica, Snapshot, State};
use crate::request::{Surface, Usage};
use crate::routing::Reason;

/// What a client that left is called in the log; it has a counter of its own.
pub(super) const CLIENT_GONE: &str = "client_gone";

/// What every series' name begins with.
const NAMESPACE: &str = "prefix_router";

/// From the time that an answer takes to the longest that somebody waits by default, and beyond.
const QUEUE_BUCKETS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 180.0, 600.0];

/// The router's metrics.
pub struct Metrics {
    registry: Registry,
    requests: Requests,
    outstanding: IntGaugeVec,
    choices: IntCounterVec,
    retries: IntCounterVec,
    upstream_errors: IntCounterVec,
    client_aborts: IntCounter,
    replica_state: IntGaugeVec,
    errors: IntCounterVec,
    retries_refused: IntCounter,
    queue_requests: IntGauge,
    queue_bytes: IntGauge,
    queue_refused: IntCounterVec,
    queue_seconds: Histogram,
    held_requests: IntGauge,
    held_bytes: IntGauge,
    holds: IntCounterVec,
    limit_hits: IntCounterVec,
    connections: IntGauge,
    buffered: IntGauge,
    lookups: IntCounterVec,
    discovered: IntGaugeVec,
    answered: GaugeVec,
    reloads: IntCounterVec,
    last_reload: Gauge,
    reload_successful: IntGauge,
    pub(super) placement: Placement,
    pub(super) engines: Engines,
    pub(super) forecasts: Forecasts,
    /// The incarnations that are, or were, in the fleet, as long as somebody may count on them.
    shown: Mutex<ByIncarnation<Shown>>,
    /// Their counters, at hand for requests. Those of one that has ended go at the next change of the fleet.
    choices_of: ArcSwap<ByIncarnation<Arc<Choices>>>,
}

/// The counters of one replica's choices, by reason: to look a series up by its labels takes a lock, and three times as long.
///
/// Series must not go while somebody counts on them. They do not: who counts holds the replica, and as long as its incarnation is held its name keeps its
/// series. An incarnation that comes later under that name, while they are there, goes on with them.
type Choices = [IntCounter; Reason::ALL.len()];

/// An incarnation that has series.
struct Shown {
    name: String,
    incarnation: Weak<Incarnation>,
    choices: Arc<Choices>,
}

impl Metrics {
    /// All series at zero.
    pub fn new() -> prometheus::Result<Arc<Self>> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<IntCounterVec> {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<IntGaugeVec> {
            let gauge = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let metrics = Self {
            requests: Requests::new(&registry)?,
            outstanding: gauge("prefix_router_outstanding", "Requests in flight on a replica, counted by this router.", &["replica"])?,
            choices: counter("prefix_router_choices_total", "Choices of a replica by reason.", &["replica", "reason"])?,
            retries: counter("prefix_router_retries_total", "Requests sent once more, by cause.", &["cause"])?,
            upstream_errors: counter("prefix_router_upstream_errors_total", "Failures of replicas by kind.", &["replica", "kind"])?,
            client_aborts: IntCounter::new("prefix_router_client_aborts_total", "Clients that left before their answer's end.")?,
            errors: counter(
                "prefix_router_errors_total",
                "Errors that clients met and the router named (x-prefix-router-error), streams that were cut among them.",
                &["error"],
            )?,
            retries_refused: IntCounter::new("prefix_router_retries_refused_total", "Retries that the budget did not allow.")?,
            limit_hits: counter("prefix_router_limit_hits_total", "Times that a limit was reached, by its setting.", &["limit"])?,
            connections: IntGauge::new("prefix_router_connections", "Connections from clients that are open.")?,
            buffered: IntGauge::new("prefix_router_buffered_bytes", "Bytes that requests' bodies hold, or are to fill.")?,
            replica_state: gauge("prefix_router_replica_state", "1 for the state that a replica is in.", &["replica", "state"])?,
            queue_requests: IntGauge::new("prefix_router_queue_requests", "Requests that wait for a replica with room.")?,
            queue_bytes: IntGauge::new("prefix_router_queue_bytes", "Bytes of the bodies of requests that wait.")?,
            queue_refused: counter(
                "prefix_router_queue_refused_total",
                "Requests that were not let wait, or not any longer, by the bound.",
                &["bound"],
            )?,
            queue_seconds: Histogram::with_opts(
                HistogramOpts::new("prefix_router_queue_seconds", "Time that requests waited, for room or held back, however that ended.")
                    .buckets(QUEUE_BUCKETS.to_vec()),
            )?,
            held_requests: IntGauge::new(
                "prefix_router_held_requests",
                "Requests that are held back while the replica that each should go to has enough to do.",
            )?,
            held_bytes: IntGauge::new("prefix_router_held_bytes", "Bytes of the bodies of requests that are held back.")?,
            holds: counter(
                "prefix_router_holds_total",
                "Requests that were held back while replicas had enough to do, by how that ended.",
                &["end"],
            )?,
            lookups: counter("prefix_router_discovery_lookups_total", "Lookups of a source of replicas by result.", &["source", "result"])?,
            discovered: gauge("prefix_router_discovery_replicas", "Replicas in a source's last good answer, while it holds.", &["source"])?,
            answered: {
                let name = "prefix_router_discovery_last_success_timestamp_seconds";
                let gauge = GaugeVec::new(Opts::new(name, "Time of a source's last good answer, since the epoch."), &["source"])?;
                registry.register(Box::new(gauge.clone()))?;
                gauge
            },
            reloads: counter("prefix_router_config_reloads_total", "Times that the configuration was read again, by result.", &["result"])?,
            last_reload: Gauge::new(
                "prefix_router_config_last_reload_success_timestamp_seconds",
                "When the configuration was last read without an error, since the epoch.",
            )?,
            reload_successful: IntGauge::new(
                "prefix_router_config_last_reload_successful",
                "Whether the configuration was without an error when it was last read.",
            )?,
            placement: Placement::new(&registry)?,
            engines: Engines::new(&registry)?,
            forecasts: Forecasts::new(&registry)?,
            shown: Mutex::default(),
            choices_of: ArcSwap::default(),
            registry: registry.clone(),
        };
        registry.register(Box::new(metrics.client_aborts.clone()))?;
        registry.register(Box::new(metrics.retries_refused.clone()))?;
        registry.register(Box::new(metrics.queue_requests.clone()))?;
        registry.register(Box::new(metrics.queue_bytes.clone()))?;
        registry.register(Box::new(metrics.queue_seconds.clone()))?;
        registry.register(Box::new(metrics.held_requests.clone()))?;
        registry.register(Box::new(metrics.held_bytes.clone()))?;
        registry.register(Box::new(metrics.last_reload.clone()))?;
        registry.register(Box::new(metrics.reload_successful.clone()))?;
        for &result in Reload::ALL {
            metrics.reloads.with_label_values(&[result.label()]);
        }
        // The start has read it as well.
        metrics.read_well();
        registry.register(Box::new(metrics.connections.clone()))?;
        registry.register(Box::new(metrics.buffered.clone()))?;
        registry.register(Box::new(ProcessCollector::new(std::process::id() as i32, NAMESPACE)))?;
        let build = GaugeVec::new(Opts::new("prefix_router_build_info", "1, with the version."), &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        registry.register(Box::new(build))?;
        for &cause in RetryCause::ALL {
            metrics.retries.with_label_values(&[cause.label()]);
        }
        for &end in HoldEnd::ALL {
            metrics.holds.with_label_values(&[end.label()]);
        }
        for &bound in QueueBound::ALL {
            metrics.queue_refused.with_label_values(&[bound.label()]);
        }
        for &limit in Limit::ALL {
            metrics.limit_hits.with_label_values(&[limit.key()]);
        }
        Ok(Arc::new(metrics))
    }

    /// Makes the series of `replicas` visible at zero, so that a dashboard shows them before anything happens. To be called before a request can
    /// reach them: what is not known here may lose its series at any time.
    pub fn show(&self, replicas: &[Arc<Replica>]) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        // Here too, as it may be that nobody asks for the metrics.
        self.sweep(&mut shown, replicas);
        for replica in replicas {
            if shown.contains_key(&replica.incarnation()) {
                continue;
            }
            let choices =
                Arc::new(std::array::from_fn(|index| self.choices.with_label_values(&[replica.name(), Reason::ALL[index].label()])));
            for &kind in UpstreamError::ALL {
                self.upstream_errors.with_label_values(&[replica.name(), kind.label()]);
            }
            shown.insert(replica.incarnation(), Shown { name: replica.name().to_owned(), incarnation: replica.watch(), choices });
        }
        self.choices_of.store(Arc::new(shown.iter().map(|(&number, shown)| (number, Arc::clone(&shown.choices))).collect()));
    }

    /// Makes the series of a source of replicas visible at zero.
    pub fn show_source(&self, source: &str, results: &[&str]) {
        for result in results {
            self.lookups.with_label_values(&[source, result]);
        }
        self.discovered.with_label_values(&[source]);
        self.answered.with_label_values(&[source]);
    }

    /// Removes the series of a source that is not asked any more.
    pub fn hide_source(&self, source: &str, results: &[&str]) {
        for result in results {
            let _ = self.lookups.remove_label_values(&[source, result]);
        }
        let _ = self.discovered.remove_label_values(&[source]);
        let _ = self.answered.remove_label_values(&[source]);
    }

    /// Counts a reload of the configuration.
    pub fn reloaded(&self, result: Reload) {
        self.reloads.with_label_values(&[result.label()]).inc();
        match result {
            Reload::Applied | Reload::Unchanged => self.read_well(),
            Reload::Refused => self.reload_successful.set(0),
        }
    }

    fn read_well(&self) {
        self.reload_successful.set(1);
        self.last_reload.set(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
    }

    /// Counts a lookup of a source; `replicas` where it was answered.
    pub fn looked_up(&self, source: &str, result: &str, replicas: Option<usize>) {
        self.lookups.with_label_values(&[source, result]).inc();
        if let Some(replicas) = replicas {
            self.discovered.with_label_values(&[source]).set(replicas as i64);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.answered.with_label_values(&[source]).set(now.as_secs_f64());
        }
    }

    /// The last good answer of a source holds no more.
    pub fn nothing_is_known(&self, source: &str) {
        self.discovered.with_label_values(&[source]).set(0);
    }

    /// Counts a choice.
    pub fn chosen(&self, replica: &Replica, reason: Reason) {
        match self.choices_of.load().get(&replica.incarnation()) {
            Some(choices) => choices[reason as usize].inc(),
            None => self.choices.with_label_values(&[replica.name(), reason.label()]).inc(),
        }
    }

    /// Counts a further sending.
    pub fn retried(&self, cause: RetryCause) {
        self.retries.with_label_values(&[cause.label()]).inc();
    }

    /// Counts a retry that was not paid for.
    pub fn refused_retry(&self) {
        self.retries_refused.inc();
    }

    /// Shows who waits now: requests, and bytes of their bodies.
    pub fn show_queue(&self, requests: usize, bytes: usize) {
        self.queue_requests.set(i64::try_from(requests).unwrap_or(i64::MAX));
        self.queue_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Counts a request that was not let wait, or not any longer.
    pub fn refused_waiting(&self, bound: QueueBound) {
        self.queue_refused.with_label_values(&[bound.label()]).inc();
    }

    /// Shows who is held back now: requests, and bytes of their bodies.
    pub fn show_held(&self, requests: usize, bytes: usize) {
        self.held_requests.set(i64::try_from(requests).unwrap_or(i64::MAX));
        self.held_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Counts a request that was held back, or for which there was no room.
    pub fn held(&self, end: HoldEnd) {
        self.holds.with_label_values(&[end.label()]).inc();
    }

    /// Takes note of how long a request waited.
    pub(super) fn waited(&self, time: Duration) {
        self.queue_seconds.observe(time.as_secs_f64());
    }

    /// Counts that a limit was reached.
    pub fn hit(&self, limit: Limit) {
        self.limit_hits.with_label_values(&[limit.key()]).inc();
    }

    /// Counts a connection that a client has opened (1) or that has ended (-1).
    pub fn connected(&self, change: i64) {
        self.connections.add(change);
    }

    /// Counts bytes that requests' bodies hold from now on, or (below 0) no longer.
    pub fn buffered(&self, change: i64) {
        self.buffered.add(change);
    }

    /// Counts a failure of a replica.
    pub fn failed(&self, replica: &Replica, kind: UpstreamError) {
        self.upstream_errors.with_label_values(&[replica.name(), kind.label()]).inc();
    }

    /// Counts a request that is over.
    pub(super) fn finished(
        &self,
        of: (Option<Surface>, Option<Reason>),
        status: u16,
        error: Option<&str>,
        first_byte: Option<Duration>,
        whole: Duration,
    ) {
        self.requests.count(of, status, first_byte, whole);
        match error {
            Some(CLIENT_GONE) => self.client_aborts.inc(),
            Some(error) => self.errors.with_label_values(&[error]).inc(),
            None => {}
        }
    }

    /// Counts what an answer said that its request took.
    pub(super) fn used(&self, usage: &Usage) {
        self.requests.used(usage);
    }

    /// The text that Prometheus scrapes. What the fleet itself counts is read at this moment.
    pub fn render(&self, fleet: &Snapshot) -> prometheus::Result<String> {
        // Held to the end: two who scrape at once must not see one another's half-written picture.
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, count) in self.sweep(&mut shown, fleet.replicas()) {
            self.outstanding.with_label_values(&[&name]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        for replica in fleet.replicas() {
            for &state in State::ALL {
                let now = i64::from(fleet.state(replica) == Some(state));
                self.replica_state.with_label_values(&[replica.name(), state.label()]).set(now);
            }
        }
        self.placement.refresh(fleet, &self.forecasts);
        self.engines.refresh(fleet, Instant::now());
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        drop(shown);
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Removes the series of replicas that have left: the state at once, and what is counted when nobody can count there any more. Returns what is in
    /// flight under each name that is left.
    fn sweep(&self, shown: &mut ByIncarnation<Shown>, present: &[Arc<Replica>]) -> HashMap<String, u64> {
        let mut outstanding: HashMap<String, u64> = HashMap::new();
        let mut ended = Vec::new();
        shown.retain(|_, shown| {
            let Some(incarnation) = shown.incarnation.upgrade() else {
                ended.push(std::mem::take(&mut shown.name));
                return false;
            };
            // A replica that has left and one that came under its name share the series.
            *outstanding.entry(shown.name.clone()).or_default() += incarnation.outstanding();
            true
        });
        let present: HashSet<&str> = present.iter().map(|replica| replica.name()).collect();
        let left = outstanding.keys().chain(&ended).filter(|name| !present.contains(name.as_str()));
        for (name, state) in left.flat_map(|name| State::ALL.iter().map(move |&state| (name, state))) {
            // Fails where there is none any more, which is as it should be.
            let _ = self.replica_state.remove_label_values(&[name, state.label()]);
        }
        for name in ended.iter().filter(|name| !outstanding.contains_key(*name) && !present.contains(name.as_str())) {
            self.forget(name);
        }
        outstanding
    }

    fn forget(&self, name: &str) {
        self.forecasts.forget(name);
        let _ = self.outstanding.remove_label_values(&[name]);
        for &reason in Reason::ALL {
            let _ = self.choices.remove_label_values(&[name, reason.label()]);
        }
        for &kind in UpstreamError::ALL {
            let _ = self.upstream_errors.remove_label_values(&[name, kind.label()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Fleet, ReplicaSpec, health};
    use crate::units::Weight;

    #[test]
    fn lists_are_in_the_order_of_their_kinds() {
        assert!(Surface::ALL.iter().enumerate().all(|(index, &surface)| surface as usize == index));
        assert!(Reason::ALL.iter().enumerate().all(|(index, &reason)| reason as usize == index));
    }

    /// The lines of `text` that tell of a series `name` which has a value other than 0.
    fn used<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        text.lines().filter(|line| line.starts_with(name) && !line.ends_with(" 0")).collect()
    }

    #[test]
    fn what_was_counted_on_a_replica_goes_with_the_last_that_can_count_there() {
        let spec = || ReplicaSpec {
            name: "a".to_owned(),
            authority: "a:80".to_owned(),
            weight: Weight::clamped(1),
            models: Vec::new(),
            drain: false,
        };
        let metrics = Metrics::new().expect("metrics");
        let mut fleet = Fleet::new(Vec::new(), health::Settings::default(), 0);
        // A replica that comes under the name "a", and what may still be counted on those before it.
        let mut join = |specs: Vec<ReplicaSpec>| {
            let next = Arc::new(fleet.membership().next(specs, true));
            metrics.show(next.replicas());
            fleet.adopt(next);
            (fleet.snapshot().replicas().first().cloned(), fleet.snapshot())
        };
        let choices = |fleet: &Snapshot| {
            let text = metrics.render(fleet).expect("text");
            (used(&text, "prefix_router_choices_total").join(" "), text.contains("prefix_router_choices_total{"))
        };
        let first = join(vec![spec()]).0.expect("it is there");
        metrics.chosen(&first, Reason::Home);
        let (second, picture) = join(vec![ReplicaSpec { authority: "b:80".to_owned(), ..spec() }]);
        let second = second.expect("it is there");
        assert!(!second.is(&first));
        metrics.chosen(&first, Reason::Home);
        metrics.chosen(&second, Reason::Home);
        let all_three = "prefix_router_choices_total{reason=\"home\",replica=\"a\"} 3";
        assert_eq!(choices(&picture), (all_three.to_owned(), true), "one name, one series");
        drop(first);
        assert_eq!(choices(&picture), (all_three.to_owned(), true));
        drop(picture);
        // Out of the fleet, and still held.
        let (_, picture) = join(vec![]);
        metrics.chosen(&second, Reason::Overflow);
        assert_eq!(used(&choices(&picture).0, "prefix_router_choices_total").len(), 1);
        assert!(choices(&picture).0.contains("overflow"));
        drop(second);
        assert_eq!(choices(&picture), (String::new(), false));
        let (third, picture) = join(vec![spec()]);
        assert_eq!(choices(&picture), (String::new(), true), "it begins at zero");
        metrics.chosen(&third.expect("it is there"), Reason::Load);
        assert_eq!(choices(&picture).0, "prefix_router_choices_total{reason=\"load\",replica=\"a\"} 1");
    }

    #[test]
    fn series_of_requests_are_there_once_they_are_used() {
        let metrics = Metrics::new().expect("metrics");
        let nobody = Fleet::new(Vec::new(), health::Settings::default(), 0).snapshot();
        let whole = Duration::from_millis(7);
        metrics.finished((None, None), 403, Some("path_not_exposed"), None, whole);
        metrics.finished((Some(Surface::Load), Some(Reason::Load)), 499, Some(CLIENT_GONE), Some(whole), whole);
        metrics.finished((Some(Surface::Load), Some(Reason::Load)), 499, Some(CLIENT_GONE), None, whole);
        let text = metrics.render(&nobody).expect("text");
        let series = |name: &str| text.lines().filter(|line| line.starts_with(name)).collect::<Vec<_>>();
        let requests = [
            "prefix_router_requests_total{reason=\"load\",route=\"load\",status=\"499\"} 2",
            "prefix_router_requests_total{reason=\"none\",route=\"refused\",status=\"4xx\"} 1",
        ];
        assert_eq!(series("prefix_router_requests_total"), requests);
        assert_eq!(
            series("prefix_router_time_to_first_byte_seconds_count"),
            ["prefix_router_time_to_first_byte_seconds_count{route=\"load\"} 1"]
        );
        let durations = ["load\"} 2", "refused\"} 1"].map(|end| format!("prefix_router_request_duration_seconds_count{{route=\"{end}"));
        assert_eq!(series("prefix_router_request_duration_seconds_count"), durations);
    }
}
