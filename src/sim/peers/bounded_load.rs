//! Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam), as several routers for models have it: along the ring, the first
//! replica on which this request would not make more than 1.25 times the mean.

use super::super::chance::Chance;
use super::super::rule::{Asked, Pick, Rule, View};

/// How many times the mean a replica may have.
const BOUND: f64 = 1.25;

pub(super) struct BoundedLoad;

impl Rule for BoundedLoad {
    fn choose(&mut self, asked: &Asked<'_>, view: &View<'_>, chance: &mut Chance) -> Pick {
        let Some(boundary) = asked.boundaries.last() else { return Pick::of(view.least(chance, |replica| view.outstanding(replica))) };
        let all: f64 = view.eligible.iter().map(|&replica| view.outstanding(replica)).sum();
        let bound = (BOUND * (all + 1.0) / view.eligible.len() as f64).ceil();
        let order = view.pool.ring().order(boundary.key).map(|member| view.pool.members()[member].incarnation() as usize);
        let order: Vec<usize> = order.filter(|replica| view.eligible.contains(replica)).collect();
        let home = order.first().copied().unwrap_or(view.eligible[0]);
        let replica = order.into_iter().find(|&replica| view.outstanding(replica) < bound).unwrap_or(home);
        Pick { replica, overflow: replica != home }
    }
}
