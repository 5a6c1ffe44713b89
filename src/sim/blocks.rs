//! Token blocks: what a prefix cache tells apart.
//!
//! It knows tokens, not texts; what a text's tokens are is the tokenizer's business.

use xxhash_rust::xxh3::xxh3_64;

/// The hash of a full block and of all blocks before it, so that equal hashes mean equal beginnings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(u64);

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
        fn salts_keep_blocks_apart(tokens in prop::collection::vec(any::<u32>(), 16..100), one in "[a-z]{1,8}", other in "[A-Z]{1,8}") {
            let of = |salt| hashes(tokens.iter().copied(), 16, salt);
            for (left, right) in [(Some(one.as_str()), Some(other.as_str())), (Some(one.as_str()), None)] {
                prop_assert!(of(left).iter().all(|hash| !of(right).contains(hash)));
            }
        }
    }
}
