//! What a router thinks a replica holds: the chunks of the prompts that it sent there, those used longest ago forgotten first.

use super::super::blocks::{BlockHash, BlockMap};
use super::super::rule::Asked;

/// Tokens of a chunk.
const CHUNK: usize = 64;

type Place = u32;
const NONE: Place = Place::MAX;

/// The chunks of one replica.
#[derive(Debug)]
pub(super) struct Index {
    places: BlockMap<Place>,
    entries: Vec<Entry>,
    oldest: Place,
    newest: Place,
    capacity: usize,
}

#[derive(Debug)]
struct Entry {
    chunk: BlockHash,
    older: Place,
    newer: Place,
}

impl Index {
    /// Room for the chunks of so many tokens.
    pub(super) fn new(tokens: usize) -> Self {
        Self { places: BlockMap::default(), entries: Vec::new(), oldest: NONE, newest: NONE, capacity: (tokens / CHUNK).max(1) }
    }

    /// Chunks in it.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Tokens at the front of a prompt whose chunks are here.
    pub(super) fn matched(&self, asked: &Asked<'_>) -> usize {
        chunks(asked).take_while(|chunk| self.places.contains_key(chunk)).count() * CHUNK
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
        let place = match self.places.get(&chunk) {
            Some(&place) => {
                self.unlink(place);
                place
            }
            None if self.entries.len() < self.capacity => {
                self.entries.push(Entry { chunk, older: NONE, newer: NONE });
                (self.entries.len() - 1) as Place
            }
            None => {
                let place = self.oldest;
                self.unlink(place);
                self.places.remove(&self.entries[place as usize].chunk);
                self.entries[place as usize].chunk = chunk;
                place
            }
        };
        self.places.insert(chunk, place);
        let newest = self.newest;
        self.link(newest, place);
        self.link(place, NONE);
    }

    fn unlink(&mut self, place: Place) {
        let Entry { older, newer, .. } = self.entries[place as usize];
        self.link(older, newer);
    }

    fn link(&mut self, older: Place, newer: Place) {
        match older {
            NONE => self.oldest = newer,
            _ => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            _ => self.entries[newer as usize].older = older,
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
