//! What is counted of every request when it is over: who sent what where and why, how long that took, and how many tokens.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::local::LocalHistogram;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};
use strum::VariantArray;

use super::at_hand::AtHand;
use super::history::ByReason;
use super::labels::{reason, route};
use super::models::{ModelLabel, Models};
use super::series::Series;
use crate::fleet::Snapshot;
use crate::request::{Surface, Usage};
use crate::routing::{Reason, StrategyName};

/// Times of requests, in seconds: from a cached prefix on an idle replica to the longest generation. The same for all, so that they can be compared.
const TIME_BUCKETS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0, 600.0];

/// What the router does for a request: from ten microseconds to what would be a fault.
const OVERHEAD_BUCKETS: &[f64] = &[0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0];

/// From a question to a shelf of books.
const PROMPT_BUCKETS: &[f64] = &[256.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];

/// The classes of statuses.
pub const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "499"];

/// What tokens are counted as.
const TOKENS: [&str; 3] = ["prompt", "cached", "completion"];

/// A request that is over.
pub(super) struct Finished {
    pub(super) surface: Option<Surface>,
    pub(super) model: ModelLabel,
    pub(super) strategy: StrategyName,
    pub(super) reason: Option<Reason>,
    /// What the client was told; 499 where it left.
    pub(super) status: u16,
    pub(super) first_byte: Option<Duration>,
    /// Of a good answer that comes piece by piece.
    pub(super) first_token: Option<Duration>,
    pub(super) whole: Duration,
    /// What the router itself took, where it was sent on.
    pub(super) overhead: Option<Duration>,
    /// Bytes of its prompt, where it has one.
    pub(super) prompt_bytes: Option<usize>,
    /// What its answer said that it took.
    pub(super) usage: Option<Usage>,
}

/// The series of requests.
pub(super) struct Requests {
    requests: IntCounterVec,
    tokens: IntCounterVec,
    first_byte: HistogramVec,
    first_token: HistogramVec,
    gap: HistogramVec,
    duration: HistogramVec,
    overhead: Histogram,
    prompt: Histogram,
    models: Models,
    counts: AtHand<IntCounter>,
    /// Of prompt, cached and completion tokens.
    token_counts: AtHand<[IntCounter; TOKENS.len()]>,
    first_bytes: AtHand<Histogram>,
    first_tokens: AtHand<Histogram>,
    gaps: AtHand<Histogram>,
    durations: AtHand<Histogram>,
}

/// What was counted of requests so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests by reason.
    pub by_reason: ByReason,
    /// And by the class of their status, in the order of [`CLASSES`].
    pub by_status: [u64; CLASSES.len()],
    /// Tokens of prompts that answers told of, and those of them that were cached.
    pub prompt_tokens: u64,
    /// See `prompt_tokens`.
    pub cached_tokens: u64,
}

/// Shows all series of a counter: what its labels are, and what it has counted.
fn each(counters: &IntCounterVec, mut see: impl FnMut(&dyn Fn(&str) -> String, u64)) {
    for family in counters.collect() {
        for metric in family.get_metric() {
            let label = |name: &str| {
                metric.get_label().iter().find(|label| label.name() == name).map_or_else(String::new, |label| label.value().to_owned())
            };
            see(&label, metric.get_counter().get_value() as u64);
        }
    }
}

/// What tells counts of requests apart.
#[derive(Clone, Copy, Default)]
struct Labels {
    model: ModelLabel,
    strategy: u8,
    /// The place of a surface among all; behind the last: none.
    route: u8,
    /// The place of a reason among all; behind the last: none.
    reason: u8,
    class: u8,
}

impl Labels {
    fn new(model: ModelLabel, strategy: StrategyName, surface: Option<Surface>, why: Option<Reason>, class: u8) -> Self {
        Self {
            model,
            strategy: strategy as u8,
            route: surface.map_or(Surface::VARIANTS.len() as u8, |surface| surface as u8),
            reason: reason_number(why),
            class,
        }
    }

    fn number(self) -> u64 {
        u64::from(self.model.0) << 32 | u64::from(u32::from_be_bytes([self.strategy, self.route, self.reason, self.class]))
    }

    fn of_number(number: u64) -> Self {
        let [strategy, route, reason, class] = (number as u32).to_be_bytes();
        Self { model: ModelLabel((number >> 32) as u32), strategy, route, reason, class }
    }

    fn reason(self) -> &'static str {
        reason(Reason::ALL.get(usize::from(self.reason)).copied())
    }

    /// As `requests_total` has them.
    fn of_request(self, model: &str) -> [&str; 5] {
        let surface = Surface::VARIANTS.get(usize::from(self.route)).copied();
        [route(surface), model, StrategyName::ALL[usize::from(self.strategy)].name(), self.reason(), CLASSES[usize::from(self.class)]]
    }
}

fn reason_number(reason: Option<Reason>) -> u8 {
    reason.map_or(Reason::ALL.len() as u8, |reason| reason as u8)
}

