//! The series that tell what the replicas' engines say of themselves: only what is known, and only of replicas that are in the fleet.
//!
//! The readings are looked up when somebody scrapes. Nothing here asks an engine.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec};

use super::metrics::Metrics;
use super::series::Series;
use crate::engine::EngineReadings;
use crate::fleet::Snapshot;

/// The series.
pub(super) struct Engines {
    running: IntGaugeVec,
    waiting: IntGaugeVec,
    usage: GaugeVec,
    queries: IntCounterVec,
    hits: IntCounterVec,
    caching: IntGaugeVec,
    capacity: IntGaugeVec,
    age: GaugeVec,
    resets: IntCounterVec,
    /// What is shown.
    readings: OnceLock<Arc<EngineReadings>>,
}

impl Engines {
    pub(super) fn new(series: &mut Series) -> prometheus::Result<Self> {
        let replica = ["replica"].as_slice();
        Ok(Self {
            running: series.gauges("prefix_router_engine_running", "Requests that a replica's engine works on, as it says.", replica)?,
            waiting: series.gauges("prefix_router_engine_waiting", "Requests that wait in a replica's engine, as it says.", replica)?,
            usage: series.numbers(
                "prefix_router_engine_kv_cache_usage_ratio",
                "The share of its KV cache that a replica's engine uses, as it says.",
                replica,
            )?,
            queries: series.counters(
                "prefix_router_engine_prefix_queries_tokens_total",
                "Tokens that a replica's engine looked up in its prefix cache, as it counts.",
                replica,
            )?,
            hits: series.counters(
                "prefix_router_engine_prefix_hits_tokens_total",
                "Tokens that a replica's engine found in its prefix cache, as it counts.",
                replica,
            )?,
            caching: series.gauges(
                "prefix_router_engine_prefix_caching",
                "Whether a replica's engine has prefix caching switched on, as it says.",
                replica,
            )?,
            capacity: series.gauges(
                "prefix_router_engine_cache_capacity_tokens",
                "Tokens that fit into the KV cache of a replica's engine.",
                replica,
            )?,
            age: series.numbers(
                "prefix_router_engine_metrics_age_seconds",
                "Time since a replica's engine was asked for what it last said.",
                replica,
            )?,
            resets: series.counters(
                "prefix_router_engine_resets_total",
                "Times that a replica's engine was seen to count anew: it was restarted.",
                replica,
            )?,
            readings: OnceLock::new(),
        })
    }

    /// Brings the series up to date.
    pub(super) fn refresh(&self, fleet: &Snapshot, now: Instant) {
        for gauges in [&self.running, &self.waiting, &self.capacity, &self.caching] {
            gauges.reset();
        }
        for counters in [&self.queries, &self.hits, &self.resets] {
            counters.reset();
        }
        self.usage.reset();
        self.age.reset();
        let Some(readings) = self.readings.get() else { return };
        for replica in fleet.replicas() {
            let Some(latest) = readings.get(replica.incarnation()) else { continue };
            let (labels, reading) = ([replica.name()], &latest.reading);
            for (gauges, value) in [
                (&self.running, reading.running),
                (&self.waiting, reading.waiting),
                (&self.capacity, reading.capacity()),
                (&self.caching, reading.prefix_caching.map(u64::from)),
            ] {
                if let Some(value) = value {
                    gauges.with_label_values(&labels).set(i64::try_from(value).unwrap_or(i64::MAX));
                }
            }
            for (counters, value) in
                [(&self.queries, reading.prefix_queries), (&self.hits, reading.prefix_hits), (&self.resets, Some(latest.resets))]
            {
                if let Some(value) = value {
                    counters.with_label_values(&labels).inc_by(value);
                }
            }
            if let Some(usage) = reading.kv_usage {
                self.usage.with_label_values(&labels).set(usage);
            }
            self.age.with_label_values(&labels).set(now.saturating_duration_since(latest.asked).as_secs_f64());
        }
    }
}

