//! Replicas that are configured one by one with a host name: how it becomes an address, and what is said where it does not.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use crate::answers::ok;
use crate::dns::{Dns, Manner};
use crate::replica::Replica;
use crate::support::{Router, Setting, chat, check_error, eventually};

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
    let router = router(&dns, "gpu.test", one.addr.port(), &[]).await;
    router.has_state(&format!("gpu.test:{}", one.addr.port()), "up").await;
    dns.set("gpu.test", &[ip(2)]);
    eventually("requests go to the other", async || {
        assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
        other.count() > 0
    })
    .await;
    dns.manner(Manner::Silent);
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {
        assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
    }
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_an_error_that_does_not_blame_the_replica() {
    let (dns, replica) = (Dns::start().await, Replica::start_at(SocketAddr::new(ip(1), 0), ok));
    let router = router(&dns, "gpu.test", replica.addr.port(), &[("health_check_interval", "60s"), ("health_check_fall", "9")]).await;
    check_error(&router.post(CHAT, chat("x")).await, CHAT, 502, "connect_failed");
    // It was not ejected: as soon as the name resolves it serves.
    dns.set("gpu.test", &[ip(1)]);
    assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
}

#[tokio::test]
async fn localhost_needs_no_dns_server() {
    let (dns, replica) = (Dns::start().await, Replica::start_at(SocketAddr::new(ip(1), 0), ok));
    dns.manner(Manner::Silent);
    let router = router(&dns, "localhost", replica.addr.port(), &[]).await;
    router.has_state(&format!("localhost:{}", replica.addr.port()), "up").await;
    assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
}
