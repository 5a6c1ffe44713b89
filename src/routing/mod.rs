//! Which one. A strategy picks a replica among candidates and takes the lease in the same step; it says why.
//!
//! Pure: chance is an argument, and nothing is logged or counted here. What a choice means to the outside is in its [`Reason`].

mod cache_aware;
mod candidates;
mod decay;
mod explain;
mod first_sight;
mod gate;
mod least_outstanding;
mod memories;
mod memory;
mod prefix_aware;
mod random;
mod round_robin;
mod sight;
mod table;
mod top_keys;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use rand::Rng;
use strum::VariantArray;

pub use cache_aware::{Forecast, Report, Turn, Verdict};
pub use candidates::Candidates;
pub use explain::{Expected, Explanation, HotKey, PassedOver, Peek, Standing, Step, Would};
pub use sight::{Direction, FirstSight, Fit, Moved, Sight};

use crate::fleet::{Lease, Pool, Replica, Trial};
use crate::request::{Ask, Boundaries, Boundary, Placement, Usage};
use crate::units::{ConcurrencyThreshold, OrAuto, PrefixLength};
use cache_aware::CacheAware;
use least_outstanding::LeastOutstanding;
use prefix_aware::PrefixAware;
use random::Random;
use round_robin::RoundRobin;

/// How a replica is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The rule.
    pub strategy: StrategyName,
    /// The gate of `prefix_aware`.
    pub concurrency_threshold: OrAuto<ConcurrencyThreshold>,
    /// Where `prefix_aware` goes when the home is gated.
    pub overflow: OrAuto<Overflow>,
    /// How much of a prompt makes the key, as in [`request::Settings`](crate::request::Settings): where that is worked out, `prefix_aware` does it.
    pub prefix_length: OrAuto<PrefixLength>,
    /// Whether it is watched how well a prefix of fixed length fits. (One that is worked out is watched in any case.)
    pub studies: bool,
    /// How many routers send to these replicas, this one included; 0 where nobody says. One alone may place more freely what it has never seen.
    pub routers: u32,
    /// Bytes that `cache_aware` may take to remember what the replicas of all pools hold.
    pub index_memory: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            strategy: StrategyName::PrefixAware,
            concurrency_threshold: OrAuto::Auto,
            overflow: OrAuto::Auto,
            prefix_length: OrAuto::Auto,
            studies: true,
            routers: 0,
            index_memory: 64 << 20,
        }
    }
}

/// The strategies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum StrategyName {
    /// The key's home, unless it is gated.
    PrefixAware,
    /// The lowest predicted time to the first token.
    CacheAware,
    /// Fewest outstanding relative to weight.
    LeastOutstanding,
    /// In turn.
    RoundRobin,
    /// Uniform by weight.
    Random,
}

impl StrategyName {
    /// All of them, the most useful first.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// Its name to users (DESIGN section 5).
    pub fn name(self) -> &'static str {
        match self {
            Self::PrefixAware => "prefix_aware",
            Self::CacheAware => "cache_aware",
            Self::LeastOutstanding => "least_outstanding",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
        }
    }

    /// Whether it looks at the prompt.
    pub fn goes_by_key(self) -> bool {
        matches!(self, Self::PrefixAware | Self::CacheAware)
    }
}

/// Where a request goes whose home is gated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// To the least loaded of all, so that the load is spread best.
    LeastLoaded,
    /// To the less loaded of the key's 2nd and 3rd choice, so that a hot key's overflow finds its earlier overflow's cache.
    NextChoices,
}

/// Why a replica was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, VariantArray)]
pub enum Reason {
    /// It is the key's home.
    Home,
    /// It holds more of the prompt than the home.
    Cached,
    /// The home is gated, or has so much more to do that it is worth computing the prompt elsewhere.
    Overflow,
    /// The home is not eligible, or an earlier try failed before the first byte.
    Failover,
    /// The prompt has no text.
    NoKey,
    /// The strategy or the surface looks at load (or chance) alone.
    Load,
}

impl Reason {
    /// All reasons, for metrics.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The label in headers, metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Home => "home",
            Self::Cached => "cached",
            Self::Overflow => "overflow",
            Self::Failover => "failover",
            Self::NoKey => "no_key",
            Self::Load => "load",
        }
    }
}

