//! What would be done with a request, and why: for an operator who asks. Nothing is sent, counted or remembered.
//!
//! It goes the way that [`Proxy::answer`](super::Proxy) goes, by the same rules and on the same picture, up to the choice.

mod story;

use std::sync::Arc;

use serde::Serialize;
use tokio::time::Instant;

use super::error::ProxyError;
use super::{Proxy, Rules};
use crate::fleet::{Pool, Replica, State};
use crate::live::View;
use crate::request::{Ask, IDENTIFIER_HEADER, Refusal, Surface, is_identifier};
use crate::routing::{Aim, Candidates, Explanation, Peek, Standing, Would};

/// A request as somebody describes it.
#[derive(Clone, Copy)]
pub struct Described<'a> {
    /// Where its client would send it.
    pub path: &'a str,
    /// The value of its header for an identifier.
    pub identifier: Option<&'a [u8]>,
    /// Its body.
    pub body: &'a [u8],
}

/// Why there is nothing to explain, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unexplained {
    /// The router serves no such path.
    NotServed(String),
    /// No router would read it further.
    NotAllowed(String),
}

/// What would be done with it.
#[derive(Debug, Serialize)]
pub struct Explained {
    path: String,
    surface: &'static str,
    strategy: &'static str,
    model: Option<String>,
    pool: Option<String>,
    identifier: Option<&'static str>,
    prompt_bytes: Option<usize>,
    boundaries: Vec<BoundarySeen>,
    key: Option<String>,
    depth: Option<u32>,
    seen: Option<&'static str>,
    replica: Option<String>,
    reason: Option<&'static str>,
    by_chance: bool,
    outcome: Outcome,
    error: Option<&'static str>,
    steps: Vec<String>,
    candidates: Vec<Candidate>,
    next: Vec<Next>,
}

/// A place at which its key could end.
#[derive(Debug, Serialize)]
struct BoundarySeen {
    depth: u32,
    key: String,
    share: Option<f64>,
    limit: Option<f64>,
    is_hot: bool,
    is_chosen: bool,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// It goes to a replica at once.
    Sent,
    /// It waits for a replica with room.
    Waits,
    /// It waits for a replica to have less to do.
    Held,
    /// Its client gets an error, or what the router knows itself.
    Refused,
    /// The router answers it itself.
    Answered,
}

/// A member of its pool.
#[derive(Debug, Serialize)]
struct Candidate {
    name: String,
    rank: Option<usize>,
    state: Option<&'static str>,
    is_eligible: bool,
    outstanding: u64,
    threshold: Option<u64>,
    gate: Option<&'static str>,
    is_full: bool,
    overlap: Option<f64>,
    cost_seconds: Option<f64>,
    first_token_seconds: Option<f64>,
}

/// Who is tried when all before failed.
#[derive(Debug, Serialize)]
struct Next {
    replica: String,
    reason: &'static str,
}

impl Proxy {
    /// What would be done with a request that comes now; or why it cannot be said, as it would not be served at all.
    pub fn explain(&self, described: Described<'_>) -> Result<Explained, Unexplained> {
        let Described { path, identifier, body } = described;
        let rules = self.rules();
        let surface = Surface::of(path, &rules.settings.expose_paths).map_err(|refusal| match refusal {
            Refusal::NotExposed => Unexplained::NotServed(format!(
                "{path:?} is not served; allowed: the paths that the traffic port serves, like /v1/chat/completions"
            )),
            Refusal::MetricsOnAdmin => {
                Unexplained::NotServed("/metrics is answered on the admin port; allowed: the paths that the traffic port serves".to_owned())
            }
        })?;
        if body.len() > rules.settings.max_body {
            return Err(Unexplained::NotAllowed(ProxyError::BodyTooLarge(rules.settings.max_body).to_string()));
        }
        let identifier = match identifier {
            None => None,
            Some(value) => {
                let text = std::str::from_utf8(value).ok().filter(|text| is_identifier(text.as_bytes()));
                Some(text.ok_or_else(|| {
                    Unexplained::NotAllowed(format!(
                        "the header {IDENTIFIER_HEADER} must have 1 to 64 printable ASCII characters, the first not a space"
                    ))
                })?)
            }
        };
        let ask = Ask::read(surface, body, identifier, &rules.key);
        let view = self.parties.fleet.view();
        let begun = Explained {
            path: path.to_owned(),
            surface: surface.label(),
            strategy: rules.chooser.name().name(),
            model: ask.model.clone(),
            pool: None,
            identifier: ask.identifier.map(|_| if identifier.is_some() { "header" } else { "body" }),
            prompt_bytes: ask.prompt_bytes,
            boundaries: Vec::new(),
            key: None,
            depth: None,
            seen: None,
            replica: None,
            reason: None,
            by_chance: false,
            outcome: Outcome::Refused,
            error: None,
            steps: Vec::new(),
            candidates: Vec::new(),
            next: Vec::new(),
        };
        let explained = if surface.is_answered_here() {
            Explained { outcome: Outcome::Answered, ..begun }
        } else if *self.parties.draining.borrow() {
            Explained { error: Some(ProxyError::Draining.code()), ..begun }
        } else {
            match view.pool(ask.model.as_deref()) {
                None => Explained { error: Some(ProxyError::unknown_model(ask.model.as_deref()).code()), ..begun },
                Some(pool) => self.choose_for(begun, &rules, &ask, &view, pool),
            }
        };
        Ok(story::tell(explained))
    }

