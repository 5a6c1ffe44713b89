//! A replica without a GPU: `sim::replica` behind the HTTP surface of vLLM, as a server of its own.

pub mod engine;
pub mod tokens;
