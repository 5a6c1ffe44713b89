//! What a pool's recent traffic says of the keys in it: which boundary of a prompt a request is placed by where the prefix has no fixed length, whether
//! its key was asked for before, and where that went; and where the length is fixed, how well it fits.
//!
//! It counts in requests, not in time, so that two routers which see halves of one stream come to the same. It chooses no replica.

use super::decay::{ONE_STEP, decay};
use super::sight::{Direction, Fit, Moved};
use super::table::{Entry, MOST_ENTRIES, Table};
use super::top_keys::TopKeys;
use crate::request::{Boundary, Key};

/// A boundary is hot where its share of the traffic is above this part of a replica's equal share: a replica must be able to hold several keys,
/// or one of them alone fills it. Four keys of the largest size make one replica's share.
const HOT_SHARE: f64 = 0.25;

/// Requests added to those counted, whose weight decays as the counts' does, so that a share means the same in a router that has just started: early on,
/// a few requests alike are no share yet.
const PRIOR: f64 = 50.0;

/// A smaller pool counts as one of so many: of two replicas, a quarter of a share would be an eighth of all traffic, and a few keys as large as that do not
/// spread evenly. What is told apart more finely costs little: its common beginning is on both of them at most.
const LEAST_MEMBERS: usize = 8;

/// No count up to here is hot, however many replicas there are: below, chance decides, and two routers would not agree.
const LEAST_LIMIT: f64 = 4.0;

/// A hot boundary is hot until its count is below the limit divided by this, so that one at the limit does not move its keys to and fro.
const HYSTERESIS: f64 = 2.0;

/// A key is known for so many requests after it was last asked for. Engines forget as well.
pub(super) const KNOWN_FOR: u32 = 4_000;

/// Weight of one request in the average of how many keys are known: half of it comes from the last 140.
const REUSE_WEIGHT: f64 = 0.005;

/// Until so many requests were seen nobody knows whether traffic has reuse: all its keys are new to a router that has just started, while the replicas
/// hold what they got before. It is taken to have some, which sends keys where every other router does, too.
const START: u64 = 500;

/// Where there is no room for a larger table, it is asked for again after so many requests.
const GROWTH_PAUSE: u64 = 1_000;

/// What is remembered of one pool's traffic.
#[derive(Debug)]
pub(super) struct Memory {
    table: Table,
    /// Requests with a key so far: the clock.
    requests: u64,
    /// What all these requests together count, decayed: at first their number, in the end a thousand.
    weight: f64,
    /// Moving average of whether the key was known, and the sum of its weights, by which it is to be divided.
    reuse: (f64, f64),
    /// Before this time no larger table is asked for.
    grows_from: u64,
    /// Those that requests are placed by.
    top: TopKeys,
    /// Whether the prefix has a fixed length.
    is_fixed: bool,
}

/// What a request's prompt is placed by, and what is known of that.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Look {
    pub(super) boundary: Boundary,
    /// Where the last hot boundary before that is; 0 where there is none.
    pub(super) hot: u32,
    /// The replica that the key went to when it was first seen, by its tag, 0 for the ring's home; `None` where it is seen for the first time.
    pub(super) known: Option<u32>,
    /// How many keys are known, of late; `None` where that cannot be said yet.
    pub(super) reuse: Option<f64>,
    /// When this was, by the pool's clock.
    pub(super) at: u32,
    /// The boundaries that became hot or cooled.
    pub(super) moved: Vec<Moved>,
    pub(super) fit: Fit,
}

/// What would be seen of a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Glance {
    /// The boundary that it would be placed by.
    pub(super) end: usize,
    /// As in [`Look`].
    pub(super) known: Option<u32>,
    pub(super) reuse: Option<f64>,
    /// Of each boundary, the share of recent requests that begin with it, this one included, and whether it is hot.
    pub(super) steps: Vec<(f64, bool)>,
    /// Above which share that is.
    pub(super) limit: f64,
}

