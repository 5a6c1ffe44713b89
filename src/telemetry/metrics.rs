//! All that the router publishes for Prometheus. What there is of one matter is in a file of its own beside this one, with what counts it.
//!
//! All labels come from closed lists, from the configuration, or from the fleet, so that no client can add a series.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::local::LocalHistogram;
use prometheus::{Encoder, IntCounter, IntCounterVec, Registry, TextEncoder};

use super::decisions::Decisions;
use super::engine::Engines;
use super::forecasts::Forecasts;
use super::history::{Flow, History};
use super::labels::RetryCause;
use super::models::ModelLabel;
use super::operation::Operation;
use super::placement::Placement;
use super::replicas::Replicas;
use super::requests::{Finished, Requests, Totals};
use super::series::{Family, Series};
use super::spans::Spans;
use super::waiting::Waiting;
use crate::fleet::{PoolName, Replica, Snapshot};
use crate::routing::Reason;

/// What a client that left is called in the log; it has a counter of its own.
pub(super) const CLIENT_GONE: &str = "client_gone";

/// What is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether anything is.
    pub on: bool,
    /// Models that have series of their own, at most, of those that the fleet lists.
    pub max_models: usize,
    /// Requests that are remembered with where they went and why; 0: none.
    pub recent_decisions: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { on: true, max_models: 100, recent_decisions: 512 }
    }
}

/// The router's metrics.
pub struct Metrics {
    registry: Registry,
    families: Vec<Family>,
    is_on: bool,
    pub(super) requests: Requests,
    retries: IntCounterVec,
    retries_refused: IntCounter,
    client_aborts: IntCounter,
    errors: IntCounterVec,
    pub(super) replicas: Replicas,
    pub(super) waiting: Waiting,
    pub(super) placement: Placement,
    pub(super) engines: Engines,
    pub(super) forecasts: Forecasts,
    pub(super) operation: Operation,
    pub(super) spans: Spans,
    history: History,
    decisions: Decisions,
}

impl Metrics {
    /// All series at zero.
    pub fn new(settings: &Settings) -> prometheus::Result<Arc<Self>> {
        let mut series = Series::default();
        let metrics = Self {
            is_on: settings.on,
            requests: Requests::new(&mut series, settings.max_models)?,
            retries: series.counters("prefix_router_retries_total", "Requests sent once more, by cause.", &["cause"])?,
            retries_refused: series.counter("prefix_router_retries_refused_total", "Retries that the budget did not allow.")?,
            client_aborts: series.counter("prefix_router_client_aborts_total", "Clients that left before their answer's end.")?,
            errors: series.counters(
                "prefix_router_errors_total",
                "Errors that clients met and the router named (x-prefix-router-error), streams that were cut among them.",
                &["error"],
            )?,
            replicas: Replicas::new(&mut series)?,
            waiting: Waiting::new(&mut series)?,
            placement: Placement::new(&mut series)?,
            engines: Engines::new(&mut series)?,
            forecasts: Forecasts::new(&mut series)?,
            operation: Operation::new(&mut series)?,
            spans: Spans::new(&mut series)?,
            history: History::default(),
            decisions: Decisions::new(settings.recent_decisions),
            registry: series.registry,
            families: series.families,
        };
        for &cause in RetryCause::ALL {
            metrics.retries.with_label_values(&[cause.label()]);
        }
        Ok(Arc::new(metrics))
    }

    /// Whether they are published. Where they are not, what each request would be counted in is left out.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// All that is published, by name.
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    /// Makes the series of `replicas` visible at zero, so that a dashboard shows them before anything happens. To be called before a request can
    /// reach them: what is not known here may lose its series at any time.
    pub fn show(&self, replicas: &[Arc<Replica>]) {
        let mut shown = self.replicas.shown();
        // Here too, as it may be that nobody asks for the metrics.
        let (_, gone) = self.replicas.sweep(&mut shown, replicas);
        self.forget(&gone);
        self.replicas.show(&mut shown, replicas);
    }

    /// The text that Prometheus scrapes. What the fleet itself counts is read at this moment.
    pub fn render(&self, fleet: &Snapshot) -> prometheus::Result<String> {
        // Held to the end: two who scrape at once must not see one another's half-written picture.
        let mut shown = self.replicas.shown();
        let gone = self.replicas.refresh(&mut shown, fleet);
        self.forget(&gone);
        self.requests.sweep(fleet);
        self.placement.refresh(fleet, &self.forecasts);
        self.engines.refresh(fleet, Instant::now());
        self.operation.refresh();
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        drop(shown);
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Replicas' series go.
    fn forget(&self, gone: &[String]) {
        for name in gone {
            self.forecasts.forget(name);
            self.placement.forget(name);
        }
    }

    /// Counts what nobody tells of: the time `since` this was called last, where gates are closed; and lets go what the fleet has no more.
    pub fn watch(&self, fleet: &Snapshot, since: Duration) {
        self.placement.count_saturation(fleet, since);
        self.history.look(Instant::now(), || self.requests.totals().by_reason);
        self.requests.sweep(fleet);
    }

    /// The last requests, and where they went.
    pub fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    /// From how many outstanding requests on gates are closed now, by incarnation; those that have no gate are not there.
    pub fn thresholds(&self, fleet: &Snapshot) -> HashMap<u64, u64> {
        self.placement.thresholds(fleet)
    }

    /// Requests that wait in the queue, and the bytes of their bodies.
    pub fn queue(&self) -> (u64, u64) {
        self.waiting.queue()
    }

    /// What was counted of requests so far; nothing where metrics are off.
    pub fn totals(&self) -> Totals {
        self.requests.totals()
    }

    /// How many requests ended in the last minutes.
    pub fn flow(&self) -> Flow {
        self.history.flow()
    }

    /// What a model's label is called.
    pub fn model_name(&self, label: ModelLabel) -> String {
        self.requests.models().name(label)
    }

    /// The label of the model that a request named, which goes to that pool, if to any.
    pub fn model(&self, asked: Option<&str>, pool: Option<&PoolName>) -> ModelLabel {
        self.requests.models().label(asked, pool)
    }

    /// Counts a further sending.
    pub fn retried(&self, cause: RetryCause) {
        self.retries.with_label_values(&[cause.label()]).inc();
    }

    /// Counts a retry that was not paid for.
    pub fn refused_retry(&self) {
        self.retries_refused.inc();
    }

    /// Where the times between the pieces of one answer go. They are counted when it is dropped.
    pub(super) fn gaps(&self, why: Option<Reason>) -> LocalHistogram {
        self.requests.gaps(why)
    }

    /// Counts a request that is over.
    pub(super) fn finished(&self, request: &Finished, error: Option<&str>) {
        if !self.is_on {
            return;
        }
        self.requests.count(request);
        match error {
            Some(CLIENT_GONE) => self.client_aborts.inc(),
            Some(error) => self.errors.with_label_values(&[error]).inc(),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Fleet, ReplicaSpec, health};
    use crate::units::Weight;

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
        let metrics = Metrics::new(&Settings::default()).expect("metrics");
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
}
