//! Headers on their way through: what is a connection's own business stays behind, everything else passes as it came.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{
    AUTHORIZATION, AsHeaderName, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, HOST, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use memchr::memchr;
use rand::RngExt;
use rand::rngs::SmallRng;

use crate::request::{IDENTIFIER_HEADER, PRIORITIES, PRIORITY_HEADER, is_identifier};
use crate::telemetry::{TRACEPARENT, TRACESTATE, Trace};
use crate::units;

use super::error::{ProxyError, TIMEOUT_HEADER};

/// Room for the headers of most requests.
const FIELDS: usize = 1 << 10;

/// Headers that are not copied from the client's as they are: written by rules of their own, below or where the request is sent.
const WRITTEN_APART: [HeaderName; 8] =
    [HOST, AUTHORIZATION, EXPECT, CONTENT_LENGTH, COOKIE, FORWARDED_FOR, FORWARDED_PROTO, FORWARDED_HOST];

/// Headers of one connection, besides those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest time that a client may ask for: that of the configuration.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);

/// Takes away what belongs to one connection only.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(TRANSFER_ENCODING) {
        // It rules; a length beside it may be wrong (RFC 9112, 6.3).
        headers.remove(CONTENT_LENGTH);
    }
    make_one_length(headers);
    let named = named_by_connection(headers);
    // Most answers have one such field or none: looking through them costs less than asking for each of nine.
    let doomed: Vec<HeaderName> = headers.keys().filter(|name| is_hop_by_hop(name, &named)).cloned().collect();
    for name in doomed {
        headers.remove(name);
    }
}

/// What kind the body is said to be of, without parameters; `None` where nothing is said, or where it is compressed.
pub(super) fn plain_kind(headers: &HeaderMap) -> Option<&[u8]> {
    let kind = headers.get(CONTENT_TYPE)?.as_bytes();
    let is_plain = headers.get_all(CONTENT_ENCODING).iter().all(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity"));
    is_plain.then(|| kind[..memchr(b';', kind).unwrap_or(kind.len())].trim_ascii())
}

/// The headers that `Connection` declares to be its own.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    tokens(headers, CONNECTION).filter_map(|name| HeaderName::try_from(name).ok()).collect()
}

fn is_hop_by_hop(name: &HeaderName, named_by_connection: &[HeaderName]) -> bool {
    // The length describes the body, whoever claims otherwise.
    HOP_BY_HOP.contains(name) || (name != CONTENT_LENGTH && named_by_connection.contains(name))
}

/// Says the length once where it was said several times, and not at all where that is none. Nobody has looked at it where no body follows (HEAD, 304),
/// and no server could send it so.
fn make_one_length(headers: &mut HeaderMap) {
    let is_plain = |value: &HeaderValue| {
        value.as_bytes().iter().all(u8::is_ascii_digit) && value.to_str().is_ok_and(|text| text.parse::<u64>().is_ok())
    };
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = values.next() else { return };
    if is_plain(first) && values.next().is_none() {
        return;
    }
    let length = first.to_str().ok().and_then(|text| text.split(',').next()).and_then(|text| HeaderValue::from_str(text.trim()).ok());
    match length.filter(is_plain) {
        Some(length) if tokens(headers, CONTENT_LENGTH).all(|other| other == length) => {
            headers.insert(CONTENT_LENGTH, length);
        }
        _ => {
            headers.remove(CONTENT_LENGTH);
        }
    }
}

/// A client's headers as a replica gets them, written out, but for `Host` and the credentials, which depend on the replica. `request_id` is the one
/// that was made for a request without. Where it is traced, `trace` says who the replica's client is there.
pub(super) fn toward_replica(
    head: &Parts,
    client: SocketAddr,
    request_id: &HeaderValue,
    trace: Option<&Trace>,
    body_length: usize,
) -> Vec<u8> {
    let headers = &head.headers;
    let mut fields = Vec::with_capacity(FIELDS);
    let named = named_by_connection(headers);
    for (name, value) in headers {
        let is_of_trace = trace.is_some_and(|trace| name == TRACEPARENT || name == TRACESTATE && !trace.is_continued());
        if !is_hop_by_hop(name, &named) && !WRITTEN_APART.contains(name) && !is_of_trace {
            write_field(&mut fields, name, &[value.as_bytes()]);
        }
    }
    if !headers.contains_key(REQUEST_ID) || named.contains(&REQUEST_ID) {
        write_field(&mut fields, &REQUEST_ID, &[request_id.as_bytes()]);
    }
    if let Some(trace) = trace {
        write_field(&mut fields, &TRACEPARENT, &[trace.traceparent().as_bytes()]);
    }
    if headers.contains_key(COOKIE) && !named.contains(&COOKIE) {
        // HTTP/2 may split the field, HTTP/1.1 may not (RFC 9113, 8.2.3).
        let crumbs: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        write_field(&mut fields, &COOKIE, &[&crumbs.join(&b"; "[..])]);
    }
    let mut forwarded = |name: HeaderName, value: &[u8]| {
        if !headers.contains_key(&name) {
            return write_field(&mut fields, &name, &[value]);
        }
        // Proxies before this one may have begun the list. It goes on in one field, as its readers expect.
        let earlier = headers.get_all(&name).iter().filter(|_| !named.contains(&name));
        let mut list: Vec<&[u8]> = earlier.flat_map(|earlier| [earlier.as_bytes(), b", "]).collect();
        list.push(value);
        write_field(&mut fields, &name, &list);
    };
    forwarded(FORWARDED_FOR, &address(client.ip().to_canonical()));
    forwarded(FORWARDED_PROTO, b"http");
    let host = head.uri.authority().map(|authority| authority.as_str().as_bytes()).or_else(|| Some(headers.get(HOST)?.as_bytes()));
    if let Some(host) = host {
        forwarded(FORWARDED_HOST, host);
    }
    // The body is sent in one piece, however it came. A length beside a transfer encoding means nothing.
    if body_length > 0 || (headers.contains_key(CONTENT_LENGTH) && !headers.contains_key(TRANSFER_ENCODING)) {
        write_field(&mut fields, &CONTENT_LENGTH, &[itoa::Buffer::new().format(body_length).as_bytes()]);
    }
    fields
}

