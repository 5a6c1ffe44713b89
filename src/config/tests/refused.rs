//! What is wrong with files, each error as its reader sees it.

use super::*;

#[test]
fn values_that_are_not_allowed() {
    let number = "prefix_length: X; allowed: auto, or 1024 to 65536";
    let cases = [
        ("prefix_length: 512", number, "512 is out of range"),
        ("prefix_length: 65537", number, "65537 is out of range"),
        ("prefix_length: -1", number, "-1 is out of range"),
        ("prefix_length: 99999999999999999999999", number, "99999999999999999999999 is out of range"),
        ("prefix_length: 4_096", number, "4_096 is neither auto nor a whole number"),
        ("prefix_length: 4096.0", number, "4096.0 is neither auto nor a whole number"),
        ("prefix_length: 4096 characters", number, "\"4096 characters\" is neither auto nor a whole number"),
        ("prefix_length: ''", number, "\"\" is neither auto nor a whole number"),
        ("prefix_length: automatic", number, "automatic is neither auto nor a whole number"),
        ("prefix_length: [4096]", number, "a list is not allowed here"),
        ("prefix_length: {a: 1}", number, "a map is not allowed here"),
        ("concurrency_threshold: 0", "concurrency_threshold: X; allowed: auto, or 1 to 1024", "0 is out of range"),
        ("overflow: home", "overflow: X; allowed: auto, least_loaded, next_choices", "home is not known here"),
        ("routers: auto", "routers: X; allowed: 0 to 1000", "auto is not a whole number"),
        ("hash_seed: -1", "hash_seed: X; allowed: 0 to 18446744073709551615", "-1 is out of range"),
        ("max_body: 5GiB", "max_body: X; allowed: 1KiB to 4GiB", "5GiB is out of range"),
        ("max_body: 64M", "max_body: X; allowed: 1KiB to 4GiB", "64M is not a size in B, KiB, MiB, GiB, kB, MB or GB"),
        ("replay_buffer: 2GiB", "replay_buffer: X; allowed: 0 to 1GiB", "2GiB is out of range"),
        ("hold_head: 30", "hold_head: X; allowed: 0s to 24h", "30 has no unit, such as s or ms"),
        ("hold_head: 25h", "hold_head: X; allowed: 0s to 24h", "25h is out of range"),
        ("hold_head: soon", "hold_head: X; allowed: 0s to 24h", "soon is not a time"),
        ("pool_idle_timeout: 5s", "pool_idle_timeout: X; allowed: 0s to 4900ms", "5s is out of range"),
        ("health_check_interval: 0", "health_check_interval: X; allowed: 100ms to 60s", "0 is out of range"),
        ("engine_metrics_interval: 99ms", "engine_metrics_interval: X; allowed: 0s, or 100ms to 1h", "99ms is out of range"),
        ("engine_metrics_interval: off", "engine_metrics_interval: X; allowed: 0s, or 100ms to 1h", "off is not a time"),
        ("engine_metrics_timeout: 0s", "engine_metrics_timeout: X; allowed: 10ms to 60s", "0s is out of range"),
        ("engine_metrics_max_bytes: 1GiB", "engine_metrics_max_bytes: X; allowed: 1KiB to 64MiB", "1GiB is out of range"),
        ("trace_sample_ratio: 1.1", "trace_sample_ratio: X; allowed: 0 to 1", "1.1 is out of range"),
        ("trace_sample_ratio: NaN", "trace_sample_ratio: X; allowed: 0 to 1", "NaN is out of range"),
        ("trace_sample_ratio: half", "trace_sample_ratio: X; allowed: 0 to 1", "half is not a number"),
        ("otlp_service_name: ''", "otlp_service_name: X; allowed: 1 to 128 visible ASCII characters", "\"\" is not a name"),
        (
            "otlp_endpoint: https://collector:4318",
            "otlp_endpoint: X; allowed: http://HOST:PORT, with a path or without",
            "https://collector:4318 is https, which is not spoken here: let a collector near this router take the spans over http, and pass them on",
        ),
        (
            "otlp_endpoint: http://collector:4318/v1/traces",
            "otlp_endpoint: X; allowed: http://HOST:PORT, with a path or without",
            "http://collector:4318/v1/traces ends in /v1/traces, which is added here",
        ),
        (
            "otlp_endpoint: collector:4318",
            "otlp_endpoint: X; allowed: http://HOST:PORT, with a path or without",
            "collector:4318 is not a URL of http",
        ),
        (
            "otlp_endpoint: http://user:pw@collector:4318",
            "otlp_endpoint: X; allowed: http://HOST:PORT, with a path or without",
            "http://…@collector:4318 has more than a host, a port and a path",
        ),
        ("access_log: 1", "access_log: X; allowed: true, false", "1 is neither true nor false"),
        ("log_level: loud", "log_level: X; allowed: error, warn, info, debug, trace", "loud is not known here"),
        (
            "strategy: prefix-aware",
            "strategy: X; allowed: prefix_aware, cache_aware, least_outstanding, round_robin, random",
            "prefix-aware is not known here",
        ),
        (
            "listen: 8080",
            "listen: X; allowed: IP:PORT, :PORT for all IPv4 addresses, or localhost:PORT",
            "8080 is not an address with a port",
        ),
        ("health_check_path: health", "health_check_path: X; allowed: a path that begins with /", "health is not a path"),
        ("prefix_includes: [tools, text]", "prefix_includes: X; allowed: a list of tools, media", "text is not allowed here"),
        (
            "expose_paths: [/a*b]",
            "expose_paths: X; allowed: a list of paths that begin with / and may end in *",
            "/a*b is not allowed here",
        ),
        (
            "expose_paths: [[/a]]",
            "expose_paths: X; allowed: a list of paths that begin with / and may end in *",
            "a list is not allowed here",
        ),
        (
            "expose_paths: {a: b}",
            "expose_paths: X; allowed: a list of paths that begin with / and may end in *",
            "a map is not allowed here",
        ),
        (
            "expose_paths: [~]",
            "expose_paths: X; allowed: a list of paths that begin with / and may end in *",
            "nothing is not allowed here",
        ),
    ];
    for (yaml, form, problem) in cases {
        wrong(&format!("\n{yaml}\n"), &[&format!("r.yaml:2: {}", form.replace('X', problem))]);
    }
}

