//! A real router with two replicas behind it, all of them and their client on one thread, so that the same input does the same again. Started once.
//!
//! Nothing here waits: where nobody has anything to say, the clock is put forward instead.

use std::cell::OnceCell;
use std::fmt::Write as _;
use std::future::Future;
use std::net::SocketAddr;
use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use prefix_router::app::{self, Running};
use prefix_router::config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::yield_now;

use crate::wire::{self, Part, Request};

/// In real time; only where something hangs does it take so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// Real silence after which the clock is put forward. What does happen takes microseconds.
const SILENCE: Duration = Duration::from_millis(1);

/// How far the clock is put forward when there is silence, and how often at most.
#[derive(Clone, Copy)]
pub(crate) struct Jumps {
    by: Duration,
    most: usize,
}

/// Over the moment for which the end of a broken stream is held back, but over none of the timeouts.
pub(crate) const SHORT: Jumps = Jumps { by: Duration::from_millis(60), most: 8 };

/// Over every timeout.
pub(crate) const LONG: Jumps = Jumps { by: Duration::from_secs(700), most: 6 };

/// Panics anywhere, that of a task included, of which nobody else hears.
static PANICS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static WORLD: OnceCell<&'static World> = const { OnceCell::new() };
}

/// Everything that there is.
pub(crate) struct World {
    runtime: Runtime,
    traffic: SocketAddr,
    admin: SocketAddr,
    replicas: Arc<Replicas>,
    _running: Running,
}

/// What the replicas do: those who are asked with `x-fuzz: 1` as the script says, if there is one; else they tell what they got.
#[derive(Default)]
struct Replicas {
    script: Mutex<Option<Script>>,
    /// Answers of the script that are being written.
    writing: AtomicUsize,
    /// Told when connections are to be closed, and how many are open.
    close: Notify,
    open: AtomicUsize,
}

/// How to answer.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) pieces: Vec<Vec<u8>>,
    pub(crate) ending: Ending,
}

/// What a replica does once it has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Waits for the next request.
    Keep,
    Fin,
    Reset,
    /// Closes once it is asked again: a kept connection that has died.
    Stale,
}

impl World {
    /// That of this thread.
    pub(crate) fn get() -> &'static Self {
        WORLD.with(|world| *world.get_or_init(|| Box::leak(Box::new(Self::start()))))
    }

    fn start() -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                PANICS.fetch_add(1, Ordering::Relaxed);
                before(panic);
            }));
        });
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // Sockets are looked at before every step, so that what was sent has come.
        let runtime = runtime.enable_all().event_interval(1).build().expect("a runtime");
        let replicas = Arc::new(Replicas::default());
        let running = runtime.block_on(async {
            let mut text = String::from("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\naccess_log: false\nlog_level: error\nhash_seed: 7\n");
            text += "engine_metrics_interval: 0s\nhealth_check_interval: 60s\nhealth_check_rise: 1\nhealth_check_fall: 100\nretry_budget_percent: 100\nretry_budget_floor: 1000\n";
            text += "expose_paths: [/sleep, /x/*]\nmax_body: 64KiB\nmax_header_bytes: 16KiB\nreplay_buffer: 32KiB\nreplicas:\n";
            for _ in 0..2 {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                let _ = writeln!(text, "  - http://{}", listener.local_addr().expect("an address"));
                tokio::spawn(take_connections(listener, Arc::clone(&replicas)));
            }
            let config = config::load_str(&text, "fuzz.yaml").unwrap_or_else(|errors| panic!("{errors}"));
            app::start(config).await.expect("the router starts")
        });
        let world = Self { runtime, traffic: running.traffic, admin: running.admin, replicas, _running: running };
        world.run(async {
            while !world.scrape().await.contains("state=\"up\"} 1") {
                tokio::time::sleep(SILENCE).await;
            }
        });
        world
    }

    /// Runs what a client does, then looks whether anybody panicked.
    pub(crate) fn run(&self, client: impl Future<Output = ()>) {
        self.runtime.block_on(client);
        assert_eq!(PANICS.load(Ordering::Relaxed), 0, "nobody panics");
    }

    /// What replicas answer from now on to requests with `x-fuzz: 1`.
    pub(crate) fn set_script(&self, script: Option<Script>) {
        *self.replicas.script.lock().expect("nobody panicked") = script;
    }

    /// Waits until no answer of the script is being written any more.
    pub(crate) async fn written(&self) {
        let started = Instant::now();
        while self.replicas.writing.load(Ordering::Relaxed) > 0 {
            assert!(started.elapsed() < PATIENCE, "an answer is not taken");
            yield_now().await;
        }
        // And until everybody has seen what was written.
        for _ in 0..8 {
            yield_now().await;
        }
    }

    /// Has the replicas close what they kept open, so that nothing of what was is left for what comes.
    pub(crate) async fn forgets(&self) {
        let started = Instant::now();
        while self.replicas.open.load(Ordering::Relaxed) > 0 {
            assert!(started.elapsed() < PATIENCE, "a connection is not closed");
            self.replicas.close.notify_waiters();
            yield_now().await;
        }
        for _ in 0..8 {
            yield_now().await;
        }
    }

    pub(crate) async fn connect(&self) -> Client {
        Client::connect(self.traffic).await
    }

    /// Waits until every count of requests in flight is 0.
    pub(crate) async fn comes_to_rest(&self) {
        let started = Instant::now();
        loop {
            let text = self.scrape().await;
            let counts = text.lines().filter(|line| line.starts_with("prefix_router_outstanding{"));
            if counts.clone().count() == 2 && counts.clone().all(|line| line.ends_with(" 0")) {
                return;
            }
            let counts: Vec<&str> = counts.collect();
            assert!(started.elapsed() < PATIENCE, "never at rest: {counts:?}");
            tokio::time::sleep(SILENCE).await;
            if started.elapsed() > 10 * SILENCE {
                jump(SHORT.by).await;
            }
        }
    }

    async fn scrape(&self) -> String {
        let mut client = Client::connect(self.admin).await;
        client.write(&[b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"]).await;
        while !client.is_closed {
            client.more(&mut Jumps { by: Duration::ZERO, most: 0 }).await;
        }
        String::from_utf8_lossy(&client.came).into_owned()
    }
}

/// Nobody says anything: not for a moment, and not in many turns after it, as the moment may have been this machine's.
async fn silence() {
    for _ in 0..2 {
        tokio::time::sleep(SILENCE).await;
        for _ in 0..32 {
            yield_now().await;
        }
    }
}

/// Puts the clock forward.
async fn jump(by: Duration) {
    tokio::time::pause();
    tokio::time::advance(by).await;
    tokio::time::resume();
}

/// A client's connection.
pub(crate) struct Client {
    stream: TcpStream,
    /// Everything that came.
    pub(crate) came: Vec<u8>,
    /// Whether no more will come.
    pub(crate) is_closed: bool,
}

impl Client {
    async fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).await.expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        Self { stream, came: Vec::new(), is_closed: false }
    }

    /// Sends these pieces, each for itself. Who does not take them has said why, or will have hung up.
    pub(crate) async fn write(&mut self, pieces: &[&[u8]]) {
        for piece in pieces {
            if self.stream.write_all(piece).await.is_err() {
                return;
            }
            see_to_it().await;
        }
    }

    /// Says that no more will be sent.
    pub(crate) async fn end(&mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// Leaves without a word.
    pub(crate) fn reset(self) {
        let _ = self.stream.set_zero_linger();
    }

    /// Waits until more has come, or the connection is closed. Where nothing does, the clock is put forward.
    pub(crate) async fn more(&mut self, jumps: &mut Jumps) {
        let started = Instant::now();
        while !self.is_closed {
            tokio::select! {
                biased;
                read = self.stream.read_buf(&mut self.came) => {
                    self.is_closed = !matches!(read, Ok(1..));
                    return;
                }
                () = silence() => {}
            }
            if jumps.most > 0 {
                jumps.most -= 1;
                jump(jumps.by).await;
            }
            assert!(started.elapsed() < PATIENCE, "nothing comes after {}", self.came.escape_ascii());
        }
    }
}

