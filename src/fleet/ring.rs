//! The consistent-hash ring: which replica is a key's home, and in which order the others follow.
//!
//! It depends on identities and weights alone, not on states or on the order in which replicas became known, so every router with
//! the same fleet has the same ring. It knows nothing of load.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::ReplicaSpec;
use crate::request::Key;

/// Points of a replica of weight 1 in a small fleet. An arc share's relative deviation is about 1/√points: 1.1 % here, so that even the
/// largest of 64 stays within 5 % (4.5 deviations) whatever the names are.
const POINTS: usize = 8_192;

/// Points of the whole ring, at most: 25 MB. Where the weights add up to more than 256, each replica has fewer points.
const MOST_POINTS: usize = 256 * POINTS;

/// A ring over the members of a pool, which it knows by their index.
#[derive(Debug)]
pub struct Ring {
    /// The points' places, ascending.
    places: Vec<u64>,
    /// `owners[i]` owns `places[i]` and the arc before it.
    owners: Vec<u32>,
    members: usize,
}

impl Ring {
    /// The ring of `members`, whose names are distinct. Routers agree where their seeds do.
    pub fn new<'a>(members: impl ExactSizeIterator<Item = &'a ReplicaSpec> + Clone, seed: u64) -> Self {
        let count = members.len();
        let weights: usize = members.clone().map(weight).sum();
        let points = points_per_weight(weights);
        let mut ring: Vec<(u64, &str, u32)> = Vec::with_capacity(points * weights);
        for (owner, member) in (0..).zip(members) {
            // Each point is the hash of name and number; the number has a fixed width, so no two such pairs look alike.
            let mut identity = [member.name.as_bytes(), &[0; 4]].concat();
            let number = identity.len() - 4;
            for point in 0..(points * weight(member)) as u32 {
                identity[number..].copy_from_slice(&point.to_le_bytes());
                ring.push((xxh3_64_with_seed(&identity, seed), &member.name, owner));
            }
        }
        // By name where two points fall together: the order must not depend on the order of `members`.
        ring.sort_unstable();
        Self { places: ring.iter().map(|point| point.0).collect(), owners: ring.iter().map(|point| point.2).collect(), members: count }
    }

    /// The key's home: the member that owns the arc in which the key lies. `None` where there are no members.
    pub fn home(&self, key: Key) -> Option<usize> {
        self.walk(key).next()
    }

    /// All members in the key's order: its home, then its 2nd choice, its 3rd, …
    pub fn order(&self, key: Key) -> impl Iterator<Item = usize> + '_ {
        let mut met = vec![false; self.members];
        self.walk(key).filter(move |&member| !std::mem::replace(&mut met[member], true)).take(self.members)
    }

    /// The owners of the points from the key on, once around.
    fn walk(&self, key: Key) -> impl Iterator<Item = usize> + '_ {
        let first = self.places.partition_point(|&place| place < key.0);
        let (before, after) = self.owners.split_at(first);
        after.iter().chain(before).map(|&owner| owner as usize)
    }
}

fn weight(member: &ReplicaSpec) -> usize {
    // A weight is at most 100.
    member.weight.get() as usize
}