#[test]
fn replicas_that_are_none() {
    let url = "; allowed: http://HOST:PORT (80 if not given), dns://NAME:PORT or dns://_SERVICE._PROTO.NAME";
    for (text, problem) in [
        ("https://a", "https://a asks for TLS, and TLS to replicas is not supported"),
        ("a:8000", "a:8000 does not begin with http:// or dns://"),
        ("ftp://a", "ftp://a does not begin with http:// or dns://"),
        ("http://", "http:// has no host"),
        ("http://:80", "http://:80 has no host"),
        ("http://a/v1", "http://a/v1 has the path /v1, but each request brings its own"),
        ("http://a?b", "\"http://a?b\" has a query or fragment, which a replica's URL cannot have"),
        ("http://a/?b", "\"http://a/?b\" has a query or fragment, which a replica's URL cannot have"),
        ("http://me:secret@a", "http://…@a holds a user name or password, which is not supported (see upstream_api_key)"),
        ("http://::1:80", "http://::1:80 has several colons; an IPv6 address stands in brackets, as in http://[::1]:8000"),
        ("http://[::1", "http://[::1 lacks the ] of an IPv6 address"),
        ("http://[::g]", "http://[::g] has no IPv6 address between its brackets"),
        ("http://[::1]80", "http://[::1]80 has something other than :PORT after its ]"),
        ("http://a:", "\"http://a:\" has a port that is not a number from 1 to 65535"),
        ("http://a:0", "http://a:0 has a port that is not a number from 1 to 65535"),
        ("http://a:65536", "http://a:65536 has a port that is not a number from 1 to 65535"),
        ("http://a:+80", "http://a:+80 has a port that is not a number from 1 to 65535"),
        ("http://a b", "\"http://a b\" has a host with other characters than letters, digits, -, . and _, or too long a one"),
        ("dns+srv://a", "dns+srv://a does not begin with http:// or dns:// (for SRV records: dns://_SERVICE._PROTO.NAME)"),
        ("dns+http://a:80", "dns+http://a:80 does not begin with http:// or dns://"),
        ("dns://a", "dns://a has neither a port nor the form _SERVICE._PROTO.NAME, by which SRV records say the port"),
        ("dns://_http.a", "dns://_http.a has neither a port nor the form _SERVICE._PROTO.NAME, by which SRV records say the port"),
        ("dns://_http._tcp", "dns://_http._tcp has neither a port nor the form _SERVICE._PROTO.NAME, by which SRV records say the port"),
        ("dns://_http._tcp.a:80", "dns://_http._tcp.a:80 names a service, whose ports stand in its SRV records; leave out :80"),
        ("dns://10.0.0.1:80", "dns://10.0.0.1:80 holds an address, of which there is nothing to ask; write http:// before it"),
        ("dns://[::1]:80", "dns://[::1]:80 holds an address, of which there is nothing to ask; write http:// before it"),
        ("dns://a..b:80", "dns://a..b:80 has an empty part between two dots"),
        ("dns://:80", "dns://:80 has no host"),
        ("dns://a:80/x", "dns://a:80/x has the path /x, but each request brings its own"),
        ("http://ü", "http://ü has a host with other characters than letters, digits, -, . and _, or too long a one"),
    ] {
        wrong(&format!("replicas:\n  - '{text}'\n"), &[&format!("r.yaml:2: replicas: url: {problem}{url}")]);
    }
    let fields = [
        ("{name: a}", "url: missing; allowed: http://HOST:PORT (80 if not given), dns://NAME:PORT or dns://_SERVICE._PROTO.NAME"),
        ("{url: [http://a]}", "url: a list is not allowed here; allowed: a text"),
        ("{url: http://a, weight: 0}", "weight: 0 is out of range; allowed: 1 to 100"),
        ("{url: http://a, weight: 2.0}", "weight: 2.0 is not a whole number; allowed: 1 to 100"),
        ("{url: http://a, drain: maybe}", "drain: maybe is neither true nor false; allowed: true, false"),
        ("http://a;drain=1", "http://a: drain: 1 is neither true nor false; allowed: true, false"),
        ("{url: http://a, wieght: 2}", "wieght: unknown; the nearest is weight; allowed: url, name, weight, models, drain"),
        ("{url: http://a, name: a b}", "name: \"a b\" is not a name; allowed: 1 to 128 visible ASCII characters"),
        ("{url: http://a, models: ['']}", "models: \"\" is not a model's name; allowed: a name without spaces"),
        ("{url: http://a, models: [[]]}", "models: a list is not a model's name"),
        ("http://a;weight=0", "http://a: weight: 0 is out of range; allowed: 1 to 100"),
        ("http://a;url=b", "http://a: url: unknown; the nearest is drain; allowed: name, weight, models, drain"),
        ("http://a;weight=1;weight=2", "http://a: weight: given twice; allowed: once"),
        (
            "http://a;2",
            "http://a: 2 has no =; allowed: http://HOST:PORT (80 if not given), dns://NAME:PORT or dns://_SERVICE._PROTO.NAME, then any of ;weight=1 to 100 ;name=NAME ;models=A|B ;drain=true",
        ),
        (
            "[a]",
            "a list stands where a replica belongs; allowed: http://HOST:PORT (80 if not given), dns://NAME:PORT or dns://_SERVICE._PROTO.NAME, then any of ;weight=1 to 100 ;name=NAME ;models=A|B ;drain=true",
        ),
    ];
    for (item, problem) in fields {
        wrong(&format!("replicas:\n  - {item}\n"), &[&format!("r.yaml:2: replicas: {problem}")]);
    }
    let name = "name: a DNS name stands for many replicas, and each is called by its address; allowed: no name";
    wrong("replicas: [{url: dns://a:80, name: b}]", &[&format!("r.yaml:1: replicas: {name}")]);
    wrong("replicas: ['dns://a:80;name=b']", &[&format!("r.yaml:1: replicas: dns://a:80: {name}")]);
    wrong(
        "replicas:\n  - dns://a:80\n  - {url: dns://a:80, weight: 2}\n",
        &["r.yaml:3: replicas: dns://a:80 is given twice on lines 2 and 3; allowed: once"],
    );
    for (one, other, what) in [
        ("dns://a:1", "dns://A:1", "dns://A:1 is given twice on lines 2 and 3; allowed: once"),
        ("dns://a.:1", "dns://a:1", "dns://a:1 is given twice on lines 2 and 3; allowed: once"),
        ("dns://_http._tcp.a.", "dns://_HTTP._tcp.a", "dns://_HTTP._tcp.a is given twice on lines 2 and 3; allowed: once"),
        ("http://gpu.test.:1", "http://gpu.test:1", "the address gpu.test:1 is given twice on lines 2 and 3; allowed: distinct addresses"),
        ("http://gpu:80", "http://gpu:080", "the address gpu:080 is given twice on lines 2 and 3; allowed: distinct addresses"),
        ("http://[::1]:1", "http://[0::1]:1", "the address [0::1]:1 is given twice on lines 2 and 3; allowed: distinct addresses"),
    ] {
        wrong(&format!("replicas:\n  - {one}\n  - {other}\n"), &[&format!("r.yaml:3: replicas: {what}")]);
    }
    wrong(
        "replicas:\n  - http://a\n  - {url: http://b, name: a}\n  - http://A:80\n",
        &[
            "r.yaml:3: replicas: the name a is given twice on lines 2 and 3; allowed: distinct names",
            "r.yaml:4: replicas: the address A:80 is given twice on lines 2 and 4; allowed: distinct addresses",
        ],
    );
}

