//! The kinds of settings: how a value of each is read, printed, and described to someone who got it wrong.
//!
//! It names no key: [`super::keys`] says which key is of which kind.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::errors::{Report, shown};
use super::yaml::{Node, Shape};
use super::{Config, quantity, replicas};
use crate::otlp::Endpoint;
use crate::units::{Secret, Share};

/// Characters of a name.
const MOST_OF_A_NAME: usize = 128;

/// What stands for a number that is worked out.
const AUTO: &str = "auto";

/// What a setting takes, and where in [`Config`] it is kept.
pub(super) enum Kind {
    /// Where to listen.
    Address(Field<SocketAddr>),
    /// A whole number.
    Number(RangeInclusive<u64>, Field<u64>),
    /// A whole number, or `auto`, which is none.
    NumberOrAuto(RangeInclusive<u64>, Field<Option<u64>>),
    /// A size in bytes.
    Size(RangeInclusive<u64>, Field<usize>),
    /// A time.
    Time(RangeInclusive<Duration>, Field<Duration>),
    /// A time between two events, or none, so that they do not happen.
    TimeOrOff(RangeInclusive<Duration>, Field<Duration>),
    /// `true` or `false`.
    Switch(Field<bool>),
    /// One of a few words; `set` says whether it knows the word.
    Word { words: fn() -> String, get: fn(&Config) -> &'static str, set: fn(&mut Config, &str) -> bool },
    /// A path.
    Path(Field<String>),
    /// A name that this router goes by.
    Name(Field<String>),
    /// A share of a whole.
    Share(Field<Share>),
    /// Where a collector takes spans, if anywhere.
    Endpoint(Field<Option<Endpoint>>),
    /// A list of texts, each of which passes `good`.
    List { allowed: &'static str, good: fn(&str) -> bool, field: Field<Vec<String>> },
    /// The replicas.
    Replicas,
    /// A key or a token. Neither printed nor shown in an error.
    Secret(Field<Option<Secret>>),
}

/// A place in [`Config`].
pub(super) struct Field<T: 'static> {
    pub(super) get: fn(&Config) -> T,
    pub(super) set: fn(&mut Config, T),
}

/// How a kind refuses a text: what is wrong with it.
type Refusal = &'static str;

impl Kind {
    /// What is allowed, for errors and for the reference.
    pub(super) fn allowed(&self) -> String {
        match self {
            Kind::Address(_) => "IP:PORT, :PORT for all IPv4 addresses, or localhost:PORT".to_owned(),
            Kind::Number(range, _) => format!("{} to {}", range.start(), range.end()),
            Kind::NumberOrAuto(range, _) => format!("{AUTO}, or {} to {}", range.start(), range.end()),
            Kind::Size(range, _) => {
                format!("{} to {}", quantity::print_size(*range.start()), quantity::print_size(*range.end()))
            }
            Kind::Time(range, _) => {
                format!("{} to {}", quantity::print_time(*range.start()), quantity::print_time(*range.end()))
            }
            Kind::TimeOrOff(range, _) => {
                format!("0s, or {} to {}", quantity::print_time(*range.start()), quantity::print_time(*range.end()))
            }
            Kind::Switch(_) => "true, false".to_owned(),
            Kind::Word { words, .. } => words(),
            Kind::Path(_) => "a path that begins with /".to_owned(),
            Kind::Name(_) => format!("1 to {MOST_OF_A_NAME} visible ASCII characters"),
            Kind::Share(_) => "0 to 1".to_owned(),
            Kind::Endpoint(_) => Endpoint::ALLOWED.to_owned(),
            Kind::List { allowed, .. } => (*allowed).to_owned(),
            Kind::Replicas => replicas::ALLOWED.to_owned(),
            Kind::Secret(_) => "visible ASCII characters".to_owned(),
        }
    }

