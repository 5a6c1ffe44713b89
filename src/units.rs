//! Values that carry their range: once one exists, it is legal. Parsing of texts is in `config`, which knows where a text stood.

use std::fmt;
use std::time::Duration;

/// A whole number that lies in `MIN..=MAX`, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bounded<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Bounded<MIN, MAX> {
    /// The smallest value.
    pub const MIN: u64 = MIN;
    /// The largest value.
    pub const MAX: u64 = MAX;

    /// `value`, or `None` where it lies outside the range.
    pub const fn new(value: u64) -> Option<Self> {
        if value >= MIN && value <= MAX { Some(Self(value)) } else { None }
    }

    /// `value` moved into the range; for constants and defaults.
    pub const fn clamped(value: u64) -> Self {
        Self(if value < MIN {
            MIN
        } else if value > MAX {
            MAX
        } else {
            value
        })
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl<const MIN: u64, const MAX: u64> fmt::Display for Bounded<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A setting that is given, or worked out from what is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrAuto<T> {
    /// Worked out.
    Auto,
    /// Given.
    Fixed(T),
}

impl<T> OrAuto<T> {
    /// What is given, if anything is.
    pub fn fixed(self) -> Option<T> {
        match self {
            Self::Auto => None,
            Self::Fixed(value) => Some(value),
        }
    }
}

impl<T: fmt::Display> fmt::Display for OrAuto<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(value) => value.fmt(f),
        }
    }
}

impl<T> From<Option<T>> for OrAuto<T> {
    fn from(fixed: Option<T>) -> Self {
        fixed.map_or(Self::Auto, Self::Fixed)
    }
}

/// A time with its units, as people write it: `30s`, `1m 30s`, `800ms`; or what is wrong with the text.
pub fn time(text: &str) -> Result<Duration, &'static str> {
    // `humantime` panics where a sum passes the largest `Duration`. Terms of at most 9 digits in a text this short stay far below.
    if text.len() > 64 || text.split(|c: char| !c.is_ascii_digit()).any(|run| run.len() > 9) {
        return Err("is not a time of sensible length");
    }
    humantime::parse_duration(text).map_err(|_| "is not a time")
}

/// How much of a prompt makes the key, in characters (bytes on the native surface). SageMaker's range.
pub type PrefixLength = Bounded<1_024, 65_536>;

/// The gate: from this many outstanding requests on, a home's new requests overflow. SageMaker's range.
pub type ConcurrencyThreshold = Bounded<1, 1_024>;

/// A replica's share of the ring and of the load, relative to the others'.
pub type Weight = Bounded<1, 100>;

/// A part of a whole: 0 to 1, to the millionth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u32);

impl Share {
    /// All of it.
    pub const WHOLE: Self = Self(1_000_000);

    /// `value` to the nearest millionth, though what is more than nothing stays so; `None` where it is not of 0 to 1.
    pub fn new(value: f64) -> Option<Self> {
        let millionths = (value * 1e6).round() as u32;
        (0.0..=1.0).contains(&value).then_some(Self(if value > 0.0 { millionths.max(1) } else { 0 }))
    }

    /// In millionths.
    pub const fn millionths(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (f64::from(self.0) / 1e6).fmt(f)
    }
}

/// A text that must not be shown: it has no `Display`, and its `Debug` says only that it is there.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides `text`.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself, for the one place that sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}
