//! The key: a 64-bit xxh3 over everything that decides where a request belongs (DESIGN section 3).
//!
//! The hash runs over parts, each followed by its length and its tag. Read from the end, such a sequence can be taken apart in
//! one way only, so no two different lists of parts give the same bytes. (The length stands behind its part, not before it, since the
//! length of an escaped text is known only once the text has been read; that way nothing has to be copied first.)

use std::ops::ControlFlow;

use xxhash_rust::xxh3::Xxh3;

use super::boundaries::{Boundaries, Boundary, Course};
use super::json::{Cursor, Malformed, RawString, Token, Value};
use super::prompt::Sink;
use super::surface::Family;
use super::unescape::is_start;
use crate::units::{OrAuto, PrefixLength};

/// What placement hashes a request to. Equal keys have equal homes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub u64);

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

/// Hashes the parts of one request, and keeps the keys at the boundaries of its prompt.
pub(super) struct KeyHasher<'e> {
    hash: Xxh3,
    /// Characters up to where something is to be done. 0 where the prefix is complete.
    room: usize,
    /// Characters of the prompt so far.
    depth: u32,
    /// Whether anything of the prompt was hashed: a prompt without text has no key.
    has_prompt: bool,
    /// As long as the prompt is looked through for boundaries.
    course: Option<Course>,
    /// Its boundaries so far.
    boundaries: Boundaries,
    /// The key at the end of the text so far, if it had to be kept before the border of a message or an empty text was hashed, which may be
    /// all that follows.
    end: Option<Key>,
    /// Whether the prompt has to be read no further than to a boundary.
    enough: &'e mut dyn FnMut(&Boundary) -> bool,
}

impl<'e> KeyHasher<'e> {
    /// A key of `family` with at most `prefix_length` characters of prompt; where that is worked out, up to the first boundary that is `enough`.
    pub(super) fn new(
        family: Family,
        prefix_length: OrAuto<PrefixLength>,
        seed: u64,
        enough: &'e mut dyn FnMut(&Boundary) -> bool,
    ) -> Self {
        let mut course = Course::new(prefix_length.fixed().map(|length| u32::try_from(length.get()).unwrap_or(u32::MAX)));
        let (room, course) = (course.room(0), Some(course));
        let mut hasher = Self {
            hash: Xxh3::with_seed(seed),
            room,
            depth: 0,
            has_prompt: false,
            course,
            boundaries: Boundaries::new(),
            end: None,
            enough,
        };
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

    /// A raw body, up to where the prefix ends.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        let length = self.plain(Part::Bytes, 0, bytes);
        self.end_of_text(Part::Bytes, length);
    }

    /// Where the key may end; nowhere if the prompt was empty.
    pub(super) fn finish(mut self) -> Boundaries {
        let is_open = self.course.as_ref().is_some_and(Course::is_open);
        if is_open || self.boundaries.is_empty() {
            let end = self.end.unwrap_or_else(|| Key(self.hash.digest()));
            self.boundary(end);
        }
        self.boundaries
    }

    /// Whether the prefix has a given length, and was that long.
    pub(super) fn is_settled(&self) -> bool {
        !self.boundaries.is_empty() && self.course.as_ref().is_none_or(Course::is_fixed)
    }

    /// Bytes of a `part` of which `length` are hashed already, each counted as a character; returns how many are hashed then.
    fn plain(&mut self, part: Part, mut length: usize, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while self.room > 0 && !rest.is_empty() {
            let (taken, others) = rest.split_at(rest.len().min(self.room));
            self.hash.update(taken);
            length += taken.len();
            self.room -= taken.len();
            self.depth += taken.len() as u32;
            rest = others;
            if self.room == 0 {
                self.pass(part, length);
            }
        }
        length
    }

    /// Where there is no room left in a part of which `length` bytes are hashed: keeps the key, and makes room up to the next boundary if there is one.
    #[cold]
    fn pass(&mut self, part: Part, length: usize) {
        let Some(course) = &mut self.course else { return };
        if course.passed(self.depth) {
            let mut hash = self.hash.clone();
            hash.update(&closing(part, length));
            self.has_prompt = true;
            self.boundary(Key(hash.digest()));
        }
        self.make_room();
    }

