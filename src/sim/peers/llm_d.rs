//! llm-d on the Gateway API inference extension: the highest sum of three scores between 0 and 1: how much of the prompt was sent there before
//! (weight 3), how short the queue is among all (2), and how much of the cache is free (2). The last two are from metrics.

use super::super::chance::Chance;
use super::super::replica::Settings;
use super::super::rule::{Asked, Pick, Rule, View};
use super::index::Indices;

/// Weights of the scores.
const PREFIX: f64 = 3.0;
const QUEUE: f64 = 2.0;
const FREE: f64 = 2.0;

/// Blocks that its index holds for a server.
const INDEX_BLOCKS: usize = 31_250;

pub(super) struct LlmD {
    sent: Indices,
}

impl LlmD {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { sent: Indices::new(INDEX_BLOCKS * settings.block_size) }
    }
}

impl Rule for LlmD {
    fn choose(&mut self, asked: &Asked<'_>, view: &View<'_>, chance: &mut Chance) -> Pick {
        let queue = |replica: usize| view.seen[replica].waiting as f64;
        let queues = || view.eligible.iter().map(|&replica| queue(replica));
        let (longest, shortest) = (queues().fold(0.0, f64::max), queues().fold(f64::INFINITY, f64::min));
        let score = |replica: usize| {
            let matched = self.sent.of(replica).matched(asked) as f64 / asked.tokens as f64;
            let short = if longest > shortest { (longest - queue(replica)) / (longest - shortest) } else { 1.0 };
            PREFIX * matched + QUEUE * short + FREE * (1.0 - view.seen[replica].kv_usage)
        };
        let mut score = score;
        let replica = view.least(chance, |replica| -score(replica));
        self.sent.of(replica).insert(asked);
        Pick::of(replica)
    }

    fn restarted(&mut self, replica: usize) {
        self.sent.of(replica).clear();
    }
}
