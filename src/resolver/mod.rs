//! Names to addresses: the one DNS client of the router, which discovery asks and whoever connects to a replica by its name.
//!
//! [`Resolver`] asks each time and keeps no answers: how long one holds, and what holds while none comes, is the asker's business, or that of
//! [`HostName`]. It does not use the system's resolver library, which a fully static binary lacks, but reads the same files: `/etc/resolv.conf` and
//! `/etc/hosts`.

mod name;

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts, ServerOrderingStrategy};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::{Hosts, TokioResolver, system_conf};
use tokio::sync::watch;
use tokio::time::timeout;

pub use name::{HostName, HostNames};

/// Who is asked, and how long an answer may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The DNS servers; empty: the system's.
    pub servers: Vec<SocketAddr>,
    /// An answer holds at least this long, whatever it says itself.
    pub min_ttl: Duration,
    /// And at most this long.
    pub max_ttl: Duration,
    /// A name is believed to be gone when this has been the only answer for so long; zero: never.
    pub forget_after: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        // Docker says 600 s, Kubernetes 5 s to 30 s; a replica that was added should be seen within seconds all the same.
        Self {
            servers: Vec::new(),
            min_ttl: Duration::from_secs(1),
            max_ttl: Duration::from_secs(5),
            // Long enough for a DNS server that starts with an empty zone, too short for others to get and use the addresses.
            forget_after: Duration::from_secs(60),
        }
    }
}

impl Settings {
    /// How long an answer holds that says `ttl`.
    pub fn holds(&self, ttl: Duration) -> Duration {
        // Not `clamp`, which panics where the limits are crossed.
        ttl.min(self.max_ttl).max(self.min_ttl)
    }
}

/// A server that does not answer within this time is asked once more, or another one is. The system's own limit holds where it is shorter.
const PATIENCE: Duration = Duration::from_secs(2);

/// Once one kind of address is there, the other kind may take this long: old firewalls drop questions for IPv6, and would cost each lookup its
/// whole patience.
const GRACE: Duration = Duration::from_millis(250);

/// An answer that came after its grace is the next asker's, unless it is older than this: twice the longest pause by default. So old, at most, are
/// answers that are over and used nevertheless, without a moment's wait for a new one.
const LATE: Duration = Duration::from_secs(10);

const HOSTS: &str = "/etc/hosts";

/// Why a lookup brought nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// There is no such name.
    #[error("there is no such name")]
    NotFound,
    /// The name is there and has no record of the kind asked for.
    #[error("the name has no addresses")]
    Empty,
    /// A server answered that it cannot say.
    #[error("the DNS server answered: {0}")]
    ServerFailure(String),
    /// No server answered.
    #[error("no DNS server answered in time (dns_servers, else those of /etc/resolv.conf)")]
    Timeout,
    /// Anything else: no connection to a server, an answer that is none, a name that is none.
    #[error("{0}")]
    Other(String),
}

impl LookupError {
    /// All labels, for metrics.
    pub const LABELS: [&str; 5] = ["not_found", "empty", "server_failure", "timeout", "error"];

    /// The label in metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Empty => "empty",
            Self::ServerFailure(_) => "server_failure",
            Self::Timeout => "timeout",
            Self::Other(_) => "error",
        }
    }

    /// Whether somebody who knows says that there is nothing. Otherwise nobody knows.
    pub fn is_certain(&self) -> bool {
        self.doubt() < 2
    }

    /// How little is known.
    fn doubt(&self) -> u8 {
        match self {
            Self::NotFound => 0,
            Self::Empty => 1,
            Self::ServerFailure(_) | Self::Timeout | Self::Other(_) => 2,
        }
    }
}

impl From<NetError> for LookupError {
    fn from(error: NetError) -> Self {
        match error {
            error if error.is_nx_domain() => Self::NotFound,
            error if error.is_no_records_found() => Self::Empty,
            NetError::Dns(DnsError::ResponseCode(code)) => Self::ServerFailure(code.to_string()),
            NetError::Timeout => Self::Timeout,
            error => Self::Other(error.to_string()),
        }
    }
}

/// The addresses under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// `None` where nobody could say what there is of this kind, while the other kind was answered.
    v4: Option<Vec<IpAddr>>,
    v6: Option<Vec<IpAddr>>,
    /// Why half of it is not known, if so.
    pub missing: Option<LookupError>,
    /// How long the answer holds by its own account.
    pub ttl: Duration,
}

