//! `round_robin`: in turn, each as often as its weight says. It looks at neither prompt nor load.

use std::sync::{Mutex, PoisonError, Weak};

use rand::Rng;

use super::random::any;
use super::{Aim, Candidates, Choice, Explanation, Reason, Strategy};
use crate::fleet::{ByIncarnation, Incarnation};

/// Every candidate earns its weight at each turn; the richest is chosen and pays what all earned. Equal replicas thus take strict turns,
/// and a heavy one's turns are spread out instead of coming in a row.
#[derive(Default)]
pub(super) struct RoundRobin {
    bank: Mutex<Bank>,
}

#[derive(Default)]
struct Bank {
    accounts: ByIncarnation<Account>,
    /// With so many accounts it is time to close those whose holders have left.
    full: usize,
}

/// An incarnation's credit, and a sign of whether it is still there.
struct Account {
    credit: i64,
    holder: Weak<Incarnation>,
}

impl Bank {
    /// Keeps a fleet whose replicas come and go from leaving accounts behind for ever. It looks only when the accounts have doubled, so that it costs
    /// nothing per choice.
    fn close_left(&mut self) {
        if self.accounts.len() > self.full {
            self.accounts.retain(|_, account| account.holder.strong_count() > 0);
            self.full = 2 * self.accounts.len() + 16;
        }
    }
}

impl Strategy for RoundRobin {
    fn choose(&self, _: &Aim, candidates: &Candidates<'_>, _: &mut dyn Rng) -> Option<Choice> {
        // A poisoned lock holds numbers that are still sound.
        let mut bank = self.bank.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut richest, mut most, mut earned) = (None, i64::MIN, 0);
        for replica in candidates.iter() {
            let account = bank.accounts.entry(replica.incarnation()).or_insert_with(|| Account { credit: 0, holder: replica.watch() });
            account.credit += replica.weight() as i64;
            earned += replica.weight() as i64;
            if account.credit > most {
                (richest, most) = (Some(replica), account.credit);
            }
        }
        let replica = richest?;
        if let Some(account) = bank.accounts.get_mut(&replica.incarnation()) {
            account.credit = most - earned;
        }
        bank.close_left();
        Some(Choice::new(replica.lease(), Reason::Load))
    }

    /// Whose turn it is may be somebody else's by the time that a request comes.
    fn explain(&self, _: &Aim, candidates: &Candidates<'_>) -> Explanation {
        any(candidates)
    }
}
