//! The gate of `prefix_aware`: from how many outstanding requests on a replica's new ones overflow (DESIGN section 4).
//!
//! Where they go then is `prefix_aware`'s.

use std::sync::Arc;

use super::Candidates;
use crate::fleet::{Lease, Replica};
use crate::units::{ConcurrencyThreshold, OrAuto};

/// No automatic threshold is lower: an engine serves so many at one time with little harm to each, and a lower one would close by chance alone where
/// little is going on. Whoever overflows for nothing recomputes its whole prompt, which others wait for: with 16, agents on two replicas had a worse tail
/// than without any home.
const LEAST: u64 = 24;

/// An automatic threshold is so many times what the others have on average, as a fraction: 2.4. Below 2, the ups and downs of ordinary traffic close
/// gates; above 3, a replica is swamped before its closes.
const TIMES: (u64, u64) = (12, 5);

/// The rule.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gate {
    /// At this number.
    Fixed(u64),
    /// In proportion to what the others have.
    Auto,
}

/// The thresholds of all candidates, as of one moment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Thresholds {
    Fixed(u64),
    /// What all candidates have outstanding, and their weights.
    Auto {
        outstanding: u64,
        weight: u64,
    },
}

impl From<OrAuto<ConcurrencyThreshold>> for Gate {
    fn from(threshold: OrAuto<ConcurrencyThreshold>) -> Self {
        threshold.fixed().map_or(Self::Auto, |threshold| Self::Fixed(threshold.get()))
    }
}

impl Gate {
    /// Counts one request on a candidate whose gate is open, and that is not full. The count is compared and raised in one step, so no two slip through.
    pub(super) fn enter(self, replica: &Arc<Replica>, candidates: &Candidates<'_>) -> Option<Lease> {
        match self {
            Self::Fixed(threshold) => replica.lease_below(candidates.gate(threshold)),
            // Mostly the others need not be asked, so that a choice costs the same in a fleet of any size.
            Self::Auto => replica
                .lease_below(candidates.gate(LEAST))
                .or_else(|| replica.lease_below(candidates.gate(self.thresholds(candidates).of(replica)))),
        }
    }

    /// All candidates' thresholds; those that are full count as others, too.
    pub(super) fn thresholds(self, candidates: &Candidates<'_>) -> Thresholds {
        match self {
            Self::Fixed(threshold) => Thresholds::Fixed(threshold),
            Self::Auto => {
                let add = |(outstanding, weight), replica: &Arc<Replica>| (outstanding + replica.outstanding(), weight + replica.weight());
                let (outstanding, weight) = candidates.regardless_of_room().fold((0, 0), add);
                Thresholds::Auto { outstanding, weight }
            }
        }
    }
}

impl Thresholds {
    /// That of one of the candidates; `u64::MAX` where it is the only one: it has no gate.
    pub(super) fn of(self, replica: &Replica) -> u64 {
        let (outstanding, weight) = match self {
            Self::Fixed(threshold) => return threshold,
            // What the replica has may have changed since; a little more or less of the others is no matter.
            Self::Auto { outstanding, weight } => {
                (outstanding.saturating_sub(replica.outstanding()), weight.saturating_sub(replica.weight()))
            }
        };
        let of_others = TIMES.0.saturating_mul(replica.weight()).saturating_mul(outstanding);
        if weight == 0 { u64::MAX } else { LEAST.max(of_others.div_ceil(TIMES.1 * weight)) }
    }

    /// Whether its gate is closed.
    pub(super) fn is_closed(self, replica: &Replica) -> bool {
        replica.outstanding() >= self.of(replica)
    }
}
