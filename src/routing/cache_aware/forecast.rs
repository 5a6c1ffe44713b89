//! What was expected of a request when it was sent, and its place among what its replica has to compute: until its answer begins, or it is over without one.

use std::sync::Arc;

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
    /// Tokens to compute before its first one, those of others included.
    pub tokens: f64,
    /// What the first byte was to take beside these, in seconds.
    pub other_seconds: f64,
    /// The replica's weight relative to the mean of its pool.
    pub weight: f64,
    /// Whether what is found of it in the replica's cache tells what other routers have sent there: this one has sent hardly anything of it, and the replica is
    /// its key's home.
    pub shows_others: bool,
    /// Whether the answer comes piece by piece, so that its first byte tells how long the prompt took.
    pub streams: bool,
    /// Whether the tokens of its prompt can be told from its bytes.
    pub is_text: bool,
}

impl Drop for Forecast {
    fn drop(&mut self) {
        self.picture.state().give_up(self.ticket);
    }
}
