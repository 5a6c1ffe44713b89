//! A simulated run in figures.

use std::time::Duration;

use serde::Serialize;

use super::report::{Phase, Quantiles, Sample};
use super::scenario::Run;

/// A run in figures. Times in milliseconds, shares from 0 to 1; 0 where there was no request.
///
/// Measured are the requests that arrived after the first fifth of all and, of an open loop, before the last conversation began; of a closed
/// loop, before nine of ten answers had ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Requests that are measured.
    pub requests: usize,
    /// Requests of the whole run that had no answer.
    pub failed: usize,
    /// Time to the first token.
    pub first_token_ms: Quantiles,
    /// Mean time to the first token.
    pub first_token_mean_ms: f64,
    /// Mean time to the answer's end.
    pub total_mean_ms: f64,
    /// Answers in a second.
    pub requests_per_second: f64,
    /// Share of the prompts' tokens that were found in caches.
    pub hit_rate: f64,
    /// Share of the requests that overflowed.
    pub overflow: f64,
    /// Share of the requests that each replica got, from the cold phase's end on.
    pub shares: Vec<f64>,
    /// The largest of them as a multiple of the mean.
    pub most_requests: f64,
    /// The smallest.
    pub fewest_requests: f64,
    /// The largest share of the seconds that went into prompts, as a multiple of the mean.
    pub most_work: f64,
    /// The first fifth, while caches fill.
    pub cold: Phase,
    /// The minute after replicas came.
    pub after_scale_out: Option<Phase>,
    /// The minute after one left.
    pub after_scale_in: Option<Phase>,
    /// The minute after common texts became others.
    pub after_change: Option<Phase>,
    /// Sequences that had to start again, in the whole run.
    pub preemptions: u64,
}

/// What is looked at after something happened.
const AFTER: Duration = Duration::from_secs(60);

impl Figures {
    /// Of a run to its end.
    pub fn of(run: &Run) -> Self {
        // As they arrived, which is how they come.
        let cold = ((run.requests as f64 * super::report::COLD) as usize).min(run.samples.len());
        let (cold, rest) = run.samples.split_at(cold);
        let begin = rest.first().map_or(Duration::ZERO, |sample| sample.start);
        let mut ends: Vec<Duration> = run.samples.iter().map(|sample| sample.start + sample.total).collect();
        ends.sort_unstable();
        let end = match run.last_start {
            Some(last) => last.max(begin + Duration::from_secs(1)),
            None => ends.get(ends.len() * 9 / 10).copied().unwrap_or_default(),
        };
        let measured: Vec<Sample> = rest.iter().filter(|sample| sample.start <= end).cloned().collect();
        let warm = Phase::new(&measured);
        let mean =
            |of: fn(&Sample) -> Duration| ratio(measured.iter().map(|sample| of(sample).as_secs_f64() * 1e3).sum(), measured.len() as f64);
        let answers = ends.iter().filter(|&&at| at >= begin && at <= end).count();
        let (requests, seconds) = run.work.iter().fold((0, 0.0), |(requests, seconds), work| (requests + work.0, seconds + work.1));
        let shares: Vec<f64> = run.work.iter().map(|work| ratio(work.0 as f64, requests as f64)).collect();
        let replicas = run.work.len() as f64;
        let minute = |from: Duration| {
            let those: Vec<Sample> = run.samples.iter().filter(|sample| (from..from + AFTER).contains(&sample.start)).cloned().collect();
            Phase::new(&those)
        };
        Self {
            requests: measured.len(),
            failed: run.failed,
            first_token_ms: warm.first_token_ms,
            first_token_mean_ms: mean(|sample| sample.first_token),
            total_mean_ms: mean(|sample| sample.total),
            requests_per_second: ratio(answers as f64, end.saturating_sub(begin).as_secs_f64()),
            hit_rate: warm.hit_rate,
            overflow: ratio(measured.iter().filter(|sample| sample.overflow).count() as f64, measured.len() as f64),
            most_requests: shares.iter().copied().fold(0.0, f64::max) * replicas,
            fewest_requests: shares.iter().copied().fold(1.0, f64::min) * replicas,
            most_work: ratio(run.work.iter().map(|work| work.1).fold(0.0, f64::max), seconds) * replicas,
            shares,
            cold: Phase::new(cold),
            after_scale_out: run.scaled.map(|[out, _]| minute(out)),
            after_scale_in: run.scaled.map(|[_, into]| minute(into)),
            after_change: run.changed.map(minute),
            preemptions: run.preemptions,
        }
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