/// A client's credentials for the engine.
pub(super) fn credentials(headers: &HeaderMap) -> Vec<HeaderValue> {
    let is_passed = !named_by_connection(headers).contains(&AUTHORIZATION);
    headers.get_all(AUTHORIZATION).iter().filter(|_| is_passed).cloned().collect()
}

/// An address as text. (The general way takes eight times as many instructions.)
fn address(ip: IpAddr) -> Vec<u8> {
    let IpAddr::V4(ip) = ip else { return ip.to_string().into_bytes() };
    let mut text = Vec::with_capacity(15);
    for octet in ip.octets() {
        text.extend_from_slice(itoa::Buffer::new().format(octet).as_bytes());
        text.push(b'.');
    }
    text.pop();
    text
}

fn write_field(fields: &mut Vec<u8>, name: &HeaderName, value: &[&[u8]]) {
    fields.extend_from_slice(name.as_str().as_bytes());
    fields.extend_from_slice(b": ");
    value.iter().for_each(|part| fields.extend_from_slice(part));
    fields.extend_from_slice(b"\r\n");
}

/// The request's identifier for logs and for everybody beyond: the client's, else one that is made.
pub(super) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let own = headers.get(REQUEST_ID).filter(|_| !named_by_connection(headers).contains(&REQUEST_ID));
    own.cloned().unwrap_or_else(|| {
        let number = CHANCE.with_borrow_mut(|chance| chance.random::<u128>());
        let digits: Vec<u8> = (0..32).map(|digit| b"0123456789abcdef"[(number >> (4 * digit)) as usize & 15]).collect();
        HeaderValue::from_maybe_shared(Bytes::from(digits)).unwrap_or_else(|_| HeaderValue::from_static("none"))
    })
}

thread_local! {
    /// Identifiers have to differ, and nobody has to be kept from guessing them: the generator that is made for secrets takes ten times as long.
    static CHANCE: RefCell<SmallRng> = RefCell::new(rand::make_rng());
}

/// The placement identifier that the header carries.
pub(super) fn identifier(headers: &HeaderMap) -> Result<Option<&str>, ProxyError> {
    let mut values = headers.get_all(IDENTIFIER_HEADER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|text| is_identifier(text.as_bytes()));
    if values.next().is_some() || text.is_none() { Err(ProxyError::BadIdentifier) } else { Ok(text) }
}

/// The priority that the header carries.
pub(super) fn priority(headers: &HeaderMap) -> Result<Option<i32>, ProxyError> {
    let mut values = headers.get_all(PRIORITY_HEADER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok()).filter(|number| PRIORITIES.contains(number));
    if values.next().is_some() || number.is_none() { Err(ProxyError::BadPriority) } else { Ok(number) }
}

/// How long the client is ready to wait for the first byte of its answer.
pub(super) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, ProxyError> {
    let mut values = headers.get_all(TIMEOUT_HEADER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    let seconds = || text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = seconds().or_else(|| units::time(text).ok());
    let time = time.filter(|time| !time.is_zero() && *time <= LONGEST_TIMEOUT && values.next().is_none());
    time.map(Some).ok_or(ProxyError::BadTimeout)
}

/// Whether the client wants to speak WebSocket. Other upgrades are offers (Java's client always offers h2c), which a server may pass over.
pub(super) fn wants_websocket(headers: &HeaderMap) -> bool {
    tokens(headers, UPGRADE).any(|protocol| protocol.eq_ignore_ascii_case("websocket"))
}

/// Bytes of all names and values, with what separates them in HTTP/1.
pub(super) fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

/// The elements of a comma-separated list.
fn tokens(headers: &HeaderMap, name: impl AsHeaderName) -> impl Iterator<Item = &str> {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).flat_map(|list| list.split(',')).map(str::trim)
}
