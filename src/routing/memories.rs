//! The memories of all pools, within one bound: each pool's begins when the first request asks for it, grows as its traffic needs, and goes when
//! others need the room and nobody has asked for it in a long time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use super::memory::{Crowded, Look, Memory};
use super::sight::{Fit, Seen, Sight};
use super::{Aim, HotKey, Peek, Step, table};
use crate::fleet::{Pool, PoolName};
use crate::request::Boundary;
use crate::units::{OrAuto, PrefixLength};

/// Pools that are remembered, at most. A fleet that lists more models goes on with those that are asked for.
const MOST_POOLS: usize = 1_024;

/// Entries of all pools together, at most, but for the first few of each: 6 MB, eight tables of the largest size.
const MOST_ENTRIES: usize = 8 * table::MOST_ENTRIES;

/// A pool that was not asked for during so many requests to others may have left the fleet: the next one that needs its room has it.
const IDLE: u64 = 100_000;

/// What is remembered, by pool.
#[derive(Debug, Default)]
pub(super) struct Memories {
    pools: RwLock<HashMap<PoolName, Kept>>,
    /// Requests with a key to all pools.
    requests: AtomicU64,
    /// Whether the prefix has a fixed length.
    is_fixed: bool,
}

/// What a prompt's key is.
#[derive(Debug)]
pub(super) enum Keys {
    /// As much of the prompt as its pool's traffic decides.
    Automatic(Memories),
    /// As much as a fixed length leaves. What is remembered then places nothing, so that routers that share nothing agree on all homes: it shows how
    /// well the length fits, where anybody wants to know.
    Fixed(Option<Memories>),
}

impl Keys {
    pub(super) fn new(prefix_length: OrAuto<PrefixLength>, studies: bool) -> Self {
        match prefix_length {
            OrAuto::Auto => Self::Automatic(Memories::default()),
            OrAuto::Fixed(_) => Self::Fixed(studies.then(|| Memories { is_fixed: true, ..Memories::default() })),
        }
    }

    /// What a prompt with these boundaries is placed by. It is counted. `None` where it has no boundary.
    pub(super) fn look(&self, boundaries: &[Boundary], pool: &Pool) -> Option<Sight> {
        match self {
            Self::Automatic(memories) => memories.look(boundaries, pool),
            Self::Fixed(study) => {
                let fit = study.as_ref().and_then(|memories| memories.study(boundaries, pool));
                Some(Sight { fit, ..boundaries.first()?.key.into() })
            }
        }
    }

    /// What [`Self::look`] would come to. It changes nothing.
    pub(super) fn peek(&self, boundaries: &[Boundary], pool: &Pool) -> Peek {
        let members = pool.members().len();
        let glance = self.memories().and_then(|memories| memories.peek(pool.name(), |memory| memory.peek(boundaries, members)));
        let steps = boundaries.iter().enumerate().map(|(index, &boundary)| {
            let seen = glance.as_ref().and_then(|glance| glance.steps.get(index));
            Step {
                boundary,
                share: seen.map(|seen| seen.0),
                limit: glance.as_ref().map(|glance| glance.limit),
                is_hot: seen.is_some_and(|seen| seen.1),
            }
        });
        let steps: Vec<Step> = steps.collect();
        let is_known = self.memories().map(|_| glance.as_ref().is_some_and(|glance| glance.known.is_some()));
        let (chosen, sight) = match (self, &glance) {
            (Self::Automatic(_), Some(glance)) => {
                let seen = glance.known.map_or(Seen::Never { at: 0, reuse: glance.reuse }, Seen::Before);
                let hot = glance.end.checked_sub(1).map_or(0, |last| boundaries[last].depth);
                (glance.end, boundaries.get(glance.end).map(|end| Sight { hot, seen, ..end.key.into() }))
            }
            // Without a memory nothing is hot, and nothing known.
            (Self::Automatic(_), None) => {
                (0, boundaries.first().map(|first| Sight { seen: Seen::Never { at: 0, reuse: None }, ..first.key.into() }))
            }
            (Self::Fixed(_), _) => (0, boundaries.first().map(|first| first.key.into())),
        };
        let depth = matches!(self, Self::Automatic(_)).then(|| boundaries.get(chosen).map(|end| end.depth)).flatten();
        Peek { aim: sight.map_or(Aim::NoKey, |sight| Aim::ByKey(Sight { depth, ..sight })), steps, chosen, is_known }
    }

    /// A pool's most frequent keys, at most so many.
    pub(super) fn hot_keys(&self, pool: &Pool, most: usize) -> Vec<HotKey> {
        let top = self.memories().and_then(|memories| memories.peek(pool.name(), |memory| Some(memory.hot_keys(most))));
        let is_automatic = matches!(self, Self::Automatic(_));
        let home = |key, tag: Option<u32>| {
            let remembered = tag.filter(|&tag| is_automatic && tag > 0).and_then(|tag| pool.ring().tagged(tag));
            pool.members().get(remembered.or_else(|| pool.ring().home(key))?).cloned()
        };
        top.into_iter().flatten().map(|(key, share, tag)| HotKey { key, share, home: home(key, tag) }).collect()
    }

