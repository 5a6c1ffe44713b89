//! The series of each replica: what is in flight there, why it was chosen, how it failed, how it is. Those of one that has left the fleet go when nobody
//! can count on it any more.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use arc_swap::ArcSwap;
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};

use super::labels::UpstreamError;
use super::metrics::Metrics;
use super::series::Series;
use crate::fleet::{ByIncarnation, Incarnation, Replica, Snapshot, State};
use crate::routing::Reason;

/// The series.
pub(super) struct Replicas {
    outstanding: IntGaugeVec,
    choices: IntCounterVec,
    upstream_errors: IntCounterVec,
    state: IntGaugeVec,
    /// The incarnations that are, or were, in the fleet, as long as somebody may count on them.
    shown: Mutex<Shown>,
    /// Their counters, at hand for requests. Those of one that has ended go at the next change of the fleet.
    choices_of: ArcSwap<ByIncarnation<Arc<Choices>>>,
}

/// The counters of one replica's choices, by reason.
///
/// Series must not go while somebody counts on them. They do not: who counts holds the replica, and as long as its incarnation is held its name keeps its
/// series. An incarnation that comes later under that name, while they are there, goes on with them.
type Choices = [IntCounter; Reason::ALL.len()];

/// The incarnations that have series.
pub(super) type Shown = ByIncarnation<Showing>;

/// An incarnation that has series.
pub(super) struct Showing {
    name: String,
    incarnation: Weak<Incarnation>,
    choices: Arc<Choices>,
}

impl Replicas {
    pub(super) fn new(series: &mut Series) -> prometheus::Result<Self> {
        Ok(Self {
            outstanding: series.gauges(
                "prefix_router_outstanding",
                "Requests in flight on a replica, counted by this router.",
                &["replica"],
            )?,
            choices: series.counters("prefix_router_choices_total", "Choices of a replica by reason.", &["replica", "reason"])?,
            upstream_errors: series.counters(
                "prefix_router_upstream_errors_total",
                "Failures of replicas by kind.",
                &["replica", "kind"],
            )?,
            state: series.gauges("prefix_router_replica_state", "1 for the state that a replica is in.", &["replica", "state"])?,
            shown: Mutex::default(),
            choices_of: ArcSwap::default(),
        })
    }

    /// Held while somebody shows or scrapes.
    pub(super) fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the series of those of `replicas` visible at zero that have none.
    pub(super) fn show(&self, shown: &mut Shown, replicas: &[Arc<Replica>]) {
        for replica in replicas {
            if shown.contains_key(&replica.incarnation()) {
                continue;
            }
            let choices =
                Arc::new(std::array::from_fn(|index| self.choices.with_label_values(&[replica.name(), Reason::ALL[index].label()])));
            for &kind in UpstreamError::ALL {
                self.upstream_errors.with_label_values(&[replica.name(), kind.label()]);
            }
            shown.insert(replica.incarnation(), Showing { name: replica.name().to_owned(), incarnation: replica.watch(), choices });
        }
        self.choices_of.store(Arc::new(shown.iter().map(|(&number, shown)| (number, Arc::clone(&shown.choices))).collect()));
    }

    /// Brings the states up to date. Returns the names of those whose series are gone.
    pub(super) fn refresh(&self, shown: &mut Shown, fleet: &Snapshot) -> Vec<String> {
        let (outstanding, gone) = self.sweep(shown, fleet.replicas());
        for (name, count) in outstanding {
            self.outstanding.with_label_values(&[&name]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        for replica in fleet.replicas() {
            for &state in State::ALL {
                let now = i64::from(fleet.state(replica) == Some(state));
                self.state.with_label_values(&[replica.name(), state.label()]).set(now);
            }
        }
        gone
    }

    /// Removes the series of replicas that have left: the state at once, and what is counted when nobody can count there any more. Returns what is in
    /// flight under each name that is left, and the names that are gone.
    pub(super) fn sweep(&self, shown: &mut Shown, present: &[Arc<Replica>]) -> (HashMap<String, u64>, Vec<String>) {
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
            let _ = self.state.remove_label_values(&[name, state.label()]);
        }
        ended.retain(|name| !outstanding.contains_key(name) && !present.contains(name.as_str()));
        ended.iter().for_each(|name| self.forget(name));
        (outstanding, ended)
    }

    fn forget(&self, name: &str) {
        let _ = self.outstanding.remove_label_values(&[name]);
        for &reason in Reason::ALL {
            let _ = self.choices.remove_label_values(&[name, reason.label()]);
        }
        for &kind in UpstreamError::ALL {
            let _ = self.upstream_errors.remove_label_values(&[name, kind.label()]);
        }
    }
}

impl Metrics {
    /// Counts a choice.
    pub fn chosen(&self, replica: &Replica, reason: Reason) {
        match self.replicas.choices_of.load().get(&replica.incarnation()) {
            Some(choices) => choices[reason as usize].inc(),
            None => self.replicas.choices.with_label_values(&[replica.name(), reason.label()]).inc(),
        }
    }

    /// Counts a failure of a replica.
    pub fn failed(&self, replica: &Replica, kind: UpstreamError) {
        self.replicas.upstream_errors.with_label_values(&[replica.name(), kind.label()]).inc();
    }
}