#[test]
fn dns_settings() {
    wrong("dns_servers: [a]", &["r.yaml:1: dns_servers: a is not allowed here; allowed: a list of IP or IP:PORT"]);
    wrong("dns_servers: '10.0.0.1:0'", &["r.yaml:1: dns_servers: 10.0.0.1:0 is not allowed here; allowed: a list of IP or IP:PORT"]);
    wrong("dns_min_ttl: 0", &["r.yaml:1: dns_min_ttl: 0 is out of range; allowed: 10ms to 1h"]);
    let crossed = "dns_min_ttl is 1s and dns_max_ttl 500ms; allowed: a minimum up to the maximum";
    wrong("dns_max_ttl: 500ms", &[&format!("r.yaml:1: dns_max_ttl: {crossed}")]);
}

#[test]
fn room_for_no_body() {
    let crossed = "max_body is 2GiB and max_buffered_bytes 1GiB; allowed: room for at least one body";
    wrong("max_body: 2GiB", &[&format!("r.yaml:1: max_body: {crossed}")]);
    let crossed = "max_body is 64MiB and max_buffered_bytes 63MiB; allowed: room for at least one body";
    wrong("max_body: 64MiB\nmax_buffered_bytes: 63MiB", &[&format!("r.yaml:2: max_buffered_bytes: {crossed}")]);
    wrong("max_body: 2GiB\nmax_buffered_bytes: 2GiB", &["nothing is wrong"]);
}

