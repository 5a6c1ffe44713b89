//! What is remembered of prompts that never repeat: the memory of the process while it reads, places and is told of millions of them, each another, without
//! any I/O. Run: `cargo bench --bench memory [-- PROMPTS [BYTES]]`; 10 million of 8 KB take a few minutes.

#[path = "rig/fleet.rs"]
mod rig;

use std::time::{Duration, Instant};

use prefix_router::request::{self, Ask, Surface, Usage};
use prefix_router::routing::{self, Candidates, Chooser, StrategyName};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use rig::fleet;

const REPLICAS: usize = 8;

/// Resident memory in MiB.
fn resident() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok().and_then(|text| text.split(' ').nth(1)?.parse::<f64>().ok());
    pages.unwrap_or(f64::NAN) * 4_096.0 / 1_048_576.0
}

fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let (prompts, bytes) = (numbers.first().copied().unwrap_or(1_000_000), numbers.get(1).copied().unwrap_or(8_000));
    let snapshot = fleet(REPLICAS).snapshot();
    let Some(pool) = snapshot.pool(None) else { return };
    for strategy in [StrategyName::PrefixAware, StrategyName::CacheAware] {
        let chooser = Chooser::new(&routing::Settings { strategy, ..routing::Settings::default() });
        let settings = request::Settings { chunks: chooser.wants_chunks(), ..request::Settings::default() };
        let mut rng = SmallRng::seed_from_u64(1);
        println!("{}: {prompts} prompts of {bytes} bytes, MiB at each tenth:", strategy.name());
        println!("  before {:.1}", resident());
        let begun = Instant::now();
        for number in 0..prompts {
            let text = format!("{number:016}").repeat(bytes / 16);
            let body = format!(r#"{{"model":"m","stream":true,"messages":[{{"role":"user","content":"{text}"}}]}}"#);
            let ask = Ask::read(Surface::ChatCompletions, body.as_bytes(), None, &settings);
            let aim = chooser.aim(&ask, pool);
            let choice = chooser.choose(&aim, &Candidates::new(pool, &[], Instant::now()), &mut rng);
            if let Some(forecast) = choice.as_ref().and_then(|choice| choice.forecast.as_ref()) {
                let tokens = bytes as u64 / 4;
                chooser.began(forecast, Some(Duration::from_micros(tokens * 40)));
                let usage = Usage { prompt_tokens: tokens, cached_tokens: Some(0), completion_tokens: Some(20) };
                let _ = chooser.answered(forecast, &usage, Some(Duration::from_millis(400)), 1);
            }
            if (number + 1) % (prompts / 10).max(1) == 0 {
                println!("  {:>3} % {:.1}", (number + 1) * 100 / prompts, resident());
            }
        }
        println!("  {:.1} µs each", begun.elapsed().as_secs_f64() * 1e6 / prompts as f64);
    }
}
