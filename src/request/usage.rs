//! What an answer says that its request took. The engine counts; nothing here guesses.

/// Tokens of one request, as its engine counted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, those found in the engine's cache included.
    pub prompt_tokens: u64,
    /// Those of them that were found in the cache; `None` where the engine does not say, which is not 0.
    pub cached_tokens: Option<u64>,
    /// Tokens that were generated.
    pub completion_tokens: Option<u64>,
}
