//! How the demo's figures look to a reader.

use std::fmt::Write;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use super::{Comparison, Measured};
use crate::app::Running;
use crate::sim::report::{COLD, Report};

/// A run in a few words, while it goes on.
pub(super) fn in_brief(report: &Report) -> String {
    format!("p50 {}, found in cache {}", ms(report.first_token_ms.p50), percent(report.hit_rate))
}

/// A figure's name, and how it is got.
type Row = (&'static str, fn(&Report) -> String);

/// The strategies side by side, with what was done above and what it means below; no wider than 80 columns.
pub(super) fn render(comparison: &Comparison) -> String {
    let rows: [Row; 14] = [
        ("First token    p50", |report| ms(report.first_token_ms.p50)),
        ("               p90", |report| ms(report.first_token_ms.p90)),
        ("               p99", |report| ms(report.first_token_ms.p99)),
        ("Whole answer   p50", |report| ms(report.total_ms.p50)),
        ("               p90", |report| ms(report.total_ms.p90)),
        ("Answers per second", |report| format!("{:.0}", report.requests_per_second)),
        ("Tokens found in cache", |report| percent(report.hit_rate)),
        ("Cold: first token p50", |report| ms(report.cold.first_token_ms.p50)),
        ("      found in cache", |report| percent(report.cold.hit_rate)),
        ("Warm: first token p50", |report| ms(report.warm.first_token_ms.p50)),
        ("      first token p90", |report| ms(report.warm.first_token_ms.p90)),
        ("      found in cache", |report| percent(report.warm.hit_rate)),
        ("Busiest, mean = 1", |report| format!("{:.2}", report.busiest)),
        ("Overflow", |report| percent(report.overflow)),
    ];
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header(std::iter::once("").chain(comparison.strategies.iter().map(|measured| measured.strategy)));
    for (name, figure) in rows {
        table.add_row(std::iter::once(name.to_owned()).chain(comparison.strategies.iter().map(|measured| figure(&measured.report))));
    }
    if comparison.failed() > 0 {
        let failed = comparison.strategies.iter().map(|measured| measured.report.failed.to_string());
        table.add_row(std::iter::once("Failed".to_owned()).chain(failed));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let table = table.trim_fmt();
    let problems: String = comparison
        .strategies
        .iter()
        .flat_map(|measured| measured.problems().into_iter().map(|problem| in_lines(&format!("{}: {problem}", measured.strategy))))
        .collect();
    format!("\n{}\n{table}\n\n{}\n{problems}{}", heading(comparison), shares(&comparison.strategies), conclusion(comparison))
}

/// Columns that a terminal has at least.
const COLUMNS: usize = 80;

/// A sentence in lines that are no wider than that, unless one of its words is.
fn in_lines(sentence: &str) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in sentence.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > COLUMNS {
            lines.push_str("\n  ");
            width = 2;
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines + "\n"
}

fn heading(comparison: &Comparison) -> String {
    let Comparison { replicas, requests, seconds, about, replica_speed, seed, prefix_length, concurrency_threshold, .. } = comparison;
    format!(
        "{replicas} simulated replicas behind a real router, on real sockets. Each is {replica_speed} times\n\
         as fast as a 70B model on eight H100, so that this is over soon.\n\
         Each strategy gets the same {requests} requests within {seconds} s (seed {seed}) and empty caches:\n\
         {about}.\n\
         prefix_length {prefix_length}, concurrency_threshold {concurrency_threshold}.\n\
         Cold: the first {:.0} % of the requests.\n",
        COLD * 100.0
    )
}

/// What each replica got, in percent.
fn shares(strategies: &[Measured]) -> String {
    let mut text = String::from(" Share of the requests per replica, in percent\n");
    for Measured { strategy, report, .. } in strategies {
        for (line, shares) in report.shares.chunks(SHARES_PER_LINE).enumerate() {
            let shares: String = shares.iter().map(|share| format!("{:6.1}", share * 100.0)).collect();
            // Writing to a text cannot fail.
            let _ = writeln!(text, "   {:17}{shares}", if line == 0 { strategy } else { "" });
        }
    }
    text
}

const SHARES_PER_LINE: usize = 8;

/// The last strategy against the first and against the best of the others. Where requests failed, those that did not prove nothing.
fn conclusion(comparison: &Comparison) -> String {
    let strategies = &comparison.strategies;
    if comparison.failed() > 0 {
        let (failed, all) = (comparison.failed(), comparison.requests * strategies.len());
        return format!("{failed} of {all} requests failed, so nothing follows from these figures.\n");
    }
    let [others @ .., last] = strategies.as_slice() else { return String::new() };
    let p50 = |measured: &&Measured| measured.report.first_token_ms.p50;
    let Some(best) = others.iter().min_by(|one, other| p50(one).total_cmp(&p50(other))) else { return String::new() };
    let mut text = format!("With {}, the median first token comes\n", last.strategy);
    let first = others.first().filter(|first| first.strategy != best.strategy);
    for other in first.into_iter().chain([best]) {
        let change = 100.0 * (1.0 - p50(&last) / p50(&other));
        let (change, word) = if change < 0.0 { (-change, "later") } else { (change, "sooner") };
        let which = if other.strategy == best.strategy { " (the best of the others)" } else { "" };
        // Writing to a text cannot fail.
        let _ = writeln!(text, "  {change:.0} % {word} than with {}{which}", other.strategy);
    }
    let computed = (1.0 - best.report.hit_rate) / (1.0 - last.report.hit_rate).max(f64::EPSILON);
    let _ = if computed >= 1.05 {
        writeln!(text, "and the replicas compute {computed:.1} times fewer prompt tokens.")
    } else {
        writeln!(text, "and the replicas compute as many prompt tokens.")
    };
    text
}

/// What `demo --serve` says.
pub(super) fn to_try(router: &Running, replicas: usize, model: &str) -> String {
    let (traffic, admin) = (router.traffic, router.admin);
    // As it was called, so that it can be called again.
    let program = std::env::args().next().unwrap_or_else(|| "prefix-router".to_owned());
    format!(
        r#"The router is at http://{traffic}, before {replicas} simulated replicas.

The live page, where requests go and why: http://{admin}/ui   (in a terminal: {program} top --url http://{admin})

Try:

  curl -i http://{traffic}/v1/chat/completions -H 'content-type: application/json' \
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Good morning"}}]}}'

  curl -N http://{traffic}/v1/chat/completions -H 'content-type: application/json' \
    -d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Good morning"}}]}}'

  curl http://{admin}/metrics

or in Python, after `pip install openai`:

from openai import OpenAI
client = OpenAI(base_url="http://{traffic}/v1", api_key="none")
messages = [{{"role": "user", "content": "Good morning"}}]
for chunk in client.chat.completions.create(model="{model}", stream=True, messages=messages):
    print(chunk.choices[0].delta.content or "", end="", flush=True)


x-prefix-router-replica and x-prefix-router-reason in an answer's head say who answered, and why. Ctrl-C ends it.
"#
    )
}

fn ms(time: f64) -> String {
    if time < 10.0 { format!("{time:.1} ms") } else { format!("{time:.0} ms") }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_broken_between_words() {
        assert_eq!(in_lines("random: all is well"), "random: all is well\n");
        let long = in_lines(&"word ".repeat(40));
        assert!(long.lines().all(|line| line.chars().count() <= COLUMNS) && long.lines().count() == 3, "{long}");
        assert_eq!(long.split_whitespace().count(), 40);
        assert_eq!(in_lines(&"x".repeat(100)), "x".repeat(100) + "\n");
    }
}
