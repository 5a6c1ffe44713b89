//! The simulated replicas' tokenizer: a token is four bytes of text.
//!
//! It splits where a text's bytes say, not where words end; what counts is that texts that begin alike have tokens that begin alike, and that
//! English has about four bytes in a token.

use std::ops::Range;

/// Bytes of text in a token.
pub const BYTES: usize = 4;

/// Begins a message; its role and [`CONTENT`] follow. No text has these tokens: UTF-8 has no such byte.
pub const MESSAGE: u32 = 0xFF00_0001;
/// Ends a message's role.
pub const CONTENT: u32 = 0xFF00_0002;
/// Ends a message, and an answer that is complete.
pub const END: u32 = 0xFF00_0003;
/// A part that is no text; what tells it from others follows.
pub const MEDIA: u32 = 0xFF00_0004;

/// The tokens of a text; the last may have fewer bytes.
pub fn encode(text: &str) -> impl Iterator<Item = u32> {
    text.as_bytes().chunks(BYTES).map(|chunk| {
        let mut bytes = [0; BYTES];
        bytes[..chunk.len()].copy_from_slice(chunk);
        u32::from_be_bytes(bytes)
    })
}

/// A text, and what each token adds to it. Long answers come in great numbers, so they are no texts of their own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pieces {
    text: String,
    /// Where each token's piece ends.
    ends: Vec<usize>,
}

impl Pieces {
    /// `text`, of which the pieces end at `ends`, in order and between signs.
    pub(super) fn cut(text: String, ends: Vec<usize>) -> Self {
        Self { text, ends }
    }

    /// Of `tokens`. A sign whose bytes are spread over tokens comes with the last of them.
    pub fn new(tokens: &[u32]) -> Self {
        let mut pieces = Self { text: String::new(), ends: Vec::with_capacity(tokens.len()) };
        let mut held = Vec::new();
        for &token in tokens {
            push_bytes(&mut held, token);
            while let Err(error) = std::str::from_utf8(&held) {
                let (whole, bad) = (error.valid_up_to(), error.error_len());
                pieces.text.push_str(&String::from_utf8_lossy(&held[..whole]));
                held.drain(..whole + bad.unwrap_or(0));
                if bad.is_none() {
                    break;
                }
                pieces.text.push(char::REPLACEMENT_CHARACTER);
            }
            if let Ok(text) = std::str::from_utf8(&held) {
                pieces.text.push_str(text);
                held.clear();
            }
            pieces.ends.push(pieces.text.len());
        }
        if let Some(last) = pieces.ends.last_mut()
            && !held.is_empty()
        {
            pieces.text.push(char::REPLACEMENT_CHARACTER);
            *last = pieces.text.len();
        }
        pieces
    }

    /// All of it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How many pieces there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// What token number `at` adds; nothing where there is none.
    pub fn get(&self, at: usize) -> &str {
        self.range(at..at + 1)
    }

    /// What these tokens add, as far as they are there.
    pub fn range(&self, tokens: Range<usize>) -> &str {
        let end = |at: usize| at.min(self.len()).checked_sub(1).map_or(0, |last| self.ends[last]);
        self.text.get(end(tokens.start)..end(tokens.end)).unwrap_or_default()
    }

    /// The pieces one by one.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|at| self.get(at))
    }

    /// Where each piece ends in the text.
    pub(super) fn ends(&self) -> &[usize] {
        &self.ends
    }
}

/// The text of tokens. Bytes that are no text come out as replacement characters, tokens that stand for no text as nothing.
pub fn decode(tokens: &[u32]) -> String {
    let mut bytes = Vec::with_capacity(tokens.len() * BYTES);
    for &token in tokens {
        push_bytes(&mut bytes, token);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn push_bytes(to: &mut Vec<u8>, token: u32) {
    if !(MESSAGE..=MEDIA).contains(&token) {
        let all = token.to_be_bytes();
        let used = all.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        to.extend_from_slice(&all[..used]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tokens_are_the_text(text in "[^\u{0}]{0,60}") {
            let tokens: Vec<u32> = encode(&text).collect();
            prop_assert_eq!(tokens.len(), text.len().div_ceil(4));
            let pieces = Pieces::new(&tokens);
            prop_assert_eq!(pieces.text(), text.as_str());
            prop_assert_eq!(pieces.iter().collect::<String>(), text.as_str());
            prop_assert_eq!(decode(&tokens), text);
        }

        #[test]
        fn any_tokens_have_some_text(tokens in prop::collection::vec(any::<u32>(), 0..20)) {
            let pieces = Pieces::new(&tokens);
            prop_assert_eq!(pieces.len(), tokens.len());
            prop_assert_eq!(pieces.iter().collect::<String>(), pieces.text());
        }
    }
}
