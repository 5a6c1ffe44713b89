//! The table of all settings: each is described once, and file, environment, flags, `check` and the reference all
//! read it here. It holds no rule that joins two settings; those are in [`super`].

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tracing::Level;

use super::Config;
use super::errors::Report;
use super::kinds::{Field, Kind, is_path};
use super::words::{self, Word};
use super::yaml::Node;
use crate::request::Includes;
use crate::routing::{Overflow, StrategyName};
use crate::telemetry::LogFormat;
use crate::units::{ConcurrencyThreshold, OrAuto, PrefixLength};

/// One setting.
pub(super) struct Key {
    /// Its name in a file; upper case after `PREFIX_ROUTER_`, that of its variable.
    pub(super) name: &'static str,
    /// What it means, in one line.
    pub(super) meaning: &'static str,
    /// Its default, as a file would say it. A test holds it against [`Config::default`].
    pub(super) default: &'static str,
    /// What it takes.
    pub(super) kind: Kind,
    /// When a change of it takes effect.
    pub(super) change: Change,
}

/// When a change of a setting takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// As soon as it is reloaded.
    Live,
    /// With the next start.
    Restart,
}

/// The setting of that name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

impl Key {
    /// Takes a value from any source into `config`; what is wrong goes to `report`.
    pub(super) fn set(&self, config: &mut Config, node: &Node, report: &mut Report<'_>) {
        self.kind.set(config, node, report);
    }

    /// The line (for replicas: lines) of a file that would set it to its value in `config`.
    pub(super) fn print(&self, config: &Config) -> String {
        format!("{}:{}", self.name, self.kind.print(config))
    }
}

const MAX_TIME: Duration = Duration::from_secs(24 * 3_600);
const NO_TIME: Duration = Duration::ZERO;
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

const fn key(name: &'static str, meaning: &'static str, default: &'static str, kind: Kind) -> Key {
    Key { name, meaning, default, kind, change: Change::Live }
}

/// One that is read at the start alone.
const fn fixed(name: &'static str, meaning: &'static str, default: &'static str, kind: Kind) -> Key {
    Key { name, meaning, default, kind, change: Change::Restart }
}

/// A field of [`Config`], as its kind reads and writes it. `at!(a.b)` is that field; `as` goes through the `u64` of whole
/// numbers, whose range keeps the way back from losing anything.
macro_rules! at {
    ($($field:ident).+) => { Field { get: |c| c.$($field).+, set: |c, v| c.$($field).+ = v } };
    (clone $($field:ident).+) => { Field { get: |c| c.$($field).+.clone(), set: |c, v| c.$($field).+ = v } };
    ($($field:ident).+ as $int:ty) => { Field { get: |c| c.$($field).+ as u64, set: |c, v| c.$($field).+ = v as $int } };
    (bounded or auto $($field:ident).+: $bounded:ty) => {
        Field { get: |c| c.$($field).+.fixed().map(|value| value.get()), set: |c, v| c.$($field).+ = v.map(<$bounded>::clamped).into() }
    };
}

/// A field whose type is a [`Word`].
macro_rules! word {
    ($($field:ident).+: $word:ty) => {
        Kind::Word {
            words: words::list::<$word>,
            get: |c| c.$($field).+.word(),
            set: |c, text| words::find(text).map(|value| c.$($field).+ = value).is_some(),
        }
    };
}

