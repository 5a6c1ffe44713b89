//! The series that tells what became of spans. Nothing here makes or sends one.

use prometheus::IntCounter;

use super::metrics::Metrics;
use super::series::Series;

/// The series.
pub(super) struct Spans {
    exported: IntCounter,
    dropped: IntCounter,
    failed: IntCounter,
}

impl Spans {
    pub(super) fn new(series: &mut Series) -> prometheus::Result<Self> {
        let help = "Spans by what became of them: exported (the collector has them), dropped (there was no room to keep them), failed (it did not take them).";
        let spans = series.counters("prefix_router_spans_total", help, &["result"])?;
        let result = |result| spans.with_label_values(&[result]);
        Ok(Self { exported: result("exported"), dropped: result("dropped"), failed: result("failed") })
    }
}

impl Metrics {
    /// Counts spans that the collector took, and those of the same message that it did not.
    pub fn sent_spans(&self, exported: u64, failed: u64) {
        self.spans.exported.inc_by(exported);
        self.spans.failed.inc_by(failed);
    }

    /// Counts a span for which there was no room.
    pub(super) fn dropped_span(&self) {
        self.spans.dropped.inc();
    }

    /// Spans that never reached the collector, for whichever reason.
    pub fn lost_spans(&self) -> u64 {
        self.spans.dropped.get() + self.spans.failed.get()
    }
}
