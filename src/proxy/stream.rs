//! The answer's body on its way to the client: each piece goes on as it comes. It carries the lease, the connection and the record, and
//! ends all three exactly once, whether the answer ends, breaks, or loses its client.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::Version;
use hyper::header::CONTENT_LENGTH;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::admission::Slot;
use super::answer::{Answer, Busy, Patience};
use super::error::ProxyError;
use super::events::{Beginning, Events, is_event_stream, says_something};
use super::response::{Body, Response};
use super::usage::UsageReader;
use super::{Parties, Settings, headers, name_choice};
use crate::exchange;
use crate::fleet::Outcome;
use crate::live::LiveFleet;
use crate::request::Dialect;
use crate::telemetry::{Record, UpstreamError};
use crate::upstream::Upstream;

impl Answer {
    /// The response to the client, whose body holds everything that lives as long as the answer.
    pub(super) fn into_response(
        mut self,
        mut slot: Slot,
        settings: &Settings,
        parties: &Parties,
        dialect: Dialect,
        mut record: Record,
    ) -> Response {
        // Where the first byte is still to come, what it says of the replica is so too.
        let is_awaited = self.is_good && !self.has_begun();
        if self.has_begun() {
            // Whether or not the client takes it.
            slot.first_byte();
        }
        let fleet = Arc::clone(&parties.fleet);
        headers::strip_hop_by_hop(&mut self.head.headers);
        // Each connection has its own version; the server knows what its client understands.
        self.head.version = Version::HTTP_11;
        record.status = Some(self.head.status);
        let kind = headers::plain_kind(&self.head.headers);
        let events = Events::of(kind, &self.head.headers, dialect);
        record.streams =
            is_event_stream(kind) && self.head.status.is_success() && record.surface.is_some_and(|surface| !surface.begins_early());
        let usage = UsageReader::of(kind);
        let mut beginning = (self.is_good && slot.learns()).then(|| Beginning::of(kind));
        if let Some(first) = self.first.as_ref().and_then(Frame::data_ref) {
            take_note(&mut beginning, &mut slot, first);
        }
        let mut response = hyper::Response::from_parts(self.head, ());
        name_choice(&mut response, &record, settings);

        let mut body = ResponseBody {
            has_length: response.headers().contains_key(CONTENT_LENGTH),
            first: self.first,
            rest: self.rest,
            work: Some(Work { upstream: self.upstream, slot, fleet, is_awaited, beginning, usage, record }),
            ending: Ending::Open,
            events,
            patience: self.patience,
            idle_timeout: settings.idle_timeout,
            begun: false,
            deadline: self.patience.map(|patience| patience.by),
            timer: None,
            cut: Cut::Token(parties.cut.clone()),
        };
        body.end_if_complete();
        response.map(|()| Body::Streamed(Box::new(body)))
    }
}

impl Busy {
    /// The response to the client, as the replica gave it.
    pub(super) fn into_response(mut self) -> Response {
        headers::strip_hop_by_hop(&mut self.head.headers);
        self.head.version = Version::HTTP_11;
        Response::from_parts(self.head, Body::from(self.body))
    }
}

/// What lives as long as the replica's work for a request.
struct Work {
    upstream: Arc<Upstream>,
    slot: Slot,
    /// Who is told how the replica does.
    fleet: Arc<LiveFleet>,
    /// Whether the first byte is still to come, and a good sign.
    is_awaited: bool,
    /// Of a good answer that has said nothing yet, where somebody learns from when it does.
    beginning: Option<Beginning>,
    /// Of an answer that may tell what its request took, and can be read.
    usage: Option<UsageReader>,
    record: Record,
}

impl Work {
    /// No more of the answer passes: what it told of its request's tokens is known by now, and so is the replica, which is `slot`'s.
    fn settle_usage(&mut self) {
        self.record.usage = self.usage.as_ref().and_then(UsageReader::usage);
        self.record.usage.into_iter().for_each(|usage| self.slot.told(usage));
    }
}

/// Tells what learns from it when an answer begins.
fn take_note(beginning: &mut Option<Beginning>, slot: &mut Slot, data: &[u8]) {
    if let Some(tells) = beginning.as_ref().and_then(|beginning| beginning.begins(data)) {
        *beginning = None;
        slot.began(tells);
    }
}

/// Long enough for a few hundred bytes on any connection that still moves.
const FLUSH: Duration = Duration::from_millis(50);

/// How far a broken answer's end has come.
enum Ending {
    /// Nothing broke.
    Open,
    /// All is out, and gets a moment to be written: a server drops what it has buffered when a body fails.
    Flush(Pin<Box<Sleep>>),
    /// The connection is cut at the next step.
    Cut,
}

/// Makes the server cut the connection (or reset the h2 stream), so that nobody takes the answer for whole.
#[derive(Debug, thiserror::Error)]
#[error("the replica broke off its answer")]
pub struct CutOff;

/// A replica's answer as it passes, with everything that lives as long as it does.
pub struct ResponseBody {
    /// Whether the head says how long it is.
    has_length: bool,
    first: Option<Frame<Bytes>>,
    rest: exchange::Body,
    /// Gone once the answer has ended or broken.
    work: Option<Work>,
    ending: Ending,
    /// Of an event stream in plain text: what is needed to end it with an error event.
    events: Option<Events>,
    patience: Option<Patience>,
    idle_timeout: Duration,
    begun: bool,
    /// When the piece that is waited for has to be here. Unset while none is, so that a client's slowness is not taken for the replica's.
    deadline: Option<Instant>,
    /// Set to the deadline only where it would fire too late: a stream's pieces come faster than timers are worth moving.
    timer: Option<Pin<Box<Sleep>>>,
    cut: Cut,
}

