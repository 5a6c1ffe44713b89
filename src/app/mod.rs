//! The composition root: builds every part, starts every long-lived task, and stops them in order.

mod reload;
mod roster;

use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hyper::Request;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::admin::{Admin, Effective, Order, Reloaded};
use crate::config::{Config, Reading};
use crate::engine::{EngineReadings, Latest};
use crate::fleet::{Snapshot, State};
use crate::live::LiveFleet;
use crate::otlp::{self, Exporter};
use crate::proxy::{self, Parties, Proxy, Rules};
use crate::request;
use crate::resolver::{HostNames, Resolver};
use crate::routing::{self, Chooser, Report};
use crate::scrape::{Listener, Scraper};
use crate::server;
use crate::telemetry::{self, Log, Metrics, Tracer};
use reload::{Live, Reloader};
use roster::Roster;

/// How long cutting off what is in flight may take.
const CUT_TIME: Duration = Duration::from_secs(1);

/// Connections to the admin port at one time.
const ADMIN_CONNECTIONS: usize = 256;

/// What the process opens besides clients' connections and those of their requests: the admin port's, log, timers, questions to DNS.
const OWN_FILES: u64 = ADMIN_CONNECTIONS as u64 + 64;

/// `serve`: runs until SIGTERM or SIGINT, then drains. A second signal cuts off what is still in flight. SIGHUP reads the configuration again.
pub fn run(reading: Reading) -> Result<()> {
    let config = reading.config.clone();
    // Held to the end, which has its say in the log.
    let log = Arc::new(telemetry::start(&config.telemetry).context("cannot start the log")?);
    open_files(config.server.max_connections);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if config.server.worker_threads > 0 {
        runtime.worker_threads(config.server.worker_threads);
    }
    let runtime = runtime.enable_all().build().context("cannot start the threads that serve")?;
    let ended = runtime.block_on(async {
        let mut stop = StopSignals::new()?;
        let mut hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
        let mut running = build(config, Some(reading), Some(Arc::clone(&log))).await?;
        let orders = running.orders.clone();
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                tracing::info!("SIGHUP: reading the configuration again");
                reload_by(&orders).await;
            }
        });
        tokio::select! {
            name = stop.next() => tracing::info!(in_flight = running.in_flight(), "{name}: draining; requests in flight: {}", running.in_flight()),
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
            "the system allows {limit} open files; {max_connections} connections (max_connections) may need {needed}: two for each request. \
             Raise the hard limit (ulimit -Hn, LimitNOFILE=) or lower max_connections"
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
    orders: mpsc::Sender<Order>,
    fleet: Arc<LiveFleet>,
    serving: JoinHandle<()>,
    /// Probes, questions to engines and the admin port, which work until the last request has ended.
    _tasks: JoinSet<()>,
}

impl Running {
    /// Reads the configuration again, as SIGHUP does; `None` where the router has ended.
    pub async fn reload(&self) -> Option<Reloaded> {
        reload_by(&self.orders).await
    }

    /// Turns not ready and, after the drain delay, ends requests in good order, within the drain timeout.
    pub fn drain(&self) {
        self.drain.send_replace(true);
    }

    /// Requests in flight on all replicas.
    pub fn in_flight(&self) -> u64 {
        self.fleet.view().replicas().iter().map(|replica| replica.outstanding()).sum()
    }

    /// Resolves when the last request has ended, or has been cut off.
    pub async fn stopped(&mut self) {
        if !self.serving.is_finished() {
            // It is over as well where serving panicked.
            let _ = (&mut self.serving).await;
        }
    }
}

async fn reload_by(orders: &mpsc::Sender<Order>) -> Option<Reloaded> {
    let (tell, told) = oneshot::channel();
    orders.send(Order::Reload(tell)).await.ok()?;
    told.await.ok()
}

