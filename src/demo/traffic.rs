//! Sends a workload's sessions to a router, each request at its time, and gathers what came of them.
//!
//! It keeps to the clock whatever the router does: requests that wait do not hold up those that come after (an open loop).

use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep_until};

use super::client::{Client, Message};
use super::texts::text;
use crate::sim::report::{Report, Sample};
use crate::sim::workload::demo::Session;

/// What has come of a run so far. Clones are the same run.
#[derive(Clone, Default)]
pub(super) struct Outcome {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    samples: Vec<Sample>,
    failed: usize,
    first_failure: Option<String>,
    /// Sessions that have begun, and those of them that began late.
    begun: usize,
    late: usize,
}

/// A request that this machine sends later than this after its time is late.
const LATE: Duration = Duration::from_millis(20);

impl Outcome {
    /// The figures as of now.
    pub(super) fn report(&self, replicas: usize) -> Report {
        let inner = self.lock();
        Report::new(inner.samples.clone(), inner.failed, replicas)
    }

    /// Requests that are over.
    pub(super) fn over(&self) -> usize {
        let inner = self.lock();
        inner.samples.len() + inner.failed
    }

    /// Why the first request failed that did.
    pub(super) fn first_failure(&self) -> Option<String> {
        self.lock().first_failure.clone()
    }

    /// The share of the sessions that this machine began late.
    pub(super) fn late(&self) -> f64 {
        let inner = self.lock();
        inner.late as f64 / inner.begun.max(1) as f64
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // Nothing panics while it holds this lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Plays all `sessions` from now on. Replicas are known by their place in `names`.
pub(super) async fn play(client: &Client, model: &str, sessions: &[Session], names: &[String], outcome: &Outcome) {
    let begun = Instant::now();
    let mut running = JoinSet::new();
    for session in sessions {
        sleep_until(begun + session.start).await;
        let (client, model, session) = (client.clone(), model.to_owned(), session.clone());
        let (names, outcome) = (names.to_vec(), outcome.clone());
        running.spawn(async move { converse(&client, &model, &session, begun, &names, &outcome).await });
        while running.try_join_next().is_some() {}
    }
    running.join_all().await;
}

async fn converse(client: &Client, model: &str, session: &Session, begun: Instant, names: &[String], outcome: &Outcome) {
    let mut messages: Vec<Message> = Vec::new();
    // Not when this task got to run: a client that is slow must not look like a server that is fast.
    let mut due = begun + session.start;
    for (done, turn) in session.turns.iter().enumerate() {
        due += turn.pause;
        sleep_until(due).await;
        messages.extend(turn.setting.map(|setting| Message { role: "system", content: text(setting) }));
        messages.push(Message { role: "user", content: text(turn.question) });
        if done == 0 {
            let mut inner = outcome.lock();
            inner.begun += 1;
            inner.late += usize::from(due.elapsed() > LATE);
        }
        let answer = match client.chat(model, &messages, turn.output_tokens, due).await {
            Ok(answer) => answer,
            Err(error) => {
                let mut inner = outcome.lock();
                // Without an answer, the conversation has no further turns.
                inner.failed += session.turns.len() - done;
                inner.first_failure.get_or_insert(format!("{error:#}"));
                return;
            }
        };
        outcome.lock().samples.push(Sample {
            start: due.saturating_duration_since(begun),
            first_token: answer.first_token,
            total: answer.total,
            prompt_tokens: answer.prompt_tokens,
            cached_tokens: answer.cached_tokens,
            replica: names.iter().position(|name| *name == answer.replica).unwrap_or(names.len()),
            overflow: answer.reason == "overflow",
        });
        messages.push(Message { role: "assistant", content: answer.text });
        due = Instant::now();
    }
}
