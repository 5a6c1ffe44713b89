//! What the choice of a replica costs, without any I/O. Run: `benches/run routing`, or `cargo bench --bench routing`.

#[path = "rig/calibration.rs"]
mod calibration;
#[path = "rig/fleet.rs"]
mod rig;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use prefix_router::fleet::Outcome;
use prefix_router::request::{Ask, Boundary, Chunks, Key, Placement, end_of};
use prefix_router::routing::{self, Aim, Candidates, Chooser};
use prefix_router::units::{ConcurrencyThreshold, OrAuto};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use rig::fleet;

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
        let mut fleet = fleet(replicas);
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

/// `cache_aware` with replicas that hold 12,000 chunks each, and prompts of which the first half is held by some of them. The slowest of a hundred is
/// told beside.
fn predicted(c: &mut Criterion) {
    let mut group = c.benchmark_group("cache_aware");
    for (replicas, tokens) in [(8_usize, 8_000), (100, 100_000)] {
        let snapshot = fleet(replicas).snapshot();
        let Some(pool) = snapshot.pool(None) else { return };
        let chooser = Chooser::new(&routing::Settings {
            strategy: routing::StrategyName::CacheAware,
            index_memory: 256 << 20,
            ..routing::Settings::default()
        });
        let count = (0..).take_while(|&count| end_of(count + 1) <= tokens * 4).count();
        let ask = |number: u64| {
            let hash = |index: usize| {
                let whose = if index < count / 2 { number % 300 } else { number + 300 };
                xxhash_rust::xxh3::xxh3_64(&[whose, index as u64].map(u64::to_le_bytes).concat())
            };
            let key = Key(hash(0));
            Ask {
                placement: Placement::ByKey([Boundary { depth: 1_024, key }].into_iter().collect()),
                chunks: Some(Arc::new(Chunks { hashes: (0..count).map(hash).collect(), bytes: tokens * 4, ..Chunks::default() })),
                streams: true,
                ..Ask::default()
            }
        };
        let (mut rng, now) = (SmallRng::seed_from_u64(1), Instant::now());
        let mut choose = |ask: &Ask| {
            let aim = chooser.aim(ask, pool);
            let begun = Instant::now();
            let choice = chooser.choose(black_box(&aim), &Candidates::new(black_box(pool), &[], now), &mut rng);
            let took = begun.elapsed();
            // It is answered, so what it asked for is held from now on.
            if let Some(forecast) = choice.as_ref().and_then(|choice| choice.forecast.as_ref()) {
                chooser.began(forecast, Some(Duration::from_millis(10)));
            }
            took
        };
        // Until all are full.
        let mut number = 0;
        for _ in 0..replicas * 12_000 / (count / 2) {
            number += 1;
            choose(&ask(number));
        }
        let mut times: Vec<Duration> = (0..5_000)
            .map(|_| {
                number += 1;
                choose(&ask(number))
            })
            .collect();
        times.sort_unstable();
        println!("cache_aware, {tokens} tokens, {replicas} replicas: p50 {:?}, p99 {:?}", times[2_500], times[4_950]);
        let asks: Vec<Ask> = (0..1_000).map(|next| ask(number + next)).collect();
        let mut turn = asks.iter().cycle();
        group.bench_function(BenchmarkId::new(format!("{tokens} tokens"), replicas), |b| {
            b.iter_custom(|rounds| (0..rounds).filter_map(|_| turn.next()).map(&mut choose).sum());
        });
    }
}

fn calibration(c: &mut Criterion) {
    c.bench_function("calibration", |b| b.iter(calibration::work));
}

criterion_group!(benches, calibration, choice, predicted);
criterion_main!(benches);