#[test]
fn unknown_keys_get_the_nearest_name() {
    wrong("prefix_lenght: 4096", &["r.yaml:1: prefix_lenght: unknown key; the nearest is prefix_length"]);
    wrong("threshold: 4", &["r.yaml:1: threshold: unknown key; the nearest is concurrency_threshold"]);
    wrong("Routing_Config: {}", &["r.yaml:1: Routing_Config: unknown key; the nearest is RoutingConfig"]);
}

#[test]
fn all_errors_come_together_in_the_order_of_lines() {
    // After an error of syntax the values are not looked at: half a file would lead to false errors.
    wrong(
        "retries: 11\nretries: 2\nhash_seed: *x\n",
        &[
            "r.yaml:2: retries: given twice, on lines 1 and 2; allowed: once",
            "r.yaml:3: column 12: not YAML: while parsing node, found unknown anchor",
        ],
    );
    wrong(
        "retries: 11\nretries: 2\nretires: 1\n? [a]\n: 1\nhash_seed: &x 1\npool_max_idle: *x\nlisten: !here 1\n<<: {}\nmax_body: 0\n",
        &[
            "r.yaml:1: retries: 11 is out of range; allowed: 0 to 10",
            "r.yaml:2: retries: given twice, on lines 1 and 2; allowed: once",
            "r.yaml:3: retires: unknown key; the nearest is retries",
            "r.yaml:4: a list stands where a key belongs",
            "r.yaml:7: an alias (*) is not supported; write the value out",
            "r.yaml:8: the tag !here is not supported; leave it out",
            "r.yaml:9: <<: merge keys are not supported; write the keys out",
            "r.yaml:10: max_body: 0 is out of range; allowed: 1KiB to 4GiB",
        ],
    );
}