    /// Takes a value from any source into `config`; what is wrong goes to `report`.
    pub(super) fn set(&self, config: &mut Config, node: &Node, report: &mut Report<'_>) {
        match (&node.shape, self) {
            // Nothing is the default, which is there already; what was refused has been reported.
            (Shape::Null | Shape::Refused, _) => {}
            (Shape::List(items), Kind::List { .. } | Kind::Replicas) => self.set_items(config, items, report),
            // As in the environment: one text, with commas between the items.
            (Shape::Text(text), Kind::List { .. } | Kind::Replicas) => {
                let item = |item: &str| Node { line: node.line, shape: Shape::Text(item.trim().to_owned()) };
                let items: Vec<Node> = if text.trim().is_empty() { Vec::new() } else { text.split(',').map(item).collect() };
                self.set_items(config, &items, report);
            }
            (Shape::Text(text), _) => {
                if let Err(why) = self.set_text(config, text) {
                    let text = match self {
                        Kind::Secret(_) => "the value".to_owned(),
                        // Whoever writes a password where none belongs does not want to read it in a log.
                        Kind::Endpoint(_) => shown(&replicas::without_userinfo(text)),
                        _ => shown(text),
                    };
                    report.add(node.line, format!("{text} {why}; allowed: {}", self.allowed()));
                }
            }
            _ => report.add(node.line, format!("{} is not allowed here; allowed: {}", node.sort(), self.allowed())),
        }
    }

    fn set_text(&self, config: &mut Config, text: &str) -> Result<(), Refusal> {
        match self {
            Kind::Address(field) => (field.set)(config, quantity::address(text).ok_or("is not an address with a port")?),
            Kind::Number(range, field) => {
                (field.set)(config, quantity::in_range(quantity::whole(text), "is not a whole number", range.clone())?);
            }
            Kind::NumberOrAuto(_, field) if text.eq_ignore_ascii_case(AUTO) => (field.set)(config, None),
            Kind::NumberOrAuto(range, field) => {
                let number = quantity::in_range(quantity::whole(text), "is neither auto nor a whole number", range.clone())?;
                (field.set)(config, Some(number));
            }
            Kind::Size(range, field) => {
                let refusal = "is not a size in B, KiB, MiB, GiB, kB, MB or GB";
                let bytes = quantity::in_range(quantity::size(text), refusal, range.clone())?;
                (field.set)(config, usize::try_from(bytes).map_err(|_| "is too large for this machine")?);
            }
            Kind::Time(range, field) => {
                let time = quantity::time(text)?;
                if !range.contains(&time) {
                    return Err("is out of range");
                }
                (field.set)(config, time);
            }
            Kind::TimeOrOff(range, field) => {
                let time = quantity::time(text)?;
                if !time.is_zero() && !range.contains(&time) {
                    return Err("is out of range");
                }
                (field.set)(config, time);
            }
            Kind::Switch(field) => (field.set)(config, quantity::switch(text).ok_or("is neither true nor false")?),
            Kind::Word { set, .. } => {
                if !set(config, text) {
                    return Err("is not known here");
                }
            }
            Kind::Path(field) => {
                if !is_path(text) {
                    return Err("is not a path");
                }
                (field.set)(config, text.to_owned());
            }
            Kind::Name(field) => {
                if !(1..=MOST_OF_A_NAME).contains(&text.len()) || !text.bytes().all(|b| b.is_ascii_graphic()) {
                    return Err("is not a name");
                }
                (field.set)(config, text.to_owned());
            }
            Kind::Share(field) => {
                let share = text.parse().map_err(|_| "is not a number")?;
                (field.set)(config, Share::new(share).ok_or("is out of range")?);
            }
            Kind::Endpoint(field) if text.is_empty() => (field.set)(config, None),
            Kind::Endpoint(field) => (field.set)(config, Some(Endpoint::parse(text)?)),
            Kind::Secret(field) => {
                // It becomes part of a header; a line end at its end is the usual accident.
                if text.is_empty() {
                    return Err("is empty");
                }
                if !text.bytes().all(|b| b.is_ascii_graphic()) {
                    return Err("holds a space, a line end or another character that cannot be sent");
                }
                (field.set)(config, Some(Secret::new(text.to_owned())));
            }
            Kind::List { .. } | Kind::Replicas => return Err("is not a list"),
        }
        Ok(())
    }

    fn set_items(&self, config: &mut Config, items: &[Node], report: &mut Report<'_>) {
        match self {
            Kind::Replicas => (config.replicas, config.sources) = replicas::read(items, report),
            Kind::List { good, field, .. } => {
                let mut texts = Vec::new();
                for item in items {
                    match &item.shape {
                        Shape::Refused => {}
                        Shape::Text(text) if good(text) => texts.push(text.clone()),
                        other => {
                            let text = if let Shape::Text(text) = other { shown(text) } else { item.sort().to_owned() };
                            report.add(item.line, format!("{text} is not allowed here; allowed: {}", self.allowed()));
                        }
                    }
                }
                (field.set)(config, texts);
            }
            _ => {}
        }
    }

