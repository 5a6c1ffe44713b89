//! Models of what stands behind and before a router: an engine's cache and batches, and the traffic of its clients; and the simulator that puts
//! production routers between the two, on virtual time.
//!
//! Pure, like everything that decides: time passes as the caller says, chance comes as a generator or a seed. Nothing here is sent or measured.

pub mod blocks;
mod cache;
pub mod capacity;
pub mod chance;
pub mod cost;
pub mod figures;
pub mod peers;
pub mod prompt;
pub mod replica;
pub mod report;
mod router;
pub mod rule;
pub mod run;
pub mod scenario;
pub mod strategy;
pub mod workload;

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
