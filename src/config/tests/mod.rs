//! Whole configurations from texts and sources: what they come to, and each error as its reader sees it.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod accepted;
mod fragment;
mod random;
mod refused;
mod sources;

use std::ffi::OsString;

use tracing::Level;

use super::keys::KEYS;
use super::*;
use crate::discovery::dns::{Question, Source};
use crate::fleet::ReplicaSpec;
use crate::request::Includes;
use crate::routing::{Overflow, StrategyName};
use crate::telemetry::LogFormat;
use crate::units::{ConcurrencyThreshold, PrefixLength, Weight};

fn sources(file: Option<&str>, environment: &[(&str, &str)], flags: &[(&'static str, &'static str, &str)]) -> Sources {
    Sources {
        file: file.map(PathBuf::from),
        environment: environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect(),
        flags: flags.iter().map(|(name, key, value)| Flag { name, key, values: vec![(*value).to_owned()] }).collect(),
    }
}

/// Checks the errors of a file `r.yaml`, one per line.
fn wrong(yaml: &str, expected: &[&str]) {
    let shown = load_str(yaml, "r.yaml").map_or_else(|errors| errors.to_string(), |_| "nothing is wrong".to_owned());
    assert_eq!(shown, expected.join("\n"), "\nof\n{yaml}");
}

fn replica(name: &str, authority: &str, weight: u64, models: &[&str]) -> ReplicaSpec {
    let models = models.iter().map(|model| (*model).to_owned()).collect();
    ReplicaSpec { name: name.to_owned(), authority: authority.to_owned(), weight: Weight::clamped(weight), models }
}

fn source(url: &str, question: Question, weight: u64, models: &[&str]) -> Source {
    let models = models.iter().map(|model| (*model).to_owned()).collect();
    Source { url: url.to_owned(), question, weight: Weight::clamped(weight), models }
}

#[test]
fn the_reference_lists_every_key_once_at_its_default() {
    let reference = include_str!("../../../config/reference.yaml");
    assert_eq!(load_str(reference, "reference.yaml").unwrap(), Config::default());

    let lines: Vec<&str> = reference.lines().collect();
    let listed: Vec<usize> = (0..lines.len()).filter(|i| !lines[*i].is_empty() && !lines[*i].starts_with('#')).collect();
    assert_eq!(listed.len(), KEYS.len(), "one line for each key and no other");
    for (line, key) in listed.into_iter().zip(KEYS) {
        assert_eq!(lines[line], format!("{}: {}", key.name, key.default));
        assert_eq!(lines[line - 1], format!("# {} Allowed: {}.", key.meaning, key.kind.allowed()));
    }
}

#[test]
fn the_table_agrees_with_the_defaults() {
    let printed = Config::default().render();
    let table: String = KEYS.iter().map(|key| format!("{}: {}\n", key.name, key.default)).collect();
    assert_eq!(printed, table);
    for (i, key) in KEYS.iter().enumerate() {
        assert!(KEYS[..i].iter().all(|other| other.name != key.name), "{} stands twice", key.name);
        assert!(key.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{}", key.name);
        assert!(key.meaning.ends_with('.') && !key.meaning.contains('\n'), "{}", key.meaning);
    }
}

#[test]
fn the_minimal_file_has_two_replicas_and_the_defaults() {
    let config = load_str(include_str!("../../../config/minimal.yaml"), "minimal.yaml").unwrap();
    assert_eq!(config.replicas.len(), 2);
    assert_eq!(Config { replicas: Vec::new(), ..config }, Config::default());
}

#[test]
fn every_limit_is_called_as_its_setting() {
    for limit in crate::telemetry::Limit::ALL {
        assert!(keys::find(limit.key()).is_some(), "{} is no key", limit.key());
    }
}