/// What had to be forgotten, though it still counted and a larger table would have kept it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Crowded {
    /// How many entries there was room for.
    pub(super) capacity: usize,
    forgotten: Vec<Entry>,
}

impl Memory {
    pub(super) fn new(is_fixed: bool) -> Self {
        Self { table: Table::new(), requests: 0, weight: 0.0, reuse: (0.0, 0.0), grows_from: 0, top: TopKeys::new(), is_fixed }
    }

    /// Takes note of a request to a pool of so many members. The first of its boundaries that is not hot is the one that it is placed by, or the last;
    /// those before it are counted, those behind it are not. And what found no room. `None` where there is no boundary.
    pub(super) fn look(&mut self, boundaries: &[Boundary], members: usize) -> Option<(Look, Option<Crowded>)> {
        let Walk { end, is_known, count, home, moved, crowded, .. } = self.walk(boundaries, members)?;
        let boundary = boundaries[end];
        self.note(is_known);
        self.top.count(boundary.key.0);
        let look = Look {
            boundary,
            hot: end.checked_sub(1).map_or(0, |last| boundaries[last].depth),
            known: is_known.then_some(home),
            reuse: self.reuse_so_far(),
            at: self.requests as u32,
            moved,
            fit: if is_too_much(count, self.weight, members) { Fit::Hot } else { Fit::of(is_known) },
        };
        Some((look, crowded))
    }

    /// The same for a request that is placed by its first boundary, whatever is seen of it: the others show whether that is a good one.
    pub(super) fn study(&mut self, boundaries: &[Boundary], members: usize) -> Option<(Fit, Option<Crowded>)> {
        let Walk { first, divides, crowded, .. } = self.walk(boundaries, members)?;
        self.note(first.0);
        self.top.count(boundaries[0].key.0);
        let fit = match is_too_much(first.1, self.weight, members) {
            false => Fit::of(first.0),
            true if divides => Fit::Short,
            true => Fit::Hot,
        };
        Some((fit, crowded))
    }

    /// Counts a request's boundaries up to the first that is not hot, or to the last.
    fn walk(&mut self, boundaries: &[Boundary], members: usize) -> Option<Walk> {
        let last = boundaries.len().checked_sub(1)?;
        let Step { requests, weight, limit } = self.next(members);
        (self.requests, self.weight) = (requests, weight);
        let now = requests as u32;
        let (mut moved, mut forgotten, mut first, mut divides) = (Vec::new(), Vec::new(), (false, 0.0), false);
        for (index, &boundary) in boundaries.iter().enumerate() {
            let (entry, displaced) = self.table.entry(boundary.key.0, now);
            forgotten.extend(displaced.filter(|other| now.wrapping_sub(other.touched) < KNOWN_FOR));
            let is_known = is_known(entry, now);
            // One replica gets everything, whatever is hot.
            if let Some(direction) = touch(entry, now, limit as f32)
                && members > 1
            {
                moved.push(Moved {
                    boundary,
                    direction,
                    count: entry.count,
                    limit: limit as f32,
                    window: self.weight as f32,
                    replicas: members,
                });
            }
            let Entry { count, is_hot, home, .. } = *entry;
            match index {
                0 => first = (is_known, count),
                _ => divides |= is_known && !is_too_much(count, weight, members),
            }
            if is_hot && index < last {
                continue;
            }
            if !is_known {
                entry.home = 0;
            }
            let capacity = self.table.capacity();
            let may_grow = !forgotten.is_empty() && capacity < MOST_ENTRIES && self.requests >= self.grows_from;
            let crowded = may_grow.then_some(Crowded { capacity, forgotten });
            return Some(Walk { end: index, is_known, count, home, first, divides, moved, crowded });
        }
        None
    }