impl Requests {
    pub(super) fn new(series: &mut Series, most_models: usize) -> prometheus::Result<Self> {
        Ok(Self {
            requests: series.counters(
                "prefix_router_requests_total",
                "Requests by route, model, strategy, reason of the choice and status class (499: the client left).",
                &["route", "model", "strategy", "reason", "status"],
            )?,
            tokens: series.counters(
                "prefix_router_usage_tokens_total",
                "Tokens that replicas' answers told of, by kind; cached ones are prompt ones as well.",
                &["model", "reason", "kind"],
            )?,
            first_byte: series.histograms(
                "prefix_router_time_to_first_byte_seconds",
                "Time from a request's head to the first byte of its answer's body.",
                &["route", "reason"],
                TIME_BUCKETS,
            )?,
            first_token: series.histograms(
                "prefix_router_time_to_first_token_seconds",
                "Time from a request's head to the first event of its answer, of good answers that are streams of events.",
                &["reason"],
                TIME_BUCKETS,
            )?,
            gap: series.histograms(
                "prefix_router_inter_chunk_seconds",
                "Time between two pieces of such an answer, comments left out; counted when it is over.",
                &["reason"],
                TIME_BUCKETS,
            )?,
            duration: series.histograms(
                "prefix_router_request_duration_seconds",
                "Time from a request's head to the end of its answer.",
                &["route", "reason"],
                TIME_BUCKETS,
            )?,
            overhead: series.histogram(
                "prefix_router_overhead_seconds",
                "Time from when a request was read to when it was ready to be sent to a replica, less what it waited for room.",
                OVERHEAD_BUCKETS,
            )?,
            prompt: series.histogram(
                "prefix_router_prompt_bytes",
                "Size of prompts: messages, prompt or input with what the system says, as the body has them.",
                PROMPT_BUCKETS,
            )?,
            models: Models::new(most_models),
            counts: AtHand::default(),
            token_counts: AtHand::default(),
            first_bytes: AtHand::default(),
            first_tokens: AtHand::default(),
            gaps: AtHand::default(),
            durations: AtHand::default(),
        })
    }

    /// What all series together say.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let reasons: Vec<&str> = Reason::ALL.iter().map(|reason| reason.label()).chain(["none"]).collect();
        each(&self.requests, |label, count| {
            let by = |names: &[&str], name, counts: &mut [u64]| {
                if let Some(place) = names.iter().position(|&one| one == label(name)) {
                    counts[place] += count;
                }
            };
            by(&reasons, "reason", &mut totals.by_reason);
            by(&CLASSES, "status", &mut totals.by_status);
        });
        each(&self.tokens, |label, count| match label("kind").as_str() {
            "prompt" => totals.prompt_tokens += count,
            "cached" => totals.cached_tokens += count,
            _ => {}
        });
        totals
    }

    pub(super) fn models(&self) -> &Models {
        &self.models
    }

    /// Counts a request that is over.
    pub(super) fn count(&self, request: &Finished) {
        let labels =
            Labels::new(self.models.current(request.model), request.strategy, request.surface, request.reason, class(request.status));
        self.counts.with(
            labels.number(),
            || self.requests.with_label_values(&labels.of_request(&self.models.name(labels.model))),
            IntCounter::inc,
        );
        // For times the route and the reason alone count, or the reason.
        let place = Labels { route: labels.route, reason: labels.reason, ..Labels::default() };
        let by_route = [route(request.surface), labels.reason()];
        let by_reason = (u64::from(labels.reason), &by_route[1..]);
        let by_route = (place.number(), by_route.as_slice());
        for (time, at_hand, of_all, (number, names)) in [
            (Some(request.whole), &self.durations, &self.duration, by_route),
            (request.first_byte, &self.first_bytes, &self.first_byte, by_route),
            (request.first_token, &self.first_tokens, &self.first_token, by_reason),
        ] {
            if let Some(time) = time {
                at_hand.with(number, || of_all.with_label_values(names), |histogram| histogram.observe(time.as_secs_f64()));
            }
        }
        if let Some(overhead) = request.overhead {
            self.overhead.observe(overhead.as_secs_f64());
        }
        if let Some(bytes) = request.prompt_bytes {
            self.prompt.observe(bytes as f64);
        }
        if let Some(usage) = request.usage {
            self.used(labels, usage);
        }
    }

    /// Counts what an answer said that its request took.
    fn used(&self, labels: Labels, usage: Usage) {
        let place = Labels { model: labels.model, reason: labels.reason, ..Labels::default() };
        let make = || {
            let model = self.models.name(labels.model);
            TOKENS.map(|kind| self.tokens.with_label_values(&[&model, labels.reason(), kind]))
        };
        self.token_counts.with(place.number(), make, |[prompt, cached, completion]| {
            prompt.inc_by(usage.prompt_tokens);
            cached.inc_by(usage.cached_tokens.unwrap_or_default());
            completion.inc_by(usage.completion_tokens.unwrap_or_default());
        });
    }

    /// Where the times between the pieces of one answer go. They are counted when it is dropped.
    pub(super) fn gaps(&self, why: Option<Reason>) -> LocalHistogram {
        self.gaps.with(reason_number(why).into(), || self.gap.with_label_values(&[reason(why)]), Histogram::local)
    }

    /// Removes the series of models that nobody lists any more.
    pub(super) fn sweep(&self, fleet: &Snapshot) {
        self.models.keep_those_of(fleet, |gone, name| {
            let is_other = |number: u64| Labels::of_number(number).model != gone;
            self.counts.retain(is_other, |number| {
                let _ = self.requests.remove_label_values(&Labels::of_number(number).of_request(name));
            });
            self.token_counts.retain(is_other, |number| {
                for kind in TOKENS {
                    let _ = self.tokens.remove_label_values(&[name, Labels::of_number(number).reason(), kind]);
                }
            });
        });
    }
}

