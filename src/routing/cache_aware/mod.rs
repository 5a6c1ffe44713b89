//! `cache_aware`: the lowest predicted time to the first token (DESIGN section 6).
//!
//! For each candidate an expected cost in seconds: what is to be computed before the prompt's first token, with the prompt's own part weighted twice, since
//! others wait for it as well; what its batch slows it down; and a little for not being the key's first choice, so that routers which know nothing of each
//! other look for the same thing in the same place. (That a replica which has just come takes its share by and by is the fleet's: it is no candidate for some.)

mod forecast;
mod holdings;
mod learnt;
mod picture;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng;

pub use forecast::Forecast;
pub use picture::Report;

use super::least_outstanding::LeastOutstanding;
use super::memories::Keys;
use super::sight::Sight;
use super::{Aim, Candidates, Choice, Insight, Reason, Settings, Strategy};
use crate::fleet::{Pool, Replica};
use crate::request::{Ask, Boundaries, Boundary, Chunks};
use learnt::{Learnt, Values};
use picture::{Picture, Pictures};

/// What of a prompt has to be computed counts so many times: the others wait for it, too.
const OWN: f64 = 2.0;

/// Of that, what is before a hot boundary counts so much less: so many ask for it that each replica will have it soon, whoever is the first to pay for it.
/// Otherwise all that begins alike stays where it was first.
const COMMON: f64 = 0.1;

/// What each request in flight adds, in seconds: the batch is slower by it, for as long as the newcomer is there.
const DECODE: f64 = 2e-3;

/// What it costs not to be the key's first choice, in seconds; twice as much not to be its second either.
const RANK: f64 = 20e-3;

/// No answer that comes whole is expected to begin later, in seconds.
const LONGEST: f64 = 600.0;

/// Where a replica holds less than this part of a prompt, what is found there tells what other routers have sent.
const HARDLY_ANY: usize = 10;

/// Shorter prompts, in tokens, say nothing of what others have sent.
const LEAST_PROMPT: f64 = 64.0;

pub(super) struct CacheAware {
    keys: Keys,
    pictures: Pictures,
    learnt: Learnt,
    routers: u32,
}

/// A candidate, as it is when the choice is made.
struct Candidate<'a> {
    replica: &'a Arc<Replica>,
    picture: Arc<Picture>,
    /// Its place in the key's order.
    rank: usize,
    /// Bytes at the beginning of the prompt that it holds.
    held: usize,
    /// Tokens that it has still to compute.
    ahead: f64,
    /// Requests in flight there.
    outstanding: f64,
    /// Relative to the mean.
    weight: f64,
}

/// What it would cost to go there.
struct Cost {
    seconds: f64,
    uncached: f64,
    other: f64,
}

impl CacheAware {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            keys: Keys::new(settings.prefix_length),
            pictures: Pictures::new(settings.index_memory),
            learnt: Learnt::default(),
            routers: settings.routers,
        }
    }

    fn look<'a>(&self, sight: &Sight, chunks: &Chunks, candidates: &Candidates<'a>, values: &Values) -> Vec<Candidate<'a>> {
        let (sum, count) = candidates.regardless_of_room().fold((0, 0), |(sum, count), one| (sum + one.weight(), count + 1));
        let mean = sum as f64 / f64::from(count.max(1));
        // The key's order first: the first of equals is taken.
        let order = candidates.order_regardless_of_room(sight.key).enumerate();
        let look = |(rank, replica): (usize, &'a Arc<Replica>)| {
            let (picture, mut outstanding) = (self.pictures.of(replica), replica.outstanding() as f64);
            let (held, mut ahead, others) = {
                let state = picture.state();
                (state.matched(chunks), state.ahead(candidates.now()), state.others(candidates.now()))
            };
            match others {
                Some([running, waiting]) => {
                    outstanding += running + waiting;
                    ahead += waiting * values.uncached;
                }
                // Of others nothing is known but that they are there: they send what this one sends.
                None => {
                    let routers = f64::from(self.routers.max(1));
                    (outstanding, ahead) = (outstanding * routers, ahead * routers);
                }
            }
            Candidate { replica, picture, rank, held, ahead, outstanding, weight: replica.weight() as f64 / mean }
        };
        order.filter(|(_, replica)| !candidates.is_full(replica)).map(look).collect()
    }
}

