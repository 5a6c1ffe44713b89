//! The replicas among which a request may choose: the usable members of its pool, without those that it tried already and those that are full.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::fleet::{Pool, Replica};
use crate::request::Key;

/// What a strategy picks from.
#[derive(Clone, Copy)]
pub struct Candidates<'a> {
    pool: &'a Pool,
    tried: &'a [Arc<Replica>],
    /// Who has so many in flight takes no more.
    limit: Option<u64>,
}

impl<'a> Candidates<'a> {
    /// The usable members of `pool` without `tried`.
    pub fn new(pool: &'a Pool, tried: &'a [Arc<Replica>]) -> Self {
        Self { pool, tried, limit: None }
    }

    /// Those of them that have fewer than `limit` in flight; all of them where there is no limit. It is kept exactly only where one choice is made after
    /// the other.
    pub fn below(self, limit: Option<u64>) -> Self {
        Self { limit, ..self }
    }

    /// Whether an earlier try for the same request failed.
    pub(super) fn is_another_try(&self) -> bool {
        !self.tried.is_empty()
    }

    /// All of them, in the order of the membership.
    pub fn iter(&self) -> impl Iterator<Item = &'a Arc<Replica>> + use<'a> {
        let this = *self;
        (0..this.pool.members().len()).filter_map(move |index| this.at(index))
    }

    /// The key's home, where it may be chosen but for the limit.
    pub(super) fn home(&self, key: Key) -> Option<&'a Arc<Replica>> {
        self.below(None).at(self.pool.ring().home(key)?)
    }

    /// From how many in flight on a replica takes no more, where that is less than `threshold`, else that.
    pub(super) fn gate(&self, threshold: u64) -> u64 {
        self.limit.map_or(threshold, |limit| limit.min(threshold))
    }

    /// All of them in the key's order.
    pub(super) fn order(&self, key: Key) -> impl Iterator<Item = &'a Arc<Replica>> + use<'a> {
        let this = *self;
        this.pool.ring().order(key).filter_map(move |index| this.at(index))
    }

    fn at(&self, index: usize) -> Option<&'a Arc<Replica>> {
        let member = &self.pool.members()[index];
        let tried = self.tried.iter().any(|tried| tried.is(member));
        let full = self.limit.is_some_and(|limit| member.outstanding() >= limit);
        (self.pool.is_usable(index) && !tried && !full).then_some(member)
    }
}

/// Which of two replicas has fewer outstanding requests relative to its weight.
pub(super) fn by_load(one: &Replica, other: &Replica) -> Ordering {
    // Cross-multiplied, so that nothing is rounded.
    (u128::from(one.outstanding()) * u128::from(other.weight())).cmp(&(u128::from(other.outstanding()) * u128::from(one.weight())))
}
