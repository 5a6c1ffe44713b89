//! What is counted of every request when it is over, with its series at hand: to look one up by its labels takes a lock, and three times as long.

use std::sync::OnceLock;
use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};

use super::labels::{reason, route};
use crate::request::{Surface, Usage};
use crate::routing::Reason;

/// From a cached prefix on an idle replica to a long prefill in a long queue.
const FIRST_BYTE_BUCKETS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 180.0, 600.0];

/// From an error to the longest generation.
const DURATION_BUCKETS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0];

/// The classes of statuses.
const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "499"];

/// The series of requests.
pub(super) struct Requests {
    requests: IntCounterVec,
    first_byte: HistogramVec,
    duration: HistogramVec,
    prompt_tokens: IntCounter,
    cached_tokens: IntCounter,
    completion_tokens: IntCounter,
    /// By surface, the last for requests that have none.
    routes: [Route; Surface::ALL.len() + 1],
}

/// The series of one route, at hand from when they are first used: from then on they are visible.
#[derive(Default)]
struct Route {
    duration: OnceLock<Histogram>,
    first_byte: OnceLock<Histogram>,
    /// By class of the status, and by reason, the last for requests that have none.
    requests: [[OnceLock<IntCounter>; Reason::ALL.len() + 1]; CLASSES.len()],
}

impl Requests {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let requests = IntCounterVec::new(
            Opts::new("prefix_router_requests_total", "Requests by route, status class (499: the client left) and reason of the choice."),
            &["route", "status", "reason"],
        )?;
        registry.register(Box::new(requests.clone()))?;
        let histogram = |name: &str, help: &str, buckets: &[f64]| -> prometheus::Result<HistogramVec> {
            let histogram = HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), &["route"])?;
            registry.register(Box::new(histogram.clone()))?;
            Ok(histogram)
        };
        let tokens = IntCounterVec::new(
            Opts::new(
                "prefix_router_usage_tokens_total",
                "Tokens that replicas' answers told of, by kind; cached ones are prompt ones as well.",
            ),
            &["kind"],
        )?;
        registry.register(Box::new(tokens.clone()))?;
        Ok(Self {
            requests,
            prompt_tokens: tokens.with_label_values(&["prompt"]),
            cached_tokens: tokens.with_label_values(&["cached"]),
            completion_tokens: tokens.with_label_values(&["completion"]),
            first_byte: histogram(
                "prefix_router_time_to_first_byte_seconds",
                "Time from a request's head to the first byte of its answer's body.",
                FIRST_BYTE_BUCKETS,
            )?,
            duration: histogram(
                "prefix_router_request_duration_seconds",
                "Time from a request's head to the end of its answer.",
                DURATION_BUCKETS,
            )?,
            routes: Default::default(),
        })
    }

    /// Counts a request that is over.
    pub(super) fn count(
        &self,
        (surface, why): (Option<Surface>, Option<Reason>),
        status: u16,
        first_byte: Option<Duration>,
        whole: Duration,
    ) {
        let (of_route, class) = (&self.routes[surface.map_or(Surface::ALL.len(), |surface| surface as usize)], class(status));
        let requests = &of_route.requests[class][why.map_or(Reason::ALL.len(), |why| why as usize)];
        requests.get_or_init(|| self.requests.with_label_values(&[route(surface), CLASSES[class], reason(why)])).inc();
        let histogram = |of_all: &HistogramVec| of_all.with_label_values(&[route(surface)]);
        of_route.duration.get_or_init(|| histogram(&self.duration)).observe(whole.as_secs_f64());
        if let Some(first_byte) = first_byte {
            of_route.first_byte.get_or_init(|| histogram(&self.first_byte)).observe(first_byte.as_secs_f64());
        }
    }

    /// Counts what an answer said that its request took.
    pub(super) fn used(&self, usage: &Usage) {
        self.prompt_tokens.inc_by(usage.prompt_tokens);
        self.cached_tokens.inc_by(usage.cached_tokens.unwrap_or_default());
        self.completion_tokens.inc_by(usage.completion_tokens.unwrap_or_default());
    }
}

/// The index of a status's class.
fn class(status: u16) -> usize {
    match status {
        499 => 5,
        ..200 => 0,
        200..300 => 1,
        300..400 => 2,
        400..500 => 3,
        500.. => 4,
    }
}
