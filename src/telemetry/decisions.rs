//! The last requests, each with where it went and why: for an operator who asks. They are kept in fixed memory, and looked at only when somebody asks.
//!
//! Neither a prompt nor an identifier is in them. A key is; whoever shows it hides it behind a secret.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use hyper::Method;

use super::labels::{reason, route};
use super::metrics::CLIENT_GONE;
use super::models::ModelLabel;
use crate::request::{Key, Surface, Usage};
use crate::routing::{PassedOver, Reason, StrategyName};

/// A request that is over.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Counts up from 1.
    pub id: u64,
    /// When it was over.
    pub ended: SystemTime,
    /// As in the log.
    pub request_id: Box<str>,
    /// Its method.
    pub method: Method,
    /// What its path stands for; `None` where it is not served.
    pub surface: Option<Surface>,
    /// Its model, as metrics know it.
    pub model: ModelLabel,
    /// By which it was chosen.
    pub strategy: StrategyName,
    /// What its client got; 499 where that left before the end.
    pub status: u16,
    /// What went wrong, as the header `x-prefix-router-error` names it.
    pub error: Option<&'static str>,
    /// Why the last replica was chosen.
    pub reason: Option<Reason>,
    /// The last replica tried: its incarnation and its name.
    pub replica: Option<(u64, Arc<str>)>,
    /// Who was passed over, though the key's first choice, and how many requests it had in flight.
    pub instead_of: Option<(Arc<str>, u64)>,
    /// Replicas tried.
    pub tries: u32,
    /// Those that failed before the last one, and how: `a busy, b broke`.
    pub failed: String,
    /// How long it waited.
    pub queued: Duration,
    /// From its head to the first byte of its answer's body.
    pub first_byte: Option<Duration>,
    /// From its head to its end.
    pub whole: Duration,
    /// What the answer said that it took.
    pub usage: Option<Usage>,
    /// The share of its prompt that was expected in the replica's cache, by a strategy that knows that.
    pub overlap: Option<f64>,
    /// What it was placed by, and how many characters that covers where traffic decides that.
    pub key: Option<(Key, Option<u32>)>,
}

impl Decision {
    /// The route, as metrics have it.
    pub fn route(&self) -> &'static str {
        route(self.surface)
    }

    /// The reason, as metrics have it.
    pub fn reason(&self) -> &'static str {
        reason(self.reason)
    }

    /// Whether its answer is a good one that a prompt was computed for.
    pub fn is_good(&self) -> bool {
        self.error.is_none() && (200..300).contains(&self.status) && self.surface.is_some_and(Surface::reaches_engine)
    }

    /// Why it went where it did, in one sentence.
    pub fn why(&self) -> String {
        let Some((reason, (_, replica))) = self.reason.zip(self.replica.as_ref()) else {
            return match self.error {
                Some(CLIENT_GONE) => "The client left before a replica was chosen.".to_owned(),
                Some(error) => format!("It was refused before a replica was chosen: {error}."),
                None => "The router answered it itself.".to_owned(),
            };
        };
        let first = self.instead_of.as_ref();
        let home = || first.map_or("its home".to_owned(), |(name, outstanding)| format!("{name}, its home with {outstanding} in flight,"));
        match reason {
            Reason::Home => {
                let same = match self.key {
                    Some((_, Some(1))) => "with the same character".to_owned(),
                    Some((_, Some(depth))) => format!("with the same {depth} characters"),
                    _ => "alike".to_owned(),
                };
                let held = self.overlap.map_or(String::new(), |share| format!("; {:.0} % of it was expected in its cache", share * 100.0));
                format!("Prompts that begin {same} belong to {replica}{held}.")
            }
            Reason::Cached => {
                let held = self.overlap.map_or(String::new(), |share| format!(": {:.0} %", share * 100.0));
                format!("{replica} is thought to hold more of this prompt than {}{held}.", home().trim_end_matches(','))
            }
            Reason::Overflow if self.strategy == StrategyName::CacheAware => {
                format!("Computing it on {replica} was expected to be sooner than waiting for {}.", home().trim_end_matches(','))
            }
            // Its gate was closed, or it was full.
            Reason::Overflow => format!("As {} took no more, {replica} took it.", home()),
            Reason::Failover if self.failed.is_empty() => {
                format!("Its home could not be used, so {replica}, next in its key's order, took it.")
            }
            Reason::Failover => format!("Tried before: {}; so {replica} took it.", self.failed),
            Reason::NoKey => format!("Its prompt has no text to place it by, so {replica}, the least loaded, took it."),
            Reason::Load => match self.strategy {
                StrategyName::RoundRobin => format!("It was the turn of {replica}."),
                StrategyName::Random => format!("Chance chose {replica}."),
                _ => format!("It goes by load alone, and {replica} had the least."),
            },
        }
    }
}

/// The last decisions.
pub struct Decisions {
    most: AtomicUsize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    decisions: VecDeque<Decision>,
    last: u64,
}

impl Decisions {
    /// Keeps so many at most.
    pub(super) fn new(most: usize) -> Self {
        Self { most: AtomicUsize::new(most), kept: Mutex::default() }
    }

    /// Keeps so many from now on.
    pub fn keep(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
        let mut kept = self.kept();
        while kept.decisions.len() > most {
            kept.decisions.pop_front();
        }
        kept.decisions.shrink_to_fit();
    }

    /// How many are kept at most; 0 where none are.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Adds the one that `make` makes of its number.
    pub(super) fn add(&self, make: impl FnOnce(u64) -> Decision) {
        let most = self.most();
        if most == 0 {
            return;
        }
        let mut kept = self.kept();
        // What goes is freed outside of the lock.
        let gone = if kept.decisions.len() >= most { kept.decisions.pop_front() } else { None };
        kept.last += 1;
        let decision = make(kept.last);
        kept.decisions.push_back(decision);
        drop(kept);
        drop(gone);
    }

    /// Those behind `after`, the newest first, at most so many; and the number of the last of all.
    pub fn latest(&self, after: u64, most: usize) -> (Vec<Decision>, u64) {
        let kept = self.kept();
        let new = kept.decisions.iter().rev().take_while(|decision| decision.id > after).take(most);
        (new.cloned().collect(), kept.last)
    }

    /// Shows each of them, the oldest first. Requests that end meanwhile wait.
    pub fn each(&self, mut see: impl FnMut(&Decision)) {
        self.kept().decisions.iter().for_each(&mut see);
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics while it holds this lock; were it to, what is kept is sound.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Of who was passed over, what outlasts it.
pub(super) fn name_of(passed_over: PassedOver) -> (Arc<str>, u64) {
    (passed_over.replica.shared_name(), passed_over.outstanding)
}
