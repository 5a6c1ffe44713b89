//! A replica whose every byte the test decides: it keeps what it was sent and answers by script. It knows nothing of inference.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::support::eventually;
use crate::wire::{Buffer, Head};

/// What a replica was sent.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) head: Head,
    /// The body without its framing.
    pub(crate) body: Vec<u8>,
    /// Which connection it came on, counted over those that carried requests.
    pub(crate) connection: usize,
    /// Which of its connection's requests it is, from 0.
    pub(crate) nth: usize,
}

/// One step of an answer.
#[derive(Clone)]
pub(crate) enum Step {
    /// These bytes, as they are.
    Write(Vec<u8>),
    /// Until the test opens the gate.
    Wait(Gate),
    Sleep(Duration),
    /// Whatever the test wants to be done at this point.
    Do(Arc<dyn Fn() + Send + Sync>),
    /// Until the peer leaves.
    Hang,
    /// Closes the connection.
    Fin,
    /// Resets the connection.
    Reset,
}

/// Something that a script waits for and a test lets happen; it stays open once opened.
#[derive(Clone)]
pub(crate) struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }

    pub(crate) async fn opened(&self) {
        let mut state = self.0.subscribe();
        drop(state.wait_for(|&open| open).await);
    }
}

/// How health checks are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Good,
    Status(u16),
    Hang,
}

type Script = Arc<dyn Fn(&Request) -> Vec<Step> + Send + Sync>;

/// The scriptable replica. Dropping it kills it.
pub(crate) struct Replica {
    pub(crate) name: &'static str,
    pub(crate) addr: SocketAddr,
    state: Arc<State>,
    place: Mutex<Place>,
}

/// A replica that does not listen keeps its port all the same, so that no other program gets it: connections are then refused.
enum Place {
    Listening(JoinHandle<()>),
    Bound(TcpSocket),
    Moving,
}

struct State {
    script: Mutex<Script>,
    health: Mutex<Health>,
    requests: Mutex<Vec<Request>>,
    probes: Mutex<Vec<Head>>,
    left: Mutex<Vec<Instant>>,
    connections: AtomicUsize,
    open: AtomicUsize,
}

impl Replica {
    /// One that listens.
    pub(crate) fn start(name: &'static str, script: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let replica = Self::refusing(name, script);
        replica.restart();
        replica
    }

    /// One that listens at this address, and is called by it.
    pub(crate) fn start_at(addr: SocketAddr, script: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let socket = bind(addr);
        let addr = socket.local_addr().expect("a bound socket has an address");
        let replica = Self::bound(Box::leak(addr.to_string().into_boxed_str()), socket, script);
        replica.restart();
        replica
    }

    /// One that refuses connections until `restart`.
    pub(crate) fn refusing(name: &'static str, script: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::bound(name, bind(SocketAddr::from(([127, 0, 0, 1], 0))), script)
    }

    fn bound(name: &'static str, socket: TcpSocket, script: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let state = State {
            script: Mutex::new(Arc::new(script)),
            health: Mutex::new(Health::Good),
            requests: Mutex::default(),
            probes: Mutex::default(),
            left: Mutex::default(),
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
        };
        Self {
            name,
            addr: socket.local_addr().expect("a bound socket has an address"),
            state: Arc::new(state),
            place: Mutex::new(Place::Bound(socket)),
        }
    }

    /// Listens, on the port it always had.
    pub(crate) fn restart(&self) {
        let mut place = self.place.lock().expect("no panic under the lock");
        if let Place::Bound(socket) = std::mem::replace(&mut *place, Place::Moving) {
            let listener = socket.listen(1024).expect("the port is ours");
            *place = Place::Listening(tokio::spawn(accept(listener, Arc::clone(&self.state))));
        }
    }

    /// Dies: every connection is closed, new ones are refused.
    pub(crate) async fn stop(&self) {
        let was = std::mem::replace(&mut *self.place.lock().expect("no panic under the lock"), Place::Moving);
        if let Place::Listening(task) = was {
            task.abort();
            drop(task.await);
        }
        *self.place.lock().expect("no panic under the lock") = Place::Bound(bind(self.addr));
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Answers by another script from now on.
    pub(crate) fn script(&self, script: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static) {
        *self.state.script.lock().expect("no panic under the lock") = Arc::new(script);
    }

    pub(crate) fn health(&self, health: Health) {
        *self.state.health.lock().expect("no panic under the lock") = health;
    }

    /// All requests so far, without health checks.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().expect("no panic under the lock").clone()
    }

    /// How many requests so far.
    pub(crate) fn count(&self) -> usize {
        self.state.requests.lock().expect("no panic under the lock").len()
    }

    /// Counts from here.
    pub(crate) fn forget(&self) {
        self.state.requests.lock().expect("no panic under the lock").clear();
    }

    /// The only request so far.
    pub(crate) fn only_request(&self) -> Request {
        let mut requests = self.requests();
        assert_eq!(requests.len(), 1, "replica {} saw {requests:?}", self.name);
        requests.remove(0)
    }

    /// The heads of all health checks so far.
    pub(crate) fn probes(&self) -> Vec<Head> {
        self.state.probes.lock().expect("no panic under the lock").clone()
    }

    /// Requests whose answer is not yet written.
    pub(crate) fn open(&self) -> usize {
        self.state.open.load(Ordering::SeqCst)
    }

    /// When peers left before their answer was written.
    pub(crate) fn left(&self) -> Vec<Instant> {
        self.state.left.lock().expect("no panic under the lock").clone()
    }

    /// Waits until `count` requests have come.
    pub(crate) async fn has_requests(&self, count: usize) {
        eventually(&format!("{count} requests at replica {}", self.name), async || self.count() >= count).await;
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Ok(Place::Listening(task)) = self.place.get_mut().map(|place| &*place) {
            task.abort();
        }
    }
}

