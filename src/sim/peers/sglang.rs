//! SGLang's router, `cache_aware`: where the load is out of balance, to the replica with the fewest requests; else to the one whose tree holds most
//! of the prompt, if that is more than 30 % of it, else to the one with the smallest tree.

use super::super::chance::Chance;
use super::super::replica::Settings;
use super::super::rule::{Asked, Pick, Rule, View};
use super::index::Indices;

/// Out of balance is a difference above this, and
const ABSOLUTE: f64 = 64.0;
/// the most above this many times the fewest.
const RELATIVE: f64 = 1.5;
/// The share of a prompt that must be there.
const ENOUGH: f64 = 0.3;

pub(super) struct Sglang {
    trees: Indices,
}

impl Sglang {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { trees: Indices::new(settings.blocks * settings.block_size) }
    }
}

impl Rule for Sglang {
    fn choose(&mut self, asked: &Asked<'_>, view: &View<'_>, chance: &mut Chance) -> Pick {
        let loads = || view.eligible.iter().map(|&replica| view.outstanding(replica));
        let (most, fewest) = (loads().fold(0.0, f64::max), loads().fold(f64::INFINITY, f64::min));
        let pick = if most - fewest > ABSOLUTE && most > RELATIVE * fewest {
            Pick { replica: view.least(chance, |replica| view.outstanding(replica)), overflow: true }
        } else {
            let matches = view.eligible.iter().map(|&replica| (self.trees.of(replica).matched(asked), replica));
            match matches.max_by_key(|(matched, _)| *matched) {
                Some((matched, replica)) if matched as f64 > ENOUGH * asked.tokens as f64 => Pick::of(replica),
                _ => Pick::of(view.least(chance, |replica| self.trees.of(replica).len() as f64)),
            }
        };
        self.trees.of(pick.replica).insert(asked);
        pick
    }

    fn restarted(&mut self, replica: usize) {
        self.trees.of(replica).clear();
    }
}
