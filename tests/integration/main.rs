//! The router on real sockets: scripted replicas behind it, clients that see every byte before it.
//!
//! `wire`, `replica`, `client`, `contract`, `dns`, `frames`, `h2` and `support` are the tools; each other module holds the tests of one group of rules.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod answers;
mod client;
mod contract;
mod dns;
mod frames;
mod h2;
mod replica;
mod simulated;
mod support;
mod wire;

mod aborts;
mod admin;
mod admission;
mod bodies;
mod cache_aware;
mod cancel;
mod command;
mod console;
mod decisions;
mod demo;
mod discovery;
mod drain;
mod ejection;
mod endpoints;
mod engine_metrics;
mod explain;
mod exposure;
mod framing;
mod headers;
mod health;
mod holding;
mod limits;
mod loss;
mod metrics;
mod names;
mod otlp;
mod quality;
mod recorded;
mod reload;
mod retry;
mod routing;
mod secrets;
mod simulated_bounds;
mod simulated_cache;
mod simulated_faults;
mod simulated_shapes;
mod statuses;
mod streaming;
mod stuck;
mod timeouts;
mod truncation;
mod usage;
