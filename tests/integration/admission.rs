//! Limits that hold to the last request, and who waits for what: in which order, how long, how many.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::answers::{answer, ok, reset};
use crate::client::{Client, Response};
use crate::h2::H2;
use crate::replica::{Gate, Health, Replica, Request, Step};
use crate::support::{Router, Setting, chat, check_error, eventually, list};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

/// One at a time.
const ONE: Setting<'_> = ("max_outstanding", "1");

/// The prompt of a request that is answered when the test says so.
const HELD: &str = "held";

/// Answers at once, but what is [`HELD`] after `gate`.
fn holding(gate: &Gate) -> impl Fn(&Request) -> Vec<Step> + Send + Sync + use<> {
    let gate = gate.clone();
    move |request| {
        if text(request).contains(HELD) { [vec![Step::Wait(gate.clone())], ok(request)].concat() } else { ok(request) }
    }
}

fn text(request: &Request) -> String {
    String::from_utf8_lossy(&request.body).into_owned()
}

/// Sends a request and does not wait for its answer.
async fn start(router: &Router, target: &str, fields: &str, body: &str) -> Client {
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", target, fields, body).await;
    client
}

/// So many wait, as the metrics say.
async fn waits(router: &Router, count: usize) {
    router.has_metric("prefix_router_queue_requests", &[], count as f64).await;
}

/// All that was counted has ended.
async fn is_at_rest(router: &Router) {
    router.is_at_rest().await;
    waits(router, 0).await;
    router.has_metric("prefix_router_queue_bytes", &[], 0.0).await;
}

/// A replica that takes one at a time and is busy until the gate opens.
async fn busy(settings: &[Setting<'_>]) -> (Replica, Router, Gate, Client) {
    let gate = Gate::new();
    let replica = Replica::start("a", holding(&gate));
    let router = Router::start(&[&replica], &[&[ONE], settings].concat()).await;
    let first = start(&router, CHAT, "", &chat(HELD)).await;
    replica.has_requests(1).await;
    (replica, router, gate, first)
}

/// Refused, with a time after which to ask again.
fn check_refused(response: &Response, target: &str, code: &str) {
    check_error(response, target, 429, code);
    let json: serde_json::Value = serde_json::from_str(&response.text()).unwrap();
    assert_eq!(json["error"]["type"], "rate_limit_error", "{target}");
    let seconds: u64 = response.head.get("retry-after").expect("Retry-After").parse().expect("seconds");
    assert!((1..=60).contains(&seconds), "{seconds}");
}

/// Which requests came, in their order, by a word in their prompt.
fn order(replica: &Replica, words: &[&str]) -> Vec<String> {
    let requests = replica.requests();
    requests.iter().filter_map(|request| words.iter().find(|word| text(request).contains(**word))).map(|word| (*word).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_burst_exceeds_a_limit_even_by_one() {
    const BURST: usize = 80;
    // Limits per replica and in all; how many one replica may see, and all together do see.
    for (limits, each, all) in [
        ([("max_outstanding", "3"), ("max_outstanding_total", "0")], 3, 6),
        ([("max_outstanding", "0"), ("max_outstanding_total", "4")], 4, 4),
        ([("max_outstanding", "3"), ("max_outstanding_total", "5")], 3, 5),
    ] {
        for strategy in ["prefix_aware", "cache_aware", "least_outstanding", "round_robin", "random"] {
            let total = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
            let counts = [Arc::new((AtomicUsize::new(0), AtomicUsize::new(0))), Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)))];
            let counting = |own: usize| {
                let mine = [Arc::clone(&counts[own]), Arc::clone(&total)];
                move |request: &Request| {
                    for (now, most) in mine.iter().map(Arc::as_ref) {
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    }
                    // It goes down before the answer is out, as the next may come with that.
                    let mine = mine.clone();
                    let down = Step::Do(Arc::new(move || {
                        for (now, _) in mine.iter().map(Arc::as_ref) {
                            now.fetch_sub(1, Ordering::SeqCst);
                        }
                    }));
                    [vec![Step::Sleep(Duration::from_millis(2)), down], ok(request)].concat()
                }
            };
            let (a, b) = (Replica::start("a", counting(0)), Replica::start("b", counting(1)));
            let router = Router::start(&[&a, &b], &[&limits[..], &[("strategy", strategy)]].concat()).await;
            let mut clients = tokio::task::JoinSet::new();
            for number in 0..BURST {
                let mut client = start(&router, CHAT, "", &chat(&number.to_string())).await;
                clients.spawn(async move { client.response("POST").await.status });
            }
            assert_eq!(clients.join_all().await, [200; BURST], "{strategy}");
            let most = |counts: &(AtomicUsize, AtomicUsize)| counts.1.load(Ordering::SeqCst);
            assert!(counts.iter().all(|counts| most(counts) <= each), "{strategy} {limits:?}: {counts:?}");
            assert_eq!(most(&total), all, "{strategy} {limits:?}: reached, and not exceeded");
            is_at_rest(&router).await;
        }
    }
}

