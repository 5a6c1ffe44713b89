//! A router in this process between a client and a replica that do as little as they can: fixed bytes over kept connections, on threads of their own,
//! and no allocation once a connection is open. So what is measured is the router's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use prefix_router::app::{self, Running};
use prefix_router::config;
use tokio::runtime::{Builder, Runtime};

/// Longer than anything takes: only a broken router lets the client wait so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// Events of a stream before its `[DONE]`. Each is sent when the client has the last one; otherwise some would come together, on a busy machine others
/// than on an idle one.
const EVENTS: usize = 16;

/// What is asked again and again.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    request: Vec<u8>,
}

/// Chats of three sizes that are answered with JSON, and one that is answered with a stream.
pub(crate) fn cases() -> [Case; 4] {
    [("1k", 1 << 10, false), ("32k", 32 << 10, false), ("256k", 256 << 10, false), ("1k-stream", 1 << 10, true)].map(
        |(name, size, stream)| {
            let body = chat(size, stream);
            let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\naccept: */*\r\n\
                        user-agent: bench\r\nauthorization: Bearer key\r\n";
            Case { name, request: format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes() }
        },
    )
}

/// A chat of about `size` bytes: a system prompt of nine tenths, then a question; line breaks and quotes as in real prompts.
pub(crate) fn chat(size: usize, stream: bool) -> String {
    let sentence = "The system answers with \\\"care\\\" and follows the policy of section four.\\n";
    let system = sentence.repeat(size * 9 / 10 / sentence.len());
    let user = sentence.repeat(size / 10 / sentence.len());
    format!(
        r#"{{"model":"m","messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{user}"}}],"max_tokens":16,"stream":{stream}}}"#
    )
}

/// The router's, with one thread: so a task of it can read the processor time of all the router's work.
pub(crate) fn runtime() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// The router and the client's connection to it.
pub(crate) struct Rig {
    client: TcpStream,
    answer: Vec<u8>,
    arrived: SyncSender<()>,
    _running: Running,
}

impl Rig {
    /// Starts it in front of one replica, and asks until the replica is known to be up.
    pub(crate) fn start(runtime: &Runtime) -> Result<Self> {
        let (arrived, arrivals) = sync_channel(2 * EVENTS);
        let replica = serve(arrivals)?;
        let text = format!(
            "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nhealth_check_interval: 60s\nhealth_check_rise: 1\nslow_start: 0s\nengine_metrics_interval: 0s\n\
             access_log: false\nreplicas: ['http://{replica}']\n"
        );
        let config = config::load_str(&text, "bench.yaml")?;
        let handle = runtime.handle().clone();
        let running = runtime.block_on(async move { handle.spawn(app::start(config)).await? })?;
        let client = TcpStream::connect(running.traffic)?;
        client.set_nodelay(true)?;
        client.set_read_timeout(Some(PATIENCE))?;
        let mut rig = Self { client, answer: Vec::with_capacity(64 << 10), arrived, _running: running };
        // Its first check may take a moment.
        let started = Instant::now();
        while rig.ask(&cases()[0]).is_err() {
            ensure!(started.elapsed() < PATIENCE, "the router does not answer");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(rig)
    }

    /// One request and its whole answer.
    pub(crate) fn ask(&mut self, case: &Case) -> Result<()> {
        self.client.write_all(&case.request)?;
        self.answer.clear();
        let mut piece = [0; 16 << 10];
        let mut events = 0;
        loop {
            let count = self.client.read(&mut piece)?;
            ensure!(count > 0, "the router closed the connection");
            self.answer.extend_from_slice(&piece[..count]);
            let before = events;
            events = self.answer.windows(6).filter(|six| six == b"data: ").count();
            (before..events).try_for_each(|_| self.arrived.send(()))?;
            if is_whole(&self.answer) {
                break;
            }
        }
        ensure!(self.answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&self.answer));
        Ok(())
    }

    /// Many of them, one after the other.
    pub(crate) fn ask_times(&mut self, case: &Case, times: u32) -> Result<()> {
        (0..times).try_for_each(|_| self.ask(case))
    }
}

/// A replica; a thread for each connection.
fn serve(arrivals: Receiver<()>) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let arrivals = Arc::new(Mutex::new(arrivals));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let arrivals = Arc::clone(&arrivals);
            thread::spawn(move || answer_all(stream, &arrivals));
        }
    });
    Ok(address)
}

/// Answers request after request, until the connection ends.
fn answer_all(mut stream: TcpStream, arrivals: &Mutex<Receiver<()>>) -> Result<()> {
    stream.set_nodelay(true)?;
    let json = r#"{"id":"chatcmpl-0","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Hello"}}]}"#;
    let json = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{json}", json.len());
    let stream_head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let event = "data: {\"id\":\"chatcmpl-0\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"}}]}\n\n";
    let event = format!("{:x}\r\n{event}\r\n", event.len());
    let mut request = Vec::with_capacity(1 << 20);
    let mut piece = [0; 64 << 10];
    loop {
        request.clear();
        while !is_whole(&request) {
            let count = stream.read(&mut piece)?;
            ensure!(count > 0, "the end");
            request.extend_from_slice(&piece[..count]);
        }
        if request.ends_with(b"\"stream\":true}") {
            let Ok(arrivals) = arrivals.lock() else { bail!("a thread panicked") };
            stream.write_all(stream_head)?;
            for _ in 0..EVENTS {
                stream.write_all(event.as_bytes())?;
                arrivals.recv()?;
            }
            stream.write_all(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")?;
            arrivals.recv()?;
        } else {
            stream.write_all(json.as_bytes())?;
        }
    }
}

/// Whether this is a whole message, of as many bytes as it says; else its body ends with a last chunk, or it has none.
fn is_whole(message: &[u8]) -> bool {
    let Some(head) = message.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
    let (head, body) = message.split_at(head + 4);
    match length(head) {
        Ok(Some(length)) => body.len() >= length,
        Ok(None) => head.starts_with(b"GET ") || body.ends_with(b"0\r\n\r\n"),
        Err(_) => false,
    }
}

fn length(head: &[u8]) -> Result<Option<usize>> {
    for line in std::str::from_utf8(head)?.lines() {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            return Ok(Some(value.trim().parse().context("a length is a number")?));
        }
    }
    Ok(None)
}
