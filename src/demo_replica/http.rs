//! Paths, heads and bodies as uvicorn and FastAPI have them; what is behind a path is in a file of its own.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, DATE, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, SERVER, VARY};
use axum::http::{Method, Response, StatusCode};
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};

use super::ask::Fields;
use super::cut::{At, Cut};
use super::flight::{Flight, Order};
use super::journal::Entry;
use super::metrics;
use super::refusal::Refusal;
use super::{App, chat, completions, embeddings, faults, messages, responses, tokenize};

/// What vLLM says of itself.
pub(super) const FINGERPRINT: &str = "vllm-0.32.0-7b70ad57";

/// Bodies longer than this are not read; uvicorn has no limit, but a simulated replica shares its host's memory.
const MAX_BODY: usize = 256 << 20;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const LOAD_METRICS: HeaderName = HeaderName::from_static("endpoint-load-metrics");
const LOAD_METRICS_FORMAT: HeaderName = HeaderName::from_static("endpoint-load-metrics-format");

/// Paths, and the method that each takes. `/demo/` is ours, all else is vLLM's.
const PATHS: [(&str, &str); 21] = [
    ("/health", "GET"),
    ("/ping", "GET, POST"),
    ("/version", "GET"),
    ("/load", "GET"),
    ("/metrics", "GET"),
    ("/v1/models", "GET"),
    ("/reset_prefix_cache", "POST"),
    ("/tokenize", "POST"),
    ("/detokenize", "POST"),
    ("/v1/messages/count_tokens", "POST"),
    ("/v1/chat/completions", "POST"),
    ("/v1/completions", "POST"),
    ("/v1/responses", "POST"),
    ("/v1/messages", "POST"),
    ("/v1/embeddings", "POST"),
    ("/invocations", "POST"),
    ("/v1/chat/completions/render", "POST"),
    ("/v1/completions/render", "POST"),
    ("/v1/messages/render", "POST"),
    ("/v1/responses/render", "POST"),
    ("/demo/requests", "GET"),
];

/// What the engine works for; faults and the journal are about these.
const INFERENCE: [&str; 6] = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/invocations"];

/// All paths.
pub(super) fn routes(app: Arc<App>) -> Router {
    Router::new().fallback(handle).with_state(app)
}

/// A request under way.
pub(super) struct Call {
    pub(super) app: Arc<App>,
    /// What its answers' ids end in.
    pub(super) id: String,
    /// When it came, in seconds since 1970.
    pub(super) created: u64,
    load_format: String,
    /// Until it is in the engine.
    entry: Option<Entry>,
}

impl Call {
    /// Puts all orders into the engine's queue.
    pub(super) fn launch(&mut self, orders: Vec<Order>, salt: Option<&str>, max_tokens: usize) -> Result<Flight, Refusal> {
        let entry = self.entry.take().unwrap_or_else(|| self.app.journal.begin("/v1"));
        Flight::launch(&self.app, entry, orders, salt, max_tokens)
    }
}

/// An answer.
pub(super) struct Reply {
    status: StatusCode,
    /// Fields that only some answers have.
    extra: HeaderMap,
    late: Option<(HeaderName, HeaderValue)>,
    content_type: Option<&'static str>,
    body: Body,
}

impl Reply {
    pub(super) fn json(body: &Value) -> Self {
        Self::new(StatusCode::OK, Some("application/json"), Body::from(body.to_string()))
    }

    pub(super) fn stream(body: impl http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static) -> Self {
        Self::new(StatusCode::OK, Some("text/event-stream; charset=utf-8"), Body::new(body))
    }

    pub(super) fn new(status: StatusCode, content_type: Option<&'static str>, body: Body) -> Self {
        Self { status, extra: HeaderMap::new(), late: None, content_type, body }
    }

    /// Without a body.
    pub(super) fn empty(status: StatusCode) -> Self {
        Self::new(status, None, Body::new(Nothing))
    }

