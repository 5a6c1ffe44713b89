//! Which runs there are to make for which figures, and their making.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Result as Fallible, anyhow, ensure};
use serde::Serialize;

use super::{Options, files, jobs};
use crate::sim::capacity::capacity;
use crate::sim::figures::Figures;
use crate::sim::replica::Settings;
use crate::sim::run::run;
use crate::sim::scenario::{Failure, Scenario};
use crate::sim::strategy::Strategy;
use crate::sim::workload::{Files, Starts, Traffic, Workload};

/// One strategy on one workload, in one fleet.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) workload: Workload,
    pub(super) strategy: Strategy,
    pub(super) load: f64,
    pub(super) replicas: usize,
    pub(super) routers: usize,
    /// Whether to search for its throughput at the objective.
    pub(super) capacity: bool,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Result {
    pub(super) workload: String,
    pub(super) strategy: String,
    /// As a share of what the fleet takes under `random`; `None` in a closed loop.
    pub(super) load: Option<f64>,
    /// The same in requests in a second.
    pub(super) offered: Option<f64>,
    pub(super) replicas: usize,
    pub(super) routers: usize,
    /// Requests in a second at which nine of ten first tokens come within two seconds, with the first seed; infinite (in JSON null) where the requests
    /// were over before that.
    pub(super) capacity: Option<f64>,
    /// For each seed, from 1 on.
    pub(super) seeds: Vec<Figures>,
}

impl Result {
    /// How many times another's throughput its own is, where both were searched for and found.
    pub(super) fn times(&self, base: &Self) -> Option<f64> {
        self.capacity.zip(base.capacity).map(|(own, base)| own / base).filter(|times| times.is_finite())
    }
}

/// The traffic of all runs, made once.
pub(super) struct Plan {
    traffic: HashMap<(String, u64), Traffic>,
    seeds: u64,
    metrics_age: Option<std::time::Duration>,
    /// What the core takes for the beginning.
    epoch: Instant,
    /// What fleets take under `random`, by workload and replicas.
    random: HashMap<(String, usize), f64>,
}

impl Plan {
    /// Makes the traffic of all workloads.
    pub(super) fn new(options: &Options) -> Fallible<Self> {
        let files: Files = files::read(options)?;
        let all = options.workloads.iter().flat_map(|workload| (1..=options.seeds).map(move |seed| (workload.clone(), seed)));
        let mut wanted: Vec<(Workload, u64)> = all.collect();
        // What loads are a share of.
        for plain in options.workloads.iter().map(Workload::plain) {
            if !wanted.iter().any(|(workload, seed)| *workload == plain && *seed == 1) {
                wanted.push((plain, 1));
            }
        }
        let made = jobs::spread("traffic", &wanted, |(workload, seed)| {
            let seed = *seed;
            workload.traffic(options.requests_of(workload), seed, &files).map(|traffic| ((workload.to_string(), seed), traffic))
        });
        let traffic = made.into_iter().collect::<std::result::Result<_, _>>().map_err(|error| anyhow!(error))?;
        Ok(Self { traffic, seeds: options.seeds, metrics_age: options.metrics_age, epoch: Instant::now(), random: HashMap::new() })
    }

    /// Makes all runs, and the searches that they need first.
    pub(super) fn run(&mut self, cells: &[Cell]) -> Fallible<Vec<Result>> {
        self.search_random(cells)?;
        let searched: Vec<&Cell> = cells.iter().filter(|cell| cell.capacity && !cell.is_closed()).collect();
        let found = jobs::spread("capacities", &searched, |cell| capacity(&self.scenario(cell, 1), self.traffic(cell, 1), self.epoch));
        let mut found = found.into_iter();
        let wanted: Vec<(&Cell, u64)> = cells.iter().flat_map(|cell| (1..=self.seeds).map(move |seed| (cell, seed))).collect();
        let figures = jobs::spread("runs", &wanted, |&(cell, seed)| {
            let run = run(&self.scenario(cell, seed), self.traffic(cell, seed), self.epoch);
            (run.left == 0).then(|| Figures::of(&run))
        });
        let mut figures = figures.into_iter();
        cells
            .iter()
            .map(|cell| {
                let seeds: Option<Vec<Figures>> = figures.by_ref().take(self.seeds as usize).collect();
                Ok(Result {
                    workload: cell.workload.to_string(),
                    strategy: cell.strategy.name.clone(),
                    load: (!cell.is_closed()).then_some(cell.load),
                    offered: (!cell.is_closed()).then(|| self.offered(cell)),
                    replicas: cell.replicas,
                    routers: cell.routers,
                    capacity: (cell.capacity && !cell.is_closed()).then(|| found.next()).flatten(),
                    seeds: seeds
                        .ok_or_else(|| anyhow!("{} on {}: requests are counted that are over", cell.strategy.name, cell.workload))?,
                })
            })
            .collect()
    }

    /// What the fleets take under `random`, as far as it is not known yet.
    fn search_random(&mut self, cells: &[Cell]) -> Fallible<()> {
        let random = Strategy::parse("random").map_err(|error| anyhow!(error))?;
        let mut wanted: Vec<Cell> = Vec::new();
        for cell in cells.iter().filter(|cell| !cell.is_closed()) {
            // What modifies a workload is no part of what its load is a share of.
            let known = |other: &Cell| other.key() == cell.key();
            if !self.random.contains_key(&cell.key()) && !wanted.iter().any(known) {
                wanted.push(Cell { workload: cell.workload.plain(), strategy: random.clone(), routers: 1, ..cell.clone() });
            }
        }
        let found = jobs::spread("what random takes", &wanted, |cell| capacity(&self.scenario(cell, 1), self.traffic(cell, 1), self.epoch));
        for (cell, rate) in wanted.iter().zip(found) {
            ensure!(rate > 0.0, "{}: no rate is low enough", cell.workload);
            let requests = self.traffic(cell, 1).requests();
            ensure!(
                rate.is_finite(),
                "{}: {requests} requests are over before {} replicas have too much to do, so there is no load to be a share of; more --requests, or \
                 fewer --replicas",
                cell.workload,
                cell.replicas
            );
            self.random.insert(cell.key(), rate);
        }
        Ok(())
    }

    fn offered(&self, cell: &Cell) -> f64 {
        self.random.get(&cell.key()).map_or(0.0, |rate| rate * cell.load)
    }

    /// The traffic of a cell; it was made by `new`.
    fn traffic(&self, cell: &Cell, seed: u64) -> &Traffic {
        &self.traffic[&(cell.workload.to_string(), seed)]
    }

    fn scenario(&self, cell: &Cell, seed: u64) -> Scenario {
        let failure = Failure { replica: 1.min(cell.replicas - 1), at: 0.5, lasts: std::time::Duration::from_secs(60) };
        Scenario {
            strategy: cell.strategy.clone(),
            replicas: cell.replicas,
            routers: cell.routers,
            engine: engine(),
            rate: self.offered(cell),
            elastic: cell.workload.elastic,
            failure: cell.workload.failure.then_some(failure),
            metrics_age: self.metrics_age,
            seed,
            give_up: None,
        }
    }
}

/// The engines: as by default, and their longest request is the longest that fits.
fn engine() -> Settings {
    let engine = Settings::default();
    Settings { max_model_len: (engine.blocks - 1) * engine.block_size, ..engine }
}

impl Cell {
    fn key(&self) -> (String, usize) {
        (self.workload.base_name(), self.replicas)
    }

    fn is_closed(&self) -> bool {
        matches!(self.workload.starts, Starts::Closed(_))
    }
}
