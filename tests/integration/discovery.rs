//! Replicas behind a DNS name: who is found, when, and what happens to requests while they come and go.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use hickory_proto::op::ResponseCode;

use crate::answers::{chunk, event, head, last_chunk, ok};
use crate::client::{Client, End};
use crate::dns::{Dns, Manner};
use crate::replica::{Gate, Health, Replica, Step};
use crate::support::{A_WHILE, Router, Setting, chat, check_error, eventually, samples};

const CHAT: &str = "/v1/chat/completions";
const LOOKUPS: &str = "prefix_router_discovery_lookups_total";
const FOUND: &str = "prefix_router_discovery_replicas";

fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

/// Replicas at 127.0.0.1, 127.0.0.2, … on one port.
fn replicas(count: u8) -> Vec<Replica> {
    'again: loop {
        let mut all = vec![Replica::start_at(SocketAddr::new(ip(1), 0), ok)];
        let port = all[0].addr.port();
        for last in 2..=count {
            let addr = SocketAddr::new(ip(last), port);
            if std::net::TcpListener::bind(addr).is_err() {
                continue 'again;
            }
            all.push(Replica::start_at(addr, ok));
        }
        return all;
    }
}

/// A router that finds its replicas under these URLs, quickly.
async fn router(dns: &Dns, urls: &[&str], settings: &[Setting<'_>]) -> Router {
    let servers = dns.addr.to_string();
    let quick = [("dns_servers", servers.as_str()), ("dns_min_ttl", "50ms"), ("dns_max_ttl", "100ms")];
    Router::start_with(&format!("replicas: [{}]\n", urls.join(", ")), &[&quick[..], settings].concat()).await
}

async fn all_up(router: &Router, replicas: &[Replica]) {
    for replica in replicas {
        router.has_state(replica.name, "up").await;
    }
}

/// The names in `/metrics` as replicas.
async fn names(router: &Router) -> Vec<String> {
    let text = router.metrics().await;
    let lines = text.lines().filter_map(|line| line.strip_prefix("prefix_router_outstanding{replica=\""));
    let mut names: Vec<String> = lines.filter_map(|line| line.split('"').next()).map(str::to_owned).collect();
    names.sort();
    names
}

#[tokio::test]
async fn every_address_is_a_replica_named_by_it() {
    let (dns, replicas) = (Dns::start().await, replicas(3));
    dns.set("vllm.test", &[ip(3), ip(1), ip(2), ip(1)]);
    let url = format!("dns://vllm.test:{}", replicas[0].addr.port());
    let router = router(&dns, &[&url], &[("strategy", "round_robin")]).await;
    all_up(&router, &replicas).await;
    let mut answered: Vec<String> = Vec::new();
    for _ in 0..6 {
        answered.push(router.post(CHAT, chat("x")).await.replica().to_owned());
    }
    answered.sort();
    answered.dedup();
    let expected: Vec<String> = replicas.iter().map(|replica| replica.addr.to_string()).collect();
    assert_eq!(answered, expected);
    assert_eq!(names(&router).await, expected);
    assert_eq!(router.metric(FOUND, &[("source", &url)]).await, 3.0);
    assert!(router.metric(LOOKUPS, &[("source", &url), ("result", "ok")]).await >= 1.0);
    let since = router.metric("prefix_router_discovery_last_success_timestamp_seconds", &[("source", &url)]).await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((0.0..60.0).contains(&(now - since)), "{since} {now}");
    assert_eq!(router.admin("/ready").await.status, 200);
    // The replica hears its own address as the host.
    assert_eq!(replicas[1].requests()[0].head.all("host"), [replicas[1].addr.to_string()]);
}

#[tokio::test]
async fn ipv6_too_and_a_server_that_fails_at_it_takes_nothing_away() {
    if let Err(error) = std::net::TcpListener::bind("[::1]:0") {
        eprintln!("not tested: there is no IPv6 here: {error}");
        return;
    }
    let dns = Dns::start().await;
    let (six, four) = loop {
        let six = Replica::start_at("[::1]:0".parse().unwrap(), ok);
        let addr = SocketAddr::new(ip(1), six.addr.port());
        if std::net::TcpListener::bind(addr).is_ok() {
            break (six, Replica::start_at(addr, ok));
        }
    };
    dns.set("vllm.test", &[ip(1), six.addr.ip()]);
    let url = format!("dns://vllm.test:{}", six.addr.port());
    let router = router(&dns, &[&url], &[]).await;
    router.has_state(six.name, "up").await;
    router.has_state(four.name, "up").await;
    assert_eq!(six.name, format!("[::1]:{}", six.addr.port()));
    dns.manner(Manner::NoIpv6);
    dns.set("vllm.test", &[]);
    dns.set("vllm.test", &[ip(2)]);
    eventually("the new address", async || names(&router).await.iter().any(|name| name.starts_with("127.0.0.2:"))).await;
    tokio::time::sleep(A_WHILE).await;
    assert!(names(&router).await.contains(&six.name.to_owned()));
    assert!(router.metric(LOOKUPS, &[("result", "partial")]).await > 0.0, "half an answer is not counted as a whole one");
    dns.manner(Manner::Honest);
    eventually("IPv6 is gone when a server says so", async || !names(&router).await.contains(&six.name.to_owned())).await;
}

#[tokio::test]
async fn services_bring_their_ports_and_only_the_first_priority_counts() {
    let dns = Dns::start().await;
    let all = [1, 2, 3].map(|_| Replica::start_at(SocketAddr::new(ip(1), 0), ok));
    let ports = [0, 1, 2].map(|index: usize| all[index].addr.port());
    dns.set("one.vllm.test", &[ip(1)]);
    dns.set("two.vllm.test", &[ip(1)]);
    dns.set_service(
        "_http._tcp.vllm.test",
        &[
            (1, 10, ports[0], "one.vllm.test"),
            (1, 90, ports[1], "two.vllm.test"),
            (2, 10, ports[2], "one.vllm.test"),
            (1, 1, 1, "gone.test"),
        ],
    );
    let url = "dns://_http._tcp.vllm.test";
    let router = router(&dns, &[&format!("{{url: {url}, weight: 3, models: [m]}}")], &[]).await;
    all_up(&router, &all[..2]).await;
    let mut expected = [all[0].name, all[1].name];
    expected.sort_unstable();
    assert_eq!(names(&router).await, expected);
    let results = async || (router.metric(LOOKUPS, &[("result", "ok")]).await, router.metric(LOOKUPS, &[("result", "partial")]).await);
    let (whole, part) = results().await;
    assert!(whole == 0.0 && part > 0.0, "one of the servers is missing: {whole} {part}");
    assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
    check_error(&router.post(CHAT, r#"{"model":"other"}"#).await, CHAT, 404, "model_not_found");
    dns.set_service("_http._tcp.vllm.test", &[(1, 10, ports[0], "one.vllm.test"), (1, 10, ports[2], "one.vllm.test")]);
    router.has_state(all[2].name, "up").await;
    eventually("the other has left", async || !names(&router).await.contains(&all[1].name.to_owned())).await;
    assert!(results().await.0 > 0.0, "nobody is missing any more");
}

#[tokio::test]
async fn homes_stay_while_replicas_come_and_go() {
    let (dns, replicas) = (Dns::start().await, replicas(4));
    dns.set("vllm.test", &[ip(1), ip(2), ip(3)]);
    let router = router(&dns, &[&format!("dns://vllm.test:{}", replicas[0].addr.port())], &[]).await;
    all_up(&router, &replicas[..3]).await;
    let homes = async || {
        let mut homes = Vec::new();
        for number in 0..30 {
            let response = router.post(CHAT, chat(&format!("prompt {number}"))).await;
            assert_eq!((response.status, response.reason()), (200, "home"));
            homes.push(response.replica().to_owned());
        }
        homes
    };
    let before = homes().await;
    dns.set("vllm.test", &[ip(4), ip(3), ip(2), ip(1)]);
    all_up(&router, &replicas).await;
    let wider = homes().await;
    let moved = before.iter().zip(&wider).filter(|(before, wider)| before != wider);
    let moved: Vec<_> = moved.map(|(_, to)| to.as_str()).collect();
    assert!(moved.iter().all(|to| *to == replicas[3].name) && !moved.is_empty(), "{moved:?}");
    dns.set("vllm.test", &[ip(1), ip(2), ip(3)]);
    eventually("the fourth has left", async || !names(&router).await.contains(&replicas[3].name.to_owned())).await;
    assert_eq!(homes().await, before);
}

#[tokio::test]
async fn a_stream_on_a_replica_that_leaves_ends_in_peace_and_is_counted_to_its_end() {
    let (dns, replicas) = (Dns::start().await, replicas(2));
    let gate = Gate::new();
    let waiting = gate.clone();
    replicas[1].script(move |_| vec![head(), chunk(event(0)), Step::Wait(waiting.clone()), chunk(event(1)), last_chunk()]);
    dns.set("vllm.test", &[ip(1), ip(2)]);
    let router = router(&dns, &[&format!("dns://vllm.test:{}", replicas[0].addr.port())], &[("strategy", "round_robin")]).await;
    all_up(&router, &replicas).await;
    let (mut client, mut framing) = loop {
        let mut client = Client::connect(router.traffic).await;
        client.start("POST", CHAT, "", chat("x")).await;
        let head = client.head().await;
        if head.get("x-prefix-router-replica") == Some(replicas[1].name) {
            break (client, head.response_framing("POST"));
        }
    };
    assert_eq!(client.text(&mut framing).await, event(0));
    let outstanding = "prefix_router_outstanding";
    let gone = [("replica", replicas[1].name)];
    assert_eq!(router.metric(outstanding, &gone).await, 1.0);
    dns.set("vllm.test", &[ip(1)]);
    eventually("it has left", async || samples(&router.metrics().await, "prefix_router_replica_state", &gone).is_empty()).await;
    let probes = replicas[1].probes().len();
    for _ in 0..4 {
        assert_eq!(router.post(CHAT, chat("x")).await.replica(), replicas[0].name);
    }
    assert_eq!(samples(&router.metrics().await, outstanding, &gone), [1.0], "it is counted though it has left");
    eventually("it is checked though it has left", async || replicas[1].probes().len() > probes + 1).await;
    // It comes back while its earlier stay goes on: the same, as far as the count is concerned.
    dns.set("vllm.test", &[ip(1), ip(2)]);
    router.has_state(replicas[1].name, "up").await;
    assert_eq!(router.metric(outstanding, &gone).await, 1.0);
    dns.set("vllm.test", &[ip(1)]);
    eventually("it has left again", async || samples(&router.metrics().await, "prefix_router_replica_state", &gone).is_empty()).await;
    gate.open();
    let rest = client.rest(framing).await;
    assert_eq!((String::from_utf8_lossy(&rest.bytes).into_owned(), rest.end), (event(1), End::Whole));
    router.is_at_rest().await;
    eventually("nothing is left of it", async || !router.metrics().await.contains(replicas[1].name)).await;
    let probes = replicas[1].probes().len();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(replicas[1].probes().len(), probes, "nobody checks a replica that has left and has nothing to do");
    assert!(!router.metrics().await.contains(replicas[1].name), "and it does not come back");
}

#[tokio::test]
async fn a_replica_that_leaves_and_returns_is_as_busy_as_before() {
    let (dns, replicas) = (Dns::start().await, replicas(2));
    let gate = Gate::new();
    let waiting = gate.clone();
    replicas[1].script(move |_| vec![head(), chunk(event(0)), Step::Wait(waiting.clone()), last_chunk()]);
    dns.set("vllm.test", &[ip(2)]);
    let settings = [("strategy", "least_outstanding")];
    let router = router(&dns, &[&format!("dns://vllm.test:{}", replicas[0].addr.port())], &settings).await;
    router.has_state(replicas[1].name, "up").await;
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", chat("x")).await;
    assert_eq!(client.head().await.get("x-prefix-router-replica"), Some(replicas[1].name));
    let here = [("replica", replicas[1].name)];
    for _ in 0..2 {
        dns.set("vllm.test", &[ip(1)]);
        eventually("it has left", async || samples(&router.metrics().await, "prefix_router_replica_state", &here).is_empty()).await;
        dns.set("vllm.test", &[ip(1), ip(2)]);
        all_up(&router, &replicas).await;
    }
    for _ in 0..12 {
        assert_eq!(router.post(CHAT, chat("x")).await.replica(), replicas[0].name);
    }
    gate.open();
    router.is_at_rest().await;
}

#[tokio::test]
async fn who_waits_on_a_replica_that_left_and_is_gone_is_answered_by_another() {
    let (dns, replicas) = (Dns::start().await, replicas(2));
    replicas[1].script(|_| vec![Step::Hang]);
    dns.set("vllm.test", &[ip(2)]);
    let settings = [("health_check_timeout", "200ms")];
    let router = router(&dns, &[&format!("dns://vllm.test:{}", replicas[0].addr.port())], &settings).await;
    router.has_state(replicas[1].name, "up").await;
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", chat("x")).await;
    eventually("it is asked", async || replicas[1].count() == 1).await;
    dns.set("vllm.test", &[ip(1)]);
    let gone = [("replica", replicas[1].name)];
    eventually("it has left", async || samples(&router.metrics().await, "prefix_router_replica_state", &gone).is_empty()).await;
    router.has_state(replicas[0].name, "up").await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(replicas[0].count(), 0, "while it is well it is waited for");
    // It is being stopped: it says no to all that is new.
    replicas[1].health(Health::Status(503));
    let probes = replicas[1].probes().len();
    eventually("it has said no more often than brings one down", async || replicas[1].probes().len() > probes + 4).await;
    assert_eq!(replicas[0].count(), 0, "and ends what it has begun");
    // The machine is gone: nothing is refused, nothing is answered.
    replicas[1].health(Health::Hang);
    assert_eq!(client.head().await.get("x-prefix-router-replica"), Some(replicas[0].name));
    router.has_metric("prefix_router_retries_total", &[("cause", "ejected")], 1.0).await;
    eventually("nothing is left of it", async || !router.metrics().await.contains(replicas[1].name)).await;
}

#[tokio::test]
async fn whatever_a_server_does_wrong_the_last_answer_stays() {
    let (dns, replicas) = (Dns::start().await, replicas(3));
    dns.set("vllm.test", &[ip(1), ip(2)]);
    let url = format!("dns://vllm.test:{}", replicas[0].addr.port());
    let router = router(&dns, &[&url], &[]).await;
    all_up(&router, &replicas[..2]).await;
    let known = names(&router).await;
    let failures = [
        (Manner::Code(ResponseCode::ServFail), "server_failure"),
        (Manner::Code(ResponseCode::NXDomain), "not_found"),
        (Manner::Code(ResponseCode::NoError), "empty"),
        (Manner::Code(ResponseCode::Refused), "server_failure"),
        (Manner::Garbage, ""),
        (Manner::Silent, "timeout"),
    ];
    for (manner, result) in failures {
        let failed = async || {
            let all = router.metric(LOOKUPS, &[("source", &url)]).await;
            all - router.metric(LOOKUPS, &[("result", "ok")]).await
        };
        let (before, all_before) = (router.metric(LOOKUPS, &[("result", result)]).await, failed().await);
        dns.manner(manner);
        eventually(&format!("{manner:?}: a failed lookup"), async || failed().await > all_before).await;
        if !result.is_empty() {
            assert!(router.metric(LOOKUPS, &[("result", result)]).await > before, "{manner:?}");
        }
        assert_eq!(names(&router).await, known, "{manner:?}");
        assert_eq!(router.post(CHAT, chat("x")).await.status, 200, "{manner:?}");
        dns.manner(Manner::Honest);
        let good = router.metric(LOOKUPS, &[("result", "ok")]).await;
        eventually(&format!("recovery from {manner:?}"), async || router.metric(LOOKUPS, &[("result", "ok")]).await > good).await;
    }
    dns.set("vllm.test", &[ip(3)]);
    router.has_state(replicas[2].name, "up").await;
    eventually("the others have left", async || names(&router).await == [replicas[2].name]).await;
}

#[tokio::test]
async fn a_name_that_is_surely_gone_for_a_while_has_no_replicas() {
    let (dns, replicas) = (Dns::start().await, replicas(1));
    dns.set("vllm.test", &[ip(1)]);
    let url = format!("{{url: 'dns://vllm.test:{}', models: [m]}}", replicas[0].addr.port());
    let router = router(&dns, &[&url], &[("dns_forget_after", "700ms")]).await;
    all_up(&router, &replicas).await;
    for code in [ResponseCode::NXDomain, ResponseCode::NoError] {
        // Nobody knows: it stays, however long that takes.
        dns.manner(Manner::Code(ResponseCode::ServFail));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(names(&router).await, [replicas[0].name]);
        let gone = Instant::now();
        dns.manner(Manner::Code(code));
        eventually("it is given up", async || names(&router).await.is_empty()).await;
        assert!(gone.elapsed() >= Duration::from_millis(700), "{:?}", gone.elapsed());
        router.has_metric(FOUND, &[], 0.0).await;
        // That somebody serves the model is not denied.
        check_error(&router.post(CHAT, chat("x")).await, CHAT, 503, "no_replica");
        dns.manner(Manner::Honest);
        all_up(&router, &replicas).await;
        router.has_metric(FOUND, &[], 1.0).await;
    }
}

#[tokio::test]
async fn a_firewall_that_drops_questions_for_ipv6_costs_a_moment() {
    let dns = Dns::start().await;
    dns.manner(Manner::DroppedIpv6);
    dns.set("vllm.test", &[ip(1)]);
    let started = Instant::now();
    let router = router(&dns, &["dns://vllm.test:9"], &[]).await;
    router.has_metric(FOUND, &[], 1.0).await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    dns.set("vllm.test", &[ip(2)]);
    eventually("a change is seen", async || names(&router).await == ["127.0.0.2:9"]).await;
}

#[tokio::test]
async fn what_comes_late_of_an_answer_is_not_lost() {
    let dns = Dns::start().await;
    dns.manner(Manner::LateIpv6(Duration::from_millis(400)));
    dns.set("vllm.test", &[ip(1), "::1".parse().unwrap()]);
    let router = router(&dns, &["dns://vllm.test:9"], &[]).await;
    router.has_metric(FOUND, &[], 2.0).await;
}

#[tokio::test]
async fn a_router_starts_before_the_name_exists() {
    let (dns, replicas) = (Dns::start().await, replicas(1));
    let router = router(&dns, &[&format!("dns://vllm.test:{}", replicas[0].addr.port())], &[]).await;
    assert_eq!(router.admin("/live").await.status, 200);
    assert_eq!(router.admin("/ready").await.status, 503);
    check_error(&router.get("/health").await, "/health", 503, "no_replica");
    let response = router.post(CHAT, chat("x")).await;
    check_error(&response, CHAT, 503, "no_replica");
    assert!(response.head.get("retry-after").is_some());
    check_error(&router.get("/v1/models").await, "/v1/models", 503, "no_replica");
    dns.set("vllm.test", &[ip(1)]);
    eventually("ready", async || router.admin("/ready").await.status == 200).await;
    assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
}

#[tokio::test]
async fn a_model_may_be_served_by_whoever_is_not_found_yet() {
    let (dns, replicas) = (Dns::start().await, replicas(2));
    let (fixed, found) = (replicas[0].url(), format!("dns://vllm.test:{}", replicas[0].addr.port()));
    let urls = [format!("{{url: '{fixed}', models: [m]}}"), format!("{{url: '{found}', models: [n]}}")];
    let router = router(&dns, &[&urls[0], &urls[1]], &[]).await;
    router.has_state(replicas[0].name, "up").await;
    let ask = async || router.post(CHAT, r#"{"model":"n"}"#).await;
    check_error(&ask().await, CHAT, 503, "no_replica");
    assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
    // The fixed one is found as well, and stays what it was configured as.
    dns.set("vllm.test", &[ip(1), ip(2)]);
    eventually("it is found", async || ask().await.status == 200).await;
    assert_eq!(names(&router).await.len(), 2);
    check_error(&router.post(CHAT, r#"{"model":"x"}"#).await, CHAT, 404, "model_not_found");
}

#[tokio::test]
async fn large_answers_come_by_tcp() {
    let dns = Dns::start().await;
    let all: Vec<IpAddr> = (1..=64).map(ip).collect();
    dns.set("vllm.test", &all);
    let router = router(&dns, &["dns://vllm.test:9"], &[("health_check_interval", "60s")]).await;
    router.has_metric(FOUND, &[], 64.0).await;
    assert!(dns.by_tcp() > 0);
    eventually("64 replicas", async || names(&router).await.len() == 64).await;
    // As many others: nothing of the earlier ones stays behind.
    let all: Vec<IpAddr> = (101..=164).map(ip).collect();
    dns.set("vllm.test", &all);
    eventually("the others", async || names(&router).await.iter().all(|name| !name.starts_with("127.0.0.1:"))).await;
    eventually("64 names", async || names(&router).await.len() == 64).await;
}

#[tokio::test]
async fn an_answer_holds_as_long_as_it_says_within_limits() {
    // How long an answer holds in effect; it is asked for again after 90 % of that, at the earliest.
    let check = async |ttl: u32, min: &str, max: &str, holds: Duration| {
        let dns = Dns::start().await;
        dns.ttl(ttl);
        dns.set("vllm.test", &[ip(1)]);
        let router = router(&dns, &["dns://vllm.test:9"], &[("dns_min_ttl", min), ("dns_max_ttl", max)]).await;
        router.has_metric(FOUND, &[], 1.0).await;
        let (started, before) = (Instant::now(), dns.asked());
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let asked = dns.asked() - before;
        // The answer may have been there for a while before the metric told so.
        let time = started.elapsed() + Duration::from_millis(500);
        let most = (time.as_secs_f64() / holds.mul_f64(0.9).as_secs_f64()) as usize;
        assert!(asked <= most, "ttl {ttl}, {min} to {max}: asked {asked} times in {time:?}, not {most}");
        if holds < Duration::from_secs(60) {
            eventually("it is asked for again", async || dns.asked() > before + 2).await;
        }
    };
    tokio::join!(
        check(1, "50ms", "60s", Duration::from_secs(1)),
        check(0, "200ms", "60s", Duration::from_millis(200)),
        check(600, "50ms", "200ms", Duration::from_millis(200)),
        check(600, "50ms", "60s", Duration::from_secs(60)),
    );
}