/// Lets everybody who can do something do it.
async fn see_to_it() {
    for _ in 0..4 {
        yield_now().await;
    }
}

async fn take_connections(listener: TcpListener, replicas: Arc<Replicas>) {
    while let Ok((stream, _)) = listener.accept().await {
        let replicas = Arc::clone(&replicas);
        tokio::spawn(async move {
            replicas.open.fetch_add(1, Ordering::Relaxed);
            tokio::select! {
                () = serve(stream, &replicas) => {}
                () = replicas.close.notified() => {}
            }
            replicas.open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// One connection of the router's to a replica. The router's requests are beyond doubt, whatever its client sent.
async fn serve(mut stream: TcpStream, replicas: &Replicas) {
    let _ = stream.set_nodelay(true);
    let mut came = Vec::new();
    loop {
        let mut rest = came.as_slice();
        let request = match wire::request(&mut rest) {
            Part::Whole(request) => request,
            Part::Cut(_) => match stream.read_buf(&mut came).await {
                Ok(1..) => continue,
                _ => return,
            },
            Part::Odd => panic!("the router sends what is no request: {}", came.escape_ascii()),
        };
        came = rest.to_vec();
        assert!(request.head.get("transfer-encoding").is_none(), "a body is sent in one piece: {:?}", request.head);
        let script = replicas.script.lock().expect("nobody panicked").clone();
        let ending = match script.filter(|_| request.head.get("x-fuzz") == Some("1")) {
            Some(script) => {
                replicas.writing.fetch_add(1, Ordering::Relaxed);
                for piece in &script.pieces {
                    if stream.write_all(piece).await.is_err() {
                        break;
                    }
                    see_to_it().await;
                }
                replicas.writing.fetch_sub(1, Ordering::Relaxed);
                script.ending
            }
            None => match stream.write_all(&tell(&request)).await {
                Ok(()) => Ending::Keep,
                Err(_) => return,
            },
        };
        match ending {
            Ending::Keep => {}
            Ending::Fin => {
                let _ = stream.shutdown().await;
                return;
            }
            Ending::Reset => {
                let _ = stream.set_zero_linger();
                return;
            }
            Ending::Stale => {
                let _ = stream.read_buf(&mut came).await;
                return;
            }
        }
    }
}

/// An answer that says what was asked, and has its body.
fn tell(request: &Request) -> Vec<u8> {
    let own: Option<&[u8]> = match (request.method(), request.target()) {
        ("GET", "/health") => Some(b""),
        ("GET", "/v1/models") => Some(br#"{"object":"list","data":[{"id":"m"},{"id":"n"}]}"#),
        ("GET", "/load") => Some(br#"{"server_load":1}"#),
        _ => None,
    };
    let body = own.unwrap_or(&request.body);
    let mut answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-got: ".to_vec();
    answer.extend(wire::bytes(&request.head.start));
    answer.extend(format!("\r\ncontent-length: {}\r\n\r\n", body.len()).bytes());
    if request.method() != "HEAD" {
        answer.extend_from_slice(body);
    }
    answer
}
