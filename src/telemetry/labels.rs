//! Labels that come from closed lists, so that no client can add a series.
//!
//! What is counted under them is `metrics`' business.

use strum::VariantArray;

use crate::request::Surface;
use crate::routing::Reason;

/// The route of a request: where its path is not served it has none.
pub(super) fn route(surface: Option<Surface>) -> &'static str {
    surface.map_or("refused", Surface::label)
}

/// Why a request's last replica was chosen, where there was one.
pub(super) fn reason(reason: Option<Reason>) -> &'static str {
    reason.map_or("none", Reason::label)
}

/// What kept a request from waiting, or from waiting longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum QueueBound {
    /// `queue_max_requests`.
    Requests,
    /// `queue_max_bytes`.
    Bytes,
    /// `queue_timeout`.
    Time,
}

impl QueueBound {
    pub(super) const ALL: &[Self] = Self::VARIANTS;

    /// The label in metrics: the key that sets it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Requests => "queue_max_requests",
            Self::Bytes => "queue_max_bytes",
            Self::Time => "queue_timeout",
        }
    }
}

/// How it ended that a request was held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum HoldEnd {
    /// Its turn came.
    Turn,
    /// It had waited for `hold_timeout`, and went all the same.
    Time,
    /// More waited than may, and it was next.
    Full,
    /// Nobody is held back any more.
    Off,
    /// It was given up.
    Left,
}

impl HoldEnd {
    pub(super) const ALL: &[Self] = Self::VARIANTS;

    /// The label in metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Time => "timeout",
            Self::Full => "full",
            Self::Off => "off",
            Self::Left => "left",
        }
    }
}

/// Why a request was sent once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum RetryCause {
    /// No connection was made.
    Connect,
    /// The connection broke before the first byte.
    Broke,
    /// The replica answered 429 or 503.
    Busy,
    /// The replica was taken out while the request waited there.
    Ejected,
    /// A kept connection had died; a fresh one to the same replica was tried, which is not a further try.
    Stale,
}

impl RetryCause {
    pub(super) const ALL: &[Self] = Self::VARIANTS;

    /// The label in metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Broke => "broke",
            Self::Busy => "busy",
            Self::Ejected => "ejected",
            Self::Stale => "stale",
        }
    }
}

/// How a replica failed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum UpstreamError {
    /// No connection was made.
    Connect,
    /// The connection broke, before or after the first byte.
    Broke,
    /// No first byte in time.
    FirstByteTimeout,
    /// No first byte within the client's own time, which says nothing of the replica.
    ClientTimeout,
    /// No further byte in time.
    IdleTimeout,
    /// It was taken out while the request waited there.
    Ejected,
    /// 429 or 503.
    Busy,
    /// Another 5xx.
    Status5xx,
}

impl UpstreamError {
    pub(super) const ALL: &[Self] = Self::VARIANTS;

    /// The label in metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Broke => "broke",
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::ClientTimeout => "client_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::Ejected => "ejected",
            Self::Busy => "busy",
            Self::Status5xx => "status_5xx",
        }
    }
}

/// What a reload of the configuration came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum Reload {
    /// Something was changed by it.
    Applied,
    /// Nothing was.
    Unchanged,
    /// There is an error, and all stays as it was.
    Refused,
}

impl Reload {
    pub(super) const ALL: &[Self] = Self::VARIANTS;

    /// The label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
        }
    }
}

/// A limit of what comes from outside, called as the setting that sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum Limit {
    /// Taking connections had to wait.
    MaxConnections,
    /// A head did not arrive in time, or nobody used an open connection for so long.
    HeaderTimeout,
    /// A client took nothing of its answer.
    WriteTimeout,
    /// A client of HTTP/2 took back too many requests at once.
    H2MaxResets,
    /// A head was too large.
    MaxHeaderBytes,
    /// A head had too many fields.
    MaxHeaders,
    /// A body was too large.
    MaxBody,
    /// A body was nested too deep, so that its bytes placed it.
    MaxJsonDepth,
    /// A body did not go on in time.
    BodyTimeout,
    /// A body was not complete in time.
    BodyTotalTimeout,
    /// A body had to wait for room in memory.
    MaxBufferedBytes,
    /// And waited in vain.
    BufferTimeout,
}

impl Limit {
    /// All of them.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The setting's name, which is also the label in metrics.
    pub fn key(self) -> &'static str {
        match self {
            Self::MaxConnections => "max_connections",
            Self::HeaderTimeout => "header_timeout",
            Self::WriteTimeout => "write_timeout",
            Self::H2MaxResets => "h2_max_resets",
            Self::MaxHeaderBytes => "max_header_bytes",
            Self::MaxHeaders => "max_headers",
            Self::MaxBody => "max_body",
            Self::MaxJsonDepth => "max_json_depth",
            Self::BodyTimeout => "body_timeout",
            Self::BodyTotalTimeout => "body_total_timeout",
            Self::MaxBufferedBytes => "max_buffered_bytes",
            Self::BufferTimeout => "buffer_timeout",
        }
    }
}
