//! What is thought of one replica: what it holds, what it has to compute, and what others have sent there.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use super::check::Check;
use super::forecast::{Forecast, Verdict};
use super::holdings::{BYTES_OF_ENTRY, Holdings};
use super::learnt::Learnt;
use crate::fleet::{ByIncarnation, Incarnation, Replica};
use crate::request::{Chunks, Usage, end_of};

/// A cache of which nothing is known holds so many tokens.
const UNKNOWN_CACHE: u64 = 400_000;

/// Fewer tokens to compute hardly slow others down.
const LITTLE: f64 = 4_000.0;

/// What an engine says of itself counts for so long.
const FRESH: Duration = Duration::from_secs(10);

/// What engines say of themselves, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Requests in its batch.
    pub running: Option<u64>,
    /// Requests in its queue.
    pub waiting: Option<u64>,
    /// Tokens that its cache has room for.
    pub cache_tokens: Option<u64>,
    /// Tokens of prompts that it looked up in its cache since the last report, and those that it found.
    pub looked_up: Option<[u64; 2]>,
    /// Whether it caches prefixes at all.
    pub caches: Option<bool>,
    /// Whether it can be seen from it that the engine has begun anew.
    pub shows_restarts: bool,
}

/// What is thought of a replica.
#[derive(Debug)]
pub(super) struct Picture {
    incarnation: Weak<Incarnation>,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) holdings: Holdings,
    /// What was sent there and has not begun to be answered, by ticket.
    pending: BTreeMap<u64, Pending>,
    tickets: u64,
    /// Since when the first of them is being computed, as far as is known.
    since: Option<Instant>,
    /// Of other routers' requests, how many run and wait there, and since when that is known.
    others: Option<(Instant, [f64; 2])>,
    /// Whether it can be seen from what its engine says of itself that it has begun anew.
    shows_restarts: bool,
    /// How often it has been forgotten.
    pub(super) generation: u32,
    /// Tokens that its cache has room for.
    cache_tokens: u64,
    /// How often it had come back when it was last looked at.
    returns: u64,
    pub(super) learnt: Learnt,
    pub(super) check: Check,
}

/// A request whose prompt is being computed, as far as is known.
#[derive(Debug)]
struct Pending {
    chunks: Arc<Chunks>,
    tokens: f64,
    /// Of an answer whose beginning says nothing of its prompt: when that should be computed.
    until: Option<Instant>,
}

