//! A paged prefix cache, block for block as vLLM 0.32 keeps it.
//!
//! It knows nothing of requests: whoever holds blocks names them. Nobody may give back a block twice.

use super::blocks::{BlockHash, BlockMap};

/// A block's place in the cache.
pub(super) type Place = u32;

/// No block.
const NONE: Place = Place::MAX;

/// Blocks in use, and free ones in the order in which they will be taken. A free block keeps its content until it is taken.
#[derive(Debug)]
pub(super) struct Cache {
    blocks: Vec<Block>,
    /// Where a content stands. The same content may stand in several blocks (computed side by side); the one stored first counts.
    stored: BlockMap<Place>,
    first_free: Place,
    last_free: Place,
    free: usize,
}

#[derive(Clone, Debug)]
struct Block {
    content: Option<BlockHash>,
    /// A later block with the same content.
    same: Place,
    holders: u32,
    previous: Place,
    next: Place,
}

impl Cache {
    /// An empty cache. vLLM keeps one of its blocks for itself, so `blocks - 1` (at least 1) can be used.
    pub(super) fn new(blocks: usize) -> Self {
        let usable = blocks.saturating_sub(1).max(1);
        let block = Block { content: None, same: NONE, holders: 0, previous: NONE, next: NONE };
        let mut cache = Self { blocks: vec![block; usable], stored: BlockMap::default(), first_free: NONE, last_free: NONE, free: 0 };
        for place in 0..usable {
            cache.append(place as Place);
        }
        cache
    }

