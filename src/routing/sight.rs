//! What a strategy has made out of a prompt: the key that it goes by, and what was seen of that key before.
//!
//! Data alone: it is made in `memories.rs` and used by the strategies that go by keys.

use std::sync::Arc;

use crate::request::{Boundary, Chunks, Key};

/// What a request with a key is placed by.
#[derive(Clone, Debug)]
pub struct Sight {
    /// The key.
    pub key: Key,
    /// Characters of the prompt that the key covers (bytes on the native surface), where traffic decided how many; `None` where the length is fixed.
    pub depth: Option<u32>,
    /// So many characters at the prompt's beginning are common to more of the traffic than one replica's share.
    pub(super) hot: u32,
    /// The boundaries that this request made hot, or found cooled.
    pub moved: Vec<Moved>,
    /// How well such a key divides the traffic; `None` where nobody looks.
    pub fit: Option<Fit>,
    pub(super) seen: Seen,
    /// The prompt's chunks, for a strategy that goes by them.
    pub(super) chunks: Option<Arc<Chunks>>,
    /// Whether the answer comes piece by piece.
    pub(super) streams: bool,
}

impl From<Key> for Sight {
    /// A key that goes where the ring says.
    fn from(key: Key) -> Self {
        Self { key, depth: None, hot: 0, moved: Vec::new(), fit: None, seen: Seen::NotAsked, chunks: None, streams: false }
    }
}

/// What is known of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Seen {
    /// Nobody keeps that.
    NotAsked,
    /// It was asked for, and this replica is its home, by its tag; 0: the ring's home.
    Before(u32),
    /// Nothing, at that time by the pool's clock; and how many keys are known of late, if that can be said.
    Never { at: u32, reuse: Option<f64> },
}

impl Seen {
    /// How likely such a key is to be asked for again; 1 where nobody can tell.
    pub(super) fn reuse(self) -> f64 {
        match self {
            Self::Never { reuse, .. } => reuse.unwrap_or(1.0),
            Self::NotAsked | Self::Before(_) => 1.0,
        }
    }
}

/// A boundary that from this request on is passed over, or no longer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moved {
    /// The boundary.
    pub boundary: Boundary,
    /// Whether it is passed over now.
    pub direction: Direction,
    /// How many of the recent requests begin with it, decayed.
    pub count: f32,
    /// Above this count it is too many for one replica.
    pub limit: f32,
    /// How many recent requests, decayed as well, both are relative to.
    pub window: f32,
    /// Members of the pool.
    pub replicas: usize,
}

/// How a boundary moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray)]
pub enum Direction {
    /// Too many requests share what lies before it: they are placed by more of their prompts now.
    Hot,
    /// Few enough share it again.
    Cooled,
}

impl Direction {
    /// All directions, for metrics.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Cooled => "cooled",
        }
    }
}

/// How well a key divides a pool's traffic: into parts that come again, none of them too large for one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::VariantArray)]
pub enum Fit {
    /// It was asked for of late.
    Known,
    /// It was not.
    New,
    /// More requests have it than a replica's equal share, and a longer prefix would not divide them into parts that come again.
    Hot,
    /// As many have it, and a longer prefix would: what is configured is too short.
    Short,
}

impl Fit {
    /// All of them, for metrics.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::New => "new",
            Self::Hot => "hot",
            Self::Short => "short",
        }
    }
}

/// Where a key went that was seen for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray)]
pub enum FirstSight {
    /// To its first choice.
    FirstChoice,
    /// To a further choice, which had nothing to do while requests waited at the first.
    FurtherChoice,
    /// To where the fewest wait: hardly anything repeats.
    FewestWaiting,
}

impl FirstSight {
    /// All of them, for metrics.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::FirstChoice => "first_choice",
            Self::FurtherChoice => "further_choice",
            Self::FewestWaiting => "fewest_waiting",
        }
    }
}