    /// Breaks off `at` some point. A whole answer cannot end early in good order: its length is in its head.
    pub(super) fn cut(mut self, at: At) -> Self {
        let whole = self.body.size_hint().exact().is_some();
        if !(whole && matches!(at, At::Clean(_))) {
            self.body = Body::new(Cut::new(self.body, at));
        }
        self
    }

    pub(super) fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    pub(super) fn with(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.extra.insert(name, value);
        }
        self
    }

    /// With a field that uvicorn sends after the length.
    fn after_length(mut self, name: HeaderName, value: &str) -> Self {
        self.late = HeaderValue::from_str(value).ok().map(|value| (name, value));
        self
    }

    /// With the engine's load in the head, where the client asked for it (ORCA).
    pub(super) fn with_load(self, call: &Call) -> Self {
        let counts = call.app.engine.counts();
        let (waiting, usage) = (format!("{:?}", counts.waiting as f64), format!("{:?}", metrics::cache_usage(&counts)));
        let value = match call.load_format.to_ascii_lowercase().as_str() {
            "json" => format!(r#"JSON {{"named_metrics": {{"num_requests_waiting": {waiting}, "kv_cache_usage_perc": {usage}}}}}"#),
            "text" => format!("TEXT named_metrics.num_requests_waiting={waiting}, named_metrics.kv_cache_usage_perc={usage}"),
            _ => return self,
        };
        self.with(LOAD_METRICS, &value)
    }

    /// As it goes out: fields in uvicorn's order.
    fn finish(self, request_id: Option<&str>) -> Response<Body> {
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status;
        let length = response.body().size_hint().exact();
        let headers = response.headers_mut();
        if let Ok(date) = HeaderValue::from_str(&httpdate::fmt_http_date(SystemTime::now())) {
            headers.insert(DATE, date);
        }
        headers.insert(SERVER, HeaderValue::from_static("uvicorn"));
        headers.extend(self.extra);
        if let Some(length) = length {
            headers.insert(CONTENT_LENGTH, length.into());
        }
        if let Some((name, value)) = self.late {
            headers.insert(name, value);
        }
        if let Some(content_type) = self.content_type {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        headers.insert(VARY, HeaderValue::from_static("Origin"));
        if let Some(id) = request_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            headers.insert(X_REQUEST_ID, id);
        }
        response
    }
}

/// A body of no bytes that hyper does not know to be one: then it leaves `content-length` in its place.
struct Nothing;

impl http_body::Body for Nothing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(0)
    }
}

