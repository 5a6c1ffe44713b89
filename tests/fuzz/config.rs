//! Configuration: whatever the sources say, they are read or refused; what is refused is said where it stands, and what is read can be written
//! and read again.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use prefix_router::config::{self, Config, ConfigErrors, Flag, Sources};

/// How the text is called in errors.
const NAME: &str = "fuzz.yaml";

const FLAGS: [(&str, &str); 6] = [
    ("--listen", "listen"),
    ("--replica", "replicas"),
    ("--strategy", "strategy"),
    ("--prefix-length", "prefix_length"),
    ("--concurrency-threshold", "concurrency_threshold"),
    ("--drain-timeout", "drain_timeout"),
];

/// Parts that a zero byte separates: the text, then flags (`--name=value`) and variables (`NAME=value`).
pub(crate) fn check(data: &[u8]) {
    let mut parts = data.split(|&byte| byte == 0);
    let text = String::from_utf8_lossy(parts.next().unwrap_or_default());
    judge(config::load_str(&text, NAME));

    let mut sources = Sources::default();
    for part in parts {
        let at = part.iter().position(|&byte| byte == b'=').unwrap_or(part.len());
        let (name, value) = (&part[..at], part.get(at + 1..).unwrap_or_default());
        if let Some(&(name, key)) = FLAGS.iter().find(|(flag, _)| flag.as_bytes() == name) {
            sources.flags.push(Flag { name, key, values: vec![String::from_utf8_lossy(value).into_owned()] });
        } else if name != b"PREFIX_ROUTER_CONFIG" {
            // That one would have a file of this machine read.
            sources.environment.push((OsString::from_vec(name.to_vec()), OsString::from_vec(value.to_vec())));
        }
    }
    if sources.environment.is_empty() && sources.flags.is_empty() {
        return;
    }
    let looked_at = config::load_settings(sources.clone());
    let served = config::load(sources);
    if let Ok(served) = &served {
        assert_eq!(looked_at.as_ref().ok(), Some(served), "what can be served can be looked at");
    }
    judge(looked_at);
    judge(served);
}

fn judge(outcome: Result<Config, ConfigErrors>) {
    match outcome {
        Ok(config) => reads_back(config),
        Err(errors) => says_where(&errors.to_string()),
    }
}

/// What is in force can be written as a file that says the same.
fn reads_back(mut config: Config) {
    config.upstream.api_key = None;
    config.access.token = None;
    let text = config.render();
    let again = config::load_str(&text, NAME).unwrap_or_else(|errors| panic!("{errors}\nin what was written for {config:?}\n{text}"));
    assert_eq!(again, config, "reads back to the same:\n{text}");
    assert_eq!(again.render(), text, "and is written in the same way");
}

/// Each error is one line that can be shown on a terminal, and names a place: the text's line, a variable, a flag or a key.
fn says_where(errors: &str) {
    assert!(!errors.is_empty(), "what is wrong is said");
    let keys = Config::default().render();
    for line in errors.split('\n') {
        assert!(!line.contains(char::is_control), "cannot be shown: {line:?}");
        let place = line.split(": ").next().unwrap_or_default();
        let of_the_text = place.strip_prefix(NAME).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'));
        let is_source = of_the_text || place.contains("PREFIX_ROUTER_") || FLAGS.iter().any(|(flag, _)| *flag == place);
        let is_key = || keys.lines().filter_map(|line| line.split(':').next()).any(|key| key == place);
        assert!(is_source || is_key(), "names no place: {line:?} in\n{errors}");
        assert!(line.len() > place.len() + 2, "says nothing: {line:?}");
    }
}
