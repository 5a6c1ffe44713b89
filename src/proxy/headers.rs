//! Headers on their way through: what is a connection's own business stays behind, everything else passes as it came.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::header::{
    AsHeaderName, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::{HeaderMap, Uri};
use rand::RngExt;

use crate::request::{IDENTIFIER_HEADER, PRIORITIES, PRIORITY_HEADER, is_identifier};
use crate::units;

use super::error::{ProxyError, TIMEOUT_HEADER};

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
    let named: Vec<HeaderName> = tokens(headers, CONNECTION).filter_map(|name| HeaderName::try_from(name).ok()).collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        // The length describes the body, whoever claims otherwise.
        if name != CONTENT_LENGTH {
            headers.remove(name);
        }
    }
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

/// Makes a client's headers those of the request to a replica (which gets its `Host` where it is sent).
pub(super) fn toward_replica(headers: &mut HeaderMap, uri: &Uri, client: SocketAddr, body_length: usize) {
    let host = uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok()).or_else(|| headers.get(HOST).cloned());
    strip_hop_by_hop(headers);
    // The router has asked for the body itself.
    headers.remove(EXPECT);
    headers.remove(HOST);
    if headers.get_all(COOKIE).iter().nth(1).is_some() {
        // HTTP/2 may split the field, HTTP/1.1 may not (RFC 9113, 8.2.3).
        let crumbs: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
            headers.insert(COOKIE, cookie);
        }
    }
    append(headers, FORWARDED_FOR, HeaderValue::from_str(&client.ip().to_canonical().to_string()).ok());
    append(headers, FORWARDED_PROTO, Some(HeaderValue::from_static("http")));
    append(headers, FORWARDED_HOST, host);
    // The body is sent in one piece, however it came.
    if body_length > 0 || headers.contains_key(CONTENT_LENGTH) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body_length));
    }
}

/// Adds to a list that proxies before this one may have begun, in one field as its readers expect.
fn append(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) {
    let Some(value) = value else { return };
    let mut list: Vec<u8> = headers.get_all(&name).iter().flat_map(|earlier| [earlier.as_bytes(), b", "]).flatten().copied().collect();
    list.extend_from_slice(value.as_bytes());
    if let Ok(list) = HeaderValue::from_bytes(&list) {
        headers.insert(name, list);
    }
}

/// The request's identifier for logs: the client's, else one that is made and added.
pub(super) fn request_id(headers: &mut HeaderMap) -> String {
    if let Some(given) = headers.get(REQUEST_ID) {
        // Whatever its length, a log line stays a line.
        return String::from_utf8_lossy(&given.as_bytes()[..given.len().min(128)]).into_owned();
    }
    let made = format!("{:032x}", rand::rng().random::<u128>());
    if let Ok(value) = HeaderValue::from_str(&made) {
        headers.insert(REQUEST_ID, value);
    }
    made
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