/// The word that what is in flight is to be cut off; listened to once there is something to wait for.
enum Cut {
    Token(CancellationToken),
    Waiting(Pin<Box<WaitForCancellationFutureOwned>>),
}

impl Cut {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match self {
                Self::Token(token) => *self = Self::Waiting(Box::pin(token.clone().cancelled_owned())),
                Self::Waiting(cancelled) => return cancelled.as_mut().poll(cx),
            }
        }
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let this = &mut *self;
        match &mut this.ending {
            Ending::Open => {}
            Ending::Flush(moment) => {
                ready!(moment.as_mut().poll(cx));
                this.ending = Ending::Cut;
                return Poll::Ready(Some(Err(CutOff)));
            }
            Ending::Cut => return Poll::Ready(Some(Err(CutOff))),
        }
        let piece = match this.first.take() {
            Some(first) => Some(Ok(first)),
            None if this.work.is_none() => None,
            None => match Pin::new(&mut this.rest).poll_frame(cx) {
                Poll::Ready(piece) => piece,
                Poll::Pending => {
                    if this.cut.poll(cx).is_ready() {
                        return this.broke(cx, None, &ProxyError::Draining);
                    }
                    ready!(this.poll_late(cx));
                    return match this.patience {
                        Some(patience) if !this.begun => this.broke(cx, Some(patience.kind()), &patience.error()),
                        _ => this.broke(cx, Some(UpstreamError::IdleTimeout), &ProxyError::StreamIdle(this.idle_timeout)),
                    };
                }
            },
        };
        match piece {
            Some(Ok(frame)) => {
                this.passed_on(&frame);
                this.end_if_complete();
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(_)) => this.broke(cx, Some(UpstreamError::Broke), &ProxyError::StreamBroke),
            None => {
                this.end();
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.ending, Ending::Open) && self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // The first piece has been taken from the rest already.
        let first = self.first.as_ref().and_then(Frame::data_ref).map_or(0, |data| data.len() as u64);
        // A length that the replica does not tell is nobody else's to tell: of an answer to HEAD it would be wrong.
        match self.rest.size_hint().exact().filter(|_| self.has_length) {
            Some(rest) => SizeHint::with_exact(first + rest),
            None => SizeHint::default(),
        }
    }
}

impl ResponseBody {
    fn passed_on(&mut self, frame: &Frame<Bytes>) {
        // Trailers are the last piece; nobody asks for more after them.
        let Some(data) = frame.data_ref() else { return self.end() };
        if let Some(work) = &mut self.work {
            work.record.passed_on(data, says_something);
            work.slot.first_byte();
            take_note(&mut work.beginning, &mut work.slot, data);
            if std::mem::take(&mut work.is_awaited) {
                work.fleet.answered(work.slot.replica());
            }
            if let Some(usage) = &mut work.usage {
                usage.passed_on(data);
            }
        }
        if let Some(events) = &mut self.events {
            events.passed_on(data);
        }
        self.begun = true;
        self.deadline = None;
    }

    /// Ready when the next piece is late.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.begun && self.deadline.is_none() && !self.idle_timeout.is_zero() {
            self.deadline = Some(Instant::now() + self.idle_timeout);
        }
        let Some(deadline) = self.deadline else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if deadline <= Instant::now() {
                return Poll::Ready(());
            }
            // It was set for an earlier piece.
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }

    /// Nobody may ask for the end of a body of known length, so it is noticed here.
    fn end_if_complete(&mut self) {
        if HttpBody::is_end_stream(self) {
            self.end();
        }
    }

    /// The answer is whole: the connection is free for the next request, the count goes down, the record is written.
    fn end(&mut self) {
        if let Some(mut work) = self.work.take() {
            if let Some(usage) = &mut work.usage {
                usage.end();
            }
            work.settle_usage();
            let Work { upstream, slot, mut record, .. } = work;
            upstream.give_back(&mut self.rest);
            drop(slot);
            record.complete();
        }
    }

    /// The replica failed in mid-answer (or, without a `kind`, the router itself stops). An event stream's client is told inside the stream, where that is still possible; in any case the
    /// connection is cut.
    fn broke(
        &mut self,
        cx: &mut Context<'_>,
        kind: Option<UpstreamError>,
        error: &ProxyError,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        // Closes the connection, where it is not closed yet.
        let _ = self.rest.finish();
        if let Some(mut work) = self.work.take() {
            work.settle_usage();
            let Work { slot, fleet, mut record, .. } = work;
            let (request_id, replica) = (&*record.request_id, slot.replica().name());
            tracing::warn!(request_id, replica, error = error.code(), "request {request_id} was cut off on replica {replica}: {error}");
            if let Some(kind) = kind {
                record.metrics().failed(slot.replica(), kind);
                match kind {
                    UpstreamError::ClientTimeout => {}
                    UpstreamError::FirstByteTimeout => {
                        fleet.report(slot.replica(), Outcome::Broke, "too many requests had no first byte in time")
                    }
                    _ => fleet.report(slot.replica(), Outcome::CutOff, "it broke off too many answers"),
                }
            }
            record.error = Some(error.code());
            record.complete();
        }
        self.ending = Ending::Flush(Box::pin(sleep(FLUSH)));
        match self.events.take().and_then(|events| events.error_event(error)) {
            Some(event) => Poll::Ready(Some(Ok(Frame::data(event)))),
            None => Pin::new(self).poll_frame(cx),
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        let Some(work) = &mut self.work else { return };
        work.settle_usage();
        if self.events.as_ref().is_some_and(Events::are_over) {
            work.record.complete();
        }
    }
}