#[tokio::test]
async fn who_waits_is_served_in_the_order_of_coming() {
    let (replica, router, gate, mut first) = busy(&[]).await;
    let words = ["one", "two", "three", "four"];
    let mut clients = Vec::new();
    for (count, word) in words.iter().enumerate() {
        clients.push(start(&router, CHAT, "", &chat(word)).await);
        waits(&router, count + 1).await;
    }
    assert_eq!(replica.count(), 1);
    let bytes: usize = words.iter().map(|word| chat(word).len()).sum();
    router.has_metric("prefix_router_queue_bytes", &[], bytes as f64).await;
    gate.open();
    assert_eq!(first.response("POST").await.status, 200);
    for client in &mut clients {
        assert_eq!(client.response("POST").await.status, 200);
    }
    assert_eq!(order(&replica, &words), words);
    is_at_rest(&router).await;
    router.has_metric("prefix_router_queue_seconds_count", &[], 4.0).await;
    router.has_metric("prefix_router_queue_refused_total", &[], 0.0).await;
}

#[tokio::test]
async fn nothing_waits_by_default() {
    let gate = Gate::new();
    let replica = Replica::start("a", holding(&gate));
    let router = Router::start(&[&replica], &[("queue_max_requests", "0")]).await;
    let mut clients = Vec::new();
    for _ in 0..100 {
        // What would be refused otherwise means nothing.
        clients.push(start(&router, CHAT, "x-prefix-router-priority: urgent\r\n", &chat(HELD)).await);
    }
    replica.has_requests(100).await;
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response("POST").await.status, 200);
    }
    router.has_metric("prefix_router_queue_seconds_count", &[], 0.0).await;
}

#[tokio::test]
async fn a_full_queue_refuses_by_count() {
    let (replica, router, gate, mut first) = busy(&[("queue_max_requests", "2")]).await;
    let mut clients = [start(&router, CHAT, "", &chat("x")).await, start(&router, CHAT, "", &chat("x")).await];
    waits(&router, 2).await;
    for target in [CHAT, MESSAGES, "/v1/responses", "/v1/embeddings", "/tokenize"] {
        check_refused(&router.post(target, chat("late")).await, target, "queue_full");
    }
    let label = ("bound", "queue_max_requests");
    router.has_metric("prefix_router_queue_refused_total", &[label], 5.0).await;
    router.has_metric("prefix_router_errors_total", &[("error", "queue_full")], 5.0).await;
    gate.open();
    for client in [&mut first].into_iter().chain(&mut clients) {
        assert_eq!(client.response("POST").await.status, 200);
    }
    assert!(order(&replica, &["late"]).is_empty());
    is_at_rest(&router).await;
}

#[tokio::test]
async fn a_full_queue_refuses_by_bytes() {
    let (_replica, router, gate, _first) = busy(&[("queue_max_bytes", "1000B")]).await;
    let mut waiting = start(&router, CHAT, "", &chat(&"x".repeat(600))).await;
    waits(&router, 1).await;
    for target in [CHAT, MESSAGES] {
        check_refused(&router.post(target, chat(&"x".repeat(500))).await, target, "queue_full");
    }
    router.has_metric("prefix_router_queue_refused_total", &[("bound", "queue_max_bytes")], 2.0).await;
    // A smaller one finds room still.
    let mut small = start(&router, CHAT, "", &chat("x")).await;
    waits(&router, 2).await;
    gate.open();
    assert_eq!((waiting.response("POST").await.status, small.response("POST").await.status), (200, 200));
}

