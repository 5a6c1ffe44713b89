//! A replica killed under load: what had not begun to answer is answered all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::answers::{echo, event, hang, ok, stream};
use crate::client::{Client, End};
use crate::replica::{Replica, Request, Step};
use crate::support::{Router, Setting, chat, eventually, within};

const CHAT: &str = "/v1/chat/completions";
const CLIENTS: usize = 12;
const EACH: usize = 40;

/// Answers in one piece, so that an answer has either begun and ended, or not begun.
fn soon(request: &Request) -> Vec<Step> {
    [vec![Step::Sleep(Duration::from_millis(5))], ok(request)].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_replica_costs_no_request_that_had_not_begun_to_answer() {
    let replicas = ["a", "b", "c"].map(|name| Replica::start(name, soon));
    let router = Router::start(&[&replicas[0], &replicas[1], &replicas[2]], &[]).await;
    let done = Arc::new(AtomicUsize::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let (traffic, done) = (router.traffic, Arc::clone(&done));
        clients.spawn(async move {
            let mut client = Client::connect(traffic).await;
            for nth in 0..EACH {
                let response = client.request("POST", CHAT, "", chat(&format!("{number} {nth}"))).await;
                assert_eq!((response.status, response.body.end), (200, End::Whole), "{}", response.text());
                done.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    eventually("the load runs", async || done.load(Ordering::SeqCst) > CLIENTS * EACH / 4 && replicas[0].open() > 0).await;
    let before = replicas[0].count();
    replicas[0].stop().await;
    for joined in within("end of the load", clients.join_all()).await {
        let () = joined;
    }
    assert_eq!(done.load(Ordering::SeqCst), CLIENTS * EACH);
    assert!(before > 0 && replicas[0].count() <= before + 1, "the replica took part, and was dead");
    router.is_at_rest().await;

    replicas[0].restart();
    router.has_state("a", "up").await;
    eventually("the replica takes part again", async || {
        let mark = format!("again {}", replicas[1].count());
        router.post(CHAT, chat(&mark)).await.replica() == "a"
    })
    .await;
}

#[tokio::test]
async fn streams_that_had_begun_end_with_an_error_and_the_others_go_on() {
    let replicas = ["a", "b"].map(|name| Replica::start(name, ok));
    let router = Router::start(&[&replicas[0], &replicas[1]], &[]).await;
    let at_a = router.chat_for(&replicas[0], "x").await;
    let at_b = router.chat_for(&replicas[1], "x").await;
    let gate = crate::replica::Gate::new();
    for replica in &replicas {
        let steps = vec![crate::answers::head(), crate::answers::chunk(event(0)), Step::Wait(gate.clone())];
        replica.script(move |_| [steps.clone(), stream(1, Duration::ZERO).split_off(1)].concat());
    }
    let mut streams = Vec::new();
    for body in [&at_a, &at_b] {
        let mut client = Client::connect(router.traffic).await;
        client.start("POST", CHAT, "", body).await;
        let mut framing = client.head().await.response_framing("POST");
        assert_eq!(client.text(&mut framing).await, event(0));
        streams.push((client, framing));
    }
    replicas[0].stop().await;
    let (mut client, framing) = streams.remove(0);
    let body = client.rest(framing).await;
    assert_eq!(body.end, End::Cut);
    assert!(String::from_utf8_lossy(&body.bytes).contains("replica_broke"));
    gate.open();
    let (mut client, framing) = streams.remove(0);
    let body = client.rest(framing).await;
    assert_eq!(body.end, End::Whole);
    assert!(body.bytes.ends_with(b"data: [DONE]\n\n"));
    router.is_at_rest().await;
}

/// More than the retry budget has at hand by default.
const WAITING: usize = 100;

/// `WAITING` of `requests` wait for the first byte of replica `a` when it dies; `b` answers all.
async fn check_death_under_waiting(settings: &[Setting<'_>], requests: usize) {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let router = Router::start_blind(&[&a, &b], settings).await;
    let body = router.chat_for(&a, "x").await;
    a.script(hang);
    b.script(echo);
    a.forget();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..requests {
        let (traffic, body) = (router.traffic, body.clone());
        clients.spawn(async move { Client::connect(traffic).await.request("POST", CHAT, "", body).await });
    }
    eventually("the requests wait", async || a.open() == WAITING).await;
    a.stop().await;
    for response in within("answers to all", clients.join_all()).await {
        assert_eq!((response.status, response.body.end), (200, End::Whole), "{settings:?}: {}", response.text());
        assert_eq!((response.replica(), response.text()), ("b", body.clone()), "{settings:?}");
    }
    assert_eq!(a.count(), WAITING, "{settings:?}: nobody was sent to the dead replica again");
    router.is_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_died_with_its_replica_needs_no_budget_to_be_sent_again() {
    const IN_TURN: Setting<'_> = ("strategy", "round_robin");
    const AT_HOME: Setting<'_> = ("concurrency_threshold", "1000");
    const NO_BUDGET: [Setting<'_>; 2] = [("retry_budget_percent", "0"), ("retry_budget_floor", "0")];
    const CHECKED: [Setting<'_>; 2] = [("health_check_interval", "100ms"), ("health_check_fall", "1")];
    // In turn, every second request goes to the other replica.
    for (way, requests) in [(IN_TURN, 2 * WAITING), (AT_HOME, WAITING)] {
        for more in [&[][..], &NO_BUDGET, &CHECKED, &[("retries", "1")]] {
            check_death_under_waiting(&[&[way], more].concat(), requests).await;
        }
    }
}
