//! An immutable picture of the fleet: who is there, in which state, in which pools. One is loaded for each choice.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Replica, Ring, State};

/// The replicas that serve one model, with what a choice among them needs.
#[derive(Clone, Debug)]
pub struct Pool {
    members: Vec<Arc<Replica>>,
    /// Whether a request may go to the member now.
    usable: Vec<bool>,
    ring: Arc<Ring>,
}

impl Pool {
    pub(super) fn new(members: Vec<Arc<Replica>>, ring: Arc<Ring>, states: &[State]) -> Self {
        let mut usable: Vec<bool> = members.iter().map(|member| states[member.index()] == State::Up).collect();
        if !usable.contains(&true) {
            // Nobody is known to be up. A try may fail; not trying fails surely.
            usable.fill(true);
        }
        Self { members, usable, ring }
    }

    /// All members, in the order of the configuration.
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
    pub(super) replicas: Vec<Arc<Replica>>,
    pub(super) states: Vec<State>,
    /// All replicas: for requests that name no model.
    pub(super) all: Pool,
    /// For each model that some replica lists: the replicas that list it or take any name.
    pub(super) by_model: HashMap<String, Pool>,
    /// The replicas that take any name: for models that nobody lists.
    pub(super) any_name: Option<Pool>,
}

impl Snapshot {
    /// All replicas, in the order of the configuration.
    pub fn replicas(&self) -> &[Arc<Replica>] {
        &self.replicas
    }

    /// The state of a replica.
    pub fn state(&self, replica: &Replica) -> State {
        self.states[replica.index()]
    }

    /// Whether any replica is up.
    pub fn any_up(&self) -> bool {
        self.states.contains(&State::Up)
    }

    /// The pool for a request that names `model`; `None` where all replicas say what they serve and none serves it.
    pub fn pool(&self, model: Option<&str>) -> Option<&Pool> {
        let Some(model) = model else { return Some(&self.all) };
        self.by_model.get(model).or(self.any_name.as_ref())
    }
}
