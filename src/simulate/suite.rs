//! The tables of docs/placement.md: all workloads, all rules, other sizes of the fleet, several routers.

use std::fmt::Write;

use anyhow::{Result as Fallible, anyhow};

use super::plan::{Cell, Plan, Result};
use super::table::{Change, against, mean};
use super::{Options, strategies};
use crate::sim::figures::Figures;
use crate::sim::strategy::Strategy;
use crate::sim::workload::Workload;

/// What the figures are relative to.
const BASE: &str = "random";
/// What they are about.
const OWN: &str = "prefix_aware";

const WORKLOADS: [&str; 10] = ["aws:5.5", "pool", "zipf", "chat", "hot", "mixed", "agentic", "mooncake", "mooncake:synthetic", "unique"];
const STRATEGIES: [&str; 13] = [
    BASE,
    "least_outstanding",
    "prefix_aware:4096/10",
    "prefix_aware:4096/64",
    "bounded_load",
    "sglang",
    "llm-d",
    "dynamo",
    OWN,
    "prefix_aware:alone",
    "cache_aware",
    "oracle",
    "oracle:2",
];
/// Those of other sizes and numbers, which say enough.
const FEW: [&str; 5] = [BASE, "least_outstanding", OWN, "cache_aware", "oracle:2"];

const LOAD: f64 = 0.75;
const REPLICAS: usize = 7;
/// Sizes of other fleets.
const SIZES: [usize; 3] = [2, 3, 16];
/// Of traffic that comes and goes, at a load that leaves room for it.
const RESTLESS: [&str; 4] = ["mixed+bursty", "pool+elastic", "pool+change", "pool+failure"];
const RESTLESS_LOAD: f64 = 0.6;
/// Mean first tokens of several routers are averaged over these.
const SHARED: [&str; 5] = ["aws:5.5", "pool", "chat", "agentic", "mixed"];
const ROUTERS: usize = 4;
/// With so many routers each has seen enough, before the measured part begins, to know that nothing repeats.
const UNIQUE_ROUTERS: [usize; 3] = [1, 4, 16];
const UNIQUE_REQUESTS: usize = 60_000;
/// Agents that are at work for minutes: only in a long run are as many at work at one time as its rate says.
const LONG: &str = "agentic";
const LONG_REQUESTS: usize = 150_000;
/// Without those that hold requests back: at the rates that a search tries, all that wait are looked through at each step.
const LONG_STRATEGIES: [&str; 5] = [BASE, "least_outstanding", OWN, "cache_aware:at_once", "oracle:2"];
/// Traffic at a rate at which `random` is far behind.
const HEAVY: [&str; 1] = ["mooncake"];
const OVERLOAD: f64 = 1.85;

