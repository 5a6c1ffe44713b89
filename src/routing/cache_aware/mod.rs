//! `cache_aware`: the lowest predicted time to the first token (DESIGN section 6).
//!
//! For each candidate an expected cost in seconds: what is to be computed before the prompt's first token, with the prompt's own part weighted twice, since
//! others wait for it as well; what its batch slows it down; and a little for not being the key's first choice, so that routers which know nothing of each
//! other look for the same thing in the same place. (That a replica which has just come takes its share by and by is the fleet's: it is no candidate for some.)

mod holdings;
mod learnt;
mod picture;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng;

pub use picture::Report;

use super::least_outstanding::LeastOutstanding;
use super::memories::Memories;
use super::sight::Sight;
use super::{Aim, Candidates, Choice, Insight, Reason, Settings, Strategy};
use crate::fleet::{Pool, Replica};
use crate::request::{Ask, Boundaries, Boundary, Chunks};
use crate::units::OrAuto;
use learnt::{Learnt, Values};
use picture::Pictures;

/// What of a prompt has to be computed counts so many times: the others wait for it, too.
const OWN: f64 = 2.0;

/// Of that, what is before a hot boundary counts so much less: so many ask for it that each replica will have it soon, whoever is the first to pay for it.
/// Otherwise all that begins alike stays where it was first.
const COMMON: f64 = 0.1;

/// What each request in flight adds, in seconds: the batch is slower by it, for as long as the newcomer is there.
const DECODE: f64 = 2e-3;

/// What it costs not to be the key's first choice, in seconds; twice as much not to be its second either.
const RANK: f64 = 20e-3;

/// What was expected of a request when it was sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Bytes of its prompt.
    pub prompt_bytes: usize,
    /// Those at its beginning that the replica was thought to hold.
    pub held_bytes: usize,
    /// Tokens to compute before its first one, those of others included.
    pub tokens: f64,
    /// What the first byte was to take beside these, in seconds.
    pub other_seconds: f64,
    /// Whether the replica is its key's first choice.
    pub is_first_choice: bool,
    /// Whether the answer comes piece by piece, so that its first byte tells how long the prompt took.
    pub streams: bool,
}

pub(super) struct CacheAware {
    /// Where traffic decides how much of a prompt makes the key.
    memories: Option<Memories>,
    pictures: Pictures,
    learnt: Learnt,
    routers: u32,
}

/// A candidate, and what it would cost to go there.
struct Offer<'a> {
    replica: &'a Arc<Replica>,
    cost: f64,
    rank: usize,
    held: usize,
    uncached: f64,
    tokens: f64,
    other: f64,
}

impl CacheAware {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            memories: matches!(settings.prefix_length, OrAuto::Auto).then(Memories::default),
            pictures: Pictures::new(settings.index_memory),
            learnt: Learnt::default(),
            routers: settings.routers,
        }
    }

    fn offer<'a>(&self, replica: &'a Arc<Replica>, rank: usize, hot: u32, chunks: &Chunks, values: &Values, now: Instant) -> Offer<'a> {
        let picture = self.pictures.of(replica);
        let (held, mut ahead, others) = {
            let mut state = picture.state();
            (state.holdings.matched(chunks), (replica.ahead() + state.unstreamed(now)) as f64, state.others(now))
        };
        let mut outstanding = replica.outstanding() as f64;
        match others {
            Some([running, waiting]) => {
                outstanding += (running + waiting) as f64;
                ahead += waiting as f64 * values.uncached;
            }
            // Of others nothing is known but that they are there: they send what this one sends.
            None => {
                let routers = f64::from(self.routers.max(1));
                (outstanding, ahead) = (outstanding * routers, ahead * routers);
            }
        }
        let prompt = chunks.bytes as f64 / values.bytes_per_token;
        let own = held as f64 / values.bytes_per_token;
        let found = if rank == 0 { own + values.credit * (prompt - own) } else { own };
        let uncached = (prompt - found).max(1.0);
        let common = (f64::from(hot) / values.bytes_per_token - own).max(0.0);
        let weight = replica.weight() as f64;
        let other = DECODE * outstanding / weight;
        let cost = values.seconds_per_token * (ahead + OWN * (uncached - (1.0 - COMMON) * common).max(0.0)) / weight
            + other
            + RANK * rank.min(2) as f64;
        Offer { replica, cost, rank, held, uncached, tokens: ahead + uncached, other }
    }
}

