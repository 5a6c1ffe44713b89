//! The series that tell how requests are placed by keys: where prompts are cut, which boundaries move, how well keys divide the traffic, how high the
//! gates stand and for how long they are closed.
//!
//! What is a state of the strategy is asked for when somebody scrapes, so that it costs no request anything.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use prometheus::{CounterVec, GaugeVec, Histogram, IntCounter, IntGaugeVec};

use super::forecasts::Forecasts;
use super::metrics::Metrics;
use super::series::Series;
use crate::fleet::{Pool, PoolName, Replica, Snapshot};
use crate::routing::{Chooser, Direction, FirstSight, Fit, Insight, Sight};

/// From the shortest automatic prefix to a book.
const DEPTH_BUCKETS: &[f64] =
    &[256.0, 512.0, 1_024.0, 2_048.0, 4_096.0, 8_192.0, 16_384.0, 32_768.0, 65_536.0, 131_072.0, 262_144.0, 1_048_576.0];

/// Pools whose reuse is shown, at most; the first by name. They come from what replicas list, never from clients, but may be hundreds of adapters.
pub(super) const MOST_POOLS: usize = 64;

/// The series.
pub(super) struct Placement {
    depth: Histogram,
    changes: [IntCounter; Direction::ALL.len()],
    first_sights: [IntCounter; FirstSight::ALL.len()],
    keys: [IntCounter; Fit::ALL.len()],
    threshold: IntGaugeVec,
    saturated: CounterVec,
    reuse: GaugeVec,
    top_key_share: GaugeVec,
    pool_replicas: IntGaugeVec,
    /// Whose states are shown.
    chooser: ArcSwapOption<Chooser>,
}

impl Placement {
    pub(super) fn new(series: &mut Series) -> prometheus::Result<Self> {
        let changes = series.counters(
            "prefix_router_boundary_changes_total",
            "Boundaries that too many requests share to be placed by (hot), or no longer (cooled).",
            &["direction"],
        )?;
        let first_sights =
            series.counters("prefix_router_first_sights_total", "Keys seen for the first time, by where they went.", &["outcome"])?;
        let keys = series.counters(
            "prefix_router_keys_total",
            "Requests that are placed by a key, by how well such a key divides the traffic.",
            &["fit"],
        )?;
        Ok(Self {
            depth: series.histogram(
                "prefix_router_boundary_depth_characters",
                "How much of a prompt makes its key where traffic decides that; in bytes on the native surface.",
                DEPTH_BUCKETS,
            )?,
            keys: std::array::from_fn(|index| keys.with_label_values(&[Fit::ALL[index].label()])),
            changes: std::array::from_fn(|index| changes.with_label_values(&[Direction::ALL[index].label()])),
            first_sights: std::array::from_fn(|index| first_sights.with_label_values(&[FirstSight::ALL[index].label()])),
            threshold: series.gauges(
                "prefix_router_concurrency_threshold",
                "From how many outstanding requests on a replica's gate is closed now; no series where there is none.",
                &["replica"],
            )?,
            saturated: series.seconds_by(
                "prefix_router_saturated_seconds_total",
                "Time that a replica's gate was closed, as looked at each second.",
                &["replica"],
            )?,
            reuse: series.numbers("prefix_router_reuse_ratio", "Share of recent requests in a pool whose key was known.", &["pool"])?,
            top_key_share: series.numbers(
                "prefix_router_top_key_share_ratio",
                "Share of recent requests in a pool that have its most frequent key.",
                &["pool"],
            )?,
            pool_replicas: series.gauges("prefix_router_pool_replicas", "Replicas in a pool.", &["pool"])?,
            chooser: ArcSwapOption::empty(),
        })
    }

    /// Brings the states up to date. Who has left the fleet has none.
    pub(super) fn refresh(&self, fleet: &Snapshot, forecasts: &Forecasts) {
        self.threshold.reset();
        [&self.reuse, &self.top_key_share].into_iter().for_each(GaugeVec::reset);
        self.pool_replicas.reset();
        let Some(chooser) = self.chooser.load_full() else { return forecasts.refresh(fleet, &[]) };
        let insights = insights(&chooser, fleet);
        let of_pools: Vec<_> = insights.iter().map(|(pool, insight)| (pool.name(), insight)).collect();
        forecasts.refresh(fleet, &of_pools);
        for (pool, insight) in insights.iter().filter(|(_, insight)| insight.reuse.is_some()).take(MOST_POOLS) {
            let label = [pool.name().label()];
            self.pool_replicas.with_label_values(&label).set(pool.members().len() as i64);
            for (gauge, value) in [(&self.reuse, insight.reuse), (&self.top_key_share, insight.top_key_share)] {
                value.into_iter().for_each(|value| gauge.with_label_values(&label).set(value));
            }
        }
        let thresholds: Vec<_> = insights.into_iter().map(|(pool, insight)| (pool, insight.thresholds)).collect();
        for (replica, threshold) in lowest(fleet, &thresholds) {
            self.threshold.with_label_values(&[replica.name()]).set(i64::try_from(threshold).unwrap_or(i64::MAX));
        }
    }