impl Found {
    /// Puts what was found `earlier` where nobody could say anything now: half an answer takes away nothing.
    pub fn or_earlier(mut self, earlier: Option<&Self>) -> Self {
        self.v4 = self.v4.or_else(|| earlier.and_then(|earlier| earlier.v4.clone()));
        self.v6 = self.v6.or_else(|| earlier.and_then(|earlier| earlier.v6.clone()));
        self
    }

    /// All addresses, IPv4 first, each once, in an order that does not depend on the server's.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let mut all: Vec<IpAddr> = self.v4.iter().chain(&self.v6).flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// For how long a name has been said to be gone.
#[derive(Debug, Default)]
pub struct Absence {
    since: Option<Instant>,
}

impl Absence {
    /// Whether a lookup that brought nothing, now, is to be taken at its word: who knows has said nothing else for `forget_after`. Until then it may
    /// be a DNS server that has just started; after that the addresses may be somebody else's.
    pub fn is_believed(&mut self, error: &LookupError, now: Instant, settings: &Settings) -> bool {
        if !error.is_certain() {
            return false;
        }
        let since = *self.since.get_or_insert(now);
        !settings.forget_after.is_zero() && now.duration_since(since) >= settings.forget_after
    }
}

/// A service's server, as an SRV record names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The server's full name.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// A DNS client.
pub struct Resolver {
    client: TokioResolver,
    search: Vec<Name>,
    ndots: usize,
    hosts: Mutex<KnownHosts>,
    /// Questions for addresses that are under way, or whose answer nobody has taken yet.
    asked: Mutex<HashMap<(Name, RecordType), Asked>>,
}

/// A question for addresses of one kind.
struct Asked {
    answer: watch::Receiver<Option<Half>>,
    begun: Instant,
}

impl Asked {
    /// Whether it has an answer to give, or will have.
    fn is_useful(&self) -> bool {
        match &*self.answer.borrow() {
            None => self.answer.has_changed().is_ok(),
            Some(Err(error)) if !error.is_certain() => false,
            Some(_) => self.begun.elapsed() < LATE,
        }
    }
}

/// `/etc/hosts` as of its last change.
#[derive(Default)]
struct KnownHosts {
    changed: Option<SystemTime>,
    hosts: Arc<Hosts>,
}

impl Resolver {
    /// One that asks the servers of `settings`, or those of the system. It must be made within a runtime.
    pub fn new(settings: &Settings) -> Result<Self, LookupError> {
        // Where there is no such file, or none that can be read: what the system's library does.
        let (system, mut options) = system_conf::read_system_conf().unwrap_or_else(|_| {
            (ResolverConfig::from_name_servers(vec![server((Ipv4Addr::LOCALHOST, 53).into())]), ResolverOpts::default())
        });
        let (domain, search, system_servers) = system.into_parts();
        let search = if search.is_empty() { domain.into_iter().collect() } else { search };
        let ndots = options.ndots;
        let servers = if settings.servers.is_empty() { system_servers } else { settings.servers.iter().copied().map(server).collect() };
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        options.timeout = options.timeout.min(PATIENCE);
        // The file counts tries, the client those after the first.
        options.attempts = options.attempts.saturating_sub(1);
        options.server_ordering_strategy = ServerOrderingStrategy::UserProvidedOrder;
        // Larger answers by UDP than 512 bytes.
        options.edns0 = true;
        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        let client = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).with_options(options).build()?;
        Ok(Self { client, search, ndots, hosts: Mutex::default(), asked: Mutex::default() })
    }

    /// The addresses of `host`, IPv4 and IPv6. Of the full names that it may stand for, the first one counts that has any.
    pub async fn addresses(&self, host: &str) -> Result<Found, LookupError> {
        let name = parse(host)?;
        if let Some(found) = self.in_hosts(&name) {
            return Ok(found);
        }
        let mut search = Search::new(name, &self.search, self.ndots);
        while let Some(name) = search.next() {
            let (v4, v6) = self.both(&name).await;
            match join(v4, v6) {
                Ok(found) => return Ok(found),
                Err(error) => search.failed(error),
            }
        }
        Err(search.outcome)
    }

