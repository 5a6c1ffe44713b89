//! Where a collector is, as the configuration says it. Nothing is resolved or contacted here.

use std::fmt;

use hyper::Uri;

/// What is added to an endpoint for traces, by OTLP's rules for a base URL.
const TRACES: &str = "/v1/traces";

/// A collector's endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    url: String,
    host: String,
    port: u16,
    /// For the header `host`.
    authority: String,
    path: String,
}

impl Endpoint {
    /// What one looks like.
    pub const ALLOWED: &str = "http://HOST:PORT, with a path or without";

    /// The endpoint of that URL, or what is wrong with it.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        let unusable = "is not a URL of http";
        if url.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://")) {
            return Err("is https, which is not spoken here: let a collector near this router take the spans over http, and pass them on");
        }
        let uri: Uri = url.parse().map_err(|_| unusable)?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or(unusable)?;
        if authority.as_str().contains('@') || uri.query().is_some() || url.contains('#') {
            return Err("has more than a host, a port and a path");
        }
        let host = authority.host();
        // A port that is no number is none to the parser, and has to be noticed by what is left.
        let is_whole = match authority.port_u16() {
            Some(port) => port != 0,
            None => authority.as_str() == host,
        };
        if host.is_empty() || !is_whole {
            return Err(unusable);
        }
        let base = uri.path().trim_end_matches('/');
        if base.ends_with(TRACES) {
            return Err("ends in /v1/traces, which is added here");
        }
        Ok(Self {
            url: url.to_owned(),
            host: host.trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: authority.to_string(),
            path: format!("{base}{TRACES}"),
        })
    }

    /// As it was written.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The head of a request that brings so many bytes of spans.
    pub(super) fn head(&self, length: usize) -> String {
        let (path, authority, version) = (&self.path, &self.authority, env!("CARGO_PKG_VERSION"));
        format!(
            "POST {path} HTTP/1.1\r\nhost: {authority}\r\nuser-agent: prefix-router/{version}\r\ncontent-type: application/x-protobuf\r\n\
             content-length: {length}\r\n\r\n"
        )
    }
}

/// Where spans go in the end.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_gets_the_path_of_traces() {
        for (url, host, port, whole) in [
            ("http://localhost:4318", "localhost", 4_318, "http://localhost:4318/v1/traces"),
            ("http://localhost:4318/", "localhost", 4_318, "http://localhost:4318/v1/traces"),
            ("http://collector", "collector", 80, "http://collector/v1/traces"),
            ("http://[::1]:4318/api/otlp/", "::1", 4_318, "http://[::1]:4318/api/otlp/v1/traces"),
            ("HTTP://10.0.0.1:9/v1", "10.0.0.1", 9, "http://10.0.0.1:9/v1/v1/traces"),
        ] {
            let endpoint = Endpoint::parse(url).expect("an endpoint");
            assert_eq!((endpoint.host(), endpoint.port(), endpoint.to_string(), endpoint.url()), (host, port, whole.to_owned(), url));
        }
    }

    #[test]
    fn what_is_none() {
        for url in [
            "https://a:4318",
            "HTTPS://a",
            "grpc://a:4317",
            "a:4318",
            "a",
            "/v1",
            "http://",
            "http://:4318",
            "http://a:0",
            "http://a:65536",
            "http://a:x",
            "http://a:",
            "http://a b",
            "http://é:1",
            "http://u:p@a:4318",
            "http://a:4318?x=1",
            "http://a:4318/#x",
            "http://a:4318/v1/traces",
            "http://a:4318/v1/traces/",
            "http://a/\r\nx: y",
        ] {
            assert!(Endpoint::parse(url).is_err(), "{url}");
        }
    }
}
