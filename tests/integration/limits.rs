//! Everything that comes from outside has a limit, each limit a setting, and each setting a count of the times it was reached.

use std::time::{Duration, Instant};

use crate::answers::{chunk, event, hang, head, ok, ok_after};
use crate::client::Client;
use crate::frames::{Frames, kind};
use crate::h2::H2;
use crate::replica::{Gate, Replica, Step};
use crate::support::{A_WHILE, Router, Setting, chat, check_error, samples};

const CHAT: &str = "/v1/chat/completions";
const HITS: &str = "prefix_router_limit_hits_total";
const BUFFERED: &str = "prefix_router_buffered_bytes";
const CONNECTIONS: &str = "prefix_router_connections";

impl Router {
    async fn has_hit(&self, limit: &str, times: f64) {
        self.has_metric(HITS, &[("limit", limit)], times).await;
    }

    async fn holds(&self, bytes: usize) {
        self.has_metric(BUFFERED, &[], bytes as f64).await;
    }
}

#[tokio::test]
async fn all_are_shown_before_they_are_reached() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    let text = router.metrics().await;
    let limits = samples(&text, HITS, &[]);
    assert!(limits.len() >= 12 && limits.iter().all(|&hits| hits == 0.0), "{text}");
    assert_eq!((samples(&text, BUFFERED, &[]), samples(&text, CONNECTIONS, &[])), (vec![0.0], vec![0.0]));
}

/// So many fields, with the two that every request of the client has.
fn fields(count: usize) -> String {
    (2..count).map(|number| format!("x-{number}: {number}\r\n")).collect()
}

#[tokio::test]
async fn header_fields() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    for target in [CHAT, "/v1/messages"] {
        assert_eq!(router.send("POST", target, &fields(100), "{}").await.status, 200, "the limit itself is allowed");
        for count in [101, 500] {
            check_error(&router.send("POST", target, &fields(count), "{}").await, target, 431, "too_many_headers");
        }
    }
    router.has_hit("max_headers", 4.0).await;
    let router = Router::start(&[&replica], &[("max_headers", "200")]).await;
    assert_eq!(router.send("POST", CHAT, &fields(200), "{}").await.status, 200);
    assert_eq!(replica.requests().last().unwrap().head.get("x-199"), Some("199"));
    check_error(&router.send("POST", CHAT, &fields(201), "{}").await, CHAT, 431, "too_many_headers");
    let names: Vec<String> = (0..201).map(|number| format!("x-{number}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
    let response = H2::connect(&router).await.start_with("POST", CHAT, &many, "{}").await;
    assert_eq!((response.status().as_u16(), &response.headers()["x-prefix-router-error"]), (431, &"too_many_headers".parse().unwrap()));
    router.has_hit("max_headers", 2.0).await;
    assert_eq!(replica.count(), 3);
}

#[tokio::test]
async fn a_head_beyond_all_limits_is_counted_too() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[]).await;
    let long = format!("x-long: {}\r\n", "x".repeat(600 << 10));
    assert_eq!(router.send("POST", CHAT, &long, "{}").await.status, 431);
    router.has_hit("max_header_bytes", 1.0).await;
}

