//! The latest reading of each replica, for whoever wants to know: placement, metrics. Looking one up waits for nobody.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};

use super::Reading;
use crate::fleet::ByIncarnation;

/// Start times of one process may differ by what clocks are set; those of two differ by more than this, in seconds.
const SAME_START: f64 = 1.0;

/// What an engine said last, and what has happened since it spoke before.
#[derive(Clone, Debug, PartialEq)]
pub struct Latest {
    /// What it said.
    pub reading: Reading,
    /// When it was asked for that: it is no older.
    pub asked: Instant,
    /// What has been counted since the reading before; `None` where there is none, where one of them does not say, and across a reset.
    pub growth: Option<Growth>,
    /// How often it has begun to count anew, as far as was seen: a counter fell, or the process is another.
    pub resets: u64,
}

/// What an engine counted between two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Tokens that were looked up in the prefix cache.
    pub queries: u64,
    /// Tokens of them that were found.
    pub hits: u64,
    /// The time between the two questions.
    pub over: Duration,
}

impl Latest {
    fn after(before: Option<&Self>, reading: Reading, asked: Instant) -> Self {
        let resets = before.map_or(0, |before| before.resets + u64::from(is_reset(&before.reading, &reading)));
        let growth = before.filter(|before| before.resets == resets).and_then(|before| {
            Some(Growth {
                queries: reading.prefix_queries?.checked_sub(before.reading.prefix_queries?)?,
                hits: reading.prefix_hits?.checked_sub(before.reading.prefix_hits?)?,
                over: asked.saturating_duration_since(before.asked),
            })
        });
        Self { reading, asked, growth, resets }
    }
}

/// Whether an engine has started anew between two readings.
fn is_reset(before: &Reading, after: &Reading) -> bool {
    let fell = |before: Option<u64>, after: Option<u64>| before.zip(after).is_some_and(|(before, after)| after < before);
    let is_another = before.started.zip(after.started).is_some_and(|(before, after)| (before - after).abs() > SAME_START);
    is_another || fell(before.prefix_queries, after.prefix_queries) || fell(before.prefix_hits, after.prefix_hits)
}

/// The latest of every replica in the fleet. Each has one who writes and any number who read.
#[derive(Debug, Default)]
pub struct EngineReadings {
    slots: ArcSwap<ByIncarnation<Arc<ArcSwapOption<Latest>>>>,
}

impl EngineReadings {
    /// The latest of that incarnation; `None` where its engine has said nothing yet.
    pub fn get(&self, incarnation: u64) -> Option<Arc<Latest>> {
        self.slots.load().get(&incarnation)?.load_full()
    }

    /// Has room for those incarnations and no others. Who stays keeps what is known.
    pub fn keep(&self, present: impl IntoIterator<Item = u64>) {
        let before = self.slots.load();
        let slot = |incarnation| (incarnation, before.get(&incarnation).cloned().unwrap_or_default());
        self.slots.store(Arc::new(present.into_iter().map(slot).collect()));
    }

    /// Takes note of what an engine said that was asked at `asked`, and whether it has begun anew. `None` where the replica has left: there is no room for it.
    pub fn put(&self, incarnation: u64, reading: Reading, asked: Instant) -> Option<(Arc<Latest>, bool)> {
        let slots = self.slots.load();
        let slot = slots.get(&incarnation)?;
        let before = slot.load();
        let latest = Arc::new(Latest::after(before.as_deref(), reading, asked));
        let is_reset = before.as_ref().is_some_and(|before| before.resets < latest.resets);
        slot.store(Some(Arc::clone(&latest)));
        Some((latest, is_reset))
    }

    /// Nothing is known of that incarnation any more.
    pub fn forget(&self, incarnation: u64) {
        if let Some(slot) = self.slots.load().get(&incarnation) {
            slot.store(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(queries: u64, hits: u64, started: Option<f64>) -> Reading {
        Reading { prefix_queries: Some(queries), prefix_hits: Some(hits), started, ..Reading::default() }
    }

    #[test]
    fn growth_and_resets() {
        let (readings, start) = (EngineReadings::default(), Instant::now());
        readings.keep([7]);
        let nothing = Reading { running: Some(1), ..Reading::default() };
        // A reading each 2 s, by how much it has grown, and the resets by then.
        for (number, (reading, growth, resets)) in (0..).zip([
            (counted(100, 10, Some(5.0)), None, 0),
            (counted(150, 30, Some(5.5)), Some((50, 20)), 0),
            (counted(150, 30, None), Some((0, 0)), 0),
            (counted(149, 40, None), None, 1),
            (counted(159, 45, Some(5.0)), Some((10, 5)), 1),
            (counted(160, 44, Some(5.0)), None, 2),
            (counted(161, 44, Some(7.0)), None, 3),
            (nothing, None, 3),
            (counted(170, 50, Some(7.0)), None, 3),
            (counted(171, 51, Some(7.0)), Some((1, 1)), 3),
        ]) {
            let asked = start + Duration::from_secs(2 * number);
            readings.put(7, reading.clone(), asked);
            let growth = growth.map(|(queries, hits)| Growth { queries, hits, over: Duration::from_secs(2) });
            assert_eq!(readings.get(7).as_deref(), Some(&Latest { reading, asked, growth, resets }), "number {number}");
        }
    }

    #[test]
    fn who_has_gone_is_not_known_any_more() {
        let (readings, now) = (EngineReadings::default(), Instant::now());
        let reading = || counted(1, 1, None);
        readings.put(1, reading(), now);
        assert_eq!(readings.get(1), None, "nobody is there");
        readings.keep([1, 2]);
        readings.put(1, reading(), now);
        readings.put(2, reading(), now);
        readings.keep([2, 3]);
        assert!(readings.get(1).is_none() && readings.get(2).is_some() && readings.get(3).is_none());
        readings.keep([1, 2]);
        assert_eq!(readings.get(1), None, "one that returns is another");
        readings.forget(2);
        assert_eq!(readings.get(2), None);
    }
}
