//! Who may use the admin port. Scrapers and probes always; all else needs the token or, where none is configured, has to come from this host and
//! not from a web page that somebody has open there.
//!
//! A browser on this host can be made to send requests: by a page of another origin (which `Origin` tells), or by a name that its owner lets point
//! to loopback (which `Host` tells). With a token neither is of use, as no page knows it.

use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::Response;

use super::{Admin, api};
use crate::units::Secret;

/// Whether what is there shows neither configuration nor decisions, and changes nothing. The page is empty until it may ask the API.
fn is_open(path: &str) -> bool {
    matches!(path, "/metrics" | "/live" | "/ready" | "/" | "/ui") || path.starts_with("/ui/")
}

/// Serves `request` if it may be.
pub(super) async fn check(
    State(admin): State<Admin>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let token = admin.access.borrow().token.clone();
    let judged = match token {
        _ if is_open(request.uri().path()) => Ok(()),
        Some(token) => by_token(&token, request.headers()),
        None => by_place(client.ip(), admin.address, request.uri(), request.headers()),
    };
    match judged {
        Ok(()) => next.run(request).await,
        Err(Refusal::Token(text)) => {
            let mut response = api::refuse(StatusCode::UNAUTHORIZED, text);
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
        Err(Refusal::Place(text)) => api::refuse(StatusCode::FORBIDDEN, text),
    }
}

/// Why a request is not served, and what to do.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    Token(&'static str),
    Place(&'static str),
}

fn by_token(token: &Secret, headers: &HeaderMap) -> Result<(), Refusal> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(Refusal::Token("this needs the header `Authorization: Bearer TOKEN`, once, with the admin_token of the configuration"));
    };
    let given = value.as_bytes().split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
    match given {
        Some((_, given)) if is_same(given.trim_ascii(), token.reveal().as_bytes()) => Ok(()),
        _ => Err(Refusal::Token("this is not the admin_token of the configuration; it is sent as `Authorization: Bearer TOKEN`")),
    }
}

/// Whether both are equal, in a time that tells no more of them than their lengths.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differing = one.iter().zip(other).fold(0, |differing, (one, other)| black_box(differing | (one ^ other)));
    one.len() == other.len() && differing == 0
}

/// What a proxy adds on this host, through which anybody may come.
const FORWARDED: [header::HeaderName; 4] =
    [header::FORWARDED, header::VIA, header::HeaderName::from_static("x-forwarded-for"), header::HeaderName::from_static("x-real-ip")];

fn by_place(client: IpAddr, own: IpAddr, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
    if !client.to_canonical().is_loopback() {
        return Err(Refusal::Place(
            "without an admin_token in the configuration this is served to the router's own host alone; set one, or ask there",
        ));
    }
    if FORWARDED.iter().any(|name| headers.contains_key(name)) {
        return Err(Refusal::Place("this came through a proxy, so nobody knows from where; set an admin_token in the configuration"));
    }
    // HTTP/2 has it in the URI.
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).or(uri.authority().map(Authority::as_str));
    let Some(host) = host.filter(|host| is_own_host(host, own)) else {
        let text = "without an admin_token in the configuration Host must be localhost, a loopback address, or the admin address; set one, or ask so";
        return Err(Refusal::Place(text));
    };
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let is_same_origin = |origin: &HeaderValue| {
        let of_host = origin.to_str().ok().and_then(|origin| origin.strip_prefix("http://"));
        of_host.is_some_and(|origin| origin.eq_ignore_ascii_case(host))
    };
    if !origins.all(is_same_origin) {
        return Err(Refusal::Place(
            "this was sent by a page of another origin; without an admin_token in the configuration no such page is served",
        ));
    }
    Ok(())
}

/// Whether `host`, with a port or without, names this host in a way that nobody else can have arranged.
fn is_own_host(host: &str, own: IpAddr) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    if host.contains('@') {
        return false;
    }
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().map(|address| address.to_canonical());
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback() || address == own.to_canonical())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn one_who_has_the_token_is_served_and_nobody_else() {
        let token = Secret::new("sesame".to_owned());
        let check = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            by_token(&token, &headers).is_ok()
        };
        assert!(check(&["Bearer sesame"]) && check(&["bearer  sesame"]));
        for wrong in [&[][..], &["Bearer sesam"], &["Bearer sesame2"], &["Bearer "], &["Bearer"], &["Basic sesame"], &["sesame"]] {
            assert!(!check(wrong), "{wrong:?}");
        }
        assert!(!check(&["Bearer sesame", "Bearer sesame"]), "twice");
    }

    #[test]
    fn without_a_token_only_this_host_is_served_and_no_page_of_others() {
        let check = |client: &str, host: Option<&str>, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            for (name, value) in [(header::HOST, host), (header::ORIGIN, origin)] {
                if let Some(value) = value {
                    headers.insert(name, HeaderValue::from_str(value).unwrap());
                }
            }
            by_place(client.parse().unwrap(), "10.0.0.9".parse().unwrap(), &Uri::from_static("/"), &headers).is_ok()
        };
        for client in ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"] {
            assert!(check(client, Some("localhost:8081"), None), "{client}");
        }
        for client in ["10.0.0.9", "::ffff:10.0.0.1", "fe80::1"] {
            assert!(!check(client, Some("localhost:8081"), None), "{client}");
        }
        for host in ["LocalHost", "127.0.0.1:1", "[::1]:8081", "10.0.0.9:8081", "[::ffff:127.0.0.1]"] {
            assert!(check("::1", Some(host), None), "{host}");
        }
        for host in ["localhost.evil.test", "evil.test:8081", "127.0.0.1.evil.test", "10.0.0.8", "me@localhost", "0.0.0.0:8081", ""] {
            assert!(!check("::1", Some(host), None), "{host}");
        }
        assert!(!check("::1", None, None), "no host");
        assert!(check("::1", Some("localhost:1"), Some("http://localhost:1")));
        for origin in ["http://evil.test", "null", "http://localhost:2", "https://localhost:1", "http://localhost:1.evil.test"] {
            assert!(!check("::1", Some("localhost:1"), Some(origin)), "{origin}");
        }
    }
}