    /// Counts the time since this was done last, where a replica's gate is closed now.
    pub(super) fn count_saturation(&self, fleet: &Snapshot, since: Duration) {
        for (replica, threshold) in self.lowest_now(fleet) {
            let closed = if replica.outstanding() >= threshold { since } else { Duration::ZERO };
            self.saturated.with_label_values(&[replica.name()]).inc_by(closed.as_secs_f64());
        }
    }

    /// The thresholds that there are now, by incarnation.
    pub(super) fn thresholds(&self, fleet: &Snapshot) -> HashMap<u64, u64> {
        self.lowest_now(fleet).into_iter().map(|(replica, threshold)| (replica.incarnation(), threshold)).collect()
    }

    fn lowest_now<'a>(&self, fleet: &'a Snapshot) -> Vec<(&'a Arc<Replica>, u64)> {
        let Some(chooser) = self.chooser.load_full() else { return Vec::new() };
        let now = Instant::now();
        let thresholds: Vec<_> = fleet.pools().map(|pool| (pool, chooser.thresholds(pool, now))).collect();
        lowest(fleet, &thresholds)
    }

    /// A replica's series go.
    pub(super) fn forget(&self, name: &str) {
        let _ = self.saturated.remove_label_values(&[name]);
    }
}

/// What the strategy tells of each pool, in the order of their names.
fn insights<'a>(chooser: &Chooser, fleet: &'a Snapshot) -> Vec<(&'a Pool, Insight)> {
    let now = Instant::now();
    let mut pools: Vec<_> = fleet.pools().collect();
    pools.sort_unstable_by_key(|pool| pool.name());
    pools.into_iter().map(|pool| (pool, chooser.insight(pool, now))).collect()
}

/// The thresholds of those that have a gate, from what each pool has: the lowest.
fn lowest<'a>(fleet: &'a Snapshot, thresholds: &[(&Pool, Vec<(u64, u64)>)]) -> Vec<(&'a Arc<Replica>, u64)> {
    let mut lowest: HashMap<u64, u64> = HashMap::new();
    // Requests that name no model go by the pool of all replicas: it counts where there is no other.
    let of_models = thresholds.iter().filter(|(pool, _)| thresholds.len() == 1 || *pool.name() != PoolName::All);
    for &(incarnation, threshold) in of_models.flat_map(|(_, thresholds)| thresholds) {
        lowest.entry(incarnation).and_modify(|lowest| *lowest = threshold.min(*lowest)).or_insert(threshold);
    }
    fleet.replicas().iter().filter_map(|replica| Some((replica, *lowest.get(&replica.incarnation())?))).collect()
}

impl Metrics {
    /// Whose states are shown from now on.
    pub fn show_chooser(&self, chooser: &Arc<Chooser>) {
        self.placement.chooser.store(Some(Arc::clone(chooser)));
    }

    /// Counts a request that is placed by a key.
    pub fn aimed(&self, sight: &Sight) {
        if !self.is_on() {
            return;
        }
        if let Some(fit) = sight.fit {
            self.placement.keys[fit as usize].inc();
        }
        if let Some(depth) = sight.depth {
            self.placement.depth.observe(depth.into());
        }
        for moved in &sight.moved {
            self.placement.changes[moved.direction as usize].inc();
        }
    }

    /// Counts a key that was seen for the first time.
    pub fn first_seen(&self, outcome: FirstSight) {
        self.placement.first_sights[outcome as usize].inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Fleet, Outcome, ReplicaSpec, health};
    use crate::request::{Ask, Boundaries, Boundary, Key, Placement as Placed};
    use crate::routing::{self, Aim, Candidates};
    use crate::units::{ConcurrencyThreshold, OrAuto, Weight};
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    fn fleet(models: &[&[&str]]) -> Fleet {
        let specs = models.iter().enumerate().map(|(index, models)| ReplicaSpec {
            name: format!("r{index}"),
            authority: String::new(),
            weight: Weight::clamped(1),
            models: models.iter().map(|model| (*model).to_owned()).collect(),
            drain: false,
        });
        let mut fleet = Fleet::new(specs.collect(), health::Settings::default(), 0);
        for replica in fleet.snapshot().replicas() {
            fleet.observe(replica, Outcome::CheckPassed, Instant::now(), 0.0);
        }
        fleet
    }

    fn asked(boundaries: Boundaries) -> Ask {
        Ask { placement: Placed::ByKey(boundaries), ..Ask::default() }
    }

    fn automatic() -> Arc<Chooser> {
        let auto = routing::Settings { concurrency_threshold: OrAuto::Auto, prefix_length: OrAuto::Auto, ..routing::Settings::default() };
        Arc::new(Chooser::new(&auto))
    }

    fn series(metrics: &Metrics, fleet: &Snapshot, name: &str) -> Vec<String> {
        let text = metrics.render(fleet).expect("text");
        text.lines().filter(|line| line.starts_with(name)).map(|line| line.trim_start_matches("prefix_router_").to_owned()).collect()
    }

