//! What a replica is thought to hold: the chunks of the prompts that were sent there, those used longest ago forgotten first.
//!
//! Where a chunk is, all before it in its prompt are: a prompt's chunks are touched from its end to its beginning, so that ends are the first to go.

use std::hash::BuildHasherDefault;

use crate::fleet::NumberHasher;
use crate::recent::Recent;
use crate::request::{Chunks, end_of, next_end};

/// Hashes of chunks, and the bytes of each one's text.
type Hashes = Recent<u64, u32, BuildHasherDefault<NumberHasher>>;

/// The chunks of one replica, within a bound on their text and one on their number.
#[derive(Debug)]
pub(super) struct Holdings {
    chunks: Hashes,
    /// Bytes of all their text.
    bytes: u64,
    /// No more than that.
    most_bytes: u64,
    most_entries: usize,
}

/// What a chunk takes of the memory, at most: itself, and its place in the map, where either has just grown to twice of what it needs.
pub(super) const BYTES_OF_ENTRY: usize = 2 * Hashes::ENTRY + 40;

impl Holdings {
    /// Nothing, with room for so many bytes of text in so many chunks; at least one.
    pub(super) fn new(most_bytes: u64, most_entries: usize) -> Self {
        Self { chunks: Hashes::default(), bytes: 0, most_bytes, most_entries: most_entries.clamp(1, Hashes::MOST) }
    }

    /// Room for so many bytes of text from now on.
    pub(super) fn resize(&mut self, most_bytes: u64) {
        self.most_bytes = most_bytes;
        self.shed();
    }

    /// Room for so many chunks from now on; at least one.
    pub(super) fn limit(&mut self, most_entries: usize) {
        let most_entries = most_entries.clamp(1, Hashes::MOST);
        if std::mem::replace(&mut self.most_entries, most_entries) > most_entries {
            self.shed();
            self.chunks.shrink_to_fit();
        }
    }

    /// Bytes at the beginning of a prompt that are here.
    pub(super) fn matched(&self, chunks: &Chunks) -> usize {
        // Where one is, those before it are.
        end_of(chunks.hashes.partition_point(|hash| self.chunks.contains(hash)))
    }

    /// Takes note that a prompt is here.
    pub(super) fn insert(&mut self, chunks: &Chunks) {
        let (mut ends, mut end) = (Vec::with_capacity(chunks.hashes.len()), 0);
        for &hash in &chunks.hashes {
            let next = next_end(end);
            ends.push((hash, (next - end) as u32));
            end = next;
        }
        for (hash, bytes) in ends.into_iter().rev() {
            if self.chunks.touch(hash, bytes) {
                self.bytes += u64::from(bytes);
            }
        }
        self.shed();
    }

    /// Bytes of the text that is here.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Chunks that are here.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.most_bytes, self.most_entries);
    }

    /// Lets go what is too much, but not what was touched last.
    fn shed(&mut self) {
        while (self.bytes > self.most_bytes || self.chunks.len() > self.most_entries)
            && self.chunks.len() > 1
            && let Some((_, bytes)) = self.chunks.pop()
        {
            self.bytes -= u64::from(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A prompt of so many chunks in all, of which those up to `branch` are common to all of one tree.
    fn prompt(tree: u64, branch: usize, own: u64, count: usize) -> Chunks {
        let hashes = (0..count).map(|index| {
            let own = if index < branch { [0, 0] } else { [own + 1, branch as u64] };
            xxhash_rust::xxh3::xxh3_64(&[tree, own[0], own[1], index as u64].map(u64::to_le_bytes).concat())
        });
        Chunks { hashes: hashes.collect(), bytes: end_of(count), ..Chunks::default() }
    }

    #[test]
    fn what_was_used_longest_ago_goes_first_and_ends_before_beginnings() {
        let mut holdings = Holdings::new(256 * 10, 1_000);
        holdings.insert(&prompt(1, 0, 1, 6));
        holdings.insert(&prompt(2, 0, 1, 4));
        assert_eq!(holdings.matched(&prompt(1, 0, 1, 9)), 256 * 6);
        holdings.insert(&prompt(3, 0, 1, 3));
        assert_eq!([1, 2, 3].map(|tree| holdings.matched(&prompt(tree, 0, 1, 9)) / 256), [3, 4, 3]);
        holdings.insert(&prompt(1, 0, 1, 3));
        holdings.insert(&prompt(4, 0, 1, 1));
        assert_eq!([1, 2, 3, 4].map(|tree| holdings.matched(&prompt(tree, 0, 1, 9)) / 256), [3, 3, 3, 1]);
        holdings.resize(256 * 2);
        assert_eq!([1, 2, 3, 4].map(|tree| holdings.matched(&prompt(tree, 0, 1, 9)) / 256), [1, 0, 0, 1]);
        holdings.limit(1);
        assert_eq!([1, 2, 3, 4].map(|tree| holdings.matched(&prompt(tree, 0, 1, 9)) / 256), [0, 0, 0, 1]);
        holdings.clear();
        assert_eq!((holdings.matched(&prompt(1, 0, 1, 9)), holdings.bytes), (0, 0));
    }

    proptest! {
        /// Where a chunk is, those before it are; bounds hold; and what was inserted last is here as far as there is room.
        #[test]
        fn holdings_are_closed_and_bounded(
            prompts in prop::collection::vec((0_u64..3, 0_usize..6, 0_u64..4, 1_usize..20), 1..60),
            (most_bytes, most_entries) in (1_u64..12_000, 1_usize..50),
        ) {
            let mut holdings = Holdings::new(most_bytes, most_entries);
            for (tree, branch, own, count) in prompts {
                let last = prompt(tree, branch, own, count);
                holdings.insert(&last);
                prop_assert!(holdings.bytes <= most_bytes.max(256) && holdings.chunks.len() <= most_entries);
                prop_assert_eq!(holdings.bytes, holdings.chunks.values().map(|&bytes| u64::from(bytes)).sum::<u64>());
                let room = (most_bytes / 256).max(1).min(most_entries as u64) as usize;
                prop_assert_eq!(holdings.matched(&last), end_of(count.min(room)));
                for tree in 0..3 {
                    for own in 0..4 {
                        let any = prompt(tree, branch, own, 25);
                        let here: Vec<bool> = any.hashes.iter().map(|hash| holdings.chunks.contains(hash)).collect();
                        prop_assert!(here.is_sorted_by(|one, other| one >= other), "{:?}", here);
                    }
                }
            }
        }
    }
}
