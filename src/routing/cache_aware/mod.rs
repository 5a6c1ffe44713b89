//! `cache_aware`: the lowest predicted time to the first token (DESIGN section 6).
//!
//! For each candidate an expected cost in seconds: what is to be computed before the prompt's first token, with the prompt's own part weighted twice, since
//! others wait for it as well; what its batch slows it down; and something for not being the key's first choice, so that routers which know nothing of each
//! other look for the same thing in the same place. (That a replica which has just come takes its share by and by is the fleet's: it is no candidate for some.)

mod candidate;
mod check;
mod forecast;
mod holdings;
mod learnt;
mod picture;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng;

pub use forecast::{Forecast, Turn, Verdict};
pub use picture::Report;

use super::least_outstanding::LeastOutstanding;
use super::prefix_aware::PrefixAware;
use super::sight::Sight;
use super::{
    Aim, Candidates, Choice, Estimate, Expected, Explanation, HotKey, Insight, PassedOver, Peek, PictureInsight, Reason, Settings,
    Standing, Strategy, Would,
};
use crate::fleet::{Pool, Replica};
use crate::request::{Ask, Boundaries, Boundary, Chunks, Usage};
use candidate::{Candidate, Cost, Field};
pub(super) use learnt::Beyond;
use learnt::{Together, Values};
use picture::{Picture, Pictures};

/// What of a prompt has to be computed counts so many times: the others wait for it, too.
const OWN: f64 = 2.0;

/// Of that, what is before a hot boundary counts so much less: so many ask for it that each replica will have it soon, whoever is the first to pay for it.
/// Otherwise all that begins alike stays where it was first.
const COMMON: f64 = 0.1;

/// What it costs not to be the key's first choice, in seconds; twice as much not to be its second either. No less than so many tokens of a prompt take.
const RANK: f64 = 20e-3;
const RANK_TOKENS: f64 = 300.0;

/// That is so much more where the key is sure to repeat, for each router that sends to these replicas, one alone included: what comes again is best looked
/// for where all look, and where it was the last time that it was not remembered.
const AGREEMENT: f64 = 4.0;

/// What the first choice would have to compute and goes elsewhere is computed again for those who look for it there, so many times, as far as the key
/// repeats and others send what repeats.
const ASTRAY: f64 = 8.0;

/// Of all requests, so much is taken for others' where nobody says how many routers there are and no engine shows it.
const UNKNOWN_OTHERS: f64 = 0.5;

/// No answer that comes whole is expected to begin later, in seconds.
const LONGEST: f64 = 600.0;

pub(super) struct CacheAware {
    pictures: Pictures,
    /// Counts keys; and places requests for as long as the pictures are wrong.
    ring: PrefixAware,
    routers: u32,
}

impl CacheAware {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { pictures: Pictures::new(settings.index_memory), ring: PrefixAware::new(settings), routers: settings.routers }
    }

    /// Whether others send requests to these replicas as well, as far as anybody says.
    fn shares(&self) -> bool {
        self.routers != 1
    }

    /// A request, and what it would be to go to each of the candidates.
    fn way<'a, 'b>(
        &self,
        sight: &'b Sight,
        chunks: &'b Arc<Chunks>,
        candidates: &'b Candidates<'a>,
        picture_of: impl Fn(&Replica) -> Arc<Picture>,
    ) -> Way<'a, 'b> {
        let field = Field::look(sight, chunks, candidates, picture_of, self.routers);
        let costs = field.all.iter().map(|one| field.cost(one, sight, chunks)).collect();
        Way { sight, chunks, field, costs, candidates }
    }

    /// What is expected of a request that goes to the candidate at that place. From now on it counts there.
    fn expect(&self, way: &Way<'_, '_>, place: usize) -> Box<Forecast> {
        let Way { sight, chunks, field, costs, candidates } = way;
        let (chosen, cost, elsewhere) = (&field.all[place], &costs[place], way.soonest_but(place));
        let tokens = chosen.ahead + cost.uncached;
        let seconds = cost.values.seconds_per_token * tokens + cost.other;
        let until = (!sight.streams).then(|| candidates.now() + Duration::from_secs_f64(seconds.min(LONGEST)));
        let (ticket, generation) = {
            let mut state = chosen.picture.state();
            if !chunks.is_opaque {
                state.learnt.sent(cost.uncached);
            }
            (state.expect(Arc::clone(chunks), cost.uncached, until, candidates.now()), state.generation)
        };
        let is_there = self.shares() && chosen.rank == field.beyond.1 && !candidates.is_another_try();
        Box::new(Forecast {
            picture: Arc::clone(&chosen.picture),
            ticket,
            prompt_bytes: chunks.bytes,
            held_bytes: chosen.held,
            expected_bytes: cost.expected,
            tokens,
            seconds_per_token: cost.values.seconds_per_token,
            own: chosen.own,
            others: chosen.outstanding - chosen.own,
            generation,
            sent: candidates.now(),
            saves: elsewhere - cost.real,
            beyond: is_there.then_some(field.beyond.0),
            streams: sight.streams,
            is_text: !chunks.is_opaque,
        })
    }
}

