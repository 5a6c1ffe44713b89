//! What is kept of keys, in a table of bounded size: a new key takes the place of one that nobody asked for in the longest time.
//!
//! It knows neither requests nor replicas, and allocates only where it grows.

/// Entries that compete for one place. A key's hash tells its set, so a full set forgets while others have room; with eight ways that is rare below
/// half of the table.
pub(super) const WAYS: usize = 8;

/// Entries of a new table: 1.5 KB, so that hundreds of pools cost next to nothing.
pub(super) const LEAST_ENTRIES: usize = 64;

/// Entries of a table that has grown, at most: 768 KB. A request touches one to three of them that are not everybody's, and what was not touched for
/// [`KNOWN_FOR`](super::memory::KNOWN_FOR) requests is of no use: twice as many as are needed.
pub(super) const MOST_ENTRIES: usize = 32_768;

/// What is kept of one key: 24 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Entry {
    key: u64,
    /// How often the key was asked for, decayed, as of when it was touched. 0 where there is no entry.
    pub(super) count: f32,
    /// When it was last touched, by the lower half of the pool's clock. One that lies 2³² requests back looks fresh; it is a hint that grew old.
    pub(super) touched: u32,
    /// Which replica is the key's home, by its tag; 0: the ring's.
    pub(super) home: u32,
    /// Whether its share of the traffic is too large for one replica.
    pub(super) is_hot: bool,
}

/// Entries by key.
#[derive(Debug)]
pub(super) struct Table {
    /// A power of two of them.
    sets: Vec<[Entry; WAYS]>,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { sets: vec![[Entry::default(); WAYS]; LEAST_ENTRIES / WAYS] }
    }

    /// How many entries it has room for.
    pub(super) fn capacity(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// The key's entry, if there is one.
    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut Entry> {
        let set = self.set_of(key);
        self.sets[set].iter_mut().find(|entry| entry.key == key && entry.count > 0.0)
    }

    /// The key's entry, made where there is none; and the one whose place it took: of those in its set, the one that was touched longest before `now`.
    pub(super) fn entry(&mut self, key: u64, now: u32) -> (&mut Entry, Option<Entry>) {
        let set = self.set_of(key);
        let set = &mut self.sets[set];
        if let Some(way) = set.iter().position(|entry| entry.key == key && entry.count > 0.0) {
            return (&mut set[way], None);
        }
        let mut oldest = (0, 0);
        let mut free = None;
        for (way, entry) in set.iter().enumerate() {
            if entry.count == 0.0 {
                free = Some(way);
                break;
            }
            let age = now.wrapping_sub(entry.touched);
            if age >= oldest.1 {
                oldest = (way, age);
            }
        }
        let way = free.unwrap_or(oldest.0);
        let displaced = std::mem::replace(&mut set[way], Entry { key, ..Entry::default() });
        (&mut set[way], Some(displaced).filter(|_| free.is_none()))
    }

    /// Puts back an entry that was displaced, where there is room for it now and its key is not there again.
    pub(super) fn restore(&mut self, entry: Entry) {
        if self.get_mut(entry.key).is_some() {
            return;
        }
        let set = self.set_of(entry.key);
        if let Some(free) = self.sets[set].iter_mut().find(|entry| entry.count == 0.0) {
            *free = entry;
        }
    }

    /// Makes room for twice as many. All entries stay: each set becomes two, as the next bit of the keys says.
    pub(super) fn double(&mut self) {
        let before = std::mem::take(&mut self.sets);
        self.sets = vec![[Entry::default(); WAYS]; before.len() * 2];
        before.into_iter().flatten().filter(|entry| entry.count > 0.0).for_each(|entry| self.restore(entry));
    }

    fn set_of(&self, key: u64) -> usize {
        // Keys are hashes. The ring goes by their upper bits.
        key as usize & (self.sets.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_entry_has_24_bytes() {
        assert_eq!(size_of::<Entry>(), 24);
        assert_eq!(size_of::<Entry>() * MOST_ENTRIES, 768 << 10);
    }

    #[test]
    fn who_was_untouched_longest_in_its_set_goes_first() {
        let mut table = Table::new();
        // All in one set.
        let key = |number: u64| number << 32 | 5;
        let touch = |table: &mut Table, number: u64, now: u32| {
            let (entry, displaced) = table.entry(key(number), now);
            (entry.count, entry.touched) = (1.0, now);
            displaced.map(|displaced| displaced.key >> 32)
        };
        for number in 0..WAYS as u64 {
            assert_eq!(touch(&mut table, number, number as u32), None);
        }
        touch(&mut table, 0, 10);
        assert_eq!(touch(&mut table, 100, 11), Some(1), "0 was touched again");
        assert!(table.get_mut(key(1)).is_none());
        assert!(table.get_mut(key(0)).is_some_and(|entry| entry.touched == 10));
        // The clock goes round.
        assert_eq!(touch(&mut table, 101, 1), Some(2), "it was touched at 2, almost a round ago");
    }

    #[test]
    fn what_was_displaced_can_be_put_back_once_there_is_room() {
        let mut table = Table::new();
        // All in one set, until there are twice as many.
        let key = |number: u64| (number % 2 * 8) | number << 32 | 5;
        for number in 1..=WAYS as u64 {
            table.entry(key(number), 0).0.count = number as f32;
        }
        let (new, displaced) = table.entry(key(100), 1);
        new.count = 100.0;
        let displaced = displaced.expect("the set was full");
        table.restore(displaced);
        assert!(table.get_mut(displaced.key).is_none(), "there is no room");
        table.double();
        table.restore(displaced);
        table.restore(Entry { count: 7.0, ..displaced });
        assert_eq!(table.get_mut(displaced.key).copied(), Some(displaced), "and what is there is left alone");
        assert!(table.get_mut(key(100)).is_some_and(|entry| entry.count == 100.0));
    }

    proptest! {
        #[test]
        fn doubling_keeps_everything(keys in prop::collection::vec(any::<u64>(), 1..200), doublings in 1_usize..6) {
            let mut table = Table::new();
            for (now, &key) in keys.iter().enumerate() {
                let (entry, _) = table.entry(key, now as u32);
                *entry = Entry { key, count: 1.0 + now as f32, touched: now as u32, home: now as u32, is_hot: now % 2 == 0 };
            }
            let before: HashMap<u64, Entry> = keys.iter().filter_map(|&key| Some((key, *table.get_mut(key)?))).collect();
            for _ in 0..doublings {
                table.double();
            }
            prop_assert_eq!(table.capacity(), LEAST_ENTRIES << doublings);
            for &key in &keys {
                prop_assert_eq!(table.get_mut(key).copied(), before.get(&key).copied());
            }
        }
    }
}
