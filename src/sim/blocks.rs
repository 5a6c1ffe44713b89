//! Token blocks: what a prefix cache tells apart.
//!
//! It knows tokens, not texts; what a text's tokens are is the tokenizer's business.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use xxhash_rust::xxh3::xxh3_64;

/// The hash of a full block and of all blocks before it, so that equal hashes mean equal beginnings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(u64);

impl BlockHash {
    /// As a number.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The chained hashes of the full blocks in `tokens`, `block_size` (at least 1) tokens each. Blocks of different `salt`s are never alike.
///
/// vLLM chains a block to its parent and mixes the salt into the first one only, which the chain carries on.
pub fn hashes(tokens: impl IntoIterator<Item = u32>, block_size: usize, salt: Option<&str>) -> Vec<BlockHash> {
    let mut all: Vec<BlockHash> = Vec::new();
    let mut block = salt.unwrap_or_default().as_bytes().to_vec();
    let mut filled = 0;
    for token in tokens {
        block.extend_from_slice(&token.to_le_bytes());
        filled += 1;
        if filled == block_size {
            let hash = xxh3_64(&block);
            all.push(BlockHash(hash));
            block.clear();
            block.extend_from_slice(&hash.to_le_bytes());
            filled = 0;
        }
    }
    all
}

/// Something for each of some blocks.
pub type BlockMap<T> = HashMap<BlockHash, T, BuildHasherDefault<AsItIs>>;

/// Takes a block's hash for what it is, more or less: to hash it once more, and to look for a text's blocks all over the memory, costs most of a
/// simulation's time. A [`Chain`]'s neighbours follow one another, so sixteen of them share a place.
#[derive(Default)]
pub struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write_u64(&mut self, hash: u64) {
        let (group, member) = (hash >> 4, hash & 15);
        // Odd, so that no two groups meet. A map tells the members of a place apart by the upper bits.
        self.0 = group.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20) & !15 | member;
        self.0 ^= member << 58;
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64(bytes);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The blocks of a text that grows and is made of numbered texts, without its tokens: equal numbers stand for equal texts.
#[derive(Clone, Debug)]
pub struct Chain {
    block_size: usize,
    parent: u64,
    /// What the block is made of that is not full yet: pieces of texts, each as number, offset and length.
    pieces: Vec<u8>,
    filled: usize,
    blocks: Vec<BlockHash>,
}

/// A piece of a text, as it is hashed.
fn piece(text: u64, offset: usize, length: usize) -> [u8; 24] {
    let mut piece = [0; 24];
    for (bytes, number) in piece.chunks_exact_mut(8).zip([text, offset as u64, length as u64]) {
        bytes.copy_from_slice(&number.to_le_bytes());
    }
    piece
}

impl Chain {
    /// An empty text, in blocks of `block_size` (at least 1) tokens.
    pub fn new(block_size: usize) -> Self {
        Self { block_size, parent: 0, pieces: Vec::new(), filled: 0, blocks: Vec::new() }
    }

    /// Appends the first `tokens` tokens of `text`.
    pub fn append(&mut self, text: u64, tokens: usize) {
        let mut offset = 0;
        while offset < tokens {
            let taken = (self.block_size - self.filled).min(tokens - offset);
            self.pieces.extend_from_slice(&piece(text, offset, taken));
            self.filled += taken;
            offset += taken;
            if self.filled == self.block_size {
                self.pieces.extend_from_slice(&self.parent.to_le_bytes());
                self.parent = xxh3_64(&self.pieces);
                self.pieces.clear();
                self.filled = 0;
                self.blocks.push(BlockHash(self.parent));
                // What the text's further blocks are is settled by this one and their number. No two texts come near one another: there are too
                // many numbers.
                let more = (tokens - offset) / self.block_size;
                self.blocks.extend((1..=more as u64).map(|after| BlockHash(self.parent.wrapping_add(after))));
                self.parent = self.parent.wrapping_add(more as u64);
                offset += more * self.block_size;
            }
        }
    }

    /// Its full blocks.
    pub fn blocks(&self) -> &[BlockHash] {
        &self.blocks
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hashes_are_equal_as_far_as_tokens_are(
            shared in prop::collection::vec(any::<u32>(), 0..100),
            one in prop::collection::vec(0_u32..1_000, 1..50),
            other in prop::collection::vec(1_000_u32..2_000, 1..50),
            block_size in 1_usize..20,
        ) {
            let of = |rest: &[u32]| hashes(shared.iter().chain(rest).copied(), block_size, None);
            let (first, second) = (of(&one), of(&other));
            prop_assert_eq!(first.len(), (shared.len() + one.len()) / block_size);
            let alike = first.iter().zip(&second).take_while(|(one, other)| one == other).count();
            prop_assert_eq!(alike, shared.len() / block_size);
            prop_assert!(first.iter().skip(alike).all(|hash| !second.contains(hash)), "what differs once differs from there on");
        }

        #[test]
        fn chains_are_equal_as_far_as_their_texts_are(
            shared in prop::collection::vec((0_u64..9, 1_usize..50), 0..9),
            (one, other) in (1_usize..60, 1_usize..60),
            block_size in 1_usize..20,
        ) {
            let of = |last: u64, tokens| {
                let mut chain = Chain::new(block_size);
                shared.iter().for_each(|&(text, tokens)| chain.append(text, tokens));
                chain.append(last, tokens);
                chain.blocks().to_vec()
            };
            let before: usize = shared.iter().map(|(_, tokens)| tokens).sum();
            let (first, second) = (of(10, one), of(11, other));
            prop_assert_eq!(first.len(), (before + one) / block_size);
            let alike = first.iter().zip(&second).take_while(|(one, other)| one == other).count();
            prop_assert_eq!(alike, (before / block_size).min(first.len()).min(second.len()));
            prop_assert_eq!(of(10, one), first);
        }

        #[test]
        fn salts_keep_blocks_apart(tokens in prop::collection::vec(any::<u32>(), 16..100), one in "[a-z]{1,8}", other in "[A-Z]{1,8}") {
            let of = |salt| hashes(tokens.iter().copied(), 16, salt);
            for (left, right) in [(Some(one.as_str()), Some(other.as_str())), (Some(one.as_str()), None)] {
                prop_assert!(of(left).iter().all(|hash| !of(right).contains(hash)));
            }
        }
    }
}
