//! The replicas among which a request may choose: the eligible members of its pool, without those that it tried already.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Instant;

use crate::fleet::{Pool, Replica};
use crate::request::Key;

/// What a strategy picks from.
pub struct Candidates<'a> {
    pool: &'a Pool,
    eligible: Cow<'a, [bool]>,
    /// Whether an earlier try for the same request failed.
    is_another_try: bool,
}

impl<'a> Candidates<'a> {
    /// The members of `pool` that a request may go to at `now` which was at `tried` already.
    pub fn new(pool: &'a Pool, tried: &[Arc<Replica>], now: Instant) -> Self {
        Self { pool, eligible: pool.eligible(tried, now), is_another_try: !tried.is_empty() }
    }

    /// Whether an earlier try for the same request failed.
    pub(super) fn is_another_try(&self) -> bool {
        self.is_another_try
    }

    /// Whether a request that goes to that one shows whether it is well again.
    pub(super) fn is_on_trial(&self, replica: &Replica) -> bool {
        self.pool.is_on_trial(replica)
    }

    /// The same without that one.
    pub(super) fn without(&self, replica: &Replica) -> Self {
        let mut eligible = self.eligible.clone().into_owned();
        for (eligible, member) in eligible.iter_mut().zip(self.pool.members()) {
            *eligible &= !member.is(replica);
        }
        Self { pool: self.pool, eligible: Cow::Owned(eligible), is_another_try: self.is_another_try }
    }

    /// All of them, in the order of the membership.
    pub fn iter(&self) -> impl Iterator<Item = &'a Arc<Replica>> + use<'a, '_> {
        (0..self.pool.members().len()).filter_map(|index| self.at(index))
    }

    /// The key's home, where it may be chosen.
    pub(super) fn home(&self, key: Key) -> Option<&'a Arc<Replica>> {
        self.at(self.pool.ring().home(key)?)
    }

    /// All of them in the key's order.
    pub(super) fn order(&self, key: Key) -> impl Iterator<Item = &'a Arc<Replica>> + use<'a, '_> {
        self.pool.ring().order(key).filter_map(|index| self.at(index))
    }

    fn at(&self, index: usize) -> Option<&'a Arc<Replica>> {
        self.eligible[index].then(|| &self.pool.members()[index])
    }
}

/// Which of two replicas has fewer outstanding requests relative to its weight.
pub(super) fn by_load(one: &Replica, other: &Replica) -> Ordering {
    // Cross-multiplied, so that nothing is rounded.
    (u128::from(one.outstanding()) * u128::from(other.weight())).cmp(&(u128::from(other.outstanding()) * u128::from(one.weight())))
}
