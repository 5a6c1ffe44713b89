//! A stream of server-sent events on its way: as much of it as must be known to end it with an event that tells of an error.
//!
//! It changes nothing of what passes.

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::CONTENT_LENGTH;
use memchr::memmem;

use super::error::ProxyError;
use crate::request::Dialect;

/// What a stream of events says that it is.
pub(super) const EVENT_STREAM: &str = "text/event-stream";

/// Whether an answer of that kind is a stream of events.
pub(super) fn is_event_stream(kind: Option<&[u8]>) -> bool {
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case(EVENT_STREAM.as_bytes()))
}

/// Whether a piece of a stream of events has more than comments.
pub(super) fn says_something(data: &[u8]) -> bool {
    let says = |line: &[u8]| !line.trim_ascii().is_empty() && !line.starts_with(b":");
    data.split(|&byte| byte == b'\n' || byte == b'\r').any(says)
}

/// So many of a stream's last bytes tell how it stands.
const TAIL: usize = 64;

/// What the beginning of an answer looks like that says as soon as its prompt is computed that it is: a stream of events.
pub(super) struct Beginning {
    is_stream: bool,
}

impl Beginning {
    /// That of an answer of that kind.
    pub(super) fn of(kind: Option<&[u8]>) -> Self {
        Self { is_stream: is_event_stream(kind) }
    }

    /// Whether an answer begins with `data`, and, if so, whether it does because its prompt is computed: what comes whole does when it is over. Comments are
    /// sent while nothing has been done yet, to keep the connection open.
    pub(super) fn begins(&self, data: &[u8]) -> Option<bool> {
        (!self.is_stream || says_something(data)).then_some(self.is_stream)
    }
}

/// A stream of server-sent events, as far as it must be known to add one.
pub(super) struct Events {
    dialect: Dialect,
    /// The last bytes passed on.
    tail: Vec<u8>,
    /// Whether the event that ends a stream of `/v1/responses` has been there, which is too long for the tail.
    over: bool,
}

impl Events {
    /// What is to be known of an answer of that kind with these headers; `None` where it is no stream of events, or none to which one can be added.
    pub(super) fn of(kind: Option<&[u8]>, headers: &HeaderMap, dialect: Dialect) -> Option<Self> {
        // One cannot be added where the length is fixed.
        let can_be_read = is_event_stream(kind) && !headers.contains_key(CONTENT_LENGTH);
        can_be_read.then(|| Self { dialect, tail: Vec::with_capacity(TAIL), over: false })
    }

    /// Takes note of bytes that are passed on.
    pub(super) fn passed_on(&mut self, data: &[u8]) {
        self.over |= self.dialect == Dialect::Responses && ends_responses(data);
        let fresh = &data[data.len().saturating_sub(TAIL)..];
        let kept = self.tail.len().min(TAIL - fresh.len());
        self.tail.drain(..self.tail.len() - kept);
        self.tail.extend_from_slice(fresh);
    }

    /// Whether the stream has said that it is over. Clients may close then and leave the rest unread.
    pub(super) fn are_over(&self) -> bool {
        let text = self.tail.trim_ascii_end();
        let line = text.rsplit(|&byte| byte == b'\n' || byte == b'\r').next().unwrap_or_default();
        self.over || matches!(line, b"data: [DONE]" | b"data:[DONE]" | br#"data: {"type":"message_stop"}"#)
    }

    /// What ends the line and the event that were under way, and one event that tells of `error`. `None` where the stream said that it is over.
    pub(super) fn error_event(&self, error: &ProxyError) -> Option<Bytes> {
        if self.are_over() {
            return None;
        }
        let line_ends = self.tail.iter().rev().take_while(|byte| byte.is_ascii_whitespace()).filter(|&&byte| byte == b'\n').count();
        let mut event = vec![b'\n'; if self.tail.is_empty() { 0 } else { 2_usize.saturating_sub(line_ends) }];
        event.extend_from_slice(&error.event(self.dialect));
        Some(event.into())
    }
}

/// Whether a line of `data` begins the last event of a stream of `/v1/responses`.
fn ends_responses(data: &[u8]) -> bool {
    let names: [&[u8]; 3] = [b"\nevent: response.completed", b"\nevent: response.incomplete", b"\nevent: response.failed"];
    names.iter().any(|name| data.starts_with(&name[1..]) || memmem::find(data, name).is_some())
}
