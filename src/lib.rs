//! prefix-router: sends prompts that begin alike to the replica that holds their beginning.
//!
//! # One request's way
//!
//! 1. [`server`] takes the connection and hands each request to [`proxy`].
//! 2. `proxy` judges the head, reads the body, and asks [`request`] what it wants: a model and a key.
//! 3. [`live`] gives the view of the moment: the [`fleet`]'s picture and the connections to everybody in it. [`routing`] picks a replica on it and
//!    takes its lease. Where replicas are limited and all are full, the request waits in the queue that [`admission`] keeps, and is chosen for when
//!    there is room; where its strategy knows that the one it would go to has enough to do, `admission` holds it back until its turn.
//! 4. `proxy` sends the request through [`upstream`] and waits for the first byte of the answer's body; until then a replica that fails
//!    is replaced by another.
//! 5. The answer's body goes on piece by piece; lease, connection and record end with it.
//!
//! Beside that, [`discovery`] finds replicas behind names, [`resolver`] turns names into addresses, [`probe`] checks the replicas, [`scrape`] asks
//! them for their metrics, out of which [`engine`] reads what the engines say of themselves, [`admin`] shows the metrics that [`telemetry`] keeps and
//! takes orders, [`otlp`] sends the spans that it makes to whoever collects traces, [`config`] says how all of it is set, and [`app`] puts it together and keeps it as the configuration has it while that changes.
//!
//! To see it work without a GPU, [`sim`] models an engine and its clients' traffic, [`demo_replica`] serves such an engine as vLLM would, and
//! [`demo`] puts a fleet of them behind the router. [`console`] shows in a terminal what `admin` says. Nothing of the above knows of these.
//!
//! The decision alone, as the request path makes it:
//!
//! ```
//! use std::time::Instant;
//!
//! use prefix_router::fleet::{Fleet, Outcome, ReplicaSpec, health};
//! use prefix_router::request::{self, Ask, Surface};
//! use prefix_router::routing::{self, Candidates, Chooser, Reason};
//! use prefix_router::units::Weight;
//!
//! let replica = |name: &str| ReplicaSpec { name: name.into(), authority: name.into(), weight: Weight::clamped(1), models: vec![], drain: false };
//! let mut fleet = Fleet::new(vec![replica("a:8000"), replica("b:8000")], health::Settings::default(), 0);
//! for replica in fleet.snapshot().replicas() {
//!     fleet.observe(replica, Outcome::CheckPassed, Instant::now(), 0.0);
//! }
//!
//! let body = br#"{"model": "m", "messages": [{"role": "user", "content": "Good morning"}]}"#;
//! let ask = Ask::read(Surface::ChatCompletions, body, None, &request::Settings::default());
//! let snapshot = fleet.snapshot();
//! let pool = snapshot.pool(ask.model.as_deref()).expect("these replicas take any model");
//! let chooser = Chooser::new(&routing::Settings::default());
//! let aim = chooser.aim(&ask, pool);
//! let choice = chooser.choose(&aim, &Candidates::new(pool, &[], Instant::now()), &mut rand::rng()).expect("there are replicas");
//! assert_eq!(choice.reason, Reason::Home);
//! assert_eq!(choice.lease.replica().outstanding(), 1);
//! ```
//!
//! # Direction of dependencies
//!
//! `units` ← `request` ← `fleet` ← `routing` (an arrow points at what is used) are pure: they do no I/O, spawn nothing, log nothing and
//! read no clock; time and chance are arguments. So are `engine`, which uses `fleet`, `admission`, which uses `routing`, and `recent`, which uses nobody. `telemetry`, `otlp`, `upstream`,
//! `live`, `discovery`, `probe`, `scrape`, `proxy`, `admin` and `server` see them; `upstream` and `discovery` ask `resolver`, `exchange` speaks HTTP
//! for `upstream` and `otlp`, and `live` holds what `upstream` makes. `config` sees everybody's settings; `app` and `cli` see all.
//! `tests/tidy.rs` checks this.
//!
//! # Invariants
//!
//! - A configuration that is not valid as a whole changes nothing; one that is, is in force at once but for what needs a restart.
//! - Each choice is made on one view, and takes its lease in the same step.
//! - An incarnation of a replica is never taken for another: one that has left is no candidate, whatever is reported of it, and one that returns while
//!   requests are in flight there goes on counting them.
//! - A lease lives as long as the replica's work for the request, and ends exactly once.
//! - Where there are limits, choices are made one after the other, so no limit is exceeded even by one; and nobody waits for whom there is room.
//! - Nothing is sent again after the first byte of an answer's body.
//! - Request bodies and answers pass byte for byte; the view for routing is read-only.
//! - What an engine says of itself, or does not, changes no replica's health.
//! - Every failure becomes HTTP in `proxy/error.rs`.
//! - Prompt text, identifiers and keys reach no log, label, span or error.

pub mod units;

pub mod recent;

pub mod request;

pub mod fleet;

pub mod engine;

pub mod routing;

pub mod admission;

pub mod sim;

pub mod telemetry;

pub mod pause;

pub mod resolver;

pub mod exchange;

pub mod otlp;

pub mod upstream;

pub mod live;

pub mod discovery;

pub mod probe;

pub mod scrape;

pub mod proxy;

pub mod admin;

pub mod server;

pub mod config;

pub mod app;

pub mod demo_replica;

pub mod demo;

pub mod simulate;

pub mod console;

pub mod healthcheck;

pub mod cli;
