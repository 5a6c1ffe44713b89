//! A SageMaker `RoutingConfig`, pasted as it stands: under its own name, or its two keys bare at the top level.
//!
//! Its numbers have the types of our own keys, so that the ranges cannot differ.

use super::Loader;
use super::errors::{ConfigError, Origin, Report, nearest, shown};
use super::kinds::{Field, Kind};
use super::words::Word;
use super::yaml::{Entry, Node, Shape};
use crate::routing::StrategyName;
use crate::units::{ConcurrencyThreshold, OrAuto, PrefixLength};

/// The keys by which a fragment is told at the top level.
pub(super) const TOP: [&str; 3] = ["RoutingConfig", STRATEGY, NUMBERS];

const STRATEGY: &str = "RoutingStrategy";
const NUMBERS: &str = "PrefixAwareRoutingConfig";
/// The numbers of `PrefixAwareRoutingConfig`, and the keys they stand for. Both are needed, and here neither is worked out.
static PAIRS: [(&str, &str, Kind); 2] = [
    (
        "PrefixLength",
        "prefix_length",
        Kind::Number(
            PrefixLength::MIN..=PrefixLength::MAX,
            Field {
                get: |c| c.key.prefix_length.fixed().map_or(0, PrefixLength::get),
                set: |c, v| c.key.prefix_length = OrAuto::Fixed(PrefixLength::clamped(v)),
            },
        ),
    ),
    (
        "ConcurrencyThreshold",
        "concurrency_threshold",
        Kind::Number(
            ConcurrencyThreshold::MIN..=ConcurrencyThreshold::MAX,
            Field {
                get: |c| c.routing.concurrency_threshold.fixed().map_or(0, ConcurrencyThreshold::get),
                set: |c, v| c.routing.concurrency_threshold = OrAuto::Fixed(ConcurrencyThreshold::clamped(v)),
            },
        ),
    ),
];

/// Applies the top-level entries `found` (of [`TOP`]), if any; `own` are the file's other entries.
pub(super) fn apply(found: &[Entry], own: &[Entry], origin: &Origin, loader: &mut Loader) {
    let found: Vec<&Entry> = found.iter().filter(|entry| !entry.value.is_null()).collect();
    let Some(first) = found.first() else { return };
    let mut fragment = Fragment { path: "", line: first.line, origin, loader };
    fragment.refuse_rivals(own);
    let (wrapped, bare): (Vec<&Entry>, Vec<&Entry>) = found.iter().partition(|entry| entry.key == "RoutingConfig");
    match (wrapped.first(), bare.first()) {
        (Some(wrapped), Some(bare)) => {
            let problem = format!("given on line {}, and {} on line {}; allowed: one fragment", wrapped.line, bare.key, bare.line);
            fragment.add(wrapped.line.max(bare.line), "RoutingConfig", "", problem);
        }
        (Some(wrapped), None) => {
            fragment.path = "RoutingConfig.";
            if let Some(entries) = fragment.map(wrapped, "RoutingConfig", &[STRATEGY, NUMBERS]) {
                fragment.take(&entries.iter().collect::<Vec<_>>());
            }
        }
        (None, _) => fragment.take(&bare),
    }
}

struct Fragment<'a> {
    /// How errors name what stands inside.
    path: &'static str,
    line: usize,
    origin: &'a Origin,
    loader: &'a mut Loader,
}

impl Fragment<'_> {
    /// A fragment and our own keys for the same things cannot stand in one file: which of them is meant?
    fn refuse_rivals(&mut self, own: &[Entry]) {
        for name in ["strategy", "prefix_length", "concurrency_threshold"] {
            let Some(rival) = own.iter().find(|entry| entry.key == name && !entry.value.is_null()) else { continue };
            let problem =
                format!("given on line {}, beside a SageMaker fragment on line {}; allowed: one of the two", rival.line, self.line);
            self.add(rival.line, name, name, problem);
        }
    }

    /// Takes the entries `RoutingStrategy` and `PrefixAwareRoutingConfig`.
    fn take(&mut self, entries: &[&Entry]) {
        let entry = |name: &str| entries.iter().find(|entry| entry.key == name && !entry.value.is_null());
        let key = format!("{}{STRATEGY}", self.path);
        let allowed = || StrategyName::ALSO.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let Some(Entry { line, value, .. }) = entry(STRATEGY) else {
            self.add(self.line, key, "strategy", format!("missing; allowed: {}", allowed()));
            return;
        };
        let text = match &value.shape {
            Shape::Text(text) => text,
            Shape::Refused => return,
            _ => {
                let problem = format!("{} is not allowed here; allowed: {}", value.sort(), allowed());
                return self.add(*line, key, "strategy", problem);
            }
        };
        let Some((_, strategy)) = StrategyName::ALSO.iter().find(|(name, _)| name == text) else {
            let problem = format!("{} is not known here; allowed: {}", shown(text), allowed());
            return self.add(*line, key, "strategy", problem);
        };
        self.loader.config.routing.strategy = *strategy;
        match (strategy, entry(NUMBERS)) {
            (StrategyName::PrefixAware, Some(numbers)) => self.take_numbers(numbers),
            (StrategyName::PrefixAware, None) => {
                let problem = "missing; PREFIX_AWARE needs it, with PrefixLength and ConcurrencyThreshold";
                self.add(*line, format!("{}{NUMBERS}", self.path), "prefix_length", problem);
            }
            (_, Some(numbers)) => {
                let problem = format!("not allowed with {text}; allowed: with PREFIX_AWARE");
                self.add(numbers.line, format!("{}{NUMBERS}", self.path), "prefix_length", problem);
            }
            (_, None) => {}
        }
    }

    fn take_numbers(&mut self, numbers: &Entry) {
        let path = format!("{}{NUMBERS}", self.path);
        let Some(entries) = self.map(numbers, &path, &PAIRS.each_ref().map(|(name, ..)| *name)) else { return };
        for (name, key, kind) in &PAIRS {
            let label = format!("{path}.{name}");
            match entries.iter().find(|entry| entry.key == *name && !entry.value.is_null()) {
                Some(Entry { value, .. }) => {
                    let mut report = Report::new(self.origin, key, &mut self.loader.errors);
                    report.key = label;
                    kind.set(&mut self.loader.config, value, &mut report);
                }
                None => {
                    let problem = format!("missing; PREFIX_AWARE needs it; allowed: {}", kind.allowed());
                    self.add(numbers.line, label, key, problem);
                }
            }
        }
    }

    /// The entries of a map all of whose keys are `known`; what is not is reported.
    fn map<'e>(&mut self, entry: &'e Entry, path: &str, known: &[&'static str]) -> Option<&'e [Entry]> {
        let Entry { line, value: Node { shape, .. }, .. } = entry;
        let Shape::Map(entries) = shape else {
            if !matches!(shape, Shape::Refused) {
                let problem = format!("{} is not allowed here; allowed: a map of {}", entry.value.sort(), known.join(", "));
                self.add(*line, path, "", problem);
            }
            return None;
        };
        for Entry { key, line, .. } in entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let nearest = nearest(key, known.iter().copied()).unwrap_or_default();
            self.add(*line, format!("{path}.{}", shown(key)), "", format!("unknown key; the nearest is {nearest}"));
        }
        Some(entries)
    }

    fn add(&mut self, line: usize, key: impl Into<String>, setting: &'static str, problem: impl Into<String>) {
        let (origin, key, problem) = (self.origin.clone(), key.into(), problem.into());
        self.loader.errors.push(ConfigError { origin, line, key, setting, problem });
    }
}
