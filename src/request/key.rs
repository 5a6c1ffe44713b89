//! The key: a 64-bit xxh3 over everything that decides where a request belongs (DESIGN section 3).
//!
//! The hash runs over parts, each followed by its length and its tag. Read from the end, such a sequence can be taken apart in
//! one way only, so no two different lists of parts give the same bytes. (The length stands behind its part, not before it, since the
//! length of an escaped text is known only once the text has been read; that way nothing has to be copied first.)

use std::ops::ControlFlow;

use arrayvec::ArrayVec;
use xxhash_rust::xxh3::Xxh3;

use super::json::{Cursor, Malformed, RawString, Token, Value};
use super::surface::Family;
use super::unescape::is_start;
use crate::units::{OrAuto, PrefixLength};

/// What placement hashes a request to. Equal keys have equal homes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub u64);

/// A place in a prompt where its key may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// Characters of the prompt before it, in bytes on the native surface.
    pub depth: u32,
    /// The key of all before it.
    pub key: Key,
}

/// How many boundaries a prompt has at most.
pub const MAX_BOUNDARIES: usize = 12;

/// Where the key of a prompt may end, from the shallowest: in one place where the prefix has a fixed length, in none where the prompt has no text.
pub type Boundaries = ArrayVec<Boundary, MAX_BOUNDARIES>;

/// What a part is. The numbers are part of every key: they never change.
#[derive(Clone, Copy)]
enum Part {
    Family = 1,
    Model = 2,
    Identifier = 3,
    CacheSalt = 4,
    Role = 5,
    Text = 6,
    TokenIds = 7,
    Bytes = 8,
    String = 9,
    Mark = 10,
    Scalar = 11,
}

/// Hashes the parts of one request and cuts the prefix at its length.
pub(super) struct KeyHasher {
    hash: Xxh3,
    /// Characters that still belong to the prefix.
    room: usize,
    /// Characters of the prompt so far.
    depth: u32,
    /// Whether anything of the prompt was hashed: a prompt without text has no key.
    has_prompt: bool,
}

impl KeyHasher {
    /// A key of `family` with at most `prefix_length` characters of prompt.
    pub(super) fn new(family: Family, prefix_length: OrAuto<PrefixLength>, seed: u64) -> Self {
        let room = prefix_length.fixed().map_or(usize::MAX, |length| length.get() as usize);
        let mut hasher = Self { hash: Xxh3::with_seed(seed), room, depth: 0, has_prompt: false };
        let family: u8 = match family {
            Family::Chat => 1,
            Family::Completion => 2,
            Family::Pooling => 3,
            Family::Native => 4,
        };
        hasher.part(Part::Family, &[family]);
        hasher
    }

    /// The model, identifier and salt, as far as there are any.
    pub(super) fn scope(&mut self, model: Option<&str>, identifier: Option<&str>, cache_salt: Option<&str>) {
        for (part, value) in [(Part::Model, model), (Part::Identifier, identifier), (Part::CacheSalt, cache_salt)] {
            if let Some(value) = value {
                self.part(part, value.as_bytes());
            }
        }
    }

    /// Whether the prefix is complete, so that nothing further is hashed.
    pub(super) fn is_full(&self) -> bool {
        self.room == 0
    }

    /// The border before a message: hashed, not counted.
    pub(super) fn role(&mut self, role: &str) {
        self.part(Part::Role, role.as_bytes());
    }

    /// A text of the prompt, up to where the prefix ends.
    pub(super) fn text(&mut self, text: RawString<'_>) -> Result<(), Malformed> {
        let mut length = 0;
        text.pieces(|piece| {
            let (taken, characters) = cut(piece, self.room);
            self.hash.update(taken);
            length += taken.len();
            self.room -= characters;
            self.depth += characters as u32;
            if self.room == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        self.has_prompt |= length > 0;
        self.close(Part::Text, length);
        Ok(())
    }

    /// Token ids, in the array that `tokens` steps over unless the prefix ends in it: four little-endian bytes each, each byte counted as a
    /// character.
    pub(super) fn token_ids(&mut self, tokens: &mut Cursor<'_>) -> Result<(), Malformed> {
        let mut length = 0;
        // The caller must not go on from the middle of the array.
        let mut list = *tokens;
        let end = list.array::<()>(|token| {
            if self.room == 0 {
                return Ok(ControlFlow::Break(()));
            }
            let bytes = token.scalar()?.parse::<u32>().map_err(|_| Malformed)?.to_le_bytes();
            let taken = self.room.min(bytes.len());
            self.hash.update(&bytes[..taken]);
            length += taken;
            self.room -= taken;
            self.depth += taken as u32;
            Ok(ControlFlow::Continue(()))
        })?;
        if end.is_continue() {
            *tokens = list;
        }
        self.has_prompt |= length > 0;
        self.close(Part::TokenIds, length);
        Ok(())
    }

    /// A raw body, up to where the prefix ends.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        let taken = &bytes[..bytes.len().min(self.room)];
        self.room -= taken.len();
        self.depth += taken.len() as u32;
        self.has_prompt |= !taken.is_empty();
        self.part(Part::Bytes, taken);
    }

    /// The value at `value` with white space and ways of escaping left out; for what is compared but not counted.
    pub(super) fn value(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        self.has_prompt = true;
        value.tokens(|token| {
            match token {
                Token::Mark(mark) => self.part(Part::Mark, &[mark]),
                Token::Scalar(scalar) => self.part(Part::Scalar, scalar.as_bytes()),
                Token::String(text) => self.string(text)?,
            }
            Ok(())
        })
    }

    /// Where a part that is no text comes from, or its data: compared, not counted.
    pub(super) fn medium(&mut self, source: RawString<'_>) -> Result<(), Malformed> {
        self.has_prompt = true;
        self.string(source)
    }

    /// Where the key may end; nowhere if the prompt was empty.
    pub(super) fn finish(self) -> Boundaries {
        self.has_prompt.then(|| Boundary { depth: self.depth, key: Key(self.hash.digest()) }).into_iter().collect()
    }

    /// A whole string, however long: a picture's data too.
    fn string(&mut self, text: RawString<'_>) -> Result<(), Malformed> {
        if let Some(plain) = text.plain() {
            self.part(Part::String, plain.as_bytes());
            return Ok(());
        }
        let mut length = 0;
        text.pieces(|piece| {
            self.hash.update(piece);
            length += piece.len();
            ControlFlow::Continue(())
        })?;
        self.close(Part::String, length);
        Ok(())
    }

    fn part(&mut self, part: Part, bytes: &[u8]) {
        self.hash.update(bytes);
        self.close(part, bytes.len());
    }

    fn close(&mut self, part: Part, length: usize) {
        let mut end = [part as u8; 9];
        end[..8].copy_from_slice(&(length as u64).to_le_bytes());
        self.hash.update(&end);
    }
}

/// The first `room` characters of `text`, which is UTF-8, and how many they are.
fn cut(text: &[u8], room: usize) -> (&[u8], usize) {
    let characters = count(text);
    if characters <= room {
        return (text, characters);
    }
    if characters == text.len() {
        return (&text[..room], room);
    }
    let end = text.iter().enumerate().filter(|(_, byte)| is_start(**byte)).nth(room).map_or(text.len(), |(end, _)| end);
    (&text[..end], room)
}

/// The number of characters of `text`.
fn count(text: &[u8]) -> usize {
    // Counters of one byte keep the compiler's vectors full.
    text.chunks(128).map(|some| usize::from(some.iter().map(|byte| u8::from(is_start(*byte))).sum::<u8>())).sum()
}
