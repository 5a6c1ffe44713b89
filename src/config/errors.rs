//! What is wrong with a configuration: each error says where, which key, which value and what is allowed.
//!
//! Errors are collected, never thrown one by one. Nothing here prints them; that is the command line's.

use std::fmt;
use std::sync::Arc;

/// Everything that is wrong with a configuration, in the order file (by line), environment, flags. Shown one per line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    pub(super) fn push(&mut self, error: ConfigError) {
        self.0.push(error);
    }

    /// Whether something was said about `key`, so that a check of its value has no ground to stand on.
    pub(super) fn concern(&self, key: &str) -> bool {
        self.0.iter().any(|error| error.setting == key)
    }

    /// Each error as a line of its own, as they are shown.
    pub fn lines(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }

    /// `value` if nothing is wrong, else all errors in their order.
    pub(super) fn or<T>(mut self, value: T) -> Result<T, Self> {
        if self.0.is_empty() {
            return Ok(value);
        }
        // Stable: sources were read in their order, and what has no line of its own keeps its place.
        self.0.sort_by_key(|error| (error.origin.rank(), error.line));
        Err(self)
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// One error, shown as `router.yaml:7: prefix_length: 512 is out of range; allowed: auto, or 1024 to 65536`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConfigError {
    pub(super) origin: Origin,
    /// Line in the file; 0 where there is none.
    pub(super) line: usize,
    /// Key as shown, perhaps with a path into it; empty where the file as a whole is meant.
    pub(super) key: String,
    /// The setting that the error concerns; empty where none does.
    pub(super) setting: &'static str,
    pub(super) problem: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::File(name) if self.line > 0 => write!(f, "{name}:{}: ", self.line)?,
            Origin::File(name) => write!(f, "{name}: ")?,
            Origin::Variable(name) => write!(f, "{name}: ")?,
            Origin::Flag(name) => write!(f, "{name}: ")?,
            Origin::Nowhere => {}
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.problem)
    }
}

/// The source in which a setting was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    File(Arc<str>),
    Variable(String),
    Flag(&'static str),
    /// Written in no source; that is the error.
    Nowhere,
}

impl Origin {
    fn rank(&self) -> u8 {
        match self {
            Origin::File(_) => 0,
            Origin::Variable(_) => 1,
            Origin::Flag(_) => 2,
            Origin::Nowhere => 3,
        }
    }
}

/// Takes errors about one setting from one source.
pub(super) struct Report<'a> {
    pub(super) origin: &'a Origin,
    /// How an error names the setting: its key in a file; nothing where the origin names it already.
    pub(super) key: String,
    pub(super) setting: &'static str,
    pub(super) errors: &'a mut ConfigErrors,
}

impl<'a> Report<'a> {
    /// For the setting `name`, written in `origin`.
    pub(super) fn new(origin: &'a Origin, name: &'static str, errors: &'a mut ConfigErrors) -> Self {
        let key = if matches!(origin, Origin::File(_) | Origin::Nowhere) { name.to_owned() } else { String::new() };
        Self { origin, key, setting: name, errors }
    }

    /// Adds an error at `line` (0: no line).
    pub(super) fn add(&mut self, line: usize, problem: impl Into<String>) {
        self.errors.push(ConfigError {
            origin: self.origin.clone(),
            line,
            key: self.key.clone(),
            setting: self.setting,
            problem: problem.into(),
        });
    }
}

/// `text` as an error shows it: bare if it reads as one word, else quoted, control characters escaped, the long cut.
pub(super) fn shown(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut short: String = text.chars().take(LONGEST).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    // A value ends where the sentence around it goes on, so white space and closing punctuation need quotes.
    let bare = !short.is_empty()
        && !short.ends_with([':', ',', '.'])
        && short.chars().all(|c| c.is_alphanumeric() || "_-+./:*@[]%=;|~!…".contains(c));
    if bare { short } else { format!("{short:?}") }
}

/// The one of `names` that `text` most likely means.
pub(super) fn nearest<'n>(text: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let typed = plain(text);
    let likeness = |name: &str| {
        let name = plain(name);
        // `threshold` means `concurrency_threshold`, though most of its letters are missing. Below four letters a
        // part is found by chance.
        let part = typed.len().min(name.len()) >= 4 && (name.contains(&typed) || typed.contains(&name));
        strsim::normalized_damerau_levenshtein(&typed, &name) + if part { 0.5 } else { 0.0 }
    };
    names.into_iter().map(|name| (likeness(name), name)).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// `prefixLength`, `prefix-length` and `PREFIX_LENGTH` are near one another. Cut, as the comparison takes time in
/// proportion to both lengths.
fn plain(text: &str) -> String {
    text.chars().take(64).filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_so_that_their_ends_can_be_seen() {
        let cases = [
            ("512", "512"),
            ("http://a:80;weight=2", "http://a:80;weight=2"),
            ("", r#""""#),
            ("a b", r#""a b""#),
            ("x\n", r#""x\n""#),
            ("\u{1b}[31m", r#""\u{1b}[31m""#),
            ("a:", r#""a:""#),
        ];
        for (text, expected) in cases {
            assert_eq!(shown(text), expected);
        }
        assert_eq!(shown(&"9".repeat(1_000)).chars().count(), 81);
    }

    #[test]
    fn the_nearest_name_is_the_one_meant() {
        let names = ["prefix_length", "concurrency_threshold", "retries", "retry_budget_floor"];
        for (text, expected) in [
            ("prefix_lenght", "prefix_length"),
            ("prefixLength", "prefix_length"),
            ("threshold", "concurrency_threshold"),
            ("retry_budget", "retry_budget_floor"),
        ] {
            assert_eq!(nearest(text, names), Some(expected), "{text}");
        }
        assert_eq!(nearest("x", []), None);
    }
}