    /// Whether [`Self::look`] would go no further than to `boundary`. It changes nothing.
    pub(super) fn is_enough(&self, boundary: &Boundary, pool: &Pool) -> bool {
        self.memories().is_none_or(|memories| memories.is_enough(boundary, pool))
    }

    /// Keeps in mind where a key went that was first seen `at` that time, where that is of use.
    pub(super) fn remember(&self, pool: &PoolName, key: u64, at: u32, home: u32) {
        if let Self::Automatic(memories) = self {
            memories.remember(pool, key, at, home);
        }
    }

    /// How many of a pool's keys are known, of late; `None` where nobody counts, or none was seen.
    pub(super) fn reuse(&self, pool: &PoolName) -> Option<f64> {
        self.memories()?.peek(pool, |memory| memory.reuse())
    }

    /// The share of a pool's recent requests that its most frequent key has; `None` where nobody counts, or too few were seen.
    pub(super) fn top_share(&self, pool: &PoolName) -> Option<f64> {
        self.memories()?.peek(pool, |memory| memory.top_share())
    }

    fn memories(&self) -> Option<&Memories> {
        match self {
            Self::Automatic(memories) => Some(memories),
            Self::Fixed(study) => study.as_ref(),
        }
    }
}

#[derive(Debug)]
struct Kept {
    memory: Mutex<Memory>,
    /// When it was last asked for, in requests to all pools.
    asked: AtomicU64,
}

impl Memories {
    /// Takes note of a request to `pool`: what it is placed by. `None` where it has no boundary.
    fn look(&self, boundaries: &[Boundary], pool: &Pool) -> Option<Sight> {
        let Look { boundary, hot, known, reuse, at, moved, fit } =
            self.take_note(pool, |memory, members| memory.look(boundaries, members))?;
        let seen = known.map_or(Seen::Never { at, reuse }, Seen::Before);
        Some(Sight { key: boundary.key, depth: Some(boundary.depth), hot, moved, fit: Some(fit), seen, chunks: None, streams: false })
    }

    /// Takes note of a request to `pool` that is placed by its first boundary: how well that fits.
    fn study(&self, boundaries: &[Boundary], pool: &Pool) -> Option<Fit> {
        self.take_note(pool, |memory, members| memory.study(boundaries, members))
    }

    /// Has the pool's memory take note of a request, which is the first where it has none, and gives it more room where it needs that.
    fn take_note<T>(&self, pool: &Pool, note: impl Fn(&mut Memory, usize) -> Option<(T, Option<Crowded>)>) -> Option<T> {
        let now = self.requests.fetch_add(1, Ordering::Relaxed);
        let note = |memory: &mut Memory| note(memory, pool.members().len());
        let noted = self.with(pool.name(), now, note).unwrap_or_else(|| {
            self.begin(pool.name(), now);
            self.with(pool.name(), now, note).flatten()
        });
        let (seen, crowded) = noted?;
        if let Some(crowded) = crowded {
            self.grow(pool.name(), crowded, now);
        }
        Some(seen)
    }

    /// Whether [`Self::look`] would go no further than to `boundary`. It changes nothing.
    fn is_enough(&self, boundary: &Boundary, pool: &Pool) -> bool {
        let pools = self.pools.read().unwrap_or_else(PoisonError::into_inner);
        let Some(kept) = pools.get(pool.name()) else { return true };
        kept.memory.lock().unwrap_or_else(PoisonError::into_inner).is_enough(boundary, pool.members().len())
    }

    /// Keeps in mind where a key went that was first seen `at` that time.
    fn remember(&self, pool: &PoolName, key: u64, at: u32, home: u32) {
        let pools = self.pools.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = pools.get(pool) {
            kept.memory.lock().unwrap_or_else(PoisonError::into_inner).remember(key, at, home);
        }
    }

    /// What there is to be seen of a pool's memory; `None` where it was not asked for.
    fn peek<T>(&self, pool: &PoolName, see: impl FnOnce(&mut Memory) -> Option<T>) -> Option<T> {
        let pools = self.pools.read().unwrap_or_else(PoisonError::into_inner);
        see(&mut pools.get(pool)?.memory.lock().unwrap_or_else(PoisonError::into_inner))
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
        pools.entry(pool.clone()).or_insert_with(|| Kept { memory: Mutex::new(Memory::new(self.is_fixed)), asked: AtomicU64::new(now) });
    }