/// The place of a status's class.
fn class(status: u16) -> u8 {
    match status {
        499 => 5,
        ..200 => 0,
        200..300 => 1,
        300..400 => 2,
        400..500 => 3,
        500.. => 4,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fleet::{Fleet, PoolName, ReplicaSpec, health};
    use crate::units::Weight;

    #[test]
    fn lists_are_in_the_order_of_their_kinds() {
        assert!(Surface::ALL.iter().enumerate().all(|(index, &surface)| surface as usize == index));
        assert!(Reason::ALL.iter().enumerate().all(|(index, &reason)| reason as usize == index));
        assert!(StrategyName::ALL.iter().enumerate().all(|(index, &strategy)| strategy as usize == index));
    }

    proptest! {
        #[test]
        fn labels_are_told_apart_by_their_numbers(model: u32, strategy: u8, route: u8, reason: u8, class: u8) {
            let labels = Labels { model: ModelLabel(model), strategy, route, reason, class };
            let back = Labels::of_number(labels.number());
            prop_assert_eq!((back.model, back.strategy, back.route, back.reason, back.class), (ModelLabel(model), strategy, route, reason, class));
        }
    }

    fn finished(model: ModelLabel) -> Finished {
        Finished {
            surface: Some(Surface::ChatCompletions),
            model,
            strategy: StrategyName::PrefixAware,
            reason: Some(Reason::Home),
            status: 200,
            first_byte: Some(Duration::from_millis(3)),
            first_token: Some(Duration::from_millis(3)),
            whole: Duration::from_millis(7),
            overhead: Some(Duration::from_micros(40)),
            prompt_bytes: Some(1_000),
            usage: Some(Usage { prompt_tokens: 10, cached_tokens: Some(4), completion_tokens: None }),
        }
    }

    fn lines(series: &Series) -> Vec<String> {
        let text = prometheus::TextEncoder::new().encode_to_string(&series.registry.gather()).expect("text");
        text.lines().filter(|line| !line.starts_with('#') && !line.contains("_bucket")).map(str::to_owned).collect()
    }

    #[test]
    fn a_request_is_counted_by_all_that_is_known_of_it() {
        let mut series = Series::default();
        let requests = Requests::new(&mut series, 8).expect("series");
        requests.count(&finished(ModelLabel::default()));
        requests.gaps(Some(Reason::Overflow)).observe(0.02);
        for expected in [
            "prefix_router_requests_total{model=\"none\",reason=\"home\",route=\"chat_completions\",status=\"2xx\",strategy=\"prefix_aware\"} 1",
            "prefix_router_usage_tokens_total{kind=\"cached\",model=\"none\",reason=\"home\"} 4",
            "prefix_router_time_to_first_byte_seconds_count{reason=\"home\",route=\"chat_completions\"} 1",
            "prefix_router_time_to_first_token_seconds_count{reason=\"home\"} 1",
            "prefix_router_request_duration_seconds_sum{reason=\"home\",route=\"chat_completions\"} 0.007",
            "prefix_router_inter_chunk_seconds_count{reason=\"overflow\"} 1",
            "prefix_router_overhead_seconds_sum 0.00004",
            "prefix_router_prompt_bytes_sum 1000",
        ] {
            assert!(lines(&series).iter().any(|line| line == expected), "no {expected} in {:#?}", lines(&series));
        }
    }

    #[test]
    fn the_series_of_a_model_go_with_it() {
        let spec = |models: &[&str]| ReplicaSpec {
            name: "a".into(),
            authority: "a".into(),
            weight: Weight::clamped(1),
            models: models.iter().map(|model| (*model).to_owned()).collect(),
            drain: false,
        };
        let mut series = Series::default();
        let requests = Requests::new(&mut series, 8).expect("series");
        let label = |model: &str| requests.models().label(Some(model), Some(&PoolName::Model(model.to_owned())));
        let (one, other) = (label("one"), label("other one"));
        [one, other].into_iter().for_each(|label| requests.count(&finished(label)));
        let of = |name: &str| lines(&series).iter().filter(|line| line.contains(&format!("model=\"{name}\""))).count();
        assert_eq!((of("one"), of("other one")), (4, 4));
        requests.sweep(&Fleet::new(vec![spec(&["other one"])], health::Settings::default(), 0).snapshot());
        assert_eq!((of("one"), of("other one")), (0, 4));
        // A request that was under way meanwhile.
        requests.count(&finished(one));
        assert_eq!((of("one"), of("other")), (0, 4));
    }
}