/// A replica, counted, and why it was chosen.
#[derive(Debug)]
pub struct Choice {
    /// Counts the request on the chosen replica until dropped.
    pub lease: Lease,
    /// Why this one.
    pub reason: Reason,
    /// What became of a key that was seen for the first time.
    pub first_sight: Option<FirstSight>,
    /// Who was not chosen, though its key's first choice.
    pub instead_of: Option<PassedOver>,
    /// What was expected of it, by a strategy that learns from what comes.
    pub forecast: Option<Box<Forecast>>,
    /// Held where the request shows whether the replica is well again: until the first byte of the answer, or the failure that comes in its place.
    pub trial: Option<Trial>,
}

impl Choice {
    fn new(lease: Lease, reason: Reason) -> Self {
        Self { lease, reason, first_sight: None, instead_of: None, forecast: None, trial: None }
    }
}

/// What is settled of a request once, before its first choice, and holds for all of them: while it waits for room, and when it is tried again.
#[derive(Clone, Debug, Default)]
pub enum Aim {
    /// To go by load.
    #[default]
    ByLoad,
    /// The prompt has no text.
    NoKey,
    /// To be where its key belongs.
    ByKey(Sight),
}

impl Aim {
    /// Whether it is known what it would be to send it somewhere, by a strategy that has pictures of the replicas.
    pub fn is_by_cost(&self) -> bool {
        matches!(self, Self::ByKey(Sight { chunks: Some(_), .. }))
    }
}

/// What a strategy can tell of itself and one pool at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Insight {
    /// From how many outstanding requests on a replica's gate is closed now, by incarnation; those that have no gate are not there.
    pub thresholds: Vec<(u64, u64)>,
    /// Of the keys that were asked for of late, the share that was known; `None` where nobody counts.
    pub reuse: Option<f64>,
    /// Of the recent requests, the share that the most frequent key has; `None` where nobody counts, or too few were seen.
    pub top_key_share: Option<f64>,
    /// What is thought of the replicas, by a strategy that has pictures of them, of which one was needed already.
    pub pictures: Vec<PictureInsight>,
    /// Of prompts of which nothing is known to be anywhere, and of what is beyond what is known, the shares that are found.
    pub credit: Option<[f64; 2]>,
    /// Of the requests in flight, the share that others sent; `None` where that cannot be seen.
    pub others: Option<f64>,
}

/// What is thought of one replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PictureInsight {
    /// Whose.
    pub incarnation: u64,
    /// Seconds that a token of a prompt takes.
    pub seconds_per_token: f64,
    /// Seconds that a request in flight costs the next one.
    pub decode_seconds: f64,
    /// Bytes of text in a token.
    pub bytes_per_token: f64,
    /// Of what is thought to be in its cache, the share that is found.
    pub kept: f64,
    /// Whether that is much less than all, for long.
    pub is_wrong: bool,
    /// Bytes of text that it is thought to hold.
    pub held_bytes: u64,
    /// Tokens that it has still to compute for this router.
    pub ahead_tokens: f64,
}

/// What it would be to send a request where a strategy would.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Who would be chosen.
    pub incarnation: u64,
    /// Seconds of prompts that it has to compute before.
    pub ahead: f64,
    /// Seconds that the request's own prompt would take.
    pub uncached: f64,
}

/// A rule that picks one of several replicas.
pub trait Strategy: Send + Sync {
    /// What a request whose prompt has these boundaries, of which there is at least one, is placed by among the members of `pool`. Called once for each.
    fn aim(&self, ask: &Ask, boundaries: &Boundaries, pool: &Pool) -> Aim {
        let _ = (ask, pool);
        boundaries.last().map_or(Aim::NoKey, |last| Aim::ByKey(last.key.into()))
    }

    /// Whether a prompt need not be known beyond `boundary`: the aim would be the same. It is not counted.
    fn is_enough(&self, boundary: &Boundary, pool: &Pool) -> bool {
        let _ = (boundary, pool);
        true
    }

    /// What [`Self::aim`] would come to. Nothing is counted.
    fn peek(&self, ask: &Ask, boundaries: &Boundaries, pool: &Pool) -> Peek {
        let steps = boundaries.iter().map(|&boundary| Step { boundary, share: None, limit: None, is_hot: false }).collect();
        let aim = self.aim(ask, boundaries, pool);
        Peek { aim, steps, chosen: boundaries.len().saturating_sub(1), is_known: None }
    }