impl Strategy for CacheAware {
    fn aim(&self, ask: &Ask, boundaries: &Boundaries, pool: &Pool) -> Aim {
        let sight = match &self.memories {
            Some(memories) => memories.look(boundaries, pool),
            None => boundaries.last().map(|last| last.key.into()),
        };
        sight.map_or(Aim::NoKey, |sight: Sight| Aim::ByKey(Sight { chunks: ask.chunks.clone(), streams: ask.streams, ..sight }))
    }

    fn is_enough(&self, boundary: &Boundary, pool: &Pool) -> bool {
        self.memories.as_ref().is_none_or(|memories| memories.is_enough(boundary, pool))
    }

    fn wants_chunks(&self) -> bool {
        true
    }

    fn choose(&self, aim: &Aim, candidates: &Candidates<'_>, rng: &mut dyn Rng) -> Option<Choice> {
        let (Aim::ByKey(sight @ Sight { chunks: Some(chunks), .. }), now) = (aim, candidates.now()) else {
            let choice = LeastOutstanding.choose(aim, candidates, rng)?;
            return Some(Choice { reason: Reason::NoKey, ..choice });
        };
        let values = self.learnt.values();
        let mut best: Option<Offer<'_>> = None;
        // The key's order first: it has the equal ones.
        let order = candidates.order_regardless_of_room(sight.key).enumerate();
        for (rank, replica) in order.filter(|(_, replica)| !candidates.is_full(replica)) {
            let offer = self.offer(replica, rank, sight.hot, chunks, &values, now);
            if best.as_ref().is_none_or(|best| offer.cost < best.cost) {
                best = Some(offer);
            }
        }
        let Offer { replica, rank, held, uncached, tokens, other, .. } = best?;
        let mut lease = replica.lease();
        let picture = self.pictures.of(replica);
        {
            let mut state = picture.state();
            state.holdings.insert(chunks);
            if sight.streams {
                lease.charge(uncached as u64);
            } else {
                let seconds = values.seconds_per_token * tokens + other;
                state.expect(now + Duration::from_secs_f64(seconds.min(600.0)), uncached as u64);
            }
        }
        self.learnt.sent(uncached);
        let reason = match rank {
            0 if candidates.home(sight.key).is_none() => Reason::Failover,
            0 => Reason::Home,
            _ if held > 0 => Reason::Cached,
            _ => Reason::Overflow,
        };
        let forecast = Forecast {
            prompt_bytes: chunks.bytes,
            held_bytes: held,
            tokens,
            other_seconds: other,
            is_first_choice: rank == 0,
            streams: sight.streams,
        };
        Some(Choice { forecast: Some(forecast), ..Choice::new(lease, reason) })
    }

    fn insight(&self, pool: &Pool, _: Instant) -> Insight {
        Insight { thresholds: Vec::new(), reuse: self.memories.as_ref().and_then(|memories| memories.reuse(pool.name())) }
    }

    fn first_byte(&self, forecast: &Forecast, took: Duration) {
        if forecast.streams {
            self.learnt.first_byte(forecast.tokens, took.as_secs_f64(), forecast.other_seconds);
        }
    }

    fn answered(&self, forecast: &Forecast, prompt_tokens: u64, cached_tokens: Option<u64>) {
        let (prompt, bytes) = (prompt_tokens as f64, forecast.prompt_bytes as f64);
        self.learnt.prompt(bytes, prompt);
        if let (Some(cached), true) = (cached_tokens, forecast.is_first_choice) {
            let own = prompt * forecast.held_bytes as f64 / bytes.max(1.0);
            if prompt - own >= 64.0 {
                self.learnt.credit((cached as f64 - own) / (prompt - own));
            }
        }
    }

    fn hear(&self, replica: &Replica, report: &Report, now: Instant) {
        self.pictures.of(replica).hear(replica, report, now);
    }

    fn restarted(&self, replica: &Replica) {
        if let Some(picture) = self.pictures.known(replica) {
            picture.state().holdings.clear();
        }
    }
}
