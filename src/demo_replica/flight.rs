//! A request on its way through the engine: its sequences, what they have come to, and what is counted for them.
//!
//! It knows no surface: how tokens become events or a whole answer is the surfaces' business.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::StatusCode;
use tokio::time::Instant;

use super::App;
use super::answer::Answer;
use super::engine::{Generation, Output};
use super::journal::Entry;
use super::metrics::Finished;
use super::refusal::Refusal;

/// What is asked of the engine.
pub(super) struct Order {
    pub(super) prompt: Arc<[u32]>,
    pub(super) answer: Answer,
}

/// A request's sequences. Dropped before all have ended, they are taken out of the engine.
pub(super) struct Flight {
    app: Arc<App>,
    entry: Entry,
    pub(super) sequences: Vec<Sequence>,
    max_tokens: usize,
    /// Whose token is looked for first.
    turn: usize,
}

/// One of them.
pub(super) struct Sequence {
    pub(super) answer: Answer,
    pub(super) prompt: Arc<[u32]>,
    /// Tokens of the prompt that were in the cache.
    pub(super) cached_tokens: usize,
    generation: Generation,
    submitted: Instant,
    first: Option<Output>,
    last_at: Instant,
    ended: bool,
}

/// A token has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// For which sequence.
    pub(super) sequence: usize,
    /// Which token of its answer.
    pub(super) token: usize,
    /// It is the first that came for the request.
    pub(super) first: bool,
    /// It is the sequence's last.
    pub(super) last: bool,
}

/// The engine is broken: what has not come by now never will.
#[derive(Debug)]
pub(super) struct Broken;

impl From<Broken> for Refusal {
    fn from(_: Broken) -> Self {
        Refusal {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            kind: "InternalServerError",
            ..Refusal::bad("EngineCore encountered an issue. See stack trace (above) for the root cause.")
        }
    }
}

impl Flight {
    /// Puts all orders into the engine's queue.
    pub(super) fn launch(app: &Arc<App>, entry: Entry, orders: Vec<Order>, salt: Option<&str>, max_tokens: usize) -> Result<Self, Refusal> {
        let submitted = Instant::now();
        let parts: Vec<(&[u32], &[u32])> = orders.iter().map(|order| (&*order.prompt, order.answer.tokens.as_slice())).collect();
        // Surfaces keep to the model's length; this is in case one does not.
        let longest = parts.iter().map(|(prompt, answer)| prompt.len() + answer.len()).max().unwrap_or(0);
        let generations = app.engine.submit_all(&parts, salt).ok_or_else(|| {
            if app.engine.is_broken() { Broken.into() } else { Refusal::too_long(longest, app.settings.engine.max_model_len, false) }
        })?;
        let sequence = |(Order { prompt, answer }, generation)| Sequence {
            answer,
            prompt,
            cached_tokens: 0,
            generation,
            submitted,
            first: None,
            last_at: submitted,
            ended: false,
        };
        let sequences = orders.into_iter().zip(generations).map(sequence).collect();
        Ok(Self { app: Arc::clone(app), entry, sequences, max_tokens, turn: 0 })
    }

    /// The next token of any sequence; nothing when all have ended.
    pub(super) fn poll_next(&mut self, polled: &mut Context<'_>) -> Poll<Result<Option<Step>, Broken>> {
        let before_all = self.sequences.iter().all(|sequence| sequence.first.is_none());
        // In turn, so that answers that come together are told together, even to a reader who is behind.
        let turn = self.turn;
        for at in (turn..self.sequences.len()).chain(0..turn) {
            let sequence = &mut self.sequences[at];
            if sequence.ended {
                continue;
            }
            match sequence.generation.poll_next(polled) {
                Poll::Ready(Some(output)) => {
                    self.count(at, output);
                    self.turn = (at + 1) % self.sequences.len();
                    let token = output.generated.saturating_sub(1);
                    return Poll::Ready(Ok(Some(Step { sequence: at, token, first: before_all, last: output.finished })));
                }
                Poll::Ready(None) => return Poll::Ready(Err(Broken)),
                Poll::Pending => {}
            }
        }
        if self.sequences.iter().all(|sequence| sequence.ended) {
            self.entry.finish();
            return Poll::Ready(Ok(None));
        }
        Poll::Pending
    }

