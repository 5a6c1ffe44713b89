//! Asks the admin API of a running router.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::time::timeout;

use crate::units::Secret;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of an answer: a thousand replicas say less.
const MOST: usize = 16 << 20;

/// A client of one router's admin API.
pub struct Client {
    http: HttpClient<HttpConnector, Full<Bytes>>,
    url: String,
    token: Option<Secret>,
}

impl Client {
    /// One that asks at `url`, with that token; or why there can be none.
    pub fn new(url: &str, token: Option<Secret>) -> Result<Self> {
        let base = url.trim_end_matches('/');
        let parsed: Uri = base.parse().map_err(|_| anyhow!("{url:?} is not a URL; allowed: http://HOST:PORT"))?;
        if parsed.scheme_str() == Some("https") {
            bail!("the admin port speaks http, not https; allowed: http://HOST:PORT");
        }
        let is_url = parsed.scheme_str() == Some("http") && parsed.authority().is_some() && parsed.query().is_none();
        ensure!(is_url, "{url:?} is not a URL; allowed: http://HOST:PORT");
        Ok(Self { http: HttpClient::builder(TokioExecutor::new()).build_http(), url: base.to_owned(), token })
    }

    /// Where it asks.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What `/api/v1/` says at that path; an error says what to do.
    pub(super) async fn ask(&self, method: Method, path: &str, body: Bytes, headers: &[(&str, &str)]) -> Result<Value> {
        let url = &self.url;
        let mut request = Request::builder().method(method).uri(format!("{url}/api/v1/{path}")).header(CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.reveal()));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).context("this cannot be asked")?;
        let asked = timeout(PATIENCE, async {
            let answer = self.http.request(request).await.map_err(|error| anyhow!("{}", root(&error)))?;
            let (status, is_traffic) = (answer.status(), answer.headers().contains_key("x-prefix-router-error"));
            let body = Limited::new(answer.into_body(), MOST).collect().await.map_err(|error| anyhow!("the answer broke off: {error}"))?;
            anyhow::Ok((status, is_traffic, body.to_bytes()))
        });
        let (status, is_traffic, body) = match asked.await {
            Err(_) => bail!("the router at {url} does not answer within {} s", PATIENCE.as_secs()),
            Ok(Err(error)) => bail!("no router answers at {url}: {error} (--url, or --config for its admin address)"),
            Ok(Ok(answered)) => answered,
        };
        ensure!(!is_traffic, "what answers at {url} is a router's traffic port; its admin port is another (--url, or --config)");
        let json: Option<Value> = serde_json::from_slice(&body).ok();
        let said = json.as_ref().and_then(|json| json["error"]["message"].as_str());
        match (status, json.is_some()) {
            (StatusCode::OK, true) => Ok(json.unwrap_or_default()),
            (StatusCode::UNAUTHORIZED, true) => bail!(
                "the router at {url} asks for its admin_token: give it by --config FILE or PREFIX_ROUTER_ADMIN_TOKEN ({})",
                said.unwrap_or_default()
            ),
            (_, true) if said.is_some() => bail!("the router at {url} says: {}", super::clean(said.unwrap_or_default())),
            _ => bail!("what answers at {url} is no admin port of a prefix-router (status {})", status.as_u16()),
        }
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value> {
        self.ask(Method::GET, path, Bytes::new(), &[]).await
    }
}

/// As a part of a path or a value in a query.
pub(super) fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// The innermost cause, which names what happened.
fn root(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn wrong_urls_are_refused_with_what_is_allowed() {
        for url in ["https://a:1", "a:1", "ftp://a", "http://", "http://a b", "", "http://a/?x=1"] {
            let error = Client::new(url, None).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("http://HOST:PORT"), "{url}: {error}");
        }
        assert_eq!(Client::new("http://a:1/below/", None).unwrap().url(), "http://a:1/below");
    }
}
