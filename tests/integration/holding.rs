//! Requests that are held back while the replica they should go to has enough to compute: who goes first, and when they go all the same.

use serde_json::json;

use crate::answers::{ok, ok_after};
use crate::client::Client;
use crate::replica::{Gate, Replica};
use crate::support::{Filed, Router, Setting, chat, check_error, eventually};

const CHAT: &str = "/v1/chat/completions";

/// Bytes. Until it is known better a token takes 60 µs: these take 3 s and 12 s, as far as the router knows.
const SHORT: usize = 200_000;
const LONG: usize = 800_000;

/// A stream's request about a document of so many bytes.
fn about(document: &str, bytes: usize, question: &str) -> String {
    let document = format!("{document}. ").repeat(bytes / (document.len() + 2));
    json!({"model": "m", "stream": true, "messages": [{"role": "system", "content": document}, {"role": "user", "content": question}]})
        .to_string()
}

async fn start(router: &Router, fields: &str, body: &str) -> Client {
    let mut client = Client::connect(router.traffic).await;
    client.start("POST", CHAT, fields, body).await;
    client
}

/// A replica that has a long prompt to compute until the gate opens; and the gate of all that come after.
struct Scene {
    replica: Replica,
    router: Router,
    first: Client,
    gates: [Gate; 2],
}