    /// Gives a pool twice the room, where that is within the bound; else what others no longer need.
    fn grow(&self, pool: &PoolName, crowded: Crowded, now: u64) {
        let mut pools = self.pools.write().unwrap_or_else(PoisonError::into_inner);
        let entries = |pools: &mut HashMap<PoolName, Kept>| pools.values_mut().map(|kept| kept.memory().capacity()).sum::<usize>();
        let Some(own) = pools.get_mut(pool).map(|kept| kept.memory().capacity()) else { return };
        if own != crowded.capacity {
            // Somebody else was faster.
            return;
        }
        let mut fits = entries(&mut pools) + own <= MOST_ENTRIES;
        if !fits {
            pools.retain(|name, kept| name == pool || now.saturating_sub(kept.asked.load(Ordering::Relaxed)) < IDLE);
            fits = entries(&mut pools) + own <= MOST_ENTRIES;
        }
        let is_largest = own >= table::MOST_ENTRIES;
        if let Some(kept) = pools.get_mut(pool) {
            if fits && !is_largest { kept.memory().grow(crowded) } else { kept.memory().stay() }
        }
    }
}

impl Kept {
    fn memory(&mut self) -> &mut Memory {
        self.memory.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fleet::{Fleet, ReplicaSpec, Snapshot, health};
    use crate::request::Key;
    use crate::units::Weight;

    /// So many pools, whose models are "0", "1", …
    fn fleet(pools: usize) -> Snapshot {
        let models = (0..pools).map(|model| model.to_string()).collect();
        let spec = ReplicaSpec { name: "a".to_owned(), authority: String::new(), weight: Weight::clamped(1), models, drain: false };
        Fleet::new(vec![spec], health::Settings::default(), 0).snapshot()
    }

    impl Memories {
        fn ask(&self, fleet: &Snapshot, pool: usize, number: u64) -> Sight {
            let pool = fleet.pool(Some(&pool.to_string())).expect("it is there");
            let key = Key(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()));
            self.look(&[Boundary { depth: 1_024, key }], pool).expect("there is a boundary")
        }

        fn sizes(&mut self) -> Vec<usize> {
            self.pools.get_mut().expect("nobody panicked").values_mut().map(|kept| kept.memory().capacity()).collect()
        }
    }

    #[test]
    fn a_memory_grows_as_its_traffic_needs_and_no_further() {
        let (fleet, mut memories) = (fleet(2), Memories::default());
        for number in 0..200_000 {
            memories.ask(&fleet, 0, number % 40);
            memories.ask(&fleet, 1, number);
        }
        let mut sizes = memories.sizes();
        sizes.sort_unstable();
        assert!(sizes[0] <= 256, "forty keys: {sizes:?}");
        assert!((8_192..=table::MOST_ENTRIES).contains(&sizes[1]), "what never repeats: {sizes:?}");
        // All that is to be known is known; each question is a request, too.
        assert!((0..1_990).all(|age| matches!(memories.ask(&fleet, 1, 199_999 - age).seen, Seen::Before(_))));
    }

    #[test]
    fn pools_that_are_not_asked_for_make_room() {
        let (fleet, mut memories) = (fleet(12), Memories::default());
        // Keys that fall into few sets, so that tables grow at once to the last.
        let crowd = |memories: &Memories, pool: usize| {
            let pool = fleet.pool(Some(&pool.to_string())).expect("it is there");
            for number in 0..20_000_u64 {
                memories.look(&[Boundary { depth: 1_024, key: Key(number << 40) }], pool);
            }
        };
        for pool in 0..12 {
            crowd(&memories, pool);
        }
        let sizes = memories.sizes();
        assert!(sizes.iter().sum::<usize>() <= MOST_ENTRIES, "{sizes:?}");
        assert!(sizes.contains(&table::MOST_ENTRIES) && sizes.len() < 12, "{sizes:?}: those asked for first are gone");
    }

    #[test]
    fn no_more_pools_are_remembered_than_the_bound() {
        let (fleet, mut memories) = (fleet(MOST_POOLS + 50), Memories::default());
        for pool in 0..MOST_POOLS + 50 {
            memories.ask(&fleet, pool, 1);
            // One that is asked for again and again stays.
            memories.ask(&fleet, 0, 1);
        }
        assert_eq!(memories.sizes().len(), MOST_POOLS);
        assert!(matches!(memories.ask(&fleet, 0, 1).seen, Seen::Before(0)));
        assert!(matches!(memories.ask(&fleet, 1, 1).seen, Seen::Never { .. }));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        #[test]
        fn memory_stays_within_its_bounds(
            runs in prop::collection::vec((0_usize..20, 0_u32..=40, 1_u64..40_000), 1..12),
        ) {
            let (fleet, mut memories) = (fleet(20), Memories::default());
            for (pool, shift, count) in runs {
                let named = fleet.pool(Some(&pool.to_string())).expect("it is there");
                for number in 0..count {
                    memories.look(&[Boundary { depth: 1_024, key: Key(number << shift) }], named);
                }
                let sizes = memories.sizes();
                prop_assert!(sizes.iter().all(|&size| size <= table::MOST_ENTRIES));
                prop_assert!(sizes.iter().sum::<usize>() <= MOST_ENTRIES + sizes.len() * table::LEAST_ENTRIES);
            }
        }
    }
}
