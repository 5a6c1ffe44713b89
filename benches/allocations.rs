//! What a request allocates, end to end, and what reading its key does. Run: `benches/run allocations`.
//!
//! Prints a line for each case: name, allocations per request, bytes per request. A `realloc` counts as an allocation of its new size. The counter takes
//! a mutex and a backtrace each time, so nothing is timed here.

mod rig;

use std::hint::black_box;

use anyhow::Result;
use dhat::{Alloc, HeapStats, Profiler};
use prefix_router::request::{Ask, Settings, Surface};

#[global_allocator]
static ALLOCATOR: Alloc = Alloc;

/// Requests of a round, and rounds. The least counts, as on a busy machine more pieces of a stream come together, in larger buffers.
const REQUESTS: u32 = 200;
const ROUNDS: usize = 5;

fn main() -> Result<()> {
    // Only counts: in testing mode no file is written at the end.
    let _profiler = Profiler::builder().testing().build();
    let runtime = rig::runtime()?;
    let mut rig = rig::Rig::start(&runtime)?;
    for case in rig::cases() {
        // Connections are made, buffers and pools have their size.
        rig.ask_times(&case, REQUESTS)?;
        tell(case.name, || rig.ask_times(&case, REQUESTS))?;
    }
    drop(rig);
    drop(runtime);
    let settings = Settings::default();
    for (name, size) in [("key-32k", 32 << 10), ("key-1m", 1 << 20)] {
        let body = rig::chat(size, true);
        tell(name, || {
            for _ in 0..REQUESTS {
                black_box(Ask::read(Surface::ChatCompletions, black_box(body.as_bytes()), None, &settings));
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Measures and prints what a round of requests allocates, by requests.
fn tell(name: &str, mut round: impl FnMut() -> Result<()>) -> Result<()> {
    let (mut count, mut bytes) = (u64::MAX, u64::MAX);
    for _ in 0..ROUNDS {
        let before = HeapStats::get();
        round()?;
        let after = HeapStats::get();
        count = count.min(after.total_blocks - before.total_blocks);
        bytes = bytes.min(after.total_bytes - before.total_bytes);
    }
    let per_request = |total: u64| total as f64 / f64::from(REQUESTS);
    println!("{name}\t{:.2}\t{:.0}", per_request(count), per_request(bytes));
    Ok(())
}
