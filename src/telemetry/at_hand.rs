//! Series at hand: to look one up by its labels takes a lock, and three times as long.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use crate::fleet::NumberHasher;

type Map<T> = HashMap<u64, T, BuildHasherDefault<NumberHasher>>;

/// Series by numbers that stand for their labels, each made when it is first used: from then on it is visible.
pub(super) struct AtHand<T> {
    made: ArcSwap<Map<T>>,
    /// Held while one is made, or some go.
    making: Mutex<()>,
}

impl<T> Default for AtHand<T> {
    fn default() -> Self {
        Self { made: ArcSwap::default(), making: Mutex::default() }
    }
}

impl<T: Clone> AtHand<T> {
    /// Does something with the series of that number.
    pub(super) fn with<R>(&self, number: u64, make: impl FnOnce() -> T, act: impl FnOnce(&T) -> R) -> R {
        if let Some(series) = self.made.load().get(&number) {
            return act(series);
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let mut made = Map::clone(&self.made.load());
        let series = made.entry(number).or_insert_with(make).clone();
        self.made.store(Arc::new(made));
        act(&series)
    }

    /// Lets those go whose numbers are not to be kept. `gone` is told of each, while none is made.
    pub(super) fn retain(&self, keep: impl Fn(u64) -> bool, mut gone: impl FnMut(u64)) {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let mut made = Map::clone(&self.made.load());
        made.retain(|&number, _| {
            let stays = keep(number);
            if !stays {
                gone(number);
            }
            stays
        });
        self.made.store(Arc::new(made));
    }
}
