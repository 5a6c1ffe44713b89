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

/// Points of the whole ring, at most: 18 MB with their index. Where the weights add up to more than 256, each replica has fewer points.
const MOST_POINTS: usize = 256 * POINTS;

/// Points of a sector, on average, before the number of sectors is rounded up to a power of two: what one line of the cache holds.
const POINTS_PER_SECTOR: usize = 8;

/// A ring over the members of a pool, which it knows by their index.
///
/// Millions of points are in no cache, so a look-up costs what it misses: a search by halves, six times or more. Places are hashes, thus spread
/// evenly, so the ring is cut into equal sectors with a few points each. A key's first bits tell its sector, and a point need not repeat them: it has its
/// owner's index in their stead. So it is found, owner and all, by two misses: the sector's beginning, and its points side by side. A whole choice takes a
/// third of its time by this, or less (`benches/routing.rs`).
#[derive(Debug)]
pub struct Ring {
    /// `sectors[i]..sectors[i + 1]` are the points of sector `i`.
    sectors: Vec<u32>,
    /// In the order of their places. Each owns the arc before it.
    points: Vec<Point>,
    /// How many of a place's first bits tell its sector.
    bits: u32,
    members: usize,
    /// Each member's tag and index, in the order of the tags.
    tags: Vec<(u32, u32)>,
}

/// A place without the bits that tell its sector, moved up, and its owner's index in the bits that this left free.
type Point = u64;

impl Ring {
    /// The ring of `members`, whose names are distinct. Routers agree where their seeds do.
    pub fn new<'a>(members: impl ExactSizeIterator<Item = &'a ReplicaSpec> + Clone, seed: u64) -> Self {
        let names: Vec<&str> = members.clone().map(|member| member.name.as_str()).collect();
        let weights: usize = members.clone().map(weight).sum();
        let points = points_per_weight(weights);
        let mut ring: Vec<(u64, u32)> = Vec::with_capacity(points * weights);
        for (owner, member) in (0..).zip(members) {
            // Each point is the hash of name and number; the number has a fixed width, so no two such pairs look alike.
            let mut identity = [member.name.as_bytes(), &[0; 4]].concat();
            let number = identity.len() - 4;
            for point in 0..(points * weight(member)) as u32 {
                identity[number..].copy_from_slice(&point.to_le_bytes());
                ring.push((xxh3_64_with_seed(&identity, seed), owner));
            }
        }
        // By name where two points fall together: the order must not depend on the order of `members`.
        ring.sort_unstable_by_key(|&(place, owner)| (place, names[owner as usize]));
        let mut tags: Vec<(u32, u32)> = names.iter().map(|name| tag(name)).zip(0..).collect();
        // By name where two tags are equal, for the same reason.
        tags.sort_unstable_by_key(|&(tag, index)| (tag, names[index as usize]));
        Self { tags, ..Self::of(&ring, names.len()) }
    }

    /// The ring with these places and their owners, in this order.
    fn of(ring: &[(u64, u32)], members: usize) -> Self {
        // Enough for an owner's index, and no less than one so that all shifts are below 64.
        let bits = (ring.len() / POINTS_PER_SECTOR).max(members).max(2).next_power_of_two().ilog2();
        let mut sectors = vec![0; (1 << bits) + 1];
        for &(place, _) in ring {
            sectors[(place >> (64 - bits)) as usize + 1] += 1;
        }
        let mut before = 0;
        for sector in &mut sectors {
            before += *sector;
            *sector = before;
        }
        let points = ring.iter().map(|&(place, owner)| place << bits | u64::from(owner)).collect();
        Self { sectors, points, bits, members, tags: Vec::new() }
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

    /// The member that has this tag; `None` where there is none.
    pub fn tagged(&self, tag: u32) -> Option<usize> {
        let at = self.tags.partition_point(|&(other, _)| other < tag);
        self.tags.get(at).filter(|&&(other, _)| other == tag).map(|&(_, index)| index as usize)
    }

    /// The owners of the points from the key on, once around.
    fn walk(&self, key: Key) -> impl Iterator<Item = usize> + '_ {
        let sector = (key.0 >> (64 - self.bits)) as usize;
        let (begin, end) = (self.sectors[sector] as usize, self.sectors[sector + 1] as usize);
        // Where a place is the key's, the point is no less: an owner's index only adds to it.
        let least = key.0 << self.bits;
        let (before, after) = self.points.split_at(begin + self.points[begin..end].partition_point(|&point| point < least));
        let owner = (1 << self.bits) - 1;
        after.iter().chain(before).map(move |&point| (point & owner) as usize)
    }
}

