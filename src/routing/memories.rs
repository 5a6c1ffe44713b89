//! The memories of all pools, within one bound: each pool's begins when the first request asks for it, grows as its traffic needs, and goes when
//! others need the room and nobody has asked for it in a long time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use super::memory::{Look, Memory};
use super::sight::{Seen, Sight};
use crate::fleet::{Pool, PoolName};
use crate::request::Boundary;

/// Pools that are remembered, at most. A fleet that lists more models goes on with those that are asked for.
const MOST_POOLS: usize = 1_024;

/// Entries of all pools together, at most, but for the first few of each: 6 MB, eight tables of the largest size.
const MOST_ENTRIES: usize = 8 * super::table::MOST_ENTRIES;

/// A pool that was not asked for during so many requests to others may have left the fleet: the next one that needs its room has it.
const IDLE: u64 = 100_000;

/// What is remembered, by pool.
#[derive(Debug, Default)]
pub(super) struct Memories {
    pools: RwLock<HashMap<PoolName, Kept>>,
    /// Requests with a key to all pools.
    requests: AtomicU64,
}

#[derive(Debug)]
struct Kept {
    memory: Mutex<Memory>,
    /// When it was last asked for, in requests to all pools.
    asked: AtomicU64,
}

impl Memories {
    /// Takes note of a request to `pool`: what it is placed by. `None` where it has no boundary.
    pub(super) fn look(&self, boundaries: &[Boundary], pool: &Pool) -> Option<Sight> {
        let now = self.requests.fetch_add(1, Ordering::Relaxed);
        let look = |memory: &mut Memory| memory.look(boundaries, pool.members().len());
        let Look { boundary, known, reuse, at, moved, is_crowded } = match self.with(pool.name(), now, look) {
            Some(look) => look,
            None => {
                self.begin(pool.name(), now);
                self.with(pool.name(), now, look).flatten()
            }
        }?;
        if is_crowded {
            self.grow(pool.name(), now);
        }
        let seen = known.map_or(Seen::Never { at, reuse }, Seen::Before);
        Some(Sight { key: boundary.key, depth: Some(boundary.depth), moved, seen })
    }

    /// Keeps in mind where a key went that was first seen `at` that time.
    pub(super) fn remember(&self, pool: &PoolName, key: u64, at: u32, home: u32) {
        let pools = self.pools.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = pools.get(pool) {
            kept.memory.lock().unwrap_or_else(PoisonError::into_inner).remember(key, at, home);
        }
    }

    /// How many of a pool's keys are known, of late; `None` where it was not asked for.
    pub(super) fn reuse(&self, pool: &PoolName) -> Option<f64> {
        let pools = self.pools.read().unwrap_or_else(PoisonError::into_inner);
        pools.get(pool)?.memory.lock().unwrap_or_else(PoisonError::into_inner).reuse()
    }

    /// A poisoned lock holds counts that are still sound.
    fn with<T>(&self, pool: &PoolName, now: u64, act: impl FnOnce(&mut Memory) -> T) -> Option<T> {
        let pools = self.pools.read().unwrap_or_else(PoisonError::into_inner);
        let kept = pools.get(pool)?;
        kept.asked.store(now, Ordering::Relaxed);
        Some(act(&mut kept.memory.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn begin(&self, pool: &PoolName, now: u64) {
        let mut pools = self.pools.write().unwrap_or_else(PoisonError::into_inner);
        if pools.len() >= MOST_POOLS && !pools.contains_key(pool) {
            let longest = pools.iter().min_by_key(|(_, kept)| kept.asked.load(Ordering::Relaxed)).map(|(name, _)| name.clone());
            longest.map(|name| pools.remove(&name));
        }
        pools.entry(pool.clone()).or_insert_with(|| Kept { memory: Mutex::new(Memory::new()), asked: AtomicU64::new(now) });
    }

    /// Gives a pool twice the room, where that is within the bound; else what others no longer need.
    fn grow(&self, pool: &PoolName, now: u64) {
        let mut pools = self.pools.write().unwrap_or_else(PoisonError::into_inner);
        let entries = |pools: &mut HashMap<PoolName, Kept>| pools.values_mut().map(|kept| kept.memory().capacity()).sum::<usize>();
        let Some(own) = pools.get_mut(pool).map(|kept| kept.memory().capacity()) else { return };
        let mut fits = entries(&mut pools) + own <= MOST_ENTRIES;
        if !fits {
            pools.retain(|name, kept| name == pool || now.saturating_sub(kept.asked.load(Ordering::Relaxed)) < IDLE);
            fits = entries(&mut pools) + own <= MOST_ENTRIES;
        }
        // Somebody else may have been faster, and have made it larger than was asked for.
        let is_largest = own >= super::table::MOST_ENTRIES;
        if let Some(kept) = pools.get_mut(pool) {
            if fits && !is_largest { kept.memory().grow() } else { kept.memory().stay() }
        }
    }
}

impl Kept {
    fn memory(&mut self) -> &mut Memory {
        self.memory.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}
