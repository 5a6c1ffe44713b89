//! `Config`: every setting of the router, composed from the modules that the settings belong to.
//!
//! A setting is a flag, else a variable `PREFIX_ROUTER_…`, else in the file, else at its default. [`load`] reads all
//! sources and reports everything that is wrong in all of them at once; [`Reading::again`] reads the file anew under the same flags and variables,
//! and [`Config::follow`] tells what has changed. It starts nothing and contacts nobody.

mod environment;
mod errors;
mod file;
mod keys;
mod kinds;
mod quantity;
mod replicas;
mod sagemaker;
#[cfg(test)]
mod tests;
mod words;
mod yaml;

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::{admin, admission, discovery, fleet, otlp, proxy, request, resolver, routing, scrape, server, telemetry, upstream};
pub use errors::ConfigErrors;
use errors::{Origin, Report};
pub use file::Contents;
use keys::Change;
use yaml::Node;

/// Everything that `serve` needs to know, validated. Built by [`load`]; `Config::default()` has every key at its default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where clients connect. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where `/metrics`, `/live`, `/ready` and the API are served.
    pub admin: SocketAddr,
    /// Who may use the API.
    pub access: admin::Settings,
    /// The replicas that are listed one by one, in the order written; identities are distinct.
    pub replicas: Vec<fleet::ReplicaSpec>,
    /// Where others are found, in the order written.
    pub sources: Vec<discovery::dns::Source>,
    /// Names and their addresses.
    pub resolver: resolver::Settings,
    /// What makes the key.
    pub key: request::Settings,
    /// How a replica is chosen.
    pub routing: routing::Settings,
    /// When a replica counts as up.
    pub health: fleet::health::Settings,
    /// How engines are asked for their metrics.
    pub engine_metrics: scrape::Settings,
    /// What is published of the router's work.
    pub metrics: telemetry::MetricsSettings,
    /// How much runs at one time, and who may wait for it.
    pub admission: admission::Settings,
    /// The request path: retries, timeouts, limits.
    pub proxy: proxy::Settings,
    /// Connections to replicas.
    pub upstream: upstream::Settings,
    /// Connections from clients, and how they end.
    pub server: server::Settings,
    /// Logs.
    pub telemetry: telemetry::Settings,
    /// Traces.
    pub otlp: otlp::Settings,
    /// How often the file is looked at; zero: only when somebody asks for that.
    pub reload_interval: Duration,
}

impl Default for Config {
    fn default() -> Self {
        // Loopback: what is open to a network is opened by whoever runs it.
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self {
            listen: loopback(8080),
            admin: loopback(8081),
            access: admin::Settings::default(),
            replicas: Vec::new(),
            sources: Vec::new(),
            resolver: resolver::Settings::default(),
            key: request::Settings::default(),
            routing: routing::Settings::default(),
            health: fleet::health::Settings::default(),
            engine_metrics: scrape::Settings::default(),
            metrics: telemetry::MetricsSettings::default(),
            admission: admission::Settings::default(),
            proxy: proxy::Settings::default(),
            upstream: upstream::Settings::default(),
            server: server::Settings::default(),
            telemetry: telemetry::Settings::default(),
            otlp: otlp::Settings::default(),
            reload_interval: Duration::from_secs(2),
        }
    }
}

impl Config {
    /// The effective configuration as YAML with every key. It reads back to the same configuration, but for secrets,
    /// which it does not show.
    pub fn render(&self) -> String {
        keys::KEYS.iter().map(|key| key.print(self) + "\n").collect()
    }

    /// The effective configuration for whoever is to see it, without secrets.
    pub fn settings(&self) -> Vec<admin::Setting> {
        let default = Self::default();
        let setting = |key: &keys::Key| admin::Setting {
            key: key.name,
            value: key.kind.print(self).trim().to_owned(),
            default: key.default,
            is_default: key.kind.is_same(self, &default),
            change: match key.change {
                Change::Live => "live",
                Change::Restart => "restart",
            },
        };
        keys::KEYS.iter().map(setting).collect()
    }

    /// What is in force where `next` follows this configuration without a restart, and what has changed. What needs a restart stays as it is here.
    /// Fails where that and the rest of `next` exclude one another.
    pub fn follow(&self, next: &Config) -> Result<(Config, Changes), ConfigErrors> {
        let mut changes = Changes::default();
        let mut config = next.clone();
        for key in keys::KEYS.iter().filter(|key| !key.kind.is_same(self, next)) {
            match key.change {
                Change::Live => changes.applied.push(key.name),
                Change::Restart => {
                    key.kind.copy(self, &mut config);
                    changes.needs_restart.push(key.name);
                }
            }
        }
        let config = Loader { config, ..Loader::default() }.finish()?;
        Ok((config, changes))
    }
}

