//! What scripted replicas say: steps for the common answers.

use std::time::Duration;

use crate::replica::{Gate, Request, Step};

/// A response with a content length.
pub(crate) fn response(status: u16, fields: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut bytes = format!("HTTP/1.1 {status} Status\r\n{fields}content-length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend(body);
    bytes
}

/// Answers so.
pub(crate) fn answer(status: u16, fields: &str, body: impl AsRef<[u8]>) -> Vec<Step> {
    vec![Step::Write(response(status, fields, body))]
}

/// 200 and a small JSON body.
pub(crate) fn ok(_: &Request) -> Vec<Step> {
    answer(200, "content-type: application/json\r\n", r#"{"ok":true}"#)
}

/// 200 and the request's body.
pub(crate) fn echo(request: &Request) -> Vec<Step> {
    answer(200, "content-type: application/octet-stream\r\n", &request.body)
}

/// Takes the request and says nothing.
pub(crate) fn hang(_: &Request) -> Vec<Step> {
    vec![Step::Hang]
}

/// Takes the request and resets the connection.
pub(crate) fn reset(_: &Request) -> Vec<Step> {
    vec![Step::Reset]
}

/// 200 once the gate is open.
pub(crate) fn ok_after(gate: &Gate) -> impl Fn(&Request) -> Vec<Step> + Send + Sync + use<> {
    let gate = gate.clone();
    move |request| [vec![Step::Wait(gate.clone())], ok(request)].concat()
}

/// The head of a stream, as vLLM sends it.
pub(crate) const STREAM_HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

/// The end of a chunked body.
pub(crate) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

pub(crate) fn head() -> Step {
    Step::Write(STREAM_HEAD.to_vec())
}

/// One chunk.
pub(crate) fn chunk(data: impl AsRef<[u8]>) -> Step {
    let data = data.as_ref();
    let mut bytes = format!("{:x}\r\n", data.len()).into_bytes();
    bytes.extend(data);
    bytes.extend(b"\r\n");
    Step::Write(bytes)
}

pub(crate) fn last_chunk() -> Step {
    Step::Write(LAST_CHUNK.to_vec())
}

/// A stream of `count` events and `[DONE]`, `pause` between two.
pub(crate) fn stream(count: usize, pause: Duration) -> Vec<Step> {
    let mut steps = vec![head()];
    for number in 0..count {
        steps.push(chunk(event(number)));
        steps.push(Step::Sleep(pause));
    }
    steps.push(chunk("data: [DONE]\n\n"));
    steps.push(last_chunk());
    steps
}

/// One event of a stream.
pub(crate) fn event(number: usize) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{number}\"}}}}]}}\n\n")
}