/// What to remember a replica by where its name is too long: four bytes, never 0, that depend on its name alone and so outlast its incarnations. Two of a
/// thousand replicas have the same tag in one fleet of ten thousand; then the hint leads to one of them, always the same.
pub fn tag(name: &str) -> u32 {
    (xxh3_64_with_seed(name.as_bytes(), TAGS) as u32).max(1)
}

/// Keeps tags apart from the places of the ring.
const TAGS: u64 = 0x7461_6773;

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

    /// The points' places and owners, as they went in.
    fn points(ring: &Ring) -> Vec<(u64, u32)> {
        let sectors = ring.sectors.windows(2).zip(0_u64..);
        let points = sectors.flat_map(|(sector, number)| {
            let points = &ring.points[sector[0] as usize..sector[1] as usize];
            points.iter().map(move |point| (number << (64 - ring.bits) | point >> ring.bits, (point & ((1 << ring.bits) - 1)) as u32))
        });
        points.collect()
    }

    /// Each member's exact share of all keys.
    fn shares(ring: &Ring) -> Vec<f64> {
        let mut shares = vec![0.0; ring.members];
        let points = points(ring);
        let mut previous = points.last().map_or(0, |point| point.0);
        for (place, owner) in points {
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
        let heavy: Vec<_> = (0..20).map(|index| member(&index.to_string(), 100)).collect();
        for members in [&names(1_000, 0), &names(64, 0), &heavy] {
            let ring = ring(members);
            assert!(ring.points.len() <= MOST_POINTS);
            assert!(ring.sectors.len() <= ring.points.len() / 4, "half a byte or one for each point");
        }
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
    fn a_tag_finds_its_member_wherever_it_stands() {
        let mut members = names(300, 0);
        for _ in 0..2 {
            let ring = Ring::new(members.iter(), 7);
            for (index, member) in members.iter().enumerate() {
                assert_eq!(ring.tagged(tag(&member.name)), Some(index));
            }
            assert_eq!((ring.tagged(0), ring.tagged(tag("nobody"))), (None, None));
            members.rotate_left(100);
        }
    }

    #[test]
    fn an_empty_ring_has_no_home() {
        assert_eq!(ring(&[]).home(Key(7)), None);
        assert_eq!(ring(&[]).order(Key(7)).count(), 0);
    }

    /// Places that fall together, or lie where sectors and the ring itself begin and end, more often than hashes do.
    fn any_place() -> impl Strategy<Value = u64> {
        let edge = (0_u64..64, 0_u32..8, -1_i64..=1).prop_map(|(sector, bits, beside)| (sector << (63 - bits)).wrapping_add_signed(beside));
        prop_oneof![any::<u64>(), edge, 0_u64..4, (u64::MAX - 4)..=u64::MAX]
    }

    proptest! {
        #[test]
        fn sectors_find_what_a_plain_search_finds(
            mut plain in prop::collection::vec((any_place(), 0_u32..40), 1..200),
            members in 40_usize..300,
            keys in prop::collection::vec(any_place(), 50),
        ) {
            // Owners of one place stay in their order, whatever it is.
            plain.sort_by_key(|point| point.0);
            let ring = Ring::of(&plain, members);
            prop_assert_eq!(&points(&ring), &plain);
            let beside = plain.iter().flat_map(|point| [point.0.wrapping_sub(1), point.0, point.0.wrapping_add(1)]);
            for key in keys.into_iter().chain(beside).chain([0, u64::MAX]) {
                let first = plain.partition_point(|point| point.0 < key);
                let expected: Vec<_> = plain[first..].iter().chain(&plain[..first]).map(|point| point.1 as usize).collect();
                prop_assert_eq!(ring.home(Key(key)), Some(expected[0]));
                prop_assert_eq!(ring.walk(Key(key)).collect::<Vec<_>>(), expected);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn sectors_of_a_whole_ring_find_what_a_plain_search_finds(count in 1_usize..80, keys in prop::collection::vec(any_place(), 200)) {
            let ring = ring(&names(count, 2));
            let plain = points(&ring);
            prop_assert!(plain.is_sorted_by_key(|point| point.0));
            for key in keys.into_iter().chain(plain.iter().step_by(97).map(|point| point.0)) {
                let first = plain.partition_point(|point| point.0 < key);
                prop_assert_eq!(ring.home(Key(key)), Some(plain.get(first).unwrap_or(&plain[0]).1 as usize));
            }
        }

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
