//! A client that writes the bytes it is given and shows every byte, chunk and end of what comes back. It retries and reuses nothing.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

use crate::support::{A_WHILE, within};
use crate::wire::{Body, Buffer, Framing, Head};
pub(crate) use crate::wire::{End, Piece};

/// One connection to the router.
pub(crate) struct Client {
    stream: TcpStream,
    buffer: Buffer,
}

/// A whole response, or as much as there was.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: Head,
    pub(crate) body: Body,
}

impl Client {
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        let stream = within("connection", TcpStream::connect(addr)).await.expect("the router accepts");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        Self { stream, buffer: Buffer::default() }
    }

    /// One whose system takes about this many bytes ahead of its reading.
    pub(crate) async fn connect_narrow(addr: SocketAddr, buffer: u32) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(buffer).expect("SO_RCVBUF");
        let stream = within("connection", socket.connect(addr)).await.expect("the router accepts");
        Self { stream, buffer: Buffer::default() }
    }

    /// Writes these bytes, and says whether the router took them. One that has refused already may have closed: what it said is what counts,
    /// so that is no error.
    pub(crate) async fn write(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        within("room to write", self.stream.write_all(bytes.as_ref())).await.is_ok()
    }

    /// Writes a request; `Host` and `Content-Length` (where there is a body or a method that has one) are added to `fields`.
    pub(crate) async fn start(&mut self, method: &str, target: &str, fields: &str, body: impl AsRef<[u8]>) {
        self.write(request(method, target, fields, body)).await;
    }

    /// A request and its response.
    pub(crate) async fn request(&mut self, method: &str, target: &str, fields: &str, body: impl AsRef<[u8]>) -> Response {
        self.start(method, target, fields, body).await;
        self.response(method).await
    }

    /// The response to a request with this method.
    pub(crate) async fn response(&mut self, method: &str) -> Response {
        let head = self.head().await;
        let body = self.body(&head, method).await;
        Response { status: head.status(), head, body }
    }

    /// The response, if the other side does not close before it has sent a head.
    pub(crate) async fn try_response(&mut self, method: &str) -> Option<Response> {
        let head = within("head of a response, or an end", self.buffer.head(&mut self.stream)).await?;
        let body = self.body(&head, method).await;
        Some(Response { status: head.status(), head, body })
    }

    /// The next head, of an interim response too.
    pub(crate) async fn head(&mut self) -> Head {
        within("head of a response", self.buffer.head(&mut self.stream)).await.expect("the router answers before it closes")
    }

    /// The next piece of a streamed body.
    pub(crate) async fn piece(&mut self, framing: &mut Framing) -> Piece {
        within("piece of a body", self.buffer.piece(&mut self.stream, framing)).await
    }

    /// The next piece as text.
    pub(crate) async fn text(&mut self, framing: &mut Framing) -> String {
        match self.piece(framing).await {
            Piece::Data(data) => String::from_utf8(data).expect("text"),
            Piece::End(end) => panic!("the body ended ({end:?}) where a piece was expected"),
        }
    }

    async fn body(&mut self, head: &Head, method: &str) -> Body {
        within("end of a body", self.buffer.body(&mut self.stream, head.response_framing(method))).await
    }

    /// The rest of a streamed body.
    pub(crate) async fn rest(&mut self, framing: Framing) -> Body {
        within("end of a body", self.buffer.body(&mut self.stream, framing)).await
    }

    /// Nothing comes for a while.
    pub(crate) async fn hears_nothing(&mut self) {
        assert!(self.buffer.is_empty(), "bytes were there already");
        let heard = tokio::time::timeout(A_WHILE, self.buffer.fill(&mut self.stream)).await;
        assert!(heard.is_err(), "bytes, or an end, came too early");
    }

    /// Waits for the router to close.
    pub(crate) async fn closed(&mut self) {
        within("end of the connection", async { while self.buffer.fill(&mut self.stream).await {} }).await;
    }

    /// Says that it will write no more, and listens on.
    pub(crate) async fn stop_writing(&mut self) {
        self.stream.shutdown().await.expect("the router is there");
    }

    /// Leaves with a reset rather than an orderly close.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().expect("SO_LINGER");
    }
}

impl Response {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body.bytes).into_owned()
    }

    /// The replica that answered, as the router says.
    pub(crate) fn replica(&self) -> &str {
        self.head.get("x-prefix-router-replica").unwrap_or_else(|| panic!("no replica named: {self:?}"))
    }

    /// Why that replica.
    pub(crate) fn reason(&self) -> &str {
        self.head.get("x-prefix-router-reason").unwrap_or_else(|| panic!("no reason named: {self:?}"))
    }
}

/// The bytes of a request.
pub(crate) fn request(method: &str, target: &str, fields: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut bytes = format!("{method} {target} HTTP/1.1\r\nhost: router.test\r\n{fields}").into_bytes();
    if !body.is_empty() || !matches!(method, "GET" | "HEAD" | "OPTIONS" | "DELETE") {
        bytes.extend(format!("content-length: {}\r\n", body.len()).bytes());
    }
    bytes.extend(b"\r\n");
    bytes.extend(body);
    bytes
}
