//! What the outside sees of the router's work: metrics, and logs without a word of any prompt.

mod access_log;
mod metrics;

use std::io::IsTerminal;

use tracing::Level;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

pub use access_log::Record;
pub use metrics::{Limit, Metrics, RetryCause, UpstreamError};

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

/// Starts logging to standard output. Lines are written by a thread of their own, so that a slow reader delays no request; dropping the
/// guard writes what is left.
pub fn start(settings: &Settings) -> WorkerGuard {
    let (writer, guard) = NonBlockingBuilder::default().finish(std::io::stdout());
    let access = if settings.access_log { Level::INFO } else { Level::ERROR };
    let filter = EnvFilter::new(format!("{},{}={access}", settings.level, access_log::TARGET));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(std::io::stdout().is_terminal());
    // A second start in one process, as in tests, keeps the first.
    let _ = match settings.format {
        LogFormat::Text => subscriber.try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).try_init(),
    };
    guard
}