impl Metrics {
    /// Whose readings are shown. To be said once.
    pub fn show_engines(&self, readings: &Arc<EngineReadings>) {
        self.engines.readings.get_or_init(|| Arc::clone(readings));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::Reading;
    use crate::fleet::{Fleet, ReplicaSpec, health};
    use crate::units::Weight;

    #[test]
    fn what_is_known_of_who_is_there() {
        let spec = |name: &str| ReplicaSpec {
            name: name.to_owned(),
            authority: name.to_owned(),
            weight: Weight::clamped(1),
            models: Vec::new(),
            drain: false,
        };
        let mut fleet = Fleet::new(["a", "b", "c"].map(spec).to_vec(), health::Settings::default(), 0);
        let (metrics, readings) = (Metrics::new(&Default::default()).expect("metrics"), Arc::new(EngineReadings::default()));
        metrics.show_engines(&readings);
        readings.keep(fleet.snapshot().replicas().iter().map(|replica| replica.incarnation()));
        let shown = |picture: &Snapshot| -> Vec<String> {
            let text = metrics.render(picture).expect("text");
            let lines = text.lines().filter_map(|line| line.strip_prefix("prefix_router_engine_"));
            lines.filter(|line| !line.starts_with("metrics_age")).map(str::to_owned).collect()
        };
        assert!(shown(&fleet.snapshot()).is_empty(), "nobody has said anything");
        let (mut picture, now) = (fleet.snapshot(), Instant::now());
        let full = Reading {
            running: Some(3),
            waiting: Some(7),
            kv_usage: Some(0.25),
            prefix_queries: Some(100),
            prefix_hits: Some(40),
            block_size: Some(16),
            blocks: Some(10),
            prefix_caching: Some(true),
            ..Reading::default()
        };
        readings.put(picture.replicas()[0].incarnation(), full.clone(), now);
        readings.put(picture.replicas()[1].incarnation(), Reading { running: Some(1), ..Reading::default() }, now);
        let expected = [
            "cache_capacity_tokens{replica=\"a\"} 160",
            "kv_cache_usage_ratio{replica=\"a\"} 0.25",
            "prefix_caching{replica=\"a\"} 1",
            "prefix_hits_tokens_total{replica=\"a\"} 40",
            "prefix_queries_tokens_total{replica=\"a\"} 100",
            "resets_total{replica=\"a\"} 0",
            "resets_total{replica=\"b\"} 0",
            "running{replica=\"a\"} 3",
            "running{replica=\"b\"} 1",
            "waiting{replica=\"a\"} 7",
        ];
        assert_eq!(shown(&picture), expected);
        assert_eq!(shown(&picture), expected, "nothing is counted twice");
        // It is another process now, which counts from the beginning.
        let anew = Reading { prefix_queries: Some(10), prefix_hits: Some(4), ..full };
        readings.put(picture.replicas()[0].incarnation(), anew, now + Duration::from_secs(2));
        let counters = ["prefix_hits_tokens_total{replica=\"a\"} 4", "resets_total{replica=\"a\"} 1"];
        assert!(counters.iter().all(|counter| shown(&picture).iter().any(|line| line == counter)), "{:?}", shown(&picture));
        fleet.adopt(Arc::new(fleet.membership().next(vec![spec("b")], true)));
        picture = fleet.snapshot();
        assert_eq!(shown(&picture), ["resets_total{replica=\"b\"} 0", "running{replica=\"b\"} 1"]);
    }

    #[test]
    fn a_reading_grows_old() {
        let spec = ReplicaSpec { name: "a".into(), authority: "a".into(), weight: Weight::clamped(1), models: Vec::new(), drain: false };
        let fleet = Fleet::new(vec![spec], health::Settings::default(), 0).snapshot();
        let engines = Engines::new(&mut Series::default()).expect("series");
        let (readings, asked) = (EngineReadings::default(), Instant::now());
        readings.keep([fleet.replicas()[0].incarnation()]);
        readings.put(fleet.replicas()[0].incarnation(), Reading::default(), asked);
        engines.readings.get_or_init(|| Arc::new(readings));
        for seconds in [0, 2, 3_600] {
            engines.refresh(&fleet, asked + Duration::from_secs(seconds));
            assert_eq!(engines.age.with_label_values(&["a"]).get(), seconds as f64);
        }
    }
}