    /// Whether [`Self::look`] would go no further than to `boundary`: it is not hot, and this request does not make it so.
    pub(super) fn is_enough(&mut self, boundary: &Boundary, members: usize) -> bool {
        let Step { requests, limit, .. } = self.next(members);
        self.table.get_mut(boundary.key.0).is_none_or(|entry| !touched(entry, requests as u32, limit as f32).1)
    }

    /// What [`Self::look`] would see of a request. It changes nothing.
    pub(super) fn peek(&mut self, boundaries: &[Boundary], members: usize) -> Option<Glance> {
        let last = boundaries.len().checked_sub(1)?;
        let Step { requests, weight, limit } = self.next(members);
        let now = requests as u32;
        let (mut steps, mut end) = (Vec::new(), None);
        for (index, boundary) in boundaries.iter().enumerate() {
            let entry = self.table.get_mut(boundary.key.0);
            let (count, is_hot) = entry.as_ref().map_or((1.0, false), |entry| touched(entry, now, limit as f32));
            let known = entry.filter(|entry| is_known(entry, now)).map(|entry| entry.home);
            // Counts are rounded, so that all may be a little more than all.
            steps.push(((f64::from(count) / weight).min(1.0), is_hot));
            if end.is_none() && (!is_hot || index == last) {
                end = Some((index, known));
            }
        }
        let (end, known) = end?;
        Some(Glance { end, known, reuse: self.reuse_so_far(), steps, limit: limit / weight })
    }

    /// The most frequent keys, at most so many: each with its share of the recent requests, and the tag of its home where that is not the ring's.
    pub(super) fn hot_keys(&mut self, most: usize) -> Vec<(Key, f64, Option<u32>)> {
        let now = self.requests as u32;
        let top = self.top.shares().into_iter().take(most);
        top.map(|(key, share)| (Key(key), share, self.table.get_mut(key).filter(|entry| is_known(entry, now)).map(|entry| entry.home)))
            .collect()
    }

    /// What the clock and the limit are for the next request.
    fn next(&self, members: usize) -> Step {
        let weight = self.weight * ONE_STEP + 1.0;
        // One replica gets everything: how prompts that are placed there by a fixed length could be divided is of no use.
        if self.is_fixed && members < 2 {
            return Step { requests: self.requests + 1, weight, limit: f64::INFINITY };
        }
        // Rounded up, so that one replica more or less mostly moves no boundary.
        let limit = (HOT_SHARE * (weight + PRIOR) / members.max(LEAST_MEMBERS).next_power_of_two() as f64).max(LEAST_LIMIT);
        Step { requests: self.requests + 1, weight, limit }
    }

    /// Keeps in mind that a key which was first seen `at` that time has its home there. Where it was asked for since, that request went to the ring's
    /// home, which it stays with.
    pub(super) fn remember(&mut self, key: u64, at: u32, home: u32) {
        if let Some(entry) = self.table.get_mut(key).filter(|entry| entry.touched == at) {
            entry.home = home;
        }
    }

    /// How many of the keys are known, of late; `None` where nothing was seen.
    pub(super) fn reuse(&self) -> Option<f64> {
        (self.reuse.1 > 0.0).then(|| self.reuse.0 / self.reuse.1)
    }

    /// The share of the recent requests that are placed by the most frequent key; `None` where too few were seen.
    pub(super) fn top_share(&self) -> Option<f64> {
        self.top.top_share()
    }

    /// How many entries it has room for.
    pub(super) fn capacity(&self) -> usize {
        self.table.capacity()
    }

    /// Makes room for twice as many, and takes back what was forgotten.
    pub(super) fn grow(&mut self, crowded: Crowded) {
        self.table.double();
        crowded.forgotten.into_iter().for_each(|entry| self.table.restore(entry));
    }

    /// Goes on with the room that there is.
    pub(super) fn stay(&mut self) {
        self.grows_from = self.requests + GROWTH_PAUSE;
    }

