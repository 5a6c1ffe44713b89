//! What the outside sees of the router's work: metrics, and logs without a word of any prompt.

mod access_log;
mod labels;
mod metrics;

use std::io::IsTerminal;

use tracing::Level;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

pub use access_log::Record;
pub use labels::{Limit, QueueBound, Reload, RetryCause, UpstreamError};
pub use metrics::Metrics;

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

/// The log at work. Dropping it writes what is left.
pub struct Log {
    _writer: WorkerGuard,
    filter: Box<dyn Fn(EnvFilter) + Send + Sync>,
}

impl Log {
    /// Writes what `settings` ask for from now on. How a line looks stays as it was.
    pub fn follow(&self, settings: &Settings) {
        (self.filter)(filter(settings));
    }
}

fn filter(settings: &Settings) -> EnvFilter {
    let access = if settings.access_log { Level::INFO } else { Level::ERROR };
    EnvFilter::new(format!("{},{}={access}", settings.level, access_log::TARGET))
}

/// Starts logging to standard output. Lines are written by a thread of their own, so that a slow reader delays no request.
pub fn start(settings: &Settings) -> Log {
    let (output, writer) = NonBlockingBuilder::default().finish(std::io::stdout());
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter(settings)).with_writer(output).with_ansi(std::io::stdout().is_terminal());
    // A second start in one process, as in tests, keeps the first.
    // Changing the filter fails only where the log is gone.
    let filter: Box<dyn Fn(EnvFilter) + Send + Sync> = match settings.format {
        LogFormat::Text => {
            let subscriber = subscriber.with_filter_reloading();
            let handle = subscriber.reload_handle();
            let _ = subscriber.try_init();
            Box::new(move |filter| drop(handle.reload(filter)))
        }
        LogFormat::Json => {
            let subscriber = subscriber.json().flatten_event(true).with_filter_reloading();
            let handle = subscriber.reload_handle();
            let _ = subscriber.try_init();
            Box::new(move |filter| drop(handle.reload(filter)))
        }
    };
    Log { _writer: writer, filter }
}
