//! `/metrics` as vLLM has it: every family, label and bucket of `metrics.txt`, which is recorded from vLLM, with the values that this engine
//! has. What it does not have stays 0.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::sim::replica::{Counts, Settings};

/// Families and samples, without values.
const TEMPLATE: &str = include_str!("metrics.txt");

/// What has been counted.
#[derive(Debug)]
pub(super) struct Metrics {
    /// The template, with this replica's labels.
    template: String,
    started: f64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    prompt_tokens: u64,
    cached_tokens: u64,
    generated_tokens: u64,
    stopped: u64,
    too_long: u64,
    aborted: u64,
    histograms: BTreeMap<String, Histogram>,
}

#[derive(Debug, Default)]
struct Histogram {
    bounds: Vec<f64>,
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

/// How a request went, when it has got all of its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finished {
    /// It ended by itself.
    pub(super) complete: bool,
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: usize,
    pub(super) output_tokens: usize,
    /// What the client allowed.
    pub(super) max_tokens: usize,
    /// How many answers it wanted.
    pub(super) answers: usize,
    pub(super) queued: Duration,
    pub(super) prefill: Duration,
    pub(super) decode: Duration,
}

impl Metrics {
    /// Nothing counted yet.
    pub(super) fn new(model: &str, engine: &Settings) -> Self {
        let tokens = (engine.blocks - 1) * engine.block_size;
        let template = TEMPLATE
            .replace("\"MODEL\"", &format!("\"{}\"", escaped(model)))
            .replace("BLOCK_SIZE", &engine.block_size.to_string())
            .replace("CACHE_TOKENS", &tokens.to_string())
            .replace("CACHE_BLOCKS", &engine.blocks.to_string())
            .replace("CONCURRENCY", &number(tokens as f64 / engine.max_model_len as f64));
        let mut histograms: BTreeMap<String, Histogram> = BTreeMap::new();
        for line in template.lines().filter(|line| !line.starts_with('#')) {
            if let Some((family, le)) = bucket(line) {
                let histogram = histograms.entry(family.to_owned()).or_default();
                histogram.bounds.push(le);
                histogram.counts.push(0);
            }
        }
        let state = Mutex::new(State { histograms, ..State::default() });
        Self { template, started: now(), state }
    }

    /// A step computes so many tokens.
    pub(super) fn step(&self, tokens: usize) {
        self.state().observe("vllm:iteration_tokens_total", tokens as f64);
    }

    /// A request's prompt is computed, `after` it came.
    pub(super) fn first_token(&self, prompt: usize, cached: usize, after: Duration) {
        let mut state = self.state();
        state.prompt_tokens += prompt as u64;
        state.cached_tokens += cached as u64;
        state.observe("vllm:time_to_first_token_seconds", after.as_secs_f64());
    }

    /// A request has one more token; `since` the one before, if there was one.
    pub(super) fn token(&self, since: Option<Duration>) {
        let mut state = self.state();
        state.generated_tokens += 1;
        if let Some(since) = since {
            state.observe("vllm:inter_token_latency_seconds", since.as_secs_f64());
        }
    }

    /// A request was taken out.
    pub(super) fn aborted(&self) {
        self.state().aborted += 1;
    }

    /// A request has all of its answer.
    pub(super) fn finished(&self, request: &Finished) {
        let mut state = self.state();
        *(if request.complete { &mut state.stopped } else { &mut state.too_long }) += 1;
        let tokens = |tokens: usize| tokens as f64;
        let inference = request.prefill + request.decode;
        let between = request.output_tokens.saturating_sub(1);
        for (family, value) in [
            ("request_prompt_tokens", tokens(request.prompt_tokens)),
            ("request_generation_tokens", tokens(request.output_tokens)),
            ("request_max_num_generation_tokens", tokens(request.output_tokens)),
            ("request_params_n", tokens(request.answers)),
            ("request_params_max_tokens", tokens(request.max_tokens)),
            ("request_num_preemptions", 0.0),
            ("request_prefill_kv_computed_tokens", tokens(request.prompt_tokens - request.cached_tokens)),
            ("request_time_per_output_token_seconds", request.decode.as_secs_f64() / tokens(between.max(1))),
            ("e2e_request_latency_seconds", (request.queued + inference).as_secs_f64()),
            ("request_queue_time_seconds", request.queued.as_secs_f64()),
            ("request_inference_time_seconds", inference.as_secs_f64()),
            ("request_prefill_time_seconds", request.prefill.as_secs_f64()),
            ("request_decode_time_seconds", request.decode.as_secs_f64()),
        ] {
            state.observe(&format!("vllm:{family}"), value);
        }
    }

