//! Dynamo's router: the lowest sum, in blocks, of what has to be computed there (what waits and what this prompt adds) and of what is in use there.
//! Routers do not know of one another, so each takes what it sends for its share.

use super::super::chance::Chance;
use super::super::replica::Settings;
use super::super::rule::{Asked, Pick, Rule, View};
use super::index::Indices;

/// The weight of what has to be computed.
const OVERLAP: f64 = 1.0;

pub(super) struct Dynamo {
    sent: Indices,
    block_size: f64,
    /// For each replica: tokens that wait for their computation, and blocks in use.
    loads: Vec<(f64, f64)>,
    /// For each request in flight: its tokens that were to be computed. 0 from its first token on for the former.
    charges: Vec<(f64, f64)>,
}

impl Dynamo {
    pub(super) fn new(settings: &Settings) -> Self {
        let sent = Indices::new(settings.blocks * settings.block_size);
        Self { sent, block_size: settings.block_size as f64, loads: Vec::new(), charges: Vec::new() }
    }
}

impl Rule for Dynamo {
    fn choose(&mut self, asked: &Asked<'_>, view: &View<'_>, chance: &mut Chance) -> Pick {
        self.loads.resize(view.engines.len(), (0.0, 0.0));
        let share = view.routers as f64;
        let mut new = |replica: usize| (asked.tokens - self.sent.of(replica).matched(asked).min(asked.tokens)) as f64;
        let replica = view.least(chance, |replica| {
            let (new, (waiting, in_use)) = (new(replica), self.loads[replica]);
            OVERLAP * (waiting * share + new) / self.block_size + in_use * share + new / self.block_size
        });
        let (tokens, blocks) = (new(replica), new(replica) / self.block_size);
        self.loads[replica].0 += tokens;
        self.loads[replica].1 += blocks;
        if self.charges.len() <= asked.id {
            self.charges.resize(asked.id + 1, (0.0, 0.0));
        }
        self.charges[asked.id] = (tokens, blocks);
        self.sent.of(replica).insert(asked);
        Pick::of(replica)
    }

    fn first_token(&mut self, id: usize, replica: usize, _: usize) {
        self.loads[replica].0 -= std::mem::take(&mut self.charges[id].0);
    }

    fn ended(&mut self, id: usize, replica: usize) {
        self.loads[replica].1 -= std::mem::take(&mut self.charges[id].1);
    }

    fn restarted(&mut self, replica: usize) {
        self.sent.of(replica).clear();
    }
}
