//! What `usage` objects say, on every surface. It does not know where in an answer they stood.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::request::Usage;

/// More tokens than any prompt or list of prompts has: a larger number is not believed.
const MOST_TOKENS: u64 = 1 << 32;

/// What the `usage` objects of an answer say.
#[derive(Clone, Copy, Default)]
pub(super) struct Told {
    prompt: Option<u64>,
    /// Those of `prompt` that were cached.
    cached: Option<u64>,
    /// Those besides `prompt` that were cached: Anthropic's `input_tokens` are what the cache has nothing to do with.
    cached_besides: Option<u64>,
    /// Those besides `prompt` that were not, and are from now on.
    stored_besides: Option<u64>,
    completion: Option<u64>,
    /// Whether a part of it may be told later: Anthropic's streams begin with the prompt's tokens and end with the others.
    is_part: bool,
}

impl Told {
    /// What one object says; `None` where that is nothing.
    pub(super) fn read(object: &[u8]) -> Option<Self> {
        let object: Object<'_> = serde_json::from_slice(object).ok()?;
        let details = object.prompt_tokens_details.or(object.input_tokens_details);
        let details: Option<Details<'_>> =
            details.filter(|raw| raw.get().starts_with('{')).and_then(|raw| serde_json::from_str(raw.get()).ok());
        let told = Self {
            prompt: count(object.prompt_tokens.or(object.input_tokens)),
            cached: details.and_then(|details| count(details.cached_tokens)),
            cached_besides: count(object.cache_read_input_tokens),
            stored_besides: count(object.cache_creation_input_tokens),
            completion: count(object.completion_tokens.or(object.output_tokens)),
            is_part: object.prompt_tokens.is_none(),
        };
        let Self { prompt, cached_besides, stored_besides, completion, is_part, .. } = told;
        (prompt.is_some() || is_part && cached_besides.or(stored_besides).or(completion).is_some()).then_some(told)
    }

    /// A later object rules, where it says something.
    pub(super) fn add(&mut self, later: Self) {
        let earlier = if later.is_part { *self } else { Self::default() };
        *self = Self {
            prompt: later.prompt.or(earlier.prompt),
            cached: later.cached.or(earlier.cached),
            cached_besides: later.cached_besides.or(earlier.cached_besides),
            stored_besides: later.stored_besides.or(earlier.stored_besides),
            completion: later.completion.or(earlier.completion),
            is_part: later.is_part,
        };
    }

    /// All together; `None` where the prompt's tokens are not told.
    pub(super) fn usage(&self) -> Option<Usage> {
        let prompt_tokens = self.prompt? + self.cached_besides.unwrap_or_default() + self.stored_besides.unwrap_or_default();
        let cached_tokens = self.cached.or(self.cached_besides).filter(|&cached| cached <= prompt_tokens);
        Some(Usage { prompt_tokens, cached_tokens, completion_tokens: self.completion })
    }
}

/// The fields of all surfaces: chat, completions and embeddings (`prompt_tokens`), `/v1/responses` and `/v1/messages` (`input_tokens`). Raw, so that a
/// number that is none leaves the others readable.
#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow)]
    prompt_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_tokens_details: Option<&'a RawValue>,
    #[serde(borrow)]
    completion_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    input_tokens_details: Option<&'a RawValue>,
    #[serde(borrow)]
    output_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_read_input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_creation_input_tokens: Option<&'a RawValue>,
}

/// What is said of the prompt's tokens.
#[derive(Deserialize)]
struct Details<'a> {
    #[serde(borrow)]
    cached_tokens: Option<&'a RawValue>,
}

/// A count of tokens; `None` where it is something else.
fn count(raw: Option<&RawValue>) -> Option<u64> {
    raw?.get().parse().ok().filter(|&tokens| tokens <= MOST_TOKENS)
}
