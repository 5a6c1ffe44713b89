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
use hyper::header::HeaderValue;
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Response, StatusCode};
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

/// What is to be sent, to whichever replica.
pub struct Outgoing {
    /// The method.
    pub method: Method,
    /// Path and query, as the client wrote them.
    pub target: PathAndQuery,
    /// All headers that shall arrive, written out, but for `Host` and credentials.
    pub fields: Vec<u8>,
    /// The caller's credentials, for replicas that have none of their own.
    pub authorization: Vec<HeaderValue>,
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
#[error("cannot send requests to {whom}: {source}")]
pub struct UnusableReplica {
    whom: String,
    source: hyper::http::Error,
}

/// What holds for requests to all replicas alike.
struct Terms {
    settings: Settings,
    authorization: Option<HeaderValue>,
}

impl Terms {
    fn new(settings: Settings) -> Result<Arc<Self>, UnusableReplica> {
        let key = settings.api_key.as_ref().map(|key| HeaderValue::from_str(&format!("Bearer {}", key.reveal())));
        let unusable = |error: hyper::header::InvalidHeaderValue| UnusableReplica { whom: "any replica".to_owned(), source: error.into() };
        let mut authorization = key.transpose().map_err(unusable)?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        Ok(Arc::new(Self { settings, authorization }))
    }
}

/// Makes the connections of all replicas alike.
#[derive(Clone)]
pub struct Connector {
    terms: Arc<Terms>,
    names: Arc<HostNames>,
}

impl Connector {
    /// One that finds replicas which are known by a name among `names`. Fails where the key cannot stand in a header.
    pub fn new(settings: Settings, names: HostNames) -> Result<Self, UnusableReplica> {
        Ok(Self { terms: Terms::new(settings)?, names: Arc::new(names) })
    }

    /// The same with other settings. Fails where the key cannot stand in a header.
    pub fn with(&self, settings: Settings) -> Result<Self, UnusableReplica> {
        let terms = if settings == self.terms.settings { Arc::clone(&self.terms) } else { Terms::new(settings)? };
        Ok(Self { terms, names: Arc::clone(&self.names) })
    }

    /// A pool without connections. Fails where the address cannot stand in a header.
    pub fn connect(&self, replica: &Arc<Replica>) -> Result<Arc<Upstream>, UnusableReplica> {
        let authority = &replica.spec().authority;
        let unusable = |error: hyper::header::InvalidHeaderValue| {
            let whom = format!("replica {}", replica.name());
            UnusableReplica { whom, source: error.into() }
        };
        let host = HeaderValue::from_str(authority).map_err(unusable)?;
        let address = match (authority.parse(), host_and_port(authority)) {
            (Ok(literal), _) => Address::Literal(literal),
            (Err(_), Some((host, port))) => Address::Name(self.names.get(host), port),
            (Err(_), None) => Address::None,
        };
        let link = Link { replica: Arc::clone(replica), address, host, idle: Mutex::default() };
        Ok(Arc::new(Upstream { terms: Arc::clone(&self.terms), link: Arc::new(link) }))
    }

    /// The same connections by the settings of this connector.
    pub fn adopt(&self, upstream: &Arc<Upstream>) -> Arc<Upstream> {
        upstream.under(&self.terms)
    }
}

/// Where a replica is.
#[derive(Clone)]
enum Address {
    Literal(SocketAddr),
    /// Under a name, at a port.
    Name(Arc<HostName>, u16),
    /// Not a host and a port.
    None,
}

/// The connections to one replica, and the settings by which they are used.
pub struct Upstream {
    terms: Arc<Terms>,
    link: Arc<Link>,
}

/// The connections alone, which stay when settings change.
pub struct Link {
    replica: Arc<Replica>,
    address: Address,
    host: HeaderValue,
    /// The most recently used at the back.
    idle: Mutex<VecDeque<(Connection, Instant)>>,
}

impl Link {
    /// The replica at the other end.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }
}

impl Upstream {
    /// The replica at the other end.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.link.replica
    }

    /// The connections, whatever the settings.
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// The same replica, by the same settings, over connections of its own: none of those that requests use.
    pub fn apart(&self) -> Arc<Self> {
        let Link { replica, address, host, .. } = &*self.link;
        let link = Link { replica: Arc::clone(replica), address: address.clone(), host: host.clone(), idle: Mutex::default() };
        Arc::new(Self { terms: Arc::clone(&self.terms), link: Arc::new(link) })
    }

    /// The same connections by the settings of `other`.
    pub fn under_settings_of(self: &Arc<Self>, other: &Self) -> Arc<Self> {
        self.under(&other.terms)
    }

