//! Rules that exist only here: what others publish of their routers, and one that knows everything.
//!
//! Production strategies are [`crate::routing`]'s, and run as they are.

use std::sync::Arc;

use super::blocks::BlockHash;
use super::chance::Chance;
use super::replica::ReplicaModel;
use crate::fleet::{Pool, Replica};
use crate::request::Boundaries;

/// A moment of a run, in nanoseconds from its beginning.
pub type Moment = u64;

/// One request, as a rule sees it.
pub struct Asked<'a> {
    /// Its number in the run.
    pub id: usize,
    /// Tokens of its prompt.
    pub tokens: usize,
    /// The full blocks of its prompt.
    pub blocks: &'a [BlockHash],
    /// Tokens of a block.
    pub block_size: usize,
    /// Where its key may end.
    pub boundaries: &'a Boundaries,
}

impl Asked<'_> {
    /// The blocks that can be found in a cache: the last token is always computed.
    pub fn reusable(&self) -> &[BlockHash] {
        &self.blocks[..((self.tokens - 1) / self.block_size).min(self.blocks.len())]
    }
}

/// An engine as it truly is.
pub struct Engine {
    /// Its queue, batch and cache.
    pub model: ReplicaModel,
    /// When the step under way ends, if there is one.
    pub step_ends: Option<Moment>,
    /// Whether it is there.
    pub is_up: bool,
    /// Requests that it was given.
    pub requests: usize,
}

/// What an engine's metrics said of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Requests in its batch.
    pub running: usize,
    /// Requests in its queue.
    pub waiting: usize,
    /// Share of its cache that requests hold.
    pub kv_usage: f64,
    /// When that was so.
    pub taken_at: Moment,
}

/// What a rule may look at.
pub struct View<'a> {
    /// Who may be chosen, at least one. A replica's number is its place in `engines` and `seen`.
    pub eligible: &'a [usize],
    /// The pool, for its ring.
    pub pool: &'a Pool,
    /// What this router has in flight is counted there, in the order of their numbers.
    pub replicas: &'a [Option<Arc<Replica>>],
    /// What their metrics said when this router asked last.
    pub seen: &'a [Seen],
    /// The truth, which no router knows.
    pub engines: &'a [Engine],
    /// Routers that share nothing.
    pub routers: usize,
    /// The moment.
    pub now: Moment,
}

impl View<'_> {
    /// Requests in flight on a replica, counted by this router.
    pub fn outstanding(&self, replica: usize) -> f64 {
        self.replicas[replica].as_ref().map_or(0.0, |replica| replica.outstanding() as f64)
    }

    /// The one of `eligible` with the least `cost`; one of several by chance.
    pub fn least(&self, chance: &mut Chance, mut cost: impl FnMut(usize) -> f64) -> usize {
        let (mut best, mut lowest, mut ties) = (self.eligible[0], f64::INFINITY, 0.0);
        for &replica in self.eligible {
            let cost = cost(replica);
            if cost < lowest {
                (best, lowest, ties) = (replica, cost, 1.0);
            } else if cost == lowest {
                ties += 1.0;
                if chance.share() * ties < 1.0 {
                    best = replica;
                }
            }
        }
        best
    }
}

/// What a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// One of the eligible.
    pub replica: usize,
    /// Whether it is not where the prompt belongs, because that one has too much to do.
    pub overflow: bool,
}

impl Pick {
    /// A choice that was free.
    pub fn of(replica: usize) -> Self {
        Self { replica, overflow: false }
    }
}

/// A rule that picks one of several replicas, and hears what came of it.
pub trait Rule: Send {
    /// Picks one of the eligible, and takes note of it.
    fn choose(&mut self, asked: &Asked<'_>, view: &View<'_>, chance: &mut Chance) -> Pick;

    /// The first token of a request came from that replica, which had found `cached` tokens of its prompt. Also where the request ends without one.
    fn first_token(&mut self, id: usize, replica: usize, cached: usize) {
        let _ = (id, replica, cached);
    }

    /// A request is over.
    fn ended(&mut self, id: usize, replica: usize) {
        let _ = (id, replica);
    }

    /// A replica has an empty cache again.
    fn restarted(&mut self, replica: usize) {
        let _ = replica;
    }
}
