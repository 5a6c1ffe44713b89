//! An immutable picture of the fleet: who is there, in which state, in which pools. One is loaded for each choice.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Replica, Ring, State};

/// Some replicas, shared by all pictures in which they are the same.
pub(super) type Members = Arc<[Arc<Replica>]>;

/// The replicas that serve one model, with what a choice among them needs.
#[derive(Clone, Debug)]
pub struct Pool {
    members: Members,
    /// Whether a request may go to the member now.
    usable: Vec<bool>,
    ring: Arc<Ring>,
}

impl Pool {
    /// `state` tells the state of a member.
    pub(super) fn new(members: Members, ring: Arc<Ring>, state: impl Fn(&Replica) -> State) -> Self {
        let mut usable: Vec<bool> = members.iter().map(|member| state(member) == State::Up).collect();
        if !usable.contains(&true) {
            // Nobody is known to be up. A try may fail; not trying fails surely.
            usable = members.iter().map(|member| state(member) != State::Draining).collect();
        }
        Self { members, usable, ring }
    }

    /// All members, in the order of the membership.
    pub fn members(&self) -> &[Arc<Replica>] {
        &self.members
    }

    /// Whether a request may go to the member at `index` now.
    pub fn is_usable(&self, index: usize) -> bool {
        self.usable[index]
    }

    /// The ring over the members, by their index here.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }
}

/// The fleet at one moment.
#[derive(Debug)]
pub struct Snapshot {
    pub(super) replicas: Members,
    pub(super) states: HashMap<u64, State>,
    /// Those whose checks fail, in the fleet or on their way out of it.
    pub(super) down: HashSet<u64>,
    /// Whether the picture of who serves what is whole.
    pub(super) complete: bool,
    /// All replicas: for requests that name no model.
    pub(super) all: Pool,
    /// For each model that some replica lists: the replicas that list it or take any name.
    pub(super) by_model: HashMap<String, Pool>,
    /// The replicas that take any name: for models that nobody lists.
    pub(super) any_name: Option<Pool>,
    /// A pool without members.
    pub(super) nobody: Pool,
}

impl Snapshot {
    /// All replicas, in the order of the membership.
    pub fn replicas(&self) -> &[Arc<Replica>] {
        &self.replicas
    }

    /// The state of a replica; `None` where it is not, or no longer, in the fleet.
    pub fn state(&self, replica: &Replica) -> Option<State> {
        self.states.get(&replica.incarnation()).copied()
    }

    /// Whether a replica is down, be it in the fleet or on its way out of it: who waits there waits in vain.
    pub fn is_out(&self, replica: &Replica) -> bool {
        self.down.contains(&replica.incarnation())
    }

    /// Whether any replica is up.
    pub fn any_up(&self) -> bool {
        self.states.values().any(|&state| state == State::Up)
    }

    /// The pool for a request that names `model`; `None` where all replicas say what they serve and none serves it. As long as replicas may be
    /// missing from the picture, a model that nobody serves has an empty pool.
    pub fn pool(&self, model: Option<&str>) -> Option<&Pool> {
        let Some(model) = model else { return Some(&self.all) };
        let known = self.by_model.get(model).or(self.any_name.as_ref());
        known.or((!self.complete).then_some(&self.nobody))
    }
}