    /// The value in `config`, as YAML that reads back to it, ready to follow the key and its colon.
    pub(super) fn print(&self, config: &Config) -> String {
        match self {
            Kind::Address(field) => format!(" {}", quoted(&(field.get)(config).to_string())),
            Kind::Number(_, field) => format!(" {}", (field.get)(config)),
            Kind::NumberOrAuto(_, field) => (field.get)(config).map_or_else(|| format!(" {AUTO}"), |number| format!(" {number}")),
            Kind::Size(_, field) => format!(" {}", quantity::print_size((field.get)(config) as u64)),
            Kind::Time(_, field) | Kind::TimeOrOff(_, field) => format!(" {}", quantity::print_time((field.get)(config))),
            Kind::Switch(field) => format!(" {}", (field.get)(config)),
            Kind::Word { get, .. } => format!(" {}", get(config)),
            Kind::Path(field) | Kind::Name(field) => format!(" {}", quoted(&(field.get)(config))),
            Kind::Share(field) => format!(" {}", (field.get)(config)),
            Kind::Endpoint(field) => (field.get)(config).map_or_else(|| " ~".to_owned(), |endpoint| format!(" {}", quoted(endpoint.url()))),
            Kind::List { field, .. } => {
                let items: Vec<String> = (field.get)(config).iter().map(|item| quoted(item)).collect();
                format!(" [{}]", items.join(", "))
            }
            Kind::Replicas if config.replicas.is_empty() && config.sources.is_empty() => " []".to_owned(),
            Kind::Replicas => {
                let fixed = config.replicas.iter().map(|replica| replicas::print(replica, quoted));
                let sources = config.sources.iter().map(|source| replicas::print_source(source, quoted));
                fixed.chain(sources).map(|item| format!("\n  - {item}")).collect()
            }
            Kind::Secret(field) if (field.get)(config).is_some() => " ~ # set, and hidden here".to_owned(),
            Kind::Secret(_) => " ~".to_owned(),
        }
    }

    /// Whether both have the same value here. Prints tell, but for secrets, of which they show nothing.
    pub(super) fn is_same(&self, one: &Config, other: &Config) -> bool {
        match self {
            Kind::Secret(field) => (field.get)(one) == (field.get)(other),
            _ => self.print(one) == self.print(other),
        }
    }

    /// Gives `to` the value that `from` has here.
    pub(super) fn copy(&self, from: &Config, to: &mut Config) {
        match self {
            Kind::Address(field) => (field.set)(to, (field.get)(from)),
            Kind::Number(_, field) => (field.set)(to, (field.get)(from)),
            Kind::NumberOrAuto(_, field) => (field.set)(to, (field.get)(from)),
            Kind::Size(_, field) => (field.set)(to, (field.get)(from)),
            Kind::Time(_, field) | Kind::TimeOrOff(_, field) => (field.set)(to, (field.get)(from)),
            Kind::Switch(field) => (field.set)(to, (field.get)(from)),
            Kind::Word { get, set, .. } => {
                // It knows its own words.
                set(to, get(from));
            }
            Kind::Path(field) | Kind::Name(field) => (field.set)(to, (field.get)(from)),
            Kind::Share(field) => (field.set)(to, (field.get)(from)),
            Kind::Endpoint(field) => (field.set)(to, (field.get)(from)),
            Kind::List { field, .. } => (field.set)(to, (field.get)(from)),
            Kind::Replicas => (to.replicas, to.sources) = (from.replicas.clone(), from.sources.clone()),
            Kind::Secret(field) => (field.set)(to, (field.get)(from)),
        }
    }
}

/// Whether `text` can be the path of a request.
pub(super) fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic() && b != b'#')
}

/// `text` as a YAML scalar that every reader takes as that text.
fn quoted(text: &str) -> String {
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/');
    let plain = begins
        && !text.ends_with(':')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/_-.:*".contains(c))
        // Not a number (1, 1e3, 0x1, 12:30 of YAML 1.1) and not a word of YAML's own.
        && (text.contains('/') || text.matches('.').count() > 2 || text.starts_with(|c: char| c.is_ascii_alphabetic()))
        && !["null", "true", "false", "yes", "no", "on", "off", "y", "n"].contains(&text.to_ascii_lowercase().as_str());
    if plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "''")) }
}
