//! What may be simulated: the production strategies as they are configured, and the rules of [`super::peers`].

use super::peers::Peer;
use crate::routing::{self, StrategyName};
use crate::units::{ConcurrencyThreshold, OrAuto, PrefixLength};

/// A strategy and its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Strategy {
    /// As it is written on the command line.
    pub name: String,
    /// How it chooses.
    pub how: How,
    /// What engines tell routers that listen.
    pub told: Told,
    /// Whether requests are held back while replicas have enough to do, where the strategy knows that.
    pub holds: bool,
}

/// What engines tell a strategy that learns from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// What each answer found in the cache.
    pub usage: bool,
    /// Metrics: queues, batches, and the counters of the cache.
    pub metrics: bool,
}

impl Told {
    /// What an engine can tell.
    const ALL: Self = Self { usage: true, metrics: true };
}

/// How a strategy chooses.
#[derive(Clone, Debug, PartialEq)]
pub enum How {
    /// As in production.
    Production(routing::Settings),
    /// By a rule that is only here.
    Peer(Peer),
}

/// `prefix_aware` where one router alone is declared (`routers: 1`).
const ALONE: &str = "prefix_aware:alone";

/// `cache_aware` that sends each request at once; where answers do not tell what they found, which only the engines' counters show then; and where engines
/// have no metrics either. What they are told, and whether they hold requests back.
const CACHE_AWARE: [(&str, Told, bool); 3] = [
    ("cache_aware:at_once", Told::ALL, false),
    ("cache_aware:metrics", Told { usage: false, metrics: true }, true),
    ("cache_aware:blind", Told { usage: false, metrics: false }, true),
];

/// What peers that hash a beginning take of it.
const PEERS_LENGTH: PrefixLength = PrefixLength::clamped(4_096);

impl Strategy {
    /// The strategy of that name, with the defaults for all that the name does not say; or what is wrong with it.
    pub fn parse(name: &str) -> Result<Self, String> {
        let named = |how| Ok(Self { name: name.to_owned(), how, told: Told::ALL, holds: true });
        if let Some(&(_, told, holds)) = CACHE_AWARE.iter().find(|(known, ..)| *known == name) {
            let strategy = StrategyName::CacheAware;
            let how = How::Production(routing::Settings { strategy, ..routing::Settings::default() });
            return Ok(Self { name: name.to_owned(), how, told, holds });
        }
        let known = StrategyName::ALL.iter().copied().find(|strategy| strategy.name() == name);
        if let Some(strategy) = known {
            return named(How::Production(routing::Settings { strategy, ..routing::Settings::default() }));
        }
        if let Some(peer) = Peer::ALL.iter().copied().find(|peer| peer.name() == name) {
            return named(How::Peer(peer));
        }
        if name == ALONE {
            return named(How::Production(routing::Settings {
                strategy: StrategyName::PrefixAware,
                routers: 1,
                ..routing::Settings::default()
            }));
        }
        let Some(numbers) = name.strip_prefix("prefix_aware:") else { return Err(unknown(name)) };
        let (length, threshold) = numbers.split_once('/').ok_or_else(|| unknown(name))?;
        let (prefix_length, concurrency_threshold) = (or_auto(length, PrefixLength::new), or_auto(threshold, ConcurrencyThreshold::new));
        let (Some(prefix_length), Some(concurrency_threshold)) = (prefix_length, concurrency_threshold) else {
            let (lengths, thresholds) = ((PrefixLength::MIN, PrefixLength::MAX), (ConcurrencyThreshold::MIN, ConcurrencyThreshold::MAX));
            return Err(format!(
                "`{name}` is out of range; allowed: a length from {} to {} and a threshold from {} to {}, or `auto`",
                lengths.0, lengths.1, thresholds.0, thresholds.1
            ));
        };
        let routing =
            routing::Settings { strategy: StrategyName::PrefixAware, concurrency_threshold, prefix_length, ..routing::Settings::default() };
        named(How::Production(routing))
    }

    /// How much of a prompt it is placed by.
    pub fn prefix_length(&self) -> OrAuto<PrefixLength> {
        match &self.how {
            How::Production(routing) => routing.prefix_length,
            How::Peer(_) => OrAuto::Fixed(PEERS_LENGTH),
        }
    }
}

/// All names, as they are listed to users.
pub fn names() -> String {
    let production = StrategyName::ALL.iter().map(|strategy| strategy.name());
    let variants = ["prefix_aware:LENGTH/THRESHOLD", ALONE].into_iter().chain(CACHE_AWARE.map(|(name, ..)| name));
    let all: Vec<_> = production.chain(variants).chain(Peer::ALL.iter().map(|peer| peer.name())).collect();
    all.join(", ")
}

fn unknown(name: &str) -> String {
    format!("unknown strategy `{name}`; allowed: {}", names())
}

fn or_auto<T>(text: &str, new: impl Fn(u64) -> Option<T>) -> Option<OrAuto<T>> {
    if text == "auto" { Some(OrAuto::Auto) } else { text.parse().ok().and_then(new).map(OrAuto::Fixed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_and_others_are_refused() {
        for name in [
            "random",
            "round_robin",
            "least_outstanding",
            "prefix_aware",
            "prefix_aware:alone",
            "cache_aware:at_once",
            "cache_aware:metrics",
            "cache_aware:blind",
            "oracle",
            "bounded_load",
            "sglang",
            "llm-d",
            "dynamo",
        ] {
            assert_eq!(Strategy::parse(name).map(|strategy| strategy.name), Ok(name.to_owned()));
        }
        let How::Production(routing) = Strategy::parse("prefix_aware:4096/64").expect("it is one").how else { panic!("a peer") };
        assert_eq!(routing.prefix_length, OrAuto::Fixed(PrefixLength::clamped(4_096)));
        assert_eq!(routing.concurrency_threshold, OrAuto::Fixed(ConcurrencyThreshold::clamped(64)));
        let How::Production(routing) = Strategy::parse("prefix_aware:4096/auto").expect("it is one").how else { panic!("a peer") };
        assert_eq!((routing.prefix_length, routing.concurrency_threshold), (OrAuto::Fixed(PrefixLength::clamped(4_096)), OrAuto::Auto));
        for name in ["prefix_aware:512/64", "prefix_aware:auto/0", "prefix_aware:/", "prefix_aware:4096/Auto"] {
            assert!(Strategy::parse(name).expect_err("out of range").contains("1024 to 65536"), "{name}");
        }
        for name in ["rand", "prefix_aware:4096", ""] {
            let error = Strategy::parse(name).expect_err(name);
            assert!(error.contains("round_robin") && error.contains("llm-d"), "{error}");
        }
    }
}
