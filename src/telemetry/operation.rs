//! The series that tell how the router itself does: its connections and limits, its configuration, its sources of replicas, its log, its process.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::process_collector::ProcessCollector;
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::labels::{Limit, Reload};
use super::log;
use super::metrics::Metrics;
use super::series::Series;

/// What every series' name begins with.
const NAMESPACE: &str = "prefix_router";

/// The series.
pub(super) struct Operation {
    limit_hits: IntCounterVec,
    limits: IntGaugeVec,
    connections: IntGauge,
    buffered: IntGauge,
    lookups: IntCounterVec,
    discovered: IntGaugeVec,
    answered: GaugeVec,
    reloads: IntCounterVec,
    last_reload: Gauge,
    reload_successful: IntGauge,
    lost_lines: IntCounter,
}

impl Operation {
    pub(super) fn new(series: &mut Series) -> prometheus::Result<Self> {
        let operation = Self {
            limit_hits: series.counters("prefix_router_limit_hits_total", "Times that a limit was reached, by its setting.", &["limit"])?,
            limits: series.gauges(
                "prefix_router_limit",
                "What a limit is set to, by its setting, where its use is to be seen as well; no series where there is none.",
                &["limit"],
            )?,
            connections: series.gauge("prefix_router_connections", "Connections from clients that are open.")?,
            buffered: series.gauge("prefix_router_buffered_bytes", "Bytes that requests' bodies hold, or are to fill.")?,
            lookups: series.counters(
                "prefix_router_discovery_lookups_total",
                "Lookups of a source of replicas by result.",
                &["source", "result"],
            )?,
            discovered: series.gauges(
                "prefix_router_discovery_replicas",
                "Replicas in a source's last good answer, while it holds.",
                &["source"],
            )?,
            answered: series.numbers(
                "prefix_router_discovery_last_success_timestamp_seconds",
                "Time of a source's last good answer, since the epoch.",
                &["source"],
            )?,
            reloads: series.counters(
                "prefix_router_config_reloads_total",
                "Times that the configuration was read again, by result.",
                &["result"],
            )?,
            last_reload: series.number(
                "prefix_router_config_last_reload_success_timestamp_seconds",
                "When the configuration was last read without an error, since the epoch.",
            )?,
            reload_successful: series.gauge(
                "prefix_router_config_last_reload_successful",
                "Whether the configuration was without an error when it was last read.",
            )?,
            lost_lines: series.counter(
                "prefix_router_log_lines_lost_total",
                "Log lines that were lost because whoever reads standard output was too slow.",
            )?,
        };
        series.add_foreign(ProcessCollector::new(std::process::id() as i32, NAMESPACE))?;
        let build = series.gauges("prefix_router_build_info", "1, with the version.", &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        for &result in Reload::ALL {
            operation.reloads.with_label_values(&[result.label()]);
        }
        for &limit in Limit::ALL {
            operation.limit_hits.with_label_values(&[limit.key()]);
        }
        // The start has read it as well.
        operation.read_well();
        Ok(operation)
    }

    /// Brings up to date what is counted elsewhere.
    pub(super) fn refresh(&self) {
        // Others may ask at the same time; none of them sees it go back.
        self.lost_lines.inc_by(log::lost().saturating_sub(self.lost_lines.get()));
    }

    fn read_well(&self) {
        self.reload_successful.set(1);
        self.last_reload.set(now());
    }
}

impl Metrics {
    /// Counts that a limit was reached.
    pub fn hit(&self, limit: Limit) {
        self.operation.limit_hits.with_label_values(&[limit.key()]).inc();
    }

    /// Shows what limits are set to, by their settings; `None` where there is none.
    pub fn show_limits(&self, limits: &[(&str, Option<u64>)]) {
        for &(setting, limit) in limits {
            match limit {
                Some(limit) => self.operation.limits.with_label_values(&[setting]).set(i64::try_from(limit).unwrap_or(i64::MAX)),
                None => drop(self.operation.limits.remove_label_values(&[setting])),
            }
        }
    }

    /// Counts a connection that a client has opened (1) or that has ended (-1).
    pub fn connected(&self, change: i64) {
        self.operation.connections.add(change);
    }

    /// Counts bytes that requests' bodies hold from now on, or (below 0) no longer.
    pub fn buffered(&self, change: i64) {
        self.operation.buffered.add(change);
    }

    /// Makes the series of a source of replicas visible at zero.
    pub fn show_source(&self, source: &str, results: &[&str]) {
        for result in results {
            self.operation.lookups.with_label_values(&[source, result]);
        }
        self.operation.discovered.with_label_values(&[source]);
        self.operation.answered.with_label_values(&[source]);
    }

    /// Removes the series of a source that is not asked any more.
    pub fn hide_source(&self, source: &str, results: &[&str]) {
        for result in results {
            let _ = self.operation.lookups.remove_label_values(&[source, result]);
        }
        let _ = self.operation.discovered.remove_label_values(&[source]);
        let _ = self.operation.answered.remove_label_values(&[source]);
    }

    /// Counts a lookup of a source; `replicas` where it was answered.
    pub fn looked_up(&self, source: &str, result: &str, replicas: Option<usize>) {
        self.operation.lookups.with_label_values(&[source, result]).inc();
        if let Some(replicas) = replicas {
            self.operation.discovered.with_label_values(&[source]).set(replicas as i64);
            self.operation.answered.with_label_values(&[source]).set(now());
        }
    }

    /// The last good answer of a source holds no more.
    pub fn nothing_is_known(&self, source: &str) {
        self.operation.discovered.with_label_values(&[source]).set(0);
    }

    /// Counts a reload of the configuration.
    pub fn reloaded(&self, result: Reload) {
        self.operation.reloads.with_label_values(&[result.label()]).inc();
        match result {
            Reload::Applied | Reload::Unchanged => self.operation.read_well(),
            Reload::Refused => self.operation.reload_successful.set(0),
        }
    }
}

/// Seconds since the epoch.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
