//! Settings that are one word of a few, and the words for them.
//!
//! The words live here, not beside the types, so that nothing outside `config` depends on how a file spells things.

use tracing::Level;

use crate::routing::{Overflow, StrategyName};
use crate::telemetry::LogFormat;
use crate::units::OrAuto;

/// A type whose values are written as words.
pub(super) trait Word: Copy + PartialEq + 'static {
    /// Every value, in the order in which an error lists them.
    const ALL: &'static [Self];
    /// Words that are understood as well, and never printed.
    const ALSO: &'static [(&'static str, Self)] = &[];
    /// How the value is written.
    fn word(self) -> &'static str;
}

/// The value that `text` stands for.
pub(super) fn find<T: Word>(text: &str) -> Option<T> {
    let own = T::ALL.iter().find(|value| value.word() == text);
    own.copied().or_else(|| T::ALSO.iter().find(|(word, _)| *word == text).map(|(_, value)| *value))
}

/// All words for `T`, as an error lists them.
pub(super) fn list<T: Word>() -> String {
    let words: Vec<&str> = T::ALL.iter().map(|value| value.word()).collect();
    words.join(", ")
}

impl Word for StrategyName {
    const ALL: &'static [Self] = Self::ALL;
    /// The names of SageMaker's `RoutingStrategy`.
    const ALSO: &'static [(&'static str, Self)] =
        &[("PREFIX_AWARE", Self::PrefixAware), ("LEAST_OUTSTANDING_REQUESTS", Self::LeastOutstanding), ("RANDOM", Self::Random)];

    fn word(self) -> &'static str {
        self.name()
    }
}

impl Word for OrAuto<Overflow> {
    const ALL: &'static [Self] = &[Self::Auto, Self::Fixed(Overflow::LeastLoaded), Self::Fixed(Overflow::NextChoices)];

    fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Fixed(Overflow::LeastLoaded) => "least_loaded",
            Self::Fixed(Overflow::NextChoices) => "next_choices",
        }
    }
}

impl Word for LogFormat {
    const ALL: &'static [Self] = &[Self::Text, Self::Json];

    fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl Word for Level {
    const ALL: &'static [Self] = &[Self::ERROR, Self::WARN, Self::INFO, Self::DEBUG, Self::TRACE];

    fn word(self) -> &'static str {
        match self {
            Self::ERROR => "error",
            Self::WARN => "warn",
            Self::INFO => "info",
            Self::DEBUG => "debug",
            Self::TRACE => "trace",
        }
    }
}
