//! The series that tell what `cache_aware` has learnt of the replicas, and how true its forecasts are.
//!
//! What is a state of the strategy comes with its insight when somebody scrapes; only what became of a forecast is counted at once.

use std::collections::HashMap;

use prometheus::{GaugeVec, Histogram, HistogramVec, IntCounterVec, IntGaugeVec};

use super::metrics::Metrics;
use super::placement::MOST_POOLS;
use super::series::Series;
use crate::fleet::{PoolName, Replica, Snapshot};
use crate::routing::{Insight, PictureInsight, Verdict};

/// What was found less what was predicted, as a share of the prompt.
const ERROR_BUCKETS: &[f64] = &[-0.9, -0.7, -0.5, -0.3, -0.2, -0.1, -0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0];

/// From what nobody notices to a prompt that is computed for nothing.
const REGRET_BUCKETS: &[f64] = &[0.0, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// What is counted of forecasts.
const KINDS: [&str; 2] = ["predicted", "observed"];

/// The parts of prompts of which other routers may have sent what is found.
const PARTS: [&str; 2] = ["nothing", "known"];

/// The series.
pub(super) struct Forecasts {
    tokens: IntCounterVec,
    error: HistogramVec,
    regret: Histogram,
    prefill: GaugeVec,
    decode: GaugeVec,
    bytes: GaugeVec,
    kept: GaugeVec,
    held: IntGaugeVec,
    ahead: IntGaugeVec,
    wrong: IntGaugeVec,
    credit: GaugeVec,
    others: GaugeVec,
}

impl Forecasts {
    pub(super) fn new(series: &mut Series) -> prometheus::Result<Self> {
        Ok(Self {
            tokens: series.counters(
                "prefix_router_forecast_cached_tokens_total",
                "Tokens of prompts that were predicted in a replica's cache, and those that were observed there, of the same requests.",
                &["replica", "kind"],
            )?,
            error: series.histograms(
                "prefix_router_forecast_error_ratio",
                "Cached tokens observed less those predicted, as a share of the prompt: below 0 less was found than was thought to be there.",
                &["replica"],
                ERROR_BUCKETS,
            )?,
            regret: series.histogram(
                "prefix_router_forecast_regret_seconds",
                "What a choice cost more than the best of the others would have, as far as its answer tells.",
                REGRET_BUCKETS,
            )?,
            prefill: series.numbers(
                "prefix_router_learnt_prefill_seconds_per_token",
                "Time that a token of a prompt takes on a replica, as learnt.",
                &["replica"],
            )?,
            decode: series.numbers(
                "prefix_router_learnt_decode_seconds_per_request",
                "What a request in flight on a replica costs the next one, as learnt.",
                &["replica"],
            )?,
            bytes: series.numbers("prefix_router_learnt_prompt_bytes_per_token", "Bytes of text in a token of a prompt, as learnt.", &["replica"])?,
            kept: series.numbers(
                "prefix_router_learnt_kept_ratio",
                "Of what a replica's cache is thought to hold, the share that is found there.",
                &["replica"],
            )?,
            held: series.gauges("prefix_router_picture_held_bytes", "Bytes of prompts that a replica's cache is thought to hold.", &["replica"])?,
            ahead: series.gauges(
                "prefix_router_picture_ahead_tokens",
                "Tokens of prompts that a replica has still to compute for this router, as far as is known.", &["replica"])?,
            wrong: series.gauges(
                "prefix_router_picture_wrong",
                "1 where much less is found in a replica's cache than is thought to be there, for long.", &["replica"])?,
            credit: series.numbers(
                "prefix_router_learnt_credit_ratio",
                "Of what this router does not know to be anywhere (nothing) or beyond what it knows (known), the share that is found.",
                &["pool", "part"],
            )?,
            others: series.numbers(
                "prefix_router_learnt_others_ratio",
                "Of the requests in flight on a pool's replicas, the share that others sent, as far as engines show it.",
                &["pool"],
            )?,
        })
    }

    /// Brings the states up to date. Who has left the fleet has none.
    pub(super) fn refresh(&self, fleet: &Snapshot, insights: &[(&PoolName, &Insight)]) {
        [&self.prefill, &self.decode, &self.bytes, &self.kept, &self.credit, &self.others].into_iter().for_each(GaugeVec::reset);
        [&self.held, &self.ahead, &self.wrong].into_iter().for_each(IntGaugeVec::reset);
        let mut pictures: HashMap<u64, &PictureInsight> = HashMap::new();
        for (number, (pool, insight)) in insights.iter().enumerate() {
            pictures.extend(insight.pictures.iter().map(|picture| (picture.incarnation, picture)));
            if number >= MOST_POOLS {
                continue;
            }
            for (part, share) in PARTS.iter().zip(insight.credit.into_iter().flatten()) {
                self.credit.with_label_values(&[pool.label(), part]).set(share);
            }
            if let Some(others) = insight.others {
                self.others.with_label_values(&[pool.label()]).set(others);
            }
        }
        for replica in fleet.replicas() {
            let Some(picture) = pictures.get(&replica.incarnation()) else { continue };
            let labels = [replica.name()];
            for (gauge, value) in [
                (&self.prefill, picture.seconds_per_token),
                (&self.decode, picture.decode_seconds),
                (&self.bytes, picture.bytes_per_token),
                (&self.kept, picture.kept),
            ] {
                gauge.with_label_values(&labels).set(value);
            }
            for (gauge, value) in [
                (&self.held, i64::try_from(picture.held_bytes).unwrap_or(i64::MAX)),
                (&self.ahead, picture.ahead_tokens as i64),
                (&self.wrong, i64::from(picture.is_wrong)),
            ] {
                gauge.with_label_values(&labels).set(value);
            }
        }
    }

    /// A replica's series go.
    pub(super) fn forget(&self, name: &str) {
        for kind in KINDS {
            let _ = self.tokens.remove_label_values(&[name, kind]);
        }
        let _ = self.error.remove_label_values(&[name]);
    }
}

impl Metrics {
    /// Takes note of what became of one forecast or several, and says so where a picture has turned out to be wrong, or right again.
    pub fn judged(&self, replica: &Replica, verdict: &Verdict) {
        let (forecasts, name) = (&self.forecasts, replica.name());
        for (kind, tokens) in KINDS.iter().zip([verdict.expected_tokens, verdict.found_tokens]) {
            forecasts.tokens.with_label_values(&[name, kind]).inc_by(tokens.round() as u64);
        }
        if verdict.prompt_tokens > 0.0 {
            let error = (verdict.found_tokens - verdict.expected_tokens) / verdict.prompt_tokens;
            forecasts.error.with_label_values(&[name]).observe(error);
        }
        if let Some(regret) = verdict.regret_seconds {
            forecasts.regret.observe(regret);
        }
        let Some(turn) = verdict.turned else { return };
        let kept = (turn.kept * 100.0).round();
        if turn.is_wrong {
            tracing::warn!(
                replica = name,
                kept_percent = kept,
                "replica {name} finds only {kept} % of what its prefix cache should hold by what was sent there: caching may be off, its cache smaller \
                 or shared with others, or prompts rendered with something that changes each time. What it holds counts for less from now on; where \
                 that is so of most replicas of a pool, requests go by the ring"
            );
        } else {
            tracing::info!(
                replica = name,
                kept_percent = kept,
                "replica {name} finds {kept} % of what its prefix cache should hold: what is thought of it is right again"
            );
        }
    }
}
