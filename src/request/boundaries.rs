//! Where the key of a prompt may end: where the prefix does that has a given length, and otherwise at each place where prompts are likely to part.
//!
//! It says where, and how far a prompt has to be read for it. It hashes nothing.

use arrayvec::ArrayVec;

use super::Key;

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

/// Where the key of a prompt may end, from the shallowest; in none where the prompt has no text.
///
/// Where the prefix has a fixed length, the key ends at the first of them. The others are what it would be with a prefix twice as long, and so on
/// up to 512 times: they tell whether prompts that share too short a prefix would part further on, and are made only as far as somebody asks.
///
/// Where the length is worked out: after 1,024 characters, after 2,048, and so on up to 131,072; and at the ends of the tools, of the system prompt
/// and of the first user message. A prompt that has none of these ends in its only one. Depths do not decrease, and no key is there twice.
pub type Boundaries = ArrayVec<Boundary, MAX_BOUNDARIES>;

/// The first boundary that does not depend on what a prompt is made of; each further one is twice as deep.
const SHALLOWEST: u32 = 1_024;

/// The last of them. It is also the longest first user message with a boundary at its end: what is longer is read no further.
const DEEPEST: u32 = SHALLOWEST << 7;

/// How far a prompt has been read, one message after the other, that is looked through for boundaries.
pub(super) struct Course(Place);

/// Behind so many boundaries a prompt whose prefix has a fixed length is read no further.
const FIXED_BOUNDARIES: u32 = 10;

#[derive(Clone, Copy)]
enum Place {
    /// In a prompt whose prefix has that length.
    Fixed(u32),
    /// Before the first message, or in what has no messages.
    Start,
    /// In the messages of the system at the beginning.
    System,
    /// Behind them, with no user message yet.
    Between,
    /// In the first user message, which began at that depth and may have nothing in it yet.
    User { start: u32, is_empty: bool },
    /// Behind it, or so far in it that its end does not matter.
    Behind,
}

impl Course {
    /// The beginning of a prompt; `length` is that of its prefix, where it is given.
    pub(super) fn new(length: Option<u32>) -> Self {
        Self(length.map_or(Place::Start, Place::Fixed))
    }

    /// Whether the prefix has a given length.
    pub(super) fn is_fixed(&self) -> bool {
        matches!(self.0, Place::Fixed(_))
    }

    /// Goes on to a message of that role at `depth`. Says whether there is a boundary before it.
    pub(super) fn message(&mut self, role: &str, depth: u32) -> bool {
        let is_end = self.is_open();
        self.0 = match (self.0, role) {
            (Place::Start | Place::System, "system" | "developer") => Place::System,
            (Place::Start | Place::System | Place::Between, "user") => Place::User { start: depth, is_empty: true },
            (Place::Start | Place::System | Place::Between, _) => Place::Between,
            (Place::User { .. } | Place::Behind, _) => Place::Behind,
            (fixed @ Place::Fixed(_), _) => fixed,
        };
        is_end && !matches!(self.0, Place::System)
    }

    /// There is something in the message.
    pub(super) fn content(&mut self) {
        if let Place::User { is_empty, .. } = &mut self.0 {
            *is_empty = false;
        }
    }

    /// Whether there would be a boundary here if the text went no further, or nothing but empty texts followed.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.0, Place::System | Place::User { is_empty: false, .. })
    }

    /// How many characters have to be read from `depth` on, which is a boundary or the beginning of a message, until [`Self::passed`] has to
    /// be called; 0 where no boundary can follow.
    ///
    /// Behind the deepest one by length only two ends matter: that of the system prompt, and that of a first user message that follows at once.
    pub(super) fn room(&mut self, depth: u32) -> usize {
        if let Place::Fixed(length) = self.0 {
            let ends = (0..FIXED_BOUNDARIES).map(|doublings| length.saturating_mul(1 << doublings));
            return ends.filter(|&end| end > depth).min().map_or(0, |end| (end - depth) as usize);
        }
        if depth < DEEPEST {
            return (next(depth) - depth) as usize;
        }
        match self.0 {
            Place::System => usize::MAX,
            // One more than it may have, so that an end right there counts.
            Place::User { start, .. } => (start as usize + DEEPEST as usize + 1).saturating_sub(depth as usize),
            _ => 0,
        }
    }

    /// After so many characters: whether there is a boundary at `depth`.
    pub(super) fn passed(&mut self, depth: u32) -> bool {
        if depth <= DEEPEST || self.is_fixed() {
            return true;
        }
        self.0 = Place::Behind;
        false
    }
}

/// The shallowest boundary by length that is deeper than `depth`, which is less than [`DEEPEST`].
fn next(depth: u32) -> u32 {
    SHALLOWEST.max((depth + 1).next_power_of_two())
}