#[tokio::test]
async fn what_is_nested_too_deep_is_placed_by_its_bytes_and_not_refused() {
    let (a, b) = (Replica::start("a", ok), Replica::start("b", ok));
    let list = format!("replicas:\n  - {{url: {}, name: a, models: [m]}}\n  - {{url: {}, name: b, models: [m]}}\n", a.url(), b.url());
    // In the body, `metadata` is inside one bracket and `deep` one more.
    let body = |number: usize, depth: usize| {
        let deep = "[".repeat(depth - 1) + &number.to_string() + &"]".repeat(depth - 1);
        format!(r#"{{"metadata":{deep},"model":"m","messages":[{{"role":"user","content":"the same"}}]}}"#)
    };
    let router = Router::start_with(&list, &[("max_json_depth", "10")]).await;
    router.has_state("a", "up").await;
    router.has_state("b", "up").await;
    for number in 0..30 {
        assert_eq!(router.post(CHAT, body(number, 10)).await.status, 200);
    }
    assert!(a.count() == 0 || b.count() == 0, "what is not too deep goes by its text: {} {}", a.count(), b.count());
    router.has_hit("max_json_depth", 0.0).await;
    for number in 0..30 {
        assert_eq!(router.post(CHAT, body(number, 11)).await.status, 200, "its model is still known");
    }
    assert!(a.count() > 0 && b.count() > 0, "what is too deep goes by its bytes: {} {}", a.count(), b.count());
    router.has_hit("max_json_depth", 30.0).await;
}

#[tokio::test]
async fn the_whole_time_of_a_body() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("body_timeout", "400ms"), ("body_total_timeout", "700ms")]).await;
    let started = Instant::now();
    let mut client = Client::connect(router.traffic).await;
    client.write(format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")).await;
    let trickle = async {
        loop {
            client.write("x").await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            if router.metric(HITS, &[("limit", "body_total_timeout")]).await > 0.0 {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), trickle).await.expect("a body that comes for ever is ended");
    assert!(started.elapsed() >= Duration::from_millis(690));
    let response = client.response("POST").await;
    check_error(&response, CHAT, 408, "body_too_slow");
    assert!(response.text().contains("body_total_timeout"), "{}", response.text());
    assert_eq!(replica.count(), 0);
    router.holds(0).await;
}

#[tokio::test]
async fn each_of_the_others_is_counted() {
    let replica = Replica::start("a", ok);
    let half = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf");
    let no_end = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-half: ");
    let whole =
        |length: usize| format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\nx: {0}\r\ncontent-length: {length}\r\n\r\n", "y".repeat(length));
    let cases: [(&str, &str, String); 4] = [
        ("body_timeout", "100ms", half),
        ("header_timeout", "100ms", no_end),
        ("max_body", "1KiB", whole(2_000)),
        ("max_header_bytes", "1KiB", whole(1_025)),
    ];
    for (limit, value, bytes) in cases {
        let router = Router::start(&[&replica], &[(limit, value)]).await;
        let mut client = Client::connect(router.traffic).await;
        client.write(bytes).await;
        router.has_hit(limit, 1.0).await;
    }
    // Nothing at all is a head that does not come.
    let router = Router::start(&[&replica], &[("header_timeout", "100ms")]).await;
    Client::connect(router.traffic).await.closed().await;
    router.has_hit("header_timeout", 1.0).await;
    let replica = Replica::start("b", |_| vec![head(), chunk(vec![b'x'; 16 << 20]), Step::Hang]);
    let router = Router::start(&[&replica], &[("write_timeout", "200ms")]).await;
    let mut client = Client::connect_narrow(router.traffic, 4_096).await;
    client.start("POST", CHAT, "", "{}").await;
    router.has_hit("write_timeout", 1.0).await;
    router.is_at_rest().await;
}

#[tokio::test]
async fn connections() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &[("max_connections", "2")]).await;
    let mut one = Client::connect(router.traffic).await;
    assert_eq!(one.request("POST", CHAT, "", "{}").await.status, 200);
    router.has_metric(CONNECTIONS, &[], 1.0).await;
    router.has_hit("max_connections", 0.0).await;
    let two = Client::connect(router.traffic).await;
    router.has_metric(CONNECTIONS, &[], 2.0).await;
    router.has_hit("max_connections", 1.0).await;
    let mut three = Client::connect(router.traffic).await;
    three.start("POST", CHAT, "", "{}").await;
    three.hears_nothing().await;
    assert_eq!(router.metric(CONNECTIONS, &[]).await, 2.0);
    drop(two);
    assert_eq!(three.response("POST").await.status, 200, "the next is taken when one has ended");
    drop((one, three));
    router.has_metric(CONNECTIONS, &[], 0.0).await;
}

#[tokio::test]
async fn h2_streams() {
    let gate = Gate::new();
    let replica = Replica::start("a", ok_after(&gate));
    let router = Router::start(&[&replica], &[("h2_max_streams", "2")]).await;
    let mut frames = Frames::connect(router.traffic).await;
    let settings = frames.next_of(kind::SETTINGS).await.expect("settings");
    let max_streams = settings.payload.chunks(6).find(|entry| entry[..2] == [0, 3]).map(|entry| entry[2..].to_vec());
    assert_eq!(max_streams, Some(vec![0, 0, 0, 2]));
    for stream in [1, 3, 5] {
        frames.get(stream, "/v1/files/x").await;
    }
    let refused = frames.next_of(kind::RST_STREAM).await.expect("a refusal");
    assert_eq!((refused.stream, refused.payload), (5, vec![0, 0, 0, 7]), "the third is refused, and may be sent again");
    gate.open();
    for _ in 0..2 {
        assert!([1, 3].contains(&frames.next_of(kind::HEADERS).await.expect("an answer").stream));
    }
}

