//! When a replica counts as up, what that does to its traffic, and what the router says of itself.

use std::time::{Duration, Instant};

use crate::answers::ok;
use crate::replica::{Health, Replica};
use crate::support::{A_WHILE, Router, chat, check_error, eventually};

const CHAT: &str = "/v1/chat/completions";

/// Waits for this many more checks to begin.
async fn checks(replica: &Replica, count: usize) {
    let seen = replica.probes().len();
    eventually("health checks", async || replica.probes().len() >= seen + count).await;
}

#[tokio::test]
async fn the_state_is_shown_from_the_start() {
    let (a, b) = (Replica::start("a", ok), Replica::refusing("b", ok));
    a.health(Health::Hang);
    let router = Router::start_cold(&[&a, &b], &[("health_check_timeout", "30s")]).await;
    router.has_state("a", "unknown").await;
    router.has_state("b", "down").await;
    for replica in ["a", "b"] {
        let values = crate::support::samples(&router.metrics().await, "prefix_router_replica_state", &[("replica", replica)]);
        assert_eq!(values.len(), 5, "unknown, up, suspect, down, draining");
        assert_eq!(values.iter().sum::<f64>(), 1.0, "one of them");
    }
}

#[tokio::test]
async fn it_starts_without_any_healthy_replica_and_says_so() {
    let replica = Replica::refusing("a", ok);
    let router = Router::start_cold(&[&replica], &[]).await;
    router.has_state("a", "down").await;
    assert_eq!(router.admin("/live").await.status, 200);
    assert_eq!(router.admin("/ready").await.status, 503);
    assert_eq!(router.get("/health").await.status, 503);
    check_error(&router.post(CHAT, chat("x")).await, CHAT, 502, "connect_failed");
    replica.restart();
    eventually("ready", async || router.admin("/ready").await.status == 200).await;
    assert_eq!(router.get("/health").await.status, 200);
    assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
}

#[tokio::test]
async fn if_all_are_down_the_least_bad_is_tried() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("health_check_fall", "1")]).await;
    replica.health(Health::Status(500));
    router.has_state("a", "down").await;
    assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
}

#[tokio::test]
async fn a_replica_goes_down_after_fall_failed_checks_and_up_after_rise_good_ones() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let settings = [("health_check_fall", "4"), ("health_check_rise", "4")];
    let router = Router::start(&[&a, &b], &settings).await;
    let body = router.chat_for(&a, "x").await;
    let failing = Instant::now();
    a.health(Health::Status(503));
    router.has_state("a", "down").await;
    // The first of four failures can come at once, the fourth three intervals later.
    assert!(failing.elapsed() >= Duration::from_millis(250), "after {:?}", failing.elapsed());
    assert_eq!(router.post(CHAT, &body).await.replica(), "b");
    let healed = Instant::now();
    a.health(Health::Good);
    router.has_state("a", "up").await;
    assert!(healed.elapsed() >= Duration::from_millis(250), "after {:?}", healed.elapsed());
    assert_eq!(router.post(CHAT, &body).await.replica(), "a");
}

#[tokio::test]
async fn a_check_that_fails_now_and_then_changes_nothing() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("health_check_fall", "3")]).await;
    for _ in 0..4 {
        replica.health(Health::Status(500));
        checks(&replica, 1).await;
        replica.health(Health::Good);
        checks(&replica, 2).await;
        assert_eq!(router.metric("prefix_router_replica_state", &[("replica", "a"), ("state", "down")]).await, 0.0);
    }
}

#[tokio::test]
async fn a_check_without_an_answer_fails() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("health_check_timeout", "100ms"), ("health_check_fall", "2")]).await;
    replica.health(Health::Hang);
    router.has_state("a", "down").await;
}

#[tokio::test]
async fn checks_ask_the_configured_path() {
    let replica = Replica::start("a", ok);
    let _router = Router::start(&[&replica], &[("health_check_path", "/v1/models?x=1")]).await;
    replica.has_requests(2).await;
    let request = replica.requests().remove(0);
    assert_eq!(request.head.start, "GET /v1/models?x=1 HTTP/1.1");
    assert_eq!(request.head.all("host"), [replica.addr.to_string()]);
}

#[tokio::test]
async fn a_replica_that_returns_gets_traffic_within_two_seconds_of_its_first_good_check() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    // The product's own intervals and thresholds.
    let settings = [("health_check_interval", "1s"), ("health_check_rise", "2")];
    let router = Router::start(&[&a, &b], &settings).await;
    let body = router.chat_for(&a, "x").await;
    a.stop().await;
    eventually("the replica is missed", async || router.post(CHAT, &body).await.replica() == "b").await;
    router.has_state("a", "down").await;
    let seen = a.probes().len();
    a.restart();
    eventually("a good check", async || a.probes().len() > seen).await;
    let good = Instant::now();
    eventually("the replica is home again", async || router.post(CHAT, &body).await.replica() == "a").await;
    assert!(good.elapsed() < Duration::from_secs(2), "after {:?}", good.elapsed());
}

#[tokio::test]
async fn a_refused_connection_ejects_at_once() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let router = Router::start_blind(&[&a, &b], &[("eject_time", "60s"), ("pool_max_idle", "0")]).await;
    let body = router.chat_for(&a, "x").await;
    a.stop().await;
    assert_eq!(router.post(CHAT, &body).await.replica(), "b");
    router.has_state("a", "down").await;
    // It is back, but out for its eject time: no further try is wasted on it.
    a.restart();
    a.forget();
    for _ in 0..3 {
        let response = router.post(CHAT, &body).await;
        assert_eq!((response.replica(), response.reason()), ("b", "failover"));
    }
    assert_eq!(a.count(), 0);
    router.has_metric("prefix_router_retries_total", &[("cause", "connect")], 1.0).await;
}

#[tokio::test]
async fn what_a_client_or_a_prompt_does_is_no_illness() {
    let replica = Replica::start("a", ok);
    let router = Router::start_blind(&[&replica], &[("pool_max_idle", "0")]).await;
    for status in [400, 404, 422, 429, 503] {
        replica.script(move |_| crate::answers::answer(status, "", "x"));
        for _ in 0..10 {
            assert_eq!(router.post(CHAT, chat("x")).await.status, status);
        }
    }
    assert_eq!(router.metric("prefix_router_replica_state", &[("replica", "a"), ("state", "up")]).await, 1.0);
}

#[tokio::test]
async fn a_flap_leaves_counts_as_they_are() {
    let gate = crate::replica::Gate::new();
    let replica = Replica::start("a", crate::answers::ok_after(&gate));
    let router = Router::start(&[&replica], &[("health_check_fall", "1")]).await;
    let mut client = crate::client::Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", chat("x")).await;
    router.has_metric("prefix_router_outstanding", &[("replica", "a")], 1.0).await;
    for _ in 0..2 {
        replica.health(Health::Status(500));
        router.has_state("a", "down").await;
        assert_eq!(router.metric("prefix_router_outstanding", &[("replica", "a")]).await, 1.0);
        replica.health(Health::Good);
        router.has_state("a", "up").await;
        assert_eq!(router.metric("prefix_router_outstanding", &[("replica", "a")]).await, 1.0);
    }
    gate.open();
    assert_eq!(client.response("POST").await.status, 200);
    router.is_at_rest().await;
    tokio::time::sleep(A_WHILE).await;
    router.is_at_rest().await;
}
