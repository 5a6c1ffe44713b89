//! The replicas among which a request may choose: the eligible members of its pool, without those that it tried already and
//! those that are full.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fleet::{Pool, Replica};
use crate::request::Key;

/// What a strategy picks from.
pub struct Candidates<'a> {
    pool: &'a Pool,
    /// Where an earlier try for the same request failed.
    tried: &'a [Arc<Replica>],
    now: Instant,
    /// Of each member, from when it is asked of all of them: then it must not change any more. Mostly it is asked of the home alone.
    eligible: OnceCell<Cow<'a, [bool]>>,
    /// Who has so many in flight takes no more.
    limit: Option<u64>,
    /// Who has so many seconds of prompts to compute before it has enough to do.
    hold: Option<Duration>,
}

impl<'a> Candidates<'a> {
    /// The members of `pool` that a request may go to at `now` which was at `tried` already.
    pub fn new(pool: &'a Pool, tried: &'a [Arc<Replica>], now: Instant) -> Self {
        Self { pool, tried, now, eligible: OnceCell::new(), limit: None, hold: None }
    }

    /// Those of them that have fewer than `limit` in flight; all of them where there is no limit. It is kept exactly only where one choice is made after
    /// the other.
    pub fn below(self, limit: Option<u64>) -> Self {
        Self { limit, ..self }
    }

    /// The same; but nobody is chosen where the one that would be has so many seconds of prompts to compute, as far as its strategy knows that.
    pub fn within(self, hold: Option<Duration>) -> Self {
        Self { hold, ..self }
    }

    /// Whether one that has so many seconds of prompts to compute has enough to do.
    pub(super) fn is_enough(&self, seconds: f64) -> bool {
        self.hold.is_some_and(|hold| seconds >= hold.as_secs_f64())
    }

    /// The moment.
    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// Whether an earlier try for the same request failed.
    pub(super) fn is_another_try(&self) -> bool {
        !self.tried.is_empty()
    }

    /// Whether there is anybody, be it somebody who takes no more.
    pub fn is_anybody(&self) -> bool {
        self.eligible().contains(&true)
    }

    /// Whether a request that goes to that one shows whether it is well again.
    pub(super) fn is_on_trial(&self, replica: &Replica) -> bool {
        self.pool.is_on_trial(replica)
    }

    /// The same without that one.
    pub(super) fn without(&self, replica: &Replica) -> Self {
        let mut eligible = self.eligible().to_vec();
        for (eligible, member) in eligible.iter_mut().zip(self.pool.members()) {
            *eligible &= !member.is(replica);
        }
        // Who asks has found somebody: now it does not matter who has enough to do.
        Self { eligible: OnceCell::from(Cow::Owned(eligible)), hold: None, ..*self }
    }

    /// All of them, in the order of the membership.
    pub fn iter(&self) -> impl Iterator<Item = &'a Arc<Replica>> + use<'a, '_> {
        (0..self.pool.members().len()).filter_map(|index| self.at(index))
    }

    /// The pool whose members they are.
    pub(super) fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// The key's home, where it may be chosen but for the limit.
    pub(super) fn home(&self, key: Key) -> Option<&'a Arc<Replica>> {
        self.member(self.pool.ring().home(key)?)
    }

    /// The member with this tag, where it may be chosen but for the limit.
    pub(super) fn tagged(&self, tag: u32) -> Option<&'a Arc<Replica>> {
        self.member(self.pool.ring().tagged(tag)?)
    }

    fn member(&self, index: usize) -> Option<&'a Arc<Replica>> {
        let alone = if self.eligible.get().is_none() { self.pool.is_eligible(index, self.tried, self.now) } else { None };
        alone.unwrap_or_else(|| self.eligible()[index]).then(|| &self.pool.members()[index])
    }

    /// From how many in flight on a replica takes no more, where that is less than `threshold`, else that.
    pub(super) fn gate(&self, threshold: u64) -> u64 {
        self.limit.map_or(threshold, |limit| limit.min(threshold))
    }

    /// All of them in the key's order.
    pub(super) fn order(&self, key: Key) -> impl Iterator<Item = &'a Arc<Replica>> + use<'a, '_> {
        self.pool.ring().order(key).filter_map(|index| self.at(index))
    }

    /// All that may be chosen but for the limit, in the order of the membership.
    pub(super) fn regardless_of_room(&self) -> impl Iterator<Item = &'a Arc<Replica>> + use<'a, '_> {
        self.pool.members().iter().zip(self.eligible()).filter(|(_, eligible)| **eligible).map(|(member, _)| member)
    }

    /// The same in the key's order.
    pub(super) fn order_regardless_of_room(&self, key: Key) -> impl Iterator<Item = &'a Arc<Replica>> + use<'a, '_> {
        self.pool.ring().order(key).filter(|&index| self.eligible()[index]).map(|index| &self.pool.members()[index])
    }

    /// Whether it takes no more, whatever the gate says.
    pub(super) fn is_full(&self, replica: &Replica) -> bool {
        self.limit.is_some_and(|limit| replica.outstanding() >= limit)
    }

    fn at(&self, index: usize) -> Option<&'a Arc<Replica>> {
        let member = &self.pool.members()[index];
        (self.eligible()[index] && !self.is_full(member)).then_some(member)
    }

    fn eligible(&self) -> &[bool] {
        self.eligible.get_or_init(|| self.pool.eligible(self.tried, self.now))
    }
}

/// Which of two replicas has fewer outstanding requests relative to its weight.
pub(super) fn by_load(one: &Replica, other: &Replica) -> Ordering {
    // Cross-multiplied, so that nothing is rounded.
    (u128::from(one.outstanding()) * u128::from(other.weight())).cmp(&(u128::from(other.outstanding()) * u128::from(one.weight())))
}
