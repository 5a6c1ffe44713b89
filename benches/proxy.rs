//! What a request costs in the router's own processor time, from the client's bytes to the replica and back. Run: `benches/run proxy`.
//!
//! Prints a line for each case: name, nanoseconds per request, and the same as a multiple of the calibration loop, which is timed around it.

#[path = "rig/calibration.rs"]
mod calibration;
mod rig;

use std::hint::black_box;
use std::time::Duration;

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use tikv_jemallocator::Jemalloc;
use tokio::runtime::Runtime;

/// The product's.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Rounds of each case, of which the middle one counts.
const ROUNDS: usize = 5;

/// Requests of a round: so many that it takes half a second or more.
const REQUESTS: u32 = 3_000;

fn main() -> Result<()> {
    let runtime = rig::runtime()?;
    let mut rig = rig::Rig::start(&runtime)?;
    for case in rig::cases() {
        rig.ask_times(&case, REQUESTS / 5)?;
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let unit = calibrate();
            let before = processor_time(&runtime)?;
            rig.ask_times(&case, REQUESTS)?;
            let request = (processor_time(&runtime)? - before) / REQUESTS;
            let unit = (unit + calibrate()) / 2;
            rounds.push((request.as_secs_f64() / unit.as_secs_f64(), request));
        }
        rounds.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (ratio, request) = rounds[ROUNDS / 2];
        println!("{}\t{}\t{ratio:.4}", case.name, request.as_nanos());
    }
    Ok(())
}

/// The processor time of the calibration loop.
fn calibrate() -> Duration {
    const TIMES: u32 = 200;
    let before = own_processor_time();
    for _ in 0..TIMES {
        black_box(calibration::work());
    }
    (own_processor_time() - before) / TIMES
}

/// The processor time that the router has used so far.
fn processor_time(runtime: &Runtime) -> Result<Duration> {
    Ok(runtime.block_on(runtime.spawn(async { own_processor_time() }))?)
}

/// The processor time of the calling thread.
fn own_processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let parts = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    let (Ok(seconds), Ok(nanoseconds)) = parts else { return Duration::ZERO };
    Duration::new(seconds, nanoseconds)
}