    fn choose_for(&self, begun: Explained, rules: &Rules, ask: &Ask, view: &View, pool: &Pool) -> Explained {
        let peek = rules.chooser.peek(ask, pool);
        let by_key = rules.chooser.name().goes_by_key();
        let mut tried: Vec<Arc<Replica>> = Vec::new();
        let first = self.explain_among(rules, &peek.aim, pool, &tried);
        let mut explained = Explained {
            pool: Some(pool.name().label().to_owned()),
            seen: peek.is_known.filter(|_| by_key).map(|is_known| if is_known { "known" } else { "new" }),
            boundaries: if by_key { self.boundaries_of(&peek) } else { Vec::new() },
            candidates: candidates(view, pool, &first),
            ..begun
        };
        if let (Aim::ByKey(sight), true) = (&peek.aim, by_key) {
            (explained.key, explained.depth) = (Some(self.boundaries.masked(sight.key)), sight.depth);
        }
        match first.would {
            Would::Go { replica, reason, .. } => {
                explained.outcome = Outcome::Sent;
                (explained.replica, explained.reason) = (Some(replica.name().to_owned()), Some(reason.label()));
                tried.push(replica);
            }
            Would::Hold(replica) => {
                explained.outcome = Outcome::Held;
                explained.replica = Some(replica.name().to_owned());
                tried.push(replica);
            }
            Would::Any(reason) => (explained.outcome, explained.by_chance, explained.reason) = (Outcome::Sent, true, Some(reason.label())),
            Would::Nobody if Candidates::new(pool, &[], now()).is_anybody() => explained.outcome = Outcome::Waits,
            Would::Nobody => explained.error = Some(ProxyError::NoReplica.code()),
        }
        if rules.admission.is_on() && self.admission.is_full(&rules.admission) && explained.error.is_none() {
            explained.outcome = Outcome::Waits;
        }
        while !tried.is_empty() && tried.len() <= rules.settings.retries as usize {
            let Would::Go { replica, reason, .. } = self.explain_among(rules, &peek.aim, pool, &tried).would else { break };
            explained.next.push(Next { replica: replica.name().to_owned(), reason: reason.label() });
            tried.push(replica);
        }
        explained
    }

    fn explain_among(&self, rules: &Rules, aim: &Aim, pool: &Pool, tried: &[Arc<Replica>]) -> Explanation {
        let hold = (rules.admission.holds() && aim.is_by_cost() && tried.is_empty()).then_some(rules.admission.hold);
        let candidates = Candidates::new(pool, tried, now()).below(rules.admission.limit()).within(hold);
        rules.chooser.explain(aim, &candidates)
    }

    fn boundaries_of(&self, peek: &Peek) -> Vec<BoundarySeen> {
        let seen = peek.steps.iter().enumerate().map(|(index, step)| BoundarySeen {
            depth: step.boundary.depth,
            key: self.boundaries.masked(step.boundary.key),
            share: step.share,
            limit: step.limit,
            is_hot: step.is_hot,
            is_chosen: index == peek.chosen,
        });
        seen.collect()
    }
}

/// All members of the pool: the candidates in their order, then those that cannot be chosen now.
fn candidates(view: &View, pool: &Pool, explanation: &Explanation) -> Vec<Candidate> {
    let state = |replica: &Replica| view.state(replica).map(State::label);
    let candidate = |standing: &Standing| {
        let (replica, threshold) = (&standing.replica, standing.threshold);
        let outstanding = replica.outstanding();
        Candidate {
            name: replica.name().to_owned(),
            rank: standing.rank,
            state: state(replica),
            is_eligible: true,
            outstanding,
            threshold,
            gate: threshold.map(|threshold| if outstanding < threshold { "open" } else { "closed" }),
            is_full: standing.is_full,
            overlap: standing.expected.map(|expected| expected.overlap),
            cost_seconds: standing.expected.map(|expected| expected.cost),
            first_token_seconds: standing.expected.map(|expected| expected.first_token),
        }
    };
    let eligible: Vec<Candidate> = explanation.standings.iter().map(candidate).collect();
    let others = pool.members().iter().filter(|member| explanation.standings.iter().all(|standing| !standing.replica.is(member)));
    let others = others.map(|member| Candidate { is_eligible: false, ..candidate(&Standing::of(member)) });
    let others: Vec<Candidate> = others.collect();
    eligible.into_iter().chain(others).collect()
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}
