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

const REQUESTS: u32 = 500;

fn main() -> Result<()> {
    // Only counts: in testing mode no file is written at the end.
    let _profiler = Profiler::builder().testing().build();
    let runtime = rig::runtime()?;
    let mut rig = rig::Rig::start(&runtime)?;
    for case in rig::cases() {
        // Connections are made, buffers and pools have their size.
        rig.ask_times(&case, REQUESTS / 5)?;
        let before = HeapStats::get();
        rig.ask_times(&case, REQUESTS)?;
        tell(case.name, &before);
    }
    drop(rig);
    drop(runtime);
    let settings = Settings::default();
    for (name, size) in [("key-32k", 32 << 10), ("key-1m", 1 << 20)] {
        let body = rig::chat(size, true);
        let before = HeapStats::get();
        for _ in 0..REQUESTS {
            black_box(Ask::read(Surface::ChatCompletions, black_box(body.as_bytes()), None, &settings));
        }
        tell(name, &before);
    }
    Ok(())
}

fn tell(name: &str, before: &HeapStats) {
    let after = HeapStats::get();
    let per_request = |before: u64, after: u64| (after - before) as f64 / f64::from(REQUESTS);
    let (count, bytes) = (per_request(before.total_blocks, after.total_blocks), per_request(before.total_bytes, after.total_bytes));
    println!("{name}\t{count:.2}\t{bytes:.0}");
}