/// `POINTS`, halved until the whole ring is within its bound. Up to a sum of weights of 256 that is never, so that a replica more or less moves
/// no other's points; above, it is so only where the sum does not pass a power of two.
fn points_per_weight(weights: usize) -> usize {
    let mut points = POINTS;
    while points > 1 && points * weights > MOST_POINTS {
        points /= 2;
    }
    points
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::units::Weight;

    fn member(name: &str, weight: u64) -> ReplicaSpec {
        ReplicaSpec { name: name.to_owned(), authority: name.to_owned(), weight: Weight::clamped(weight), models: Vec::new(), drain: false }
    }

    fn ring(members: &[ReplicaSpec]) -> Ring {
        Ring::new(members.iter(), 0)
    }

    /// Each member's exact share of all keys.
    fn shares(ring: &Ring) -> Vec<f64> {
        let mut shares = vec![0.0; ring.members];
        let mut previous = ring.places.last().copied().unwrap_or(0);
        for (&place, &owner) in ring.places.iter().zip(&ring.owners) {
            shares[owner as usize] += place.wrapping_sub(previous) as f64 / 2_f64.powi(64);
            previous = place;
        }
        shares
    }

    fn names(count: usize, salt: u64) -> Vec<ReplicaSpec> {
        (0..count).map(|index| member(&format!("10.{salt}.0.{index}:8000"), 1)).collect()
    }

    #[test]
    fn equal_replicas_own_equal_arcs() {
        for count in 2..=64 {
            for share in shares(&ring(&names(count, 0))) {
                let relative = share * count as f64;
                assert!((0.95..=1.05).contains(&relative), "{count} replicas: one owns {relative} of its share");
            }
        }
    }

    #[test]
    fn arcs_are_proportional_to_weights() {
        let shares = shares(&ring(&[member("a", 1), member("b", 2), member("c", 5)]));
        for (share, weight) in shares.iter().zip([1.0, 2.0, 5.0]) {
            assert!((0.95..=1.05).contains(&(share * 8.0 / weight)), "{shares:?}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        assert!(ring(&names(1_000, 0)).places.len() <= MOST_POINTS);
        let heavy: Vec<_> = (0..20).map(|index| member(&index.to_string(), 100)).collect();
        assert!(ring(&heavy).places.len() <= MOST_POINTS);
    }

    /// A vector that never changes: other routers, and this one after an update, must find the same homes.
    #[test]
    fn pinned() {
        let members: Vec<_> = ["a", "b", "10.0.0.1:8000"].iter().map(|name| member(name, 1)).collect();
        let ring = ring(&members);
        let orders: Vec<Vec<usize>> = [0, 1 << 62, 1 << 63, u64::MAX].map(|key| ring.order(Key(key)).collect()).into();
        assert_eq!(orders, PINNED);
    }

    const PINNED: [[usize; 3]; 4] = [[1, 0, 2], [1, 2, 0], [1, 2, 0], [1, 0, 2]];

    #[test]
    fn an_empty_ring_has_no_home() {
        assert_eq!(ring(&[]).home(Key(7)), None);
        assert_eq!(ring(&[]).order(Key(7)).count(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn an_order_names_every_member_once_home_first(count in 1_usize..20, key in any::<u64>()) {
            let ring = ring(&names(count, 0));
            let mut order: Vec<_> = ring.order(Key(key)).collect();
            prop_assert_eq!(Some(order[0]), ring.home(Key(key)));
            order.sort_unstable();
            prop_assert_eq!(order, (0..count).collect::<Vec<_>>());
        }

        #[test]
        fn only_the_gained_or_lost_keys_move(
            weights in prop_oneof![prop::collection::vec(1_u64..4, 2..16), prop::collection::vec(8_u64..14, 2..8)],
            gone in any::<prop::sample::Index>(),
            keys in prop::collection::vec(any::<u64>(), 200),
        ) {
            let all: Vec<_> = weights.iter().enumerate().map(|(index, &weight)| member(&index.to_string(), weight)).collect();
            let gone = gone.index(all.len());
            let mut rest = all.clone();
            rest.remove(gone);
            let (before, after) = (ring(&all), ring(&rest));
            for key in keys.into_iter().map(Key) {
                // Without the lost member, every key's order is what it was.
                let expected: Vec<_> = before.order(key).filter(|&index| index != gone).map(|index| &all[index].name).collect();
                let found: Vec<_> = after.order(key).map(|index| &rest[index].name).collect();
                prop_assert_eq!(found, expected);
            }
        }

        #[test]
        fn the_order_of_learning_does_not_matter(count in 2_usize..12, rotation in 0_usize..12, keys in prop::collection::vec(any::<u64>(), 100)) {
            let members = names(count, 1);
            let mut turned = members.clone();
            turned.rotate_left(rotation % count);
            turned.swap(0, count - 1);
            let (one, other) = (ring(&members), ring(&turned));
            for key in keys.into_iter().map(Key) {
                prop_assert_eq!(one.home(key).map(|index| &members[index].name), other.home(key).map(|index| &turned[index].name));
            }
        }

        #[test]
        fn the_keys_of_a_lost_member_spread_over_all_others(salt in any::<u64>()) {
            let ring = ring(&names(8, salt));
            let mut heirs: HashMap<usize, u32> = HashMap::new();
            for key in (0..4_000).map(|step: u64| Key(step.wrapping_mul(0x9e37_79b9_7f4a_7c15))) {
                let order: Vec<_> = ring.order(key).take(2).collect();
                if order[0] == 0 {
                    *heirs.entry(order[1]).or_default() += 1;
                }
            }
            prop_assert_eq!(heirs.len(), 7);
            prop_assert!(heirs.values().all(|&count| count < 150), "{:?}", heirs);
        }
    }
}
