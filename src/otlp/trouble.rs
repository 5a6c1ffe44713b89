//! What is said of a collector that does not take spans, or not all: soon, seldom, and once more when that is over.
//!
//! It sends nothing and counts nothing.

use std::time::Duration;

use tokio::time::Instant;

/// Between two words about the same trouble.
const QUIET: Duration = Duration::from_secs(60);

pub(super) struct Trouble {
    url: String,
    /// When something was said last.
    said: Option<Instant>,
    /// Whether something was said of which it is to be said that it is over.
    is_told: bool,
    /// Whether it was said since then that spans are lost.
    is_loss_told: bool,
    /// Spans lost when something was said last.
    lost: u64,
}

impl Trouble {
    /// None yet; so many spans were lost before.
    pub(super) fn new(url: String, lost: u64) -> Self {
        Self { url, said: None, is_told: false, is_loss_told: false, lost }
    }

    /// Spans were not taken; so many are lost by now.
    pub(super) fn tell(&mut self, why: &str, lost: u64) {
        // That it begins to cost something does not wait for the minute to be over.
        let is_first_loss = lost > self.lost && !self.is_loss_told;
        if self.may_speak() || is_first_loss {
            self.said = Some(Instant::now());
            let since = self.since(lost);
            let url = &self.url;
            tracing::warn!(
                url,
                why,
                lost = since,
                "traces do not reach {url}: {why}. Requests are served as ever; spans wait for a while, then they are lost (now: {since}). \
                 This is said once a minute at most"
            );
            self.is_told = true;
            self.is_loss_told |= since > 0;
        }
    }

    /// Spans were taken; so many are lost by now.
    pub(super) fn is_over(&mut self, lost: u64) {
        let url = self.url.clone();
        if std::mem::take(&mut self.is_told) {
            self.is_loss_told = false;
            let since = self.since(lost);
            tracing::info!(url, lost = since, "traces reach {url} again; spans lost since that was last said: {since}");
        } else if lost > self.lost && self.may_speak() {
            let since = self.since(lost);
            tracing::warn!(
                url,
                lost = since,
                "spans are made faster than {url} takes them: {since} are lost. Requests are served as ever; a lower trace_sample_ratio makes fewer. \
                 This is said once a minute at most"
            );
        }
    }

    /// There will be no more spans; so many are lost.
    pub(super) fn end(&mut self, lost: u64) {
        let (url, since) = (self.url.clone(), self.since(lost));
        if since > 0 {
            tracing::warn!(url, lost = since, "spans that {url} did not take since that was last said: {since}");
        }
    }

    fn may_speak(&mut self) -> bool {
        let may = self.said.is_none_or(|said| said.elapsed() >= QUIET);
        if may {
            self.said = Some(Instant::now());
        }
        may
    }

    /// Spans lost since this was last asked.
    fn since(&mut self, lost: u64) -> u64 {
        lost - std::mem::replace(&mut self.lost, lost).min(lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_same_is_said_once_a_minute() {
        let mut trouble = Trouble::new("http://a/v1/traces".to_owned(), 3);
        let mut said = Vec::new();
        for second in 0..130 {
            if trouble.may_speak() {
                said.push(second);
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(said, [0, 60, 120]);
    }

    #[tokio::test(start_paused = true)]
    async fn that_spans_are_lost_is_said_at_once_the_first_time_and_for_the_last_time_at_the_end() {
        let mut trouble = Trouble::new("http://a/v1/traces".to_owned(), 3);
        let mut told = Vec::new();
        for lost in [3, 3, 8, 9] {
            tokio::time::advance(Duration::from_secs(1)).await;
            trouble.tell("it is away", lost);
            told.push(trouble.lost);
        }
        assert_eq!(told, [3, 3, 8, 8]);
        trouble.is_over(9);
        tokio::time::advance(Duration::from_secs(1)).await;
        trouble.tell("it is away", 10);
        assert_eq!(trouble.lost, 10, "another time");
        trouble.end(12);
        assert_eq!(trouble.lost, 12);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_over_is_said_once_and_only_where_there_was_something() {
        let mut trouble = Trouble::new("http://a/v1/traces".to_owned(), 3);
        trouble.is_over(3);
        assert!(trouble.said.is_none() && !trouble.is_told);
        trouble.tell("it is away", 5);
        assert!(trouble.is_told);
        assert_eq!(trouble.since(7), 2, "those that were told of before are not told again");
        trouble.is_over(7);
        assert!(!trouble.is_told);
        // Lost without any failure: it is too slow. Not so soon again, though.
        trouble.is_over(9);
        assert_eq!(trouble.lost, 7);
        tokio::time::advance(QUIET).await;
        trouble.is_over(9);
        assert_eq!(trouble.lost, 9);
    }
}
