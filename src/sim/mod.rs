//! Models of what stands behind and before a router: an engine's cache and batches, and the traffic of its clients.
//!
//! Pure, like everything that decides: time passes as the caller says, chance comes as a generator. Nothing here is sent or measured.

pub mod blocks;
mod cache;
pub mod cost;
pub mod replica;
pub mod report;
pub mod workload;

#[cfg(test)]
mod recorded;