async fn handle(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let given = request.headers().get(X_REQUEST_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let told = app.settings.request_id_headers.then(|| given.clone().unwrap_or_else(|| format!("{}{}", hex(), hex())));
    let path = request.uri().path().to_owned();
    if INFERENCE.contains(&path.as_str()) && request.method() == Method::POST {
        return faults::around(&app, &path, |entry| infer(Arc::clone(&app), request, given, entry)).await.finish(told.as_deref());
    }
    route(app, request, &path, given).await.finish(told.as_deref())
}

/// All that is not inference.
async fn route(app: Arc<App>, request: Request, path: &str, id: Option<String>) -> Reply {
    let method = request.method().as_str();
    let find = |path: &str| PATHS.iter().chain(&faults::PATHS).find(|(known, _)| *known == path);
    let Some((_, allowed)) = find(path) else {
        return elsewhere(&request, path, path.strip_suffix('/').and_then(find).is_some());
    };
    if !allowed.split(", ").any(|known| known == method) {
        return detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed").with(ALLOW, allowed);
    }
    if path == faults::PATHS[0].0 {
        return faults::control(&app, request).await;
    }
    if app.settings.api_key.is_some() && path.starts_with("/v1") && !authorized(&app, request.headers()) {
        return unauthorized();
    }
    match path {
        "/health" | "/ping" => match app.faults.health().await {
            Some(reply) => reply,
            None => Reply::empty(StatusCode::OK),
        },
        "/version" => Reply::json(&json!({"version": "0.32.0"})),
        "/load" => Reply::json(&json!({"server_load": app.journal.open()})),
        "/metrics" => {
            let page = app.metrics.render(&app.engine.counts());
            Reply::new(StatusCode::OK, Some("text/plain; version=1.0.0; charset=utf-8"), Body::from(page))
        }
        "/v1/models" => models(&app),
        path if path.ends_with("/render") => {
            let message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.";
            refused(&Refusal { status: StatusCode::FORBIDDEN, kind: "PermissionDeniedError", ..Refusal::bad(message) }, false)
        }
        "/demo/requests" => Reply::json(&app.journal.show()),
        "/reset_prefix_cache" => Reply::json(&json!({"success": app.engine.reset_cache()})),
        _ => {
            let headers = request.headers().clone();
            let anthropic = path.starts_with("/v1/messages");
            let answered = match fields(&headers, request.into_body()).await {
                Ok(fields) => match path {
                    "/tokenize" => tokenize::tokenize(&app, &fields),
                    "/detokenize" => tokenize::detokenize(&app, &fields),
                    _ => messages::count_tokens(&call(app, id, &headers, None), &fields),
                },
                Err(refusal) => Err(refusal),
            };
            answered.unwrap_or_else(|refusal| refused(&refusal, anthropic))
        }
    }
}

/// A path that is not known as it is.
fn elsewhere(request: &Request, path: &str, known_without_slash: bool) -> Reply {
    if known_without_slash {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        return Reply::empty(StatusCode::TEMPORARY_REDIRECT).after_length(LOCATION, &format!("http://{host}{}", path.trim_end_matches('/')));
    }
    match path.strip_prefix("/v1/responses/").map(|id| id.trim_end_matches("/cancel")) {
        Some(id) if !id.contains('/') => refused(&Refusal::no_response(id), false),
        _ => detail(StatusCode::NOT_FOUND, "Not Found"),
    }
}

/// An inference request.
async fn infer(app: Arc<App>, request: Request, id: Option<String>, entry: Entry) -> Reply {
    let path = request.uri().path().to_owned();
    let headers = request.headers().clone();
    let mut call = call(app, id, &headers, Some(entry));
    let answered = if call.app.settings.api_key.is_some() && !authorized(&call.app, &headers) {
        Ok(unauthorized())
    } else {
        match fields(&headers, request.into_body()).await {
            Ok(fields) => dispatch(&mut call, &path, &fields).await,
            Err(refusal) => Err(refusal),
        }
    };
    // What is not in the engine by now never will be.
    if let Some(mut entry) = call.entry.take() {
        entry.refuse();
    }
    answered.unwrap_or_else(|refusal| refused(&refusal, path == "/v1/messages"))
}

async fn dispatch(call: &mut Call, path: &str, fields: &Fields) -> Result<Reply, Refusal> {
    match path {
        "/v1/chat/completions" => chat::answer(call, fields).await,
        "/v1/completions" => completions::answer(call, fields).await,
        "/v1/responses" => responses::answer(call, fields).await,
        "/v1/messages" => messages::answer(call, fields).await,
        "/v1/embeddings" => embeddings::answer(call, fields).await,
        // `/invocations` takes whatever form the body has.
        _ if fields.contains_key("messages") => chat::answer(call, fields).await,
        _ if fields.contains_key("prompt") => completions::answer(call, fields).await,
        _ if fields.contains_key("input") => embeddings::answer(call, fields).await,
        _ => Err(Refusal::bad("Cannot find suitable handler for request. Expected one of: ['ChatCompletionRequest', 'CompletionRequest']")),
    }
}

fn call(app: Arc<App>, id: Option<String>, headers: &HeaderMap, entry: Option<Entry>) -> Call {
    let load_format = headers.get(LOAD_METRICS_FORMAT).and_then(|format| format.to_str().ok()).unwrap_or_default().to_owned();
    Call { app, id: id.unwrap_or_else(hex), created: metrics::now() as u64, load_format, entry }
}

/// The body's object.
async fn fields(headers: &HeaderMap, body: Body) -> Result<Fields, Refusal> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default().to_ascii_lowercase();
    if content_type.split(';').next() != Some("application/json") {
        return Err(Refusal::invalid("Unsupported Media Type: Only 'application/json' is allowed", None));
    }
    let body =
        Limited::new(body, MAX_BODY).collect().await.map_err(|error| Refusal::bad(format!("cannot read the body: {error}")))?.to_bytes();
    if body.is_empty() {
        return Err(Refusal::missing("body", "None"));
    }
    match serde_json::from_slice(&body) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(other) => {
            let input = match &other {
                Value::Array(items) => format!("<list of {} items>", items.len()),
                other => other.as_str().map_or_else(|| other.to_string(), str::to_owned),
            };
            let details = format!(
                "{{'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid dictionary or object to extract fields from', \
                 'input': '{input}'}}"
            );
            Err(Refusal::invalid(&details, Some("body".into())))
        }
        Err(error) => {
            let at = position(&body, &error);
            let details = format!(
                "{{'type': 'json_invalid', 'loc': 'body.{at}', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {{'error': \
                 '{}'}}}}",
                python_says(&error)
            );
            Err(Refusal::invalid(&details, Some(format!("body.{at}"))))
        }
    }
}

