//! File, environment and flags over one another, and the one value that is never shown.

use super::*;

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let path = std::env::temp_dir().join(format!("prefix-router-sources-{}.yaml", std::process::id()));
    std::fs::write(&path, "retries: 1\nretry_budget_floor: 1\nmax_body: 1MiB\nreplicas: [http://a, http://b]\n").unwrap();
    let file = path.to_str();
    let environment = [
        ("PREFIX_ROUTER_RETRIES", "5"),
        ("PREFIX_ROUTER_RETRY_BUDGET_FLOOR", "5"),
        ("PREFIX_ROUTER_REPLICAS", "http://c;weight=2;name=x,http://d"),
        ("PREFIX_ROUTER_PREFIX_INCLUDES", "tools,media"),
        ("PREFIX_ROUTER_EXPOSE_PATHS", "/a,/b*"),
        ("PREFIX_ROUTER_LOG_LEVEL", ""),
        ("HOME", "/root"),
    ];
    let config = load(sources(file, &environment, &[("--retries", "retries", "7")])).unwrap();
    assert_eq!((config.proxy.retries, config.proxy.retry_budget.floor), (7, 5));
    assert_eq!((config.proxy.max_body, config.proxy.retry_budget.percent), (1 << 20, 20));
    assert_eq!(config.replicas, [replica("x", "c:80", 2, &[]), replica("d", "d:80", 1, &[])]);
    assert_eq!(config.key.includes, Includes { tools: true, media: true });
    assert_eq!(config.proxy.expose_paths, ["/a", "/b*"]);

    let config = load(sources(file, &environment, &[("--replica", "replicas", "http://e")])).unwrap();
    assert_eq!(config.replicas, [replica("e", "e:80", 1, &[])]);
    let named = load(sources(None, &[("PREFIX_ROUTER_CONFIG", file.unwrap())], &[])).unwrap();
    assert_eq!(named.proxy.retries, 1);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn errors_of_all_sources_come_together() {
    let path = std::env::temp_dir().join(format!("prefix-router-errors-{}.yaml", std::process::id()));
    std::fs::write(&path, "listen: here\nretries: 99\n").unwrap();
    let environment = [("PREFIX_ROUTER_RETRIS", "1"), ("PREFIX_ROUTER_HOLD_HEAD", "1"), ("PREFIX_ROUTER_hold_head", "1s")];
    let flags = [("--prefix-length", "prefix_length", "512"), ("--replica", "replicas", "https://a")];
    let errors = load(sources(path.to_str(), &environment, &flags)).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    let file = path.display();
    assert_eq!(
        errors.lines().collect::<Vec<_>>(),
        [
            &format!(
                "{file}:1: listen: here is not an address with a port; allowed: IP:PORT, :PORT for all IPv4 addresses, or localhost:PORT"
            ),
            &format!("{file}:2: retries: 99 is out of range; allowed: 0 to 10"),
            "PREFIX_ROUTER_RETRIS: unknown variable; the nearest is PREFIX_ROUTER_RETRIES",
            "PREFIX_ROUTER_hold_head: unknown variable; the nearest is PREFIX_ROUTER_HOLD_HEAD",
            "PREFIX_ROUTER_HOLD_HEAD: 1 has no unit, such as s or ms; allowed: 0s to 24h",
            "--prefix-length: 512 is out of range; allowed: auto, or 1024 to 65536",
            "--replica: url: https://a asks for TLS, and TLS to replicas is not supported; allowed: http://HOST:PORT (80 if not given), dns://NAME:PORT or dns://_SERVICE._PROTO.NAME",
        ]
    );
}

#[test]
fn serving_needs_a_replica() {
    let none = "replicas: none is given; allowed: at least one, by --replica URL, PREFIX_ROUTER_REPLICAS=URL,URL or \
                `replicas: [URL]` in the file";
    assert_eq!(load(Sources::default()).unwrap_err().to_string(), none);
    assert_eq!(load_settings(Sources::default()), Ok(Config::default()));
}

#[test]
fn variables_of_kubernetes_are_ignored() {
    let injected = [
        ("PREFIX_ROUTER_SERVICE_HOST", "10.0.0.1"),
        ("PREFIX_ROUTER_SERVICE_PORT_HTTP", "80"),
        ("PREFIX_ROUTER_PORT", "tcp://10.0.0.1:80"),
        ("PREFIX_ROUTER_PORT_80_TCP_ADDR", "10.0.0.1"),
    ];
    assert_eq!(load_settings(sources(None, &injected, &[])), Ok(Config::default()));
}

#[test]
fn files_that_cannot_be_read() {
    let missing = load(sources(Some("/nowhere/r.yaml"), &[], &[])).unwrap_err().to_string();
    assert_eq!(missing, "/nowhere/r.yaml: cannot be read (it is named by --config): No such file or directory (os error 2)");
    let directory = load(sources(None, &[("PREFIX_ROUTER_CONFIG", "/")], &[])).unwrap_err().to_string();
    assert!(directory.starts_with("/: cannot be read (it is named by PREFIX_ROUTER_CONFIG): "), "{directory}");
    let endless = load(sources(Some("/dev/zero"), &[], &[])).unwrap_err().to_string();
    assert_eq!(endless, "/dev/zero: is larger than 1MiB; allowed: up to 1MiB");

    let path = std::env::temp_dir().join(format!("prefix-router-latin1-{}.yaml", std::process::id()));
    std::fs::write(&path, b"retries: 1\n# caf\xe9\n").unwrap();
    let errors = load(sources(path.to_str(), &[], &[])).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(errors, format!("{}:2: is not UTF-8 from here on; allowed: YAML in UTF-8", path.display()));
}

#[test]
fn the_api_key_is_never_shown() {
    for yaml in [
        "upstream_api_key: sk-secret here",
        "upstream_api_key: \"sk-secret\\n\"",
        "upstream_api_key: [sk-secret]",
        "upstream_api_key: {sk-secret: 1}",
        "upstream_api_key: sk-secret\nupstream_api_key: sk-secret",
        "upstream_api_key: sk-secret: 1",
        "upstream_api_key: 'sk-secret",
        "upstream_api_key: sk-secret\nretries: 99",
    ] {
        let errors = load_str(yaml, "r.yaml").unwrap_err();
        assert!(!format!("{errors} {errors:?}").contains("secret"), "{errors}");
    }
    let errors = load_settings(sources(None, &[("PREFIX_ROUTER_UPSTREAM_API_KEY", "sk-secret here")], &[])).unwrap_err();
    assert_eq!(
        errors.to_string(),
        "PREFIX_ROUTER_UPSTREAM_API_KEY: the value holds a space, a line end or another character that cannot be sent; \
         allowed: visible ASCII characters"
    );
    let config = load_str("upstream_api_key: sk-secret", "r.yaml").unwrap();
    assert!(!format!("{} {config:?}", config.render()).contains("secret"));
    assert!(config.render().contains("\nupstream_api_key: ~ # set, and hidden here\n"));
}
