//! `GET /api/v1/overview`: is it working, and what is it worth?

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::answer;
use super::decisions::unix;
use super::recent::telling;
use crate::admin::Admin;
use crate::routing::Reason;
use crate::telemetry::{CLASSES, Totals};

#[derive(Debug, PartialEq, Serialize)]
struct Savings {
    source: Option<&'static str>,
    prompt_tokens: u64,
    cached_tokens: u64,
    share: Option<f64>,
    telling: Option<f64>,
    text: String,
}

/// `GET /api/v1/overview`.
pub(in super::super) async fn overview(State(admin): State<Admin>) -> Response {
    let (now, clock) = (std::time::Instant::now(), unix(std::time::SystemTime::now()));
    let view = admin.fleet.view();
    let in_flight: u64 = view.replicas().iter().map(|replica| replica.outstanding()).sum();
    let totals = admin.metrics.totals();
    let reasons: Vec<&str> = Reason::ALL.iter().map(|reason| reason.label()).chain(["none"]).collect();
    let named = |names: &[&str], counts: &[u64]| -> Map<String, Value> {
        names.iter().zip(counts).map(|(name, count)| ((*name).to_owned(), json!(count))).collect()
    };
    let flow = admin.metrics.flow();
    let (queued, queued_bytes) = admin.metrics.queue();
    let engines = view.replicas().iter().filter_map(|replica| {
        let latest = admin.readings.get(replica.incarnation())?;
        latest.reading.prefix_queries.zip(latest.reading.prefix_hits)
    });
    let engines = engines.fold((0, 0), |(queries, hits), one| (queries + one.0, hits + one.1));
    let telling = telling(admin.metrics.decisions());
    let members = view.replicas().len();
    let since_start = |at: std::time::Instant| clock - now.saturating_duration_since(at).as_secs_f64();
    answer(
        StatusCode::OK,
        &json!({
            "version": env!("CARGO_PKG_VERSION"),
            "started": since_start(admin.started),
            "now": clock,
            "strategy": admin.proxy.rules().chooser.name().name(),
            "draining": *admin.draining.borrow(),
            "counted": admin.metrics.is_on(),
            "requests": {
                "total": totals.by_reason.iter().sum::<u64>(),
                "in_flight": in_flight,
                "by_reason": named(&reasons, &totals.by_reason),
                "by_status": named(&CLASSES, &totals.by_status),
            },
            "queue": {"requests": queued, "bytes": queued_bytes},
            "flow": {
                "step_seconds": flow.step.as_secs(),
                "end": flow.end.map_or(clock, since_start),
                "reasons": reasons,
                "counts": flow.steps,
            },
            "savings": savings(&totals, telling, engines, members, admin.metrics.is_on()),
        }),
    )
}

/// What was saved, and how sure that is: what answers said of themselves, where they did; else what engines count.
fn savings(totals: &Totals, telling: Option<f64>, (queries, hits): (u64, u64), replicas: usize, counted: bool) -> Savings {
    let share = |cached: u64, all: u64| (all > 0).then(|| cached as f64 / all as f64);
    // A token that is found would on average have been found by chance on one of so many replicas as well, and more often where many ask for it.
    let at_most = |cached: u64| cached - cached / replicas.max(1) as u64;
    let doubt = |cached: u64| {
        format!(
            "Scattered over {replicas} replicas some would have been found by chance as well, one in {replicas} at least, so this router saved at most {} \
             tokens; how many exactly only a comparison tells (an hour of strategy: random).",
            grouped(at_most(cached))
        )
    };
    let (source, prompt, cached) = match (totals.prompt_tokens, totals.cached_tokens) {
        (prompt, cached) if cached > 0 => (Some("usage"), prompt, cached),
        _ if queries > 0 => (Some("engines"), queries, hits),
        (prompt, _) if counted && telling.is_some_and(|telling| telling > 0.0) => (Some("usage"), prompt, 0),
        _ => (None, 0, 0),
    };
    let percent = share(cached, prompt).unwrap_or_default() * 100.0;
    let found = format!("{} of {} tokens of prompts ({percent:.0} %)", grouped(cached), grouped(prompt));
    let text = match source {
        Some("usage") => {
            let telling = telling.unwrap_or_default() * 100.0;
            format!(
                "{found} were found in a cache and not computed, by what answers say; {telling:.0} % of the \
                 last ones say it. {}",
                doubt(cached)
            )
        }
        Some(_) => format!(
            "{found} were found in a cache and not computed, by what the engines count since their start, \
             for all who use them. {}",
            doubt(cached)
        ),
        None if !counted => {
            "What answers say is not added up, as metrics are off (metrics: false), and no engine says what it found in its cache."
                .to_owned()
        }
        None => "Nobody says what was found in a cache. vLLM tells in each answer with --enable-prompt-tokens-details (streams: with \
                 stream_options.include_usage), and in its metrics."
            .to_owned(),
    };
    let telling = telling.filter(|_| source == Some("usage"));
    Savings { source, prompt_tokens: prompt, cached_tokens: cached, share: share(cached, prompt), telling, text }
}

/// 1234567 is 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = (0..digits.len()).rev().step_by(3).map(|end| &digits[end.saturating_sub(2)..=end]).collect();
    groups.into_iter().rev().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(prompt: u64, cached: u64, telling: Option<f64>, engines: (u64, u64)) -> Savings {
        savings(&Totals { prompt_tokens: prompt, cached_tokens: cached, ..Totals::default() }, telling, engines, 4, true)
    }

    #[test]
    fn digits_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345, "12,345"), (123_456, "123,456"), (1_234_567, "1,234,567")]
        {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn what_answers_say_counts_then_what_engines_count() {
        let by_usage = said(1_000, 800, Some(0.5), (10, 1));
        assert_eq!((by_usage.source, by_usage.share, by_usage.telling), (Some("usage"), Some(0.8), Some(0.5)));
        assert!(
            by_usage.text.contains("800 of 1,000") && by_usage.text.contains("at most 600") && by_usage.text.contains("50 %"),
            "{by_usage:?}"
        );
        let by_engines = said(1_000, 0, Some(0.0), (100, 25));
        assert_eq!((by_engines.source, by_engines.cached_tokens, by_engines.telling), (Some("engines"), 25, None));
        let nothing_found = said(1_000, 0, Some(1.0), (0, 0));
        assert_eq!((nothing_found.source, nothing_found.share), (Some("usage"), Some(0.0)));
        let off = savings(&Totals::default(), Some(1.0), (0, 0), 4, false);
        assert!(off.source.is_none() && off.text.contains("metrics: false"), "{off:?}");
        let nobody = said(0, 0, None, (0, 0));
        assert!(nobody.source.is_none() && nobody.share.is_none() && nobody.text.contains("--enable-prompt-tokens-details"), "{nobody:?}");
    }
}