    /// Waits until all sequences have ended.
    pub(super) async fn whole(&mut self) -> Result<(), Broken> {
        while poll_fn(|polled| self.poll_next(polled)).await?.is_some() {}
        Ok(())
    }

    fn count(&mut self, at: usize, output: Output) {
        let metrics = &self.app.metrics;
        let (answers, max_tokens) = (self.sequences.len(), self.max_tokens);
        let sequence = &mut self.sequences[at];
        let prompt_tokens = sequence.prompt.len();
        if sequence.first.is_none() {
            sequence.cached_tokens = output.cached_tokens;
            metrics.first_token(prompt_tokens, output.cached_tokens, output.at.saturating_duration_since(sequence.submitted));
        }
        let first = *sequence.first.get_or_insert(output);
        if output.generated > 0 {
            metrics.token((output.generated > 1).then(|| output.at.saturating_duration_since(sequence.last_at)));
        }
        sequence.last_at = output.at;
        if output.finished {
            sequence.ended = true;
            metrics.finished(&Finished {
                complete: sequence.answer.complete,
                prompt_tokens,
                cached_tokens: sequence.cached_tokens,
                output_tokens: output.generated,
                max_tokens,
                answers,
                queued: first.admitted.saturating_duration_since(sequence.submitted),
                prefill: first.at.saturating_duration_since(first.admitted),
                decode: output.at.saturating_duration_since(first.at),
            });
        }
        self.note(at, output);
    }

    fn note(&self, at: usize, output: Output) {
        let sum = |of: fn(&Sequence) -> usize| self.sequences.iter().map(of).sum::<usize>();
        if output.generated <= 1 {
            self.entry.note("prompt_tokens", sum(|sequence| sequence.prompt.len()).into());
            self.entry.note("cached_tokens", self.sequences[at].cached_tokens.into());
        }
        if output.finished {
            let ended = self.sequences.iter().filter(|sequence| sequence.ended);
            let reasons: Vec<&str> = ended.clone().map(|sequence| sequence.answer.finish_reason()).collect();
            self.entry.note("finish_reasons", reasons.into());
            self.entry.note("output_tokens", ended.map(|sequence| sequence.answer.tokens.len()).sum::<usize>().into());
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        for _ in self.sequences.iter().filter(|sequence| !sequence.ended) {
            self.app.metrics.aborted();
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::header::CONTENT_TYPE;
    use axum::http::{Request, Response};
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::super::engine::Engine;
    use super::super::faults::Faults;
    use super::super::journal::Journal;
    use super::super::metrics::Metrics;
    use super::super::{Settings, http};
    use super::*;

    /// A replica whose engine breaks in its first step.
    fn breaking() -> Arc<App> {
        let settings = Settings::default();
        let metrics = Arc::new(Metrics::new(&settings.model, &settings.engine));
        let (engine, driver) = Engine::new(settings.engine.clone(), |_| panic!("as if a step had failed"));
        tokio::spawn(driver);
        Arc::new(App { settings, engine, metrics, journal: Journal::default(), faults: Faults::default() })
    }

    async fn send(app: &Arc<App>, path: &str, body: &'static str) -> Response<Body> {
        let request = Request::builder().method(if body.is_empty() { "GET" } else { "POST" }).uri(path);
        let request = request.header(CONTENT_TYPE, "application/json").body(Body::from(body)).expect("a request");
        http::routes(Arc::clone(app)).oneshot(request).await.expect("an answer")
    }

    #[tokio::test]
    async fn nobody_waits_for_a_broken_engine() {
        let app = breaking();
        assert_eq!(send(&app, "/health", "").await.status(), StatusCode::OK);
        for _during_and_after in 0..2 {
            let answer = send(&app, "/v1/completions", r#"{"prompt": "x"}"#).await;
            assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
            let body = answer.into_body().collect().await.expect("a body").to_bytes();
            assert!(String::from_utf8_lossy(&body).contains("EngineCore encountered an issue"));
        }
        assert_eq!(send(&app, "/health", "").await.status(), StatusCode::SERVICE_UNAVAILABLE);
        let stream = send(&breaking(), "/v1/completions", r#"{"prompt": "x", "stream": true}"#).await;
        assert_eq!(stream.status(), StatusCode::OK);
        assert!(stream.into_body().collect().await.is_err(), "it is cut");
    }
}
