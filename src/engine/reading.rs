//! What one page of metrics says of an engine: vLLM's names, those that it had before, and llama.cpp's.

use std::ops::RangeInclusive;

use super::exposition::{Sample, samples};

/// The greatest number up to which a page can tell every whole one from the next.
const MOST: f64 = (1_u64 << 53) as f64;

/// What an engine says of itself; `None` where it says nothing. Where one server runs several engines (data-parallel ranks), counts are theirs together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Requests that it works on.
    pub running: Option<u64>,
    /// Requests that wait for that.
    pub waiting: Option<u64>,
    /// The share of the KV cache that is in use, 0 to 1; the mean of several engines.
    pub kv_usage: Option<f64>,
    /// Tokens of prompts that were looked up in the prefix cache, since it started.
    pub prefix_queries: Option<u64>,
    /// Tokens of them that were found there.
    pub prefix_hits: Option<u64>,
    /// Tokens in a block of the cache. `None` as well where several engines differ in it.
    pub block_size: Option<u64>,
    /// Blocks that the cache has.
    pub blocks: Option<u64>,
    /// Whether prefixes are cached at all; by every engine.
    pub prefix_caching: Option<bool>,
    /// When the process started, in seconds since the epoch.
    pub started: Option<f64>,
}

impl Reading {
    /// What `page` says. Of each figure the first name that it has counts, as vLLM shows old names beside new ones; a line that is wrong, or whose value
    /// cannot be, does not.
    pub fn parse(page: &[u8]) -> Self {
        let counts = 0.0..=MOST;
        let mut running = Figure::new(&["vllm:num_requests_running", "llamacpp:requests_processing"], counts.clone());
        let mut waiting = Figure::new(&["vllm:num_requests_waiting", "llamacpp:requests_deferred"], counts.clone());
        let usage = &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "llamacpp:kv_cache_usage_ratio"];
        let mut usage = Figure::new(usage, 0.0..=1.0);
        let mut queries = Figure::new(&["vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"], counts.clone());
        let mut hits = Figure::new(&["vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"], counts);
        let mut cache = Cache::default();
        let mut started: Option<f64> = None;
        for sample in samples(page) {
            match sample.name {
                "vllm:cache_config_info" => cache.add(&sample),
                "process_start_time_seconds" if sample.value.is_finite() => started = Some(sample.value),
                _ => [&mut running, &mut waiting, &mut usage, &mut queries, &mut hits].into_iter().for_each(|figure| figure.add(&sample)),
            }
        }
        Self {
            running: running.sum(),
            waiting: waiting.sum(),
            kv_usage: usage.mean(),
            prefix_queries: queries.sum(),
            prefix_hits: hits.sum(),
            block_size: cache.block_size.filter(|_| !cache.is_mixed),
            blocks: cache.blocks,
            prefix_caching: cache.prefix_caching,
            started,
        }
    }

    /// Tokens that fit into the cache.
    pub fn capacity(&self) -> Option<u64> {
        self.block_size?.checked_mul(self.blocks?)
    }

    /// Whether it says nothing of an engine. When a process started any page may say.
    pub fn is_empty(&self) -> bool {
        *self == Self { started: self.started, ..Self::default() }
    }
}

/// One figure, and the names that it goes by.
struct Figure {
    /// The best first.
    names: &'static [&'static str],
    /// Values that it can have.
    allowed: RangeInclusive<f64>,
    /// Of each name: the sum of its values, and how many there were.
    found: [(f64, u32); 3],
}

impl Figure {
    fn new(names: &'static [&'static str], allowed: RangeInclusive<f64>) -> Self {
        Self { names, allowed, found: Default::default() }
    }

    fn add(&mut self, sample: &Sample<'_>) {
        if !self.allowed.contains(&sample.value) {
            return;
        }
        for (name, (sum, count)) in self.names.iter().zip(&mut self.found) {
            if *name == sample.name {
                *sum += sample.value;
                *count += 1;
            }
        }
    }

    fn best(&self) -> Option<(f64, u32)> {
        self.found.iter().find(|(_, count)| *count > 0).copied()
    }

    fn sum(&self) -> Option<u64> {
        self.best().map(|(sum, _)| sum.round() as u64)
    }

    fn mean(&self) -> Option<f64> {
        self.best().map(|(sum, count)| sum / f64::from(count))
    }
}

/// How caches are set up, out of labels.
#[derive(Default)]
struct Cache {
    block_size: Option<u64>,
    /// Whether engines differ in that.
    is_mixed: bool,
    blocks: Option<u64>,
    prefix_caching: Option<bool>,
}