/// All settings, in the order of `config/reference.yaml`.
pub(super) static KEYS: &[Key] = &[
    // Where it listens, and for how many.
    fixed("listen", "Where clients connect; port 0 takes a free one.", "127.0.0.1:8080", Kind::Address(at!(listen))),
    fixed(
        "admin",
        "Where /metrics, /live, /ready and the API are served; not for the outside.",
        "127.0.0.1:8081",
        Kind::Address(at!(admin)),
    ),
    key(
        "admin_token",
        "Asked for on the admin port as `Authorization: Bearer TOKEN`, but for /metrics, /live and /ready; without it only this host is served.",
        "~",
        Kind::Secret(at!(clone access.token)),
    ),
    key(
        "max_connections",
        "Connections from clients at one time; further ones wait to be accepted.",
        "16384",
        Kind::Number(1..=1_000_000, at!(server.max_connections as usize)),
    ),
    key(
        "h2_max_streams",
        "Requests at one time on one HTTP/2 connection; its client is told so.",
        "1000",
        Kind::Number(1..=100_000, at!(server.h2_max_streams as u32)),
    ),
    key(
        "h2_max_resets",
        "An HTTP/2 connection is closed when its client takes back so many requests at once that were not taken up yet, or breaks so many.",
        "100",
        Kind::Number(1..=100_000, at!(server.h2_max_resets as usize)),
    ),
    fixed("worker_threads", "Threads that serve; 0 means one per core.", "0", Kind::Number(0..=1_024, at!(server.worker_threads as usize))),
    // The replicas.
    key(
        "replicas",
        "The engine servers: a list of URLs, or of maps with url, name, weight, models and drain; dns:// stands for all behind a name.",
        "[]",
        Kind::Replicas,
    ),
    fixed(
        "dns_servers",
        "Who is asked for the addresses behind names; without any, the servers of /etc/resolv.conf. /etc/hosts comes first in any case.",
        "[]",
        Kind::List {
            allowed: "a list of IP or IP:PORT",
            good: |text| dns_server(text).is_some(),
            field: Field {
                get: dns_servers,
                set: |c, texts| c.resolver.servers = texts.iter().filter_map(|text| dns_server(text)).collect(),
            },
        },
    ),
    key(
        "dns_min_ttl",
        "An answer of a DNS server holds at least this long, whatever it says itself; a question that failed waits at least this long.",
        "1s",
        Kind::Time(Duration::from_millis(10)..=HOUR, at!(resolver.min_ttl)),
    ),
    key(
        "dns_max_ttl",
        "And at most this long: a replica that was added under a name is found within this time.",
        "5s",
        Kind::Time(Duration::from_millis(10)..=HOUR, at!(resolver.max_ttl)),
    ),
    key(
        "dns_forget_after",
        "A name that DNS servers say is gone, or has no addresses, keeps its last ones so long; 0s means for ever.",
        "60s",
        Kind::Time(NO_TIME..=MAX_TIME, at!(resolver.forget_after)),
    ),
    key(
        "upstream_api_key",
        "Sent to every replica as `Authorization: Bearer KEY`; without it the caller's own header passes.",
        "~",
        Kind::Secret(at!(clone upstream.api_key)),
    ),
    key("health_check_path", "What is asked of a replica to learn whether it is up.", "/health", Kind::Path(at!(clone health.path))),
    key(
        "health_check_interval",
        "Time between two checks of one replica.",
        "1s",
        Kind::Time(Duration::from_millis(100)..=MINUTE, at!(health.interval)),
    ),
    key(
        "health_check_timeout",
        "A check that has no answer after this time has failed.",
        "2s",
        Kind::Time(Duration::from_millis(10)..=MINUTE, at!(health.timeout)),
    ),
    key("health_check_rise", "So many good checks in a row bring a replica up.", "2", Kind::Number(1..=100, at!(health.rise as u32))),
    key("health_check_fall", "So many failed checks in a row take a replica down.", "3", Kind::Number(1..=100, at!(health.fall as u32))),
    key(
        "eject_time",
        "How long a replica is out that is ejected: it refused a connection, or broke requests. Twice as long each further time.",
        "1s",
        Kind::Time(NO_TIME..=HOUR, at!(health.eject_time)),
    ),
    key(
        "eject_time_max",
        "And at most so long; a replica that was well for this long begins anew.",
        "30s",
        Kind::Time(NO_TIME..=HOUR, at!(health.eject_time_max)),
    ),
    key(
        "eject_failures",
        "So many requests in a row that broke, or timed out, before their first byte eject a replica.",
        "5",
        Kind::Number(1..=1_000, at!(health.eject_failures as u32)),
    ),
    key(
        "eject_error_percent",
        "So does this share of such requests, of 5xx answers without a body and of answers that broke off, among those of an eject_error_window.",
        "50",
        Kind::Number(1..=100, at!(health.error_percent as u32)),
    ),
    key(
        "eject_error_window",
        "The time over which that share is taken.",
        "10s",
        Kind::Time(Duration::from_secs(1)..=HOUR, at!(health.error_window)),
    ),
    key(
        "eject_error_volume",
        "With fewer requests than these in it the share says nothing.",
        "20",
        Kind::Number(1..=1_000_000, at!(health.error_volume as u32)),
    ),
    key(
        "busy_time",
        "How long a replica is passed over that answered 429 or 503 without a Retry-After.",
        "1s",
        Kind::Time(NO_TIME..=HOUR, at!(health.busy_time)),
    ),
    key(
        "busy_time_max",
        "And at most so long, whatever its Retry-After says.",
        "10s",
        Kind::Time(NO_TIME..=HOUR, at!(health.busy_time_max)),
    ),
    key(
        "slow_start",
        "How long a new or returned replica takes to get its full share; 0s: it has it at once.",
        "10s",
        Kind::Time(NO_TIME..=HOUR, at!(health.slow_start)),
    ),
    key(
        "engine_metrics_interval",
        "Time between two questions to one replica for its engine's metrics (GET /metrics), more or less; 0s: none is asked.",
        "2s",
        Kind::TimeOrOff(Duration::from_millis(100)..=HOUR, at!(engine_metrics.interval)),
    ),
    key(
        "engine_metrics_timeout",
        "An answer to that which is not whole after this time is none.",
        "1s",
        Kind::Time(Duration::from_millis(10)..=MINUTE, at!(engine_metrics.timeout)),
    ),
    key(
        "engine_metrics_max_bytes",
        "And a longer one is none either.",
        "4MiB",
        Kind::Size(1 << 10..=64 << 20, at!(engine_metrics.max_bytes)),
    ),
    // The choice.
    key("strategy", "How a replica is chosen for a request.", "prefix_aware", word!(routing.strategy: StrategyName)),
    key(
        "prefix_length",
        "How many characters of a prompt make its key (bytes on /invocations); auto: as many as tell the prompts of recent traffic apart.",
        "auto",
        Kind::NumberOrAuto(PrefixLength::MIN..=PrefixLength::MAX, at!(bounded or auto key.prefix_length: PrefixLength)),
    ),
    key(
        "concurrency_threshold",
        "From so many outstanding requests on a home's further requests overflow; auto: from well above what the other replicas have.",
        "auto",
        Kind::NumberOrAuto(
            ConcurrencyThreshold::MIN..=ConcurrencyThreshold::MAX,
            at!(bounded or auto routing.concurrency_threshold: ConcurrencyThreshold),
        ),
    ),
    key(
        "overflow",
        "Who takes what overflows: the least loaded of all, or the less loaded of the key's 2nd and 3rd choice; auto: the first where concurrency_threshold is a number, else the second.",
        "auto",
        word!(routing.overflow: OrAuto<Overflow>),
    ),
    key(
        "routers",
        "How many routers like this one send to the same replicas, itself included; 0 means that nobody says so.",
        "0",
        Kind::Number(0..=1_000, at!(routing.routers as u32)),
    ),
    key(
        "index_memory",
        "Memory for what cache_aware keeps in mind of what the replicas hold, all together.",
        "64MiB",
        Kind::Size(1 << 20..=64 << 30, at!(routing.index_memory)),
    ),
    key(
        "prefix_includes",
        "What belongs to the key besides text: tool definitions, digests of images and other media.",
        "[]",
        Kind::List {
            allowed: "a list of tools, media",
            good: |text| ["tools", "media"].contains(&text),
            field: Field { get: includes, set: set_includes },
        },
    ),
    key(
        "hash_seed",
        "Seeds the key and the ring; routers before the same replicas need the same one.",
        "0",
        Kind::Number(0..=u64::MAX, Field { get: |c| c.key.hash_seed, set: |c, v| c.key.hash_seed = v }),
    ),
    // Who waits.
    key(
        "max_outstanding",
        "Requests in flight on one replica, at most, whatever its weight; what finds no room waits. 0 means any number, and that nothing waits.",
        "0",
        Kind::Number(0..=1_000_000, Field { get: |c| c.admission.max_outstanding, set: |c, v| c.admission.max_outstanding = v }),
    ),
    key(
        "max_outstanding_total",
        "Requests in flight on all replicas together, from this router, at most; 0 means any number.",
        "0",
        Kind::Number(
            0..=1_000_000,
            Field { get: |c| c.admission.max_outstanding_total, set: |c, v| c.admission.max_outstanding_total = v },
        ),
    ),
    key(
        "queue_max_requests",
        "Requests that wait, at most; further ones are refused with 429.",
        "1024",
        Kind::Number(0..=1_000_000, at!(admission.queue_max_requests as usize)),
    ),
    key(
        "queue_max_bytes",
        "Bytes of the bodies of those that wait, at most; a request with which there would be more is refused with 429.",
        "256MiB",
        Kind::Size(0..=64 << 30, at!(admission.queue_max_bytes)),
    ),
    key(
        "queue_timeout",
        "How long a request waits before it is refused with 429; 0s means no limit.",
        "30s",
        Kind::Time(NO_TIME..=MAX_TIME, at!(admission.queue_timeout)),
    ),
    key(
        "queue_aging",
        "Waiting so long is worth one step of priority, so that nobody waits for ever.",
        "5s",
        Kind::Time(Duration::from_millis(1)..=HOUR, at!(admission.queue_aging)),
    ),
    key(
        "hold",
        "Under cache_aware, where nothing is limited: a request waits while the replica it should go to has prompts of so long to compute before it, and those go first that have waited longest for what they have to compute. 0s: all go at once.",
        "250ms",
        Kind::Time(NO_TIME..=MINUTE, at!(admission.hold)),
    ),
    key(
        "hold_timeout",
        "How long a request waits for that at most; then it goes all the same.",
        "30s",
        Kind::Time(Duration::from_millis(1)..=HOUR, at!(admission.hold_timeout)),
    ),
    key(
        "hold_max_requests",
        "Requests that wait for that at most, within queue_max_bytes; where there are more, those go at once whose turn would be next.",
        "256",
        Kind::Number(1..=4_096, at!(admission.hold_max_requests as usize)),
    ),
    // The request path.
    key(
        "response_headers",
        "Whether responses name replica and reason (x-prefix-router-replica, x-prefix-router-reason).",
        "true",
        Kind::Switch(at!(proxy.response_headers)),
    ),
    key(
        "expose_paths",
        "Paths that clients may reach besides the inference API.",
        "[]",
        Kind::List {
            allowed: "a list of paths that begin with / and may end in *",
            good: |text| {
                let fixed = text.strip_suffix('*').unwrap_or(text);
                is_path(fixed) && !fixed.contains(['*', '?'])
            },
            field: at!(clone proxy.expose_paths),
        },
    ),
    key("retries", "Further tries of a request whose answer has not begun.", "2", Kind::Number(0..=10, at!(proxy.retries as u32))),
    key(
        "retry_budget_percent",
        "Retries after a 429, a 503 or an ejection, in percent of requests.",
        "20",
        Kind::Number(0..=100, at!(proxy.retry_budget.percent as u32)),
    ),
    key(
        "retry_budget_floor",
        "Such retries per second that are allowed in any case.",
        "3",
        Kind::Number(0..=1_000, at!(proxy.retry_budget.floor as u32)),
    ),
    key("replay_buffer", "A larger request body is not tried again.", "16MiB", Kind::Size(0..=1 << 30, at!(proxy.replay_buffer))),
    key("max_body", "A larger request body is refused with 413.", "64MiB", Kind::Size(1 << 10..=4 << 30, at!(proxy.max_body))),
    key(
        "max_header_bytes",
        "A larger request head is refused with 431.",
        "64KiB",
        Kind::Size(1 << 10..=256 << 10, at!(proxy.max_header_bytes)),
    ),
    key(
        "max_headers",
        "A request head with more fields is refused with 431.",
        "100",
        Kind::Number(10..=250, at!(proxy.max_headers as usize)),
    ),
    key(
        "max_json_depth",
        "A body that is nested deeper is placed by its raw bytes; it is not refused.",
        "256",
        Kind::Number(8..=1_000_000, at!(key.max_json_depth as usize)),
    ),
    key(
        "max_buffered_bytes",
        "What the bodies of all requests together may hold in memory; at least max_body. Where there is no room, reading waits.",
        "1GiB",
        Kind::Size(1 << 10..=1 << 40, at!(proxy.max_buffered_bytes)),
    ),
    key(
        "buffer_timeout",
        "How long a body waits for room in memory before it is refused with 503; 0s: not at all.",
        "10s",
        Kind::Time(NO_TIME..=HOUR, at!(proxy.buffer_timeout)),
    ),
    key(
        "header_timeout",
        "Time for a request's head to arrive, and so how long an idle client connection is kept; 0s means none.",
        "75s",
        Kind::Time(NO_TIME..=MAX_TIME, at!(server.header_timeout)),
    ),
    key(
        "write_timeout",
        "A client that takes nothing of its answer for this long is cut off; 0s means never.",
        "300s",
        Kind::Time(NO_TIME..=MAX_TIME, at!(server.write_timeout)),
    ),
    key(
        "body_timeout",
        "Time between two pieces of a request's body; 0s means none.",
        "30s",
        Kind::Time(NO_TIME..=MAX_TIME, at!(proxy.body_timeout)),
    ),
    key(
        "body_total_timeout",
        "Time for all of a request's body to arrive; 0s means none.",
        "600s",
        Kind::Time(NO_TIME..=MAX_TIME, at!(proxy.body_total_timeout)),
    ),
    key(
        "connect_timeout",
        "Time to connect to a replica; 0s means none.",
        "1s",
        Kind::Time(NO_TIME..=MAX_TIME, at!(upstream.connect_timeout)),
    ),
    key(
        "first_byte_timeout",
        "Time for a response's first byte to arrive; 0s means none.",
        "600s",
        Kind::Time(NO_TIME..=MAX_TIME, at!(proxy.first_byte_timeout)),
    ),
    key(
        "idle_timeout",
        "Time between two pieces of a response's body; 0s means none.",
        "300s",
        Kind::Time(NO_TIME..=MAX_TIME, at!(proxy.idle_timeout)),
    ),
    key(
        "hold_head",
        "How long a response's head waits for its first byte, so that another replica can still be tried; 0s: not at all.",
        "30s",
        Kind::Time(NO_TIME..=MAX_TIME, at!(proxy.hold_head)),
    ),
    key(
        "pool_idle_timeout",
        "How long an idle connection to a replica is kept; uvicorn closes its side at 5 s.",
        "4s",
        Kind::Time(NO_TIME..=Duration::from_millis(4_900), at!(upstream.pool_idle_timeout)),
    ),
    key("pool_max_idle", "Idle connections kept per replica.", "1024", Kind::Number(0..=65_536, at!(upstream.pool_max_idle as usize))),
    // Reloads, the end, and what is written meanwhile.
    key(
        "reload_interval",
        "How often the configuration file is looked at; what has changed there is applied. 0s: only on SIGHUP and by the API.",
        "2s",
        Kind::Time(NO_TIME..=HOUR, at!(reload_interval)),
    ),
    key(
        "drain_delay",
        "How long all is served as before after SIGTERM, while /ready and /health say 503 already.",
        "0s",
        Kind::Time(NO_TIME..=HOUR, at!(server.drain_delay)),
    ),
    key(
        "drain_timeout",
        "How long running requests may take after SIGTERM and drain_delay.",
        "30s",
        Kind::Time(NO_TIME..=HOUR, at!(server.drain_timeout)),
    ),
    fixed(
        "metrics",
        "Whether /metrics is served on the admin port, and requests are counted for it.",
        "true",
        Kind::Switch(at!(metrics.on)),
    ),
    key(
        "recent_decisions",
        "Requests that are remembered with where they went and why, for the page and the API of the admin port; no prompt is. 0: none.",
        "512",
        Kind::Number(0..=10_000, at!(metrics.recent_decisions as usize)),
    ),
    fixed(
        "metrics_max_models",
        "Models with series of their own, at most, of those that replicas list; all others are one, other.",
        "100",
        Kind::Number(0..=10_000, at!(metrics.max_models as usize)),
    ),
    key("log_level", "What is logged.", "info", word!(telemetry.level: Level)),
    fixed("log_format", "How it is logged.", "text", word!(telemetry.format: LogFormat)),
    key(
        "access_log",
        "Whether each request is logged, in one line without any of its text.",
        "true",
        Kind::Switch(at!(telemetry.access_log)),
    ),
    key(
        "access_log_sample_ratio",
        "Of the requests that went well, the share that is logged; those that failed always are.",
        "1",
        Kind::Share(at!(telemetry.access_log_sample)),
    ),
    key(
        "access_log_slower_than",
        "Requests that went well and took less time are not logged.",
        "0s",
        Kind::Time(NO_TIME..=HOUR, at!(telemetry.access_log_slower_than)),
    ),
    // Traces.
    fixed(
        "otlp_endpoint",
        "Where a span of each request goes: a collector's OTLP endpoint for HTTP, to which /v1/traces is added; without it nothing is traced.",
        "~",
        Kind::Endpoint(at!(clone otlp.endpoint)),
    ),
    fixed("otlp_service_name", "What this router is called in traces.", "prefix-router", Kind::Name(at!(clone otlp.service_name))),
    fixed(
        "trace_sample_ratio",
        "Of the requests whose client does not say whether they are traced, the share that is.",
        "1",
        Kind::Share(at!(otlp.sample_ratio)),
    ),
];

fn dns_servers(config: &Config) -> Vec<String> {
    config.resolver.servers.iter().map(SocketAddr::to_string).collect()
}

/// An address with a port, or with that of DNS.
fn dns_server(text: &str) -> Option<SocketAddr> {
    let with_port = text.parse::<SocketAddr>().ok().filter(|address| address.port() != 0);
    with_port.or_else(|| text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 53)))
}

fn includes(config: &Config) -> Vec<String> {
    let Includes { tools, media } = config.key.includes;
    [("tools", tools), ("media", media)].iter().filter(|(_, on)| *on).map(|(name, _)| (*name).to_owned()).collect()
}

fn set_includes(config: &mut Config, names: Vec<String>) {
    let has = |name: &str| names.iter().any(|other| other == name);
    config.key.includes = Includes { tools: has("tools"), media: has("media") };
}
