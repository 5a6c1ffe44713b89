//! Reads a request's body up to a limit. It is kept whole, since it may have to be sent more than once.

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::Incoming;
use hyper::header::EXPECT;
use tokio::time::{Instant, timeout};

use super::buffers::Buffers;
use super::error::ProxyError;
use super::{Settings, at_once};

/// How much room is made on the word of a `Content-Length` alone. What is announced costs a client nothing, and must not take what others need.
const TRUSTED: usize = 1 << 20;

/// How much of a refused request's body is still read, and for how long.
const LINGER_BYTES: usize = 64 << 20;
const LINGER: Duration = Duration::from_secs(2);

/// A request's body on its way in.
pub(super) struct Inbound {
    body: Incoming,
    /// The client sends nothing before it is asked to. Reading asks.
    waits: bool,
}

impl Inbound {
    pub(super) fn new(body: Incoming, headers: &HeaderMap) -> Self {
        Self { body, waits: headers.contains_key(EXPECT) }
    }

    /// The whole body, within the limits of `settings`: its size, the time between two pieces and that of all. It takes room in `buffers`.
    pub(super) async fn read(&mut self, settings: &Settings, buffers: &Arc<Buffers>) -> Result<Bytes, ProxyError> {
        // A body whose length is known to be too large is refused before it is asked for.
        let limit = settings.max_body;
        let announced = usize::try_from(self.body.size_hint().lower()).unwrap_or(usize::MAX);
        if announced > limit {
            return Err(ProxyError::BodyTooLarge(limit));
        }
        let mut room = buffers.room(settings);
        room.grow_to(announced.min(TRUSTED)).await?;
        self.waits = false;
        let mut pace = Pace { pause: settings.body_timeout, total: settings.body_total_timeout, waited: Duration::ZERO };
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        while let Some(piece) = self.next(&mut pace).await? {
            let length = first.len() + rest.len() + piece.len();
            if length > limit {
                return Err(ProxyError::BodyTooLarge(limit));
            }
            room.grow_to(length).await?;
            if first.is_empty() && rest.is_empty() {
                first = piece;
                continue;
            }
            if rest.is_empty() {
                rest.reserve(announced.min(TRUSTED).max(first.len() + piece.len()));
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&piece);
        }
        // A body that came in one piece is never copied.
        Ok(room.hold(if rest.is_empty() { first } else { rest.freeze() }))
    }

    async fn next(&mut self, pace: &mut Pace) -> Result<Option<Bytes>, ProxyError> {
        loop {
            let frame = pace.keep(self.body.frame()).await?;
            let Some(frame) = frame else { return Ok(None) };
            // What is no data is a trailer, which means nothing to an engine.
            if let Ok(piece) = frame.map_err(|error| blame(&error))?.into_data() {
                return Ok(Some(piece));
            }
        }
    }

    /// Reads the rest of a refused request's body beside the answer, within bounds. A client that is still sending would otherwise meet a
    /// closed connection and never read why it was refused.
    pub(super) fn discard(mut self) {
        if self.waits || self.body.is_end_stream() {
            return;
        }
        tokio::spawn(timeout(LINGER, async move {
            let mut left = LINGER_BYTES;
            while let Some(Ok(frame)) = self.body.frame().await {
                let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else { break };
                left = rest;
            }
        }));
    }
}

/// How fast a client has to send. Zero: any time.
struct Pace {
    /// Between two pieces.
    pause: Duration,
    /// From the first to the last, without what the router itself makes it wait.
    total: Duration,
    waited: Duration,
}

impl Pace {
    /// What `coming` brings, or why it is too late.
    async fn keep<T>(&mut self, coming: impl Future<Output = T>) -> Result<T, ProxyError> {
        let mut coming = pin!(coming);
        if let Poll::Ready(come) = at_once(coming.as_mut()).await {
            return Ok(come);
        }
        let pause = (!self.pause.is_zero()).then_some((self.pause, ProxyError::BodyTooSlow(self.pause)));
        let total = (!self.total.is_zero()).then(|| (self.total.saturating_sub(self.waited), ProxyError::BodyTooLong(self.total)));
        let Some((patience, error)) = pause.into_iter().chain(total).min_by_key(|(patience, _)| *patience) else {
            return Ok(coming.await);
        };
        let begun = Instant::now();
        let come = timeout(patience, coming).await.map_err(|_| error)?;
        self.waited += begun.elapsed();
        Ok(come)
    }
}

/// Whether the client left in mid-body, or sent something that is no body.
fn blame(error: &hyper::Error) -> ProxyError {
    let malformed = |kind| matches!(kind, io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData);
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(|error| malformed(error.kind())) {
            return ProxyError::BodyBroken;
        }
        cause = error.source();
    }
    ProxyError::ClientGone
}
