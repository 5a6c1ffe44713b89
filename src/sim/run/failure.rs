//! What happens when a replica dies.

use super::Simulation;
use crate::fleet::Outcome;
use crate::sim::replica::ReplicaModel;

impl Simulation<'_> {
    /// A replica dies: what has begun to be answered breaks off, all else is sent elsewhere.
    pub(super) fn die(&mut self) {
        let Some(failure) = self.scenario.failure else { return };
        let (instant, replica) = (self.instant(), failure.replica);
        let ids: Vec<usize> = self.engines[replica].model.everybody().map(|one| one.id as usize).collect();
        let work = &mut self.engines[replica];
        let counted = work.model.prefill_seconds();
        work.model = ReplicaModel::new(self.scenario.engine.clone());
        (work.step_ends, work.is_up) = (None, false);
        // What it did before it died is not forgotten.
        if let Some(work) = self.work.get_mut(replica) {
            work.1 -= counted;
        }
        for id in ids {
            self.over_for_the_rule(id, replica);
            let flight = &mut self.flights[id];
            (flight.lease, flight.trial, flight.forecast) = (None, None, None);
            let (router, began) = (flight.router, flight.first_token.is_some());
            self.routers[router].observe(replica, if began { Outcome::CutOff } else { Outcome::Broke }, instant);
            if began { self.fail(id) } else { self.send(id, vec![replica]) }
        }
        self.rules.iter_mut().for_each(|rule| rule.restarted(replica));
        (0..self.routers.len()).for_each(|router| self.release(router));
    }
}
