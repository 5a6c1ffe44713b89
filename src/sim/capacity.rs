//! Throughput at the objective: the highest rate at which nine of ten requests have their first token in time.

use std::time::{Duration, Instant};

use super::figures::Figures;
use super::run::run;
use super::scenario::Scenario;
use super::workload::Traffic;

/// In time is sooner than this.
pub const OBJECTIVE: Duration = Duration::from_secs(2);

/// Rates to begin with, for a fleet of seven.
const FIRST: [f64; 2] = [2.0 / 7.0, 4.0 / 7.0];
/// From one to the next.
const STEP: f64 = 1.6;
/// How often a rate that is too high to begin with is divided by that: a hundredth of it is as good as nothing.
const DESCENTS: usize = 10;
/// No fleet that is simulated takes more for each replica, in a run that lasts.
const MOST: f64 = 100.0;
/// Halvings, in the logarithm, once a rate is too high: 1.6 to the power of 1/32 is 1.5 %.
const HALVINGS: usize = 5;

/// The highest rate of requests in a second, to about 1.5 %, that `scenario` takes of `traffic`; 0 where there is none, and infinite where the traffic is
/// over before the fleet has too much to do. Its own rate is of no meaning.
pub fn capacity(scenario: &Scenario, traffic: &Traffic, epoch: Instant) -> f64 {
    let replicas = scenario.replicas as f64;
    let keeps = |rate: f64| {
        let run = run(&Scenario { rate, give_up: Some(OBJECTIVE), ..scenario.clone() }, traffic, epoch);
        !run.gave_up && Figures::of(&run).first_token_ms.p90 < OBJECTIVE.as_secs_f64() * 1e3
    };
    let [mut low, mut high] = FIRST.map(|rate| rate * replicas);
    for _ in 0..DESCENTS {
        if keeps(low) {
            break;
        }
        (low, high) = (low / STEP, low);
    }
    if high <= FIRST[0] * replicas && !keeps(low) {
        return 0.0;
    }
    while keeps(high) {
        if high > MOST * replicas {
            return f64::INFINITY;
        }
        (low, high) = (high, high * STEP);
    }
    for _ in 0..HALVINGS {
        let middle = libm::sqrt(low * high);
        if keeps(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}
