//! The candidates for one request, and what it would cost to go to each.

use std::sync::Arc;

use super::check::Check;
use super::learnt::{Beyond, Learnt, Together, Values};
use super::picture::Picture;
use super::{AGREEMENT, ASTRAY, COMMON, OWN, RANK, RANK_TOKENS, UNKNOWN_OTHERS};
use crate::fleet::Replica;
use crate::request::Chunks;
use crate::routing::Candidates;
use crate::routing::sight::Sight;

/// Where less than this part of a prompt is known to be anywhere, what is found at its first choice tells what other routers have sent.
const HARDLY_ANY: usize = 10;

/// No router is taken for less than one of so many.
const LEAST_SHARE: f64 = 0.05;

/// A candidate, as it is when the choice is made.
pub(super) struct Candidate<'a> {
    pub(super) replica: &'a Arc<Replica>,
    pub(super) picture: Arc<Picture>,
    /// Its place in the key's order.
    pub(super) rank: usize,
    /// Bytes at the beginning of the prompt that it is thought to hold.
    pub(super) held: usize,
    /// Tokens that it has still to compute; and those of them that are this router's.
    pub(super) ahead: f64,
    pub(super) own_ahead: f64,
    /// Requests in flight there; and those of them that are this router's.
    pub(super) outstanding: f64,
    pub(super) own: f64,
    /// Relative to the mean.
    pub(super) weight: f64,
    pub(super) is_wrong: bool,
    learnt: Learnt,
    /// Requests of other routers that wait there, if that is known.
    waiting: f64,
}

/// What it would cost to go there.
pub(super) struct Cost {
    /// All of it, with weights, and with what is to keep what comes again together.
    pub(super) seconds: f64,
    /// Seconds to the first token, as far as can be told.
    pub(super) real: f64,
    /// Tokens of the prompt that have to be computed.
    pub(super) uncached: f64,
    /// Seconds that do not go into prompts.
    pub(super) other: f64,
    /// Bytes of the prompt that are expected in the cache.
    pub(super) expected: f64,
    pub(super) values: Values,
}

/// All candidates for one request, in the key's order, and what holds for all of them.
pub(super) struct Field<'a> {
    pub(super) all: Vec<Candidate<'a>>,
    together: Together,
    /// What it costs, in seconds, not to be the key's first choice: for those who look for the prompt there, and for each place in the key's order.
    astray: f64,
    rank: f64,
    /// Which part of the prompt other routers may have sent, and the place of the candidate where that is.
    pub(super) beyond: (Beyond, usize),
}

impl<'a> Field<'a> {
    /// Looks at all of them, as their pictures are; `routers` send requests to these, as far as anybody says.
    pub(super) fn look(
        sight: &Sight,
        chunks: &Chunks,
        candidates: &Candidates<'a>,
        picture_of: impl Fn(&Replica) -> Arc<Picture>,
        routers: u32,
    ) -> Self {
        let (sum, count) = candidates.regardless_of_room().fold((0, 0), |(sum, count), one| (sum + one.weight(), count + 1));
        let mean = sum as f64 / f64::from(count.max(1));
        let look = |(rank, replica): (usize, &'a Arc<Replica>)| {
            let (picture, own) = (picture_of(replica), replica.outstanding() as f64);
            let mut outstanding = own;
            let (held, mut ahead, others, learnt, is_wrong) = {
                let mut state = picture.state();
                state.notice(replica);
                (state.matched(chunks), state.ahead(candidates.now()), state.others(candidates.now()), state.learnt, state.check.is_wrong())
            };
            let (mut waiting, own_ahead) = (0.0, ahead);
            match others {
                Some([running, waits]) => {
                    outstanding += running + waits;
                    waiting = waits;
                }
                // Of others nothing is known but that they are there: they send what this one sends.
                None => {
                    let routers = f64::from(routers.max(1));
                    (outstanding, ahead) = (outstanding * routers, ahead * routers);
                }
            }
            let weight = replica.weight() as f64 / mean;
            Candidate { replica, picture, rank, held, ahead, own_ahead, outstanding, own, weight, is_wrong, learnt, waiting }
        };
        // The key's order first: the first of equals is taken.
        let order = candidates.order_regardless_of_room(sight.key).enumerate();
        let mut all: Vec<_> = order.filter(|(_, replica)| !candidates.is_full(replica)).map(look).collect();
        let together = Together::of(all.iter().map(|one| (&one.learnt, one.weight)));
        all.iter_mut().for_each(|one| one.ahead += one.waiting * together.uncached);
        let most = all.iter().map(|one| one.held).max().unwrap_or(0);
        let beyond = if most * HARDLY_ANY < chunks.bytes {
            (Beyond::Nothing, 0)
        } else {
            (Beyond::Known, all.iter().find(|one| one.held == most).map_or(0, |one| one.rank))
        };
        let mut field = Self { all, together, beyond, astray: 0.0, rank: 0.0 };
        if let Some(first) = field.all.first() {
            let promised = field.together.promised(first.weight);
            let Cost { expected, values, .. } = field.cost(first, sight, chunks);
            // What is known to be elsewhere is not lost.
            let lost = chunks.bytes as f64 - expected.max(values.kept * most as f64);
            let others = if routers > 0 { 1.0 - 1.0 / f64::from(routers) } else { together.others.unwrap_or(UNKNOWN_OTHERS) };
            let (reuse, routers) = (sight.seen.reuse(), 1.0 / (1.0 - others).max(LEAST_SHARE));
            field.astray = ASTRAY * reuse * others * promised * lost / values.bytes_per_token;
            let share = lost / chunks.bytes.max(1) as f64;
            field.rank = RANK.max(RANK_TOKENS * promised * share) * (1.0 + AGREEMENT * reuse * routers * share);
        }
        field
    }

    /// What it would cost to go to one of them.
    pub(super) fn cost(&self, one: &Candidate<'_>, sight: &Sight, chunks: &Chunks) -> Cost {
        let values = self.together.values(&one.learnt, one.weight);
        let tokens = |bytes: f64| bytes / values.bytes_per_token;
        let held = values.kept * one.held as f64;
        let credit = if one.rank == self.beyond.1 { self.together.credit(self.beyond.0) } else { 0.0 };
        let expected = held + credit * (chunks.bytes as f64 - held);
        let uncached = tokens(chunks.bytes as f64 - expected).max(1.0);
        // Boundaries do not count tools, which come before all else.
        let common = if sight.hot > 0 { (sight.hot as usize + chunks.tools).min(chunks.bytes) } else { 0 };
        let common = tokens((common as f64 - held).max(0.0)).min(uncached);
        let other = values.decode_seconds * one.outstanding / one.weight;
        let compute = values.seconds_per_token * (one.ahead + OWN * (uncached - (1.0 - COMMON) * common));
        let away = if one.rank > 0 { self.astray + self.rank * one.rank.min(2) as f64 } else { 0.0 };
        let real = values.seconds_per_token * (one.ahead + uncached) + other;
        Cost { seconds: compute + other + away, real, uncached, other, expected, values }
    }

    /// Whether what is thought of most of those is wrong of which that can be said.
    pub(super) fn is_wrong(&self) -> bool {
        let judged = self.all.iter().filter(|one| Check::is_judged(&one.learnt));
        let (wrong, all) = judged.fold((0, 0), |(wrong, all), one| (wrong + usize::from(one.is_wrong), all + 1));
        wrong * 2 > all
    }
}
