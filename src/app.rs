//! The composition root: builds every part, starts every long-lived task, and stops them in order.

use std::collections::HashMap;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::admin::Admin;
use crate::config::Config;
use crate::discovery::dns::Watcher;
use crate::discovery::{self, Findings};
use crate::fleet::{Fleet, ReplicaSpec, Snapshot, State, health};
use crate::live::LiveFleet;
use crate::proxy::{Parties, Proxy, Rules};
use crate::resolver::{HostNames, Resolver};
use crate::routing::Chooser;
use crate::telemetry::{self, Metrics};
use crate::upstream::{Connector, Upstream};
use crate::{probe, server};

/// How long cutting off what is in flight may take.
const CUT_TIME: Duration = Duration::from_secs(1);

/// Connections to the admin port at one time.
const ADMIN_CONNECTIONS: usize = 256;

/// What the process opens besides clients' connections and those of their requests: the admin port's, log, timers, questions to DNS.
const OWN_FILES: u64 = ADMIN_CONNECTIONS as u64 + 64;

/// `serve`: runs until SIGTERM or SIGINT, then drains. A second signal cuts off what is still in flight.
pub fn run(config: Config) -> Result<()> {
    let _log = telemetry::start(&config.telemetry);
    open_files(config.server.max_connections);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if config.server.worker_threads > 0 {
        runtime.worker_threads(config.server.worker_threads);
    }
    let runtime = runtime.enable_all().build().context("cannot start the threads that serve")?;
    let ended = runtime.block_on(async {
        let mut stop = StopSignals::new()?;
        let mut hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                tracing::warn!("SIGHUP is ignored: a changed configuration needs a restart");
            }
        });
        let mut running = start(config).await?;
        tokio::select! {
            name = stop.next() => tracing::info!("{name}: draining"),
            () = running.stopped() => bail!("serving ended by itself"),
        }
        running.drain();
        tokio::select! {
            () = running.stopped() => {}
            name = stop.next() => tracing::warn!("second signal, {name}: what is in flight is cut off"),
        }
        running.cut.cancel();
        running.stopped().await;
        tracing::info!("stopped");
        Ok(())
    });
    // A ring that is being built must not hold the exit back; everything else ends at once, and has its say in the log.
    runtime.shutdown_timeout(CUT_TIME);
    ended
}

/// Makes room for as many open files as the system allows, and says so where they are too few for so many connections.
fn open_files(max_connections: usize) {
    // Each connection may have a request under way, which needs one more, toward its replica.
    let needed = max_connections as u64 * 2 + OWN_FILES;
    match server::raise_file_limit() {
        Ok(limit) if limit >= needed => {}
        Ok(limit) => tracing::warn!(
            limit,
            max_connections,
            "the system allows {limit} open files; {max_connections} connections (max_connections) may need {needed}: two for each request"
        ),
        Err(error) => tracing::warn!(error = error.to_string(), "cannot raise the number of open files: {error}"),
    }
}

/// The signals that end a server: SIGTERM and SIGINT. From when this is made they no longer end the process by themselves.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Listens from now on.
    pub fn new() -> Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        Ok(Self { terminate, interrupt })
    }

    /// Waits for the next one, and names it.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// A router at work. Dropping it stops everything at once.
pub struct Running {
    /// Where clients connect.
    pub traffic: SocketAddr,
    /// Where metrics are.
    pub admin: SocketAddr,
    drain: watch::Sender<bool>,
    cut: CancellationToken,
    serving: JoinHandle<()>,
    /// Probes and the admin port, which work until the last request has ended.
    _tasks: JoinSet<()>,
}

impl Running {
    /// Turns not ready and ends requests in good order, within the drain timeout.
    pub fn drain(&self) {
        self.drain.send_replace(true);
    }

