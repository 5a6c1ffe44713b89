//! A map that knows which of its keys was touched longest ago. It has no bound: who uses it says when one has to go.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

type Place = u32;
const NONE: Place = Place::MAX;

/// Keys with something for each, in the order in which they were touched.
#[derive(Debug)]
pub struct Recent<K, V, S> {
    places: HashMap<K, Place, S>,
    entries: Vec<Entry<K, V>>,
    oldest: Place,
    newest: Place,
}

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    older: Place,
    newer: Place,
}

impl<K, V, S: Default> Default for Recent<K, V, S> {
    fn default() -> Self {
        Self { places: HashMap::default(), entries: Vec::new(), oldest: NONE, newest: NONE }
    }
}

impl<K: Copy + Eq + Hash, V, S: BuildHasher> Recent<K, V, S> {
    /// Bytes of an entry, without its place in the map.
    pub const ENTRY: usize = size_of::<Entry<K, V>>();
    /// The most entries that there may be.
    pub const MOST: usize = NONE as usize - 1;

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether that one is there. It is not touched.
    pub fn contains(&self, key: &K) -> bool {
        self.places.contains_key(key)
    }

    /// What there is for each, in no order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|entry| &entry.value)
    }

    /// Makes a key the one touched last. Whether it is new: only then `value` is what there is for it.
    pub fn touch(&mut self, key: K, value: V) -> bool {
        let known = self.places.get(&key).copied();
        let place = match known {
            Some(place) => {
                self.unlink(place);
                place
            }
            None => {
                let place = self.entries.len() as Place;
                self.entries.push(Entry { key, value, older: NONE, newer: NONE });
                self.places.insert(key, place);
                place
            }
        };
        let newest = self.newest;
        self.link(newest, place);
        self.link(place, NONE);
        known.is_none()
    }

    /// Takes out the key that was touched longest ago.
    pub fn pop(&mut self) -> Option<(K, V)> {
        let place = self.oldest;
        if place == NONE {
            return None;
        }
        self.unlink(place);
        let Entry { key, value, .. } = self.entries.swap_remove(place as usize);
        self.places.remove(&key);
        // The last one has moved into its place.
        if let Some(&Entry { key, older, newer, .. }) = self.entries.get(place as usize) {
            self.places.insert(key, place);
            self.link(older, place);
            self.link(place, newer);
        }
        Some((key, value))
    }

    /// Keeps no more memory than it needs.
    pub fn shrink_to_fit(&mut self) {
        self.entries.shrink_to_fit();
        self.places.shrink_to_fit();
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

#[cfg(test)]
mod tests {
    use std::hash::RandomState;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As a list from which a key is taken before it is put at the end.
        #[test]
        fn the_order_is_that_of_touches(steps in prop::collection::vec(prop::option::weighted(0.8, 0_u8..12), 0..200)) {
            let (mut recent, mut list) = (Recent::<u8, usize, RandomState>::default(), Vec::<(u8, usize)>::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Some(key) => {
                        let known = list.iter().position(|(other, _)| *other == key).map(|at| list.remove(at));
                        prop_assert_eq!(recent.touch(key, number), known.is_none());
                        list.push(known.unwrap_or((key, number)));
                    }
                    None => {
                        let oldest = (!list.is_empty()).then(|| list.remove(0));
                        prop_assert_eq!(recent.pop(), oldest);
                    }
                }
                prop_assert_eq!((recent.len(), recent.places.len(), recent.is_empty()), (list.len(), list.len(), list.is_empty()));
                prop_assert!((0..12).all(|key| recent.contains(&key) == list.iter().any(|(other, _)| *other == key)));
                prop_assert_eq!(recent.values().sum::<usize>(), list.iter().map(|(_, value)| value).sum::<usize>());
            }
            recent.shrink_to_fit();
            prop_assert_eq!(std::iter::from_fn(|| recent.pop()).collect::<Vec<_>>(), list);
        }
    }
}
