//! The surfaces: which paths the router knows, what is exposed on the traffic port, and how each path's requests are placed.
//!
//! Nothing here looks at a body.

use std::borrow::Cow;

use strum::VariantArray;

/// What kind of work a path asks for. One word per kind: it is also the `route` label of metrics and access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, VariantArray)]
pub enum Surface {
    /// `/v1/chat/completions`
    ChatCompletions,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages` (Anthropic's API)
    Messages,
    /// `/v1/embeddings`
    Embeddings,
    /// `/invocations`, `/endpoints/{name}/invocations` and its streaming twin (SageMaker's API)
    Invocations,
    /// `/tokenize`, `/detokenize` and `/v1/messages/count_tokens`: no prefill, so no key
    Tokenize,
    /// Scores, ranks, classes, sounds and pictures: computed, but without a key
    OtherInference,
    /// Any other exposed path: passed on by load
    Other,
    /// `/health`, answered by the router
    Health,
    /// `/ping`, answered by the router
    Ping,
    /// `/v1/models`, answered by the router
    Models,
    /// `/load`, answered by the router
    Load,
}

/// Surfaces that share homes: one system prompt has one home on all chat-like surfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Chat,
    Completion,
    Pooling,
    Native,
}

/// Whose error shape a surface's clients understand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `{"error":{"message","type","param","code"}}`
    OpenAi,
    /// As OpenAI's, but events of a stream carry `event: error` and a flat object
    Responses,
    /// `{"type":"error","error":{"type","message"}}`
    Anthropic,
}

/// Why a path is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The engine may serve it, but outsiders must not reach it.
    NotExposed,
    /// `/metrics` lives on the admin port.
    MetricsOnAdmin,
}

impl Surface {
    /// All of them, as they stand above.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The surface of a request's path (without its query), or why it is refused. `also` are the configured `expose_paths`.
    ///
    /// The path is judged as an engine would read it, with percent-escapes undone, since `/%73leep` is `/sleep` to the engine.
    pub fn of(path: &str, also: &[String]) -> Result<Self, Refusal> {
        let path = decode(path);
        let path = path.as_ref();
        let is_plain = is_plain(path);
        if !is_plain && path.split('/').any(|segment| segment == "." || segment == "..") {
            return Err(Refusal::NotExposed);
        }
        // An engine, or a proxy before it, may drop a trailing slash and merge several into one.
        let plain: Cow<'_, str> = if is_plain {
            path.into()
        } else {
            path.split('/').filter(|segment| !segment.is_empty()).flat_map(|segment| ["/", segment]).collect()
        };
        Ok(match plain.as_ref() {
            "/v1/chat/completions" => Self::ChatCompletions,
            "/v1/completions" => Self::Completions,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/v1/embeddings" => Self::Embeddings,
            "/invocations" => Self::Invocations,
            "/tokenize" | "/detokenize" | "/v1/messages/count_tokens" => Self::Tokenize,
            "/health" => Self::Health,
            "/ping" => Self::Ping,
            "/v1/models" => Self::Models,
            "/load" => Self::Load,
            "/version" => Self::Other,
            "/score" | "/rerank" | "/classify" | "/pooling" | "/v1/score" | "/v1/rerank" | "/v1/classify" | "/v1/pooling"
            | "/v2/rerank" => Self::OtherInference,
            _ if is_endpoint(&plain) => Self::Invocations,
            _ if also.iter().any(|pattern| matches(pattern, path)) => Self::Other,
            "/metrics" => return Err(Refusal::MetricsOnAdmin),
            _ if ["/v1/chat/completions/", "/v1/completions/", "/v1/audio/", "/v1/images/"]
                .iter()
                .any(|start| plain.starts_with(start)) =>
            {
                Self::OtherInference
            }
            "/v1/load_lora_adapter" | "/v1/unload_lora_adapter" => return Err(Refusal::NotExposed),
            _ if plain.starts_with("/v1/") => Self::Other,
            _ => return Err(Refusal::NotExposed),
        })
    }

    /// Whether the router answers it itself.
    pub fn is_answered_here(self) -> bool {
        matches!(self, Self::Health | Self::Ping | Self::Models | Self::Load)
    }

    /// Whether its streams begin with events that come before the prompt is computed (`response.created`).
    pub fn begins_early(self) -> bool {
        self == Self::Responses
    }

    /// The label in metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
            Self::Invocations => "invocations",
            Self::Tokenize => "tokenize",
            Self::OtherInference => "other_inference",
            Self::Other => "other",
            Self::Health => "health",
            Self::Ping => "ping",
            Self::Models => "models",
            Self::Load => "load",
        }
    }

    /// The methods that make sense here, `None` where the replica is the judge. `OPTIONS` always passes: browsers ask it first.
    pub fn methods(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Health | Self::Models | Self::Load => Some(&["GET", "HEAD"]),
            Self::Ping => Some(&["GET", "HEAD", "POST"]),
            Self::Other | Self::OtherInference => None,
            _ => Some(&["POST"]),
        }
    }

    /// Whether its requests only compute, so that repeating one that was not answered does no harm.
    pub fn is_inference(self) -> bool {
        self.family().is_some() || matches!(self, Self::Tokenize | Self::OtherInference)
    }

    /// Whether an answer shows that the engine works, and not just the server before it.
    pub fn reaches_engine(self) -> bool {
        self.family().is_some() || self == Self::OtherInference
    }

    /// The family whose keys it uses; `None` where requests go by load.
    pub(super) fn family(self) -> Option<Family> {
        match self {
            Self::ChatCompletions | Self::Responses | Self::Messages => Some(Family::Chat),
            Self::Completions => Some(Family::Completion),
            Self::Embeddings => Some(Family::Pooling),
            Self::Invocations => Some(Family::Native),
            _ => None,
        }
    }
}

impl Dialect {
    /// The dialect of a path, whether or not it is served.
    pub fn of(path: &str) -> Self {
        match decode(path).trim_end_matches('/') {
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Anthropic,
            path if path.starts_with("/v1/messages/") => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }
}

/// Whether no segment is empty or begins with a dot, as nearly always: nothing has to be put together anew then.
fn is_plain(path: &str) -> bool {
    let bytes = path.as_bytes();
    bytes.first() == Some(&b'/') && bytes.last() != Some(&b'/') && !bytes.windows(2).any(|pair| matches!(pair, b"//" | b"/."))
}

/// `/endpoints/{name}/invocations` and `/endpoints/{name}/invocations-response-stream`.
fn is_endpoint(path: &str) -> bool {
    let Some((name, rest)) = path.strip_prefix("/endpoints/").and_then(|rest| rest.split_once('/')) else { return false };
    !name.is_empty() && matches!(rest, "invocations" | "invocations-response-stream")
}

fn matches(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => path == pattern,
    }
}

/// Percent-escapes undone; what is no escape, or no UTF-8 afterwards, stays visible as such.
fn decode(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return Cow::Borrowed(path);
    }
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let escaped = (first == b'%')
            .then(|| tail.get(..2))
            .flatten()
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, expected: Result<Surface, Refusal>) {
        assert_eq!(Surface::of(path, &["/sleep".to_owned(), "/custom/*".to_owned()]), expected, "{path}");
    }

    #[test]
    fn known_paths() {
        for (path, surface) in [
            ("/v1/chat/completions", Surface::ChatCompletions),
            ("/v1/chat/completions/", Surface::ChatCompletions),
            ("/v1/chat%2Fcompletions", Surface::ChatCompletions),
            ("/v1/messages/count_tokens", Surface::Tokenize),
            ("/endpoints/a/invocations", Surface::Invocations),
            ("/endpoints/a/invocations-response-stream", Surface::Invocations),
            ("/v1/files/x", Surface::Other),
            ("/v1/chat/completions/render", Surface::OtherInference),
            ("/v2/rerank", Surface::OtherInference),
            ("/v1/load_lora_adapter/x", Surface::Other),
            ("/version", Surface::Other),
            ("/sleep", Surface::Other),
            ("/custom/anything", Surface::Other),
        ] {
            check(path, Ok(surface));
        }
    }

    #[test]
    fn what_must_not_be_reached() {
        for path in [
            "/",
            "",
            "*",
            "/v1",
            "/wake_up",
            "/%77ake_up",
            "/collective_rpc",
            "/v1/load_lora_adapter",
            "/v1/%6coad_lora_adapter",
            "/v1/unload_lora_adapter/",
            "/v1/../sleep",
            "/v1/%2e%2e/sleep",
            "/v1/./x",
            "/endpoints//invocations",
            "/endpoints/a/b/invocations",
            "/customs",
            "/V1/chat/completions",
            "//sleep",
            "/v1//load_lora_adapter",
            "/v1%00/../x",
        ] {
            check(path, Err(Refusal::NotExposed));
        }
        check("/metrics", Err(Refusal::MetricsOnAdmin));
    }

    #[test]
    fn a_listed_path_is_exposed_even_where_it_is_refused_otherwise() {
        let also = ["/metrics".to_owned(), "/v1/load_lora_adapter".to_owned()];
        assert_eq!(Surface::of("/metrics", &also), Ok(Surface::Other));
        assert_eq!(Surface::of("/v1/load_lora_adapter", &also), Ok(Surface::Other));
    }

    #[test]
    fn dialects() {
        for (path, dialect) in [
            ("/v1/messages", Dialect::Anthropic),
            ("/v1/messages/count_tokens", Dialect::Anthropic),
            ("/v1/responses", Dialect::Responses),
            ("/v1/responses/resp_1", Dialect::OpenAi),
            ("/sleep", Dialect::OpenAi),
        ] {
            assert_eq!(Dialect::of(path), dialect, "{path}");
        }
    }
}