/// The keys in which one configuration differs from the one before it, in the order of the reference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Those that take effect at once.
    pub applied: Vec<&'static str>,
    /// Those that keep the value they had at the start.
    pub needs_restart: Vec<&'static str>,
}

/// Where settings come from. The environment is a list, so that whoever loads decides which one it is. Not
/// `Debug`: it may hold keys.
#[derive(Clone, Default)]
pub struct Sources {
    /// The file named on the command line; else `PREFIX_ROUTER_CONFIG` may name one.
    pub file: Option<PathBuf>,
    /// The environment. Variables other than `PREFIX_ROUTER_…` are ignored.
    pub environment: Vec<(OsString, OsString)>,
    /// The flags given.
    pub flags: Vec<Flag>,
}

impl Sources {
    /// The file, and who names it.
    fn file(&self) -> Option<(PathBuf, &'static str)> {
        let by_variable = || environment::file(&self.environment).map(|path| (path, environment::FILE));
        self.file.clone().map(|path| (path, "--config")).or_else(by_variable)
    }
}

/// A configuration for serving, with all that is needed to read it again.
#[derive(Clone)]
pub struct Reading {
    /// What was read.
    pub config: Config,
    /// What the file held; `None` where there is no file.
    pub contents: Option<Contents>,
    sources: Sources,
}

impl Reading {
    /// Reads all sources. There must be a replica.
    pub fn new(sources: Sources) -> Result<Self, ConfigErrors> {
        let contents = sources.file().map(|(path, _)| file::read(&path));
        let config = load_serving(&sources, contents.as_ref())?;
        Ok(Self { config, contents, sources })
    }

    /// The file's path; `None` where there is no file, and so nothing that could change.
    pub fn path(&self) -> Option<PathBuf> {
        self.sources.file().map(|(path, _)| path)
    }

    /// What the file holds now. Reads a disk.
    pub fn look(&self) -> Option<Contents> {
        self.path().map(|path| file::read(&path))
    }

    /// The configuration if the file holds `contents`: flags and variables are as they were.
    pub fn again(&self, contents: &Contents) -> Result<Config, ConfigErrors> {
        load_serving(&self.sources, Some(contents))
    }
}

/// A flag of the command line.
#[derive(Clone)]
pub struct Flag {
    /// As typed, `--prefix-length`.
    pub name: &'static str,
    /// The key that it sets, `prefix_length`.
    pub key: &'static str,
    /// Its value; several only where the key is a list.
    pub values: Vec<String>,
}

/// The configuration for serving: that of [`load_settings`], with at least one replica.
pub fn load(sources: Sources) -> Result<Config, ConfigErrors> {
    Reading::new(sources).map(|reading| reading.config)
}

fn load_serving(sources: &Sources, contents: Option<&Contents>) -> Result<Config, ConfigErrors> {
    let mut loader = Loader::default();
    loader.read(sources, contents);
    let none = loader.config.replicas.is_empty() && loader.config.sources.is_empty();
    if none && !loader.unread && !loader.errors.concern("replicas") {
        let problem = "none is given; allowed: at least one, by --replica URL, PREFIX_ROUTER_REPLICAS=URL,URL or \
                       `replicas: [URL]` in the file";
        Report::new(&Origin::Nowhere, "replicas", &mut loader.errors).add(0, problem);
    }
    loader.finish()
}

/// The configuration for a look at it: replicas are not needed.
pub fn load_settings(sources: Sources) -> Result<Config, ConfigErrors> {
    let mut loader = Loader::default();
    let contents = sources.file().map(|(path, _)| file::read(&path));
    loader.read(&sources, contents.as_ref());
    loader.finish()
}

/// The configuration in a text, called `name` in errors; replicas are not needed.
pub fn load_str(yaml: &str, name: &str) -> Result<Config, ConfigErrors> {
    let mut loader = Loader::default();
    file::apply(yaml, name, &mut loader);
    loader.finish()
}

/// What a key means, its default and what is allowed, for the help of a flag that sets it.
pub fn help(key: &str) -> String {
    keys::find(key).map_or_else(String::new, |key| {
        format!("{} [default: {}; allowed: {}]", key.meaning.trim_end_matches('.'), key.default, key.kind.allowed())
    })
}

/// An address to listen on, in the forms that the key `listen` allows; else what these are.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let allowed = || keys::find("listen").map(|key| format!("allowed: {}", key.kind.allowed())).unwrap_or_default();
    quantity::address(text).ok_or_else(allowed)
}