    /// Blocks in all.
    pub(super) fn size(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that nobody holds.
    pub(super) fn free(&self) -> usize {
        self.free
    }

    /// How many of the first of `contents` are here, and how many of these nobody holds.
    pub(super) fn find(&self, contents: &[BlockHash]) -> (usize, usize) {
        let found = contents.iter().map_while(|content| self.stored.get(content));
        found.fold((0, 0), |(all, free), place| (all + 1, free + usize::from(self.block(*place).holders == 0)))
    }

    /// Whether `content` is here.
    pub(super) fn contains(&self, content: &BlockHash) -> bool {
        self.stored.contains_key(content)
    }

    /// Holds the block with `content`, which must be here.
    pub(super) fn hold(&mut self, content: &BlockHash) -> Option<Place> {
        let place = *self.stored.get(content)?;
        if self.block(place).holders == 0 {
            self.unlink(place);
        }
        self.block_mut(place).holders += 1;
        Some(place)
    }

    /// Takes the free block whose turn it is, and forgets what was in it.
    pub(super) fn take(&mut self) -> Option<Place> {
        let place = self.first_free;
        if place == NONE {
            return None;
        }
        self.unlink(place);
        self.forget(place);
        self.block_mut(place).holders = 1;
        Some(place)
    }

    /// Says what a held block is full of.
    pub(super) fn store(&mut self, place: Place, content: BlockHash) {
        self.block_mut(place).content = Some(content);
        let mut last = *self.stored.entry(content).or_insert(place);
        if last == place {
            return;
        }
        while self.block(last).same != NONE {
            last = self.block(last).same;
        }
        self.block_mut(last).same = place;
    }

    /// Gives back a sequence's blocks, given from its beginning. Its last block will be taken first, so that beginnings stay longest; blocks
    /// that hold nothing reusable go before all others.
    pub(super) fn give_back(&mut self, places: &[Place]) {
        let mut useless = Vec::new();
        for &place in places.iter().rev() {
            let block = self.block_mut(place);
            block.holders -= 1;
            match (block.holders, block.content) {
                (0, Some(_)) => self.append(place),
                (0, None) => useless.push(place),
                _ => {}
            }
        }
        for place in useless.into_iter().rev() {
            self.prepend(place);
        }
    }

    /// Forgets all contents. Says no, and forgets nothing, while a block is held.
    pub(super) fn clear(&mut self) -> bool {
        if self.free < self.blocks.len() {
            return false;
        }
        self.stored.clear();
        for block in &mut self.blocks {
            block.content = None;
            block.same = NONE;
        }
        true
    }

    fn forget(&mut self, place: Place) {
        let Some(content) = self.block_mut(place).content.take() else { return };
        let after = std::mem::replace(&mut self.block_mut(place).same, NONE);
        let Some(&first) = self.stored.get(&content) else { return };
        if first == place {
            if after == NONE {
                self.stored.remove(&content);
            } else {
                self.stored.insert(content, after);
            }
            return;
        }
        let mut before = first;
        while self.block(before).same != place {
            before = self.block(before).same;
        }
        self.block_mut(before).same = after;
    }

    fn append(&mut self, place: Place) {
        let last = self.last_free;
        self.link(last, place);
        self.link(place, NONE);
        self.free += 1;
    }

    fn prepend(&mut self, place: Place) {
        let first = self.first_free;
        self.link(place, first);
        self.link(NONE, place);
        self.free += 1;
    }

    fn unlink(&mut self, place: Place) {
        let (previous, next) = (self.block(place).previous, self.block(place).next);
        self.link(previous, next);
        self.free -= 1;
    }

    /// Makes the two neighbours in the free list; none stands for its ends.
    fn link(&mut self, previous: Place, next: Place) {
        match previous {
            NONE => self.first_free = next,
            _ => self.block_mut(previous).next = next,
        }
        match next {
            NONE => self.last_free = previous,
            _ => self.block_mut(next).previous = previous,
        }
    }

    fn block(&self, place: Place) -> &Block {
        &self.blocks[place as usize]
    }

    fn block_mut(&mut self, place: Place) -> &mut Block {
        &mut self.blocks[place as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::blocks::hashes;
    use super::*;

    fn contents(count: u32) -> Vec<BlockHash> {
        hashes(0..count, 1, None)
    }

    fn fill(cache: &mut Cache, contents: &[BlockHash]) -> Vec<Place> {
        contents
            .iter()
            .map(|content| {
                let place = cache.take().expect("a free block");
                cache.store(place, *content);
                place
            })
            .collect()
    }

    #[test]
    fn the_end_of_the_least_recently_used_goes_first() {
        let all = contents(8);
        let mut cache = Cache::new(9);
        for half in all.chunks(4) {
            let places = fill(&mut cache, half);
            cache.give_back(&places);
        }
        // The first half is used once more, so the second half is the older one.
        let held: Vec<_> = all[..4].iter().filter_map(|content| cache.hold(content)).collect();
        cache.give_back(&held);
        let _two = [cache.take(), cache.take()];
        assert_eq!(cache.find(&all[..4]), (4, 4));
        assert_eq!(cache.find(&all[4..6]), (2, 2));
        assert_eq!(cache.find(&all[6..]), (0, 0));
    }

    #[test]
    fn what_is_held_stays_and_what_is_worth_nothing_goes_first() {
        let all = contents(3);
        let mut cache = Cache::new(5);
        let places = fill(&mut cache, &all);
        let half_full = cache.take().expect("a free block");
        assert_eq!((cache.take(), cache.free()), (None, 0));
        assert!(!cache.clear());
        cache.give_back(&[places[0], places[1], places[2], half_full]);
        assert_eq!(cache.take(), Some(half_full));
        assert_eq!(cache.find(&all), (3, 3));
    }

    #[test]
    fn the_same_content_twice_is_there_until_both_are_gone() {
        let all = contents(1);
        let mut cache = Cache::new(3);
        let (one, other) = (fill(&mut cache, &all), fill(&mut cache, &all));
        cache.give_back(&one);
        cache.give_back(&other);
        cache.take();
        assert_eq!(cache.find(&all).0, 1);
        cache.take();
        assert_eq!(cache.find(&all).0, 0);
    }

    proptest! {
        /// Against the plain rule: nothing is lost or counted twice, whatever is done.
        #[test]
        fn blocks_are_neither_lost_nor_made(steps in prop::collection::vec((0_u32..12, 1_usize..6, any::<bool>()), 1..200)) {
            let all = contents(16);
            let mut cache = Cache::new(13);
            let mut held: Vec<Vec<Place>> = Vec::new();
            for (start, length, release) in steps {
                if release && !held.is_empty() {
                    cache.give_back(&held.remove(start as usize % held.len()));
                } else {
                    let wanted = &all[start as usize..(start as usize + length).min(all.len())];
                    let (found, free) = cache.find(wanted);
                    if cache.free() >= free + wanted.len() - found {
                        let mut places: Vec<_> = wanted[..found].iter().filter_map(|content| cache.hold(content)).collect();
                        prop_assert_eq!(places.len(), found);
                        places.extend(fill(&mut cache, &wanted[found..]));
                        prop_assert_eq!(cache.find(wanted).0, wanted.len());
                        held.push(places);
                    }
                }
                let mut in_use: Vec<_> = held.concat();
                in_use.sort_unstable();
                in_use.dedup();
                prop_assert_eq!(cache.free() + in_use.len(), cache.size());
            }
            held.into_iter().for_each(|places| cache.give_back(&places));
            prop_assert_eq!(cache.free(), cache.size());
            prop_assert!(cache.clear());
            prop_assert_eq!(cache.find(&all), (0, 0));
        }
    }
}