/// Makes all runs. Each table in Markdown is told as soon as it is there: all together they take a while.
pub(super) fn run(options: &Options, tell: &mut dyn FnMut(&str) -> Fallible<()>) -> Fallible<()> {
    let parse = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        strategies(&names).map_err(|error| anyhow!(error))
    };
    let (all, few, at_once) = (parse(&STRATEGIES)?, parse(&FEW)?, parse(&LONG_STRATEGIES)?);
    let workloads: Vec<Workload> = workloads(&WORKLOADS)?;
    let restless: Vec<Workload> = self::workloads(&RESTLESS)?;
    let unique: Vec<Workload> = self::workloads(&["unique"])?;
    let long: Vec<Workload> = self::workloads(&[LONG])?;
    let heavy: Vec<Workload> = self::workloads(&HEAVY)?;
    let shared: Vec<Workload> = self::workloads(&SHARED)?;
    let options = Options { workloads: [workloads.clone(), restless.clone()].concat(), ..options.clone() };
    let mut plan = Plan::new(&options)?;
    let mut make =
        |workloads: &[Workload], strategies: &[Strategy], change: &dyn Fn(Cell) -> Cell| plan.run(&cells(workloads, strategies, change));
    let main = make(&workloads, &all, &|cell| Cell { capacity: cell.workload != long[0], ..cell })?;
    tell(&format!(
        "### All workloads\n\n{REPLICAS} replicas, one router, {:.0} % of what `random` takes. Time to the first token, p50/p90, in % against `random` with \
         the same seed (mean over {} seeds ± deviation); × is the throughput at p90 < 2 s against `random`'s, first seed.\n\n{}",
        LOAD * 100.0,
        options.seeds,
        matrix(&main, &absolute, &|result, base| against(result, base) + &times(result, base)),
    ))?;
    let spread = |result: &Result| {
        let of = |figure: fn(&Figures) -> f64| mean(&result.seeds, figure);
        let (work, overflow, hit) = (of(|figures| figures.most_work), of(|figures| figures.overflow), of(|figures| figures.hit_rate));
        format!("{work:.2}, {:.0} %, {:.0} %", overflow * 100.0, hit * 100.0)
    };
    let spread = matrix(&main, &spread, &|result, _| spread(result));
    tell(&format!(
        "\n### How the load is spread\n\nThe most seconds spent on prompts (mean = 1), share of overflow, tokens found in caches.\n\n{spread}"
    ))?;
    let four = make(&shared, &all, &|cell| Cell { routers: ROUTERS, ..cell })?;
    let means = averaged(&four);
    tell(&format!("\n### {ROUTERS} routers that share nothing\n\nMean time to the first token, `random` = 1.00.\n\n{means}"))?;
    let results = make(&heavy, &all, &|cell| Cell { load: OVERLOAD, ..cell })?;
    tell(&format!(
        "\n### Far too much for `random`\n\nAt {:.0} % of what `random` takes.\n\n{}",
        OVERLOAD * 100.0,
        matrix(&results, &absolute, &against)
    ))?;
    for replicas in SIZES {
        let mut plan = Plan::new(&Options { workloads: workloads.clone(), replicas, ..options.clone() })?;
        let results = plan.run(&cells(&workloads, &few, &|cell| Cell { replicas, ..cell }))?;
        let table = matrix(&results, &absolute, &|result, base| {
            let p99 = Change::of(result, base, |figures| figures.first_token_ms.p99);
            format!("{}/{p99}; {:.2}", against(result, base), mean(&result.seeds, |figures| figures.most_work))
        });
        tell(&format!("\n### {replicas} replicas\n\np50/p90/p99 in % against `random`; the most work (mean = 1).\n\n{table}"))?;
    }
    let results = make(&restless, &all, &|cell| Cell { load: RESTLESS_LOAD, ..cell })?;
    tell(&format!(
        "\n### Bursts and changes\n\nAt {:.0} % of what `random` takes; p50/p90 in % against it, then p90 in ms in the minute after.\n\n{}",
        RESTLESS_LOAD * 100.0,
        matrix(&results, &absolute, &|result, base| against(result, base) + &afterwards(result))
    ))?;
    let mut plan = Plan::new(&Options { workloads: unique.clone(), requests: Some(UNIQUE_REQUESTS), ..options.clone() })?;
    for routers in UNIQUE_ROUTERS {
        let results = plan.run(&cells(&unique, &few, &|cell| Cell { routers, ..cell }))?;
        let plural = if routers == 1 { "" } else { "s" };
        let table = matrix(&results, &absolute, &against);
        tell(&format!("\n### Prompts that never repeat, {routers} router{plural}\n\n{UNIQUE_REQUESTS} requests.\n\n{table}"))?;
    }
    let mut plan = Plan::new(&Options { workloads: long.clone(), requests: Some(LONG_REQUESTS), seeds: 1, ..options })?;
    let results = plan.run(&cells(&long, &at_once, &|cell| Cell { capacity: true, ..cell }))?;
    let table = matrix(&results, &rate, &|result, base| rate(result) + &times(result, base));
    tell(&format!("\n### Throughput in a long run\n\nRequests in a second at p90 < 2 s; {LONG_REQUESTS} requests, first seed.\n\n{table}"))
}

