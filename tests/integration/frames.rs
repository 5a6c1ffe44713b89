//! HTTP/2 frame by frame, for clients that do what no library lets them do.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::within;

pub(crate) mod kind {
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const GOAWAY: u8 = 7;
}

/// One frame that came.
#[derive(Debug)]
pub(crate) struct Frame {
    kind: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// A connection that has said hello.
pub(crate) struct Frames {
    stream: TcpStream,
}

impl Frames {
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        let stream = within("connection", TcpStream::connect(addr)).await.expect("the router accepts");
        let mut frames = Self { stream };
        frames.write(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(kind::SETTINGS, 0, 0, &[])].concat()).await;
        frames
    }

    /// Writes; a router that has closed takes nothing, which is no error.
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        drop(within("room to write", self.stream.write_all(bytes)).await);
    }

    /// `GET` on this stream.
    pub(crate) async fn get(&mut self, stream: u32, path: &str) {
        self.write(&get(stream, path)).await;
    }

    /// The bytes of so many requests, each taken back at once.
    pub(crate) fn reset_flood(&self, count: u32, path: &str) -> Vec<u8> {
        let reset = |stream| frame(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        (0..count).map(|number| number * 2 + 1).flat_map(|stream| [get(stream, path), reset(stream)].concat()).collect()
    }

    /// The next frame of this kind; `None` where the connection ends before.
    pub(crate) async fn next_of(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let frame = within("frame", self.next()).await?;
            if frame.kind == kind {
                return Some(frame);
            }
        }
    }

    async fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await.ok()?;
        let [a, b, c, kind, _, s0, s1, s2, s3] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).await.ok()?;
        Some(Frame { kind, stream: u32::from_be_bytes([s0, s1, s2, s3]), payload })
    }

    /// Waits for the router to close.
    pub(crate) async fn closed(&mut self) {
        within("end of the connection", async { while self.next().await.is_some() {} }).await;
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn get(stream: u32, path: &str) -> Vec<u8> {
    // `:method: GET` and `:scheme: http` stand in the static table; path and authority as literals with the table's names.
    let literal = |name: u8, value: &str| [&[name, value.len() as u8], value.as_bytes()].concat();
    let block = [vec![0x82, 0x86], literal(0x04, path), literal(0x01, "x")].concat();
    // END_STREAM and END_HEADERS.
    frame(kind::HEADERS, 0x5, stream, &block)
}