    /// The servers of a service, those of the lowest priority value alone, in an order that does not depend on the DNS server's; and how long the answer
    /// holds by its own account.
    pub async fn services(&self, service: &str) -> Result<(Vec<Target>, Duration), LookupError> {
        let mut search = Search::new(parse(service)?, &self.search, self.ndots);
        while let Some(name) = search.next() {
            let lookup = match lookup(&self.client, name, RecordType::SRV).await {
                Ok(lookup) => lookup,
                Err(error) => {
                    search.failed(error);
                    continue;
                }
            };
            let records: Vec<_> =
                lookup.answers().iter().filter_map(|record| if let RData::SRV(srv) = &record.data { Some(srv) } else { None }).collect();
            let lowest = records.iter().map(|srv| srv.priority).min();
            let mut targets: Vec<Target> = records
                .iter()
                // The root as a target says that the service is not there.
                .filter(|srv| Some(srv.priority) == lowest && !srv.target.is_root() && srv.port != 0)
                .map(|srv| Target { host: srv.target.to_ascii(), port: srv.port })
                .collect();
            targets.sort_unstable();
            targets.dedup();
            return if targets.is_empty() { Err(LookupError::Empty) } else { Ok((targets, ttl(&lookup))) };
        }
        Err(search.outcome)
    }

    /// Both kinds of addresses under a full name. The second one does not hold up the first for long.
    async fn both(&self, name: &Name) -> (Half, Half) {
        let (v4, v6) = (self.records(name, RecordType::A), self.records(name, RecordType::AAAA));
        tokio::pin!(v4, v6);
        tokio::select! {
            // That there is no such name is said of both kinds; of IPv6, some servers say it wrongly.
            four = &mut v4 => {
                let decides = matches!(four, Ok(_) | Err(LookupError::NotFound));
                let six = after(decides, v6).await;
                (four, six)
            }
            six = &mut v6 => {
                let four = after(six.is_ok(), v4).await;
                (four, six)
            }
        }
    }

    /// The addresses of one kind under a full name. All who want to know share one question, which goes on to its end though nobody waits for it.
    async fn records(&self, name: &Name, kind: RecordType) -> Half {
        let key = (name.clone(), kind);
        let mut answer = self.question(&key);
        let half = answer.wait_for(Option::is_some).await.ok().and_then(|half| half.clone());
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.get(&key).is_some_and(|known| known.answer.same_channel(&answer)) {
            asked.remove(&key);
        }
        half.unwrap_or_else(|| Err(LookupError::Other("the lookup broke off".to_owned())))
    }

    fn question(&self, key: &(Name, RecordType)) -> watch::Receiver<Option<Half>> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.retain(|_, question| question.is_useful());
        if let Some(known) = asked.get(key) {
            return known.answer.clone();
        }
        let (sender, answer) = watch::channel(None);
        let (client, (name, kind)) = (self.client.clone(), key.clone());
        tokio::spawn(async move {
            let half = lookup(&client, name, kind).await.and_then(|lookup| usable(&lookup));
            sender.send_replace(Some(half));
        });
        asked.insert(key.clone(), Asked { answer: answer.clone(), begun: Instant::now() });
        answer
    }

    /// What `/etc/hosts` says, which comes before any DNS server. It is read again when it changes.
    fn in_hosts(&self, name: &Name) -> Option<Found> {
        let hosts = {
            let mut known = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
            let changed = std::fs::metadata(HOSTS).and_then(|file| file.modified()).ok();
            if changed != known.changed {
                *known = KnownHosts { changed, hosts: Arc::new(Hosts::from_system().unwrap_or_default()) };
            }
            Arc::clone(&known.hosts)
        };
        let listed = |kind| {
            let lookup = hosts.lookup_static_host(&Query::query(name.clone(), kind))?;
            Some(lookup.answers().iter().filter_map(|record| record.data.ip_addr()).collect::<Vec<_>>())
        };
        let (v4, v6) = (listed(RecordType::A).unwrap_or_default(), listed(RecordType::AAAA).unwrap_or_default());
        // It may change at any time, and reading it costs nothing.
        (!v4.is_empty() || !v6.is_empty()).then_some(Found { v4: Some(v4), v6: Some(v6), missing: None, ttl: Duration::ZERO })
    }
}

