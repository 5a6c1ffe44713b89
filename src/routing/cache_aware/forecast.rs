//! What was expected of a request when it was sent, and its place among what its replica has to compute: until its answer begins, or it is over without one.

use std::sync::Arc;
use std::time::Instant;

use super::learnt::Beyond;
use super::picture::Picture;

/// What was expected of a request. While it is kept, and until its answer has begun, its prompt counts as being computed there.
#[derive(Debug)]
pub struct Forecast {
    pub(super) picture: Arc<Picture>,
    /// Its number among those that wait there.
    pub(super) ticket: u64,
    /// Bytes of its prompt.
    pub prompt_bytes: usize,
    /// Those at its beginning that the replica was thought to hold.
    pub held_bytes: usize,
    /// Bytes that the replica was expected to find in its cache: of those held, what is kept, and what others may have sent.
    pub expected_bytes: f64,
    /// Tokens to compute before its first one, those of others included.
    pub tokens: f64,
    /// Seconds that a token of a prompt costs there.
    pub(in crate::routing) seconds_per_token: f64,
    /// Requests in flight there, without this one: this router's, and others'.
    pub(super) own: f64,
    pub(super) others: f64,
    /// By how much sooner its first token was expected there than at the best of the others, in seconds; infinite where there was no other.
    pub(super) saves: f64,
    /// When it was made.
    pub(super) sent: Instant,
    /// Of the picture by which it was made.
    pub(super) generation: u32,
    /// Which part of its prompt tells, if it is found in the cache, what other routers have sent there.
    pub(in crate::routing) beyond: Option<Beyond>,
    /// Whether the answer comes piece by piece, so that its first byte tells how long the prompt took.
    pub streams: bool,
    /// Whether the tokens of its prompt can be told from its bytes.
    pub is_text: bool,
}

impl Forecast {
    /// The share of the prompt that the replica was expected to find in its cache; `None` of a prompt without text.
    pub fn overlap(&self) -> Option<f64> {
        (self.prompt_bytes > 0).then(|| (self.expected_bytes / self.prompt_bytes as f64).clamp(0.0, 1.0))
    }
}

impl Drop for Forecast {
    fn drop(&mut self) {
        self.picture.state().give_up(self.ticket);
    }
}

/// What became of forecasts: of one, or of all that went to a replica for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// Tokens of prompts that were expected in the replica's cache.
    pub expected_tokens: f64,
    /// Those that were found there.
    pub found_tokens: f64,
    /// Tokens of the prompts.
    pub prompt_tokens: f64,
    /// Of one: by how much later its first token came, in seconds, than it would have at the best of the others, as far as can be told afterwards; 0 where
    /// it was the best.
    pub regret_seconds: Option<f64>,
    /// Whether the picture of that replica has turned out to be wrong from now on, or right again.
    pub turned: Option<Turn>,
}

/// How the picture of a replica's cache does from now on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// Much less is found than is thought to be there.
    pub is_wrong: bool,
    /// Of what is thought to be there, the share that is found of late.
    pub kept: f64,
}
