//! Work spread over all cores, with a bar that shows how far it is.

use std::io::{IsTerminal, Write};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use indicatif::{ProgressBar, ProgressStyle};

/// Does `work` for each of `jobs`, as many at a time as there are cores; what came of them, in their order. `name` says what is being done.
pub(super) fn spread<J: Sync, R: Send>(name: &str, jobs: &[J], work: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let bar = bar(name, jobs.len());
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(jobs.len())));
    let one = || {
        while let Some((number, job)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|number| Some((number, jobs.get(number)?))) {
            let result = work(job);
            // Nothing panics while it holds this lock.
            results.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
            bar.inc(1);
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(jobs.len());
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(one))));
    bar.finish_and_clear();
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

fn bar(name: &str, jobs: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        let _ = writeln!(std::io::stderr(), "{name}: {jobs} runs");
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(jobs as u64);
    if let Ok(style) = ProgressStyle::with_template("{prefix:12} {bar:30} {pos:>5}/{len}  {elapsed} of about {duration}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(std::time::Duration::from_millis(250));
    bar.with_prefix(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        let jobs: Vec<u64> = (0..500).collect();
        assert_eq!(spread("squares", &jobs, |job| job * job), jobs.iter().map(|job| job * job).collect::<Vec<_>>());
        assert_eq!(spread("nothing", &[] as &[u64], |job| *job), [] as [u64; 0]);
    }
}