    fn make_room(&mut self) {
        if let Some(course) = &mut self.course {
            self.room = course.room(self.depth);
        }
    }

    /// Adds a boundary here, unless it is there already or nothing is before it.
    fn boundary(&mut self, key: Key) {
        if self.has_prompt && self.boundaries.last().is_none_or(|last| last.key != key) {
            let boundary = Boundary { depth: self.depth, key };
            self.boundaries.push(boundary);
            if self.course.is_some() && (self.enough)(&boundary) {
                (self.course, self.room) = (None, 0);
            }
        }
    }

    /// Before something that is hashed, but may be followed by nothing that counts.
    fn keep_end(&mut self) {
        if self.end.is_none() && self.has_prompt && self.course.as_ref().is_some_and(Course::is_open) {
            self.end = Some(Key(self.hash.digest()));
        }
    }

    /// Something of the prompt was hashed.
    fn content(&mut self) {
        (self.has_prompt, self.end) = (true, None);
        if let Some(course) = &mut self.course {
            course.content();
        }
    }

    /// Closes a text of `length` bytes.
    fn end_of_text(&mut self, part: Part, length: usize) {
        if length > 0 {
            self.content()
        } else {
            self.keep_end()
        }
        self.close(part, length);
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
        self.hash.update(&closing(part, length));
    }
}

impl Sink for KeyHasher<'_> {
    /// Whether the prefix is complete, so that nothing further is hashed.
    fn is_full(&self) -> bool {
        self.room == 0
    }

    /// The end of the tools.
    fn end_of_tools(&mut self) {
        if self.course.as_ref().is_some_and(|course| !course.is_fixed()) {
            let end = Key(self.hash.digest());
            self.end = Some(end);
            self.boundary(end);
        }
    }

    /// The border before a message: hashed, not counted. Whether the message is needed: its key may be complete before it.
    fn role(&mut self, role: &str) -> bool {
        self.keep_end();
        if let Some(course) = &mut self.course {
            if course.message(role, self.depth)
                && let Some(end) = self.end
            {
                self.boundary(end);
            }
            self.make_room();
        }
        if self.is_full() {
            return false;
        }
        self.part(Part::Role, role.as_bytes());
        true
    }

    /// A text of the prompt, up to where the prefix ends.
    fn text(&mut self, text: RawString<'_>) -> Result<(), Malformed> {
        let mut length = 0;
        text.pieces(|piece| {
            let mut rest = piece;
            loop {
                let (taken, characters) = cut(rest, self.room);
                self.hash.update(taken);
                length += taken.len();
                self.room -= characters;
                self.depth += characters as u32;
                if self.room > 0 {
                    return ControlFlow::Continue(());
                }
                self.pass(Part::Text, length);
                if self.room == 0 {
                    return ControlFlow::Break(());
                }
                rest = &rest[taken.len()..];
            }
        })?;
        self.end_of_text(Part::Text, length);
        Ok(())
    }

    /// Token ids, in the array that `tokens` steps over unless the prefix ends in it: four little-endian bytes each, each byte counted as a
    /// character.
    fn token_ids(&mut self, tokens: &mut Cursor<'_>) -> Result<(), Malformed> {
        let mut length = 0;
        // The caller must not go on from the middle of the array.
        let mut list = *tokens;
        let end = list.array::<()>(|token| {
            if self.room == 0 {
                return Ok(ControlFlow::Break(()));
            }
            let bytes = token.scalar()?.parse::<u32>().map_err(|_| Malformed)?.to_le_bytes();
            length = self.plain(Part::TokenIds, length, &bytes);
            Ok(ControlFlow::Continue(()))
        })?;
        if end.is_continue() {
            *tokens = list;
        }
        self.end_of_text(Part::TokenIds, length);
        Ok(())
    }

    /// The value at `value` with white space and ways of escaping left out; for what is compared but not counted.
    fn value(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        self.content();
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
    fn medium(&mut self, source: RawString<'_>) -> Result<(), Malformed> {
        self.content();
        self.string(source)
    }
}

/// What stands behind a part.
fn closing(part: Part, length: usize) -> [u8; 9] {
    let mut end = [part as u8; 9];
    end[..8].copy_from_slice(&(length as u64).to_le_bytes());
    end
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
