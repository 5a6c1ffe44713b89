//! `simulate`: strategies against modelled replicas on virtual time, many runs side by side.
//!
//! Everything that decides a figure is in [`sim`](crate::sim); here are files, threads, progress and tables.

mod files;
mod jobs;
mod plan;
mod suite;
mod table;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::sim::strategy::{Strategy, names};
use crate::sim::workload::{MODIFIERS, NAMES, Starts, Workload};
use plan::{Cell, Plan};

/// What is to be simulated.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kinds of traffic.
    pub workloads: Vec<Workload>,
    /// The rules.
    pub strategies: Vec<Strategy>,
    /// What is offered, as a share of what the fleet takes under `random`.
    pub load: f64,
    /// Replicas; at least 1.
    pub replicas: usize,
    /// Routers; at least 1.
    pub routers: usize,
    /// Each run once for each of the seeds 1 to this.
    pub seeds: u64,
    /// Requests of a run; `None`: as usual for the workload.
    pub requests: Option<usize>,
    /// How old metrics may get; `None`: as each rule wants it.
    pub metrics_age: Option<Duration>,
    /// Whether throughput at the objective is searched for.
    pub capacity: bool,
    /// Where traces are.
    pub traces: PathBuf,
    /// Prepared conversations in place of those that `chat` is fitted to.
    pub sharegpt: Option<PathBuf>,
}

impl Options {
    /// Requests of a run.
    fn requests_of(&self, workload: &Workload) -> usize {
        self.requests.unwrap_or_else(|| workload.usual_requests(self.replicas))
    }
}

/// Percentiles of fewer requests say little.
const FEW: usize = 1_000;

/// How figures are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// A table for each workload.
    Table,
    /// JSON.
    Json,
    /// The tables of docs/placement.md.
    Suite,
}

/// The strategies of these names.
pub fn strategies(names: &[String]) -> Result<Vec<Strategy>, String> {
    names.iter().map(|name| Strategy::parse(name.trim())).collect()
}

/// What may be simulated, for `--help`.
pub fn strategy_help() -> String {
    format!("Strategies, with commas between: {}", names())
}

/// The same of workloads.
pub fn workload_help() -> String {
    let list = |names: &[(&str, &str)]| names.iter().map(|(name, about)| format!("{name}: {about}")).collect::<Vec<_>>().join("; ");
    format!("Workloads, with commas between. {}. Each with any of {}", list(&NAMES), list(&MODIFIERS))
}

/// Adds to every workload what is asked for all of them; or says why it cannot be.
pub fn modified(mut workloads: Vec<Workload>, bursty: bool, elastic: bool) -> Result<Vec<Workload>, String> {
    for workload in &mut workloads {
        if bursty {
            workload.starts = Starts::Bursty;
        }
        workload.elastic |= elastic;
        if let Some(problem) = workload.problem() {
            return Err(problem);
        }
    }
    Ok(workloads)
}

/// Simulates, with progress on stderr, and prints the figures on stdout.
pub fn run(options: &Options, show: Show) -> Result<()> {
    let mut tell = |text: &str| {
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot print the result")
    };
    if show == Show::Suite {
        return suite::run(options, &mut tell);
    }
    let results = Plan::new(options)?.run(&cells(options))?;
    warn_of_few(&results, options)?;
    tell(&if show == Show::Json { serde_json::to_string_pretty(&results)? + "\n" } else { table::render(&results) })
}

/// Says which workloads were over too soon to be looked at.
fn warn_of_few(results: &[plan::Result], options: &Options) -> Result<()> {
    for group in results.chunk_by(|one, other| one.workload == other.workload) {
        let measured = group.iter().flat_map(|result| &result.seeds).map(|figures| figures.requests).min().unwrap_or(0);
        let workload = options.workloads.iter().find(|workload| workload.to_string() == group[0].workload);
        let all = workload.map_or(0, |workload| options.requests_of(workload));
        if measured < FEW || measured * 3 < all {
            let name = &group[0].workload;
            writeln!(
                std::io::stderr(),
                "warning: {name}: of {all} requests no more than {measured} are measured, since conversations outlast the run; more --requests say more"
            )?;
        }
    }
    Ok(())
}

fn cells(options: &Options) -> Vec<Cell> {
    let of = |workload: &Workload| {
        let workload = workload.clone();
        options.strategies.iter().map(move |strategy| Cell {
            workload: workload.clone(),
            strategy: strategy.clone(),
            load: options.load,
            replicas: options.replicas,
            routers: options.routers,
            capacity: options.capacity,
        })
    };
    options.workloads.iter().flat_map(of).collect()
}