#[tokio::test]
async fn nobody_waits_longer_than_the_timeout() {
    let (replica, router, _gate, _first) = busy(&[("queue_timeout", "200ms")]).await;
    for target in [CHAT, MESSAGES] {
        let begun = Instant::now();
        check_refused(&router.post(target, chat("x")).await, target, "queue_timeout");
        assert!(begun.elapsed() >= Duration::from_millis(200));
    }
    router.has_metric("prefix_router_queue_refused_total", &[("bound", "queue_timeout")], 2.0).await;
    router.has_metric("prefix_router_queue_seconds_count", &[], 2.0).await;
    waits(&router, 0).await;
    assert_eq!(replica.count(), 1);
}

#[tokio::test]
async fn a_client_that_leaves_gives_up_its_place_at_once() {
    let (replica, router, gate, _first) = busy(&[("queue_max_requests", "1")]).await;
    let mut h2 = H2::connect(&router).await;
    for way in 0..3 {
        if way == 2 {
            let asking = tokio::time::timeout(Duration::from_millis(100), h2.request("POST", CHAT, chat("gone")));
            assert!(asking.await.is_err());
        } else {
            let gone = start(&router, CHAT, "", &chat("gone")).await;
            waits(&router, 1).await;
            if way == 0 {
                drop(gone);
            } else {
                gone.reset();
            }
        }
        waits(&router, 0).await;
        router.has_metric("prefix_router_queue_bytes", &[], 0.0).await;
        router.has_metric("prefix_router_client_aborts_total", &[], f64::from(way + 1)).await;
    }
    let mut next = start(&router, CHAT, "", &chat("next")).await;
    waits(&router, 1).await;
    gate.open();
    assert_eq!(next.response("POST").await.status, 200);
    assert_eq!(order(&replica, &["gone", "next"]), ["next"]);
    is_at_rest(&router).await;
}

#[tokio::test]
async fn one_identifier_does_not_wait_for_all_of_another() {
    // By header and by body; each request costs more than a turn's worth.
    let (replica, router, gate, mut first) = busy(&[]).await;
    let long = "x".repeat(20_000);
    let mut clients = Vec::new();
    for _ in 0..6 {
        let fields = "x-amzn-sagemaker-prefix-aware-id: greedy\r\n";
        clients.push(start(&router, CHAT, fields, &chat(&format!("greedy {long}"))).await);
        waits(&router, clients.len()).await;
    }
    for _ in 0..2 {
        let body = serde_json::json!({"prompt_cache_key": "modest", "messages": [{"role": "user", "content": format!("modest {long}")}]});
        clients.push(start(&router, CHAT, "", &body.to_string()).await);
        waits(&router, clients.len()).await;
    }
    gate.open();
    assert_eq!(first.response("POST").await.status, 200);
    for client in &mut clients {
        assert_eq!(client.response("POST").await.status, 200);
    }
    let order = order(&replica, &["greedy", "modest"]);
    let last = order.iter().rposition(|word| word == "modest").unwrap();
    assert!(last <= 4, "{order:?}");
    is_at_rest(&router).await;
}

#[tokio::test]
async fn priorities_come_first_by_header_and_by_body() {
    let (replica, router, gate, mut first) = busy(&[]).await;
    let with =
        |word: &str, priority: i64| serde_json::json!({"priority": priority, "messages": [{"role": "user", "content": word}]}).to_string();
    let requests = [
        ("fifth", "", with("fifth", 9)),
        ("third", "", chat("third")),
        ("second", "", with("second", -1)),
        ("fourth", "x-prefix-router-priority: 5\r\n", with("fourth", -1_000)),
        ("first", "x-prefix-router-priority: -7\r\n", chat("first")),
    ];
    let mut clients = Vec::new();
    for (_, fields, body) in &requests {
        clients.push(start(&router, CHAT, fields, body).await);
        waits(&router, clients.len()).await;
    }
    gate.open();
    assert_eq!(first.response("POST").await.status, 200);
    for client in &mut clients {
        assert_eq!(client.response("POST").await.status, 200);
    }
    let words = ["first", "second", "third", "fourth", "fifth"];
    assert_eq!(order(&replica, &words), words);
    let urgent = replica.requests().into_iter().find(|request| text(request).contains("first")).unwrap();
    assert_eq!(urgent.head.get("x-prefix-router-priority"), Some("-7"), "it passes like any other header");
}

#[tokio::test]
async fn a_priority_that_is_none_is_refused() {
    let (replica, router, _gate, _first) = busy(&[]).await;
    for target in [CHAT, MESSAGES] {
        for value in ["", "urgent", "1.5", "1001", "-1001", "5\r\nx-prefix-router-priority: 5"] {
            let response = router.send("POST", target, &format!("x-prefix-router-priority: {value}\r\n"), chat("x")).await;
            check_error(&response, target, 400, "bad_priority");
        }
    }
    assert_eq!(replica.count(), 1);
}