    fn note(&mut self, is_known: bool) {
        let towards = |mean: &mut f64, value: f64| *mean += REUSE_WEIGHT * (value - *mean);
        towards(&mut self.reuse.0, f64::from(u8::from(is_known)));
        towards(&mut self.reuse.1, 1.0);
    }

    fn reuse_so_far(&self) -> Option<f64> {
        self.reuse().filter(|_| self.requests >= START)
    }
}

/// How far a request's boundaries were gone through, and what was seen there.
struct Walk {
    /// The boundary that is not hot, or the last.
    end: usize,
    is_known: bool,
    /// How many share it, decayed.
    count: f32,
    home: u32,
    /// Whether the first of all boundaries was known, and how many share that.
    first: (bool, f32),
    /// Whether one behind the first was known, and is not shared by too many for one replica.
    divides: bool,
    moved: Vec<Moved>,
    crowded: Option<Crowded>,
}

impl Fit {
    fn of(is_known: bool) -> Self {
        if is_known { Self::Known } else { Self::New }
    }
}

/// Whether `entry`'s key was asked for of late.
fn is_known(entry: &Entry, now: u32) -> bool {
    entry.count > 0.0 && now.wrapping_sub(entry.touched) < KNOWN_FOR
}

/// Whether so many of recent requests, which count `weight` together, are more than a replica's equal share.
fn is_too_much(count: f32, weight: f64, members: usize) -> bool {
    f64::from(count) > (weight + PRIOR) / members as f64
}

/// One request's place in the count.
struct Step {
    requests: u64,
    weight: f64,
    limit: f64,
}

/// The count of `entry`'s key with one request more, and whether it is hot with that.
fn touched(entry: &Entry, now: u32, limit: f32) -> (f32, bool) {
    let count = entry.count * decay(now.wrapping_sub(entry.touched)) + 1.0;
    (count, count > if entry.is_hot { limit / HYSTERESIS as f32 } else { limit })
}

