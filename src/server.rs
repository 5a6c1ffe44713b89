//! Takes connections and serves them, HTTP/1.1 and h2c, until it is told to stop; then ends them in good order. Traffic and admin port both
//! use it.
//!
//! It knows nothing of what is served.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

/// Connections from clients, and how they end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Connections at one time; further ones wait in the listener's queue.
    pub max_connections: usize,
    /// Time for a request's head to arrive, from when the connection is free for it; zero: no limit. So it is also how long an idle
    /// connection is kept: above the 60 s after which load balancers stop using theirs, so that none sends into a closed one.
    pub header_timeout: Duration,
    /// A client that takes nothing of its answer for this long is cut off; zero: never.
    pub write_timeout: Duration,
    /// How long all is served as before once the router is told to stop, so that whoever sends requests here can hear of it.
    pub drain_delay: Duration,
    /// How long requests in flight may still take after that.
    pub drain_timeout: Duration,
    /// Threads that serve; zero: one per core.
    pub worker_threads: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_connections: 16_384,
            header_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(300),
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::from_secs(30),
            worker_threads: 0,
        }
    }
}

/// The largest head that is read at all. The limit that clients are told of is below it; beyond this one hyper answers 431 by itself.
const MAX_HEAD: usize = 512 << 10;

/// How often the other end of a silent connection is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// How much the system takes beyond what a client can receive. Without a bound that may be megabytes, and a client that empties them slowly would
/// look like one that takes nothing.
const UNSENT: u32 = 128 << 10;

/// Between two warnings of one kind.
const WARN_PAUSE: Duration = Duration::from_secs(10);

/// After a failed `accept` (no file descriptors left, for instance): how long to wait for better times.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `routes` on `listener` until `stop` resolves, then until all requests in flight have ended. Dropping the future cuts them off.
///
/// While the requests that were in flight end, new connections are still served: whoever has not yet heard that this router is leaving loses
/// nothing.
///
/// Connections go by the settings of the moment at which they are taken; `settings` may change at any time.
pub async fn serve(listener: TcpListener, routes: Router, settings: watch::Receiver<Settings>, stop: impl Future<Output = ()>) {
    let mut server = Server { listener, routes, settings, is_ending: false, connections: JoinSet::new() };
    let before = GracefulShutdown::new();
    tokio::select! {
        () = stop => {}
        () = server.accept(&before) => {}
    }
    server.is_ending = true;
    let late = GracefulShutdown::new();
    tokio::select! {
        () = before.shutdown() => {}
        () = server.accept(&late) => {}
    }
    // The connections stay owned until the last has ended: dropped with this future, they are cut off.
    let Server { listener, connections: _connections, .. } = server;
    drop(listener);
    late.shutdown().await;
}

struct Server {
    listener: TcpListener,
    routes: Router,
    settings: watch::Receiver<Settings>,
    /// Whether connections are to be closed after one request.
    is_ending: bool,
    connections: JoinSet<()>,
}

impl Server {
    /// Takes and serves connections for ever; each ends early when `graceful` says so.
    async fn accept(&mut self, graceful: &GracefulShutdown) {
        let mut warned = None;
        loop {
            let settings = self.settings.borrow_and_update().clone();
            let http = builder(&settings, self.is_ending);
            loop {
                while self.connections.try_join_next().is_some() {}
                let is_full = self.connections.len() >= settings.max_connections;
                if is_full && warned.is_none_or(|at: Instant| at.elapsed() > WARN_PAUSE) {
                    warned = Some(Instant::now());
                    tracing::warn!("{} connections are open (max_connections); further ones wait", self.connections.len());
                }
                tokio::select! {
                    accepted = self.listener.accept(), if !is_full => match accepted {
                        Ok((stream, client)) => {
                            let (http, routes, settings) = (Arc::clone(&http), self.routes.clone(), settings.clone());
                            self.connections.spawn(serve_connection(stream, client, routes, http, graceful.watcher(), settings));
                        }
                        Err(error) if is_one_connections(&error) => {}
                        Err(error) => {
                            tracing::error!(error = error.to_string(), "cannot take a connection: {error}");
                            tokio::time::sleep(ACCEPT_PAUSE).await;
                        }
                    },
                    Some(_) = self.connections.join_next() => {}
                    // Without a sender nothing changes any more.
                    Ok(()) = self.settings.changed() => break,
                }
            }
        }
    }
}

/// A client that left before it was taken says nothing about the listener.
fn is_one_connections(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

/// How HTTP is spoken; where all is about to end, a connection of HTTP/1.1 ends with its first request, and says so.
fn builder(settings: &Settings, is_ending: bool) -> Arc<auto::Builder<TokioExecutor>> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .max_buf_size(MAX_HEAD)
        .keep_alive(!is_ending)
        .header_read_timeout((!settings.header_timeout.is_zero()).then_some(settings.header_timeout));
    builder.http2().timer(TokioTimer::new()).max_header_list_size(MAX_HEAD as u32).keep_alive_interval(KEEPALIVE);
    Arc::new(builder)
}

async fn serve_connection(
    stream: TcpStream,
    client: SocketAddr,
    routes: Router,
    http: Arc<auto::Builder<TokioExecutor>>,
    watcher: Watcher,
    settings: Settings,
) {
    // Fails only where the client has left already.
    let _ = prepare(&stream);
    let mut stream = Box::pin(TimeoutStream::new(stream));
    stream.as_mut().set_write_timeout_pinned((!settings.write_timeout.is_zero()).then_some(settings.write_timeout));
    let begun = Arc::new(AtomicBool::new(false));
    let at_first_request = Arc::clone(&begun);
    let service = service_fn(move |mut request: Request<Incoming>| {
        at_first_request.store(true, Ordering::Relaxed);
        request.extensions_mut().insert(ConnectInfo(client));
        let routes = routes.clone();
        async move { Ok::<_, Infallible>(routes.oneshot(request.map(axum::body::Body::new)).await.unwrap_or_else(|never| match never {})) }
    });
    let connection = http.serve_connection(TokioIo::new(stream), service).into_owned();
    let connection = watcher.watch(connection);
    tokio::pin!(connection);
    if !settings.header_timeout.is_zero() {
        // hyper waits for ever for the first bytes, which tell HTTP/1.1 from h2c, and for an h2c client's first request.
        let ended = timeout(settings.header_timeout, &mut connection).await.is_ok();
        if ended || !begun.load(Ordering::Relaxed) {
            return;
        }
    }
    // A client's broken connection is the client's business; what it means for a request is in that request's record.
    let _ = connection.await;
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_notsent_lowat(UNSENT)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4))
}