#[tokio::test]
async fn who_has_waited_long_enough_goes_before_the_urgent() {
    let (replica, router, gate, mut first) = busy(&[("queue_aging", "10ms")]).await;
    let mut patient = start(&router, CHAT, "x-prefix-router-priority: 10\r\n", &chat("patient")).await;
    waits(&router, 1).await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    let mut urgent = start(&router, CHAT, "x-prefix-router-priority: 0\r\n", &chat("urgent")).await;
    waits(&router, 2).await;
    gate.open();
    for client in [&mut first, &mut patient, &mut urgent] {
        assert_eq!(client.response("POST").await.status, 200);
    }
    assert_eq!(order(&replica, &["patient", "urgent"]), ["patient", "urgent"]);
}

#[tokio::test]
async fn a_model_without_room_holds_up_no_other() {
    let gate = Gate::new();
    let (a, b) = (Replica::start("a", holding(&gate)), Replica::start("b", ok));
    let replicas = format!("replicas:\n  - {{url: {}, name: a, models: [x]}}\n  - {{url: {}, name: b, models: [y]}}\n", a.url(), b.url());
    let router = Router::start_with(&replicas, &[ONE, ("queue_max_requests", "3")]).await;
    for replica in [&a, &b] {
        router.has_state(replica.name, "up").await;
    }
    let ask = |model: &str, text: &str| serde_json::json!({"model": model, "messages": [{"role": "user", "content": text}]}).to_string();
    let mut clients = vec![start(&router, CHAT, "", &ask("x", HELD)).await];
    a.has_requests(1).await;
    for _ in 0..3 {
        clients.push(start(&router, CHAT, "", &ask("x", "x")).await);
        waits(&router, clients.len() - 1).await;
    }
    // Not even a queue that is full of the one's.
    for _ in 0..5 {
        assert_eq!(router.post(CHAT, ask("y", "y")).await.replica(), "b");
    }
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response("POST").await.replica(), "a");
    }
    is_at_rest(&router).await;
}

#[tokio::test]
async fn who_waits_for_a_replica_that_dies_is_served_by_others() {
    let (never, gate) = (Gate::new(), Gate::new());
    let (a, b) = (Replica::start("a", holding(&never)), Replica::start("b", holding(&gate)));
    let router = Router::start(&[&a, &b], &[ONE, ("strategy", "least_outstanding")]).await;
    let mut clients = vec![start(&router, CHAT, "", &chat(HELD)).await];
    eventually("one is busy", async || a.count() + b.count() == 1).await;
    clients.push(start(&router, CHAT, "", &chat(HELD)).await);
    eventually("both are busy", async || (a.count(), b.count()) == (1, 1)).await;
    for count in 1..=4 {
        clients.push(start(&router, CHAT, "", &chat("x")).await);
        waits(&router, count).await;
    }
    a.stop().await;
    router.has_state("a", "down").await;
    // What died with `a` waits too, and tries nobody twice.
    waits(&router, 5).await;
    gate.open();
    for client in &mut clients {
        let response = client.response("POST").await;
        assert_eq!((response.status, response.replica()), (200, "b"));
    }
    assert_eq!((a.count(), b.count()), (1, 6));
    is_at_rest(&router).await;
}

#[tokio::test]
async fn a_replica_that_comes_up_takes_who_waits() {
    let gate = Gate::new();
    let (a, b) = (Replica::start("a", holding(&gate)), Replica::refusing("b", ok));
    let router = Router::start_cold(&[&a, &b], &[ONE]).await;
    router.has_state("a", "up").await;
    router.has_state("b", "down").await;
    let _first = start(&router, CHAT, "", &chat(HELD)).await;
    a.has_requests(1).await;
    let mut clients = Vec::new();
    for count in 1..=3 {
        clients.push(start(&router, CHAT, "", &chat("x")).await);
        waits(&router, count).await;
    }
    b.restart();
    for client in &mut clients {
        assert_eq!(client.response("POST").await.replica(), "b");
    }
    gate.open();
    is_at_rest(&router).await;
}

