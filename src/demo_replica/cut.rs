//! An answer's body that breaks off, as if the server had died.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Duration, Sleep, sleep};

/// So long what is before the break has to leave this host.
const FLUSH: Duration = Duration::from_millis(20);

/// Where an answer breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    BeforeHead,
    /// After the head and so many events of a stream. Other answers break off after half of their body.
    Event(usize),
    /// The same, but the body ends in good order.
    Clean(usize),
}

/// A body, until it breaks off.
pub(super) struct Cut {
    inner: Body,
    at: At,
    events: usize,
    waited: Option<Pin<Box<Sleep>>>,
}

impl Cut {
    pub(super) fn new(inner: Body, at: At) -> Self {
        Self { inner, at, events: 0, waited: None }
    }

    /// Breaks off before the head is out.
    pub(super) fn now() -> Self {
        Self::new(Body::empty(), At::BeforeHead)
    }
}

impl http_body::Body for Cut {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, polled: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let broken = || Poll::Ready(Some(Err(io::Error::other("a fault was asked for"))));
        let events = match self.at {
            At::BeforeHead => return broken(),
            At::Event(events) | At::Clean(events) => events,
        };
        if self.events == events {
            // The engine's work ends now as well.
            self.inner = Body::empty();
            if matches!(self.at, At::Clean(_)) {
                return Poll::Ready(None);
            }
            ready!(self.waited.get_or_insert_with(|| Box::pin(sleep(FLUSH))).as_mut().poll(polled));
            return broken();
        }
        let whole = self.inner.size_hint().exact().is_some();
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(polled));
        self.events += 1;
        Poll::Ready(frame.map(|frame| {
            let frame = frame.map_err(io::Error::other)?;
            if !whole {
                return Ok(frame);
            }
            self.events = events;
            Ok(frame.map_data(|data| data.slice(..data.len() / 2)))
        }))
    }

    fn size_hint(&self) -> SizeHint {
        match self.at {
            // With a length of 0 there would be no body that could break off.
            At::BeforeHead => SizeHint::default(),
            _ => self.inner.size_hint(),
        }
    }

    fn is_end_stream(&self) -> bool {
        false
    }
}
