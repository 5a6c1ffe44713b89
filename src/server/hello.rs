//! The first bytes of a connection, which tell HTTP/1.1 from h2c.
//!
//! It does not judge them otherwise.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What an h2c client says first, and nobody else.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The first bytes of a connection, which tell HTTP/1.1 from h2c.
#[derive(Default)]
pub(super) struct Hello {
    bytes: [u8; PREFACE.len()],
    read: usize,
    /// As many of them as were passed on.
    passed: usize,
}

impl Hello {
    /// Whether it is h2c.
    pub(super) async fn read(&mut self, stream: &mut TcpStream) -> io::Result<bool> {
        while self.read < PREFACE.len() {
            let count = stream.read(&mut self.bytes[self.read..]).await?;
            self.read += count;
            if count == 0 || !PREFACE.starts_with(&self.bytes[..self.read]) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A connection whose first bytes were read already. They are passed on together with what follows them: given away alone, they would make
/// hyper keep twice the buffer for as long as the connection is open.
pub(super) struct Greeted {
    pub(super) hello: Hello,
    pub(super) stream: TcpStream,
}

impl AsyncRead for Greeted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { hello, stream } = &mut *self;
        let left = &hello.bytes[hello.passed..hello.read];
        if left.is_empty() {
            return Pin::new(stream).poll_read(cx, buffer);
        }
        let count = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..count]);
        hello.passed += count;
        if buffer.remaining() > 0 {
            // Where nothing follows, or an error, the next reading says so.
            let _ = Pin::new(stream).poll_read(cx, buffer);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Greeted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