/// Where in the body, in characters, an error is.
fn position(body: &[u8], error: &serde_json::Error) -> usize {
    if error.is_eof() {
        return String::from_utf8_lossy(body).chars().count();
    }
    let before: usize = body.split_inclusive(|byte| *byte == b'\n').take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
    let at = (before + error.column()).saturating_sub(1).min(body.len());
    String::from_utf8_lossy(&body[..at]).chars().count()
}

fn python_says(error: &serde_json::Error) -> &'static str {
    let text = error.to_string();
    let said = [
        ("expected `:`", "Expecting \\':\\' delimiter"),
        ("expected `,`", "Expecting \\',\\' delimiter"),
        ("key must be a string", "Expecting property name enclosed in double quotes"),
        ("trailing characters", "Extra data"),
        ("control character", "Invalid control character at"),
    ];
    said.into_iter().find(|(ours, _)| !error.is_eof() && text.contains(ours)).map_or("Expecting value", |(_, python)| python)
}

fn models(app: &App) -> Reply {
    let created = metrics::now() as u64;
    let permission = json!({
        "id": format!("modelperm-{}", hex()), "object": "model_permission", "created": created, "allow_create_engine": false,
        "allow_sampling": true, "allow_logprobs": true, "allow_search_indices": false, "allow_view": true, "allow_fine_tuning": false,
        "organization": "*", "group": null, "is_blocking": false,
    });
    let model = json!({
        "id": app.settings.model, "object": "model", "created": created, "owned_by": "vllm", "root": format!("models/{}", app.settings.model),
        "parent": null, "max_model_len": app.settings.engine.max_model_len, "permission": [permission],
    });
    Reply::json(&json!({"object": "list", "data": [model]}))
}

pub(super) fn refused(refusal: &Refusal, anthropic: bool) -> Reply {
    Reply::json(&if anthropic { refusal.anthropic() } else { refusal.openai() }).status(refusal.status)
}

fn detail(status: StatusCode, text: &str) -> Reply {
    Reply::json(&json!({ "detail": text })).status(status)
}

fn authorized(app: &App, headers: &HeaderMap) -> bool {
    let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| value.strip_prefix("Bearer "));
    given == app.settings.api_key.as_deref()
}

fn unauthorized() -> Reply {
    Reply::json(&json!({"error": "Unauthorized"})).status(StatusCode::UNAUTHORIZED)
}

/// Sixteen random digits, of which vLLM makes its ids.
pub(super) fn hex() -> String {
    format!("{:016x}", rand::random::<u64>())
}

pub(super) fn tool_call_id() -> String {
    format!("chatcmpl-tool-{}", hex())
}
