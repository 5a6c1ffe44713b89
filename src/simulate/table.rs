//! How figures look to a reader.

use std::fmt::Write;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use super::plan::Result;
use crate::sim::figures::Figures;
use crate::sim::report::Phase;

/// A figure's name, and how it is got.
type Column = (&'static str, fn(&Figures) -> f64, fn(f64) -> String);

const COLUMNS: [Column; 13] = [
    ("p50", |figures| figures.first_token_ms.p50, ms),
    ("p90", |figures| figures.first_token_ms.p90, ms),
    ("p99", |figures| figures.first_token_ms.p99, ms),
    ("mean", |figures| figures.first_token_mean_ms, ms),
    ("end", |figures| figures.total_mean_ms, ms),
    ("ans/s", |figures| figures.requests_per_second, one),
    ("hit %", |figures| figures.hit_rate, percent),
    ("least", |figures| figures.fewest_requests, two),
    ("most", |figures| figures.most_requests, two),
    ("work", |figures| figures.most_work, two),
    ("over %", |figures| figures.overflow, percent),
    ("cold p90", |figures| figures.cold.first_token_ms.p90, ms),
    ("cold hit %", |figures| figures.cold.hit_rate, percent),
];

/// What is shown only where it is.
type Extra = (&'static str, fn(&Figures) -> Option<&Phase>);

const EXTRAS: [Extra; 3] = [
    ("p90 after +2", |figures| figures.after_scale_out.as_ref()),
    ("p90 after -1", |figures| figures.after_scale_in.as_ref()),
    ("p90 after change", |figures| figures.after_change.as_ref()),
];

/// A table for each workload.
pub(super) fn render(results: &[Result]) -> String {
    let mut text = String::new();
    for group in results.chunk_by(|one, other| one.workload == other.workload) {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "{}\n{}\n", heading(&group[0]), one_table(group));
    }
    text + NOTES
}

const NOTES: &str = "\
p50/p90 %         time to the first token against random's with the same seed, and how far the seeds deviate from that
p50, p90, p99     time to the first token in ms; mean, too; end: mean time to the answer's end. All are means over the seeds, without failed requests
ans/s             answers in a second; hit %: tokens of prompts that were found in caches
least, most       requests of a replica, mean = 1; work: the most seconds spent on prompts, mean = 1
over %            requests that went elsewhere since their home had too much to do
cold              the first fifth of all requests, which the other figures leave out, as they do what comes when no conversation begins any more
";

fn heading(first: &Result) -> String {
    let Result { workload, load, offered, replicas, routers, seeds, .. } = first;
    let offered = match (offered, load) {
        (Some(offered), Some(load)) => format!("{offered:.1} requests/s ({:.0} % of what random takes)", load * 100.0),
        _ => "closed loop".to_owned(),
    };
    let measured = seeds.first().map_or(0, |figures| figures.requests);
    let numbers = [(*replicas, "replica"), (*routers, "router"), (measured, "request"), (seeds.len(), "seed")];
    let [replicas, routers, measured, seeds] = numbers.map(|(count, what)| format!("{count} {what}{}", if count == 1 { "" } else { "s" }));
    format!("{workload}: {offered}, {replicas}, {routers}, {measured} measured, {seeds}")
}

fn one_table(group: &[Result]) -> String {
    let random = group.iter().find(|result| result.strategy == "random");
    let has_capacity = group.iter().any(|result| result.capacity.is_some());
    let extras: Vec<Extra> = EXTRAS.into_iter().filter(|(_, of)| group[0].seeds.first().is_some_and(|first| of(first).is_some())).collect();
    let mut header = vec!["".to_owned()];
    header.extend(random.map(|_| "p50/p90 %".to_owned()));
    header.extend(COLUMNS.iter().map(|column| column.0.to_owned()));
    header.extend(extras.iter().map(|extra| extra.0.to_owned()));
    header.extend(has_capacity.then(|| "req/s at p90 < 2 s".to_owned()));
    let has_failures = group.iter().any(|result| result.seeds.iter().any(|figures| figures.failed > 0));
    header.extend(has_failures.then(|| "failed".to_owned()));
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header(header);
    for result in group {
        let mut row = vec![result.strategy.clone()];
        row.extend(random.map(|random| against(result, random)));
        row.extend(COLUMNS.iter().map(|(_, of, show)| show(mean(&result.seeds, of))));
        row.extend(
            extras.iter().map(|(_, of)| ms(mean(&result.seeds, |figures| of(figures).map_or(0.0, |phase| phase.first_token_ms.p90)))),
        );
        if has_capacity {
            let factor = random.and_then(|random| result.times(random)).map(|times| format!(" x{times:.2}"));
            row.push(match result.capacity {
                Some(rate) if rate.is_finite() => format!("{rate:.1}{}", factor.unwrap_or_default()),
                _ => "not reached".to_owned(),
            });
        }
        if has_failures {
            row.push(format!("{:.1}", mean(&result.seeds, |figures| figures.failed as f64)));
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// P50 and P90 against another result's, seed by seed.
pub(super) fn against(result: &Result, base: &Result) -> String {
    let p50 = Change::of(result, base, |figures| figures.first_token_ms.p50);
    let p90 = Change::of(result, base, |figures| figures.first_token_ms.p90);
    format!("{p50}/{p90}")
}

/// By how many percent a figure is more than another's, and how far seeds deviate from that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Change {
    pub(super) mean: f64,
    pub(super) deviation: f64,
}

impl Change {
    pub(super) fn of(result: &Result, base: &Result, figure: impl Fn(&Figures) -> f64) -> Self {
        let changes: Vec<f64> =
            result.seeds.iter().zip(&base.seeds).map(|(one, other)| 100.0 * (figure(one) / figure(other).max(1e-9) - 1.0)).collect();
        let count = changes.len() as f64;
        let mean = changes.iter().sum::<f64>() / count;
        let squares: f64 = changes.iter().map(|change| (change - mean) * (change - mean)).sum();
        Self { mean, deviation: if changes.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 } }
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:+.0}", self.mean)?;
        if self.deviation >= 0.5 { write!(f, "±{:.0}", self.deviation) } else { Ok(()) }
    }
}

/// Over the seeds.
pub(super) fn mean(seeds: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
    seeds.iter().map(of).sum::<f64>() / seeds.len().max(1) as f64
}

fn ms(time: f64) -> String {
    format!("{time:.0}")
}

fn one(number: f64) -> String {
    format!("{number:.1}")
}

fn two(number: f64) -> String {
    format!("{number:.2}")
}

fn percent(share: f64) -> String {
    format!("{:.0}", share * 100.0)
}