#[tokio::test]
async fn an_h2_client_that_takes_its_requests_back_as_fast_as_it_can() {
    let replica = Replica::start("a", hang);
    let router = Router::start(&[&replica], &[("h2_max_resets", "50")]).await;
    let mut other = H2::connect(&router).await;
    assert_eq!(other.request("GET", "/health", "").await.head.status, 200);
    let mut frames = Frames::connect(router.traffic).await;
    let flood = frames.reset_flood(10_000, "/v1/files/x");
    frames.write(&flood).await;
    let gone = frames.next_of(kind::GOAWAY).await.expect("the connection is closed in good order");
    assert_eq!(gone.payload[4..8], [0, 0, 0, 11], "ENHANCE_YOUR_CALM");
    frames.closed().await;
    router.has_hit("h2_max_resets", 1.0).await;
    assert_eq!(other.request("GET", "/health", "").await.head.status, 200);
    replica.script(ok);
    assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
    router.is_at_rest().await;
}

/// Room for 64 KiB together.
const ROOM: [Setting<'static>; 2] = [("max_body", "64KiB"), ("max_buffered_bytes", "64KiB")];

fn post(framing: &str) -> String {
    format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n")
}

#[tokio::test]
async fn bodies_hold_no_more_memory_than_they_may() {
    let gate = Gate::new();
    let replica = Replica::start("a", ok_after(&gate));
    let router = Router::start(&[&replica], &ROOM).await;
    let mut one = Client::connect(router.traffic).await;
    one.start("POST", CHAT, "", "x".repeat(40_000)).await;
    replica.has_requests(1).await;
    router.holds(40_000).await;
    // A known length is reserved before the body is asked for.
    let mut two = Client::connect(router.traffic).await;
    two.write(post("content-length: 40000\r\nexpect: 100-continue")).await;
    two.hears_nothing().await;
    router.has_hit("max_buffered_bytes", 1.0).await;
    // Nobody overtakes, so that the large ones are not held off by the small.
    let mut three = Client::connect(router.traffic).await;
    three.write(post("content-length: 10\r\nexpect: 100-continue")).await;
    three.hears_nothing().await;
    router.holds(40_000).await;
    gate.open();
    assert_eq!(one.response("POST").await.status, 200);
    for (client, length) in [(&mut two, 40_000), (&mut three, 10)] {
        assert_eq!(client.head().await.status(), 100);
        client.write("x".repeat(length)).await;
        assert_eq!(client.response("POST").await.status, 200);
    }
    router.holds(0).await;
    router.has_hit("buffer_timeout", 0.0).await;
}

#[tokio::test]
async fn a_body_for_which_there_is_no_room_in_time() {
    let replica = Replica::start("a", hang);
    let settings = [&ROOM[..], &[("buffer_timeout", "200ms")]].concat();
    let router = Router::start(&[&replica], &settings).await;
    let mut one = Client::connect(router.traffic).await;
    one.start("POST", CHAT, "", "x".repeat(60_000)).await;
    router.holds(60_000).await;
    for target in [CHAT, "/v1/messages", "/invocations"] {
        let response = router.post(target, "x".repeat(10_000)).await;
        check_error(&response, target, 503, "buffers_full");
        assert!(response.head.get("retry-after").is_some());
    }
    assert_eq!(router.post(CHAT, "x".repeat(70_000)).await.status, 413, "which it does not wait to say");
    router.has_hit("buffer_timeout", 3.0).await;
    router.holds(60_000).await;
    drop(one);
    router.holds(0).await;
    replica.script(ok);
    assert_eq!(router.post(CHAT, "x".repeat(64 << 10)).await.status, 200, "all of the room is there again");
}

#[tokio::test]
async fn bodies_without_a_length_take_room_as_they_come_and_do_not_wait_for_each_other_for_ever() {
    let replica = Replica::start("a", ok);
    let settings = [&ROOM[..], &[("buffer_timeout", "500ms")]].concat();
    let router = Router::start(&[&replica], &settings).await;
    let mut clients = Vec::new();
    for number in 1..=4 {
        let mut client = Client::connect(router.traffic).await;
        client.write(post("transfer-encoding: chunked")).await;
        client.write(format!("3a98\r\n{}\r\n", "x".repeat(15_000))).await;
        router.holds(15_000 * number).await;
        clients.push(client);
    }
    // Each needs twice as much as it has, and together they have all.
    for client in &mut clients {
        client.write(format!("3a98\r\n{}\r\n0\r\n\r\n", "x".repeat(15_000))).await;
    }
    let mut statuses = Vec::new();
    for client in &mut clients {
        statuses.push(client.response("POST").await.status);
    }
    assert!(statuses.iter().all(|status| [200, 503].contains(status)) && statuses.contains(&503), "{statuses:?}");
    router.holds(0).await;
}

#[tokio::test]
async fn a_stream_that_has_begun_holds_nothing() {
    let replica = Replica::start("a", |_| vec![head(), chunk(event(0)), Step::Hang]);
    let router = Router::start(&[&replica], &ROOM).await;
    let mut clients = Vec::new();
    for _ in 0..5 {
        let mut client = Client::connect(router.traffic).await;
        client.start("POST", CHAT, "", "x".repeat(60_000)).await;
        let mut framing = client.head().await.response_framing("POST");
        assert_eq!(client.text(&mut framing).await, event(0));
        clients.push(client);
    }
    router.holds(0).await;
}

#[tokio::test]
async fn clients_that_leave_at_any_point_give_all_back() {
    let replica = Replica::start("a", hang);
    let router = Router::start(&[&replica], &ROOM).await;
    for framing in ["content-length: 40000", "transfer-encoding: chunked"] {
        let begin =
            [post(framing), if framing.contains("chunked") { format!("9c40\r\n{}", "x".repeat(20_000)) } else { "x".repeat(20_000) }];
        // In mid-body.
        let mut one = Client::connect(router.traffic).await;
        one.write(begin.concat()).await;
        router.holds(if framing.contains("chunked") { 20_000 } else { 40_000 }).await;
        // With another one that waits for room.
        let mut two = Client::connect(router.traffic).await;
        let before = router.metric(HITS, &[("limit", "max_buffered_bytes")]).await;
        two.write([post("content-length: 50000").as_bytes(), &vec![b'x'; 50_000]].concat()).await;
        router.has_hit("max_buffered_bytes", before + 1.0).await;
        two.reset();
        one.reset();
        // While it waits for its answer.
        router.holds(0).await;
        let mut three = Client::connect(router.traffic).await;
        replica.forget();
        three.start("POST", CHAT, "", "x".repeat(30_000)).await;
        replica.has_requests(1).await;
        router.holds(30_000).await;
        drop(three);
        router.holds(0).await;
        router.is_at_rest().await;
    }
    let mut h2 = H2::connect(&router).await;
    let request = h2.start("POST", CHAT, "x".repeat(30_000));
    assert!(tokio::time::timeout(A_WHILE, request).await.is_err());
    router.holds(0).await;
    replica.script(ok);
    assert_eq!(router.post(CHAT, "x".repeat(64 << 10)).await.status, 200);
    router.holds(0).await;
}

#[tokio::test]
async fn many_at_once_leave_nothing_behind() {
    let replica = Replica::start("a", ok);
    let router = Router::start(&[&replica], &ROOM).await;
    let all = (0..60).map(|number: usize| {
        let router = &router;
        async move {
            let response = router.post(CHAT, "x".repeat(1_000 + number * 1_000)).await;
            assert_eq!(response.status, 200, "{}", response.text());
        }
    });
    let mut running = Vec::from_iter(all.map(Box::pin));
    // As `join_all` of a crate that nothing else needs.
    std::future::poll_fn(|cx| {
        running.retain_mut(|request| request.as_mut().poll(cx).is_pending());
        if running.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    router.holds(0).await;
    router.has_hit("buffer_timeout", 0.0).await;
}

#[tokio::test]
async fn bodies_that_are_announced_and_do_not_come_take_no_room_from_others() {
    let replica = Replica::start("a", ok);
    let settings = [("max_body", "64MiB"), ("max_buffered_bytes", "64MiB"), ("buffer_timeout", "0s")];
    let router = Router::start(&[&replica], &settings).await;
    let mut idle = Vec::new();
    for _ in 0..16 {
        let mut client = Client::connect(router.traffic).await;
        client.write(post("content-length: 67108864")).await;
        idle.push(client);
    }
    router.holds(16 << 20).await;
    assert_eq!(router.post(CHAT, "x".repeat(8 << 20)).await.status, 200);
    drop(idle);
    router.holds(0).await;
}
