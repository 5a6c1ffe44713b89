//! What operators ask of replicas by the API: no new requests, or another weight. It is asked of a name, and holds whatever is reloaded.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::units::Weight;

/// How long a replica may be away and what was asked of it still holds when it returns: longer than a restart or a flapping name takes, and too short for
/// its address to be somebody else's.
const MEMORY: Duration = Duration::from_secs(600);

/// What is asked of one replica.
#[derive(Debug, Default)]
struct Wish {
    drain: bool,
    weight: Option<Weight>,
    /// Since when it has been away, if it is.
    away: Option<Instant>,
}

/// What is asked, by name.
#[derive(Debug, Default)]
pub(super) struct Wishes(HashMap<String, Wish>);

impl Wishes {
    /// Whether that changes anything.
    pub(super) fn drain(&mut self, name: &str, drain: bool) -> bool {
        let changed = std::mem::replace(&mut self.of(name).drain, drain) != drain;
        self.forget_empty();
        changed
    }

    /// `None`: as configured. What was asked before.
    pub(super) fn weigh(&mut self, name: &str, weight: Option<Weight>) -> Option<Weight> {
        let before = std::mem::replace(&mut self.of(name).weight, weight);
        self.forget_empty();
        before
    }

    pub(super) fn is_drained(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|wish| wish.drain)
    }

    pub(super) fn weight(&self, name: &str) -> Option<Weight> {
        self.0.get(name)?.weight
    }

    /// The names of those who are drained.
    pub(super) fn drained(&self) -> HashSet<String> {
        self.0.iter().filter(|(_, wish)| wish.drain).map(|(name, _)| name.clone()).collect()
    }

    /// Takes note of who is there now, and forgets what was asked of those who have been away for too long.
    pub(super) fn look(&mut self, present: &HashSet<&str>, now: Instant) {
        self.0.retain(|name, wish| {
            let is_over = wish.away.is_some_and(|since| now.duration_since(since) >= MEMORY);
            wish.away = if present.contains(name.as_str()) { None } else { Some(wish.away.unwrap_or(now)) };
            !is_over
        });
    }

    fn of(&mut self, name: &str) -> &mut Wish {
        self.0.entry(name.to_owned()).or_default()
    }

    fn forget_empty(&mut self) {
        self.0.retain(|_, wish| wish.drain || wish.weight.is_some());
    }
}
