//! Requests: whatever a client sends, nobody panics, and every answer is one. What is a request beyond doubt reaches a replica as it is.

use crate::input::{self, Input};
use crate::traffic::{Client, LONG, SHORT, World};
use crate::wire::{self, Part, Request};

const METHODS: [&str; 8] = ["POST", "GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "CONNECT"];

const TARGETS: [&str; 20] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/invocations",
    "/endpoints/e/invocations",
    "/tokenize",
    "/v1/messages/count_tokens",
    "/v1/models",
    "/load",
    "/health",
    "/ping",
    "/version",
    "/score?q=%00&r",
    "/v1/%63hat/completions?stream=true",
    "/metrics",
    "/sleep",
    "/x/y",
    "http://other:80/v1/responses",
];

const FIELDS: [&str; 14] = [
    "connection: close",
    "connection: keep-alive, x-a",
    "expect: 100-continue",
    "transfer-encoding: gzip",
    "te: trailers",
    "upgrade: websocket",
    "upgrade: h2c",
    "x-amzn-sagemaker-prefix-aware-id: tenant",
    "x-request-id: 1",
    "x-forwarded-for: 10.0.0.1",
    "cookie: a=1",
    "authorization: Bearer k",
    "content-type: application/json",
    "accept: text/event-stream",
];

/// How a client ends once it has sent all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Reads its answers, then closes.
    Patient,
    /// Closes its sending side, and reads.
    HalfClosed,
    /// Is gone.
    Gone,
    /// Says no more, and waits to be thrown out.
    Silent,
}

const MANNERS: [Manner; 4] = [Manner::Patient, Manner::HalfClosed, Manner::Gone, Manner::Silent];

/// One byte each for how the rest is to be read and how the client behaves, where the stream is split behind their number, then the bytes, or what
/// they are to be made of.
pub(crate) fn check(data: &[u8]) {
    let mut input = Input(data);
    let is_made = input.byte() & 1 > 0;
    let manner = input.one_of(&MANNERS);
    let splits = input.short();
    let stream = if is_made { make(&mut input) } else { input.0.to_vec() };
    let world = World::get();
    world.run(async {
        exchange(world.connect().await, manner, &stream, splits).await;
        world.comes_to_rest().await;
    });
}

/// Up to four requests: method and target, fields, body.
fn make(input: &mut Input<'_>) -> Vec<u8> {
    let mut stream = Vec::new();
    for _ in 0..4 {
        let (method, target, fields) = (input.one_of(&METHODS), input.one_of(&TARGETS), input.byte() & 7);
        stream.extend(format!("{method} {target} HTTP/1.1\r\nhost: r\r\n").bytes());
        for _ in 0..fields {
            match input.byte() {
                // One of the client's own.
                255 => stream.extend_from_slice(input.short()),
                which => stream.extend(FIELDS[usize::from(which) % FIELDS.len()].bytes()),
            }
            stream.extend_from_slice(b"\r\n");
        }
        let chunks = input.short();
        let length = input.number();
        let body = input.bytes(length);
        if chunks.is_empty() {
            stream.extend(format!("content-length: {}\r\n\r\n", body.len()).bytes());
            stream.extend_from_slice(body);
        } else {
            stream.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
            for chunk in input::pieces(body, chunks) {
                stream.extend(format!("{:x}\r\n", chunk.len()).bytes());
                stream.extend_from_slice(chunk);
                stream.extend_from_slice(b"\r\n");
            }
            stream.extend_from_slice(b"0\r\n\r\n");
        }
        if input.0.is_empty() {
            break;
        }
    }
    stream
}

async fn exchange(mut client: Client, manner: Manner, stream: &[u8], splits: &[u8]) {
    // Requests beyond doubt, up to the first that is not.
    let mut known = Vec::new();
    let mut rest = stream;
    while let Part::Whole(request) = wire::request(&mut rest) {
        known.push(request);
    }
    client.write(&input::pieces(stream, splits)).await;
    let mut jumps = match manner {
        Manner::Gone => return client.reset(),
        Manner::Patient | Manner::HalfClosed => SHORT,
        Manner::Silent => LONG,
    };
    if manner == Manner::HalfClosed {
        client.end().await;
    }
    if manner == Manner::Patient {
        while !client.is_closed && answers(&client.came, &known, stream).len() < known.len() {
            client.more(&mut jumps).await;
        }
        client.end().await;
    }
    while !client.is_closed {
        client.more(&mut jumps).await;
    }
    let answers = answers(&client.came, &known, stream);
    if manner == Manner::Patient && answers.is_empty() {
        assert!(known.is_empty(), "no answer to {known:?}");
    }
}

/// The answers in what came. Each is whole, or the last; those to requests that are known are answers to these.
fn answers(came: &[u8], known: &[Request], stream: &[u8]) -> Vec<u16> {
    let mut all = Vec::new();
    if stream.starts_with(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") {
        check_frames(came);
        return all;
    }
    let mut rest = came;
    while !rest.is_empty() {
        let request = known.get(all.len());
        // To a request that is none beyond doubt, the method is not known either.
        if request.is_none() && stream.windows(4).any(|four| four.eq_ignore_ascii_case(b"HEAD")) {
            return all;
        }
        match wire::answer(&mut rest, request.map_or("", Request::method)) {
            Part::Whole(answer) => {
                let status = answer.head.status();
                if let (Some(request), Some(got)) = (request, answer.head.get("x-got")) {
                    let target = request.target();
                    // Of a whole URL the replica is told the path.
                    let after_host = |(_, url): (&'_ str, &'_ str)| url.find('/').map(|at| url[at..].to_owned());
                    let path = target.split_once("://").filter(|_| !target.starts_with('/')).and_then(after_host);
                    let target = path.as_deref().unwrap_or(target);
                    let target = target.split('#').next().unwrap_or_default();
                    assert_eq!(got, format!("{} {target} HTTP/1.1", request.method()), "arrives as it was sent");
                    if request.method() != "HEAD" {
                        assert_eq!(answer.body.escape_ascii().to_string(), request.body.escape_ascii().to_string(), "byte for byte");
                    }
                } else if status >= 400
                    && answer.head.get("x-prefix-router-error").is_some()
                    && request.is_none_or(|request| request.method() != "HEAD")
                {
                    let _: serde_json::Value = serde_json::from_slice(&answer.body).expect("an error is JSON");
                }
                all.push(status);
            }
            Part::Cut(_) => return all,
            Part::Odd => panic!("no answer: {} to {}", rest.escape_ascii(), stream.escape_ascii()),
        }
    }
    all
}

/// What came is frames of HTTP/2, of the size that a client allows which says nothing.
fn check_frames(mut came: &[u8]) {
    while let Some((head, rest)) = came.split_at_checked(9) {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        assert!(length <= 16_384, "a frame of {length} bytes");
        came = rest.get(length..).unwrap_or_default();
    }
}
