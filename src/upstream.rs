//! Connections to one replica: HTTP/1.1, kept open between requests, each used by one request at a time; and how its address is found.
//!
//! It knows nothing of retries to other replicas, of bodies' meaning, or of health; its errors say what whoever does know needs.

use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::{HeaderMap, Method, Response, StatusCode, Uri};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use crate::exchange::{Body, Broken, Connection};
use crate::fleet::Replica;
use crate::resolver::{HostName, HostNames, LookupError};
use crate::units::Secret;

/// How connections to replicas are made and kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time for a connection to be made; zero: no limit.
    pub connect_timeout: Duration,
    /// A connection that was idle this long is not used again. Below the 5 s after which uvicorn closes its end, since a request sent at that
    /// moment would be lost.
    pub pool_idle_timeout: Duration,
    /// Idle connections kept per replica.
    pub pool_max_idle: usize,
    /// Sent as `Authorization: Bearer …` with everything; where there is none, the caller's passes.
    pub api_key: Option<Secret>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { connect_timeout: Duration::from_secs(1), pool_idle_timeout: Duration::from_secs(4), pool_max_idle: 1_024, api_key: None }
    }
}

/// What is to be sent; made anew for each try.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The method.
    pub method: Method,
    /// Path and query, as the client wrote them.
    pub target: Uri,
    /// All headers that shall arrive, but for `Host` and the replica's own credentials.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// Why no head came back.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No connection was made.
    #[error("cannot connect: {0}")]
    Connect(std::io::Error),
    /// The connection failed before a head came back.
    #[error("the connection broke before an answer came: {source}")]
    Broke {
        /// How.
        source: Broken,
        /// Whether any byte of the request may have reached the replica.
        written: bool,
    },
}

/// Whose address or key cannot stand in a request.
#[derive(Debug, thiserror::Error)]
#[error("cannot send requests to replica {replica}: {source}")]
pub struct UnusableReplica {
    replica: String,
    source: hyper::http::Error,
}

/// Makes the connections of all replicas alike.
pub struct Connector {
    /// How connections are made and kept.
    pub settings: Settings,
    /// The names of replicas that are known by one.
    pub names: HostNames,
}

impl Connector {
    /// A pool without connections. Fails where the address or the key cannot stand in a header.
    pub fn connect(&self, replica: &Arc<Replica>) -> Result<Arc<Upstream>, UnusableReplica> {
        let unusable = |error: hyper::http::Error| UnusableReplica { replica: replica.name().to_owned(), source: error };
        let authority = &replica.spec().authority;
        let host = HeaderValue::from_str(authority).map_err(|error| unusable(error.into()))?;
        let key = self.settings.api_key.as_ref().map(|key| HeaderValue::from_str(&format!("Bearer {}", key.reveal())));
        let mut authorization = key.transpose().map_err(|error| unusable(error.into()))?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        let address = match (authority.parse(), host_and_port(authority)) {
            (Ok(literal), _) => Address::Literal(literal),
            (Err(_), Some((host, port))) => Address::Name(self.names.get(host), port),
            (Err(_), None) => Address::None,
        };
        let (replica, settings) = (Arc::clone(replica), self.settings.clone());
        Ok(Arc::new(Upstream { replica, settings, address, host, authorization, idle: Mutex::default() }))
    }
}

/// Where a replica is.
enum Address {
    Literal(SocketAddr),
    /// Under a name, at a port.
    Name(Arc<HostName>, u16),
    /// Not a host and a port.
    None,
}

/// The connections to one replica.
pub struct Upstream {
    replica: Arc<Replica>,
    settings: Settings,
    address: Address,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
    /// The most recently used at the back.
    idle: Mutex<VecDeque<(Connection, Instant)>>,
}

impl Upstream {
    /// The replica at the other end.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// Sends `outgoing` and waits for the head of the answer. Dropping the future, or the answer, closes the connection at once: that is
    /// how a replica learns that its client has left, even while nothing flows.
    ///
    /// A kept connection may have died unnoticed. Where `resend` allows it, or where nothing was written, such a request gets one fresh
    /// connection; `stale` is called then.
    pub async fn send(&self, outgoing: &Outgoing, resend: bool, stale: impl FnOnce()) -> Result<Response<Body>, SendError> {
        if let Some(connection) = self.take_idle() {
            match self.exchange(connection, outgoing).await {
                Err(SendError::Broke { written, .. }) if resend || !written => stale(),
                result => return result,
            }
        }
        self.exchange(self.connect().await?, outgoing).await
    }

    /// `GET path` for the router itself: status and whole body, which may have `limit` bytes.
    ///
    /// `authorization` is used where no key is configured.
    pub async fn get(
        &self,
        path: &str,
        authorization: Option<HeaderValue>,
        limit: usize,
    ) -> Result<(StatusCode, Bytes), Box<dyn Error + Send + Sync>> {
        let headers = authorization.map(|value| (AUTHORIZATION, value)).into_iter().collect();
        let target = Uri::builder().path_and_query(path).build()?;
        let outgoing = Outgoing { method: Method::GET, target, headers, body: Bytes::new() };
        let (head, mut body) = self.send(&outgoing, true, || ()).await?.into_parts();
        let bytes = Limited::new(&mut body, limit).collect().await?.to_bytes();
        self.give_back(&mut body);
        Ok((head.status, bytes))
    }

