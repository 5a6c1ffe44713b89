//! A prompt in chunks: at more and more of its places, the hash of all before it. Two prompts that have such a hash in common begin alike up to there,
//! which is what an engine's prefix cache goes by.
//!
//! What an engine tells apart is hashed: the model, the `cache_salt`, roles, tools, media and text; not the identifier, which it does not know.

use std::ops::ControlFlow;

use xxhash_rust::xxh3::Xxh3;

use super::json::{Cursor, Malformed, RawString, Token, Value};
use super::prompt::Sink;

/// Bytes of the first chunks: about 64 tokens of text, four of an engine's blocks.
const FIRST: usize = 256;

/// A chunk is no longer than this part of all before it, where that is more than [`FIRST`]: so that what is known of a prompt is exact to 1.6 %, and
/// one of a million tokens has some hundred chunks.
const PART: usize = 64;

/// The hashes of a prompt's beginnings, the shortest first, and the length of the whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunks {
    /// Of all before the end of the first chunk, of the second, and so on; see [`end_of`].
    pub hashes: Vec<u64>,
    /// Bytes of the whole prompt: text with escapes undone, in UTF-8; what is behind the last chunk, too.
    pub bytes: usize,
    /// Those of them that are tool definitions, which come first.
    pub tools: usize,
    /// Whether there is something in it whose tokens cannot be told from its bytes: media, or a body that is not understood.
    pub is_opaque: bool,
}

impl Chunks {
    /// How many chunks two prompts have in common.
    pub fn common(&self, other: &Self) -> usize {
        // Where one hash is common, all before it are: halves are left out until one place is left.
        let (mut common, mut beyond) = (0, self.hashes.len().min(other.hashes.len()) + 1);
        while common + 1 < beyond {
            let middle = common.midpoint(beyond);
            if self.hashes[middle - 1] == other.hashes[middle - 1] { common = middle } else { beyond = middle }
        }
        common
    }
}

/// Bytes of a prompt up to the end of its chunk behind the one that ends at `end`; of its first one for 0.
pub const fn next_end(end: usize) -> usize {
    let step = end / PART / FIRST * FIRST;
    end + if step > FIRST { step } else { FIRST }
}

/// Bytes of a prompt up to the end of so many chunks.
pub fn end_of(chunks: usize) -> usize {
    (0..chunks).fold(0, |end, _| next_end(end))
}

/// Hashes a prompt piece by piece.
pub(super) struct ChunkHasher {
    hash: Xxh3,
    /// Where the chunk ends that is being read.
    end: usize,
    chunks: Chunks,
}

/// Before parts that are unlike: bytes that are in no UTF-8.
const SCOPE: u8 = 0xff;
const ROLE: u8 = 0xfe;
const TEXT: u8 = 0xfd;
const TOKEN_IDS: u8 = 0xfc;
const VALUE: u8 = 0xfb;
const MEDIUM: u8 = 0xfa;
const END: u8 = 0xf9;

impl ChunkHasher {
    pub(super) fn new(seed: u64, model: Option<&str>, cache_salt: Option<&str>) -> Self {
        let mut hasher = Self { hash: Xxh3::with_seed(seed), end: next_end(0), chunks: Chunks::default() };
        for scope in [model, cache_salt] {
            hasher.mark(SCOPE, scope.unwrap_or_default().as_bytes());
        }
        hasher
    }

    /// A raw body.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.chunks.is_opaque = true;
        self.count(bytes);
    }

    pub(super) fn finish(self) -> Chunks {
        self.chunks
    }

    /// Compared, not counted.
    fn mark(&mut self, kind: u8, bytes: &[u8]) {
        [&[kind], bytes, &[END]].into_iter().for_each(|bytes| self.hash.update(bytes));
    }

    fn count(&mut self, mut piece: &[u8]) {
        while let Some((head, rest)) = piece.split_at_checked(self.end - self.chunks.bytes) {
            self.hash.update(head);
            self.chunks.bytes = self.end;
            self.chunks.hashes.push(self.hash.digest());
            self.end = next_end(self.end);
            piece = rest;
        }
        self.hash.update(piece);
        self.chunks.bytes += piece.len();
    }
}

impl Sink for ChunkHasher {
    fn is_full(&self) -> bool {
        false
    }

    fn role(&mut self, role: &str) -> bool {
        self.mark(ROLE, role.as_bytes());
        true
    }

    fn text(&mut self, text: RawString<'_>) -> Result<(), Malformed> {
        self.hash.update(&[TEXT]);
        text.pieces(|piece| {
            self.count(piece);
            ControlFlow::Continue(())
        })
    }

    fn token_ids(&mut self, tokens: &mut Cursor<'_>) -> Result<(), Malformed> {
        self.hash.update(&[TOKEN_IDS]);
        let _ = tokens.array::<()>(|token| {
            let id = token.scalar()?.parse::<u32>().map_err(|_| Malformed)?;
            self.count(&id.to_le_bytes());
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(())
    }

    fn value(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        self.hash.update(&[VALUE]);
        value.tokens(|token| {
            match token {
                Token::Mark(mark) => self.count(&[mark]),
                Token::Scalar(scalar) => self.count(scalar.as_bytes()),
                Token::String(text) => {
                    self.text(text)?;
                    self.hash.update(&[END]);
                }
            }
            Ok(())
        })
    }

    fn medium(&mut self, source: RawString<'_>) -> Result<(), Malformed> {
        self.chunks.is_opaque = true;
        self.hash.update(&[MEDIUM]);
        source.pieces(|piece| {
            self.hash.update(piece);
            ControlFlow::Continue(())
        })?;
        self.hash.update(&[END]);
        Ok(())
    }

    fn end_of_tools(&mut self) {
        self.chunks.tools = self.chunks.bytes;
    }

    fn wants_all(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chunks(pieces: &[&[u8]]) -> Chunks {
        let mut hasher = ChunkHasher::new(0, Some("m"), None);
        pieces.iter().for_each(|piece| hasher.bytes(piece));
        hasher.finish()
    }

    #[test]
    fn chunks_grow_with_what_is_before_them() {
        assert_eq!([0, 1, 2, 128, 129, 130].map(end_of), [0, 256, 512, 32_768, 33_280, 33_792]);
        let long = (0..).take_while(|&count| end_of(count) <= 400_000).count();
        assert!((300..500).contains(&long), "{long}");
        let ends: Vec<usize> = (0..600).map(end_of).collect();
        assert!(ends.windows(2).all(|two| two[1] - two[0] <= FIRST.max(two[0] / PART)));
    }

    proptest! {
        /// However a prompt comes, and exactly as far as prompts are alike.
        #[test]
        fn hashes_are_common_as_far_as_prompts_are(shared in 0_usize..5_000, (one, other) in (1_usize..3_000, 1_usize..3_000), cut in 0_usize..5_000) {
            let of = |own: usize, byte: u8| [vec![b'x'; shared], vec![byte; own]].concat();
            let (first, second) = (of(one, b'a'), of(other, b'b'));
            let cut = cut.min(first.len());
            let whole = chunks(&[&first]);
            prop_assert_eq!(&chunks(&[&first[..cut], &first[cut..]]), &whole);
            prop_assert_eq!(whole.bytes, first.len());
            let common = whole.hashes.iter().zip(&chunks(&[&second]).hashes).take_while(|(one, other)| one == other).count();
            prop_assert_eq!(whole.common(&chunks(&[&second])), common);
            prop_assert_eq!(common, (0..).take_while(|&count| end_of(count + 1) <= shared).count());
        }
    }
}
