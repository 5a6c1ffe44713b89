//! Who waits when every replica is full, and who goes next: a bounded queue that is fair, knows priorities, and lets nobody starve. And who is held back
//! without limits, while the replica that each should go to has enough to do: `hold.rs`.
//!
//! Pure: it knows no replica, no clock and no task. What waits is the caller's, and so is the word whether there is room for it.
//!
//! Requests wait in lines, one for each set of replicas that they could go to, so that no line waits for another's replicas. In a line there is
//! a class for each priority, and in a class a flow for each identifier. Who is next:
//!
//! - of a flow, the one that came first;
//! - of a class, the one whose flow's turn it is, by deficit round robin over the bytes of bodies (`class.rs`);
//! - of equal classes in several lines, where something can go that both wait for, the one of the line that was served longest ago;
//! - of different classes, the one with the lowest priority number, less one for each [`Settings::queue_aging`] that it has waited; but each eighth time
//!   the one that has waited longest, so that a flow of better ones starves nobody.

mod class;
mod hold;
mod pace;
mod queue;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use class::QUANTUM;
pub use hold::{Hold, Holdable, Place, Release};
pub use pace::Pace;
pub use queue::{Entry, Full, Queue, Ticket};

/// How much runs at one time, and who may wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Requests in flight on one replica, whatever its weight; zero: no limit.
    pub max_outstanding: u64,
    /// Requests in flight on all replicas together, from this router; zero: no limit.
    pub max_outstanding_total: u64,
    /// Requests that wait, at most.
    pub queue_max_requests: usize,
    /// Bytes of their bodies, at most.
    pub queue_max_bytes: usize,
    /// How long a request waits before it is refused; zero: no limit.
    pub queue_timeout: Duration,
    /// Waiting so long is worth one step of priority.
    pub queue_aging: Duration,
    /// Where nothing is limited: a request waits while the replica where it should go has so many seconds of prompts to compute before it; zero: none does.
    pub hold: Duration,
    /// How long it waits for that before it goes all the same.
    pub hold_timeout: Duration,
    /// Requests that wait for that, at most; those whose turn would come first go at once where there are more.
    pub hold_max_requests: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_outstanding: 0,
            max_outstanding_total: 0,
            queue_max_requests: 1_024,
            queue_max_bytes: 256 << 20,
            queue_timeout: Duration::from_secs(30),
            queue_aging: Duration::from_secs(5),
            hold: Duration::from_millis(250),
            hold_timeout: Duration::from_secs(30),
            hold_max_requests: 256,
        }
    }
}

impl Settings {
    /// Whether anything is limited at all. Where nothing is, nobody waits for room.
    pub fn is_on(&self) -> bool {
        self.max_outstanding > 0 || self.max_outstanding_total > 0
    }

    /// Whether requests are held back while replicas have enough to do. Where there are limits, these say who waits.
    pub fn holds(&self) -> bool {
        !self.is_on() && !self.hold.is_zero()
    }

    /// Requests that may be in flight on one replica; `None`: any number.
    pub fn limit(&self) -> Option<u64> {
        (self.max_outstanding > 0).then_some(self.max_outstanding)
    }

    /// Requests that may be in flight on all replicas together; `None`: any number.
    pub fn total_limit(&self) -> Option<u64> {
        (self.max_outstanding_total > 0).then_some(self.max_outstanding_total)
    }
}
