//! The oracle: it looks into all caches, queues and batches, and goes where the first token comes soonest. No router can know that; it says how much
//! there is to be won.

use super::super::blocks::{BlockHash, BlockMap};
use super::super::chance::Chance;
use super::super::cost::Cost;
use super::super::replica::Settings;
use super::super::rule::{Asked, Engine, Moment, Pick, Rule, View};

/// The weight of what generation costs the newcomer.
const DECODE: f64 = 30.0;
/// A step that is under way counts no more than this, in seconds.
const LONGEST_REST: f64 = 0.03;

pub(super) struct Oracle {
    /// The weight of what has to be computed of the prompt itself. More than 1: the others wait for it as well.
    own: f64,
    cost: Cost,
    /// For each replica: how many requests that wait for their first token will have computed a block.
    soon: Vec<BlockMap<u32>>,
    /// For each request before its first token: what it will find, and its blocks.
    expected: Vec<(usize, Vec<BlockHash>)>,
}

impl Oracle {
    pub(super) fn new(own: f64, settings: &Settings) -> Self {
        Self { own, cost: settings.cost.clone(), soon: Vec::new(), expected: Vec::new() }
    }

    /// Blocks of a prompt that it will find when its turn comes: what is there now, and what those ahead of it compute.
    fn found(&self, asked: &Asked<'_>, replica: usize, engine: &Engine) -> usize {
        let blocks = asked.reusable();
        let there = engine.model.cached(blocks);
        let soon = &self.soon[replica];
        there + blocks[there..].iter().take_while(|block| soon.contains_key(block) || engine.model.holds(block)).count()
    }

    /// Seconds to the first token, with weights.
    fn seconds(&self, asked: &Asked<'_>, replica: usize, engine: &Engine, now: Moment) -> f64 {
        let (mut ahead, mut sequences, mut context) = (0, 0, 0);
        for one in engine.model.everybody() {
            sequences += 1;
            if one.runs {
                context += one.computed;
                // One token more is missing while one is generated; that is no prompt.
                ahead += if one.tokens - one.computed > 1 { one.tokens - one.computed } else { 0 };
            } else {
                ahead += one.tokens - self.expected[one.id as usize].0.min(one.tokens - 1);
            }
        }
        let new = asked.tokens - self.found(asked, replica, engine) * asked.block_size;
        let rest = engine.step_ends.map_or(0.0, |end| end.saturating_sub(now) as f64 * 1e-9);
        self.cost.prefill_token * (ahead as f64 + self.own * new as f64)
            + rest.min(LONGEST_REST)
            + DECODE * (self.cost.decode_sequence * f64::from(sequences) + self.cost.decode_context_token * context as f64)
    }
}

impl Rule for Oracle {
    fn choose(&mut self, asked: &Asked<'_>, view: &View<'_>, chance: &mut Chance) -> Pick {
        self.soon.resize_with(view.engines.len(), BlockMap::default);
        let replica = view.least(chance, |replica| {
            let engine = &view.engines[replica];
            if engine.is_up { self.seconds(asked, replica, engine, view.now) } else { f64::INFINITY }
        });
        let found = self.found(asked, replica, &view.engines[replica]) * asked.block_size;
        for block in asked.blocks {
            *self.soon[replica].entry(*block).or_default() += 1;
        }
        if self.expected.len() <= asked.id {
            self.expected.resize_with(asked.id + 1, Default::default);
        }
        self.expected[asked.id] = (found, asked.blocks.to_vec());
        Pick::of(replica)
    }

    fn first_token(&mut self, id: usize, replica: usize, _: usize) {
        for block in std::mem::take(&mut self.expected[id].1) {
            if let Some(count) = self.soon[replica].get_mut(&block) {
                *count -= 1;
                if *count == 0 {
                    self.soon[replica].remove(&block);
                }
            }
        }
    }
}
