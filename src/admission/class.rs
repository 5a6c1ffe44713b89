//! The requests of one priority in one line, and whose turn it is among them: deficit round robin over the bytes of bodies, of which each request
//! counts as [`LEAST_COST`] at least.
//!
//! Flows take turns. At its turn a flow is given a [`QUANTUM`], and its requests go, first come first, as long as they cost no more than
//! what it has; then the next flow's turn begins. So between two flows that both have something waiting, the bytes charged never differ by more than
//! a quantum and the largest request. Priorities are none of its business.

use std::collections::BTreeMap;
use std::time::Instant;

/// Bytes that a flow may send at each turn: about 4,000 tokens of English text, so that a usual prompt goes in one turn.
pub const QUANTUM: u64 = 16 << 10;

/// What a request is charged at least. It takes a replica's time however short it is, so no more than eight go in one turn.
pub(super) const LEAST_COST: u64 = QUANTUM / 8;

/// A request that waits.
pub(super) struct Waiting<T> {
    pub(super) arrived: Instant,
    /// Bytes of its body.
    pub(super) size: usize,
    pub(super) value: T,
}

impl<T> Waiting<T> {
    /// What it is charged.
    fn cost(&self) -> u64 {
        (self.size as u64).max(LEAST_COST)
    }
}

/// Flows by identifier; `None` is the flow of all that have none.
pub(super) struct Class<T> {
    flows: BTreeMap<Option<u64>, Flow<T>>,
    /// Whose turn comes when, by places that only grow: a flow whose turn is over takes the last.
    turns: BTreeMap<u64, Option<u64>>,
    next_place: u64,
}

/// It has at least one request.
struct Flow<T> {
    /// By number, which is the order in which they came.
    waiting: BTreeMap<u64, Waiting<T>>,
    place: u64,
    /// What it may send yet.
    deficit: u64,
    /// Whether it has been given the quantum of its turn.
    in_turn: bool,
}

impl<T> Flow<T> {
    fn cost(&self) -> Option<u64> {
        self.waiting.first_key_value().map(|(_, first)| first.cost())
    }
}

impl<T> Default for Class<T> {
    fn default() -> Self {
        Self { flows: BTreeMap::new(), turns: BTreeMap::new(), next_place: 0 }
    }
}

impl<T> Class<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Adds a request whose `number` is higher than all before.
    pub(super) fn push(&mut self, flow: Option<u64>, number: u64, waiting: Waiting<T>) {
        let place = self.next_place;
        let known = self.flows.entry(flow).or_insert_with(|| Flow { waiting: BTreeMap::new(), place, deficit: 0, in_turn: false });
        known.waiting.insert(number, waiting);
        if known.place == place {
            self.turns.insert(place, flow);
            self.next_place += 1;
        }
    }

    /// The one that is next. It stays that until it goes, by [`Class::pop`] or by itself: who comes later joins behind.
    pub(super) fn next(&mut self) -> Option<(u64, &Waiting<T>)> {
        let flow = self.advance()?;
        self.flows.get(&flow)?.waiting.first_key_value().map(|(&number, first)| (number, first))
    }

    /// Takes out and charges the one that is next.
    pub(super) fn pop(&mut self) -> Option<Waiting<T>> {
        let flow = self.advance()?;
        let state = self.flows.get_mut(&flow)?;
        let (_, first) = state.waiting.pop_first()?;
        state.deficit = state.deficit.saturating_sub(first.cost());
        self.forget_if_empty(flow);
        Some(first)
    }

    /// Takes out one that goes unserved.
    pub(super) fn remove(&mut self, flow: Option<u64>, number: u64) -> Option<Waiting<T>> {
        let state = self.flows.get_mut(&flow)?;
        let removed = state.waiting.remove(&number)?;
        // What was saved up for it is not for those behind it: else a large request that leaves would buy a burst of small ones.
        state.deficit = state.deficit.min(QUANTUM);
        self.forget_if_empty(flow);
        Some(removed)
    }

    /// Goes on to the flow that can pay for its first request.
    fn advance(&mut self) -> Option<Option<u64>> {
        loop {
            // What the flow that is nearest to it lacks, were all given one quantum after the other.
            let mut rounds = u64::MAX;
            for _ in 0..self.turns.len() {
                let (place, flow) = self.turns.pop_first()?;
                let state = self.flows.get_mut(&flow)?;
                if !state.in_turn {
                    state.in_turn = true;
                    state.deficit = state.deficit.saturating_add(QUANTUM);
                }
                let cost = state.cost()?;
                if cost <= state.deficit {
                    self.turns.insert(place, flow);
                    return Some(flow);
                }
                rounds = rounds.min((cost - state.deficit).div_ceil(QUANTUM));
                state.in_turn = false;
                state.place = self.next_place;
                self.turns.insert(self.next_place, flow);
                self.next_place += 1;
            }
            if self.turns.is_empty() {
                return None;
            }
            // Rounds in which nobody could pay are given all at once, however large the requests are.
            for state in self.flows.values_mut() {
                state.deficit = state.deficit.saturating_add((rounds - 1) * QUANTUM);
            }
        }
    }

    fn forget_if_empty(&mut self, flow: Option<u64>) {
        if let Some(state) = self.flows.get(&flow)
            && state.waiting.is_empty()
        {
            self.turns.remove(&state.place);
            self.flows.remove(&flow);
        }
    }

    /// Flows that are remembered, and turns that are planned: for tests.
    #[cfg(test)]
    pub(super) fn footprint(&self) -> (usize, usize) {
        (self.flows.len(), self.turns.len())
    }
}
