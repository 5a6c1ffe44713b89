//! `least_outstanding`: fewest outstanding relative to weight, ties by chance. It does not look at the prompt.

use std::cmp::Ordering;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use super::candidates::by_load;
use super::{Aim, Candidates, Choice, Explanation, Reason, Standing, Strategy, Would};

pub(super) struct LeastOutstanding;

impl Strategy for LeastOutstanding {
    fn choose(&self, _: &Aim, candidates: &Candidates<'_>, rng: &mut dyn Rng) -> Option<Choice> {
        let mut all = candidates.iter();
        let (mut least, mut ties) = (all.next()?, 1_u32);
        // In an idle fleet all are equal. A number for each of a thousand from `rng`, which is made to keep secrets, takes as long as all the rest.
        let mut quick = None;
        for replica in all {
            match by_load(replica, least) {
                Ordering::Less => (least, ties) = (replica, 1),
                Ordering::Equal => {
                    // The n-th of equals replaces the one held with chance 1/n: each of them is as likely in the end.
                    ties += 1;
                    let quick = quick.get_or_insert_with(|| SmallRng::seed_from_u64(rng.next_u64()));
                    if quick.random_range(0..ties) == 0 {
                        least = replica;
                    }
                }
                Ordering::Greater => {}
            }
        }
        Some(Choice::new(least.lease(), Reason::Load))
    }

    fn explain(&self, _: &Aim, candidates: &Candidates<'_>) -> Explanation {
        let mut all: Vec<_> = candidates.iter().collect();
        all.sort_by(|one, other| by_load(one, other));
        let would = match all.as_slice() {
            [] => Would::Nobody,
            [least, next, ..] if by_load(least, next).is_eq() => Would::Any(Reason::Load),
            [least, ..] => Would::Go { replica: Arc::clone(least), reason: Reason::Load, instead_of: None },
        };
        Explanation { would, standings: all.into_iter().map(Standing::of).collect() }
    }
}
