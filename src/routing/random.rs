//! `random`: uniform by weight. It looks at neither prompt nor load.

use rand::{Rng, RngExt};

use super::{Aim, Candidates, Choice, Explanation, Reason, Standing, Strategy, Would};

pub(super) struct Random;

impl Strategy for Random {
    fn choose(&self, _: &Aim, candidates: &Candidates<'_>, rng: &mut dyn Rng) -> Option<Choice> {
        let total: u64 = candidates.iter().map(|replica| replica.weight()).sum();
        let mut ticket = if total == 0 { return None } else { rng.random_range(0..total) };
        let replica = candidates.iter().find(|replica| {
            let hit = ticket < replica.weight();
            ticket = ticket.saturating_sub(replica.weight());
            hit
        })?;
        Some(Choice::new(replica.lease(), Reason::Load))
    }

    fn explain(&self, _: &Aim, candidates: &Candidates<'_>) -> Explanation {
        any(candidates)
    }
}

/// What is to be said where none of the candidates is more likely than its weight makes it.
pub(super) fn any(candidates: &Candidates<'_>) -> Explanation {
    let standings: Vec<_> = candidates.iter().map(Standing::of).collect();
    let would = if standings.is_empty() { Would::Nobody } else { Would::Any(Reason::Load) };
    Explanation { would, standings }
}
