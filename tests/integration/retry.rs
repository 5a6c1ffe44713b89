//! What is tried again, where, how often; and what is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::answers::{answer, chunk, echo, event, hang, head, last_chunk, ok, reset};
use crate::client::{End, Response};
use crate::replica::{Gate, Health, Replica, Request, Step};
use crate::support::{Router, Setting, chat, check_error, eventually};

const CHAT: &str = "/v1/chat/completions";

/// No connection is reused, so that what dies is a replica's answer and not an old connection.
const FRESH: Setting<'_> = ("pool_max_idle", "0");

/// How a replica fails.
type Failing = fn(&Request) -> Vec<Step>;

/// Two replicas, of which `a` fails so, and a request whose first choice is `a`.
struct Pair {
    a: Replica,
    b: Replica,
    router: Router,
    body: String,
}

impl Pair {
    async fn start(settings: &[Setting<'_>], failing: Failing) -> Self {
        let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
        let router = Router::start_blind(&[&a, &b], &[&[FRESH], settings].concat()).await;
        let body = router.chat_for(&a, "x").await;
        a.script(failing);
        b.script(echo);
        a.forget();
        b.forget();
        Self { a, b, router, body }
    }

    async fn post(&self) -> Response {
        self.router.post(CHAT, &self.body).await
    }

    /// `b` answered, with the same body, and it was `a`'s failing once that brought it there.
    async fn check_moved(&self, response: &Response, tries_at_a: usize, cause: &str) {
        assert_eq!((response.status, response.replica(), response.reason()), (200, "b", "failover"), "{cause}");
        assert_eq!(response.text(), self.body, "{cause}");
        assert_eq!((self.a.count(), self.b.count()), (tries_at_a, 1), "{cause}");
        self.router.has_metric("prefix_router_retries_total", &[("cause", cause)], 1.0).await;
        self.router.has_metric("prefix_router_retries_total", &[], 1.0).await;
        self.router.has_metric("prefix_router_choices_total", &[("replica", "b"), ("reason", "failover")], 1.0).await;
        self.router.is_at_rest().await;
    }

    /// `a`'s failure went to the client, and `b` never heard of it.
    fn check_stayed(&self, response: &Response, target: &str, code: &str) {
        check_error(response, target, 502, code);
        assert_eq!((self.a.count(), self.b.count()), (1, 0), "{target}");
    }
}

#[tokio::test]
async fn a_refused_connection_moves_the_request() {
    let pair = Pair::start(&[], ok).await;
    pair.a.stop().await;
    pair.check_moved(&pair.post().await, 0, "connect").await;
    pair.router.has_metric("prefix_router_upstream_errors_total", &[("replica", "a"), ("kind", "connect")], 1.0).await;
}

#[tokio::test]
async fn a_death_before_the_first_byte_moves_the_request_though_it_was_written() {
    let ways: [Failing; 4] = [
        reset,
        |_| vec![Step::Fin],
        |_| vec![Step::Write(b"HTTP/1.1 200 O".to_vec()), Step::Fin],
        |_| vec![Step::Write(b"SSH-2.0-OpenSSH\r\n\r\n".to_vec()), Step::Fin],
    ];
    for failing in ways {
        let pair = Pair::start(&[], failing).await;
        pair.check_moved(&pair.post().await, 1, "broke").await;
        pair.router.has_metric("prefix_router_upstream_errors_total", &[("replica", "a"), ("kind", "broke")], 1.0).await;
    }
}

#[tokio::test]
async fn busy_replicas_are_passed_over() {
    let ways: [Failing; 2] = [|_| answer(429, "retry-after: 7\r\n", "busy"), |_| answer(503, "retry-after: 7\r\n", "busy")];
    for failing in ways {
        let pair = Pair::start(&[], failing).await;
        pair.check_moved(&pair.post().await, 1, "busy").await;
        pair.router.has_metric("prefix_router_upstream_errors_total", &[("replica", "a"), ("kind", "busy")], 1.0).await;
        // Busy is not dead.
        pair.router.has_state("a", "up").await;
    }
}

#[tokio::test]
async fn other_statuses_are_answers() {
    for status in [400, 401, 404, 408, 413, 422, 500, 501, 502, 504] {
        let pair = Pair::start(&[], ok).await;
        pair.a.script(move |_| answer(status, "", "as it is"));
        let response = pair.post().await;
        assert_eq!((response.status, response.text().as_str(), response.replica()), (status, "as it is", "a"));
        assert_eq!((pair.a.count(), pair.b.count()), (1, 0), "{status}");
    }
}

#[tokio::test]
async fn when_tries_end_the_last_busy_answer_passes_unchanged() {
    for status in [429, 503] {
        let fields = "retry-after: 7\r\nx-ratelimit-remaining: 0\r\ncontent-type: application/json\r\n";
        let pair = Pair::start(&[("retries", "5")], ok).await;
        pair.a.script(move |_| answer(status, fields, "first"));
        pair.b.script(move |_| answer(status, fields, "last"));
        let response = pair.post().await;
        assert_eq!((response.status, response.text().as_str()), (status, "last"));
        assert_eq!(response.head.all("retry-after"), ["7"]);
        assert_eq!(response.head.all("x-ratelimit-remaining"), ["0"]);
        assert_eq!(response.head.get("x-prefix-router-error"), None);
        // Tries were left, replicas were not.
        assert_eq!((pair.a.count(), pair.b.count()), (1, 1));
        pair.router.is_at_rest().await;
    }
}

#[tokio::test]
async fn a_busy_answer_beats_a_later_replica_that_is_dead() {
    let pair = Pair::start(&[], |_| answer(429, "retry-after: 7\r\n", "busy")).await;
    pair.b.stop().await;
    let response = pair.post().await;
    assert_eq!((response.status, response.replica()), (429, "a"), "{response:?}");
    assert_eq!(pair.a.count(), 1, "never to a replica already tried");
}

/// `a` is busy and says so in these bytes; `b` works for a while and breaks. Meanwhile nothing is outstanding at `a`, and afterwards its
/// answer passes.
async fn check_kept(status: u16, framing: &'static [u8], whole: &[u8]) {
    let fields = "retry-after: 7\r\nx-ratelimit-remaining: 0\r\nx-many: 1\r\nx-many: 2\r\ncontent-type: application/json\r\n";
    let pair = Pair::start(&[], ok).await;
    pair.a.script(move |_| {
        let head = format!("HTTP/1.1 {status} Busy\r\n{fields}");
        vec![Step::Write([head.as_bytes(), framing].concat()), Step::Fin]
    });
    let gate = Gate::new();
    let works = gate.clone();
    pair.b.script(move |_| vec![Step::Wait(works.clone()), Step::Reset]);
    let (response, ()) = tokio::join!(pair.post(), async {
        pair.b.has_requests(1).await;
        let outstanding = async |name| pair.router.metric("prefix_router_outstanding", &[("replica", name)]).await;
        assert_eq!((outstanding("a").await, outstanding("b").await), (0.0, 1.0));
        gate.open();
    });
    assert_eq!((response.status, response.body.end), (status, End::Whole), "{response:?}");
    assert_eq!(response.body.bytes, whole);
    assert_eq!((response.replica(), response.reason()), ("a", "home"));
    for line in fields.trim_end().split("\r\n") {
        let (name, value) = line.split_once(": ").unwrap();
        assert!(response.head.all(name).contains(&value), "{line} is not in {:?}", response.head);
    }
    assert_eq!(response.head.get("x-prefix-router-error"), None, "it is the replica's answer");
    assert_eq!((pair.a.count(), pair.b.count()), (1, 1));
    pair.router.has_metric("prefix_router_requests_total", &[("reason", "failover")], 0.0).await;
    pair.router.is_at_rest().await;
}

#[tokio::test]
async fn a_busy_answer_is_kept_whole_while_another_replica_is_tried() {
    for status in [429, 503] {
        check_kept(status, b"content-length: 7\r\n\r\n\0busy\xff\n", b"\0busy\xff\n").await;
        check_kept(status, b"content-length: 0\r\n\r\n", b"").await;
        check_kept(status, b"transfer-encoding: chunked\r\n\r\n2\r\nbu\r\n2\r\nsy\r\n0\r\n\r\n", b"busy").await;
        check_kept(status, b"connection: close\r\n\r\nbusy", b"busy").await;
    }
}

#[tokio::test]
async fn tries_are_bounded_and_each_is_another_replica() {
    let ways: [(Failing, u16); 2] = [(busy, 503), (reset, 502)];
    for (retries, tries) in [("0", 1), ("1", 2), ("2", 3), ("10", 5)] {
        for (failing, status) in ways {
            let replicas = ["a", "b", "c", "d", "e"].map(|name| Replica::start(name, failing));
            let all: Vec<&Replica> = replicas.iter().collect();
            let settings = [FRESH, ("retries", retries), ("retry_budget_floor", "100")];
            let router = Router::start_blind(&all, &settings).await;
            assert_eq!(router.post(CHAT, chat("x")).await.status, status);
            let counts: Vec<usize> = replicas.iter().map(Replica::count).collect();
            assert_eq!(counts.iter().sum::<usize>(), tries, "{status}, {retries} retries: {counts:?}");
            assert!(counts.iter().all(|&count| count <= 1), "{status}, {retries} retries: {counts:?}");
        }
    }
}

#[tokio::test]
async fn a_budget_bounds_the_retries_of_all_requests() {
    let settings = [("retry_budget_percent", "0"), ("retry_budget_floor", "0")];
    let pair = Pair::start(&settings, |_| answer(503, "", "busy")).await;
    assert_eq!(pair.post().await.status, 503);
    assert_eq!((pair.a.count(), pair.b.count()), (1, 0));
}

#[tokio::test]
async fn what_may_have_an_effect_is_not_repeated() {
    for (method, target) in [("DELETE", "/v1/files/x"), ("POST", "/v1/files"), ("PUT", "/v1/things/1"), ("PATCH", "/v1/things/1")] {
        let (a, b) = (Replica::start("a", reset), Replica::start("b", reset));
        let router = Router::start_blind(&[&a, &b], &[FRESH]).await;
        check_error(&router.send(method, target, "", "x").await, target, 502, "replica_broke");
        assert_eq!(a.count() + b.count(), 1, "{method} {target}");
        // A replica that says it is busy has been written to as well.
        for replica in [&a, &b] {
            replica.script(|_| answer(503, "", "busy"));
        }
        assert_eq!(router.send(method, target, "", "x").await.text(), "busy");
        assert_eq!(a.count() + b.count(), 2, "{method} {target}");
    }
}

#[tokio::test]
async fn what_may_have_an_effect_moves_where_nothing_was_written() {
    for (method, target) in [("DELETE", "/v1/files/x"), ("POST", "/v1/files")] {
        let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
        let router = Router::start_blind(&[&a, &b], &[FRESH, ("strategy", "round_robin")]).await;
        a.stop().await;
        for _ in 0..2 {
            assert_eq!(router.send(method, target, "", "x").await.status, 200, "{method} {target}");
        }
        assert_eq!(b.count(), 2);
    }
}

fn busy(_: &Request) -> Vec<Step> {
    answer(503, "", "busy")
}

/// Two replicas, of which the first to be asked, whichever that is, fails so.
fn first_fails(failing: Failing) -> [Replica; 2] {
    let asked = Arc::new(AtomicUsize::new(0));
    ["a", "b"].map(|name| {
        let asked = Arc::clone(&asked);
        Replica::start(name, move |request| if asked.fetch_add(1, Ordering::SeqCst) == 0 { failing(request) } else { echo(request) })
    })
}

#[tokio::test]
async fn safe_methods_are_repeated() {
    for method in ["GET", "HEAD", "OPTIONS"] {
        let [a, b] = first_fails(reset);
        let router = Router::start_blind(&[&a, &b], &[FRESH]).await;
        assert_eq!(router.send(method, "/v1/files/x", "", "").await.status, 200, "{method}");
        assert_eq!((a.count(), b.count()), (1, 1), "{method}");
    }
}

#[tokio::test]
async fn inference_on_every_surface_is_repeated() {
    let targets = [
        CHAT,
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/invocations",
        "/tokenize",
        "/score",
        "/pooling",
        "/v1/rerank",
        "/v1/audio/transcriptions",
    ];
    for target in targets {
        for failing in [reset, busy] {
            let [a, b] = first_fails(failing);
            let router = Router::start_blind(&[&a, &b], &[FRESH]).await;
            let response = router.post(target, "{\"x\":1}").await;
            assert_eq!((response.status, response.text().as_str()), (200, "{\"x\":1}"), "{target}");
            assert_eq!((a.count(), b.count()), (1, 1), "{target}");
        }
    }
}

#[tokio::test]
async fn a_body_beyond_the_replay_buffer_is_tried_once() {
    let pair = Pair::start(&[("replay_buffer", "1KiB")], reset).await;
    // Longer than the buffer, and the same beginning as the small one.
    let long = format!("{}{}", pair.body, " ".repeat(1_025));
    let response = pair.router.post(CHAT, &long).await;
    pair.check_stayed(&response, CHAT, "replica_broke");
    // The small one moves.
    pair.a.forget();
    pair.check_moved(&pair.post().await, 1, "broke").await;
}

#[tokio::test]
async fn nothing_is_repeated_once_a_byte_has_come() {
    let pair = Pair::start(&[], |_| vec![head(), chunk(event(0)), Step::Sleep(Duration::from_millis(50)), Step::Reset]).await;
    let response = pair.post().await;
    assert_eq!((response.status, response.body.end), (200, End::Cut));
    assert_eq!((pair.a.count(), pair.b.count()), (1, 0));
}

#[tokio::test]
async fn when_all_break_the_client_is_told_so() {
    let pair = Pair::start(&[], reset).await;
    pair.b.script(reset);
    check_error(&pair.post().await, CHAT, 502, "replica_broke");
    assert_eq!((pair.a.count(), pair.b.count()), (1, 1));
    pair.router.is_at_rest().await;
}

/// Answers the first request of a connection and dies of the second, as a server does that closed it just then.
fn dies_of_reuse(request: &Request) -> Vec<Step> {
    if request.nth == 0 { ok(request) } else { vec![Step::Reset] }
}

#[tokio::test]
async fn a_stale_connection_is_replaced_by_a_fresh_one_to_the_same_replica() {
    let replica = Replica::start("a", dies_of_reuse);
    let router = Router::start_blind(&[&replica], &[("retries", "0")]).await;
    for _ in 0..2 {
        let response = router.post(CHAT, chat("x")).await;
        assert_eq!((response.status, response.reason()), (200, "home"));
    }
    let ways: Vec<(usize, usize)> = replica.requests().iter().map(|request| (request.connection, request.nth)).collect();
    assert_eq!(ways, [(0, 0), (0, 1), (1, 0)], "(connection, its n-th request)");
    router.has_metric("prefix_router_retries_total", &[("cause", "stale")], 1.0).await;
    router.has_metric("prefix_router_retries_total", &[], 1.0).await;
    router.is_at_rest().await;
    router.has_metric("prefix_router_upstream_errors_total", &[], 0.0).await;
}

#[tokio::test]
async fn a_stale_connection_gets_one_fresh_one_only() {
    let replica = Replica::start("a", ok);
    let router = Router::start_blind(&[&replica], &[("retries", "0")]).await;
    router.post(CHAT, chat("x")).await;
    replica.script(reset);
    check_error(&router.post(CHAT, chat("x")).await, CHAT, 502, "replica_broke");
    let connections: Vec<usize> = replica.requests().iter().map(|request| request.connection).collect();
    assert_eq!(connections, [0, 0, 1]);
}

#[tokio::test]
async fn a_request_that_waits_moves_when_its_replica_is_ejected() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", echo));
    let settings = [FRESH, ("health_check_fall", "1"), ("health_check_timeout", "200ms")];
    for health in [Health::Status(500), Health::Hang] {
        a.script(ok);
        a.health(Health::Good);
        let router = Router::start(&[&a, &b], &settings).await;
        let body = router.chat_for(&a, "x").await;
        a.script(hang);
        a.forget();
        b.forget();
        let (response, ()) = tokio::join!(router.post(CHAT, &body), async {
            a.has_requests(1).await;
            a.health(health);
        });
        assert_eq!((response.status, response.text(), response.replica()), (200, body, "b"), "{health:?}");
        assert_eq!((a.count(), b.count()), (1, 1), "{health:?}");
        router.has_metric("prefix_router_retries_total", &[("cause", "ejected")], 1.0).await;
        eventually("the old try is given up", async || a.open() == 0).await;
        router.is_at_rest().await;
    }
}

#[tokio::test]
async fn a_stream_that_runs_survives_its_replicas_ejection() {
    let gate = Gate::new();
    let steps = vec![head(), chunk(event(0)), Step::Wait(gate.clone()), chunk(event(1)), last_chunk()];
    let replica = Replica::start("a", move |_| steps.clone());
    let router = Router::start(&[&replica], &[("health_check_fall", "1")]).await;
    let mut client = crate::client::Client::connect(router.traffic).await;
    client.start("POST", CHAT, "", "{}").await;
    let mut framing = client.head().await.response_framing("POST");
    assert_eq!(client.text(&mut framing).await, event(0));
    replica.health(Health::Status(500));
    router.has_state("a", "down").await;
    router.has_metric("prefix_router_outstanding", &[("replica", "a")], 1.0).await;
    gate.open();
    assert_eq!(client.text(&mut framing).await, event(1));
    router.is_at_rest().await;
}