/// A walk through the full names that a name may stand for, as resolv.conf(5) has it.
struct Search {
    /// The name as it was written, taken for a full one.
    own: Name,
    names: std::vec::IntoIter<Name>,
    /// Why none has been found so far.
    outcome: LookupError,
}

impl Search {
    fn new(name: Name, domains: &[Name], ndots: usize) -> Self {
        let mut own = name.clone();
        own.set_fqdn(true);
        let mut names = Vec::new();
        if !name.is_fqdn() {
            names.extend(domains.iter().filter_map(|domain| name.clone().append_domain(domain).ok()));
        }
        let own_first = usize::from(name.num_labels()) > ndots || name.is_localhost();
        names.insert(if own_first { 0 } else { names.len() }, own.clone());
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Self { own, names: names.into_iter(), outcome: LookupError::NotFound }
    }

    /// The name to ask for next. Once nobody could say what is under one of them, no other takes its place, but for the one that was written: a
    /// server that has a bad moment must not lead to others' servers.
    fn next(&mut self) -> Option<Name> {
        self.names.find(|name| self.outcome.is_certain() || *name == self.own)
    }

    /// The last one brought nothing. What is told in the end is the least certain reason.
    fn failed(&mut self, error: LookupError) {
        if error.doubt() > self.outcome.doubt() {
            self.outcome = error;
        }
    }
}

fn server(address: SocketAddr) -> NameServerConfig {
    let at_port = |mut connection: ConnectionConfig| {
        connection.port = address.port();
        connection
    };
    let mut server = NameServerConfig::udp_and_tcp(address.ip());
    server.connections = vec![at_port(ConnectionConfig::udp()), at_port(ConnectionConfig::tcp())];
    server
}

fn parse(host: &str) -> Result<Name, LookupError> {
    Name::from_str_relaxed(host).map_err(|error| LookupError::Other(format!("{host} is not a name: {error}")))
}

async fn lookup(client: &TokioResolver, name: Name, kind: RecordType) -> Result<Lookup, LookupError> {
    // A cache of size 0 forgets at some time, not at once.
    client.clear_cache();
    Ok(client.lookup(name, kind).await?)
}

/// What `half` brings; where the other half `decides`, only if that is soon.
async fn after(decides: bool, half: impl Future<Output = Half>) -> Half {
    if decides { timeout(GRACE, half).await.unwrap_or(Err(LookupError::Timeout)) } else { half.await }
}

/// The addresses in an answer that one can connect to.
fn usable(lookup: &Lookup) -> Half {
    // Blocking servers answer 0.0.0.0 for names that they do not like.
    let usable = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_multicast();
    let addresses: Vec<_> = lookup.answers().iter().filter_map(|record| record.data.ip_addr()).filter(usable).collect();
    if addresses.is_empty() { Err(LookupError::Empty) } else { Ok((addresses, ttl(lookup))) }
}

/// The shortest time that a record of the answer holds.
fn ttl(lookup: &Lookup) -> Duration {
    Duration::from_secs(lookup.answers().iter().map(|record| record.ttl.into()).min().unwrap_or(0))
}

type Half = Result<(Vec<IpAddr>, Duration), LookupError>;

