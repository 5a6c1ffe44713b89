//! What became of the inference requests that came: counts, and the last few in detail. Shown at `/demo/requests`, so that a test can ask
//! whether a replica saw a cancel.
//!
//! It holds no prompt and no answer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

/// Requests that are remembered in detail.
const LAST: usize = 100;

/// What has come, and what became of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Journal {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    received: u64,
    finished: u64,
    refused: u64,
    aborted: u64,
    last: VecDeque<(u64, Value)>,
}

/// A request under way. Dropped before [`finish`](Entry::finish) or [`refuse`](Entry::refuse), it was aborted: its client has left, or a fault
/// has cut it off.
#[derive(Debug)]
pub(super) struct Entry {
    journal: Journal,
    number: u64,
    ended: bool,
}

impl Journal {
    /// A request has come to `path`.
    pub(super) fn begin(&self, path: &str) -> Entry {
        let mut state = self.state();
        state.received += 1;
        let number = state.received;
        if state.last.len() == LAST {
            state.last.pop_front();
        }
        let entry = json!({"number": number, "path": path, "outcome": "open", "prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 0,
            "finish_reasons": []});
        state.last.push_back((number, entry));
        Entry { journal: self.clone(), number, ended: false }
    }

    /// Requests that have come and not yet ended.
    pub(super) fn open(&self) -> u64 {
        let state = self.state();
        state.received - state.finished - state.refused - state.aborted
    }

    /// All of it.
    pub(super) fn show(&self) -> Value {
        let state = self.state();
        let open = state.received - state.finished - state.refused - state.aborted;
        let last: Vec<&Value> = state.last.iter().map(|(_, entry)| entry).collect();
        json!({"received": state.received, "open": open, "finished": state.finished, "refused": state.refused, "aborted": state.aborted,
            "last": last})
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Notes a fact about it, where it is still remembered.
    pub(super) fn note(&self, name: &str, value: Value) {
        let mut state = self.journal.state();
        if let Some((_, entry)) = state.last.iter_mut().rev().find(|(number, _)| *number == self.number) {
            entry[name] = value;
        }
    }

    /// It was answered.
    pub(super) fn finish(&mut self) {
        self.end("finished", |state| &mut state.finished);
    }

    /// It was told that it gets no answer.
    pub(super) fn refuse(&mut self) {
        self.end("refused", |state| &mut state.refused);
    }

    fn end(&mut self, outcome: &str, count: fn(&mut State) -> &mut u64) {
        if !std::mem::replace(&mut self.ended, true) {
            *count(&mut self.journal.state()) += 1;
            self.note("outcome", outcome.into());
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.end("aborted", |state| &mut state.aborted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_ends_once() {
        let journal = Journal::default();
        let mut one = journal.begin("/a");
        let two = journal.begin("/b");
        one.note("cached_tokens", 5.into());
        assert_eq!(journal.open(), 2);
        one.finish();
        drop(one);
        drop(two);
        journal.begin("/c").refuse();
        let shown = journal.show();
        assert_eq!((journal.open(), &shown["received"], &shown["finished"]), (0, &json!(3), &json!(1)));
        assert_eq!((&shown["aborted"], &shown["refused"]), (&json!(1), &json!(1)));
        assert_eq!((&shown["last"][0]["cached_tokens"], &shown["last"][1]["outcome"]), (&json!(5), &json!("aborted")));
        for _ in 0..200 {
            journal.begin("/d").finish();
        }
        assert_eq!(journal.show()["last"].as_array().map(Vec::len), Some(LAST));
    }
}
