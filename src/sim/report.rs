//! What a run of requests amounts to: latencies, tokens found in caches, and how the load was spread.
//!
//! It says nothing of how the figures were got; whoever shows them does.

use std::time::Duration;

use serde::Serialize;

/// One answered request.
#[derive(Clone, Debug)]
pub struct Sample {
    /// From the beginning of the run.
    pub start: Duration,
    /// From the start to the first token.
    pub first_token: Duration,
    /// From the start to the answer's end.
    pub total: Duration,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of it that the replica found in its cache.
    pub cached_tokens: usize,
    /// Who answered, counted from 0.
    pub replica: usize,
    /// Another than the key's home took it since that one was gated.
    pub overflow: bool,
}

/// A run in figures. Times in milliseconds, shares from 0 to 1; 0 where there was no request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Requests that were answered.
    pub requests: usize,
    /// Requests that were not.
    pub failed: usize,
    /// Answers in a second, from the run's beginning to the last answer's end.
    pub requests_per_second: f64,
    /// Time to the first token.
    pub first_token_ms: Quantiles,
    /// Time to the answer's end.
    pub total_ms: Quantiles,
    /// Share of the prompts' tokens that were found in caches.
    pub hit_rate: f64,
    /// The first part of the run, while caches fill.
    pub cold: Phase,
    /// The rest.
    pub warm: Phase,
    /// Share of the requests that each replica got.
    pub shares: Vec<f64>,
    /// The largest share as a multiple of the mean.
    pub busiest: f64,
    /// Share of the requests that overflowed.
    pub overflow: f64,
}

/// A part of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Phase {
    /// Requests that were answered.
    pub requests: usize,
    /// Time to the first token.
    pub first_token_ms: Quantiles,
    /// Share of the prompts' tokens that were found in caches.
    pub hit_rate: f64,
}

/// Of a list of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// The median.
    pub p50: f64,
    /// Nine of ten are no longer.
    pub p90: f64,
    /// Ninety-nine of a hundred are no longer.
    pub p99: f64,
}

/// Share of a run's requests, by their start, that belong to its cold phase.
pub const COLD: f64 = 0.2;

impl Report {
    /// Of all that was answered by `replicas` replicas.
    pub fn new(mut samples: Vec<Sample>, failed: usize, replicas: usize) -> Self {
        samples.sort_by_key(|sample| sample.start);
        let all = Phase::new(&samples);
        let (cold, warm) = samples.split_at((samples.len() as f64 * COLD).round() as usize);
        let end = samples.iter().map(|sample| sample.start + sample.total).max().unwrap_or_default();
        let share = |of: usize| ratio(of as f64, samples.len() as f64);
        let shares: Vec<f64> =
            (0..replicas).map(|replica| share(samples.iter().filter(|sample| sample.replica == replica).count())).collect();
        Self {
            requests: samples.len(),
            failed,
            requests_per_second: ratio(samples.len() as f64, end.as_secs_f64()),
            first_token_ms: all.first_token_ms,
            total_ms: Quantiles::of(samples.iter().map(|sample| sample.total)),
            hit_rate: all.hit_rate,
            cold: Phase::new(cold),
            warm: Phase::new(warm),
            busiest: shares.iter().copied().fold(0.0, f64::max) * replicas as f64,
            shares,
            overflow: share(samples.iter().filter(|sample| sample.overflow).count()),
        }
    }
}

impl Phase {
    /// Of these requests.
    pub fn new(samples: &[Sample]) -> Self {
        let sum = |of: fn(&Sample) -> usize| samples.iter().map(of).sum::<usize>() as f64;
        Self {
            requests: samples.len(),
            first_token_ms: Quantiles::of(samples.iter().map(|sample| sample.first_token)),
            hit_rate: ratio(sum(|sample| sample.cached_tokens), sum(|sample| sample.prompt_tokens)),
        }
    }
}

impl Quantiles {
    /// By nearest rank.
    pub fn of(times: impl Iterator<Item = Duration>) -> Self {
        let mut times: Vec<Duration> = times.collect();
        times.sort_unstable();
        let at = |share: f64| {
            let rank = (times.len() as f64 * share).ceil() as usize;
            times.get(rank.saturating_sub(1)).map_or(0.0, |time| time.as_secs_f64() * 1e3)
        };
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99) }
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_in_figures() {
        let samples = (0..100).map(|at| Sample {
            start: Duration::from_millis(at * 10),
            first_token: Duration::from_millis(100 - at),
            total: Duration::from_millis(110),
            prompt_tokens: 1_000,
            cached_tokens: if at < 20 { 0 } else { 750 },
            replica: usize::from(at >= 60),
            overflow: at == 50,
        });
        let report = Report::new(samples.rev().collect(), 3, 4);
        assert_eq!((report.requests, report.failed), (100, 3));
        assert_eq!(report.first_token_ms, Quantiles { p50: 50.0, p90: 90.0, p99: 99.0 });
        assert_eq!((report.total_ms.p50, report.hit_rate, report.overflow), (110.0, 0.6, 0.01));
        assert_eq!((report.cold.requests, report.cold.hit_rate, report.cold.first_token_ms.p50), (20, 0.0, 90.0));
        assert_eq!((report.warm.requests, report.warm.hit_rate, report.warm.first_token_ms.p50), (80, 0.75, 40.0));
        assert_eq!((report.shares.clone(), report.busiest), (vec![0.6, 0.4, 0.0, 0.0], 2.4));
        assert!((report.requests_per_second - 100.0 / 1.1).abs() < 1e-9);
    }

    #[test]
    fn a_run_of_nothing_has_no_figures_that_are_no_numbers() {
        let text = serde_json::to_string(&Report::new(Vec::new(), 5, 2)).expect("numbers");
        assert!(!text.contains("null") && text.contains(r#""failed":5"#), "{text}");
    }
}
