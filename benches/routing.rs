//! What the choice of a replica costs, without any I/O. Run: `benches/run routing`, or `cargo bench --bench routing`.

#[path = "rig/calibration.rs"]
mod calibration;

use std::hint::black_box;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use prefix_router::fleet::{Fleet, Outcome, ReplicaSpec, health};
use prefix_router::request::{Ask, Boundary, Key, Placement};
use prefix_router::routing::{self, Aim, Candidates, Chooser};
use prefix_router::units::{ConcurrencyThreshold, OrAuto, Weight};
use rand::SeedableRng;
use rand::rngs::SmallRng;

fn choice(c: &mut Criterion) {
    let mut group = c.benchmark_group("routing");
    let chooser = Chooser::new(&routing::Settings::default());
    let gated = Chooser::new(&routing::Settings {
        concurrency_threshold: OrAuto::Fixed(ConcurrencyThreshold::clamped(1)),
        ..routing::Settings::default()
    });
    let automatic = Chooser::new(&routing::Settings {
        concurrency_threshold: OrAuto::Auto,
        prefix_length: OrAuto::Auto,
        ..routing::Settings::default()
    });
    for replicas in [2_usize, 8, 64, 256, 1_000] {
        let specs = (0..replicas).map(|index| ReplicaSpec {
            name: format!("10.0.{}.{}:8000", index / 256, index % 256),
            authority: String::new(),
            weight: Weight::clamped(1),
            models: Vec::new(),
            drain: false,
        });
        let mut fleet = Fleet::new(specs.collect(), health::Settings::default(), 0);
        for replica in fleet.snapshot().replicas() {
            fleet.observe(replica, Outcome::CheckPassed, Instant::now(), 0.0);
        }
        let snapshot = fleet.snapshot();
        let Some(pool) = snapshot.pool(None) else { return };
        let (mut rng, mut key, now) = (SmallRng::seed_from_u64(1), 0_u64, Instant::now());
        group.bench_function(BenchmarkId::new("prefix_aware, home open", replicas), |b| {
            b.iter(|| {
                key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
                chooser.choose(&Aim::ByKey(Key(key).into()), &Candidates::new(black_box(pool), &[], now), &mut rng)
            });
        });
        // Seven boundaries that all requests share, and one of a thousand behind them.
        let shared = (0..7_u64).map(|step| Boundary { depth: 1_024 << step, key: Key(step.wrapping_mul(0x9e37_79b9_7f4a_7c15)) });
        let boundaries = shared.chain([Boundary { depth: 1 << 17, key: Key(0) }]).collect();
        let mut prompt = Ask { placement: Placement::ByKey(boundaries), ..Ask::default() };
        let mut number = 0_u64;
        group.bench_function(BenchmarkId::new("prefix_aware, automatic, eight boundaries", replicas), |b| {
            b.iter(|| {
                number = number.wrapping_add(1);
                if let Placement::ByKey(boundaries) = &mut prompt.placement {
                    boundaries[7].key = Key((number % 1_000).wrapping_mul(0xd6e8_feb8_6659_fd93));
                }
                let aim = automatic.aim(black_box(&prompt), pool);
                automatic.choose(&aim, &Candidates::new(black_box(pool), &[], now), &mut rng)
            });
        });
        group.bench_function(BenchmarkId::new("by load, all idle", replicas), |b| {
            b.iter(|| chooser.choose(&Aim::ByLoad, &Candidates::new(black_box(pool), &[], now), &mut rng));
        });
        let by_key = &Aim::ByKey(Key(1).into());
        let home = gated.choose(by_key, &Candidates::new(pool, &[], now), &mut rng);
        group.bench_function(BenchmarkId::new("prefix_aware, home gated, others idle", replicas), |b| {
            b.iter(|| gated.choose(by_key, &Candidates::new(black_box(pool), &[], now), &mut rng));
        });
        drop(home);
        // Others are where something is always going on.
        for (number, replica) in snapshot.replicas().iter().enumerate().skip(1).step_by(50) {
            fleet.observe(replica, if number % 100 == 1 { Outcome::Busy(None) } else { Outcome::ConnectFailed }, now, 0.0);
        }
        let snapshot = fleet.snapshot();
        let Some(pool) = snapshot.pool(None) else { return };
        group.bench_function(BenchmarkId::new("prefix_aware, home open, some busy or down", replicas), |b| {
            b.iter(|| {
                key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
                chooser.choose(&Aim::ByKey(Key(key).into()), &Candidates::new(black_box(pool), &[], now), &mut rng)
            });
        });
    }
}

fn calibration(c: &mut Criterion) {
    c.bench_function("calibration", |b| b.iter(calibration::work));
}

criterion_group!(benches, calibration, choice);
criterion_main!(benches);
