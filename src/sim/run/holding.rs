//! What routers hold back, by production's rules; but each of them looks for those who may go as soon as anything happens.

use super::Simulation;
use crate::admission::{Holdable, Place};

impl Simulation<'_> {
    /// Sends a request, or holds it back while who it should go to has enough to do.
    pub(super) fn hold(&mut self, id: usize) {
        let router = self.flights[id].router;
        let request = Holdable { priority: 0, flow: None, size: 0, arrived: self.instant() };
        if self.scenario.strategy.holds && self.held[router].push(request, id, &self.admission).is_ok() {
            self.release(router);
        } else {
            self.send(id, Vec::new());
        }
    }

    /// Sends those whom a router held back and whose turn it is.
    pub(super) fn release(&mut self, router: usize) {
        if self.held[router].requests() == 0 {
            return;
        }
        let instant = self.instant();
        let mut released: Vec<(usize, Place)> = Vec::new();
        self.held[router].release(
            instant,
            &self.admission,
            |&id| self.routers[router].estimates(&self.flights[id].aim, instant),
            |id, place, _| released.push((id, place)),
        );
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