    #[test]
    fn thresholds_are_those_of_the_moment_and_of_who_is_there() {
        let (metrics, mut fleet) = (Metrics::new(&Default::default()).expect("metrics"), fleet(&[&[], &[], &[]]));
        let picture = fleet.snapshot();
        let shown = |picture: &Snapshot| series(&metrics, picture, "prefix_router_concurrency_threshold");
        assert!(shown(&picture).is_empty(), "nobody chooses");
        metrics.show_chooser(&automatic());
        let all = |numbers: &[u64]| -> Vec<String> {
            (0..).zip(numbers).map(|(index, number)| format!("concurrency_threshold{{replica=\"r{index}\"}} {number}")).collect()
        };
        assert_eq!(shown(&picture), all(&[24, 24, 24]));
        let leases: Vec<_> = (0..40).map(|_| picture.replicas()[0].lease()).collect();
        assert_eq!(shown(&picture), all(&[24, 48, 48]), "2.4 times 40 / 2");
        drop(leases);
        let specs = picture.replicas()[..2].iter().map(|replica| replica.spec().clone()).collect();
        fleet.adopt(Arc::new(fleet.membership().next(specs, true)));
        assert_eq!(shown(&fleet.snapshot()), all(&[24, 24]));
        let fixed = OrAuto::Fixed(ConcurrencyThreshold::clamped(64));
        metrics.show_chooser(&Arc::new(Chooser::new(&routing::Settings { concurrency_threshold: fixed, ..routing::Settings::default() })));
        assert_eq!(shown(&fleet.snapshot()), all(&[64, 64]));
        let random = routing::Settings { strategy: routing::StrategyName::Random, ..routing::Settings::default() };
        metrics.show_chooser(&Arc::new(Chooser::new(&random)));
        assert!(shown(&fleet.snapshot()).is_empty(), "there are no gates");
    }

    #[test]
    fn a_threshold_is_counted_in_the_pool_of_the_replicas_model() {
        let (metrics, fleet) = (Metrics::new(&Default::default()).expect("metrics"), fleet(&[&["a"], &["a"], &["b"], &["b"]]));
        let picture = fleet.snapshot();
        metrics.show_chooser(&automatic());
        let _busy: Vec<_> = (0..20).map(|_| picture.replicas()[2].lease()).collect();
        let shown = series(&metrics, &picture, "prefix_router_concurrency_threshold");
        assert_eq!(shown[3], "concurrency_threshold{replica=\"r3\"} 48", "2.4 times 20, of its one peer");
    }

    #[test]
    fn keys_are_counted_by_depth_change_and_first_sight() {
        let (metrics, fleet, chooser) = (Metrics::new(&Default::default()).expect("metrics"), fleet(&[&[], &[]]).snapshot(), automatic());
        metrics.show_chooser(&chooser);
        let pool = fleet.pool(None).expect("there is one");
        let boundaries = [Boundary { depth: 1_024, key: Key(1) }, Boundary { depth: 2_048, key: Key(2) }];
        for _ in 0..10 {
            let Aim::ByKey(sight) = chooser.aim(&asked(boundaries.into_iter().collect()), pool) else { panic!("it has a key") };
            metrics.aimed(&sight);
            let candidates = Candidates::new(pool, &[], Instant::now());
            let choice = chooser.choose(&Aim::ByKey(sight), &candidates, &mut SmallRng::seed_from_u64(0)).expect("somebody");
            choice.first_sight.into_iter().for_each(|outcome| metrics.first_seen(outcome));
        }
        let depths = series(&metrics, &fleet, "prefix_router_boundary_depth_characters");
        assert!(depths.contains(&"boundary_depth_characters_bucket{le=\"1024\"} 4".to_owned()), "{depths:?}");
        assert!(depths.contains(&"boundary_depth_characters_count 10".to_owned()), "{depths:?}");
        let expected = ["boundary_changes_total{direction=\"cooled\"} 0", "boundary_changes_total{direction=\"hot\"} 2"];
        assert_eq!(series(&metrics, &fleet, "prefix_router_boundary_changes_total"), expected);
        let first = series(&metrics, &fleet, "prefix_router_first_sights_total");
        assert!(first.contains(&"first_sights_total{outcome=\"first_choice\"} 2".to_owned()), "{first:?}");
        let reuse = series(&metrics, &fleet, "prefix_router_reuse_ratio{pool=\"all\"} 0.8");
        assert_eq!(reuse.len(), 1, "8 of 10");
    }

    #[test]
    fn the_series_of_pools_are_bounded() {
        let models: Vec<String> = (0..100).map(|index| format!("m{index:03}")).collect();
        let listed: Vec<&str> = models.iter().map(String::as_str).collect();
        let (metrics, fleet, chooser) = (Metrics::new(&Default::default()).expect("metrics"), fleet(&[&listed]).snapshot(), automatic());
        metrics.show_chooser(&chooser);
        for model in &models {
            let pool = fleet.pool(Some(model)).expect("it is listed");
            chooser.aim(&asked([Boundary { depth: 7, key: Key(1) }].into_iter().collect()), pool);
        }
        assert_eq!(series(&metrics, &fleet, "prefix_router_reuse_ratio{").len(), MOST_POOLS);
    }
}