/// A request, and where it may go.
struct Way<'a, 'b> {
    sight: &'b Sight,
    chunks: &'b Arc<Chunks>,
    field: Field<'a>,
    /// Of each of its candidates.
    costs: Vec<Cost>,
    candidates: &'b Candidates<'a>,
}

impl Way<'_, '_> {
    /// The place of the candidate that costs least.
    fn cheapest(&self) -> Option<usize> {
        // The first of equals: they are in the key's order.
        (0..self.costs.len()).reduce(|best, other| if self.costs[other].seconds < self.costs[best].seconds { other } else { best })
    }

    /// Seconds to the first token at the best of all but the one at that place.
    fn soonest_but(&self, place: usize) -> f64 {
        let others = self.costs.iter().enumerate().filter(|&(other, _)| other != place);
        others.map(|(_, cost)| cost.real).fold(f64::INFINITY, f64::min)
    }

    /// Seconds of prompts that the one at that place has to compute before.
    fn seconds_ahead(&self, place: usize) -> f64 {
        self.costs[place].values.seconds_per_token * self.field.all[place].own_ahead
    }

    /// The key's first choice, where that is another one.
    fn passed_over(&self, chosen: &Candidate<'_>) -> Option<PassedOver> {
        let first = self.field.all.first().filter(|first| first.rank == 0 && chosen.rank > 0)?;
        Some(PassedOver { replica: Arc::clone(first.replica), outstanding: first.replica.outstanding() })
    }

    /// Why a request goes to that one.
    fn reason(&self, chosen: &Candidate<'_>) -> Reason {
        let of_first = self.field.all.first().filter(|first| first.rank == 0).map_or(usize::MAX, |first| first.held);
        match chosen.rank {
            0 if self.candidates.home(self.sight.key).is_none() => Reason::Failover,
            0 => Reason::Home,
            _ if chosen.held > of_first => Reason::Cached,
            _ => Reason::Overflow,
        }
    }
}

impl Strategy for CacheAware {
    fn aim(&self, ask: &Ask, boundaries: &Boundaries, pool: &Pool) -> Aim {
        match self.ring.aim(ask, boundaries, pool) {
            Aim::ByKey(sight) => Aim::ByKey(Sight { chunks: ask.chunks.clone(), streams: ask.streams, ..sight }),
            other => other,
        }
    }

    fn is_enough(&self, boundary: &Boundary, pool: &Pool) -> bool {
        self.ring.is_enough(boundary, pool)
    }

    fn wants_chunks(&self) -> bool {
        true
    }

    fn choose(&self, aim: &Aim, candidates: &Candidates<'_>, rng: &mut dyn Rng) -> Option<Choice> {
        let Aim::ByKey(sight @ Sight { chunks: Some(chunks), .. }) = aim else {
            let choice = LeastOutstanding.choose(aim, candidates, rng)?;
            return Some(Choice { reason: Reason::NoKey, ..choice });
        };
        let way = self.way(sight, chunks, candidates, |replica| self.pictures.of(replica));
        let best = way.cheapest()?;
        if !way.field.is_wrong() && candidates.is_enough(way.seconds_ahead(best)) {
            return None;
        }
        way.field.all.iter().for_each(|one| one.picture.state().learnt.fade());
        if !way.field.is_wrong() {
            let (forecast, best) = (self.expect(&way, best), &way.field.all[best]);
            let instead_of = way.passed_over(best);
            return Some(Choice { forecast: Some(forecast), instead_of, ..Choice::new(best.replica.lease(), way.reason(best)) });
        }
        let choice = self.ring.choose(aim, candidates, rng)?;
        let taken = way.field.all.iter().position(|one| one.replica.is(choice.lease.replica()));
        // It is still expected, so that it shows when the pictures are right again.
        let forecast = taken.map(|taken| self.expect(&way, taken));
        Some(Choice { forecast, ..choice })
    }

    fn peek(&self, ask: &Ask, boundaries: &Boundaries, pool: &Pool) -> Peek {
        let peek = self.ring.peek(ask, boundaries, pool);
        match peek.aim {
            Aim::ByKey(sight) => Peek { aim: Aim::ByKey(Sight { chunks: ask.chunks.clone(), streams: ask.streams, ..sight }), ..peek },
            _ => peek,
        }
    }

