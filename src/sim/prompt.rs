//! A conversation's prompt, without its words: the blocks that an engine sees of it and the boundaries that a router sees.

use xxhash_rust::xxh3::xxh3_64;

use super::blocks::{BlockHash, Chain};
use super::workload::{Conversation, Segment};
use crate::request::{Boundaries, Boundary, Chunks, Key, next_end};
use crate::units::{OrAuto, PrefixLength};

/// Characters of a token.
pub const CHARACTERS: usize = 4;

/// Depths at which a key may end: 1,024 characters, doubled again and again.
const SHALLOWEST: u32 = 1_024;
const DEPTHS: u32 = 8;

/// What a conversation has come to.
#[derive(Clone, Debug)]
pub struct Prompt {
    segments: Vec<Segment>,
    tokens: usize,
    /// All of it, and the answer that is computed.
    chain: Chain,
    /// It belongs to the prompt when something follows.
    answer: Option<Segment>,
    /// Characters up to the ends of the system prompt and of the first message; 0 where there is none.
    message_ends: [u32; 2],
}

impl Prompt {
    /// The prompt of a conversation's first turn, in blocks of `block_size` tokens.
    pub fn new(conversation: &Conversation, block_size: usize) -> Self {
        let first = conversation.turns.first().map_or(&[][..], |turn| &turn.prompt);
        let end = |count: usize| characters(first[..count].iter().map(|segment| segment.tokens).sum());
        let message_ends = if conversation.has_messages { [end(conversation.system), end(first.len())] } else { [0, 0] };
        let mut prompt = Self { segments: Vec::new(), tokens: 0, chain: Chain::new(block_size), answer: None, message_ends };
        prompt.extend(first);
        prompt
    }

    /// Appends what comes after the answer.
    pub fn extend(&mut self, segments: &[Segment]) {
        if let Some(answer) = self.answer.take() {
            self.tokens += answer.tokens;
            self.segments.push(answer);
        }
        for &segment in segments {
            self.chain.append(segment.text, segment.tokens);
            self.tokens += segment.tokens;
            self.segments.push(segment);
        }
    }

    /// Says what will be answered; once more is no matter.
    pub fn answer(&mut self, answer: Segment) {
        if self.answer.is_none() {
            self.chain.append(answer.text, answer.tokens);
            self.answer = Some(answer);
        }
    }

    /// Its length.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The full blocks of it and of its answer, as far as that is known.
    pub fn blocks(&self) -> &[BlockHash] {
        self.chain.blocks()
    }

    /// Its chunks, as a router that reads all of it sees them; in an engine whose blocks are `block_size` tokens, which has to be a part of a chunk.
    pub fn chunks(&self, block_size: usize) -> Chunks {
        let bytes = self.tokens * CHARACTERS;
        let ends = std::iter::successors(Some(next_end(0)), |&end| Some(next_end(end))).take_while(|&end| end <= bytes);
        let hashes = ends.map(|end| self.blocks()[end / CHARACTERS / block_size - 1].number());
        Chunks { hashes: hashes.collect(), bytes, ..Chunks::default() }
    }

    /// Where its key may end.
    pub fn boundaries(&self, length: OrAuto<PrefixLength>) -> Boundaries {
        boundaries(&self.segments, self.message_ends, length)
    }
}

