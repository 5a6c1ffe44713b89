//! Settings from variables `PREFIX_ROUTER_…`. Others are none of our business, and are not looked at.

use std::ffi::OsString;
use std::path::PathBuf;

use super::errors::{ConfigErrors, Origin, Report, nearest, shown};
use super::keys::{self, Key};

/// The variable that names the file.
pub(super) const FILE: &str = "PREFIX_ROUTER_CONFIG";

const PREFIX: &str = "PREFIX_ROUTER_";

/// The file that the environment names, if it does.
pub(super) fn file(environment: &[(OsString, OsString)]) -> Option<PathBuf> {
    environment.iter().find(|(name, value)| name == FILE && !value.is_empty()).map(|(_, value)| PathBuf::from(value))
}

/// What the environment says.
#[derive(Default)]
pub(super) struct Variables {
    pub(super) settings: Vec<(&'static Key, Origin, String)>,
}

/// Finds our variables. An empty one counts as not set: compose files and manifests leave such behind.
pub(super) fn read(environment: &[(OsString, OsString)], errors: &mut ConfigErrors) -> Variables {
    let mut variables = Variables::default();
    let mut ours: Vec<(String, &OsString)> = environment
        .iter()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
        .filter(|(name, value)| name.starts_with(PREFIX) && !value.is_empty())
        .collect();
    // The process environment has no order that means anything.
    ours.sort();
    for (name, value) in ours {
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        if name == FILE {
            continue;
        }
        // `prefix_length` is written PREFIX_LENGTH, and in no other way.
        let lower = rest.to_ascii_lowercase();
        let key = keys::find(&lower).filter(|_| rest.to_ascii_uppercase() == rest);
        let text = value.to_str();
        if key.is_none() && from_kubernetes(rest, text.unwrap_or_default()) {
            continue;
        }
        let origin = Origin::Variable(shown(&name));
        match (key, text) {
            (Some(key), Some(text)) => variables.settings.push((key, origin, text.to_owned())),
            (Some(key), None) => {
                let problem = format!("the value is not UTF-8; allowed: {}", key.kind.allowed());
                Report::new(&origin, key.name, errors).add(0, problem);
            }
            (None, _) => {
                let names = keys::KEYS.iter().map(|key| key.name).chain(["config"]);
                let nearest = nearest(&lower, names).unwrap_or_default().to_ascii_uppercase();
                Report::new(&origin, "", errors).add(0, format!("unknown variable; the nearest is {PREFIX}{nearest}"));
            }
        }
    }
    variables
}

/// Whether Kubernetes set `PREFIX_ROUTER_{rest}`. For a Service named `prefix-router` (or `prefix-router-admin`, …) it
/// gives every pod of the namespace `PREFIX_ROUTER_SERVICE_HOST`, `PREFIX_ROUTER_SERVICE_PORT`, one
/// `PREFIX_ROUTER_SERVICE_PORT_HTTP` per named port, `PREFIX_ROUTER_PORT=tcp://10.0.0.1:80` and
/// `PREFIX_ROUTER_PORT_80_TCP…`; the router must start beside its own Service.
fn from_kubernetes(rest: &str, value: &str) -> bool {
    let in_form = |mark: &str| rest.starts_with(mark) || rest.contains(&format!("_{mark}"));
    if in_form("SERVICE_HOST") || in_form("SERVICE_PORT") {
        return true;
    }
    let after_port = rest.strip_prefix("PORT_").or_else(|| rest.split_once("_PORT_").map(|(_, after)| after));
    let numbered = after_port.is_some_and(|after| {
        let protocol = after.trim_start_matches(|c: char| c.is_ascii_digit());
        protocol.len() < after.len() && ["_TCP", "_UDP", "_SCTP"].iter().any(|name| protocol.starts_with(name))
    });
    // Not so PREFIX_ROUTER_PORT=8080, by which somebody means `listen`.
    numbered || (rest == "PORT" || rest.ends_with("_PORT")) && value.contains("://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kubernetes_injects_is_told_from_what_somebody_meant() {
        for (rest, value, injected) in [
            ("SERVICE_HOST", "10.0.0.1", true),
            ("SERVICE_PORT", "80", true),
            ("SERVICE_PORT_HTTP", "80", true),
            ("PORT", "tcp://10.0.0.1:80", true),
            ("PORT_80_TCP", "tcp://10.0.0.1:80", true),
            ("PORT_80_TCP_PROTO", "tcp", true),
            ("PORT_80_TCP_PORT", "80", true),
            ("PORT_80_TCP_ADDR", "10.0.0.1", true),
            ("ADMIN_SERVICE_HOST", "10.0.0.2", true),
            ("ADMIN_PORT", "tcp://10.0.0.2:8081", true),
            ("ADMIN_PORT_8081_TCP", "tcp://10.0.0.2:8081", true),
            ("PORT", "8080", false),
            ("LISTEN_PORT", "8080", false),
            ("PORT_NAME", "http", false),
            ("RETRIES", "2", false),
        ] {
            assert_eq!(from_kubernetes(rest, value), injected, "{rest}={value}");
        }
    }

    #[test]
    fn no_key_looks_like_a_variable_of_kubernetes() {
        for key in keys::KEYS {
            assert!(!from_kubernetes(&key.name.to_ascii_uppercase(), "tcp://10.0.0.1:80"), "{}", key.name);
        }
    }
}
