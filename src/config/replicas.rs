//! The list of replicas: `URL;weight=2;name=a;models=x|y`, or a map with the same names.
//!
//! It knows what a replica may look like, not whether one is there: nothing is resolved or contacted.

use std::net::Ipv6Addr;

use super::errors::{Report, nearest, shown};
use super::quantity::{in_range, whole};
use super::yaml::{Entry, Node, Shape};
use crate::fleet::ReplicaSpec;
use crate::units::Weight;

/// What a replica may be, in one line.
pub(super) const ALLOWED: &str = "http://HOST:PORT, then any of ;weight=1 to 100 ;name=NAME ;models=A|B";

const URL_ALLOWED: &str = "http://HOST or http://HOST:PORT";

/// Reads the items of a list. Whatever is wrong goes to `report`; what is right is returned.
pub(super) fn read(items: &[Node], report: &mut Report<'_>) -> Vec<ReplicaSpec> {
    let mut replicas: Vec<(usize, ReplicaSpec)> = Vec::new();
    for item in items {
        let fields = match &item.shape {
            Shape::Text(text) => from_text(text, item.line),
            Shape::Map(entries) => from_map(entries, item.line),
            Shape::Refused => continue,
            Shape::Null | Shape::List(_) => {
                report.add(item.line, format!("{} stands where a replica belongs; allowed: {ALLOWED}", item.sort()));
                continue;
            }
        };
        match build(fields) {
            Ok(replica) => match clash(&replicas, &replica, item.line) {
                Some(problem) => report.add(item.line, problem),
                None => replicas.push((item.line, replica)),
            },
            Err(wrong) => wrong.into_iter().for_each(|(line, problem)| report.add(line, problem)),
        }
    }
    replicas.into_iter().map(|(_, replica)| replica).collect()
}

/// One replica as YAML, ready to follow `  - `.
pub(super) fn print(replica: &ReplicaSpec, quoted: fn(&str) -> String) -> String {
    let ReplicaSpec { name, authority, weight, models } = replica;
    let url = quoted(&format!("http://{authority}"));
    let mut text = format!("{{url: {url}, name: {}, weight: {weight}", quoted(name));
    if !models.is_empty() {
        let models: Vec<String> = models.iter().map(|model| quoted(model)).collect();
        text += &format!(", models: [{}]", models.join(", "));
    }
    text + "}"
}

