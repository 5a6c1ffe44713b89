//! The list of replicas: `URL;weight=2;name=a;models=x|y`, or a map with the same names. A URL `dns://…` stands for all replicas behind a name.
//!
//! It knows what a replica may look like, not whether one is there: nothing is resolved or contacted.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::errors::{Report, nearest, shown};
use super::quantity::{in_range, switch, whole};
use super::yaml::{Entry, Node, Shape};
use crate::discovery::dns::{Question, Source};
use crate::fleet::ReplicaSpec;
use crate::units::Weight;

/// What a replica may be, in one line.
pub(super) const ALLOWED: &str = "http://HOST:PORT (80 if not given), dns://NAME:PORT or dns://_SERVICE._PROTO.NAME, then any of ;weight=1 to 100 ;name=NAME ;models=A|B ;drain=true";

const URL_ALLOWED: &str = "http://HOST:PORT (80 if not given), dns://NAME:PORT or dns://_SERVICE._PROTO.NAME";

/// Reads the items of a list. Whatever is wrong goes to `report`; what is right is returned: the replicas and the sources of others.
pub(super) fn read(items: &[Node], report: &mut Report<'_>) -> (Vec<ReplicaSpec>, Vec<Source>) {
    let mut replicas: Vec<(usize, ReplicaSpec)> = Vec::new();
    let mut sources: Vec<(usize, Source)> = Vec::new();
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
            Ok(Listed::Replica(replica)) => match clash(&replicas, &replica, item.line) {
                Some(problem) => report.add(item.line, problem),
                None => replicas.push((item.line, replica)),
            },
            Ok(Listed::Source(source)) => match sources.iter().find(|(_, other)| plain(&other.question) == plain(&source.question)) {
                Some((first, _)) => report.add(item.line, format!("{}; allowed: once", twice(&source.url, *first, item.line))),
                None => sources.push((item.line, source)),
            },
            Err(wrong) => wrong.into_iter().for_each(|(line, problem)| report.add(line, problem)),
        }
    }
    (replicas.into_iter().map(|(_, replica)| replica).collect(), sources.into_iter().map(|(_, source)| source).collect())
}

/// One replica as YAML, ready to follow `  - `.
pub(super) fn print(replica: &ReplicaSpec, quoted: fn(&str) -> String) -> String {
    let ReplicaSpec { name, authority, weight, models, drain } = replica;
    let url = quoted(&format!("http://{authority}"));
    print_map(format!("url: {url}, name: {}", quoted(name)), *weight, models, *drain, quoted)
}

/// One source as YAML, ready to follow `  - `.
pub(super) fn print_source(source: &Source, quoted: fn(&str) -> String) -> String {
    print_map(format!("url: {}", quoted(&source.url)), source.weight, &source.models, source.drain, quoted)
}

