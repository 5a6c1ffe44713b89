//! What a replica answered, as far as that goes before its body passes: well or not, begun or not, busy, and by when its first byte has to be here.
//!
//! What follows from it is `forward`'s; the body's way to the client is `stream`'s.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, Limited};
use hyper::StatusCode;
use hyper::header::RETRY_AFTER;
use hyper::http::response::Parts;
use tokio::time::{Instant, sleep_until, timeout};

use super::admission::Slot;
use super::error::ProxyError;
use crate::exchange::Body;
use crate::fleet::Replica;
use crate::routing::Reason;
use crate::telemetry::UpstreamError;
use crate::upstream::Upstream;

/// The largest 429 or 503 that is kept, and how long its body may take.
const BUSY_BODY: usize = 64 << 10;
const BUSY_PATIENCE: Duration = Duration::from_secs(1);

/// A replica's answer that has begun: its head, and the first piece of its body unless there is none yet.
pub(super) struct Answer {
    pub(super) head: Parts,
    pub(super) first: Option<Frame<Bytes>>,
    pub(super) rest: Body,
    /// Whether the body is known to be over already.
    pub(super) is_over: bool,
    /// Whether its first byte shows that the replica is well.
    pub(super) is_good: bool,
    pub(super) upstream: Arc<Upstream>,
    pub(super) patience: Option<Patience>,
}

/// Until when the first byte has to be here.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    pub(super) by: Instant,
    /// The limit; for the client.
    pub(super) limit: Duration,
    /// The client asked for it: that it passes says nothing of the replica.
    pub(super) is_clients: bool,
}

impl Answer {
    /// The replica lives but wants no more work now.
    pub(super) fn is_busy(&self) -> bool {
        is_busy(self.head.status)
    }

    /// How long the replica asks to be left alone: in seconds, or until a date.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let text = self.head.headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
        let date = || httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).ok();
        text.parse().ok().map(Duration::from_secs).or_else(date)
    }

    /// Reads a busy replica's answer to its end, so that nothing is outstanding there while another replica is tried. `None` where that fails.
    pub(super) async fn keep(self, slot: Slot, reason: Reason) -> Option<Busy> {
        let Self { head, mut rest, upstream, .. } = self;
        let body = timeout(BUSY_PATIENCE, Limited::new(&mut rest, BUSY_BODY).collect()).await.ok()?.ok()?.to_bytes();
        upstream.give_back(&mut rest);
        Some(Busy { head, body, replica: Arc::clone(slot.replica()), reason })
    }

    /// Whether its first byte is here, or it has none.
    pub(super) fn has_begun(&self) -> bool {
        self.first.is_some() || self.is_over
    }

    /// Whether it is a failure of the engine's of which it says no word.
    pub(super) fn is_bare_failure(&self) -> bool {
        self.head.status.is_server_error() && self.first.is_none() && self.is_over
    }
}

impl Patience {
    /// The client's own limit for a request that began then.
    pub(super) fn of_client(begun: std::time::Instant, limit: Duration) -> Self {
        Self { by: (begun + limit).into(), limit, is_clients: true }
    }

    /// Resolves when it is over; `None` never is.
    pub(super) async fn over(patience: Option<Self>) -> Self {
        match patience {
            Some(patience) => {
                sleep_until(patience.by).await;
                patience
            }
            None => pending().await,
        }
    }

    /// What the client is told when it is over.
    pub(super) fn error(&self) -> ProxyError {
        if self.is_clients { ProxyError::TimeoutExceeded(self.limit) } else { ProxyError::FirstByteTimeout(self.limit) }
    }

    pub(super) fn kind(&self) -> UpstreamError {
        if self.is_clients { UpstreamError::ClientTimeout } else { UpstreamError::FirstByteTimeout }
    }
}

/// A whole 429 or 503, kept while other replicas are tried.
pub(super) struct Busy {
    pub(super) head: Parts,
    pub(super) body: Bytes,
    /// Who gave it, and why it was asked.
    pub(super) replica: Arc<Replica>,
    pub(super) reason: Reason,
}

/// Whether the status says so.
pub(super) fn is_busy(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}
