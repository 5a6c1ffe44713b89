//! Replicas that are configured one by one with a host name: how it becomes an address, and what is said where it does not.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use hickory_proto::op::ResponseCode;

use crate::answers::ok;
use crate::client::Client;
use crate::command::{Serving, program};
use crate::dns::{Dns, Manner};
use crate::replica::Replica;
use crate::support::{Router, Setting, chat, check_error, eventually, samples};

const CHAT: &str = "/v1/chat/completions";

fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

async fn router(dns: &Dns, host: &str, port: u16, settings: &[Setting<'_>]) -> Router {
    let servers = dns.addr.to_string();
    let quick = [("dns_servers", servers.as_str()), ("dns_min_ttl", "50ms"), ("dns_max_ttl", "100ms"), ("pool_max_idle", "0")];
    Router::start_with(&format!("replicas: ['http://{host}:{port}']\n"), &[&quick[..], settings].concat()).await
}

#[tokio::test]
async fn all_addresses_are_tried_and_the_name_stays_the_identity() {
    let (dns, replica) = (Dns::start().await, Replica::start_at(SocketAddr::new(ip(3), 0), ok));
    // Nobody listens at the first two.
    dns.set("gpu.test", &[ip(1), ip(2), ip(3)]);
    let router = router(&dns, "gpu.test", replica.addr.port(), &[]).await;
    let name = format!("gpu.test:{}", replica.addr.port());
    router.has_state(&name, "up").await;
    let response = router.post(CHAT, chat("x")).await;
    assert_eq!((response.status, response.replica()), (200, name.as_str()));
    assert_eq!(replica.only_request().head.all("host"), [name]);
}

#[tokio::test]
async fn a_name_that_moves_is_followed_and_a_server_that_is_out_takes_nobody_with_it() {
    let dns = Dns::start().await;
    let one = Replica::start_at(SocketAddr::new(ip(1), 0), ok);
    let other = Replica::start_at(SocketAddr::new(ip(2), one.addr.port()), ok);
    dns.set("gpu.test", &[ip(1)]);
    let router = router(&dns, "gpu.test", one.addr.port(), &[("connect_timeout", "300ms")]).await;
    let name = format!("gpu.test:{}", one.addr.port());
    router.has_state(&name, "up").await;
    dns.set("gpu.test", &[ip(2)]);
    eventually("requests go to the other", async || {
        assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
        other.count() > 0
    })
    .await;
    let errors = router.metric("prefix_router_upstream_errors_total", &[]).await;
    dns.manner(Manner::Silent);
    // Longer than a lookup's patience, and many times as long as connecting may take.
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
        let text = router.metrics().await;
        assert_eq!(samples(&text, "prefix_router_replica_state", &[("replica", &name), ("state", "up")]), [1.0]);
        assert_eq!(samples(&text, "prefix_router_upstream_errors_total", &[]).iter().sum::<f64>(), errors);
    }
}

#[tokio::test]
async fn the_log_names_dns_and_no_replica_where_dns_is_out() {
    let (dns, replica) = (Dns::start().await, Replica::start_at(SocketAddr::new(ip(1), 0), ok));
    dns.set("gpu.test", &[ip(1)]);
    let mut command = program();
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let url = format!("http://gpu.test:{}", replica.addr.port());
    for (name, value) in [
        ("REPLICAS", url.as_str()),
        ("DNS_SERVERS", &dns.addr.to_string()),
        ("DNS_MIN_TTL", "50ms"),
        ("DNS_MAX_TTL", "100ms"),
        ("POOL_MAX_IDLE", "0"),
        ("HEALTH_CHECK_INTERVAL", "100ms"),
    ] {
        command.env(format!("PREFIX_ROUTER_{name}"), value);
    }
    let serving = Serving::start(&mut command, &[&replica]).await;
    let lines = |what: &str| serving.log().iter().filter(|line| line.contains(what)).count();
    dns.manner(Manner::Code(ResponseCode::ServFail));
    eventually("it says that the name does not resolve", async || lines("gpu.test does not resolve, its last addresses are used") == 1)
        .await;
    let probes = replica.probes().len();
    eventually("checks go on", async || replica.probes().len() > probes + 5).await;
    dns.manner(Manner::Honest);
    eventually("it says that it resolves again", async || lines("gpu.test resolves again") == 1).await;
    assert_eq!((lines("does not resolve"), lines(" is down")), (1, 0), "{:?}", serving.log());
}