impl Drop for Running {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Builds the router that `config` describes and starts it. Resolves when both ports take connections; whether a replica is up is another
/// matter, and said in the log. There is no file that could be read again.
pub async fn start(config: Config) -> Result<Running> {
    build(config, None, None).await
}

/// The same for a configuration that can be read again.
pub async fn start_reading(reading: Reading) -> Result<Running> {
    build(reading.config.clone(), Some(reading), None).await
}

async fn build(config: Config, reading: Option<Reading>, log: Option<Arc<Log>>) -> Result<Running> {
    let (traffic_listener, traffic) = bind(config.listen, "listen").await?;
    let (admin_listener, admin) = bind(config.admin, "admin").await?;

    let metrics = Metrics::new(&config.metrics).context("cannot set up metrics")?;
    metrics.show_limits(&reload::limits(&config));
    let resolver = Arc::new(Resolver::new(&config.resolver).context("cannot ask DNS servers")?);
    let (dns, dns_now) = watch::channel(config.resolver.clone());
    let names = || HostNames::new(Arc::clone(&resolver), dns_now.clone());
    let listed = reload::listed(&config);
    let fleet = LiveFleet::new(listed.settings.clone(), names(), Arc::clone(&metrics))?;
    let (fixed, sources) = (config.replicas.len(), config.sources.len());
    fleet.set(config.replicas.clone(), sources == 0).await?;
    let (drain, draining) = watch::channel(false);
    let cut = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let (tracer, sending) = trace(&config.otlp, names(), &metrics, &mut tasks).unzip();

    let readings = Arc::new(EngineReadings::default());
    metrics.show_engines(&readings);
    let readings_now = Arc::clone(&readings);
    let (engine_metrics, engine_metrics_now) = watch::channel(config.engine_metrics.clone());
    // Whoever chooses now; nobody yet.
    let listening = Arc::new(OnceLock::new());
    let scraper = Scraper {
        fleet: Arc::clone(&fleet),
        readings,
        listener: listener(Arc::clone(&listening), Arc::clone(&metrics)),
        settings: engine_metrics_now,
    };
    let (roster, orders) = mpsc::channel(1);
    let (fleet_of_roster, metrics_of_roster) = (Arc::clone(&fleet), Arc::clone(&metrics));
    tasks.spawn(Roster { fleet: fleet_of_roster, listed, resolver, dns: dns_now, metrics: metrics_of_roster, scraper, orders }.run());
    tasks.spawn(announce(Arc::clone(&fleet), config.health.timeout));
    if config.metrics.on {
        tasks.spawn(watch(Arc::clone(&fleet), Arc::clone(&metrics)));
    }

    let (fleet_now, draining_now) = (Arc::clone(&fleet), draining.clone());
    let parties = Parties { fleet, metrics: Arc::clone(&metrics), tracer, draining: draining.clone(), cut: cut.clone(), admin };
    let proxy = Proxy::new(rules(&config, None), parties);
    let (orders, requests) = mpsc::channel(1);
    let (access, access_now) = watch::channel(config.access.clone());
    let file = reading.as_ref().and_then(|reading| reading.path()).map(|path| path.display().to_string());
    let (effective, effective_now) = watch::channel(Effective { file, settings: config.settings() });
    let admin_routes = Admin {
        metrics: Arc::clone(&metrics),
        fleet: Arc::clone(&fleet_now),
        draining: draining_now,
        access: access_now,
        address: admin.ip(),
        orders: orders.clone(),
        effective: effective_now,
        proxy: Arc::clone(&proxy),
        readings: readings_now,
        started: std::time::Instant::now(),
    }
    .routes();
    let (admin_server, admin_server_now) = watch::channel(reload::admin_server(&config));
    tasks.spawn(server::serve(admin_listener, admin_routes, admin_server_now, None, pending()));
    let _ = listening.set(Arc::downgrade(&proxy));
    tasks.spawn(Arc::clone(&proxy).attend_to_waiting());
    let (server, server_now) = watch::channel(config.server.clone());
    let (service, connections) = (Arc::clone(&proxy), Arc::clone(&metrics));
    let served = serve_until_drained(traffic_listener, service, server_now, connections, draining, cut.clone());
    let serving = tokio::spawn(async move {
        served.await;
        if let Some(sending) = sending {
            sending.finish().await;
        }
    });

    let live = Live { roster, proxy, traffic: server, admin: admin_server, access, effective, dns, engine_metrics, log };
    tasks.spawn(Reloader { config, reading, live, metrics, requests, log_level: None, is_refused: false }.run());

    let discovered = if sources == 0 { "" } else { ", others by discovery" };
    tracing::info!(%traffic, %admin, replicas = fixed, sources, "listening on {traffic}, admin port on {admin}; replicas: {fixed}{discovered}");
    Ok(Running { traffic, admin, drain, cut, orders, fleet: fleet_now, serving, _tasks: tasks })
}

/// How often metrics look at what nobody tells them.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Counts for how long gates are closed, and lets go what has left the fleet.
async fn watch(fleet: Arc<LiveFleet>, metrics: Arc<Metrics>) {
    let mut last = Instant::now();
    loop {
        sleep(WATCH_INTERVAL).await;
        let now = Instant::now();
        metrics.watch(&fleet.view(), now - last);
        last = now;
    }
}

/// Spans on their way to a collector.
struct Sending {
    stop: CancellationToken,
    sent: oneshot::Receiver<()>,
}

impl Sending {
    /// No more spans come: waits until those that are left are sent, but not for long.
    async fn finish(self) {
        self.stop.cancel();
        let _ = self.sent.await;
    }
}

/// Begins to trace, where that is configured.
fn trace(settings: &otlp::Settings, names: HostNames, metrics: &Arc<Metrics>, tasks: &mut JoinSet<()>) -> Option<(Arc<Tracer>, Sending)> {
    let endpoint = settings.endpoint.clone()?;
    tracing::info!(url = endpoint.to_string(), "traces go to {endpoint}");
    let (tracer, spans) = Tracer::new(settings.sample_ratio, Arc::clone(metrics));
    let exporter = Exporter::new(endpoint, &settings.service_name, names, spans, Arc::clone(metrics));
    let (stop, (tell, sent)) = (CancellationToken::new(), oneshot::channel());
    let running = exporter.run(stop.clone());
    tasks.spawn(async move {
        running.await;
        let _ = tell.send(());
    });
    Some((tracer, Sending { stop, sent }))
}

/// Tells the chooser of the moment what engines say of themselves.
fn listener(proxy: Arc<OnceLock<Weak<Proxy>>>, metrics: Arc<Metrics>) -> Listener {
    Arc::new(move |replica, Latest { reading, growth, .. }, is_reset| {
        let Some(proxy) = proxy.get().and_then(Weak::upgrade) else { return };
        let rules = proxy.rules();
        if is_reset {
            rules.chooser.restarted(replica);
        }
        let report = Report {
            running: reading.running,
            waiting: reading.waiting,
            cache_tokens: reading.capacity(),
            looked_up: growth.map(|growth| [growth.queries, growth.hits]),
            caches: reading.prefix_caching,
            shows_restarts: reading.started.is_some() || reading.prefix_queries.is_some(),
        };
        if let Some(verdict) = rules.chooser.hear(replica, &report, Instant::now()) {
            metrics.judged(replica, &verdict);
        }
    })
}

/// What the chooser goes by. That the prefix has no fixed length concerns the key and the choice.
fn choosing(config: &Config) -> routing::Settings {
    routing::Settings { prefix_length: config.key.prefix_length, studies: config.metrics.on, ..config.routing.clone() }
}

/// What requests go by; the chooser is kept where its settings have not changed, with all that it has learnt.
fn rules(config: &Config, chooser: Option<Arc<Chooser>>) -> Rules {
    let chooser = chooser.unwrap_or_else(|| Arc::new(Chooser::new(&choosing(config))));
    let key = request::Settings { chunks: chooser.wants_chunks(), ..config.key.clone() };
    Rules { settings: config.proxy.clone(), key, chooser, admission: config.admission.clone() }
}

/// The traffic port.
impl server::Service for Arc<Proxy> {
    type Body = proxy::Body;

