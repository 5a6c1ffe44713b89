//! `least_outstanding`: fewest outstanding relative to weight, ties by chance. It does not look at the prompt.

use std::cmp::Ordering;

use rand::{Rng, RngExt};

use super::candidates::by_load;
use super::{Candidates, Choice, Reason, Strategy};
use crate::request::Key;

pub(super) struct LeastOutstanding;

impl Strategy for LeastOutstanding {
    fn choose(&self, _: Option<Key>, candidates: &Candidates<'_>, rng: &mut dyn Rng) -> Option<Choice> {
        let mut all = candidates.iter();
        let (mut least, mut ties) = (all.next()?, 1_u32);
        for replica in all {
            match by_load(replica, least) {
                Ordering::Less => (least, ties) = (replica, 1),
                Ordering::Equal => {
                    // The n-th of equals replaces the one held with chance 1/n: each of them is as likely in the end.
                    ties += 1;
                    if rng.random_range(0..ties) == 0 {
                        least = replica;
                    }
                }
                Ordering::Greater => {}
            }
        }
        Some(Choice::new(least.lease(), Reason::Load))
    }
}
