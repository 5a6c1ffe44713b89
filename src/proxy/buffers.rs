//! What the bodies of all requests together hold in memory. A body takes room before it is read, and gives it back with its last byte. Where
//! there is no room reading waits, so that a client is held back by its own connection, as nobody takes what it sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout};

use super::Settings;
use super::error::ProxyError;
use crate::telemetry::{Limit, Metrics};

/// The room that there is, and who waits for it.
pub(super) struct Buffers {
    metrics: Arc<Metrics>,
    used: AtomicUsize,
    /// Held by the first of those that wait; the others queue for it in the order in which they came.
    turn: Mutex<()>,
    freed: Notify,
    /// How many of them there are; who has not begun comes after them.
    waiting: AtomicUsize,
}

/// One that waits.
struct Waits<'a>(&'a Buffers);

impl<'a> Waits<'a> {
    fn new(buffers: &'a Buffers) -> Self {
        buffers.waiting.fetch_add(1, Ordering::Relaxed);
        Self(buffers)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Buffers {
    pub(super) fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            used: AtomicUsize::new(0),
            turn: Mutex::const_new(()),
            freed: Notify::const_new(),
            waiting: AtomicUsize::new(0),
        })
    }

    /// No room yet, for one body.
    pub(super) fn room(self: &Arc<Self>, settings: &Settings) -> Room {
        Room { buffers: Arc::clone(self), bytes: 0, limit: settings.max_buffered_bytes, patience: settings.buffer_timeout }
    }

    fn try_take(&self, bytes: usize, limit: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= limit);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if taken {
            self.metrics.buffered(bytes as i64);
        }
        taken
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.metrics.buffered(-(bytes as i64));
        self.freed.notify_one();
    }
}

/// What one body has taken.
pub(super) struct Room {
    buffers: Arc<Buffers>,
    bytes: usize,
    /// What all may hold together.
    limit: usize,
    /// How long this body may still wait for room.
    patience: Duration,
}

impl Room {
    /// Makes this room for at least `bytes`. It waits for its turn where there is too little; a body that has begun goes before those that
    /// have not, as it ends the sooner.
    pub(super) async fn grow_to(&mut self, bytes: usize) -> Result<(), ProxyError> {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|&more| more > 0) else { return Ok(()) };
        let buffers = &self.buffers;
        if (self.bytes > 0 || buffers.waiting.load(Ordering::Relaxed) == 0) && buffers.try_take(more, self.limit) {
            self.bytes = bytes;
            return Ok(());
        }
        let _waits = Waits::new(buffers);
        buffers.metrics.hit(Limit::MaxBufferedBytes);
        let begun = Instant::now();
        let waiting = async {
            let _turn = buffers.turn.lock().await;
            while !buffers.try_take(more, self.limit) {
                buffers.freed.notified().await;
            }
        };
        timeout(self.patience, waiting).await.map_err(|_| ProxyError::BuffersFull)?;
        self.bytes = bytes;
        self.patience = self.patience.saturating_sub(begun.elapsed());
        Ok(())
    }

    /// `body`, for which there is room here; it is given back with the last copy.
    pub(super) fn hold(self, body: Bytes) -> Bytes {
        if body.is_empty() { body } else { Bytes::from_owner(Held { body, _room: self }) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.buffers.give_back(self.bytes);
        }
    }
}

/// Bytes and their room, in the order in which they go.
struct Held {
    body: Bytes,
    _room: Room,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}
