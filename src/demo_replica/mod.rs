//! A replica without a GPU: `sim::replica` behind the HTTP surface of vLLM 0.32, as a server of its own.
//!
//! It speaks as vLLM does, but its words mean nothing. Fields, their order, headers, events and errors follow the recorded answers of
//! `tests/fixtures/engines`; docs/demo-replica.md tells what else it can be asked for. It knows nothing of any router.

mod answer;
mod ask;
mod body;
mod chat;
mod completions;
mod cut;
mod embeddings;
pub mod engine;
mod faults;
mod flight;
mod http;
mod journal;
mod messages;
mod metrics;
mod prompt;
mod refusal;
mod reply;
mod responses;
mod schema;
mod settings;
mod story;
mod tokenize;
pub mod tokens;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::engine::Engine;
use self::faults::Faults;
use self::journal::Journal;
use self::metrics::Metrics;
pub use self::settings::Settings;
use crate::server;

/// uvicorn closes a connection that has been idle for this long.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// A simulated replica that serves. Dropped, it ends at once, and cuts off whoever is connected.
#[derive(Debug)]
pub struct Replica {
    address: SocketAddr,
    tasks: JoinSet<()>,
}

/// Starts a replica on `listener`; it serves when this returns. `settings` must be without problem. Fails where the listener has no address.
pub fn start(listener: TcpListener, settings: Settings) -> io::Result<Replica> {
    let address = listener.local_addr()?;
    let metrics = Arc::new(Metrics::new(&settings.model, &settings.engine));
    let steps = Arc::clone(&metrics);
    let (engine, driver) = Engine::new(settings.engine.clone(), move |tokens| steps.step(tokens));
    let journal = Journal::default();
    let app = Arc::new(App { settings, engine, metrics, journal, faults: Faults::default() });
    let serving = server::Settings { header_timeout: KEEP_ALIVE, ..server::Settings::default() };
    let mut tasks = JoinSet::new();
    tasks.spawn(driver);
    let (_, serving) = watch::channel(serving);
    tasks.spawn(server::serve(listener, http::routes(app), serving, None, std::future::pending()));
    Ok(Replica { address, tasks })
}

impl Replica {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it at once; its port is free when this returns.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

/// What all requests share.
struct App {
    settings: Settings,
    engine: Engine,
    metrics: Arc<Metrics>,
    journal: Journal,
    faults: Faults,
}