impl Picture {
    fn new(replica: &Replica, most_entries: usize) -> Self {
        let mut state = State {
            holdings: Holdings::new(0, most_entries),
            pending: BTreeMap::new(),
            tickets: 0,
            since: None,
            others: None,
            shows_restarts: false,
            generation: 0,
            cache_tokens: UNKNOWN_CACHE,
            returns: replica.returns(),
            learnt: Learnt::default(),
            check: Check::default(),
        };
        state.resize();
        Self { incarnation: replica.watch(), state: Mutex::new(state) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Nobody panics while it holds the lock; and if, a picture is a guess anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of what the engine says of itself.
    pub(super) fn hear(&self, replica: &Replica, report: &Report, shows_others: bool, now: Instant) -> Option<Verdict> {
        let mut state = self.state();
        state.shows_restarts = report.shows_restarts;
        if let (Some(running), Some(waiting)) = (report.running, report.waiting) {
            let of_others = (running as f64 + waiting as f64 - replica.outstanding() as f64).max(0.0);
            // An own one that is being computed, as far as is known, may run there already.
            let own = state.unbegun(now).count() as f64;
            let that_wait = (waiting as f64 - own).clamp(0.0, of_others);
            state.others = Some((now, [of_others - that_wait, that_wait]));
            state.learnt.in_flight(replica.outstanding() as f64, of_others);
        }
        if let Some(tokens) = report.cache_tokens {
            state.cache_tokens = tokens;
            state.resize();
        }
        let State { check, learnt, .. } = &mut *state;
        if report.caches == Some(false) { check.caches_nothing(learnt) } else { check.looked_up(report.looked_up, learnt, shows_others) }
    }
}

impl State {
    /// Makes room for what its cache holds, as far as is known. That answers and what others send take some of it is seen in what is found there, as all
    /// else that is forgotten sooner.
    fn resize(&mut self) {
        self.holdings.resize((self.cache_tokens as f64 * self.learnt.bytes_per_token.value) as u64);
    }

    /// Its engine has begun anew: nothing is there, and what was expected of it is not to be judged.
    pub(super) fn begin_anew(&mut self) {
        self.holdings.clear();
        self.generation += 1;
        self.check.begin_anew(&mut self.learnt);
    }

    /// Whether there is nothing that [`Self::notice`] would change.
    fn is_current(&self, replica: &Replica) -> bool {
        self.returns == replica.returns() || self.shows_restarts
    }

    /// Takes note that the replica is looked at. Where it has come back, and it cannot be seen whether it has begun anew, it holds nothing.
    pub(super) fn notice(&mut self, replica: &Replica) {
        if std::mem::replace(&mut self.returns, replica.returns()) != self.returns && !self.shows_restarts {
            self.begin_anew();
        }
    }

    /// Bytes at the beginning of a prompt that it holds, or will when it comes to that prompt.
    pub(super) fn matched(&self, chunks: &Chunks) -> usize {
        let pending = self.pending.values().map(|pending| pending.chunks.common(chunks)).max().unwrap_or(0);
        self.holdings.matched(chunks).max(end_of(pending))
    }

    /// Tokens that it has still to compute: what may be done of the first prompt is not among them.
    pub(super) fn ahead(&self, now: Instant) -> f64 {
        // One whose answer comes whole is taken to have been computed when it should have been.
        let last = self.pending.values().filter_map(|pending| pending.until.filter(|&until| until <= now)).max();
        let since = self.since.max(last);
        let done = since.map_or(0.0, |since| now.saturating_duration_since(since).as_secs_f64() / self.learnt.seconds_per_token());
        let mut unbegun = self.unbegun(now).map(|pending| pending.tokens);
        let first = unbegun.next().unwrap_or(0.0);
        (first - done).max(0.0) + unbegun.sum::<f64>()
    }

    /// Requests whose prompts are being computed, as far as is known.
    fn unbegun(&self, now: Instant) -> impl Iterator<Item = &Pending> {
        self.pending.values().filter(move |pending| pending.until.is_none_or(|until| now < until))
    }

    /// Takes note of a request that is sent there, and gives it a ticket.
    pub(super) fn expect(&mut self, chunks: Arc<Chunks>, tokens: f64, until: Option<Instant>, now: Instant) -> u64 {
        if self.unbegun(now).next().is_none() {
            self.since = Some(now);
        }
        self.tickets += 1;
        self.pending.insert(self.tickets, Pending { chunks, tokens, until });
        self.tickets
    }

    /// A request's answer has begun, so long after it was sent, where that tells how long the prompt took.
    pub(super) fn begin(&mut self, forecast: &Forecast, took: Option<Duration>) {
        // Now the next one is being computed.
        self.since = took.map_or(self.since, |took| self.since.max(Some(forecast.sent + took)));
        if forecast.generation == self.generation {
            self.check.begun(forecast);
        }
        if let (Some(took), true) = (took, forecast.is_text && forecast.streams) {
            self.learnt.first_byte(forecast.tokens, took.as_secs_f64());
        }
        if forecast.streams {
            if let Some(pending) = self.pending.remove(&forecast.ticket) {
                self.holdings.insert(&pending.chunks);
            }
        } else if let Some(pending) = self.pending.get(&forecast.ticket) {
            // It counts as being computed for as long as was expected, or until it is over.
            self.holdings.insert(&pending.chunks);
        }
    }

    /// An answer is over and has said what it took, after it was generated for so long, if that can be told.
    pub(super) fn answered(
        &mut self,
        forecast: &Forecast,
        usage: &Usage,
        generating: Option<Duration>,
        now_outstanding: f64,
    ) -> Option<Verdict> {
        // Where prompts were computed meanwhile, that was slower for their sake.
        let is_quiet = forecast.tokens < LITTLE && self.pending.values().all(|pending| pending.until.is_some());
        if let (Some(tokens), Some(generating), true) = (usage.completion_tokens, generating, is_quiet) {
            // Those that were there when it was sent, and those that are there now.
            let requests = forecast.others + f64::midpoint(forecast.own, now_outstanding);
            self.learnt.generated(tokens as f64, generating.as_secs_f64(), requests);
        }
        if !forecast.is_text {
            return None;
        }
        self.learnt.prompt(forecast.prompt_bytes as f64, usage.prompt_tokens as f64);
        self.resize();
        if forecast.generation != self.generation {
            return None;
        }
        self.check.answered(forecast, usage, &mut self.learnt)
    }

    /// It is over; if its answer has not begun, nobody knows what became of its prompt.
    pub(super) fn give_up(&mut self, ticket: u64) {
        self.pending.remove(&ticket);
    }

    /// How many requests of other routers run and wait there, if that is known.
    pub(super) fn others(&self, now: Instant) -> Option<[f64; 2]> {
        self.others.filter(|(since, _)| now.saturating_duration_since(*since) < FRESH).map(|(_, others)| others)
    }
}

/// The pictures of all replicas, within one bound.
#[derive(Debug)]
pub(super) struct Pictures {
    all: RwLock<ByIncarnation<Arc<Picture>>>,
    /// Bytes that the chunks of all of them may take.
    memory: usize,
}

impl Pictures {
    pub(super) fn new(memory: usize) -> Self {
        Self { all: RwLock::new(HashMap::default()), memory }
    }

    /// That of a replica; begun where there is none.
    pub(super) fn of(&self, replica: &Replica) -> Arc<Picture> {
        if let Some(known) = self.known(replica) {
            return known;
        }
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        // Who has left and has nothing in flight needs none.
        all.retain(|_, picture| picture.incarnation.strong_count() > 0);
        if let Some(known) = all.get(&replica.incarnation()) {
            // Somebody was faster.
            return Arc::clone(known);
        }
        // In steps, so that one replica more or less mostly changes nothing.
        let most_entries = self.memory / BYTES_OF_ENTRY / (all.len() + 1).next_power_of_two().max(8);
        all.values().for_each(|other| other.state().holdings.limit(most_entries));
        Arc::clone(all.entry(replica.incarnation()).or_insert_with(|| Arc::new(Picture::new(replica, most_entries))))
    }

    /// What [`Self::of`] would show, for somebody who only looks: one that has to be begun, or begun anew, is not kept.
    pub(super) fn glance(&self, replica: &Replica) -> Arc<Picture> {
        let known = self.known(replica).filter(|known| known.state().is_current(replica));
        known.unwrap_or_else(|| Arc::new(Picture::new(replica, self.memory / BYTES_OF_ENTRY)))
    }

    /// That of a replica, if there is one.
    pub(super) fn known(&self, replica: &Replica) -> Option<Arc<Picture>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).get(&replica.incarnation()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Fleet, ReplicaSpec, health};
    use crate::request::{Chunks, end_of};
    use crate::units::Weight;

    fn spec(number: usize) -> ReplicaSpec {
        ReplicaSpec { name: number.to_string(), authority: String::new(), weight: Weight::clamped(1), models: vec![], drain: false }
    }

    /// However many replicas come, and whatever was sent to them.
    #[test]
    fn all_pictures_together_keep_the_bound_and_who_has_left_has_none() {
        const MEMORY: usize = 1 << 20;
        let (mut fleet, pictures) = (Fleet::new((0..3).map(spec).collect(), health::Settings::default(), 0), Pictures::new(MEMORY));
        let mut hash = 0;
        for replicas in [3, 9, 40, 100, 5] {
            fleet.adopt(Arc::new(fleet.membership().next((0..replicas).map(spec).collect(), true)));
            for replica in fleet.snapshot().replicas() {
                for _ in 0..40 {
                    let hashes = (0..50).map(|_| {
                        hash += 1;
                        hash
                    });
                    pictures.of(replica).state().holdings.insert(&Chunks {
                        hashes: hashes.collect(),
                        bytes: end_of(50),
                        ..Chunks::default()
                    });
                }
            }
            // It is noticed when the next one comes.
            fleet.adopt(Arc::new(fleet.membership().next((1..replicas + 1).map(spec).collect(), true)));
            fleet.snapshot().replicas().iter().for_each(|replica| drop(pictures.of(replica)));
            let all = pictures.all.read().expect("nobody panicked");
            let entries: usize = all.values().map(|picture| picture.state().holdings.len()).sum();
            assert!(entries * BYTES_OF_ENTRY <= MEMORY, "{replicas}: {entries}");
            assert!(entries * BYTES_OF_ENTRY >= MEMORY / 8, "{replicas}: {entries}");
            assert!(all.len() <= replicas + 1, "{replicas}: {}", all.len());
        }
    }
}