/// Both halves of an answer as one.
fn join(v4: Half, v6: Half) -> Result<Found, LookupError> {
    let known = |half: &Half| match half {
        Ok((addresses, _)) => Some(addresses.clone()),
        Err(error) => error.is_certain().then(Vec::new),
    };
    let ttl = [&v4, &v6].into_iter().filter_map(|half| half.as_ref().ok()).map(|(_, ttl)| *ttl).min();
    let (four, six) = (known(&v4), known(&v6));
    // Whoever has no name has none for IPv6 either, though nobody says so.
    let is_gone = matches!((&v4, &v6), (Err(LookupError::NotFound), Err(LookupError::Timeout)));
    // Of equals the first.
    let worst = [v4, v6].into_iter().filter_map(Result::err).reduce(|one, other| if other.doubt() > one.doubt() { other } else { one });
    match ttl {
        Some(ttl) => Ok(Found { v4: four, v6: six, missing: worst.filter(|error| !error.is_certain()), ttl }),
        None if is_gone => Err(LookupError::NotFound),
        None => Err(worst.unwrap_or(LookupError::NotFound)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names asked for, given the outcomes of the first ones (the rest: no such name), and what is told in the end.
    fn check(name: &str, ndots: usize, outcomes: &[LookupError], asked: &[&str], told: &LookupError) {
        let domains = ["a.test.", "b.test."].map(|domain| parse(domain).expect("a name"));
        let mut search = Search::new(parse(name).expect("a name"), &domains, ndots);
        let mut names = Vec::new();
        while let Some(name) = search.next() {
            search.failed(outcomes.get(names.len()).cloned().unwrap_or(LookupError::NotFound));
            names.push(name.to_ascii());
        }
        assert_eq!(
            (names.iter().map(String::as_str).collect::<Vec<_>>().as_slice(), &search.outcome),
            (asked, told),
            "{name} {outcomes:?}"
        );
    }

    #[test]
    fn the_search_list_is_walked_until_somebody_does_not_know() {
        use LookupError::{Empty, NotFound, Timeout};
        check("vllm", 1, &[], &["vllm.a.test.", "vllm.b.test.", "vllm."], &NotFound);
        check("vllm.ns", 1, &[], &["vllm.ns.", "vllm.ns.a.test.", "vllm.ns.b.test."], &NotFound);
        check("vllm.ns", 5, &[Empty], &["vllm.ns.a.test.", "vllm.ns.b.test.", "vllm.ns."], &Empty);
        check("vllm.", 5, &[], &["vllm."], &NotFound);
        check("localhost", 5, &[], &["localhost.", "localhost.a.test.", "localhost.b.test."], &NotFound);
        check("vllm.ns", 5, &[Timeout], &["vllm.ns.a.test.", "vllm.ns."], &Timeout);
        check("vllm.ns", 1, &[Timeout], &["vllm.ns."], &Timeout);
    }

    #[test]
    fn half_an_answer_takes_nothing_away() {
        let (four, six): (IpAddr, IpAddr) = (Ipv4Addr::LOCALHOST.into(), std::net::Ipv6Addr::LOCALHOST.into());
        let ok = |ip| Ok((vec![ip], Duration::from_secs(9)));
        let whole = join(ok(four), ok(six)).expect("both");
        assert_eq!(whole.addresses(), [four, six]);
        let half = join(ok(four), Err(LookupError::Timeout)).expect("one");
        assert_eq!(half.clone().or_earlier(None).addresses(), [four]);
        assert_eq!(half.or_earlier(Some(&whole)).addresses(), [four, six]);
        let certain = join(ok(four), Err(LookupError::Empty)).expect("one");
        assert_eq!(certain.or_earlier(Some(&whole)).addresses(), [four]);
        assert_eq!(join(Err(LookupError::NotFound), Err(LookupError::Empty)), Err(LookupError::Empty));
        assert_eq!(join(Err(LookupError::Empty), Err(LookupError::Timeout)), Err(LookupError::Timeout));
        assert_eq!(join(Err(LookupError::NotFound), Err(LookupError::Timeout)), Err(LookupError::NotFound));
        assert_eq!(join(Err(LookupError::Timeout), Err(LookupError::NotFound)), Err(LookupError::Timeout));
    }

    #[test]
    fn a_name_is_gone_when_nothing_else_was_said_for_a_while() {
        let settings = Settings { forget_after: Duration::from_secs(60), ..Settings::default() };
        let (mut absence, start) = (Absence::default(), Instant::now());
        let mut at = |seconds, error| absence.is_believed(&error, start + Duration::from_secs(seconds), &settings);
        assert!(!at(0, LookupError::Timeout));
        assert!(!at(50, LookupError::NotFound));
        assert!(!at(109, LookupError::Empty));
        assert!(!at(110, LookupError::Timeout), "whoever does not know says nothing");
        assert!(at(110, LookupError::NotFound));
        let never = Settings { forget_after: Duration::ZERO, ..settings };
        assert!(!absence.is_believed(&LookupError::NotFound, start + Duration::from_secs(9_999), &never));
    }

    #[test]
    fn limits_hold_whatever_an_answer_says() {
        let settings = Settings { min_ttl: Duration::from_secs(2), max_ttl: Duration::from_secs(7), ..Settings::default() };
        assert_eq!([0, 3, 600].map(|ttl| settings.holds(Duration::from_secs(ttl)).as_secs()), [2, 3, 7]);
    }
}
