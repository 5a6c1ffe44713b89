//! What requests meet at a replica, and what that does to its traffic: ejections, trials, busy replicas, doubt, slow start.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::answers::{answer, chunk, event, hang, head, ok, ok_after, reset};
use crate::client::Client;
use crate::replica::{Gate, Health, Replica, Request, Step};
use crate::support::{A_WHILE, Router, Setting, chat, check_error, eventually, within};

const CHAT: &str = "/v1/chat/completions";

/// No connection is reused, so that what dies is a replica's answer and not an old connection.
const FRESH: Setting<'_> = ("pool_max_idle", "0");

/// Two replicas, and a request whose first choice is `a`.
async fn pair(settings: &[Setting<'_>]) -> (Replica, Replica, Router, String) {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let router = Router::start(&[&a, &b], &[&[FRESH], settings].concat()).await;
    let body = router.chat_for(&a, "x").await;
    a.forget();
    (a, b, router, body)
}

/// Inference requests that a replica has seen; the rest are checks.
fn inferences(replica: &Replica) -> usize {
    replica.requests().iter().filter(|request| request.head.start.starts_with("POST")).count()
}

async fn state(router: &Router, replica: &str) -> String {
    for state in ["unknown", "up", "suspect", "down", "draining"] {
        if router.metric("prefix_router_replica_state", &[("replica", replica), ("state", state)]).await == 1.0 {
            return state.to_owned();
        }
    }
    "none".to_owned()
}

#[tokio::test]
async fn requests_that_break_in_a_row_eject_though_checks_pass() {
    let (a, _b, router, body) = pair(&[("eject_failures", "3"), ("eject_time", "60s"), ("retry_budget_floor", "100")]).await;
    a.script(reset);
    for _ in 0..6 {
        let response = router.post(CHAT, &body).await;
        assert_eq!((response.status, response.replica()), (200, "b"));
    }
    assert_eq!(inferences(&a), 3, "then it is left alone");
    assert_eq!(state(&router, "a").await, "down");
}

#[tokio::test]
async fn a_good_answer_between_them_forgives() {
    let (a, _b, router, body) = pair(&[("eject_failures", "3"), ("retry_budget_floor", "100")]).await;
    for _ in 0..4 {
        a.script(reset);
        router.post(CHAT, &body).await;
        router.post(CHAT, &body).await;
        a.script(ok);
        assert_eq!(router.post(CHAT, &body).await.replica(), "a");
    }
    assert_eq!(state(&router, "a").await, "up");
}

#[tokio::test]
async fn one_request_tries_who_was_ejected_and_its_answer_decides() {
    let settings = [("eject_failures", "1"), ("eject_time", "200ms"), ("eject_time_max", "200ms"), ("retry_budget_floor", "100")];
    let (a, _b, router, body) = pair(&settings).await;
    a.script(reset);
    assert_eq!(router.post(CHAT, &body).await.replica(), "b");
    assert_eq!(state(&router, "a").await, "down");
    let gate = Gate::new();
    a.script(ok_after(&gate));
    router.has_state("a", "suspect").await;
    a.forget();
    // One goes there and waits; meanwhile everybody else goes elsewhere.
    let mut trial = Client::connect(router.traffic).await;
    trial.start("POST", CHAT, "", &body).await;
    eventually("the trial", async || inferences(&a) == 1).await;
    for _ in 0..5 {
        let response = router.post(CHAT, &body).await;
        assert_eq!((response.replica(), response.reason()), ("b", "failover"));
    }
    assert_eq!(state(&router, "a").await, "suspect");
    gate.open();
    assert_eq!(trial.response("POST").await.status, 200);
    assert_eq!(state(&router, "a").await, "up");
    assert_eq!(router.post(CHAT, &body).await.replica(), "a");
}

#[tokio::test]
async fn a_trial_whose_client_leaves_says_nothing_and_the_next_request_is_the_trial() {
    let settings = [("eject_failures", "1"), ("eject_time", "100ms"), ("retry_budget_floor", "100")];
    let (a, _b, router, body) = pair(&settings).await;
    a.script(reset);
    router.post(CHAT, &body).await;
    router.has_state("a", "suspect").await;
    a.script(hang);
    a.forget();
    let mut trial = Client::connect(router.traffic).await;
    trial.start("POST", CHAT, "", &body).await;
    eventually("the trial", async || inferences(&a) == 1).await;
    drop(trial);
    router.is_at_rest().await;
    assert_eq!(state(&router, "a").await, "suspect");
    a.script(|_| answer(400, "", "no"));
    assert_eq!(router.post(CHAT, &body).await.status, 400);
    assert_eq!(state(&router, "a").await, "suspect", "a bad request says nothing either");
    a.script(ok);
    assert_eq!(router.post(CHAT, &body).await.replica(), "a");
    assert_eq!(state(&router, "a").await, "up");
}

#[tokio::test]
async fn a_failed_trial_ejects_for_longer() {
    let settings = [("eject_failures", "1"), ("eject_time", "200ms"), ("eject_time_max", "60s"), ("retry_budget_floor", "100")];
    let (a, _b, router, body) = pair(&settings).await;
    a.script(reset);
    let mut times = Vec::new();
    for _ in 0..3 {
        router.post(CHAT, &body).await;
        let out = Instant::now();
        assert_eq!(state(&router, "a").await, "down");
        router.has_state("a", "suspect").await;
        times.push(out.elapsed());
    }
    // Chance takes a fifth at most.
    for (time, least) in times.iter().zip([160, 320, 640]) {
        assert!(*time >= Duration::from_millis(least), "{times:?}");
    }
}

#[tokio::test]
async fn a_share_of_5xx_without_a_body_ejects_and_with_a_body_it_does_not() {
    let settings = [("eject_error_volume", "8"), ("eject_error_percent", "50"), ("eject_time", "60s")];
    let chunked_nothing = |_: &Request| {
        vec![Step::Write(b"HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()), Step::Write(b"0\r\n\r\n".to_vec())]
    };
    for way in 0..3 {
        let (a, _b, router, body) = pair(&settings).await;
        match way {
            0 => a.script(|_| answer(500, "", "")),
            1 => a.script(chunked_nothing),
            _ => a.script(|_| answer(500, "", "why")),
        }
        for number in 0..8 {
            assert_eq!(state(&router, "a").await, "up", "{number} of way {way}");
            assert_eq!(router.post(CHAT, &body).await.status, 500, "it is an answer, and passes");
        }
        assert_eq!(state(&router, "a").await, if way < 2 { "down" } else { "up" }, "way {way}");
    }
}

#[tokio::test]
async fn so_does_a_share_of_answers_that_break_off() {
    let (a, _b, router, body) = pair(&[("eject_error_volume", "8"), ("eject_error_percent", "50"), ("eject_time", "60s")]).await;
    a.script(|_| vec![head(), chunk(event(0)), Step::Reset]);
    for number in 0..5 {
        assert_eq!(state(&router, "a").await, "up", "{number}");
        assert_eq!(router.post(CHAT, &body).await.replica(), "a");
        router.has_metric("prefix_router_errors_total", &[("error", "replica_broke")], f64::from(number + 1)).await;
    }
    // Five bad ends, and four good beginnings since the first of them.
    router.has_state("a", "down").await;
    assert_eq!(router.post(CHAT, &body).await.replica(), "b");
}

#[tokio::test]
async fn a_replica_that_answers_requests_is_not_in_doubt_for_a_slow_check() {
    let (a, _b, router, body) = pair(&[("health_check_timeout", "300ms"), ("health_check_fall", "100")]).await;
    a.health(Health::Hang);
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(1_500) {
        let response = router.post(CHAT, &body).await;
        assert_eq!((response.replica(), response.reason()), ("a", "home"), "after {:?}", since.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_busy_replica_is_left_alone_as_long_as_it_says_and_no_longer_than_allowed() {
    // (Retry-After, busy_time, busy_time_max, how long in ms)
    let cases = [("1", "60s", "60s", 1_000), ("3600", "60s", "600ms", 600), ("", "500ms", "60s", 500)];
    for (retry_after, busy_time, busy_time_max, least) in cases {
        let (a, _b, router, body) = pair(&[("busy_time", busy_time), ("busy_time_max", busy_time_max)]).await;
        let field = if retry_after.is_empty() { String::new() } else { format!("retry-after: {retry_after}\r\n") };
        a.script(move |_| answer(503, &field, "busy"));
        let since = Instant::now();
        assert_eq!(router.post(CHAT, &body).await.replica(), "b");
        a.script(ok);
        let response = router.post(CHAT, &body).await;
        assert_eq!((response.replica(), response.reason()), ("b", "failover"), "{retry_after}");
        assert_eq!(state(&router, "a").await, "up", "busy is not dead");
        eventually("it gets requests again", async || router.post(CHAT, &body).await.replica() == "a").await;
        assert!(since.elapsed() >= Duration::from_millis(least), "{retry_after}: after {:?}", since.elapsed());
    }
}

#[tokio::test]
async fn where_all_are_busy_requests_are_sent_all_the_same() {
    let (a, b, router, body) = pair(&[]).await;
    for replica in [&a, &b] {
        replica.script(|_| answer(429, "retry-after: 60\r\n", "busy"));
    }
    assert_eq!(router.post(CHAT, &body).await.status, 429);
    a.script(ok);
    b.script(ok);
    assert_eq!(router.post(CHAT, &body).await.status, 200);
}

#[tokio::test]
async fn first_bytes_that_do_not_come_in_time_count_and_those_that_the_client_gave_less_time_do_not() {
    let (a, _b, router, body) = pair(&[("first_byte_timeout", "150ms"), ("eject_failures", "2"), ("eject_time", "60s")]).await;
    a.script(hang);
    for time in ["0.05", "50ms", "0.05s"] {
        let fields = format!("content-type: application/json\r\nx-prefix-router-timeout: {time}\r\n");
        let response = router.send("POST", CHAT, &fields, &body).await;
        check_error(&response, CHAT, 504, "timeout_exceeded");
    }
    // A head without a body does not make it good.
    a.script(|_| vec![head(), Step::Hang]);
    let fields = "content-type: application/json\r\nx-prefix-router-timeout: 0.05\r\n";
    check_error(&router.send("POST", CHAT, fields, &body).await, CHAT, 504, "timeout_exceeded");
    assert_eq!(state(&router, "a").await, "up");
    for _ in 0..2 {
        check_error(&router.post(CHAT, &body).await, CHAT, 504, "first_byte_timeout");
    }
    assert_eq!(state(&router, "a").await, "down");
}

#[tokio::test]
async fn a_time_that_cannot_be_meant_is_refused() {
    let (a, _b, router, body) = pair(&[]).await;
    for time in
        ["18446744073709551615s 1000000000ns", "999999999999d", "", "0", "-1", "soon", "1 fortnight", "inf", "nan", "86401", "1e300"]
    {
        let response = router.send("POST", CHAT, &format!("x-prefix-router-timeout: {time}\r\n"), &body).await;
        check_error(&response, CHAT, 400, "bad_timeout");
    }
    let twice = "x-prefix-router-timeout: 1\r\nx-prefix-router-timeout: 2\r\n";
    check_error(&router.send("POST", CHAT, twice, &body).await, CHAT, 400, "bad_timeout");
    assert_eq!(inferences(&a), 0);
    for time in ["86400", "24h", "1m 30s", "0.5"] {
        assert_eq!(router.send("POST", CHAT, &format!("x-prefix-router-timeout: {time}\r\n"), &body).await.status, 200, "{time}");
    }
}

#[tokio::test]
async fn a_client_whose_time_is_over_gets_no_further_try() {
    let (a, b, router, body) = pair(&[]).await;
    a.script(|_| vec![Step::Sleep(Duration::from_millis(200)), Step::Reset]);
    b.forget();
    let response = router.send("POST", CHAT, "x-prefix-router-timeout: 100ms\r\n", &body).await;
    check_error(&response, CHAT, 504, "timeout_exceeded");
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(inferences(&b), 0);
}

#[tokio::test]
async fn a_hung_replica_is_passed_over_from_its_first_missed_check_on() {
    let (a, _b, router, body) = pair(&[("health_check_timeout", "100ms"), ("health_check_fall", "100")]).await;
    a.health(Health::Hang);
    router.has_state("a", "suspect").await;
    let response = router.post(CHAT, &body).await;
    assert_eq!((response.replica(), response.reason()), ("b", "failover"));
    a.health(Health::Good);
    router.has_state("a", "up").await;
    assert_eq!(router.post(CHAT, &body).await.reason(), "home");
}

#[tokio::test]
async fn checks_notice_at_once_that_nobody_listens() {
    let (a, _b, router, _body) = pair(&[("health_check_fall", "100")]).await;
    a.stop().await;
    router.has_state("a", "down").await;
}

#[tokio::test]
async fn a_replica_that_lives_is_asked_again_only_within_the_budget() {
    let (a, b, router, body) = pair(&[("retry_budget_percent", "0"), ("retry_budget_floor", "0")]).await;
    a.script(reset);
    b.forget();
    check_error(&router.post(CHAT, &body).await, CHAT, 502, "replica_broke");
    assert_eq!(inferences(&b), 0);
    router.has_metric("prefix_router_retries_refused_total", &[], 1.0).await;
    // Gone for good, it costs nothing to go elsewhere.
    a.stop().await;
    assert_eq!(router.post(CHAT, &body).await.replica(), "b");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_on_a_replica_that_is_out_move_as_the_budget_fills() {
    // Ten can be saved up and ten come each second.
    const WAITING: usize = 15;
    let settings =
        [("retry_budget_percent", "0"), ("retry_budget_floor", "1"), ("health_check_fall", "1"), ("health_check_timeout", "100ms")];
    let (a, _b, router, body) = pair(&settings).await;
    a.script(hang);
    let mut clients = JoinSet::new();
    for _ in 0..WAITING {
        let (traffic, body) = (router.traffic, body.clone());
        clients.spawn(async move { Client::connect(traffic).await.request("POST", CHAT, "", body).await });
    }
    eventually("the requests wait", async || inferences(&a) == WAITING).await;
    a.health(Health::Hang);
    for response in within("answers to all", clients.join_all()).await {
        assert_eq!((response.status, response.replica()), (200, "b"));
    }
    router.is_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_returns_is_not_run_over() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let settings = [FRESH, ("strategy", "least_outstanding"), ("slow_start", "60s"), ("health_check_fall", "1")];
    let router = Router::start(&[&a, &b], &settings).await;
    a.health(Health::Status(503));
    router.has_state("a", "down").await;
    let gate = Gate::new();
    for replica in [&a, &b] {
        replica.script(ok_after(&gate));
        replica.forget();
    }
    let mut clients = JoinSet::new();
    let mut send = || {
        let traffic = router.traffic;
        clients.spawn(async move { Client::connect(traffic).await.request("POST", CHAT, "", chat("x")).await });
    };
    (0..40).for_each(|_| send());
    eventually("all wait at the other", async || inferences(&b) == 40).await;
    a.health(Health::Good);
    router.has_state("a", "up").await;
    // The least loaded by far, it would get them all.
    (0..10).for_each(|_| send());
    eventually("all wait", async || inferences(&a) + inferences(&b) == 50).await;
    let share = inferences(&a);
    assert!((1..=5).contains(&share), "{share} of 10");
    gate.open();
    for response in within("answers to all", clients.join_all()).await {
        assert_eq!(response.status, 200);
    }
    router.is_at_rest().await;
}
