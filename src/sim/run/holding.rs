//! What routers hold back, by production's rules; but each of them looks for those who may go as soon as anything happens.

use super::Simulation;
use crate::admission::Holdable;

impl Simulation<'_> {
    /// Sends a request, or holds it back while who it should go to has enough to do.
    pub(super) fn hold(&mut self, id: usize) {
        if !self.scenario.strategy.holds {
            return self.send(id, Vec::new());
        }
        let (router, arrived) = (self.flights[id].router, self.instant());
        let estimate = self.routers[router].estimate(&self.flights[id].aim, arrived);
        let is_held = estimate.is_some_and(|estimate| estimate.ahead >= self.admission.hold.as_secs_f64());
        self.held[router].push(Holdable { priority: 0, flow: None, size: 0, arrived }, id);
        // Where it is, nothing has changed for the others.
        if !is_held || self.held[router].requests() > self.admission.hold_max_requests {
            self.release(router);
        }
    }

    /// Sends those whom a router held back and whose turn it is.
    pub(super) fn release(&mut self, router: usize) {
        let (instant, mut released) = (self.instant(), Vec::new());
        let all = self.held[router].all().into_iter();
        let estimates: Vec<_> = all.map(|(place, id)| (place, self.routers[router].estimate(&self.flights[id].aim, instant))).collect();
        self.held[router].release(instant, &self.admission, &estimates, |id, place, _| released.push((id, place)));
        if released.is_empty() {
            return;
        }
        for (id, place) in released {
            self.send(id, Vec::new());
            self.held[router].remove(place);
        }
        self.release(router);
    }
}