/// A configuration on its way: sources are put over one another in the order file, environment, flags.
#[derive(Default)]
struct Loader {
    config: Config,
    errors: ConfigErrors,
    /// Whether some of a file could not be read. What is missing may stand there.
    unread: bool,
    /// Where settings were written, the source in force last.
    written: Vec<(&'static str, Origin, usize)>,
}

impl Loader {
    fn read(&mut self, sources: &Sources, contents: Option<&Contents>) {
        let variables = environment::read(&sources.environment, &mut self.errors);
        if let (Some((path, named_by)), Some(contents)) = (sources.file(), contents) {
            file::apply_contents(contents, &path, named_by, self);
        }
        for (key, origin, text) in variables.settings {
            self.set(key, &origin, &Node::text(text));
        }
        for Flag { name, key, values } in &sources.flags {
            let Some(key) = keys::find(key) else { continue };
            // A repeated flag is a list, and a list in one text has commas.
            self.set(key, &Origin::Flag(name), &Node::text(values.join(",")));
        }
    }

    fn set(&mut self, key: &'static keys::Key, origin: &Origin, node: &Node) {
        if !node.is_null() {
            self.written.push((key.name, origin.clone(), node.line));
        }
        key.set(&mut self.config, node, &mut Report::new(origin, key.name, &mut self.errors));
    }

    /// Refuses a replica that is this router itself: one request would go round and round.
    fn refuse_loops(&mut self) {
        let listen = self.config.listen;
        let is_own = |authority: &str| {
            let host = authority.replace("localhost:", "127.0.0.1:").parse::<SocketAddr>();
            host.is_ok_and(|host| {
                let same_host = host.ip() == listen.ip() || (listen.ip().is_unspecified() && host.ip().is_loopback());
                same_host && host.port() == listen.port() && host.port() != 0
            })
        };
        let Some(own) = self.config.replicas.iter().find(|replica| is_own(&replica.authority)) else { return };
        let problem = format!("{} is where this router itself listens ({listen}); allowed: other servers", own.authority);
        let written = self.written.iter().rev().find(|(key, ..)| *key == "replicas");
        let (origin, line) = written.map_or((Origin::Nowhere, 0), |(_, origin, line)| (origin.clone(), *line));
        Report::new(&origin, "replicas", &mut self.errors).add(line, problem);
    }

    fn refuse_crossed_ttls(&mut self) {
        let resolver::Settings { min_ttl, max_ttl, .. } = self.config.resolver;
        if min_ttl > max_ttl {
            let (min, max) = (quantity::print_time(min_ttl), quantity::print_time(max_ttl));
            let problem = format!("dns_min_ttl is {min} and dns_max_ttl {max}; allowed: a minimum up to the maximum");
            self.refuse_pair(["dns_min_ttl", "dns_max_ttl"], problem);
        }
    }

    /// Refuses bodies for which there would never be room.
    fn refuse_too_little_room(&mut self) {
        let proxy::Settings { max_body, max_buffered_bytes, .. } = self.config.proxy;
        if max_body > max_buffered_bytes {
            let (one, all) = (quantity::print_size(max_body as u64), quantity::print_size(max_buffered_bytes as u64));
            let problem = format!("max_body is {one} and max_buffered_bytes {all}; allowed: room for at least one body");
            self.refuse_pair(["max_body", "max_buffered_bytes"], problem);
        }
    }

    /// Reports what is wrong with two settings together, unless one of them is wrong by itself, where the last of them is written.
    fn refuse_pair(&mut self, keys: [&'static str; 2], problem: String) {
        if keys.iter().any(|key| self.errors.concern(key)) {
            return;
        }
        let written = self.written.iter().rev().find(|(key, ..)| keys.contains(key));
        let (key, origin, line) = written.map_or((keys[0], Origin::Nowhere, 0), |(key, origin, line)| (*key, origin.clone(), *line));
        Report::new(&origin, key, &mut self.errors).add(line, problem);
    }

    /// Checks what joins several settings, then gives the configuration, or everything that is wrong.
    fn finish(mut self) -> Result<Config, ConfigErrors> {
        let Config { listen, admin, .. } = self.config;
        // 0.0.0.0 holds a port on every address.
        let overlap = listen.ip() == admin.ip() || listen.ip().is_unspecified() || admin.ip().is_unspecified();
        let known = !self.errors.concern("listen") && !self.errors.concern("admin");
        if known && overlap && listen.port() == admin.port() && admin.port() != 0 {
            let place = |name: &str| self.written.iter().rev().find(|(key, ..)| *key == name);
            let (key, other, origin, line) = match (place("admin"), place("listen")) {
                (Some((key, origin, line)), _) => (*key, format!("listen is {listen}"), origin.clone(), *line),
                (None, Some((key, origin, line))) => (*key, format!("admin is {admin}"), origin.clone(), *line),
                (None, None) => ("admin", format!("listen is {listen}"), Origin::Nowhere, 0),
            };
            let own = if key == "admin" { admin } else { listen };
            let problem = format!("{own} is taken, as {other}; allowed: another port, or 0 for a free one");
            Report::new(&origin, key, &mut self.errors).add(line, problem);
        }
        self.refuse_loops();
        self.refuse_crossed_ttls();
        self.refuse_too_little_room();
        self.errors.or(self.config)
    }
}