#[tokio::test]
async fn a_firewall_that_drops_questions_for_ipv6_keeps_nobody_away() {
    let (dns, replica) = (Dns::start().await, Replica::start_at(SocketAddr::new(ip(1), 0), ok));
    dns.manner(Manner::DroppedIpv6);
    dns.set("gpu.test", &[ip(1)]);
    let router = router(&dns, "gpu.test", replica.addr.port(), &[("health_check_interval", "60s")]).await;
    let started = Instant::now();
    assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[tokio::test]
async fn an_answer_that_takes_longer_than_connecting_may_is_used_when_it_comes() {
    let (dns, replica) = (Dns::start().await, Replica::start_at(SocketAddr::new(ip(1), 0), ok));
    dns.delay(Duration::from_millis(700));
    dns.set("gpu.test", &[ip(1)]);
    let router = router(&dns, "gpu.test", replica.addr.port(), &[("connect_timeout", "200ms")]).await;
    eventually("it is reached", async || router.post(CHAT, chat("x")).await.status == 200).await;
    router.has_state(&format!("gpu.test:{}", replica.addr.port()), "up").await;
    for _ in 0..10 {
        assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
    }
}

#[tokio::test]
async fn however_many_wait_for_a_name_it_is_asked_for_once() {
    let (dns, replica) = (Dns::start().await, Replica::start_at(SocketAddr::new(ip(1), 0), ok));
    // Less than the pause after which a client asks by UDP once more.
    dns.delay(Duration::from_millis(200));
    let held = [("health_check_interval", "60s"), ("health_check_fall", "9"), ("dns_min_ttl", "3s"), ("dns_max_ttl", "3s")];
    // With a dot at its end, so that nothing is asked for besides.
    let router = router(&dns, "gpu.test.", replica.addr.port(), &held).await;
    let ask = async || {
        let asks = (0..20).map(|_| Client::connect(router.traffic));
        let mut clients = Vec::new();
        for connecting in asks {
            clients.push(connecting.await);
        }
        for client in &mut clients {
            client.start("POST", CHAT, "", chat("x")).await;
        }
        let mut statuses = Vec::new();
        for client in &mut clients {
            statuses.push(client.head().await.status());
        }
        statuses
    };
    // The second twenty hear of the first one's failure.
    assert_eq!([ask().await, ask().await].concat(), [502; 40]);
    assert_eq!(dns.asked(), 1);
    dns.set("gpu.test", &[ip(1)]);
    eventually("a failure does not hold for long", async || router.post(CHAT, chat("x")).await.status == 200).await;
    assert_eq!(ask().await, [200; 20]);
    assert!(dns.asked() <= 4, "{}", dns.asked());
}

#[tokio::test]
async fn a_name_that_is_gone_is_left_in_the_end() {
    let (dns, replica) = (Dns::start().await, Replica::start_at(SocketAddr::new(ip(1), 0), ok));
    dns.set("gpu.test", &[ip(1)]);
    let router = router(&dns, "gpu.test", replica.addr.port(), &[("dns_forget_after", "1s")]).await;
    assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
    dns.manner(Manner::Code(ResponseCode::NXDomain));
    let gone = Instant::now();
    eventually("it is not reached any more", async || router.post(CHAT, chat("x")).await.status == 502).await;
    assert!(gone.elapsed() >= Duration::from_secs(1), "{:?}", gone.elapsed());
    dns.manner(Manner::Honest);
    eventually("it is reached again", async || router.post(CHAT, chat("x")).await.status == 200).await;
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_an_error_that_does_not_blame_the_replica() {
    let (dns, replica) = (Dns::start().await, Replica::start_at(SocketAddr::new(ip(1), 0), ok));
    let router = router(&dns, "gpu.test", replica.addr.port(), &[("health_check_interval", "60s"), ("health_check_fall", "9")]).await;
    check_error(&router.post(CHAT, chat("x")).await, CHAT, 502, "connect_failed");
    // It was not ejected: as soon as the name resolves it serves.
    dns.set("gpu.test", &[ip(1)]);
    eventually("it serves", async || router.post(CHAT, chat("x")).await.status == 200).await;
}

#[tokio::test]
async fn localhost_needs_no_dns_server() {
    let (dns, replica) = (Dns::start().await, Replica::start_at(SocketAddr::new(ip(1), 0), ok));
    dns.manner(Manner::Silent);
    let router = router(&dns, "localhost", replica.addr.port(), &[]).await;
    router.has_state(&format!("localhost:{}", replica.addr.port()), "up").await;
    assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
}
