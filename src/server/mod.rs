//! Takes connections and serves them, HTTP/1.1 and h2c, until it is told to stop; then ends them in good order. Traffic and admin port both
//! use it.
//!
//! It knows nothing of what is served.

mod hello;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use futures_util::{FutureExt, poll};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown, Watcher};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::telemetry::{Limit, Metrics};
use hello::{Greeted, Hello};

/// What is served on connections.
pub trait Service: Clone + Send + Sync + Unpin + 'static {
    /// Of its answers.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static;

    /// Answers a request of `client`.
    fn serve(self, request: Request<Incoming>, client: SocketAddr) -> impl Future<Output = Response<Self::Body>> + Send + 'static;
}

impl Service for Router {
    type Body = axum::body::Body;

    fn serve(self, mut request: Request<Incoming>, client: SocketAddr) -> impl Future<Output = Response<Self::Body>> + Send + 'static {
        request.extensions_mut().insert(ConnectInfo(client));
        let answer = self.oneshot(request.map(axum::body::Body::new));
        async move { answer.await.unwrap_or_else(|never| match never {}) }
    }
}

/// Connections from clients, and how they end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Connections at one time; further ones wait in the listener's queue.
    pub max_connections: usize,
    /// Requests at one time on one h2c connection; its client is told so.
    pub h2_max_streams: u32,
    /// An h2c connection is closed when its client has taken back so many requests that were not taken up yet, or has broken so many.
    pub h2_max_resets: usize,
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
            h2_max_streams: 1_000,
            h2_max_resets: 100,
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

/// And with how many fields; hyper makes room for all of them with each request. In h2c the above is also the bound of these.
const MAX_HEAD_FIELDS: usize = 512;

/// How often the other end of a silent connection is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// How much the system takes beyond what a client can receive. Without a bound that may be megabytes, and a client that empties them slowly would
/// look like one that takes nothing.
const UNSENT: u32 = 128 << 10;

/// Between two warnings of one kind.
const WARN_PAUSE: Duration = Duration::from_secs(10);

/// How long a connection on which nothing has been said is kept when all end.
const LAST_CALL: Duration = Duration::from_millis(500);

/// After a failed `accept` (no file descriptors left, for instance): how long to wait for better times.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `service` on `listener` until `stop` resolves, then until all requests in flight have ended. Dropping the future cuts them off.
///
/// While the requests that were in flight end, new connections are still served: whoever has not yet heard that this router is leaving loses
/// nothing.
///
/// Connections go by the settings of the moment at which they are taken; `settings` may change at any time. They are counted in `metrics`, if there
/// are any.
pub async fn serve(
    listener: TcpListener,
    service: impl Service,
    settings: watch::Receiver<Settings>,
    metrics: Option<Arc<Metrics>>,
    stop: impl Future<Output = ()>,
) {
    let mut server = Server { listener, service, settings, metrics, is_ending: false, connections: JoinSet::new() };
    let before = Group::default();
    tokio::select! {
        () = stop => {}
        () = server.accept(&before) => {}
    }
    server.is_ending = true;
    let late = Group::default();
    tokio::select! {
        () = before.end() => {}
        () = server.accept(&late) => {}
    }
    // The connections stay owned until the last has ended: dropped with this future, they are cut off.
    let Server { listener, connections: _connections, .. } = server;
    drop(listener);
    late.end().await;
}

/// Connections that end together.
#[derive(Default)]
struct Group {
    graceful: GracefulShutdown,
    /// For those on which nothing has been said yet.
    over: CancellationToken,
}

impl Group {
    async fn end(self) {
        self.over.cancel();
        self.graceful.shutdown().await;
    }
}

struct Server<S> {
    listener: TcpListener,
    service: S,
    settings: watch::Receiver<Settings>,
    metrics: Option<Arc<Metrics>>,
    /// Whether connections are to be closed after one request.
    is_ending: bool,
    connections: JoinSet<()>,
}