    fn explain(&self, aim: &Aim, candidates: &Candidates<'_>) -> Explanation {
        let Aim::ByKey(sight @ Sight { chunks: Some(chunks), .. }) = aim else { return self.ring.explain(&Aim::NoKey, candidates) };
        let way = self.way(sight, chunks, candidates, |replica| self.pictures.glance(replica));
        let standing = |(one, cost): (&Candidate<'_>, &Cost)| {
            let overlap = (cost.expected / chunks.bytes.max(1) as f64).clamp(0.0, 1.0);
            let expected = Some(Expected { overlap, cost: cost.seconds, first_token: cost.real });
            Standing { rank: Some(one.rank), expected, ..Standing::of(one.replica) }
        };
        let full = candidates.order_regardless_of_room(sight.key).enumerate().filter(|(_, replica)| candidates.is_full(replica));
        let full = full.map(|(rank, replica)| Standing { rank: Some(rank), is_full: true, ..Standing::of(replica) });
        let mut standings: Vec<_> = way.field.all.iter().zip(&way.costs).map(standing).chain(full).collect();
        standings.sort_by_key(|one| one.rank);
        let would = match way.cheapest() {
            None => Would::Nobody,
            Some(_) if way.field.is_wrong() => self.ring.explain(aim, candidates).would,
            Some(best) if candidates.is_enough(way.seconds_ahead(best)) => Would::Hold(Arc::clone(way.field.all[best].replica)),
            Some(best) => {
                let best = &way.field.all[best];
                Would::Go { replica: Arc::clone(best.replica), reason: way.reason(best), instead_of: way.passed_over(best) }
            }
        };
        Explanation { would, standings }
    }

    fn estimate(&self, aim: &Aim, candidates: &Candidates<'_>) -> Option<Estimate> {
        let Aim::ByKey(sight @ Sight { chunks: Some(chunks), .. }) = aim else { return None };
        let way = self.way(sight, chunks, candidates, |replica| self.pictures.of(replica));
        let best = way.cheapest()?;
        let (one, Cost { values, uncached, .. }) = (&way.field.all[best], &way.costs[best]);
        let estimate = Estimate {
            incarnation: one.replica.incarnation(),
            ahead: way.seconds_ahead(best),
            uncached: values.seconds_per_token * uncached,
        };
        // Where the pictures are wrong there is nothing to wait for.
        (!way.field.is_wrong()).then_some(estimate)
    }

    fn insight(&self, pool: &Pool, now: Instant) -> Insight {
        let members = pool.members();
        let mean = members.iter().map(|member| member.weight() as f64).sum::<f64>() / members.len().max(1) as f64;
        let known = members.iter().filter_map(|member| {
            let picture = self.pictures.known(member)?;
            let (learnt, is_wrong, held, ahead) = {
                let state = picture.state();
                (state.learnt, state.check.is_wrong(), state.holdings.bytes(), state.ahead(now))
            };
            Some((member.incarnation(), learnt, member.weight() as f64 / mean, is_wrong, held, ahead))
        });
        let known: Vec<_> = known.collect();
        let together = Together::of(known.iter().map(|(_, learnt, weight, ..)| (learnt, *weight)));
        let pictures = known.iter().map(|&(incarnation, learnt, weight, is_wrong, held_bytes, ahead_tokens)| {
            let Values { seconds_per_token, bytes_per_token, decode_seconds, kept } = together.values(&learnt, weight);
            PictureInsight { incarnation, seconds_per_token, decode_seconds, bytes_per_token, kept, is_wrong, held_bytes, ahead_tokens }
        });
        let credit = [Beyond::Nothing, Beyond::Known].map(|beyond| together.credit(beyond));
        // It has no gate, and so no threshold, as long as it does not lean on the ring.
        Insight {
            thresholds: Vec::new(),
            pictures: pictures.collect(),
            credit: (!known.is_empty()).then_some(credit),
            others: together.others,
            ..self.ring.insight(pool, now)
        }
    }

    fn hot_keys(&self, pool: &Pool, most: usize) -> Vec<HotKey> {
        self.ring.hot_keys(pool, most)
    }

    fn began(&self, forecast: &Forecast, took: Option<Duration>) {
        forecast.picture.state().begin(forecast, took);
    }

    fn answered(&self, forecast: &Forecast, usage: &Usage, generating: Option<Duration>, outstanding: u64) -> Option<Verdict> {
        forecast.picture.state().answered(forecast, usage, generating, outstanding as f64)
    }

    fn hear(&self, replica: &Replica, report: &Report, now: Instant) -> Option<Verdict> {
        self.pictures.of(replica).hear(replica, report, self.shares(), now)
    }

    fn restarted(&self, replica: &Replica) {
        if let Some(picture) = self.pictures.known(replica) {
            picture.state().begin_anew();
        }
    }
}