    /// The page.
    pub(super) fn render(&self, engine: &Counts) -> String {
        let state = self.state();
        let mut page = String::with_capacity(self.template.len() * 5 / 4);
        for line in self.template.lines() {
            page.push_str(line);
            if !line.starts_with('#') {
                let value = if line.contains("_created{") { self.started } else { state.value(line, engine) };
                // Writing to a text cannot fail.
                let _ = write!(page, " {}", number(value));
            }
            page.push('\n');
        }
        page
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The share of the cache that running requests hold.
pub(super) fn cache_usage(engine: &Counts) -> f64 {
    engine.blocks_held as f64 / engine.blocks.max(1) as f64
}

impl State {
    fn observe(&mut self, family: &str, value: f64) {
        let Some(histogram) = self.histograms.get_mut(family) else { return };
        histogram.count += 1;
        histogram.sum += value;
        for (bound, count) in histogram.bounds.iter().zip(&mut histogram.counts) {
            *count += u64::from(value <= *bound);
        }
    }

    /// The value of a sample, a line of the template.
    fn value(&self, line: &str, engine: &Counts) -> f64 {
        if let Some((family, le)) = bucket(line) {
            let histogram = self.histograms.get(family);
            let at = histogram.and_then(|histogram| histogram.bounds.iter().position(|bound| *bound == le));
            return at.and_then(|at| histogram?.counts.get(at).copied()).unwrap_or(0) as f64;
        }
        let name = line.split('{').next().unwrap_or_default();
        if let Some(histogram) = name.strip_suffix("_sum").and_then(|family| self.histograms.get(family)) {
            return histogram.sum;
        }
        if let Some(histogram) = name.strip_suffix("_count").and_then(|family| self.histograms.get(family)) {
            return histogram.count as f64;
        }
        let labelled = |label: &str| line.contains(&format!("=\"{label}\""));
        let computed = self.prompt_tokens - self.cached_tokens;
        match name {
            "vllm:cache_config_info" => 1.0,
            "vllm:kv_cache_usage_perc" => cache_usage(engine),
            "vllm:num_requests_running" => engine.running as f64,
            "vllm:num_requests_waiting" => engine.waiting as f64,
            "vllm:num_requests_waiting_by_reason" if labelled("capacity") => engine.waiting as f64,
            "vllm:engine_sleep_state" if labelled("awake") => 1.0,
            "vllm:prefix_cache_queries_total" => engine.queried_tokens as f64,
            "vllm:prefix_cache_hits_total" => engine.hit_tokens as f64,
            "vllm:num_preemptions_total" => engine.preemptions as f64,
            "vllm:prompt_tokens_total" => self.prompt_tokens as f64,
            "vllm:prompt_tokens_by_source_total" if labelled("local_compute") => computed as f64,
            "vllm:prompt_tokens_by_source_total" if labelled("local_cache_hit") => self.cached_tokens as f64,
            "vllm:prompt_tokens_cached_total" => self.cached_tokens as f64,
            "vllm:prompt_tokens_cached_by_source_total" if labelled("device") => self.cached_tokens as f64,
            "vllm:generation_tokens_total" => self.generated_tokens as f64,
            "vllm:request_success_total" if labelled("stop") => self.stopped as f64,
            "vllm:request_success_total" if labelled("length") => self.too_long as f64,
            "vllm:request_success_total" if labelled("abort") => self.aborted as f64,
            _ => 0.0,
        }
    }
}

/// The family of a bucket's line, and its bound.
fn bucket(line: &str) -> Option<(&str, f64)> {
    let (name, labels) = line.split_once('{')?;
    let family = name.strip_suffix("_bucket")?;
    let le = labels.split("le=\"").nth(1)?.split('"').next()?;
    Some((family, if le == "+Inf" { f64::INFINITY } else { le.parse().ok()? }))
}

/// As Python's Prometheus client writes numbers.
fn number(value: f64) -> String {
    let plain = format!("{value:?}");
    match plain.find('.') {
        Some(point) if value > 0.0 && point > 6 && !plain.contains('e') => {
            let digits = format!("{}.{}{}", &plain[..1], &plain[1..point], &plain[point + 1..]);
            format!("{}e+{:02}", digits.trim_end_matches('0').trim_end_matches('.'), point - 1)
        }
        _ => plain,
    }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Reading;

    #[test]
    fn numbers_look_like_pythons() {
        for (value, text) in [
            (0.0, "0.0"),
            (157.0, "157.0"),
            (23_416.0, "23416.0"),
            (0.5, "0.5"),
            (1_234_567.0, "1.234567e+06"),
            (1_795_974_538.746_648_6, "1.7959745387466486e+09"),
            (20_000_000.0, "2e+07"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn the_page_reads_as_an_engines() {
        let settings = Settings::default();
        let counts =
            Counts { running: 3, waiting: 2, blocks: 10, blocks_held: 5, queried_tokens: 100, hit_tokens: 64, ..Counts::default() };
        let page = Metrics::new("a \"model\"", &settings).render(&counts);
        let expected = Reading {
            running: Some(3),
            waiting: Some(2),
            kv_usage: Some(0.5),
            prefix_queries: Some(100),
            prefix_hits: Some(64),
            block_size: Some(settings.block_size as u64),
            blocks: Some(settings.blocks as u64),
            prefix_caching: Some(true),
            started: None,
        };
        assert_eq!(Reading::parse(page.as_bytes()), expected);
    }

    #[test]
    fn what_happened_is_on_the_page() {
        let metrics = Metrics::new("a \"model\"", &Settings::default());
        metrics.step(100);
        metrics.first_token(100, 64, Duration::from_millis(30));
        metrics.token(None);
        metrics.token(Some(Duration::from_millis(20)));
        metrics.aborted();
        metrics.finished(&Finished {
            complete: true,
            prompt_tokens: 100,
            cached_tokens: 64,
            output_tokens: 2,
            max_tokens: 5,
            answers: 1,
            queued: Duration::ZERO,
            prefill: Duration::from_millis(30),
            decode: Duration::from_millis(20),
        });
        let page = metrics.render(&Counts { running: 3, blocks: 10, blocks_held: 5, ..Counts::default() });
        let has = |line: &str| assert!(page.lines().any(|known| known == line), "no {line} in\n{page}");
        has(r#"vllm:num_requests_running{engine="0",model_name="a \"model\""} 3.0"#);
        has(r#"vllm:kv_cache_usage_perc{engine="0",model_name="a \"model\""} 0.5"#);
        has(r#"vllm:prompt_tokens_by_source_total{engine="0",model_name="a \"model\"",source="local_compute"} 36.0"#);
        has(r#"vllm:request_success_total{engine="0",finished_reason="abort",model_name="a \"model\""} 1.0"#);
        has(r#"vllm:request_success_total{engine="0",finished_reason="length",model_name="a \"model\""} 0.0"#);
        has(r#"vllm:time_to_first_token_seconds_bucket{engine="0",le="0.04",model_name="a \"model\""} 1.0"#);
        has(r#"vllm:time_to_first_token_seconds_bucket{engine="0",le="0.02",model_name="a \"model\""} 0.0"#);
        has(r#"vllm:iteration_tokens_total_sum{engine="0",model_name="a \"model\""} 100.0"#);
        has(r#"vllm:inter_token_latency_seconds_count{engine="0",model_name="a \"model\""} 1.0"#);
        assert!(page.contains("num_gpu_blocks=\"75000\"") && page.contains("kv_cache_size_tokens=\"1199984\""));
        assert!(page.lines().all(|line| line.starts_with('#') || line.starts_with("vllm:") && line.contains("} ")));
    }
}
