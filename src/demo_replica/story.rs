//! A stream: an event for each token, sent as it comes, each as a chunk of its own.
//!
//! What the events are is told by a [`Narrator`], one for each surface.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use serde_json::Value;

use super::flight::{Broken, Flight, Sequence, Step};

/// How a surface tells of tokens.
pub(super) trait Narrator: Send + Unpin + 'static {
    /// A token has come.
    fn token(&mut self, step: Step, sequences: &[Sequence], events: &mut Events);
    /// All have come.
    fn end(&mut self, sequences: &[Sequence], events: &mut Events);
}

/// Events to be sent.
#[derive(Debug, Default)]
pub(super) struct Events(VecDeque<Bytes>);

impl Events {
    /// An event without a name.
    pub(super) fn data(&mut self, data: impl std::fmt::Display) {
        self.0.push_back(format!("data: {data}\n\n").into());
    }

    /// An event with a name, which is also its data's `type`.
    pub(super) fn named(&mut self, data: &Value) {
        let name = data["type"].as_str().unwrap_or_default();
        self.0.push_back(format!("event: {name}\ndata: {data}\n\n").into());
    }
}

/// A stream's body.
pub(super) struct Story<N> {
    flight: Option<Flight>,
    narrator: N,
    events: Events,
}

impl<N: Narrator> Story<N> {
    /// To be told by `narrator`. `events` come first, at once.
    pub(super) fn new(flight: Flight, narrator: N, events: Events) -> Self {
        Self { flight: Some(flight), narrator, events }
    }
}

impl<N: Narrator> Body for Story<N> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, polled: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let story = self.get_mut();
        loop {
            if let Some(event) = story.events.0.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(event))));
            }
            let Some(flight) = &mut story.flight else { return Poll::Ready(None) };
            match ready!(flight.poll_next(polled)) {
                // vLLM says so in an event; a cut says it to everybody.
                Err(Broken) => {
                    story.flight = None;
                    return Poll::Ready(Some(Err(io::Error::other("the engine is broken"))));
                }
                Ok(Some(step)) => story.narrator.token(step, &flight.sequences, &mut story.events),
                Ok(None) => {
                    story.narrator.end(&flight.sequences, &mut story.events);
                    story.flight = None;
                }
            }
        }
    }
}