/// Counts a request for `entry`'s key. Whether that made it hot, or cooled it.
fn touch(entry: &mut Entry, now: u32, limit: f32) -> Option<Direction> {
    let was_hot = entry.is_hot;
    (entry.count, entry.is_hot) = touched(entry, now, limit);
    entry.touched = now;
    match (was_hot, entry.is_hot) {
        (false, true) => Some(Direction::Hot),
        (true, false) => Some(Direction::Cooled),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::request::Key;

    fn boundaries(keys: &[u64]) -> Vec<Boundary> {
        (0..).zip(keys).map(|(index, &key)| Boundary { depth: 1_024 << index, key: Key(key) }).collect()
    }

    fn look(memory: &mut Memory, keys: &[u64], members: usize) -> Look {
        let (look, crowded) = memory.look(&boundaries(keys), members).expect("there is a boundary");
        crowded.into_iter().for_each(|crowded| memory.grow(crowded));
        look
    }

    /// So many requests that are like no other.
    fn others(memory: &mut Memory, count: u64) {
        for _ in 0..count {
            let key = memory.requests.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63;
            look(memory, &[key], 8);
        }
    }

    proptest! {
        /// Whoever reads a prompt only as far as it is asked for gets what a whole one would get.
        #[test]
        fn what_lies_beyond_enough_changes_nothing(stream in prop::collection::vec((0_u64..4, 0_u64..8, 1_usize..5), 1..1_500), members in 1_usize..40) {
            let (mut whole, mut part) = (Memory::new(false), Memory::new(false));
            for (tree, branch, depth) in stream {
                let keys: Vec<u64> = (0..depth as u64).map(|level| 1 + tree + 10 * level * (1 + branch * u64::from(level > 1))).collect();
                let all = boundaries(&keys);
                let end = all.iter().position(|boundary| part.is_enough(boundary, members)).map_or(all.len(), |last| last + 1);
                prop_assert_eq!(part.look(&all[..end], members), whole.look(&all, members));
            }
        }
    }

    #[test]
    fn the_limit_is_a_quarter_of_a_replicas_share_and_at_least_four() {
        // (members, requests before, times that a key is asked for until it is hot): 0.25 · 1,050 / 8 = 32.8; 0.25 · 60 / 8 < 4.
        for (members, before, expected) in
            [(8, 8_000, 34), (7, 8_000, 34), (5, 8_000, 34), (9, 8_000, 17), (64, 8_000, 5), (8, 10, 5), (2, 8_000, 34), (2, 150, 7)]
        {
            let mut memory = Memory::new(false);
            for step in 0..before {
                look(&mut memory, &[step + 1_000], members);
            }
            let times = (1..).find(|_| !look(&mut memory, &[1, 2], members).moved.is_empty()).expect("some time");
            assert_eq!(times, expected, "{members} members after {before} requests");
        }
    }

    #[test]
    fn the_shallowest_boundary_that_is_not_hot_places_a_request() {
        let mut memory = Memory::new(false);
        let depths: Vec<u32> = (0..12).map(|_| look(&mut memory, &[1, 2, 3], 8).boundary.depth).collect();
        assert_eq!(depths, [1_024, 1_024, 1_024, 1_024, 2_048, 2_048, 2_048, 2_048, 4_096, 4_096, 4_096, 4_096]);
        assert_eq!(look(&mut memory, &[1, 2], 8).boundary.depth, 2_048, "the last, though it is hot");
        assert_eq!(look(&mut memory, &[1, 9], 8).boundary.key, Key(9));
    }

    #[test]
    fn what_lies_behind_the_boundary_is_not_counted() {
        let mut memory = Memory::new(false);
        for _ in 0..4 {
            look(&mut memory, &[1, 2], 8);
        }
        assert!(memory.table.get_mut(1).is_some_and(|entry| entry.count > 3.9));
        assert!(memory.table.get_mut(2).is_none());
    }

    /// What a fixed length comes to for prompts whose keys at it, and at each further length, are these.
    fn fits(prompts: impl IntoIterator<Item = Vec<u64>>, members: usize) -> HashMap<Fit, usize> {
        let (mut memory, mut fits) = (Memory::new(true), HashMap::new());
        for keys in prompts {
            let (fit, crowded) = memory.study(&boundaries(&keys), members).expect("there is a boundary");
            crowded.into_iter().for_each(|crowded| memory.grow(crowded));
            *fits.entry(fit).or_default() += 1;
        }
        fits
    }

    #[test]
    fn a_fixed_length_is_too_short_where_a_longer_one_would_divide_what_comes_again() {
        let of = |prompts: Box<dyn Iterator<Item = Vec<u64>>>, fit: Fit| fits(prompts, 4).get(&fit).copied().unwrap_or_default();
        // All begin alike, and part further on in 50 ways that come again and again.
        let alike = || Box::new((0..4_000_u64).map(|number| vec![1, 2, 100 + number % 50, 1_000 + number])) as Box<_>;
        assert!(of(alike(), Fit::Short) > 3_800);
        // In ways that never come again, or not at all.
        let unique = || Box::new((0..4_000_u64).map(|number| vec![1, 2, 100 + number])) as Box<_>;
        // (But for those before the second boundary has caught up with the first.)
        assert!(of(unique(), Fit::Short) < 20 && of(unique(), Fit::Hot) > 3_900);
        let same = || Box::new((0..4_000_u64).map(|_| vec![1_u64, 2, 3])) as Box<_>;
        assert!(of(same(), Fit::Hot) > 3_900);
        // One of many is asked for by half of the requests.
        let half = || {
            Box::new((0..4_000_u64).map(|number| if number % 2 == 0 { vec![1, 2, 3, number + 99] } else { vec![7 + number % 101] }))
                as Box<_>
        };
        assert!(of(half(), Fit::Hot) > 1_900 && of(half(), Fit::Known) > 1_700 && of(half(), Fit::Short) < 20);
        // As many as are good for a replica, however often they come.
        let fitting = || Box::new((0..4_000_u64).map(|number| vec![1 + number % 5, 100 + number % 50])) as Box<_>;
        assert!(of(fitting(), Fit::Known) > 3_900);
        let new = || Box::new((0..4_000_u64).map(|number| vec![number + 1])) as Box<_>;
        assert_eq!(of(new(), Fit::New), 4_000);
    }

    #[test]
    fn of_one_replica_no_length_is_too_short() {
        let fits = fits((0..1_000).map(|number| vec![1, 2 + number % 7]), 1);
        assert_eq!(fits.get(&Fit::Short), None, "{fits:?}");
    }

    #[test]
    fn a_hot_boundary_cools_at_half_of_the_limit() {
        let mut memory = Memory::new(false);
        others(&mut memory, 8_000);
        while look(&mut memory, &[1, 2], 8).boundary.depth < 2_048 {}
        let count = |memory: &mut Memory| memory.table.get_mut(1).map_or(0.0, |entry| entry.count);
        assert!(count(&mut memory) > 32.8);
        // exp(-0.6) leaves 0.55 of it, exp(-0.8) 0.45; the next request counts itself.
        others(&mut memory, 600);
        let still = look(&mut memory, &[1, 2], 8);
        assert_eq!((still.boundary.depth, still.moved.len()), (2_048, 0), "{}", count(&mut memory));
        others(&mut memory, 300);
        let cooled = look(&mut memory, &[1, 2], 8);
        assert_eq!((cooled.boundary.depth, cooled.moved[0].direction), (1_024, Direction::Cooled), "{}", count(&mut memory));
        let again = look(&mut memory, &[1, 2], 8);
        assert_eq!((again.boundary.depth, again.moved.len()), (1_024, 0));
    }

    #[test]
    fn a_key_is_known_for_4000_requests() {
        for (between, known) in [(0, true), (3_998, true), (3_999, false)] {
            let mut memory = Memory::new(false);
            let first = look(&mut memory, &[1], 8);
            assert_eq!(first.known, None);
            memory.remember(1, first.at, 7);
            for _ in 0..between {
                look(&mut memory, &[2], 8);
            }
            assert_eq!(look(&mut memory, &[1], 8).known, known.then_some(7), "{between} in between");
            assert_eq!(look(&mut memory, &[1], 8).known, Some(if known { 7 } else { 0 }), "what is forgotten is forgotten for good");
        }
    }

    #[test]
    fn a_home_is_not_remembered_once_the_key_was_asked_for_again() {
        let mut memory = Memory::new(false);
        let first = look(&mut memory, &[1], 8);
        let second = look(&mut memory, &[1], 8);
        assert_eq!(second.known, Some(0));
        memory.remember(1, first.at, 7);
        assert_eq!(look(&mut memory, &[1], 8).known, Some(0));
        memory.remember(99, 1, 7);
        assert_eq!(look(&mut memory, &[99], 8).known, None, "what is not there is not made");
    }

    #[test]
    fn reuse_is_the_share_of_known_keys_and_told_once_there_is_evidence() {
        let mut memory = Memory::new(false);
        for step in 0..START - 1 {
            assert_eq!(look(&mut memory, &[step + 1], 8).reuse, None, "{step}");
        }
        assert_eq!(look(&mut memory, &[1 << 40], 8).reuse, Some(0.0));
        for step in 0..2_000 {
            look(&mut memory, &[if step % 4 == 0 { 1 << 40 } else { step << 20 | 1 }], 8);
        }
        let reuse = memory.reuse().expect("much was seen");
        assert!((0.2..0.3).contains(&reuse), "{reuse}");
        // The average is not drawn to where it began.
        let mut other = Memory::new(false);
        for _ in 0..11 {
            look(&mut other, &[1], 8);
        }
        assert!(other.reuse().is_some_and(|reuse| reuse > 0.9));
    }
}