impl Cache {
    fn add(&mut self, sample: &Sample<'_>) {
        let number = |name| sample.label(name).and_then(|text| text.parse().ok()).filter(|&number: &u64| number > 0);
        if let Some(size) = number("block_size") {
            self.is_mixed |= self.block_size.is_some_and(|known| known != size);
            self.block_size = Some(size);
        }
        if let Some(blocks) = number("num_gpu_blocks") {
            self.blocks = Some(self.blocks.unwrap_or(0).saturating_add(blocks));
        }
        let caching = match sample.label("enable_prefix_caching") {
            Some("True" | "true") => true,
            Some("False" | "false") => false,
            _ => return,
        };
        self.prefix_caching = Some(caching && self.prefix_caching.unwrap_or(true));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A page as an engine sent it.
    macro_rules! recorded {
        ($name:literal) => {
            include_bytes!(concat!("../../tests/fixtures/engines/", $name)).as_slice()
        };
    }

    #[test]
    fn pages_of_vllm() {
        let idle = Reading {
            running: Some(0),
            waiting: Some(0),
            kv_usage: Some(0.0),
            prefix_queries: Some(0),
            prefix_hits: Some(0),
            block_size: Some(128),
            blocks: Some(182),
            prefix_caching: Some(true),
            started: Some(1_795_974_444.08),
        };
        assert_eq!(Reading::parse(recorded!("vllm/metrics-idle.txt")), idle);
        assert_eq!(idle.capacity(), Some(23_296));
        let later = Reading { prefix_queries: Some(23_416), prefix_hits: Some(14_592), ..idle };
        assert_eq!(Reading::parse(recorded!("vllm/metrics-after-requests.txt")), later);
        let loaded = Reading {
            running: Some(3),
            waiting: Some(7),
            kv_usage: Some(0.322884012539185),
            prefix_queries: Some(118_716),
            prefix_hits: Some(82_816),
            block_size: Some(32),
            blocks: Some(320),
            prefix_caching: Some(true),
            started: Some(1_795_976_672.84),
        };
        assert_eq!(Reading::parse(recorded!("vllm/metrics-under-load.txt")), loaded);
    }

    #[test]
    fn pages_of_llama_cpp() {
        let idle = Reading { running: Some(0), waiting: Some(0), ..Reading::default() };
        assert_eq!(Reading::parse(recorded!("llama-cpp/metrics-idle.txt")), idle);
        assert_eq!(Reading::parse(recorded!("llama-cpp/metrics-after-requests.txt")), idle);
        assert_eq!(Reading::parse(recorded!("llama-cpp/metrics-under-load.txt")), Reading { running: Some(1), ..idle });
        let usage = Reading::parse(b"llamacpp:kv_cache_usage_ratio 0.25\n");
        assert_eq!(usage, Reading { kv_usage: Some(0.25), ..Reading::default() });
    }

    #[test]
    fn a_page_means_the_same_in_any_order_and_with_other_line_ends() {
        let page = std::str::from_utf8(recorded!("vllm/metrics-under-load.txt")).expect("text");
        let expected = Reading::parse(page.as_bytes());
        let backwards: String = page.lines().rev().map(|line| format!("{line}\r\n")).collect();
        assert_eq!(Reading::parse(backwards.as_bytes()), expected);
        assert_eq!(Reading::parse(format!("{page}# EOF").as_bytes()), expected);
    }

    #[test]
    fn engines_of_one_server_count_together() {
        let page = "vllm:num_requests_running{engine=\"0\"} 3.0\nvllm:num_requests_running{engine=\"1\"} 4.0\n\
            vllm:num_requests_waiting{engine=\"0\"} 1.0\nvllm:num_requests_waiting{engine=\"1\"} NaN\n\
            vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n\
            vllm:prefix_cache_queries_total{engine=\"0\"} 1e3\nvllm:prefix_cache_queries_total{engine=\"1\"} 24\n\
            vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks=\"100\"} 1.0\n\
            vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"False\",engine=\"1\",num_gpu_blocks=\"50\"} 1.0\n";
        let reading = Reading::parse(page.as_bytes());
        let expected = Reading {
            running: Some(7),
            waiting: Some(1),
            kv_usage: Some(0.5),
            prefix_queries: Some(1_024),
            block_size: Some(16),
            blocks: Some(150),
            prefix_caching: Some(false),
            ..Reading::default()
        };
        assert_eq!((&reading, reading.capacity()), (&expected, Some(2_400)));
        let mixed = Reading::parse(page.replacen("block_size=\"16\"", "block_size=\"32\"", 1).as_bytes());
        assert_eq!((mixed.block_size, mixed.blocks, mixed.capacity()), (None, Some(150), None));
    }

    #[test]
    fn old_names_count_where_there_is_no_new_one() {
        let old = "vllm:gpu_prefix_cache_queries_total 10\nvllm:gpu_prefix_cache_hits_total 5\nvllm:gpu_cache_usage_perc 0.5\n";
        let reading = Reading::parse(old.as_bytes());
        assert_eq!((reading.prefix_queries, reading.prefix_hits, reading.kv_usage), (Some(10), Some(5), Some(0.5)));
        let new = "vllm:prefix_cache_queries_total 11\nvllm:prefix_cache_hits_total 6\nvllm:kv_cache_usage_perc 0.25\n";
        for page in [format!("{old}{new}"), format!("{new}{old}")] {
            let reading = Reading::parse(page.as_bytes());
            assert_eq!((reading.prefix_queries, reading.prefix_hits, reading.kv_usage), (Some(11), Some(6), Some(0.25)));
        }
    }

    #[test]
    fn values_that_cannot_be_are_none() {
        for value in ["-1", "NaN", "+Inf", "-Inf", "1e300", "2x", ""] {
            let page =
                format!("vllm:num_requests_running {value}\nvllm:kv_cache_usage_perc {value}\nvllm:prefix_cache_hits_total {value}\n");
            assert_eq!(Reading::parse(page.as_bytes()), Reading::default(), "{value}");
        }
        assert_eq!(Reading::parse(b"vllm:kv_cache_usage_perc 1.5\n"), Reading::default());
        for labels in
            ["block_size=\"None\",num_gpu_blocks=\"None\",enable_prefix_caching=\"None\"", "block_size=\"0\",num_gpu_blocks=\"-1\"", ""]
        {
            assert_eq!(Reading::parse(format!("vllm:cache_config_info{{{labels}}} 1\n").as_bytes()), Reading::default(), "{labels}");
        }
        let huge = format!("vllm:cache_config_info{{block_size=\"{0}\",num_gpu_blocks=\"{0}\"}} 1\n", u64::MAX);
        assert_eq!(Reading::parse(huge.repeat(2).as_bytes()).capacity(), None);
    }

    #[test]
    fn a_page_of_somebody_else_says_nothing() {
        let foreign: &[u8] = b"process_start_time_seconds 1e9\ngo_goroutines 7\n";
        assert!(Reading::parse(foreign).is_empty() && Reading::parse(b"<html>no</html>\n").is_empty());
        assert!(!Reading::parse(b"llamacpp:requests_processing 0\n").is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_page_panics(page in proptest::collection::vec(any::<u8>(), 0..500)) {
            Reading::parse(&page);
        }

        #[test]
        fn garbage_between_lines_changes_nothing(
            (running, waiting, hits) in (0u64..1_000, 0u64..1_000, 0u64..1 << 50),
            usage in 0.0..=1.0,
            // Bytes that are no end of a line; and what is nearly a line.
            garbage in proptest::collection::vec(
                prop_oneof![
                    proptest::collection::vec(any::<u8>().prop_filter("an end", |&byte| byte != b'\n'), 0..40),
                    "(vllm:num_requests_running|vllm:prefix_cache_hits_total)(\\{[a-z=\",\\\\]{0,12})?( [a-z-]{1,5})?".prop_map(String::into_bytes),
                ],
                5,
            ),
        ) {
            let lines = [
                format!("vllm:num_requests_running{{engine=\"0\"}} {running}"),
                format!("vllm:num_requests_waiting{{engine=\"0\"}} {waiting}.0"),
                format!("vllm:prefix_cache_hits_total{{engine=\"0\"}} {hits:e} 1795974538746"),
                format!("vllm:kv_cache_usage_perc{{engine=\"0\"}} {usage}"),
            ];
            let mut page = Vec::new();
            for (line, garbage) in lines.iter().zip(&garbage) {
                page.extend([garbage.as_slice(), b"\n", line.as_bytes(), b"\n"].concat());
            }
            page.extend(&garbage[4]);
            let reading = Reading::parse(&page);
            let found = (reading.running, reading.waiting, reading.prefix_hits, reading.kv_usage);
            prop_assert_eq!(found, (Some(running), Some(waiting), Some(hits), Some(usage)));
        }

        #[test]
        fn a_page_that_is_cut_off_says_what_its_whole_lines_say(at in 0usize..100_000) {
            let page = recorded!("vllm/metrics-under-load.txt");
            let cut = &page[..at % page.len()];
            let whole = cut.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
            prop_assert_eq!(Reading::parse(cut), Reading::parse(&cut[..whole]));
        }
    }
}
