//! What the last decisions say of each replica: its share of them, what was found in its cache, how soon its answers began.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

use crate::telemetry::Decisions;

/// What the last decisions say of one replica.
#[derive(Debug, Default, Serialize)]
pub(super) struct Recent {
    requests: u64,
    share: f64,
    failed: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    cached_share: Option<f64>,
    first_byte_p50: Option<f64>,
    first_byte_p90: Option<f64>,
    #[serde(skip)]
    first_bytes: Vec<Duration>,
}

/// What they say of all, by incarnation.
pub(super) struct OfAll {
    by_replica: HashMap<u64, Recent>,
    /// Decisions for a replica.
    pub(super) requests: u64,
}

/// The share of the last good answers that told of cached tokens; `None` where there is no such answer.
pub(super) fn telling(decisions: &Decisions) -> Option<f64> {
    let (mut good, mut telling) = (0_u64, 0_u64);
    decisions.each(|decision| {
        if decision.is_good() {
            good += 1;
            telling += u64::from(decision.usage.is_some_and(|usage| usage.cached_tokens.is_some()));
        }
    });
    (good > 0).then(|| telling as f64 / good as f64)
}

impl OfAll {
    pub(super) fn look(decisions: &Decisions) -> Self {
        let mut all = Self { by_replica: HashMap::new(), requests: 0 };
        decisions.each(|decision| {
            let Some((incarnation, _)) = decision.replica else { return };
            all.requests += 1;
            let recent = all.by_replica.entry(incarnation).or_default();
            recent.requests += 1;
            recent.failed += u64::from(decision.status >= 500 || decision.error.is_some());
            if let Some((prompt, cached)) = decision.usage.and_then(|usage| Some((usage.prompt_tokens, usage.cached_tokens?))) {
                (recent.prompt_tokens, recent.cached_tokens) = (recent.prompt_tokens + prompt, recent.cached_tokens + cached);
            }
            recent.first_bytes.extend(decision.first_byte.filter(|_| decision.is_good()));
        });
        all
    }

    /// What they say of that incarnation.
    pub(super) fn take(&mut self, incarnation: u64) -> Recent {
        let mut recent = self.by_replica.remove(&incarnation).unwrap_or_default();
        recent.share = recent.requests as f64 / self.requests.max(1) as f64;
        recent.cached_share = (recent.prompt_tokens > 0).then(|| recent.cached_tokens as f64 / recent.prompt_tokens as f64);
        recent.first_bytes.sort_unstable();
        // The least that so many are not above.
        let quantile = |part: f64| {
            let place = (recent.first_bytes.len() as f64 * part).ceil() as usize;
            recent.first_bytes.get(place.saturating_sub(1)).map(Duration::as_secs_f64)
        };
        (recent.first_byte_p50, recent.first_byte_p90) = (quantile(0.5), quantile(0.9));
        recent
    }
}
