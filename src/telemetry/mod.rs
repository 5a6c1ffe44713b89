//! What the outside sees of the router's work: metrics, and logs and traces without a word of any prompt.

mod access_log;
mod at_hand;
mod decisions;
mod engine;
mod forecasts;
mod history;
mod labels;
mod log;
mod metrics;
mod models;
mod operation;
mod placement;
mod record;
mod replicas;
mod requests;
mod series;
mod spans;
mod traces;
mod waiting;

use std::time::Duration;

use tracing::Level;

pub use access_log::FIELDS as ACCESS_LOG_FIELDS;
pub use decisions::{Decision, Decisions};
pub use history::{ByReason, Flow};
pub use labels::{HoldEnd, Limit, QueueBound, Reload, RetryCause, UpstreamError};
pub use log::{Log, start};
pub use metrics::{Metrics, Settings as MetricsSettings};
pub use models::ModelLabel;
pub use record::Record;
pub use requests::{CLASSES, Totals};
pub use series::Family;
pub use traces::{TRACEPARENT, TRACESTATE, Trace, Tracer};

use crate::units::Share;

/// Logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The least important lines that are written.
    pub level: Level,
    /// How a line looks.
    pub format: LogFormat,
    /// Whether each request gets a line.
    pub access_log: bool,
    /// Of the requests that went well, the share that gets one. Those that failed always do.
    pub access_log_sample: Share,
    /// Requests that went well and took less time get none.
    pub access_log_slower_than: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            level: Level::INFO,
            format: LogFormat::Text,
            access_log: true,
            access_log_sample: Share::WHOLE,
            access_log_slower_than: Duration::ZERO,
        }
    }
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people: time, level, text, `field=value`.
    Text,
    /// For programs: one JSON object per line.
    Json,
}
