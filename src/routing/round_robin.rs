//! `round_robin`: in turn, each as often as its weight says. It looks at neither prompt nor load.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rand::Rng;

use super::{Candidates, Choice, Reason, Strategy};
use crate::request::Key;

/// Every candidate earns its weight at each turn; the richest is chosen and pays what all earned. Equal replicas thus take strict turns,
/// and a heavy one's turns are spread out instead of coming in a row.
#[derive(Default)]
pub(super) struct RoundRobin {
    /// Credit by the replica's place in the fleet.
    credit: Mutex<HashMap<usize, i64>>,
}

impl Strategy for RoundRobin {
    fn choose(&self, _: Option<Key>, candidates: &Candidates<'_>, _: &mut dyn Rng) -> Option<Choice> {
        // A poisoned lock holds numbers that are still sound.
        let mut credit = self.credit.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut richest, mut most, mut earned) = (None, i64::MIN, 0);
        for replica in candidates.iter() {
            let own = credit.entry(replica.index()).or_default();
            *own += replica.weight() as i64;
            earned += replica.weight() as i64;
            if *own > most {
                (richest, most) = (Some(replica), *own);
            }
        }
        let replica = richest?;
        credit.insert(replica.index(), most - earned);
        Some(Choice { lease: replica.lease(), reason: Reason::Load })
    }
}