    async fn exchange(&self, connection: Connection, outgoing: &Outgoing) -> Result<Response<Body>, SendError> {
        let sent = connection.exchange(&outgoing.method, self.head(outgoing), outgoing.body.clone()).await;
        sent.map_err(|(source, written)| SendError::Broke { source, written })
    }

    /// The request's head, written out.
    fn head(&self, outgoing: &Outgoing) -> Bytes {
        let target = outgoing.target.path_and_query().map_or("/", |target| target.as_str());
        let own = self.authorization.as_ref().map(|authorization| (&AUTHORIZATION, authorization));
        let passed = outgoing.headers.iter().filter(|(name, _)| **name != HOST && (own.is_none() || **name != AUTHORIZATION));
        let mut head = Vec::with_capacity(1_024);
        for part in [outgoing.method.as_str(), " ", target, " HTTP/1.1\r\n"] {
            head.extend_from_slice(part.as_bytes());
        }
        for (name, value) in [(&HOST, &self.host)].into_iter().chain(own).chain(passed) {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                head.extend_from_slice(part);
            }
        }
        head.extend_from_slice(b"\r\n");
        head.into()
    }

    async fn connect(&self) -> Result<Connection, SendError> {
        let stream = match &self.address {
            Address::Literal(address) => self.dial(*address, self.deadline()).await,
            Address::Name(name, port) => match self.resolve(name, *port).await {
                // DNS has had a time of its own: the replica gets all of this.
                Ok(addresses) => self.dial_all(addresses, self.deadline()).await,
                // Not a kind by which the replica would look guilty.
                Err(error) => Err(io::Error::other(format!("the name {} does not resolve: {error}", name.host()))),
            },
            Address::None => Err(io::Error::other(format!("{} is not a host and a port", self.replica.spec().authority))),
        }
        .map_err(SendError::Connect)?;
        stream.set_nodelay(true).map_err(SendError::Connect)?;
        Ok(Connection::new(stream))
    }

    /// When what begins now has to be done; `None`: no limit.
    fn deadline(&self) -> Option<Instant> {
        let limit = self.settings.connect_timeout;
        (!limit.is_zero()).then(|| Instant::now() + limit)
    }

    async fn dial(&self, address: SocketAddr, by: Option<Instant>) -> io::Result<TcpStream> {
        let Some(by) = by else { return TcpStream::connect(address).await };
        let late = || {
            io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer from {address} within {:?} (connect_timeout)", self.settings.connect_timeout),
            )
        };
        timeout_at(by, TcpStream::connect(address)).await.unwrap_or_else(|_| Err(late()))
    }

    /// The first of several addresses that takes a connection. Each has its share of the time that is left, so that one which is silent does not
    /// take it all.
    async fn dial_all(&self, addresses: Vec<SocketAddr>, by: Option<Instant>) -> io::Result<TcpStream> {
        let mut outcome = Err(io::Error::other("no address"));
        for (tried, &address) in addresses.iter().enumerate() {
            let left = (addresses.len() - tried) as u32;
            let share = by.map(|by| Instant::now() + by.saturating_duration_since(Instant::now()) / left);
            outcome = self.dial(address, share).await.map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")));
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// The addresses of a replica that is known by a name. Where none was found yet this waits as long as connecting may take, but the lookup goes on:
    /// whoever comes later has its answer.
    async fn resolve(&self, name: &Arc<HostName>, port: u16) -> Result<Vec<SocketAddr>, LookupError> {
        let limit = self.settings.connect_timeout;
        let asking = name.addresses();
        let found = if limit.is_zero() { asking.await } else { timeout(limit, asking).await.unwrap_or(Err(LookupError::Timeout)) };
        Ok(found?.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
    }

    /// The most recently used connection that is still good. Those that are not are closed on the way.
    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle();
        self.close_expired(&mut idle);
        std::iter::from_fn(|| idle.pop_back()).map(|(connection, _)| connection).find(Connection::is_open)
    }

    /// Keeps the connection of an answer that has been read to its end, where it can be used again.
    pub fn give_back(&self, body: &mut Body) {
        let Some(connection) = body.finish() else { return };
        let mut idle = self.idle();
        if idle.len() < self.settings.pool_max_idle {
            idle.push_back((connection, Instant::now()));
        }
    }

    /// Closes the connections that were idle for too long.
    pub fn close_idle(&self) {
        self.close_expired(&mut self.idle());
    }

    fn close_expired(&self, idle: &mut VecDeque<(Connection, Instant)>) {
        let now = Instant::now();
        while idle.front().is_some_and(|(_, since)| now.duration_since(*since) >= self.settings.pool_idle_timeout) {
            idle.pop_front();
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, VecDeque<(Connection, Instant)>> {
        // Nothing panics while it holds this lock.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn host_and_port(authority: &str) -> Option<(&str, u16)> {
    let (host, port) = authority.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}