impl Scene {
    async fn new(settings: &[Setting<'_>]) -> Self {
        let gates = [Gate::new(), Gate::new()];
        let replica = Replica::start("a", ok_after(&gates[0]));
        let router = Router::start(&[&replica], &[&[("strategy", "cache_aware"), ("routers", "1")], settings].concat()).await;
        let first = start(&router, "", &about("first", LONG, "x")).await;
        replica.has_requests(1).await;
        replica.script(ok_after(&gates[1]));
        Self { replica, router, first, gates }
    }

    /// A request that is held back, as the `count`-th.
    async fn hold(&self, fields: &str, body: &str, count: usize) -> Client {
        let client = start(&self.router, fields, body).await;
        self.holds(count).await;
        client
    }

    async fn holds(&self, count: usize) {
        self.router.has_metric("prefix_router_held_requests", &[], count as f64).await;
    }

    async fn ended(&self, end: &str) -> f64 {
        self.router.metric("prefix_router_holds_total", &[("end", end)]).await
    }

    /// Whether the replica has seen each of these words, in the prompts of its requests.
    fn has(&self, words: &[&str]) -> bool {
        let requests = self.replica.requests();
        words.iter().all(|word| requests.iter().any(|request| String::from_utf8_lossy(&request.body).contains(word)))
    }
}

/// What the file of [`filed`] says.
const FILED: [Setting<'_>; 2] = [("strategy", "cache_aware"), ("routers", "1")];

/// A router that reads a file, one request on its way until the gate opens, and one that is held back.
async fn filed() -> (Replica, Filed, [Client; 2], Gate) {
    let gate = Gate::new();
    let replica = Replica::start("a", ok_after(&gate));
    let filed = Filed::start(&[&replica], &FILED).await;
    let first = start(&filed.router, "", &about("first", LONG, "x")).await;
    replica.has_requests(1).await;
    let second = start(&filed.router, "", &about("second", LONG, "x")).await;
    filed.router.has_metric("prefix_router_held_requests", &[], 1.0).await;
    (replica, filed, [first, second], gate)
}

#[tokio::test]
async fn who_has_least_to_compute_goes_first_and_each_as_soon_as_there_is_room_for_it() {
    let mut scene = Scene::new(&[]).await;
    let bodies = [about("second", LONG, "x"), about("third", SHORT, "x"), about("first", LONG, "and this?")];
    let mut held = Vec::new();
    for (number, body) in bodies.iter().enumerate() {
        held.push(scene.hold("", body, number + 1).await);
    }
    let bytes: usize = bodies.iter().map(String::len).sum();
    assert_eq!((scene.replica.count(), scene.router.metric("prefix_router_held_bytes", &[]).await), (1, bytes as f64));
    scene.gates[0].open();
    assert_eq!(scene.first.response("POST").await.status, 200);
    // What is held there already takes no time, so the one with the shorter prompt goes as well.
    scene.replica.has_requests(3).await;
    scene.holds(1).await;
    assert!(scene.has(&["third", "and this?"]) && !scene.has(&["second"]));
    scene.gates[1].open();
    for client in &mut held {
        assert_eq!(client.response("POST").await.status, 200);
    }
    assert!(scene.has(&["second"]));
    scene.router.is_at_rest().await;
    scene.holds(0).await;
    assert_eq!((scene.ended("turn").await, scene.router.metric("prefix_router_held_bytes", &[]).await), (3.0, 0.0));
    assert_eq!(scene.router.metric("prefix_router_queue_seconds_count", &[]).await, 3.0);
}

#[tokio::test]
async fn a_priority_counts_for_more_than_what_there_is_to_compute() {
    let scene = Scene::new(&[]).await;
    let _short = scene.hold("x-prefix-router-priority: 10\r\n", &about("second", SHORT, "x"), 1).await;
    let _long = scene.hold("", &about("third", LONG, "x"), 2).await;
    scene.gates[0].open();
    scene.replica.has_requests(2).await;
    scene.holds(1).await;
    assert!(scene.has(&["third"]) && !scene.has(&["second"]));
    let refused = scene.router.send("POST", CHAT, "x-prefix-router-priority: high\r\n", &chat("x")).await;
    check_error(&refused, CHAT, 400, "bad_priority");
}

#[tokio::test]
async fn nobody_waits_longer_than_hold_timeout() {
    let mut scene = Scene::new(&[("hold_timeout", "2s")]).await;
    let mut held = scene.hold("", &about("second", LONG, "x"), 1).await;
    // Nothing has happened but that time has passed.
    scene.replica.has_requests(2).await;
    scene.holds(0).await;
    scene.gates.iter().for_each(Gate::open);
    assert_eq!((scene.first.response("POST").await.status, held.response("POST").await.status), (200, 200));
    eventually("it is counted", async || scene.ended("timeout").await == 1.0).await;
}

#[tokio::test]
async fn who_leaves_waits_no_longer() {
    let scene = Scene::new(&[]).await;
    let leaving = scene.hold("", &about("second", LONG, "x"), 1).await;
    let _staying = scene.hold("", &about("third", LONG, "x"), 2).await;
    drop(leaving);
    scene.holds(1).await;
    assert_eq!((scene.ended("left").await, scene.replica.count()), (1.0, 1));
    scene.gates[0].open();
    scene.replica.has_requests(2).await;
    assert!(scene.has(&["third"]));
}

#[tokio::test]
async fn where_no_more_may_wait_the_next_one_goes_at_once() {
    for setting in [("hold_max_requests", "1"), ("queue_max_bytes", "900000")] {
        let scene = Scene::new(&[setting]).await;
        let _short = scene.hold("", &about("second", SHORT, "x"), 1).await;
        let _long = start(&scene.router, "", &about("third", LONG, "x")).await;
        scene.replica.has_requests(2).await;
        scene.holds(1).await;
        assert!(scene.has(&["second"]) && !scene.has(&["third"]), "{setting:?}");
        eventually("it is counted", async || scene.ended("full").await == 1.0).await;
    }
}

#[tokio::test]
async fn nobody_is_held_where_that_is_off_where_there_are_limits_and_by_other_strategies() {
    for settings in [&[("hold", "0s")][..], &[("max_outstanding", "5")], &[("strategy", "prefix_aware")]] {
        let scene = Scene::new(settings).await;
        let _second = start(&scene.router, "", &about("second", LONG, "x")).await;
        scene.replica.has_requests(2).await;
        assert_eq!(scene.router.metric("prefix_router_holds_total", &[]).await, 0.0, "{settings:?}");
    }
}

#[tokio::test]
async fn what_computes_no_prompt_does_not_wait() {
    let mut scene = Scene::new(&[]).await;
    let _held = scene.hold("", &about("second", LONG, "x"), 1).await;
    scene.replica.script(ok);
    assert_eq!(scene.router.post("/tokenize", json!({"model": "m", "prompt": "x"}).to_string()).await.status, 200);
    scene.holds(1).await;
    scene.gates.iter().for_each(Gate::open);
    assert_eq!(scene.first.response("POST").await.status, 200);
}

#[tokio::test]
async fn the_clients_own_limit_holds_while_it_is_held() {
    let scene = Scene::new(&[]).await;
    let mut held = scene.hold("x-prefix-router-timeout: 2\r\n", &about("second", LONG, "x"), 1).await;
    assert_eq!(held.response("POST").await.status, 504);
    scene.holds(0).await;
    assert_eq!(scene.replica.count(), 1);
}

#[tokio::test]
async fn who_is_held_when_its_replica_is_gone_goes_elsewhere() {
    let gate = Gate::new();
    let fleet = ["a", "b"].map(|name| Replica::start(name, ok_after(&gate)));
    let router = Router::start(&[&fleet[0], &fleet[1]], &[("strategy", "cache_aware"), ("routers", "1")]).await;
    // Both have enough to do.
    let mut clients = Vec::new();
    for document in ["one", "two", "three", "four"] {
        clients.push(start(&router, "", &about(document, LONG, "x")).await);
        eventually("it is somewhere", async || {
            let held = router.metric("prefix_router_held_requests", &[]).await as usize;
            fleet.iter().map(Replica::count).sum::<usize>() + held == clients.len()
        })
        .await;
    }
    router.has_metric("prefix_router_held_requests", &[], 2.0).await;
    assert_eq!(fleet.each_ref().map(Replica::count), [1, 1]);
    let [gone, other] = fleet;
    other.script(ok);
    drop(gone);
    gate.open();
    for client in clients.iter_mut() {
        assert_eq!(client.response("POST").await.status, 200);
    }
    router.has_metric("prefix_router_holds_total", &[("end", "turn")], 2.0).await;
    router.has_metric("prefix_router_held_requests", &[], 0.0).await;
}

#[tokio::test]
async fn who_is_held_when_the_router_drains_is_served() {
    let mut scene = Scene::new(&[]).await;
    let mut held = scene.hold("", &about("second", LONG, "x"), 1).await;
    scene.router.drain();
    eventually("/ready says draining", async || scene.router.admin("/ready").await.status == 503).await;
    scene.gates.iter().for_each(Gate::open);
    assert_eq!((scene.first.response("POST").await.status, held.response("POST").await.status), (200, 200));
    scene.router.stopped().await;
}

#[tokio::test]
async fn who_is_held_when_the_router_is_cut_off_is_told_so() {
    let scene = Scene::new(&[("drain_timeout", "300ms")]).await;
    let mut held = scene.hold("", &about("second", LONG, "x"), 1).await;
    scene.router.drain();
    check_error(&held.response("POST").await, CHAT, 503, "draining");
    scene.router.stopped().await;
}

#[tokio::test]
async fn who_is_held_goes_when_holding_is_switched_off() {
    let (replica, filed, [_first, _second], _gate) = filed().await;
    assert_eq!(filed.change(&[&replica], &[FILED[0], FILED[1], ("hold", "0s")]).await, ["hold"]);
    replica.has_requests(2).await;
    filed.router.has_metric("prefix_router_held_requests", &[], 0.0).await;
    filed.router.has_metric("prefix_router_holds_total", &[("end", "off")], 1.0).await;
}

#[tokio::test]
async fn who_is_held_when_limits_come_waits_for_room() {
    let (replica, filed, [mut first, mut second], gate) = filed().await;
    assert_eq!(filed.change(&[&replica], &[FILED[0], FILED[1], ("max_outstanding", "1")]).await, ["max_outstanding"]);
    filed.router.has_metric("prefix_router_queue_requests", &[], 1.0).await;
    filed.router.has_metric("prefix_router_held_requests", &[], 0.0).await;
    assert_eq!(replica.count(), 1);
    gate.open();
    assert_eq!((first.response("POST").await.status, second.response("POST").await.status), (200, 200));
}
