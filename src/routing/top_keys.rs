//! The keys that most of a pool's recent requests have, in fixed memory: how much of the traffic the most frequent one is.
//!
//! The sketch is Space-Saving (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams, 2005), with
//! requests that count less the longer they are past. It counts in requests and chooses nothing.

use super::decay::ONE_STEP;

/// Keys that are counted at one time. One with more than this part of the traffic is certainly among them.
const KEYS: usize = 64;

/// Each request counts so much more than the one before it, in place of all before it counting less: what is past decays to 1/e in a thousand.
const GROWTH: f64 = 1.0 / ONE_STEP;

/// Above this, all counts are divided by it, which changes no share.
const LARGEST: f64 = 1e12;

/// Before so many requests a share says nothing.
const LEAST_REQUESTS: u64 = 100;

/// The sketch.
#[derive(Debug)]
pub(super) struct TopKeys {
    /// The keys alone, since each request looks for one of them.
    keys: [u64; KEYS],
    counts: [Count; KEYS],
    /// What the next request counts.
    weight: f64,
    /// What all requests together count.
    total: f64,
    requests: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    count: f64,
    /// So much of it may be that of keys which had the place before.
    error: f64,
}

impl TopKeys {
    pub(super) fn new() -> Self {
        Self { keys: [0; KEYS], counts: [Count::default(); KEYS], weight: 1.0, total: 0.0, requests: 0 }
    }

    /// Counts a request with that key.
    pub(super) fn count(&mut self, key: u64) {
        let place = self.keys.iter().position(|&known| known == key).filter(|&place| self.counts[place].count > 0.0);
        let place = place.unwrap_or_else(|| {
            let least = (0..KEYS).reduce(|least, other| if self.counts[other].count < self.counts[least].count { other } else { least });
            let least = least.unwrap_or_default();
            (self.keys[least], self.counts[least].error) = (key, self.counts[least].count);
            least
        });
        self.counts[place].count += self.weight;
        self.total += self.weight;
        self.weight *= GROWTH;
        self.requests += 1;
        if self.weight > LARGEST {
            for Count { count, error } in &mut self.counts {
                (*count, *error) = (*count / LARGEST, *error / LARGEST);
            }
            (self.weight, self.total) = (self.weight / LARGEST, self.total / LARGEST);
        }
    }

    /// The keys with the shares of the recent requests that they have at least, the most frequent first; none where too few were seen.
    pub(super) fn shares(&self) -> Vec<(u64, f64)> {
        if self.requests < LEAST_REQUESTS {
            return Vec::new();
        }
        let shares = self.keys.iter().zip(&self.counts).map(|(&key, count)| (key, (count.count - count.error) / self.total));
        let mut shares: Vec<_> = shares.filter(|&(_, share)| share > 0.0).collect();
        shares.sort_by(|one, other| other.1.total_cmp(&one.1));
        shares
    }

    /// The share of the recent requests that the most frequent key has at least; `None` where too few were seen.
    pub(super) fn top_share(&self) -> Option<f64> {
        let most = self.counts.iter().map(|count| count.count - count.error).fold(0.0, f64::max);
        (self.requests >= LEAST_REQUESTS).then(|| most / self.total)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn share_of(keys: impl IntoIterator<Item = u64>) -> Option<f64> {
        let mut top = TopKeys::new();
        keys.into_iter().for_each(|key| top.count(key));
        top.top_share()
    }

    #[test]
    fn the_share_is_that_of_the_most_frequent_key() {
        assert_eq!(share_of(vec![0; 99]), None, "too few");
        assert!(share_of(vec![0; 100]).is_some_and(|share| share > 0.999_999));
        let share = share_of((0..5_000).map(|number| if number % 10 < 3 { 7 } else { number << 8 })).expect("many");
        assert!((0.28..=0.31).contains(&share), "{share}");
        let share = share_of(0..100_000).expect("many");
        assert!(share < 0.002, "none comes twice: {share}");
    }

    #[test]
    fn what_is_past_counts_less() {
        let share = share_of((0..20_000).chain(vec![5; 1_000])).expect("many");
        assert!((0.62..0.65).contains(&share), "1 - 1/e: {share}");
        // Beyond the number at which counts are made smaller.
        let share = share_of((0..100_000).map(|number| number % 4)).expect("many");
        assert!((0.249..0.251).contains(&share), "{share}");
    }

    proptest! {
        /// Never more than it has, and less by no more than one place's part.
        #[test]
        fn a_share_is_a_lower_bound(keys in prop::collection::vec(0_u64..400, 100..3_000), skew in 1_u64..400) {
            let keys: Vec<u64> = keys.into_iter().map(|key| key % skew).collect();
            let (mut exact, mut total, mut weight) = (HashMap::new(), 0.0, 1.0);
            for &key in &keys {
                *exact.entry(key).or_insert(0.0) += weight;
                total += weight;
                weight *= GROWTH;
            }
            let most = exact.values().copied().fold(0.0, f64::max) / total;
            let told = share_of(keys).expect("many");
            prop_assert!(told <= most + 1e-9, "{told} of {most}");
            prop_assert!(told >= most - 1.0 / KEYS as f64 - 1e-9, "{told} of {most}");
        }
    }
}