/// One strategy after the other on one workload after the other, as the main table has them but for what `change` changes.
fn cells(workloads: &[Workload], strategies: &[Strategy], change: &dyn Fn(Cell) -> Cell) -> Vec<Cell> {
    let pairs = workloads.iter().flat_map(|workload| strategies.iter().map(move |strategy| (workload.clone(), strategy.clone())));
    pairs
        .map(|(workload, strategy)| change(Cell { workload, strategy, load: LOAD, replicas: REPLICAS, routers: 1, capacity: false }))
        .collect()
}

fn workloads(names: &[&str]) -> Fallible<Vec<Workload>> {
    names.iter().map(|name| name.parse().map_err(|error: String| anyhow!(error))).collect()
}

/// How many times `random`'s throughput a result's is, where the run is long enough to tell.
fn times(result: &Result, base: &Result) -> String {
    result.times(base).map_or_else(String::new, |times| format!(", ×{times:.1}"))
}

fn rate(result: &Result) -> String {
    format!("{:.0}/s", result.capacity.unwrap_or(0.0))
}

/// A row for each strategy, a column for each workload, and in each cell what `show` says of a result and of that of `random`, which itself is shown by
/// `show_base`.
fn matrix(results: &[Result], show_base: &dyn Fn(&Result) -> String, show: &dyn Fn(&Result, &Result) -> String) -> String {
    let columns: Vec<&[Result]> = results.chunk_by(|one, other| one.workload == other.workload).collect();
    let mut text = head(columns.iter().map(|column| column[0].workload.as_str()));
    for row in 0..columns.first().map_or(0, |column| column.len()) {
        let _ = write!(text, "| {} |", columns[0][row].strategy);
        for column in &columns {
            let base = column.iter().find(|result| result.strategy == BASE).unwrap_or(&column[0]);
            let _ = write!(text, " {} |", if row == 0 { show_base(base) } else { show(&column[row], base) });
        }
        text.push('\n');
    }
    text
}

/// The beginning of a table whose first column holds strategies.
fn head<'a>(columns: impl Iterator<Item = &'a str>) -> String {
    let (mut names, mut line) = (String::from("| |"), String::from("|---|"));
    for column in columns {
        // Writing to a text cannot fail.
        let _ = write!(names, " {column} |");
        line += "---|";
    }
    format!("{names}\n{line}\n")
}

fn absolute(base: &Result) -> String {
    let of = |figure: fn(&Figures) -> f64| mean(&base.seeds, figure);
    let (p50, p90) = (of(|figures| figures.first_token_ms.p50), of(|figures| figures.first_token_ms.p90));
    format!("{p50:.0}/{p90:.0} ms at {:.1}/s{}", base.offered.unwrap_or(0.0), afterwards(base))
}

/// P90 in the minutes after what happened.
fn afterwards(result: &Result) -> String {
    let phases = [
        |figures: &Figures| figures.after_scale_out.clone(),
        |figures: &Figures| figures.after_scale_in.clone(),
        |figures: &Figures| figures.after_change.clone(),
    ];
    let there = phases.into_iter().filter(|of| result.seeds.first().is_some_and(|first| of(first).is_some()));
    let p90 = there.map(|of| format!("; {:.0}", mean(&result.seeds, |figures| of(figures).map_or(0.0, |phase| phase.first_token_ms.p90))));
    p90.collect()
}

/// For each strategy the mean first token on each workload, relative to that of `random`, and the mean of these.
fn averaged(results: &[Result]) -> String {
    let columns: Vec<&[Result]> = results.chunk_by(|one, other| one.workload == other.workload).collect();
    let mut text = head(columns.iter().map(|column| column[0].workload.as_str()).chain(["mean"]));
    for row in 0..columns.first().map_or(0, |column| column.len()) {
        let _ = write!(text, "| {} |", columns[0][row].strategy);
        let ratios: Vec<f64> = columns
            .iter()
            .map(|column| {
                let base = column.iter().find(|result| result.strategy == BASE).unwrap_or(&column[0]);
                1.0 + Change::of(&column[row], base, |figures| figures.first_token_mean_ms).mean / 100.0
            })
            .collect();
        for ratio in &ratios {
            let _ = write!(text, " {ratio:.2} |");
        }
        let _ = writeln!(text, " {:.2} |", ratios.iter().sum::<f64>() / ratios.len().max(1) as f64);
    }
    text
}