#[test]
fn files_that_are_no_map() {
    let allowed = "stands at the top level; allowed: lines of the form KEY: VALUE";
    wrong("- a\n", &[&format!("r.yaml:1: a list {allowed}")]);
    wrong("\nretries=2\n", &[&format!("r.yaml:2: a text {allowed}")]);
    wrong("a: 1\n---\nb: 2\n", &["r.yaml:2: a second document begins here; allowed: one document"]);
    let deep = format!("replicas: {}", "[".repeat(17));
    wrong(&deep, &["r.yaml:1: nested too deeply; allowed: 16 levels"]);
    let text = load_str("retries: 1\nreplicas: [a\nlisten: b\n", "r.yaml").unwrap_err().to_string();
    assert!(text.starts_with("r.yaml:3: column "), "{text}");
    assert!(text.contains(": not YAML: "), "{text}");
}

#[test]
fn listen_and_admin_differ() {
    let taken = "; allowed: another port, or 0 for a free one";
    let both = "listen: 127.0.0.1:1\nadmin: 127.0.0.1:1";
    wrong(both, &[&format!("r.yaml:2: admin: 127.0.0.1:1 is taken, as listen is 127.0.0.1:1{taken}")]);
    wrong("listen: :8081", &[&format!("r.yaml:1: listen: 0.0.0.0:8081 is taken, as admin is 127.0.0.1:8081{taken}")]);
    for yaml in ["listen: 127.0.0.1:0\nadmin: 127.0.0.1:0", "listen: 127.0.0.2:1\nadmin: 127.0.0.1:1"] {
        assert!(load_str(yaml, "r.yaml").is_ok(), "{yaml}");
    }
}

#[test]
fn a_router_that_is_its_own_replica() {
    for (listen, replica) in [("127.0.0.1:9000", "127.0.0.1:9000"), ("0.0.0.0:9000", "localhost:9000"), ("0.0.0.0:9000", "127.0.0.1:9000")]
    {
        wrong(
            &format!("listen: {listen}\nreplicas: [http://{replica}]\n"),
            &[&format!("r.yaml:2: replicas: {replica} is where this router itself listens ({listen}); allowed: other servers")],
        );
    }
    assert!(load_str("listen: 127.0.0.1:9000\nreplicas: [http://127.0.0.2:9000]\n", "r.yaml").is_ok());
}

#[test]
fn an_error_is_one_line_whatever_was_written() {
    for yaml in [
        "\"a\\nb\": 1\n\"a\\nb\": 2",
        "\"retries\\e\": 1\n",
        "replicas: [\"http://a;x\\ny=1;x\\ny=2\"]",
        "retries: !a%0Ab 1",
        "retries: \"1\\n\"",
    ] {
        let errors = load_str(yaml, "r.yaml").unwrap_err().to_string();
        assert!(errors.lines().all(|line| line.starts_with("r.yaml:") && !line.contains(char::is_control)), "{yaml}: {errors:?}");
    }
    let errors = load_settings(sources(None, &[("PREFIX_ROUTER_A\nB", "1")], &[])).unwrap_err().to_string();
    assert_eq!(errors.lines().count(), 1, "{errors:?}");
}
