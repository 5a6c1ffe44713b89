//! The queue: all lines, what bounds them together, and who is next of all for whom there is room.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

use super::Settings;
use super::class::{Class, Waiting};

/// Each so many-th that goes is the one that has waited longest, whatever its priority: so nobody is starved by a flow of better ones.
const OLDEST_EACH: u64 = 8;

/// What the queue needs to know of a request.
#[derive(Clone, Debug)]
pub struct Entry<L> {
    /// Where it waits: requests in one line can go to the same replicas.
    pub line: L,
    /// Lower goes first, as in vLLM.
    pub priority: i32,
    /// Whose it is; `None`: of all those that do not say.
    pub flow: Option<u64>,
    /// Bytes of its body.
    pub size: usize,
    /// Since when it is on its way.
    pub arrived: Instant,
}

/// A place in the queue, by which a request can be taken out again.
#[derive(Debug)]
pub struct Ticket<L> {
    line: L,
    priority: i32,
    flow: Option<u64>,
    number: u64,
}

/// Why a request may not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// As many requests wait as may.
    Requests,
    /// With its body there would be more bytes than may be.
    Bytes,
}

/// Requests that wait, each with a `T` of the caller's, in lines named by `L`.
pub struct Queue<L, T> {
    /// None of them empty.
    lines: BTreeMap<L, Line<T>>,
    requests: usize,
    bytes: usize,
    /// Tickets so far.
    numbers: u64,
    /// Requests that went so far.
    served: u64,
}

struct Line<T> {
    /// By priority, none of them empty.
    classes: BTreeMap<i32, Class<T>>,
    /// How many had gone in all when one of this line went last; when it was opened, before that.
    served_at: u64,
}

/// The next of a class, as it stands beside those of others.
struct Candidate<L> {
    line: L,
    priority: i32,
    served_at: u64,
    waited: Duration,
    number: u64,
}

impl<L, T> Default for Queue<L, T> {
    fn default() -> Self {
        Self { lines: BTreeMap::new(), requests: 0, bytes: 0, numbers: 0, served: 0 }
    }
}

impl<L: Ord + Clone, T> Queue<L, T> {
    /// Requests that wait.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Bytes of their bodies.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether one more request with so many bytes may wait. Bounds hold for whoever comes: those who wait already stay, whatever is set meanwhile.
    fn room_for(&self, size: usize, settings: &Settings) -> Result<(), Full> {
        if self.requests >= settings.queue_max_requests {
            Err(Full::Requests)
        } else if self.bytes.saturating_add(size) > settings.queue_max_bytes {
            Err(Full::Bytes)
        } else {
            Ok(())
        }
    }

    /// Lets a request wait, at the end of its flow; `value` is dropped where it may not.
    pub fn push(&mut self, entry: Entry<L>, value: T, settings: &Settings) -> Result<Ticket<L>, Full> {
        self.room_for(entry.size, settings)?;
        let Entry { line, priority, flow, size, arrived } = entry;
        let number = self.numbers;
        self.numbers += 1;
        self.requests += 1;
        self.bytes += size;
        let served_at = self.served;
        let known = self.lines.entry(line.clone()).or_insert_with(|| Line { classes: BTreeMap::new(), served_at });
        known.classes.entry(priority).or_default().push(flow, number, Waiting { arrived, size, value });
        Ok(Ticket { line, priority, flow, number })
    }

    /// Takes out a request that will not wait any longer; `None` where it has gone already. Logarithmic in what waits.
    pub fn remove(&mut self, ticket: &Ticket<L>) -> Option<T> {
        let Ticket { line, priority, flow, number } = ticket;
        let removed = self.lines.get_mut(line)?.classes.get_mut(priority)?.remove(*flow, *number)?;
        self.gone(line, *priority, &removed);
        Some(removed.value)
    }

    /// Takes out the first request that goes: the next of each class are shown to `take`, best first, until it takes one, which it does by returning
    /// something. One that finds no room speaks for its line, as all in it can go to the same replicas.
    pub fn pop<R>(&mut self, now: Instant, settings: &Settings, mut take: impl FnMut(&T) -> Option<R>) -> Option<(T, R)> {
        let is_oldests_turn = self.served % OLDEST_EACH == OLDEST_EACH - 1;
        // One list for each priority (one for all in the turn of the oldest), the next one last.
        let mut lists: BTreeMap<i32, Vec<Candidate<L>>> = BTreeMap::new();
        for (line, Line { classes, served_at }) in &mut self.lines {
            for (&priority, class) in classes {
                let Some((number, next)) = class.next() else { continue };
                let waited = now.saturating_duration_since(next.arrived);
                let served_at = if is_oldests_turn { 0 } else { *served_at };
                let candidate = Candidate { line: line.clone(), priority, served_at, waited, number };
                lists.entry(if is_oldests_turn { 0 } else { priority }).or_default().push(candidate);
            }
        }
        let standing = |list: i32, candidate: &Candidate<L>| Reverse((rank(list, candidate.waited, settings.queue_aging), list));
        let mut best = BinaryHeap::with_capacity(lists.len());
        for (&list, candidates) in &mut lists {
            candidates.sort_by_key(|one| Reverse((one.served_at, Reverse(one.waited), one.number)));
            best.extend(candidates.last().map(|candidate| standing(list, candidate)));
        }
        let mut full: Vec<L> = Vec::new();
        while let Some(Reverse((_, list))) = best.pop() {
            let candidates = lists.get_mut(&list)?;
            let candidate = candidates.pop()?;
            best.extend(candidates.last().map(|candidate| standing(list, candidate)));
            if full.contains(&candidate.line) {
                continue;
            }
            let class = self.lines.get_mut(&candidate.line)?.classes.get_mut(&candidate.priority)?;
            let (_, next) = class.next()?;
            let Some(taken) = take(&next.value) else {
                full.push(candidate.line);
                continue;
            };
            let waiting = class.pop()?;
            self.served += 1;
            let served = self.served;
            if let Some(line) = self.lines.get_mut(&candidate.line) {
                line.served_at = served;
            }
            self.gone(&candidate.line, candidate.priority, &waiting);
            return Some((waiting.value, taken));
        }
        None
    }

    /// Keeps the counts, and nothing that is empty.
    fn gone(&mut self, line: &L, priority: i32, waiting: &Waiting<T>) {
        self.requests -= 1;
        self.bytes -= waiting.size;
        let Some(state) = self.lines.get_mut(line) else { return };
        if state.classes.get(&priority).is_some_and(Class::is_empty) {
            state.classes.remove(&priority);
        }
        if state.classes.is_empty() {
            self.lines.remove(line);
        }
    }

    /// Lines, classes, flows and turns that are remembered: for tests.
    #[cfg(test)]
    pub(super) fn footprint(&self) -> [usize; 4] {
        let classes = || self.lines.values().flat_map(|line| line.classes.values());
        let flows: (usize, usize) = classes().map(Class::footprint).fold((0, 0), |sum, (flows, turns)| (sum.0 + flows, sum.1 + turns));
        [self.lines.len(), classes().count(), flows.0, flows.1]
    }
}

/// Where a priority stands after so long: each `aging` is worth one step, and parts of it count. Lower goes first.
fn rank(priority: i32, waited: Duration, aging: Duration) -> i128 {
    let nanoseconds = |time: Duration| i128::try_from(time.as_nanos()).unwrap_or(i128::MAX / 2);
    i128::from(priority).saturating_mul(nanoseconds(aging)).saturating_sub(nanoseconds(waited))
}