/// Where the key of a prompt may end: with a fixed length there, or at the end of a shorter prompt; else at the doubling depths and `message_ends` (0:
/// none) within it, and where that is nowhere, at its end.
pub fn boundaries(segments: &[Segment], message_ends: [u32; 2], length: OrAuto<PrefixLength>) -> Boundaries {
    let whole = characters(segments.iter().map(|segment| segment.tokens).sum());
    let mut depths = arrayvec::ArrayVec::<u32, { DEPTHS as usize + 2 }>::new();
    match length {
        OrAuto::Fixed(length) => depths.push(whole.min(length.get() as u32)),
        OrAuto::Auto => {
            depths.extend((0..DEPTHS).map(|doubled| SHALLOWEST << doubled).chain(message_ends));
            depths.retain(|depth| (1..=whole).contains(depth));
            depths.sort_unstable();
            if depths.is_empty() {
                depths.push(whole);
            }
        }
    }
    let (mut all, mut before, mut so_far) = (Boundaries::new(), 0, 0);
    let mut depths = depths.into_iter().filter(|&depth| depth > 0).peekable();
    for segment in segments {
        let end = so_far + characters(segment.tokens);
        while let Some(depth) = depths.next_if(|&depth| depth <= end) {
            let key = Key(hash(before, segment.text, depth - so_far));
            if all.last().is_none_or(|last: &Boundary| last.depth < depth) {
                all.push(Boundary { depth, key });
            }
        }
        before = hash(before, segment.text, end - so_far);
        so_far = end;
    }
    all
}

fn characters(tokens: usize) -> u32 {
    (tokens * CHARACTERS) as u32
}

/// The first `length` characters of a text, after what has the hash `before`.
fn hash(before: u64, text: u64, length: u32) -> u64 {
    let mut all = [0; 24];
    for (bytes, number) in all.chunks_exact_mut(8).zip([before, text, length.into()]) {
        bytes.copy_from_slice(&number.to_le_bytes());
    }
    xxh3_64(&all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segments(all: &[(u64, usize)]) -> Vec<Segment> {
        all.iter().map(|&(text, tokens)| Segment { text, tokens }).collect()
    }

    fn depths(all: &[(u64, usize)], ends: [u32; 2], length: OrAuto<PrefixLength>) -> Vec<u32> {
        boundaries(&segments(all), ends, length).iter().map(|boundary| boundary.depth).collect()
    }

    #[test]
    fn boundaries_are_where_they_should_be() {
        let fixed = |length| OrAuto::Fixed(PrefixLength::clamped(length));
        assert_eq!(depths(&[(1, 8_000), (2, 60)], [32_000, 32_240], OrAuto::Auto), [1_024, 2_048, 4_096, 8_192, 16_384, 32_000, 32_240]);
        assert_eq!(depths(&[(1, 512), (2, 60)], [2_048, 2_288], OrAuto::Auto), [1_024, 2_048, 2_288], "one place is one boundary");
        assert_eq!(depths(&[(1, 5), (2, 6)], [0, 0], OrAuto::Auto), [44], "the whole");
        assert_eq!(depths(&[(1, 40_000)], [0, 0], OrAuto::Auto).last(), Some(&131_072));
        assert_eq!(depths(&[(1, 8_000)], [32_000, 0], fixed(4_096)), [4_096]);
        assert_eq!(depths(&[(1, 100)], [400, 0], fixed(4_096)), [400]);
        assert_eq!(depths(&[], [0, 0], OrAuto::Auto), [] as [u32; 0]);
    }

    proptest! {
        /// Two prompts have the same key at a depth exactly where they are alike up to there.
        #[test]
        fn keys_are_equal_as_far_as_prompts_are(
            shared in prop::collection::vec((0_u64..5, 1_usize..3_000), 0..5),
            (one, other) in (1_usize..9_000, 1_usize..9_000),
            length in prop::option::of(1_024_u64..65_536),
        ) {
            let length = OrAuto::from(length.map(PrefixLength::clamped));
            let of = |last: (u64, usize)| boundaries(&segments(&[shared.as_slice(), &[last]].concat()), [0, 0], length);
            let alike: usize = shared.iter().map(|(_, tokens)| tokens * CHARACTERS).sum();
            let (first, second) = (of((10, one)), of((11, other)));
            prop_assert!(!first.is_empty() && first.windows(2).all(|two| two[0].depth < two[1].depth));
            for boundary in &first {
                let same = second.iter().any(|other| other.key == boundary.key);
                let reached = second.iter().any(|other| other.depth == boundary.depth);
                prop_assert_eq!(same, reached && boundary.depth as usize <= alike);
            }
        }
    }
}