    /// Resolves when the last request has ended, or has been cut off.
    pub async fn stopped(&mut self) {
        if !self.serving.is_finished() {
            // It is over as well where serving panicked.
            let _ = (&mut self.serving).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Builds the router that `config` describes and starts it. Resolves when both ports take connections; whether a replica is up is another
/// matter, and said in the log.
pub async fn start(config: Config) -> Result<Running> {
    let (traffic_listener, traffic) = bind(config.listen, "listen").await?;
    let (admin_listener, admin) = bind(config.admin, "admin").await?;

    let metrics = Metrics::new().context("cannot set up metrics")?;
    let resolver = Arc::new(Resolver::new(&config.resolver).context("cannot ask DNS servers")?);
    let names = HostNames::new(Arc::clone(&resolver), config.resolver.clone());
    let connector = Connector { settings: config.upstream.clone(), names };
    let fleet = LiveFleet::new(Fleet::new(Vec::new(), config.health.clone(), config.key.hash_seed), connector, Arc::clone(&metrics));
    let (fixed, sources) = (config.replicas.len(), config.sources.len());
    fleet.set(config.replicas.clone(), sources == 0).await?;
    let (drain, draining) = watch::channel(false);
    let cut = CancellationToken::new();
    let mut tasks = JoinSet::new();

    let findings = Arc::new(watch::Sender::new(vec![None; sources]));
    tasks.spawn(follow(Arc::clone(&fleet), config.replicas, findings.subscribe(), config.health.clone()));
    for (place, source) in config.sources.into_iter().enumerate() {
        let (resolver, findings, metrics) = (Arc::clone(&resolver), Arc::clone(&findings), Arc::clone(&metrics));
        tasks.spawn(Watcher { source, place, resolver, settings: config.resolver.clone(), findings, metrics }.run());
    }
    tasks.spawn(announce(Arc::clone(&fleet), config.health.timeout));

    let admin_routes = Admin { metrics: Arc::clone(&metrics), fleet: Arc::clone(&fleet), draining: draining.clone() }.routes();
    let admin_settings = server::Settings { max_connections: ADMIN_CONNECTIONS, ..config.server.clone() };
    tasks.spawn(server::serve(admin_listener, admin_routes, admin_settings, None, std::future::pending()));

    let rules = Rules { settings: config.proxy, key: config.key, chooser: Arc::new(Chooser::new(&config.routing)) };
    let connections = Arc::clone(&metrics);
    let parties = Parties { fleet, metrics, draining: draining.clone(), cut: cut.clone(), admin };
    let routes = Proxy::new(rules, parties).routes();
    let serving = tokio::spawn(serve_until_drained(traffic_listener, routes, config.server, connections, draining, cut.clone()));

    let discovered = if sources == 0 { "" } else { ", others by discovery" };
    tracing::info!(%traffic, %admin, replicas = fixed, sources, "listening on {traffic}, metrics on {admin}; replicas: {fixed}{discovered}");
    Ok(Running { traffic, admin, drain, cut, serving, _tasks: tasks })
}

async fn serve_until_drained(
    listener: TcpListener,
    routes: axum::Router,
    settings: server::Settings,
    metrics: Arc<Metrics>,
    mut draining: watch::Receiver<bool>,
    cut: CancellationToken,
) {
    let limit = settings.drain_timeout;
    let mut told = draining.clone();
    let stop = async move {
        // The sender lives as long as the router; without it, stopping is right as well.
        let _ = told.wait_for(|draining| *draining).await;
    };
    let mut serving = Box::pin(server::serve(listener, routes, settings, Some(metrics), stop));
    tokio::select! {
        () = &mut serving => return,
        _ = draining.wait_for(|draining| *draining) => {}
    }
    tokio::select! {
        () = &mut serving => return,
        () = sleep(limit) => tracing::warn!("requests still in flight after {limit:?} (drain_timeout) are cut off"),
        () = cut.cancelled() => {}
    }
    // Streams are told so, within the moment that this takes; whoever does not listen is left.
    cut.cancel();
    let _ = timeout(CUT_TIME, serving).await;
}

/// Keeps the fleet as configuration and discovery have it, and one probe for each replica in it, and for each that has left with requests in flight.
async fn follow(fleet: Arc<LiveFleet>, fixed: Vec<ReplicaSpec>, mut findings: watch::Receiver<Findings>, health: health::Settings) {
    let mut probes = JoinSet::new();
    // By incarnation. The connections tell one stay in the fleet from the next.
    let mut probed: HashMap<u64, (Weak<Upstream>, AbortHandle)> = HashMap::new();
    loop {
        let view = fleet.view();
        let present: HashMap<u64, &Arc<Upstream>> = view.upstreams().map(|upstream| (upstream.replica().incarnation(), upstream)).collect();
        probed.retain(|incarnation, (known, probe)| {
            let stays = match (present.get(incarnation), known.upgrade()) {
                (_, None) => false,
                (Some(upstream), Some(known)) => Arc::ptr_eq(upstream, &known),
                (None, Some(known)) => known.replica().outstanding() > 0,
            };
            if !stays {
                probe.abort();
            }
            stays
        });
        for upstream in view.upstreams() {
            let start = || {
                let probe = probes.spawn(probe::run(Arc::clone(upstream), Arc::clone(&fleet), health.clone()));
                (Arc::downgrade(upstream), probe)
            };
            probed.entry(upstream.replica().incarnation()).or_insert_with(start);
        }
        drop(view);
        while probes.try_join_next().is_some() {}
        if findings.changed().await.is_err() {
            // Nobody finds anything any more.
            return pending().await;
        }
        let (specs, complete) = discovery::join(&fixed, &findings.borrow_and_update());
        if let Err(error) = fleet.set(specs, complete).await {
            tracing::error!(error = error.to_string(), "the fleet stays as it was: {error}");
        }
    }
}

/// Says once how many replicas are up, when each has had its first check.
async fn announce(fleet: Arc<LiveFleet>, limit: Duration) {
    let mut changes = fleet.changes();
    let known = async {
        loop {
            let view = fleet.view();
            if !view.replicas().is_empty() && count(&view, State::Unknown) == 0 {
                return;
            }
            drop(view);
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    // A check that hangs is over after its own timeout, and a little later is soon enough.
    let _ = timeout(limit * 2, known).await;
    let view = fleet.view();
    match (view.replicas().len(), count(&view, State::Up)) {
        (0, _) => tracing::warn!("no replica is known yet; requests are answered with 503 until one is found"),
        (all, 0) => tracing::warn!("replicas up: none of {all}; requests are tried nevertheless, and checks go on"),
        (all, up) => tracing::info!("replicas up: {up} of {all}"),
    }
}

fn count(snapshot: &Snapshot, state: State) -> usize {
    snapshot.replicas().iter().filter(|replica| snapshot.state(replica) == Some(state)).count()
}

async fn bind(address: SocketAddr, key: &str) -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address} ({key})"))?;
    let bound = listener.local_addr().with_context(|| format!("cannot tell the address of {address} ({key})"))?;
    Ok((listener, bound))
}