fn bind(addr: SocketAddr) -> TcpSocket {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.expect("a socket");
    socket.set_reuseaddr(true).expect("SO_REUSEADDR");
    socket.bind(addr).unwrap_or_else(|error| panic!("cannot bind {addr}: {error}"));
    socket
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    // Connections die with the set, and the set with this task.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve(stream, Arc::clone(&state)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut stream: TcpStream, state: Arc<State>) {
    drop(stream.set_nodelay(true));
    let mut buffer = Buffer::default();
    let mut connection = None;
    let mut nth = 0;
    while let Some(head) = buffer.head(&mut stream).await {
        if head.target() == "/health" {
            answer_probe(&mut stream, &state, head).await;
            return;
        }
        let body = buffer.body(&mut stream, head.request_framing()).await.bytes;
        let connection = *connection.get_or_insert_with(|| state.connections.fetch_add(1, Ordering::SeqCst));
        let request = Request { head, body, connection, nth };
        nth += 1;
        let script = Arc::clone(&state.script.lock().expect("no panic under the lock"));
        let steps = script(&request);
        let open = Open::count(&state);
        state.requests.lock().expect("no panic under the lock").push(request);
        let end = play(&mut stream, &mut buffer, steps).await;
        drop(open);
        match end {
            Played::All => {}
            Played::Closed => return,
            Played::PeerLeft => {
                state.left.lock().expect("no panic under the lock").push(Instant::now());
                return;
            }
        }
    }
}

/// Counts one open request for as long as it lives, also when its task is killed.
struct Open(Arc<State>);

impl Open {
    fn count(state: &Arc<State>) -> Self {
        state.open.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(state))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

enum Played {
    All,
    Closed,
    PeerLeft,
}

/// Plays the steps while it listens for the peer's leaving, as an engine does.
async fn play(stream: &mut TcpStream, buffer: &mut Buffer, steps: Vec<Step>) -> Played {
    let (mut read, mut write) = stream.split();
    let run = async {
        for step in steps {
            match step {
                Step::Write(bytes) => {
                    if write.write_all(&bytes).await.is_err() {
                        return Ok(Played::PeerLeft);
                    }
                }
                Step::Wait(gate) => gate.opened().await,
                Step::Sleep(time) => tokio::time::sleep(time).await,
                Step::Do(act) => act(),
                Step::Hang => std::future::pending().await,
                Step::Fin => return Ok(Played::Closed),
                Step::Reset => return Err(()),
            }
        }
        Ok(Played::All)
    };
    let peer = async { while buffer.fill(&mut read).await {} };
    let end = tokio::select! {
        biased;
        end = run => end,
        () = peer => Ok(Played::PeerLeft),
    };
    end.unwrap_or_else(|()| {
        stream.set_zero_linger().expect("SO_LINGER");
        Played::Closed
    })
}

/// Answers a health check. The answer closes the connection, so that requests never find one
/// that a health check has opened, and a test knows which of its requests opened which.
async fn answer_probe(stream: &mut TcpStream, state: &State, head: Head) {
    state.probes.lock().expect("no panic under the lock").push(head);
    let health = *state.health.lock().expect("no panic under the lock");
    match health {
        Health::Good => {
            drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await);
        }
        Health::Status(status) => {
            let answer = format!("HTTP/1.1 {status} Status\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            drop(stream.write_all(answer.as_bytes()).await);
        }
        Health::Hang => {
            let mut ahead = Buffer::default();
            while ahead.fill(stream).await {}
        }
    }
}
