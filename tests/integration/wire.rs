//! HTTP/1.1 read from a socket as it is: heads as bytes, bodies with the size and time of each piece. Deliberately not hyper's
//! parser: what is tested is what hyper makes of the bytes, so the other side of the wire is read by other code.

use std::io;
use std::time::Instant;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The head of a request or response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Request line or status line, without its line end.
    pub(crate) start: String,
    /// Fields in the order sent; names in lower case, values as sent.
    pub(crate) fields: Vec<(String, String)>,
}

impl Head {
    fn parse(raw: &[u8]) -> Self {
        // One char per byte, so that a value of any bytes is kept apart from every other.
        let text: String = raw.iter().map(|&byte| char::from(byte)).collect();
        let mut lines = text.split("\r\n").filter(|line| !line.is_empty());
        let start = lines.next().unwrap_or_default().to_owned();
        let fields = lines
            .map(|line| {
                let (name, value) = line.split_once(':').unwrap_or((line, ""));
                (name.to_ascii_lowercase(), value.trim().to_owned())
            })
            .collect();
        Self { start, fields }
    }

    /// Every value of a field, in order.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.fields.iter().filter(|(field, _)| field == name).map(|(_, value)| value.as_str()).collect()
    }

    /// The first value of a field.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    /// The second word of a status line.
    pub(crate) fn status(&self) -> u16 {
        let word = self.start.split(' ').nth(1).unwrap_or_default();
        word.parse().unwrap_or_else(|_| panic!("not a status line: {:?}", self.start))
    }

    pub(crate) fn method(&self) -> &str {
        self.start.split(' ').next().unwrap_or_default()
    }

    pub(crate) fn target(&self) -> &str {
        self.start.split(' ').nth(1).unwrap_or_default()
    }

    fn is_chunked(&self) -> bool {
        self.all("transfer-encoding").iter().any(|value| value.to_ascii_lowercase().contains("chunked"))
    }

    fn length(&self) -> Option<usize> {
        self.get("content-length").and_then(|value| value.parse().ok())
    }

    /// How the body of a response with this head ends.
    pub(crate) fn response_framing(&self, to: &str) -> Framing {
        let bodiless = to == "HEAD" || matches!(self.status(), 100..=199 | 204 | 304);
        match (bodiless, self.is_chunked(), self.length()) {
            (true, ..) => Framing::Length(0),
            (_, true, _) => Framing::Chunked,
            (_, _, Some(length)) => Framing::Length(length),
            _ => Framing::UntilClosed,
        }
    }

    /// How the body of a request with this head ends.
    pub(crate) fn request_framing(&self) -> Framing {
        if self.is_chunked() { Framing::Chunked } else { Framing::Length(self.length().unwrap_or(0)) }
    }
}

/// What ends a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(usize),
    Chunked,
    UntilClosed,
}

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// As its framing promised.
    Whole,
    /// The peer closed or reset before that.
    Cut,
}

/// A body as it came.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub(crate) bytes: Vec<u8>,
    /// Length of each chunk of a chunked body.
    pub(crate) chunks: Vec<usize>,
    pub(crate) end: End,
}

impl Body {
    /// Where chunks ended, as offsets into the body.
    pub(crate) fn borders(&self) -> Vec<usize> {
        self.chunks
            .iter()
            .scan(0, |sum, length| {
                *sum += length;
                Some(*sum)
            })
            .collect()
    }
}

/// One piece of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Data(Vec<u8>),
    End(End),
}

/// Bytes read ahead of what was asked for.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    ahead: BytesMut,
    /// When the last bytes came.
    pub(crate) last: Option<Instant>,
}

impl Buffer {
    /// Waits for more bytes; false when the peer has closed (a reset counts as that).
    pub(crate) async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> bool {
        match from.read_buf(&mut self.ahead).await {
            Ok(read) if read > 0 => {
                self.last = Some(Instant::now());
                true
            }
            Ok(_) => false,
            Err(error) => {
                assert!(error.kind() != io::ErrorKind::WouldBlock, "{error}");
                false
            }
        }
    }

    /// Whether bytes were read that nobody has asked for yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.ahead.is_empty()
    }

    fn take(&mut self, length: usize) -> Vec<u8> {
        self.ahead.split_to(length).to_vec()
    }

    /// Up to and with `end`; none when the peer closes first.
    async fn until(&mut self, from: &mut (impl AsyncRead + Unpin), end: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.ahead.windows(end.len()).position(|window| window == end) {
                return Some(self.take(at + end.len()));
            }
            if !self.fill(from).await {
                return None;
            }
        }
    }

    /// The next head, parsed and raw.
    pub(crate) async fn head(&mut self, from: &mut (impl AsyncRead + Unpin)) -> Option<Head> {
        let raw = self.until(from, b"\r\n\r\n").await?;
        Some(Head::parse(&raw))
    }

    /// The next piece of a body: a whole chunk, or what is there of a body with a length, which `framing` then counts down.
    pub(crate) async fn piece(&mut self, from: &mut (impl AsyncRead + Unpin), framing: &mut Framing) -> Piece {
        match framing {
            Framing::Length(0) => Piece::End(End::Whole),
            Framing::Length(left) => {
                if self.ahead.is_empty() && !self.fill(from).await {
                    return Piece::End(End::Cut);
                }
                let here = self.ahead.len().min(*left);
                *left -= here;
                Piece::Data(self.take(here))
            }
            Framing::UntilClosed => {
                if self.ahead.is_empty() && !self.fill(from).await {
                    return Piece::End(End::Whole);
                }
                Piece::Data(self.take(self.ahead.len()))
            }
            Framing::Chunked => self.chunk(from).await,
        }
    }

    /// A whole chunk; of one that is cut, what came of it is given first and the cut found again by the next call.
    async fn chunk(&mut self, from: &mut (impl AsyncRead + Unpin)) -> Piece {
        let Some(line) = self.until(from, b"\r\n").await else { return Piece::End(End::Cut) };
        let text = String::from_utf8_lossy(&line);
        let size = text.trim_end().split(';').next().unwrap_or_default();
        let length = usize::from_str_radix(size, 16).unwrap_or_else(|_| panic!("not a chunk size: {text:?}"));
        if length == 0 {
            return match self.until(from, b"\r\n").await {
                Some(_) => Piece::End(End::Whole),
                None => Piece::End(End::Cut),
            };
        }
        while self.ahead.len() < length + 2 {
            if !self.fill(from).await {
                let part = self.ahead.len().min(length);
                let data = self.take(part);
                self.ahead.clear();
                return if data.is_empty() { Piece::End(End::Cut) } else { Piece::Data(data) };
            }
        }
        let data = self.take(length);
        assert_eq!(self.take(2), b"\r\n", "a chunk ends with its length");
        Piece::Data(data)
    }

    /// The rest of a body.
    pub(crate) async fn body(&mut self, from: &mut (impl AsyncRead + Unpin), mut framing: Framing) -> Body {
        let mut body = Body { bytes: Vec::new(), chunks: Vec::new(), end: End::Cut };
        loop {
            match self.piece(from, &mut framing).await {
                Piece::Data(data) => {
                    body.chunks.push(data.len());
                    body.bytes.extend(data);
                }
                Piece::End(end) => {
                    body.end = end;
                    return body;
                }
            }
        }
    }
}
