//! Paths, and what of a request is the same on all of them. What is behind a path is in a file of its own.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, AUTHORIZATION, HOST, HeaderMap, HeaderName, LOCATION};
use axum::http::{Method, Response, StatusCode};
use serde_json::json;

use super::ask::Fields;
use super::body::fields;
use super::flight::{Flight, Order};
use super::journal::Entry;
use super::metrics;
use super::refusal::Refusal;
use super::reply::Reply;
use super::{App, chat, completions, embeddings, faults, messages, responses, tokenize};

/// What vLLM says of itself.
pub(super) const FINGERPRINT: &str = "vllm-0.32.0-7b70ad57";

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
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
    pub(super) load_format: String,
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
        // As vLLM says that its engine is dead.
        "/health" | "/ping" if app.engine.is_broken() => Reply::empty(StatusCode::SERVICE_UNAVAILABLE),
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
        return Reply::empty(StatusCode::TEMPORARY_REDIRECT)
            .after_length(LOCATION, &format!("http://{host}{}", path.trim_end_matches('/')));
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
