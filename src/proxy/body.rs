//! Reads a request's body up to a limit. It is kept whole, since it may have to be sent more than once.

use std::error::Error;
use std::io;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::error::ProxyError;

/// How much room is made on the word of a `Content-Length` alone.
const TRUSTED: usize = 1 << 20;

/// The whole body, of at most `limit` bytes, between whose pieces no more than `patience` passes (zero: any time).
pub(super) async fn read(body: &mut Body, limit: usize, patience: Duration) -> Result<Bytes, ProxyError> {
    // A body whose length is known to be too large is refused before it is asked for.
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > limit {
        return Err(ProxyError::BodyTooLarge(limit));
    }
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    loop {
        let next = body.frame();
        let next =
            if patience.is_zero() { next.await } else { timeout(patience, next).await.map_err(|_| ProxyError::BodyTooSlow(patience))? };
        let Some(frame) = next else { break };
        let Ok(piece) = frame.map_err(|error| blame(&error))?.into_data() else { continue };
        if first.len() + rest.len() + piece.len() > limit {
            return Err(ProxyError::BodyTooLarge(limit));
        }
        if first.is_empty() && rest.is_empty() {
            first = piece;
            continue;
        }
        if rest.is_empty() {
            rest.reserve(announced.min(TRUSTED).max(first.len() + piece.len()));
            rest.extend_from_slice(&first);
            first = Bytes::new();
        }
        rest.extend_from_slice(&piece);
    }
    // A body that came in one piece is never copied.
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// Whether the client left in mid-body, or sent something that is no body.
fn blame(error: &axum::Error) -> ProxyError {
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

/// How long a refused request's body is still read.
const LINGER: Duration = Duration::from_secs(2);

/// Reads the rest of a refused request's body, within bounds. A client that is still sending would otherwise meet a closed connection
/// and never read why it was refused.
pub(super) async fn discard(mut body: Body, limit: usize) {
    let mut left = limit;
    let _ = timeout(LINGER, async {
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    })
    .await;
}
