//! What a router thinks a replica holds: the chunks of the prompts that it sent there, those used longest ago forgotten first.

use std::hash::BuildHasherDefault;

use super::super::blocks::{AsItIs, BlockHash};
use super::super::rule::Asked;
use crate::recent::Recent;

/// Tokens of a chunk.
const CHUNK: usize = 64;

/// The chunks of one replica.
#[derive(Debug)]
pub(super) struct Index {
    chunks: Recent<BlockHash, (), BuildHasherDefault<AsItIs>>,
    capacity: usize,
}

impl Index {
    /// Room for the chunks of so many tokens.
    pub(super) fn new(tokens: usize) -> Self {
        Self { chunks: Recent::default(), capacity: (tokens / CHUNK).max(1) }
    }

    /// Chunks in it.
    pub(super) fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Tokens at the front of a prompt whose chunks are here.
    pub(super) fn matched(&self, asked: &Asked<'_>) -> usize {
        chunks(asked).take_while(|chunk| self.chunks.contains(chunk)).count() * CHUNK
    }

    /// Takes note that a prompt is there.
    pub(super) fn insert(&mut self, asked: &Asked<'_>) {
        // The end first, so that it is the older and goes first.
        chunks(asked).rev().for_each(|chunk| self.touch(*chunk));
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.capacity * CHUNK);
    }

    fn touch(&mut self, chunk: BlockHash) {
        if self.chunks.touch(chunk, ()) && self.chunks.len() > self.capacity {
            self.chunks.pop();
        }
    }
}

/// A prompt's chunks, each known by its last block, which stands for all before it.
fn chunks<'a>(asked: &Asked<'a>) -> impl DoubleEndedIterator<Item = &'a BlockHash> + ExactSizeIterator {
    let blocks = CHUNK / asked.block_size;
    asked.blocks.chunks_exact(blocks.max(1)).map(move |chunk| &chunk[chunk.len() - 1])
}

/// One of them for each replica, as they become known.
#[derive(Debug)]
pub(super) struct Indices {
    all: Vec<Index>,
    tokens: usize,
}

impl Indices {
    /// Each with room for so many tokens.
    pub(super) fn new(tokens: usize) -> Self {
        Self { all: Vec::new(), tokens }
    }

    /// That of a replica.
    pub(super) fn of(&mut self, replica: usize) -> &mut Index {
        while self.all.len() <= replica {
            self.all.push(Index::new(self.tokens));
        }
        &mut self.all[replica]
    }
}