    /// Picks a candidate; `None` only where there are none, or where the one it would be has enough to do ([`Candidates::within`]).
    fn choose(&self, aim: &Aim, candidates: &Candidates<'_>, rng: &mut dyn Rng) -> Option<Choice>;

    /// What [`Self::choose`] would do. Nothing is chosen, counted or remembered.
    fn explain(&self, aim: &Aim, candidates: &Candidates<'_>) -> Explanation;

    /// What it would be to go to the candidate that costs least; `None` where that is not known. Nothing is chosen, and nothing counted.
    fn estimate(&self, aim: &Aim, candidates: &Candidates<'_>) -> Option<Estimate> {
        let _ = (aim, candidates);
        None
    }

    /// From how many outstanding requests on a replica's gate is closed now, by incarnation; those that have no gate are not there.
    fn thresholds(&self, pool: &Pool, now: Instant) -> Vec<(u64, u64)> {
        let _ = (pool, now);
        Vec::new()
    }

    /// What there is to be seen of it.
    fn insight(&self, pool: &Pool, now: Instant) -> Insight {
        let _ = (pool, now);
        Insight::default()
    }

    /// A pool's most frequent keys, at most so many; none where nobody counts.
    fn hot_keys(&self, pool: &Pool, most: usize) -> Vec<HotKey> {
        let _ = (pool, most);
        Vec::new()
    }

    /// Whether it goes by a prompt's chunks.
    fn wants_chunks(&self) -> bool {
        false
    }

    /// A good answer has begun, so long after its request was sent, where that tells how long the prompt took.
    fn began(&self, forecast: &Forecast, took: Option<Duration>) {
        let _ = (forecast, took);
    }

    /// An answer said what it took; it was generated for so long, where it came piece by piece, and so many requests are in flight there now.
    fn answered(&self, forecast: &Forecast, usage: &Usage, generating: Option<Duration>, outstanding: u64) -> Option<Verdict> {
        let _ = (forecast, usage, generating, outstanding);
        None
    }

    /// What a replica's engine says of itself.
    fn hear(&self, replica: &Replica, report: &Report, now: Instant) -> Option<Verdict> {
        let _ = (replica, report, now);
        None
    }

    /// A replica's engine has begun anew, with an empty cache.
    fn restarted(&self, replica: &Replica) {
        let _ = replica;
    }
}

/// A configured strategy, with what holds for all of them.
pub struct Chooser {
    name: StrategyName,
    strategy: Box<dyn Strategy>,
}

impl Chooser {
    /// The strategy that `settings` name.
    pub fn new(settings: &Settings) -> Self {
        let strategy: Box<dyn Strategy> = match settings.strategy {
            StrategyName::Random => Box::new(Random),
            StrategyName::RoundRobin => Box::new(RoundRobin::default()),
            StrategyName::LeastOutstanding => Box::new(LeastOutstanding),
            StrategyName::PrefixAware => Box::new(PrefixAware::new(settings)),
            StrategyName::CacheAware => Box::new(CacheAware::new(settings)),
        };
        Self { name: settings.strategy, strategy }
    }

    /// Which strategy it is.
    pub fn name(&self) -> StrategyName {
        self.name
    }

    /// What a request to `pool` is placed by. It is counted, so this is asked once for each.
    pub fn aim(&self, ask: &Ask, pool: &Pool) -> Aim {
        match &ask.placement {
            Placement::ByLoad => Aim::ByLoad,
            Placement::ByKey(boundaries) if boundaries.is_empty() => Aim::NoKey,
            Placement::ByKey(boundaries) => self.strategy.aim(ask, boundaries, pool),
        }
    }

    /// What [`Self::aim`] would come to, and by what it would. Nothing is counted.
    pub fn peek(&self, ask: &Ask, pool: &Pool) -> Peek {
        match &ask.placement {
            Placement::ByLoad => Peek::default(),
            Placement::ByKey(boundaries) if boundaries.is_empty() => Peek { aim: Aim::NoKey, ..Peek::default() },
            Placement::ByKey(boundaries) => self.strategy.peek(ask, boundaries, pool),
        }
    }

    /// Whether requests are to be read with their chunks.
    pub fn wants_chunks(&self) -> bool {
        self.strategy.wants_chunks()
    }

    /// Takes note that a good answer has begun, so long after its request was sent, where that tells how long the prompt took.
    pub fn began(&self, forecast: &Forecast, took: Option<Duration>) {
        self.strategy.began(forecast, took);
    }

    /// Takes note of what an answer said that it took. `generating` is the time from its first byte to its last, where it came piece by piece;
    /// `outstanding` how many requests are in flight on its replica. What became of the forecast, where that can be told.
    pub fn answered(&self, forecast: &Forecast, usage: &Usage, generating: Option<Duration>, outstanding: u64) -> Option<Verdict> {
        self.strategy.answered(forecast, usage, generating, outstanding)
    }

    /// Takes note of what a replica's engine says of itself. What became of the forecasts since it spoke last, where only that tells it.
    pub fn hear(&self, replica: &Replica, report: &Report, now: Instant) -> Option<Verdict> {
        self.strategy.hear(replica, report, now)
    }

    /// Takes note that a replica's engine has begun anew, with an empty cache.
    pub fn restarted(&self, replica: &Replica) {
        self.strategy.restarted(replica);
    }

    /// Whether a prompt need not be known beyond `boundary` to be placed in `pool`: [`Self::aim`] would come to the same. It changes nothing.
    pub fn is_enough(&self, boundary: &Boundary, pool: &Pool) -> bool {
        self.strategy.is_enough(boundary, pool)
    }

    /// What it would be to go to the candidate that costs least; `None` where the strategy does not know that. Nothing is chosen, and nothing counted.
    pub fn estimate(&self, aim: &Aim, candidates: &Candidates<'_>) -> Option<Estimate> {
        match aim {
            Aim::ByLoad => None,
            _ => self.strategy.estimate(aim, candidates),
        }
    }

    /// From how many outstanding requests on a replica's gate is closed now, by incarnation; those that have no gate are not there.
    pub fn thresholds(&self, pool: &Pool, now: Instant) -> Vec<(u64, u64)> {
        self.strategy.thresholds(pool, now)
    }

    /// What there is to be seen of the strategy's work for `pool`. It costs time in proportion to the pool.
    pub fn insight(&self, pool: &Pool, now: Instant) -> Insight {
        self.strategy.insight(pool, now)
    }

    /// What [`Self::choose`] would do. Nothing is chosen, counted or remembered.
    pub fn explain(&self, aim: &Aim, candidates: &Candidates<'_>) -> Explanation {
        let mut explanation = match aim {
            Aim::ByLoad => LeastOutstanding.explain(aim, candidates),
            _ => self.strategy.explain(aim, candidates),
        };
        match &mut explanation.would {
            // Another request is there at this moment, and shows whether it is well.
            Would::Go { replica, .. } if candidates.is_on_trial(replica) && replica.is_tried() => {
                let others = self.explain(aim, &candidates.without(replica));
                if !matches!(others.would, Would::Nobody) {
                    return others;
                }
            }
            Would::Go { reason, .. } | Would::Any(reason) if candidates.is_another_try() => *reason = Reason::Failover,
            _ => {}
        }
        explanation
    }

    /// A pool's most frequent keys, at most so many; none where nobody counts, or too few requests were seen.
    pub fn hot_keys(&self, pool: &Pool, most: usize) -> Vec<HotKey> {
        self.strategy.hot_keys(pool, most)
    }

    /// Picks a candidate; `None` only where there are none, or where the one it would be has enough to do ([`Candidates::within`]). Whatever does no prefill goes by load under every strategy.
    pub fn choose(&self, aim: &Aim, candidates: &Candidates<'_>, rng: &mut dyn Rng) -> Option<Choice> {
        let mut choice = match aim {
            Aim::ByLoad => LeastOutstanding.choose(aim, candidates, rng),
            _ => self.strategy.choose(aim, candidates, rng),
        }?;
        if candidates.is_another_try() {
            choice.reason = Reason::Failover;
        }
        if candidates.is_on_trial(choice.lease.replica()) {
            choice.trial = choice.lease.replica().begin_trial();
            if choice.trial.is_none() {
                // Another request was faster. Where there is nobody else this one goes there as well.
                let others = self.choose(aim, &candidates.without(choice.lease.replica()), rng);
                return Some(others.unwrap_or(choice));
            }
        }
        Some(choice)
    }
}
