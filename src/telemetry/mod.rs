//! What the outside sees of the router's work: metrics, and logs without a word of any prompt.

mod access_log;
mod at_hand;
mod engine;
mod forecasts;
mod labels;
mod log;
mod metrics;
mod models;
mod operation;
mod placement;
mod replicas;
mod requests;
mod series;
mod waiting;

use tracing::Level;

pub use access_log::Record;
pub use labels::{HoldEnd, Limit, QueueBound, Reload, RetryCause, UpstreamError};
pub use log::{Log, start};
pub use metrics::{Metrics, Settings as MetricsSettings};
pub use models::ModelLabel;
pub use series::Family;

/// Logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The least important lines that are written.
    pub level: Level,
    /// How a line looks.
    pub format: LogFormat,
    /// Whether each request gets a line.
    pub access_log: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { level: Level::INFO, format: LogFormat::Text, access_log: true }
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