impl Candidate<'_> {
    fn cost(&self, sight: &Sight, chunks: &Chunks, values: &Values) -> Cost {
        let tokens = |bytes: usize| bytes as f64 / values.bytes_per_token;
        let credited = if self.rank == 0 { values.credit * tokens(chunks.bytes - self.held) } else { 0.0 };
        let uncached = (tokens(chunks.bytes - self.held) - credited).max(1.0);
        // Boundaries do not count tools, which come before all else.
        let common = if sight.hot > 0 { (sight.hot as usize + chunks.tools).min(chunks.bytes) } else { 0 };
        let common = tokens(common.saturating_sub(self.held)).min(uncached);
        let other = DECODE * self.outstanding / self.weight;
        let compute = values.seconds_per_token * (self.ahead + OWN * (uncached - (1.0 - COMMON) * common)) / self.weight;
        Cost { seconds: compute + other + RANK * self.rank.min(2) as f64, uncached, other }
    }
}

impl Strategy for CacheAware {
    fn aim(&self, ask: &Ask, boundaries: &Boundaries, pool: &Pool) -> Aim {
        self.keys
            .look(boundaries, pool)
            .map_or(Aim::NoKey, |sight: Sight| Aim::ByKey(Sight { chunks: ask.chunks.clone(), streams: ask.streams, ..sight }))
    }

    fn is_enough(&self, boundary: &Boundary, pool: &Pool) -> bool {
        self.keys.is_enough(boundary, pool)
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
        let all = self.look(sight, chunks, candidates, &values);
        let mut best: Option<(&Candidate<'_>, Cost)> = None;
        for candidate in &all {
            let cost = candidate.cost(sight, chunks, &values);
            if best.as_ref().is_none_or(|(_, least)| cost.seconds < least.seconds) {
                best = Some((candidate, cost));
            }
        }
        let (Candidate { replica, picture, rank, held, ahead, weight, .. }, Cost { uncached, other, .. }) = best?;
        let tokens = ahead + uncached;
        let seconds = values.seconds_per_token * tokens / weight + other;
        let until = (!sight.streams).then(|| now + Duration::from_secs_f64(seconds.min(LONGEST)));
        let ticket = picture.state().expect(Arc::clone(chunks), uncached, until);
        self.learnt.sent(uncached);
        let is_home = *rank == 0 && candidates.home(sight.key).is_some();
        let of_first = all.first().filter(|first| first.rank == 0).map_or(0, |first| first.held);
        let reason = match rank {
            0 if !is_home => Reason::Failover,
            0 => Reason::Home,
            _ if *held > of_first => Reason::Cached,
            _ => Reason::Overflow,
        };
        let forecast = Forecast {
            picture: Arc::clone(picture),
            ticket,
            prompt_bytes: chunks.bytes,
            held_bytes: *held,
            tokens,
            other_seconds: other,
            weight: *weight,
            // With one router alone nothing of it is there, then.
            shows_others: is_home && held * HARDLY_ANY < chunks.bytes && !candidates.is_another_try() && self.routers != 1,
            streams: sight.streams,
            is_text: !chunks.is_opaque,
        };
        Some(Choice { forecast: Some(Box::new(forecast)), ..Choice::new(replica.lease(), reason) })
    }

    fn insight(&self, pool: &Pool, _: Instant) -> Insight {
        Insight { thresholds: Vec::new(), reuse: self.keys.reuse(pool.name()) }
    }

    fn began(&self, forecast: &Forecast, took: Duration) {
        forecast.picture.state().begin(forecast.ticket);
        if forecast.streams {
            self.learnt.first_byte(forecast.tokens / forecast.weight, took.as_secs_f64(), forecast.other_seconds);
        }
    }

    fn answered(&self, forecast: &Forecast, prompt_tokens: u64, cached_tokens: Option<u64>) {
        let prompt = prompt_tokens as f64;
        if forecast.is_text {
            self.learnt.prompt(forecast.prompt_bytes as f64, prompt);
        }
        if let (Some(cached), true) = (cached_tokens, forecast.shows_others)
            && prompt >= LEAST_PROMPT
        {
            self.learnt.credit(cached as f64 / prompt);
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