#[tokio::test]
async fn a_retry_waits_for_its_next_replica_and_holds_none_meanwhile() {
    let gate = Gate::new();
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let router = Router::start_blind(&[&a, &b], &[ONE]).await;
    let (to_a, to_b) = (router.chat_for(&a, "x").await, router.chat_for(&b, HELD).await);
    a.script(reset);
    b.script(holding(&gate));
    let base = b.count();
    let mut first = start(&router, CHAT, "", &to_b).await;
    b.has_requests(base + 1).await;
    let mut second = start(&router, CHAT, "", &to_a).await;
    waits(&router, 1).await;
    router.has_metric("prefix_router_outstanding", &[("replica", "a")], 0.0).await;
    gate.open();
    assert_eq!(first.response("POST").await.status, 200);
    let response = second.response("POST").await;
    assert_eq!((response.status, response.replica(), response.reason()), (200, "b", "failover"));
    is_at_rest(&router).await;
}

#[tokio::test]
async fn a_retry_that_may_not_wait_tells_what_was_wrong() {
    let gate = Gate::new();
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let router = Router::start_blind(&[&a, &b], &[ONE, ("queue_max_requests", "0")]).await;
    let (to_a, to_b) = (router.chat_for(&a, "x").await, router.chat_for(&b, HELD).await);
    b.script(holding(&gate));
    let base = b.count();
    let _first = start(&router, CHAT, "", &to_b).await;
    b.has_requests(base + 1).await;
    a.script(|_| answer(429, "retry-after: 17\r\n", "busy"));
    let response = router.post(CHAT, &to_a).await;
    assert_eq!((response.status, response.text().as_str(), response.head.get("retry-after")), (429, "busy", Some("17")));
    a.script(reset);
    check_refused(&router.post(CHAT, &to_a).await, CHAT, "queue_full");
}

#[tokio::test]
async fn who_waits_when_the_router_is_cut_off_is_told_so() {
    let (_replica, router, _gate, _first) = busy(&[("drain_timeout", "300ms")]).await;
    let mut waiting = start(&router, CHAT, "", &chat("x")).await;
    waits(&router, 1).await;
    router.drain();
    check_error(&waiting.response("POST").await, CHAT, 503, "draining");
    router.stopped().await;
}

#[tokio::test]
async fn who_waits_when_the_router_drains_is_still_served() {
    let (_replica, router, gate, mut first) = busy(&[]).await;
    let mut waiting = start(&router, CHAT, "", &chat("x")).await;
    waits(&router, 1).await;
    router.drain();
    eventually("/ready says draining", async || router.admin("/ready").await.status == 503).await;
    gate.open();
    assert_eq!((first.response("POST").await.status, waiting.response("POST").await.status), (200, 200));
    router.stopped().await;
}

#[tokio::test]
async fn a_home_without_room_overflows_before_anybody_waits() {
    let gate = Gate::new();
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let router = Router::start(&[&a, &b], &[ONE]).await;
    let body = router.chat_for(&a, HELD).await;
    for replica in [&a, &b] {
        replica.script(holding(&gate));
        replica.forget();
    }
    let mut clients = Vec::new();
    for _ in 0..2 {
        clients.push(start(&router, CHAT, "", &body).await);
        eventually("it is under way", async || a.count() + b.count() == clients.len()).await;
    }
    clients.push(start(&router, CHAT, "", &body).await);
    waits(&router, 1).await;
    gate.open();
    let mut reasons = Vec::new();
    for client in &mut clients[..2] {
        let response = client.response("POST").await;
        reasons.push((response.replica().to_owned(), response.reason().to_owned()));
    }
    assert_eq!(reasons, [("a".to_owned(), "home".to_owned()), ("b".to_owned(), "overflow".to_owned())]);
    assert_eq!(clients[2].response("POST").await.status, 200);
    is_at_rest(&router).await;
}

#[tokio::test]
async fn nobody_waits_where_nobody_could_serve() {
    let router = Router::start_with(&list(&[]).replace("replicas:\n", "replicas: [dns://nowhere.invalid:1]\n"), &[ONE]).await;
    let response = router.post(CHAT, chat("x")).await;
    check_error(&response, CHAT, 503, "no_replica");
}

#[tokio::test]
async fn a_health_check_is_not_a_request() {
    // A replica that is full is checked all the same.
    let (replica, router, gate, _first) = busy(&[]).await;
    replica.health(Health::Status(500));
    router.has_state("a", "down").await;
    replica.health(Health::Good);
    router.has_state("a", "up").await;
    gate.open();
    is_at_rest(&router).await;
}
