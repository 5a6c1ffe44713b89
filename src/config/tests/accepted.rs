//! What files may say, and what it comes to.

use super::*;
use crate::units::OrAuto;

#[test]
fn nothing_is_the_defaults() {
    for yaml in ["", "\n", "# only a comment\n", "---\n", "~", "{}", "\u{feff}", "...\n", "retries: ~\nlisten:\nreplicas: null\n"] {
        assert_eq!(load_str(yaml, "r.yaml").unwrap(), Config::default(), "{yaml:?}");
    }
}

#[test]
fn every_key_can_be_set() {
    let yaml = "
listen: ':9000'
admin: localhost:9001
admin_token: sesame
max_connections: 1
worker_threads: 3
replicas:
  - http://10.0.0.1:8000
  - http://10.0.0.2;weight=2;name=b;models=x|y
  - {url: 'HTTP://[fe80::1]:8000/', weight: \"3\", models: [org/model-1, 'm:2']}
  - url: http://gpu_4
    name: on
    models: one
  - dns://vllm:8000
  - {url: dns://_http._tcp.vllm.default.svc.cluster.local, weight: 3, models: [one]}
  - dns://b:80;drain=true
  - {url: http://c, drain: true}
  - http://d;drain=false
dns_servers: [127.0.0.1, '[::1]:5353']
dns_min_ttl: 2s
dns_max_ttl: 1m
dns_forget_after: 5m
upstream_api_key: sk-1
health_check_path: /live?deep=1
health_check_interval: 500ms
health_check_timeout: 1s 500ms
health_check_rise: 1
health_check_fall: 5
eject_time: 0
eject_time_max: 1m
eject_failures: 1
eject_error_percent: 100
eject_error_window: 1m
eject_error_volume: 1
busy_time: 2s
busy_time_max: 1m
slow_start: 0s
engine_metrics_interval: 0s
engine_metrics_timeout: 500ms
engine_metrics_max_bytes: 1MiB
strategy: round_robin
prefix_length: 1024
concurrency_threshold: 0x10
overflow: next_choices
routers: 1000
index_memory: 32MiB
prefix_includes: [media, tools]
hash_seed: 18446744073709551615
max_outstanding: 32
max_outstanding_total: 1000
queue_max_requests: 0
queue_max_bytes: 1GiB
queue_timeout: 0s
queue_aging: 100ms
hold: 1s
hold_timeout: 1ms
hold_max_requests: 4096
response_headers: False
expose_paths: [/sleep, /debug/*]
retries: 0
retry_budget_percent: 100
retry_budget_floor: 0
replay_buffer: 1GiB
max_body: 1 MiB
max_header_bytes: 8192
h2_max_streams: 10
h2_max_resets: 20
max_headers: 30
max_json_depth: 40
max_buffered_bytes: 2GiB
buffer_timeout: 5s
body_total_timeout: 6s
header_timeout: 1s
write_timeout: 90s
body_timeout: 2s
connect_timeout: 3s
first_byte_timeout: 1h
idle_timeout: 0
hold_head: 0s
pool_idle_timeout: 4900ms
pool_max_idle: 0
reload_interval: 0s
drain_delay: 5s
drain_timeout: 1m
metrics: false
recent_decisions: 9
metrics_max_models: 7
log_level: warn
log_format: json
access_log: false
access_log_sample_ratio: 0.125
access_log_slower_than: 2s
otlp_endpoint: http://collector:4318/otlp/
otlp_service_name: edge-router
trace_sample_ratio: 0.25
";
    let config = load_str(yaml, "r.yaml").unwrap();
    assert_eq!(config.listen.to_string(), "0.0.0.0:9000");
    assert_eq!(config.admin.to_string(), "127.0.0.1:9001");
    assert_eq!(
        config.replicas,
        [
            replica("10.0.0.1:8000", "10.0.0.1:8000", 1, &[]),
            replica("b", "10.0.0.2:80", 2, &["x", "y"]),
            replica("[fe80::1]:8000", "[fe80::1]:8000", 3, &["org/model-1", "m:2"]),
            replica("on", "gpu_4:80", 1, &["one"]),
            ReplicaSpec { drain: true, ..replica("c", "c:80", 1, &[]) },
            replica("d", "d:80", 1, &[]),
        ]
    );
    assert_eq!(
        config.sources,
        [
            source("dns://vllm:8000", Question::Addresses { host: "vllm".to_owned(), port: 8_000 }, 1, &[]),
            source(
                "dns://_http._tcp.vllm.default.svc.cluster.local",
                Question::Service("_http._tcp.vllm.default.svc.cluster.local".to_owned()),
                3,
                &["one"]
            ),
            Source { drain: true, ..source("dns://b:80", Question::Addresses { host: "b".to_owned(), port: 80 }, 1, &[]) },
        ]
    );
    assert_eq!(config.resolver.servers.iter().map(ToString::to_string).collect::<Vec<_>>(), ["127.0.0.1:53", "[::1]:5353"]);
    assert_eq!(config.upstream.api_key, Some(crate::units::Secret::new("sk-1".to_owned())));
    assert_eq!(config.routing.strategy, StrategyName::RoundRobin);
    assert_eq!(config.routing.concurrency_threshold, OrAuto::Fixed(ConcurrencyThreshold::clamped(16)));
    assert_eq!(config.routing.overflow, OrAuto::Fixed(Overflow::NextChoices));
    assert_eq!(config.key.hash_seed, u64::MAX);
    assert_eq!(config.key.prefix_length, OrAuto::Fixed(PrefixLength::clamped(1_024)));
    assert_eq!(config.key.includes, Includes { tools: true, media: true });
    assert_eq!(config.proxy.expose_paths, ["/sleep", "/debug/*"]);
    assert_eq!(config.telemetry.level, Level::WARN);
    assert_eq!(config.telemetry.format, LogFormat::Json);
    assert_eq!(config.otlp.endpoint.as_ref().map(ToString::to_string), Some("http://collector:4318/otlp/v1/traces".to_owned()));
    assert_eq!((config.otlp.service_name.as_str(), config.otlp.sample_ratio.millionths()), ("edge-router", 250_000));

    // That no setter reaches for another's field shows in the print: every line differs from the default's.
    let (printed, default) = (config.render(), Config::default().render());
    let same: Vec<&str> = printed.lines().filter(|line| default.lines().any(|other| other == *line)).collect();
    assert_eq!(same, [""; 0]);
    assert!(!printed.contains("sk-1") && !printed.contains("sesame"));
    let again = load_str(&printed, "printed").unwrap();
    let upstream = crate::upstream::Settings { api_key: None, ..config.upstream.clone() };
    let expected = Config { upstream, access: crate::admin::Settings::default(), ..config.clone() };
    assert_eq!(again, expected);

    // That a reload misses no change shows here too, where each key has another value than its default.
    let (old, others) = (Config::default(), |change| KEYS.iter().filter(move |key| key.change == change).map(|key| key.name));
    let (followed, changes) = old.follow(&config).unwrap();
    assert_eq!(changes.applied, others(Change::Live).collect::<Vec<_>>());
    assert_eq!(changes.needs_restart, others(Change::Restart).collect::<Vec<_>>());
    for key in KEYS {
        let source = if key.change == Change::Live { &config } else { &old };
        assert!(key.kind.is_same(&followed, source), "{}", key.name);
    }
    assert_eq!(config.follow(&config).unwrap(), (config.clone(), Changes::default()));
    let (_, back) = config.follow(&old).unwrap();
    assert_eq!(back, changes);
}

#[test]
fn what_is_worked_out_is_called_auto_everywhere() {
    let given = "prefix_length: 4096\nconcurrency_threshold: 64\noverflow: least_loaded\n";
    for auto in ["auto", "AUTO", "'auto'"] {
        let environment =
            [("PREFIX_ROUTER_PREFIX_LENGTH", auto), ("PREFIX_ROUTER_CONCURRENCY_THRESHOLD", auto), ("PREFIX_ROUTER_OVERFLOW", "auto")];
        let flags = [("--prefix-length", "prefix_length", auto), ("--concurrency-threshold", "concurrency_threshold", auto)];
        let yaml = format!("prefix_length: {auto}\nconcurrency_threshold: {auto}\noverflow: auto\n");
        assert_eq!(load_str(&yaml, "r.yaml").unwrap(), Config::default(), "{auto}");
        if !auto.starts_with('\'') {
            assert_eq!(load_settings(sources(None, &environment, &[])).unwrap(), Config::default(), "{auto}");
            assert_eq!(load_settings(sources(None, &[], &flags)).unwrap(), Config::default(), "{auto}");
        }
    }
    let (fixed, auto) = (load_str(given, "r.yaml").unwrap(), Config::default());
    assert!(given.lines().all(|line| fixed.render().lines().any(|other| other == line)));
    let replicas = vec![replica("a", "a:80", 1, &[])];
    let (fixed, auto) = (Config { replicas: replicas.clone(), ..fixed }, Config { replicas, ..auto });
    for (from, to) in [(&fixed, &auto), (&auto, &fixed)] {
        let (followed, changes) = from.follow(to).unwrap();
        assert_eq!((&followed, changes.applied), (to, vec!["prefix_length", "concurrency_threshold", "overflow"]));
    }
}

#[test]
fn a_secret_that_changes_is_a_change_that_shows_nothing_of_it() {
    let config = |key: &str| load_str(&format!("upstream_api_key: {key}\nreplicas: [http://a]\n"), "r.yaml").unwrap();
    let (_, changes) = config("one").follow(&config("two")).unwrap();
    assert_eq!((changes.applied, changes.needs_restart), (vec!["upstream_api_key"], vec![]));
}

#[test]
fn what_is_kept_must_go_with_what_is_new() {
    let old = load_str("listen: 127.0.0.1:8000\nreplicas: [http://127.0.0.1:1]\n", "r.yaml").unwrap();
    let new = load_str("listen: 127.0.0.1:9000\nreplicas: [http://127.0.0.1:8000]\n", "r.yaml").unwrap();
    let errors = old.follow(&new).unwrap_err().to_string();
    assert!(errors.contains("127.0.0.1:8000 is where this router itself listens"), "{errors}");
}

#[test]
fn yaml_in_other_dress() {
    let flow = r#"{"replicas": ["http://a", {"url": "http://b", "weight": 2}], "retries": 1}"#;
    assert_eq!(load_str(flow, "r.yaml").unwrap().replicas[1], replica("b", "b:80", 2, &[]));
    let one_text = load_str("replicas: http://a, http://b;weight=2\nexpose_paths: /a,/b*\n", "r.yaml").unwrap();
    assert_eq!(one_text.replicas, [replica("a", "a:80", 1, &[]), replica("b", "b:80", 2, &[])]);
    assert_eq!(one_text.proxy.expose_paths, ["/a", "/b*"]);
    let dns = load_str("replicas: dns://a.:80;weight=2;models=x|y, http://b\n", "r.yaml").unwrap();
    assert_eq!(dns.sources, [source("dns://a.:80", Question::Addresses { host: "a.".to_owned(), port: 80 }, 2, &["x", "y"])]);
    assert_eq!(dns.replicas, [replica("b", "b:80", 1, &[])]);
    assert_eq!(load_str(&dns.render(), "printed").unwrap(), dns, "{}", dns.render());
    for number in ["'7'", "\"7\"", "!!int 7", "!!str 7", "+7", "0x7", "&anchor 7"] {
        assert_eq!(load_str(&format!("retries: {number}"), "r.yaml").unwrap().proxy.retries, 7, "{number}");
    }
    for name in ["1", "on", "1e3", "0x1", "'null'", "true", "12:30", "a:b"] {
        let config = load_str(&format!("replicas: [{{url: http://a, name: {name}}}]"), "r.yaml").unwrap();
        assert_eq!(config.replicas[0].name, name.trim_matches('\''));
        assert_eq!(load_str(&config.render(), "printed").unwrap(), config, "{}", config.render());
    }
}