/// What was written for one replica, each field with its line, and what is wrong with the writing itself.
#[derive(Default)]
struct Fields<'a> {
    /// How errors name the replica where its line alone does not tell.
    prefix: String,
    url: Option<(usize, &'a str)>,
    name: Option<(usize, &'a str)>,
    weight: Option<(usize, &'a str)>,
    models: Vec<(usize, &'a str)>,
    wrong: Vec<(usize, String)>,
}

fn from_text(text: &str, line: usize) -> Fields<'_> {
    let mut parts = text.split(';').map(str::trim);
    let url = parts.next().unwrap_or_default();
    let mut fields = Fields { url: Some((line, url)), ..Fields::default() };
    if text.contains(';') {
        fields.prefix = format!("{}: ", shown(&without_userinfo(url)));
    }
    let mut seen = Vec::new();
    for part in parts {
        let Some((field, value)) = part.split_once('=') else {
            fields.wrong.push((line, format!("{} has no =; allowed: {ALLOWED}", shown(part))));
            continue;
        };
        if seen.contains(&field) {
            fields.wrong.push((line, format!("{field}: given twice; allowed: once")));
        }
        seen.push(field);
        match field {
            "name" => fields.name = Some((line, value)),
            "weight" => fields.weight = Some((line, value)),
            "models" => fields.models = value.split('|').map(|model| (line, model.trim())).collect(),
            _ => fields.wrong.push((line, unknown(field, &["name", "weight", "models"]))),
        }
    }
    fields
}

fn from_map(entries: &[Entry], line: usize) -> Fields<'_> {
    let mut fields = Fields::default();
    let mut has_url = false;
    for Entry { key, line, value } in entries {
        has_url |= key == "url" && !value.is_null();
        match (key.as_str(), &value.shape) {
            (_, Shape::Refused) => {}
            ("url" | "name" | "weight" | "models", Shape::Null) => {}
            ("url", Shape::Text(text)) => fields.url = Some((value.line, text)),
            ("name", Shape::Text(text)) => fields.name = Some((value.line, text)),
            ("weight", Shape::Text(text)) => fields.weight = Some((value.line, text)),
            ("models", Shape::Text(text)) => fields.models.push((value.line, text)),
            ("models", Shape::List(items)) => {
                for item in items {
                    match &item.shape {
                        Shape::Text(text) => fields.models.push((item.line, text)),
                        Shape::Refused => {}
                        _ => fields.wrong.push((item.line, format!("models: {} is not a model's name", item.sort()))),
                    }
                }
            }
            ("url" | "name" | "weight" | "models", _) => {
                let problem = format!("{key}: {} is not allowed here; allowed: a text", value.sort());
                fields.wrong.push((*line, problem));
            }
            _ => fields.wrong.push((*line, unknown(key, &["url", "name", "weight", "models"]))),
        }
    }
    if !has_url {
        fields.wrong.push((line, format!("url: missing; allowed: {URL_ALLOWED}")));
    }
    fields
}

fn unknown(field: &str, known: &[&str]) -> String {
    let nearest = nearest(field, known.iter().copied()).unwrap_or_default();
    format!("{}: unknown; the nearest is {nearest}; allowed: {}", shown(field), known.join(", "))
}

/// The replica that the fields describe, or everything that is wrong with them.
fn build(fields: Fields<'_>) -> Result<ReplicaSpec, Vec<(usize, String)>> {
    let Fields { prefix, url, name, weight, models, mut wrong } = fields;
    let mut replica = ReplicaSpec { name: String::new(), authority: String::new(), weight: Weight::clamped(1), models: Vec::new() };
    if let Some((line, url)) = url {
        match host_and_port(url) {
            Ok((identity, authority)) => (replica.name, replica.authority) = (identity.to_owned(), authority),
            Err(why) => {
                let url = shown(&without_userinfo(url));
                wrong.push((line, format!("url: {url} {why}; allowed: {URL_ALLOWED}")));
            }
        }
    }
    if let Some((line, name)) = name {
        // It is sent in a header, and is a label of metrics.
        if name.is_empty() || name.len() > 128 || !name.bytes().all(|b| b.is_ascii_graphic()) {
            let name = shown(name);
            wrong.push((line, format!("name: {name} is not a name; allowed: 1 to 128 visible ASCII characters")));
        }
        name.clone_into(&mut replica.name);
    }
    if let Some((line, text)) = weight {
        match in_range(whole(text), "is not a whole number", Weight::MIN..=Weight::MAX) {
            Ok(number) => replica.weight = Weight::clamped(number),
            Err(why) => {
                let (text, allowed) = (shown(text), format!("{} to {}", Weight::MIN, Weight::MAX));
                wrong.push((line, format!("weight: {text} {why}; allowed: {allowed}")));
            }
        }
    }
    for (line, model) in models {
        if model.is_empty() || model.chars().any(|c| c.is_control() || c.is_whitespace()) {
            let model = shown(model);
            wrong.push((line, format!("models: {model} is not a model's name; allowed: a name without spaces")));
        }
        replica.models.push(model.to_owned());
    }
    if wrong.is_empty() {
        return Ok(replica);
    }
    Err(wrong.into_iter().map(|(line, problem)| (line, format!("{prefix}{problem}"))).collect())
}

/// Host and port as written, and the same with a port in any case. The error completes the sentence "URL …".
fn host_and_port(url: &str) -> Result<(&str, String), String> {
    let (scheme, rest) = match url.split_once("://") {
        Some(parts) => parts,
        None if url.is_empty() => return Err("is empty".to_owned()),
        None => return Err("does not begin with http://".to_owned()),
    };
    if scheme.eq_ignore_ascii_case("https") {
        return Err("asks for TLS, and TLS to replicas is not supported".to_owned());
    }
    if !scheme.eq_ignore_ascii_case("http") {
        return Err("does not begin with http://".to_owned());
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    if authority.contains('@') {
        return Err("holds a user name or password, which is not supported (see upstream_api_key)".to_owned());
    }
    if tail.contains('?') || tail.contains('#') {
        return Err("has a query or fragment, which a replica's URL cannot have".to_owned());
    }
    if !matches!(tail, "" | "/") {
        return Err(format!("has the path {}, but each request brings its own", shown(tail)));
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (inside, after) = rest.split_once(']').ok_or("lacks the ] of an IPv6 address")?;
            inside.parse::<Ipv6Addr>().map_err(|_| "has no IPv6 address between its brackets")?;
            let port = match after.strip_prefix(':') {
                Some(port) => Some(port),
                None if after.is_empty() => None,
                None => return Err("has something other than :PORT after its ]".to_owned()),
            };
            (&authority[..inside.len() + 2], port)
        }
        None if authority.matches(':').count() > 1 => {
            return Err("has several colons; an IPv6 address stands in brackets, as in http://[::1]:8000".to_owned());
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() {
        return Err("has no host".to_owned());
    }
    let letters = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    if !host.starts_with('[') && (host.len() > 253 || !host.bytes().all(letters)) {
        return Err("has a host with other characters than letters, digits, -, . and _, or too long a one".to_owned());
    }
    match port {
        None => Ok((authority, format!("{host}:80"))),
        Some(port) => match port.parse::<u16>() {
            Ok(1..) if port.bytes().all(|b| b.is_ascii_digit()) => Ok((authority, authority.to_owned())),
            _ => Err("has a port that is not a number from 1 to 65535".to_owned()),
        },
    }
}

/// What `replica` has in common with an earlier one, if it must not.
fn clash(earlier: &[(usize, ReplicaSpec)], replica: &ReplicaSpec, line: usize) -> Option<String> {
    let lines = |first: usize| if line > 0 { format!(" on lines {first} and {line}") } else { String::new() };
    earlier.iter().find_map(|(first, other)| {
        if other.name == replica.name {
            let name = shown(&replica.name);
            return Some(format!("the name {name} is given twice{}; allowed: distinct names", lines(*first)));
        }
        // Counted apart, one replica would look half as busy as it is; `weight` is how to give it more.
        other.authority.eq_ignore_ascii_case(&replica.authority).then(|| {
            let address = shown(&replica.authority);
            format!("the address {address} is given twice{}; allowed: distinct addresses", lines(*first))
        })
    })
}

/// The URL without what may be a password.
fn without_userinfo(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 <= at => format!("{}…{}", &url[..scheme + 3], &url[at..]),
        (None, Some(at)) => format!("…{}", &url[at..]),
        _ => url.to_owned(),
    }
}
