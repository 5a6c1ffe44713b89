//! Whose doing an answer's end is: what counts as a client that left, and what does not.

use std::time::Duration;

use http_body_util::BodyExt as _;

use crate::answers::{chunk, event, head, last_chunk, ok};
use crate::client::Client;
use crate::h2::H2;
use crate::replica::{Replica, Step};
use crate::support::{Router, check_error, eventually, within};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

/// The only request so far ended with this status and counts, or not, as a client that left.
async fn check_counted(router: &Router, status: &str, aborts: f64) {
    router.has_metric("prefix_router_requests_total", &[("status", status)], 1.0).await;
    router.has_metric("prefix_router_requests_total", &[], 1.0).await;
    router.has_metric("prefix_router_client_aborts_total", &[], aborts).await;
    assert_eq!(router.metric("prefix_router_upstream_errors_total", &[]).await, 0.0);
    router.is_at_rest().await;
}

/// Reads as much as `parts` and leaves.
async fn read_and_leave(router: &Router, target: &str, parts: &[&str], over_h2: bool) {
    let expected = parts.concat();
    let mut read = String::new();
    if over_h2 {
        let mut client = H2::connect(router).await;
        let mut body = client.start("POST", target, "{}").await.into_body();
        while read.len() < expected.len() {
            let frame = within("piece of a body", body.frame()).await.unwrap().unwrap();
            read.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
        }
    } else {
        let mut client = Client::connect(router.traffic).await;
        client.start("POST", target, "", "{}").await;
        let mut framing = client.head().await.response_framing("POST");
        while read.len() < expected.len() {
            read.push_str(&client.text(&mut framing).await);
        }
    }
    assert_eq!(read, expected, "{target}");
}

/// The replica sends `parts` and then does `last`; a client that leaves once it has read them counts so.
async fn check_leaving(target: &str, parts: &[&str], last: &[Step], status: &str, aborts: f64) {
    for over_h2 in [false, true] {
        let steps = [vec![head()], parts.iter().map(chunk).collect(), last.to_vec()].concat();
        let replica = Replica::start("a", move |_| steps.clone());
        let router = Router::start(&[&replica], &[]).await;
        read_and_leave(&router, target, parts, over_h2).await;
        check_counted(&router, status, aborts).await;
        eventually("the replica is left alone", async || replica.open() == 0).await;
    }
}

#[tokio::test]
async fn a_client_that_has_read_the_last_event_may_leave() {
    let text = event(0);
    let cases: [(&str, &[&str]); 6] = [
        (CHAT, &[&text, "data: [DONE]\n\n"]),
        (CHAT, &[&text, "data: [DO", "NE]\n", "\n"]),
        ("/v1/completions", &["data:[DONE]\r\n\r\n"]),
        (MESSAGES, &["event: ping\ndata: {\"type\":\"ping\"}\n\n", "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"]),
        ("/v1/responses", &["event: response.created\ndata: {}\n\n", "event: response.completed\ndata: {\"response\":{}}\n\n"]),
        (MESSAGES, &["event: message_stop\n", "data: {\"type\":\"message_stop\"}\n\n"]),
    ];
    let later = [Step::Sleep(Duration::from_millis(50)), last_chunk()];
    for (target, parts) in cases {
        check_leaving(target, parts, &later, "2xx", 0.0).await;
        check_leaving(target, parts, &[Step::Hang], "2xx", 0.0).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_last_event_has_left() {
    let text = event(0);
    let cases: [(&str, &[&str]); 6] = [
        (CHAT, &[&text]),
        (CHAT, &[&text, "data: [DO"]),
        (CHAT, &["data: {\"content\":\"data: [DONE]\"}\n\n"]),
        (CHAT, &["data: [DONE]\n\n", &text]),
        ("/v1/responses", &["event: response.output_text.delta\ndata: {\"delta\":\"event: response.completed\"}\n\n"]),
        (MESSAGES, &["event: message_delta\ndata: {\"type\":\"message_delta\"}\n\n"]),
    ];
    for (target, parts) in cases {
        check_leaving(target, parts, &[Step::Hang], "499", 1.0).await;
    }
}

#[tokio::test]
async fn who_stops_sending_in_mid_body_has_left_and_is_told_what_was_wrong() {
    let replica = Replica::start("a", ok);
    // Bytes of a body, and whether the client stops there or has sent something that cannot go on.
    let cases = [
        ("content-length: 100\r\n\r\nhalf", true),
        ("transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", true),
        ("transfer-encoding: chunked\r\n\r\n10\r\nhalf", true),
        ("transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n", false),
    ];
    for target in [CHAT, MESSAGES] {
        for (bytes, stops) in cases {
            let router = Router::start(&[&replica], &[]).await;
            let mut client = Client::connect(router.traffic).await;
            client.write(format!("POST {target} HTTP/1.1\r\nhost: x\r\n{bytes}")).await;
            if stops {
                client.stop_writing().await;
            }
            check_error(&client.response("POST").await, target, 400, "body_broken");
            if stops {
                check_counted(&router, "499", 1.0).await;
            } else {
                check_counted(&router, "4xx", 0.0).await;
            }
        }
    }
    assert_eq!(replica.count(), 0, "half a prompt goes nowhere");
}

#[tokio::test]
async fn what_drain_timeout_cuts_off_is_not_the_clients_doing() {
    let cases = [
        (vec![head(), chunk(event(0)), Step::Hang], "2xx"),
        (vec![Step::Hang], "5xx"),
        // A head that is held back was not told.
        (vec![head(), Step::Hang], "5xx"),
    ];
    for (steps, status) in cases {
        let replica = Replica::start("a", move |_| steps.clone());
        let router = Router::start(&[&replica], &[("drain_timeout", "300ms")]).await;
        let mut client = Client::connect(router.traffic).await;
        client.start("POST", CHAT, "", "{}").await;
        replica.has_requests(1).await;
        if status == "2xx" {
            let mut framing = client.head().await.response_framing("POST");
            assert_eq!(client.text(&mut framing).await, event(0));
        }
        router.drain();
        client.closed().await;
        check_counted(&router, status, 0.0).await;
        router.stopped().await;
    }
}

#[tokio::test]
async fn what_drain_timeout_cuts_off_over_http2_is_not_the_clients_doing_either() {
    let replica = Replica::start("a", |_| vec![head(), chunk(event(0)), Step::Hang]);
    let router = Router::start(&[&replica], &[("drain_timeout", "300ms")]).await;
    let mut client = H2::connect(&router).await;
    let mut body = client.start("POST", CHAT, "{}").await.into_body();
    assert_eq!(within("piece of a body", body.frame()).await.unwrap().unwrap().into_data().unwrap(), event(0));
    router.drain();
    let told = within("event that tells why", body.frame()).await.unwrap().unwrap().into_data().unwrap();
    assert!(String::from_utf8_lossy(&told).contains(r#""code":"draining""#), "{told:?}");
    // Whether it is told in the stream is not this test's business.
    while let Some(Ok(_)) = within("end of the stream", body.frame()).await {}
    check_counted(&router, "2xx", 0.0).await;
    router.stopped().await;
}