impl<S: Service> Server<S> {
    /// Takes and serves connections for ever; each ends early when `group` says so.
    async fn accept(&mut self, group: &Group) {
        let mut warned = None;
        loop {
            let settings = self.settings.borrow_and_update().clone();
            let http = Arc::new(Http::new(&settings, self.is_ending));
            loop {
                while self.connections.try_join_next().is_some() {}
                let is_full = self.connections.len() >= settings.max_connections;
                if is_full {
                    hit(self.metrics.as_deref(), Limit::MaxConnections);
                }
                if is_full && warned.is_none_or(|at: Instant| at.elapsed() > WARN_PAUSE) {
                    warned = Some(Instant::now());
                    tracing::warn!("{} connections are open (max_connections); further ones wait", self.connections.len());
                }
                tokio::select! {
                    accepted = self.listener.accept(), if !is_full => match accepted {
                        Ok((stream, client)) => {
                            let (http, service, watcher) = (Arc::clone(&http), self.service.clone(), group.graceful.watcher());
                            let (settings, over) = (settings.clone(), group.over.clone());
                            let open = Open::count(self.metrics.clone());
                            self.connections.spawn(async move {
                                let limit = serve_connection(stream, client, service, http, watcher, over, settings).await;
                                if let Some(limit) = limit {
                                    hit(open.0.as_deref(), limit);
                                }
                            });
                        }
                        Err(error) if is_one_connections(&error) => {}
                        Err(error) => {
                            tracing::error!(error = error.to_string(), "cannot take a connection: {error}");
                            sleep(ACCEPT_PAUSE).await;
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

/// Counts a connection for as long as it lives, also where it is cut off.
struct Open(Option<Arc<Metrics>>);

impl Open {
    fn count(metrics: Option<Arc<Metrics>>) -> Self {
        if let Some(metrics) = &metrics {
            metrics.connected(1);
        }
        Self(metrics)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(metrics) = &self.0 {
            metrics.connected(-1);
        }
    }
}

fn hit(metrics: Option<&Metrics>, limit: Limit) {
    if let Some(metrics) = metrics {
        metrics.hit(limit);
    }
}

/// A client that left before it was taken says nothing about the listener.
fn is_one_connections(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

/// How connections are served, in either version.
struct Http {
    one: http1::Builder,
    two: http2::Builder<TokioExecutor>,
}

impl Http {
    /// Where all is about to end, a connection of HTTP/1.1 ends with its first request, and says so.
    fn new(settings: &Settings, is_ending: bool) -> Self {
        let mut one = http1::Builder::new();
        one.timer(TokioTimer::new())
            .keep_alive(!is_ending)
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_HEAD_FIELDS)
            .header_read_timeout((!settings.header_timeout.is_zero()).then_some(settings.header_timeout));
        let mut two = http2::Builder::new(TokioExecutor::new());
        two.timer(TokioTimer::new())
            .max_header_list_size(MAX_HEAD as u32)
            .max_concurrent_streams(settings.h2_max_streams)
            .max_pending_accept_reset_streams(settings.h2_max_resets)
            .max_local_error_reset_streams(settings.h2_max_resets)
            .keep_alive_interval(KEEPALIVE);
        Self { one, two }
    }
}

/// Serves one connection to its end, and says which limit was the reason of it, if one was.
async fn serve_connection(
    stream: TcpStream,
    client: SocketAddr,
    service: impl Service,
    http: Arc<Http>,
    watcher: Watcher,
    over: CancellationToken,
    settings: Settings,
) -> Option<Limit> {
    // Fails only where the client has left already.
    let _ = prepare(&stream);
    let by = (!settings.header_timeout.is_zero()).then(|| Instant::now() + settings.header_timeout);
    let (mut stream, mut hello) = (stream, Hello::default());
    let said = tokio::select! {
        said = until(by, hello.read(&mut stream)) => said,
        () = some_time_after(&over) => return None,
    };
    let is_h2 = match said {
        Some(Ok(is_h2)) => is_h2,
        Some(Err(_)) => return None,
        None => return Some(Limit::HeaderTimeout),
    };
    let mut stream = Box::pin(TimeoutStream::new(Greeted { hello, stream }));
    stream.as_mut().set_write_timeout_pinned((!settings.write_timeout.is_zero()).then_some(settings.write_timeout));
    let begun = Arc::new(AtomicBool::new(false));
    let at_first_request = Arc::clone(&begun);
    let service = service_fn(move |request: Request<Incoming>| {
        at_first_request.store(true, Ordering::Relaxed);
        // Awaited in a block of its own it would have room twice, 5 KiB more for each connection.
        service.clone().serve(request, client).map(Ok::<_, Infallible>)
    });
    let stream = TokioIo::new(stream);
    if is_h2 {
        // There are few of these, and they are large.
        Box::pin(run(http.two.serve_connection(stream, service), watcher, by, begun)).await
    } else {
        run(http.one.serve_connection(stream, service), watcher, by, begun).await
    }
}

/// Serves to the end of a connection whose first request has to be there in time.
async fn run<C>(mut connection: C, watcher: Watcher, by: Option<Instant>, begun: Arc<AtomicBool>) -> Option<Limit>
where
    C: GracefulConnection<Error = hyper::Error> + Future<Output = hyper::Result<()>> + Unpin,
{
    // When all end, hyper closes a connection of which it has read nothing, and it would have read nothing of what is in its `Hello` already.
    if let Poll::Ready(ended) = poll!(&mut connection) {
        return limit_that_ended(ended);
    }
    let connection = watcher.watch(connection);
    tokio::pin!(connection);
    // hyper waits for ever for an h2c client's first request.
    let ended = match until(by, &mut connection).await {
        Some(ended) => ended,
        None if !begun.load(Ordering::Relaxed) => return Some(Limit::HeaderTimeout),
        None => connection.await,
    };
    limit_that_ended(ended)
}

/// A client's broken connection is the client's business; what it means for a request is in that request's record.
fn limit_that_ended(connection: hyper::Result<()>) -> Option<Limit> {
    connection.err().and_then(|error| limit_behind(&error))
}

/// What was sent before the end may still be on its way.
async fn some_time_after(over: &CancellationToken) {
    over.cancelled().await;
    sleep(LAST_CALL).await;
}

/// What comes in time; without one that is whatever comes.
async fn until<T>(by: Option<Instant>, coming: impl Future<Output = T>) -> Option<T> {
    match by {
        Some(by) => timeout_at(by, coming).await.ok(),
        None => Some(coming.await),
    }
}

/// The limit that made a connection end with this error.
fn limit_behind(error: &(dyn Error + 'static)) -> Option<Limit> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        cause = error.source();
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            // With a cause it is a client that answers no ping.
            if error.is_timeout() && cause.is_none() {
                return Some(Limit::HeaderTimeout);
            }
            if error.is_parse_too_large() {
                return Some(Limit::MaxHeaderBytes);
            }
        }
        if let Some(error) = error.downcast_ref::<h2::Error>()
            && error.is_library()
            && error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM)
        {
            return Some(Limit::H2MaxResets);
        }
        // The system's own time for a peer that is silent has a number.
        if let Some(error) = error.downcast_ref::<io::Error>()
            && error.kind() == io::ErrorKind::TimedOut
            && error.raw_os_error().is_none()
        {
            return Some(Limit::WriteTimeout);
        }
    }
    None
}

/// Lets this process open as many files as it may, and says how many: every connection is one, and every request one more, toward its
/// replica. Fails where the system says neither.
pub fn raise_file_limit() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    }
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_notsent_lowat(UNSENT)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4))
}
