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
use crate::units::{ConcurrencyThreshold, OrAuto, PrefixLength, Weight};

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
    ReplicaSpec { name: name.to_owned(), authority: authority.to_owned(), weight: Weight::clamped(weight), models, drain: false }
}

fn source(url: &str, question: Question, weight: u64, models: &[&str]) -> Source {
    let models = models.iter().map(|model| (*model).to_owned()).collect();
    Source { url: url.to_owned(), question, weight: Weight::clamped(weight), models, drain: false }
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
        let restart = if key.change == Change::Restart { " A change needs a restart." } else { "" };
        assert_eq!(lines[line - 1], format!("# {} Allowed: {}.{restart}", key.meaning, key.kind.allowed()));
    }
}

#[test]
fn a_file_is_read_again_under_the_same_flags_and_variables() {
    let path = std::env::temp_dir().join(format!("prefix-router-again-{}.yaml", std::process::id()));
    std::fs::write(&path, "replicas: [http://a]\nretries: 1\nmax_body: 1MiB\n").unwrap();
    let environment = [("PREFIX_ROUTER_MAX_BODY", "2MiB")];
    let reading = Reading::new(sources(path.to_str(), &environment, &[("--strategy", "strategy", "random")])).unwrap();
    assert!(reading.look() == reading.contents && reading.path().is_some());
    std::fs::write(&path, "replicas: [http://b]\nretries: 5\nstrategy: round_robin\n").unwrap();
    let contents = reading.look().unwrap();
    assert!(reading.contents.as_ref() != Some(&contents));
    let config = reading.again(&contents).unwrap();
    assert_eq!((config.proxy.retries, config.proxy.max_body, config.routing.strategy), (5, 2 << 20, StrategyName::Random));
    assert_eq!(config.replicas, [replica("b", "b:80", 1, &[])]);
    std::fs::remove_file(&path).unwrap();
    let errors = reading.again(&reading.look().unwrap()).map(|_| ()).unwrap_err().lines();
    assert!(errors.len() == 1 && errors[0].contains("cannot be read (it is named by --config)"), "{errors:?}");
    assert!(Reading::new(sources(None, &[], &[("--replica", "replicas", "http://a")])).unwrap().look().is_none());
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
fn what_needs_a_restart_is_the_exception() {
    let restart: Vec<&str> = KEYS.iter().filter(|key| key.change == Change::Restart).map(|key| key.name).collect();
    let logs = ["metrics", "metrics_max_models", "log_format", "otlp_endpoint", "otlp_service_name", "trace_sample_ratio"];
    assert_eq!(restart, [["listen", "admin", "worker_threads", "dns_servers"].as_slice(), &logs].concat());
}

#[test]
fn the_minimal_file_has_two_replicas_and_the_defaults() {
    let config = load_str(include_str!("../../../config/minimal.yaml"), "minimal.yaml").unwrap();
    assert_eq!(config.replicas.len(), 2);
    assert_eq!(Config { replicas: Vec::new(), ..config }, Config::default());
}

#[test]
fn every_limit_is_called_as_its_setting() {
    for limit in crate::telemetry::Limit::ALL.iter() {
        assert!(keys::find(limit.key()).is_some(), "{} is no key", limit.key());
    }
}