    fn serve(self, request: Request<Incoming>, client: SocketAddr) -> impl Future<Output = proxy::Response> + Send + 'static {
        self.handle(request, client)
    }
}

async fn serve_until_drained(
    listener: TcpListener,
    service: Arc<Proxy>,
    settings: watch::Receiver<server::Settings>,
    metrics: Arc<Metrics>,
    mut draining: watch::Receiver<bool>,
    cut: CancellationToken,
) {
    let (stopping, stop) = oneshot::channel::<()>();
    let stop = async move {
        let _ = stop.await;
    };
    let mut serving = Box::pin(server::serve(listener, service, settings.clone(), Some(metrics), stop));
    tokio::select! {
        () = &mut serving => return,
        // The sender lives as long as the router; without it, stopping is right as well.
        _ = draining.wait_for(|draining| *draining) => {}
    }
    let (delay, limit) = {
        let settings = settings.borrow();
        (settings.drain_delay, settings.drain_timeout)
    };
    tokio::select! {
        () = &mut serving => return,
        () = sleep(delay) => {}
        () = cut.cancelled() => {}
    }
    tracing::info!("no longer taking requests on open connections; those in flight have {limit:?} (drain_timeout)");
    drop(stopping);
    tokio::select! {
        () = &mut serving => return,
        () = sleep(limit) => tracing::warn!("requests still in flight after {limit:?} (drain_timeout) are cut off"),
        () = cut.cancelled() => {}
    }
    // Streams are told so, within the moment that this takes; whoever does not listen is left.
    cut.cancel();
    let _ = timeout(CUT_TIME, serving).await;
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
