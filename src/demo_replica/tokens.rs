//! The simulated replicas' tokenizer: a token is four bytes of text.
//!
//! It splits where a text's bytes say, not where words end; what counts is that texts that begin alike have tokens that begin alike, and that
//! English has about four bytes in a token.

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

/// What each token adds to the text. A sign whose bytes are spread over tokens comes with the last of them.
pub fn pieces(tokens: &[u32]) -> Vec<String> {
    let mut held = Vec::new();
    let mut all: Vec<String> = tokens
        .iter()
        .map(|&token| {
            push_bytes(&mut held, token);
            let mut piece = String::new();
            loop {
                match std::str::from_utf8(&held) {
                    Ok(text) => {
                        piece.push_str(text);
                        held.clear();
                    }
                    Err(error) => {
                        let (whole, bad) = (error.valid_up_to(), error.error_len());
                        piece.push_str(&String::from_utf8_lossy(&held[..whole]));
                        held.drain(..whole + bad.unwrap_or(0));
                        if bad.is_some() {
                            piece.push(char::REPLACEMENT_CHARACTER);
                            continue;
                        }
                    }
                }
                return piece;
            }
        })
        .collect();
    if let Some(last) = all.last_mut()
        && !held.is_empty()
    {
        last.push(char::REPLACEMENT_CHARACTER);
    }
    all
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
            prop_assert_eq!(pieces(&tokens).concat(), text.as_str());
            prop_assert_eq!(decode(&tokens), text);
        }

        #[test]
        fn any_tokens_have_some_text(tokens in prop::collection::vec(any::<u32>(), 0..20)) {
            prop_assert_eq!(pieces(&tokens).len(), tokens.len());
        }
    }
}
