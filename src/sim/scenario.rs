//! What is simulated, and what comes of it.

use std::time::Duration;

use super::replica;
use super::report::Sample;
use super::strategy::Strategy;

/// What is to be simulated, beside the traffic.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The rule of all routers.
    pub strategy: Strategy,
    /// Replicas at the beginning; at least 1.
    pub replicas: usize,
    /// Routers that share nothing; at least 1. Each request goes to one of them by chance.
    pub routers: usize,
    /// Each of the engines.
    pub engine: replica::Settings,
    /// Requests in a second that are offered; of no meaning for a closed loop.
    pub rate: f64,
    /// Whether two replicas come at a third of the run and one leaves at two thirds.
    pub elastic: bool,
    /// A replica that dies, if any.
    pub failure: Option<Failure>,
    /// How old metrics may get; `None`: as the rule wants it.
    pub metrics_age: Option<Duration>,
    /// Seeds arrivals and chances.
    pub seed: u64,
    /// Stops as soon as it is certain that one of ten requests has to wait so long for its first token.
    pub give_up: Option<Duration>,
}

/// A replica dies, and comes back with an empty cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failure {
    /// Its number, from 0.
    pub replica: usize,
    /// When, as a share of the time in which conversations begin.
    pub at: f64,
    /// For how long.
    pub lasts: Duration,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// All that was answered, in the order of the requests.
    pub samples: Vec<Sample>,
    /// Requests that broke off, with the turns that would have followed.
    pub failed: usize,
    /// Requests in all.
    pub requests: usize,
    /// Replicas at the beginning.
    pub replicas: usize,
    /// When the last conversation began that was not waited for; where all are, there is none.
    pub last_start: Option<Duration>,
    /// From the request on that ends the cold phase: requests and seconds of prefill, of each replica that ever was.
    pub work: Vec<(usize, f64)>,
    /// When replicas came, and when one left.
    pub scaled: Option<[Duration; 2]>,
    /// When common texts became others.
    pub changed: Option<Duration>,
    /// Sequences that had to start again.
    pub preemptions: u64,
    /// Leases that are still held, of all routers; anything but 0 is a fault of the program.
    pub left: u64,
    /// It was stopped early, since it is too slow.
    pub gave_up: bool,
}