    fn under(self: &Arc<Self>, terms: &Arc<Terms>) -> Arc<Self> {
        if Arc::ptr_eq(&self.terms, terms) {
            return Arc::clone(self);
        }
        Arc::new(Self { terms: Arc::clone(terms), link: Arc::clone(&self.link) })
    }

    /// Sends `outgoing` and waits for the head of the answer. Dropping the future, or the answer, closes the connection at once: that is
    /// how a replica learns that its client has left, even while nothing flows.
    ///
    /// A kept connection may have died unnoticed. Where `resend` allows it, or where nothing was written, such a request gets one fresh
    /// connection; `stale` is called then.
    pub async fn send(&self, outgoing: &Outgoing, resend: bool, stale: impl FnOnce()) -> Result<Response<Body>, SendError> {
        if let Some(connection) = self.take_idle() {
            // What may be sent but once is not sent in vain.
            if !resend && !connection.is_surely_open() {
                stale();
                return self.exchange(self.connect().await?, outgoing).await;
            }
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
        let authorization = authorization.into_iter().collect();
        let outgoing = Outgoing { method: Method::GET, target: path.parse()?, fields: Vec::new(), authorization, body: Bytes::new() };
        let (head, mut body) = self.send(&outgoing, true, || ()).await?.into_parts();
        let bytes = Limited::new(&mut body, limit).collect().await?.to_bytes();
        self.give_back(&mut body);
        Ok((head.status, bytes))
    }

    /// Whether a connection can be made, which is closed again.
    pub async fn try_connect(&self) -> Result<(), SendError> {
        self.connect().await.map(drop)
    }

    async fn exchange(&self, connection: Connection, outgoing: &Outgoing) -> Result<Response<Body>, SendError> {
        let sent = connection.exchange(&outgoing.method, self.head(outgoing), outgoing.body.clone()).await;
        sent.map_err(|(source, written)| SendError::Broke { source, written })
    }

    /// The request's head, written out.
    fn head(&self, outgoing: &Outgoing) -> Bytes {
        let own = self.terms.authorization.as_slice();
        let authorization = if own.is_empty() { outgoing.authorization.as_slice() } else { own };
        let mut head = Vec::with_capacity(outgoing.fields.len() + 512);
        for part in [outgoing.method.as_str(), " ", outgoing.target.as_str(), " HTTP/1.1\r\nhost: "] {
            head.extend_from_slice(part.as_bytes());
        }
        head.extend_from_slice(self.link.host.as_bytes());
        for value in authorization {
            head.extend_from_slice(b"\r\nauthorization: ");
            head.extend_from_slice(value.as_bytes());
        }
        for part in [b"\r\n", outgoing.fields.as_slice(), b"\r\n"] {
            head.extend_from_slice(part);
        }
        head.into()
    }

    async fn connect(&self) -> Result<Connection, SendError> {
        let stream = match &self.link.address {
            Address::Literal(address) => self.dial(*address, self.deadline()).await,
            Address::Name(name, port) => match self.resolve(name, *port).await {
                // DNS has had a time of its own: the replica gets all of this.
                Ok(addresses) => self.dial_all(addresses, self.deadline()).await,
                // Not a kind by which the replica would look guilty.
                Err(error) => Err(io::Error::other(format!("the name {} does not resolve: {error}", name.host()))),
            },
            Address::None => Err(io::Error::other(format!("{} is not a host and a port", self.replica().spec().authority))),
        }
        .map_err(SendError::Connect)?;
        stream.set_nodelay(true).map_err(SendError::Connect)?;
        Ok(Connection::new(stream))
    }

    /// When what begins now has to be done; `None`: no limit.
    fn deadline(&self) -> Option<Instant> {
        let limit = self.terms.settings.connect_timeout;
        (!limit.is_zero()).then(|| Instant::now() + limit)
    }

    async fn dial(&self, address: SocketAddr, by: Option<Instant>) -> io::Result<TcpStream> {
        let Some(by) = by else { return TcpStream::connect(address).await };
        let late = || {
            io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer from {address} within {:?} (connect_timeout)", self.terms.settings.connect_timeout),
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
        let limit = self.terms.settings.connect_timeout;
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
        if idle.len() < self.terms.settings.pool_max_idle {
            idle.push_back((connection, Instant::now()));
        }
    }

    /// Closes the connections that were idle for too long.
    pub fn close_idle(&self) {
        self.close_expired(&mut self.idle());
    }

    fn close_expired(&self, idle: &mut VecDeque<(Connection, Instant)>) {
        let now = Instant::now();
        while idle.front().is_some_and(|(_, since)| now.duration_since(*since) >= self.terms.settings.pool_idle_timeout) {
            idle.pop_front();
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, VecDeque<(Connection, Instant)>> {
        // Nothing panics while it holds this lock.
        self.link.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn host_and_port(authority: &str) -> Option<(&str, u16)> {
    let (host, port) = authority.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}