fn print_map(first: String, weight: Weight, models: &[String], drain: bool, quoted: fn(&str) -> String) -> String {
    let mut text = format!("{{{first}, weight: {weight}");
    if !models.is_empty() {
        let models: Vec<String> = models.iter().map(|model| quoted(model)).collect();
        text += &format!(", models: [{}]", models.join(", "));
    }
    if drain {
        text += ", drain: true";
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
    drain: Option<(usize, &'a str)>,
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
            fields.wrong.push((line, format!("{}: given twice; allowed: once", shown(field))));
        }
        seen.push(field);
        match field {
            "name" => fields.name = Some((line, value)),
            "weight" => fields.weight = Some((line, value)),
            "drain" => fields.drain = Some((line, value)),
            "models" => fields.models = value.split('|').map(|model| (line, model.trim())).collect(),
            _ => fields.wrong.push((line, unknown(field, &["name", "weight", "models", "drain"]))),
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
            ("url" | "name" | "weight" | "models" | "drain", Shape::Null) => {}
            ("url", Shape::Text(text)) => fields.url = Some((value.line, text)),
            ("name", Shape::Text(text)) => fields.name = Some((value.line, text)),
            ("weight", Shape::Text(text)) => fields.weight = Some((value.line, text)),
            ("drain", Shape::Text(text)) => fields.drain = Some((value.line, text)),
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
            ("url" | "name" | "weight" | "models" | "drain", _) => {
                let problem = format!("{key}: {} is not allowed here; allowed: a text", value.sort());
                fields.wrong.push((*line, problem));
            }
            _ => fields.wrong.push((*line, unknown(key, &["url", "name", "weight", "models", "drain"]))),
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

/// What stands in the list.
enum Listed {
    Replica(ReplicaSpec),
    Source(Source),
}

/// The replica or the source that the fields describe, or everything that is wrong with them.
fn build(fields: Fields<'_>) -> Result<Listed, Vec<(usize, String)>> {
    let Fields { prefix, url, name, weight, drain, models, mut wrong } = fields;
    let mut question = None;
    let weight_of_one = Weight::clamped(1);
    let mut replica =
        ReplicaSpec { name: String::new(), authority: String::new(), weight: weight_of_one, models: Vec::new(), drain: false };
    if let Some((line, url)) = url {
        match read_url(url) {
            Ok(Url::Http { identity, authority }) => (replica.name, replica.authority) = (identity, authority),
            Ok(Url::Dns(asked)) => question = Some((url.to_owned(), asked)),
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
        if question.is_some() {
            wrong.push((line, "name: a DNS name stands for many replicas, and each is called by its address; allowed: no name".to_owned()));
        }
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
    if let Some((line, text)) = drain {
        match switch(text) {
            Some(drain) => replica.drain = drain,
            None => wrong.push((line, format!("drain: {} is neither true nor false; allowed: true, false", shown(text)))),
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
        return Ok(match question {
            Some((url, question)) => {
                let ReplicaSpec { weight, models, drain, .. } = replica;
                Listed::Source(Source { url, question, weight, models, drain })
            }
            None => Listed::Replica(replica),
        });
    }
    Err(wrong.into_iter().map(|(line, problem)| (line, format!("{prefix}{problem}"))).collect())
}

/// What a URL stands for.
enum Url {
    /// One replica: host and port as written, and the same with a port in any case.
    Http { identity: String, authority: String },
    /// Those behind a name.
    Dns(Question),
}

/// The error completes the sentence "URL …".
fn read_url(url: &str) -> Result<Url, String> {
    let (scheme, rest) = match url.split_once("://") {
        Some(parts) => parts,
        None if url.is_empty() => return Err("is empty".to_owned()),
        None => return Err("does not begin with http:// or dns://".to_owned()),
    };
    match scheme.to_ascii_lowercase().as_str() {
        "http" => {
            let (authority, host, port) = host_and_port(rest)?;
            let authority_with_port = if port.is_some() { authority.to_owned() } else { format!("{host}:80") };
            Ok(Url::Http { identity: authority.to_owned(), authority: authority_with_port })
        }
        "dns" => {
            let (_, host, port) = host_and_port(rest)?;
            question(host, port).map(Url::Dns)
        }
        "https" => Err("asks for TLS, and TLS to replicas is not supported".to_owned()),
        "dns+srv" | "srv" | "dnssrv" => {
            Err("does not begin with http:// or dns:// (for SRV records: dns://_SERVICE._PROTO.NAME)".to_owned())
        }
        _ => Err("does not begin with http:// or dns://".to_owned()),
    }
}

/// What is to be asked of DNS.
fn question(host: &str, port: Option<u16>) -> Result<Question, String> {
    let mut labels = host.split('.');
    let is_service = labels.by_ref().take(2).filter(|label| label.len() > 1 && label.starts_with('_')).count() == 2
        && labels.next().is_some_and(|label| !label.is_empty());
    if host.starts_with('[') || host.parse::<IpAddr>().is_ok() {
        return Err("holds an address, of which there is nothing to ask; write http:// before it".to_owned());
    }
    if host.split('.').rev().skip_while(|label| label.is_empty()).any(str::is_empty) || host.ends_with("..") {
        return Err("has an empty part between two dots".to_owned());
    }
    match (port, is_service) {
        (None, true) => Ok(Question::Service(host.to_owned())),
        (Some(port), false) => Ok(Question::Addresses { host: host.to_owned(), port }),
        (Some(port), true) => Err(format!("names a service, whose ports stand in its SRV records; leave out :{port}")),
        (None, false) => Err("has neither a port nor the form _SERVICE._PROTO.NAME, by which SRV records say the port".to_owned()),
    }
}

/// Host and port as written, host, port. The error completes the sentence "URL …".
fn host_and_port(rest: &str) -> Result<(&str, &str, Option<u16>), String> {
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
        None => Ok((authority, host, None)),
        Some(port) => match port.parse::<u16>() {
            Ok(number @ 1..) if port.bytes().all(|b| b.is_ascii_digit()) => Ok((authority, host, Some(number))),
            _ => Err("has a port that is not a number from 1 to 65535".to_owned()),
        },
    }
}

/// What `replica` has in common with an earlier one, if it must not.
fn clash(earlier: &[(usize, ReplicaSpec)], replica: &ReplicaSpec, line: usize) -> Option<String> {
    earlier.iter().find_map(|(first, other)| {
        if other.name == replica.name {
            return Some(format!("the name {}; allowed: distinct names", twice(&replica.name, *first, line)));
        }
        // Counted apart, one replica would look half as busy as it is; `weight` is how to give it more.
        (plain_authority(&other.authority) == plain_authority(&replica.authority))
            .then(|| format!("the address {}; allowed: distinct addresses", twice(&replica.authority, *first, line)))
    })
}

/// A question in the one form that all its spellings have in common.
fn plain(question: &Question) -> Question {
    match question {
        Question::Addresses { host, port } => Question::Addresses { host: plain_host(host), port: *port },
        Question::Service(name) => Question::Service(plain_host(name)),
    }
}

/// The same of host and port.
fn plain_authority(authority: &str) -> String {
    match (authority.parse::<SocketAddr>(), authority.rsplit_once(':')) {
        (Ok(address), _) => address.to_string(),
        (Err(_), Some((host, port))) => format!("{}:{}", plain_host(host), port.trim_start_matches('0')),
        (Err(_), None) => plain_host(authority),
    }
}

/// Without the dot at its end: with and without it, a name is rarely two servers.
fn plain_host(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

fn twice(what: &str, first: usize, line: usize) -> String {
    let lines = if line > 0 { format!(" on lines {first} and {line}") } else { String::new() };
    format!("{} is given twice{lines}", shown(what))
}

/// The URL without what may be a password.
pub(super) fn without_userinfo(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 <= at => format!("{}…{}", &url[..scheme + 3], &url[at..]),
        (None, Some(at)) => format!("…{}", &url[at..]),
        _ => url.to_owned(),
    }
}
