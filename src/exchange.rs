//! One request and its answer on a connection to a server: HTTP/1.1 as a client speaks it, and no more of it than a proxy needs.
//!
//! Most answers are streams that say little for a long time, and there are thousands of them. So nothing is kept while nothing flows: no
//! buffers, no task, no channel. Room to read is made when there is something to be read, and goes on with what was read.
//!
//! It knows nothing of replicas, nor of what is sent.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::ext::ReasonPhrase;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING};
use hyper::http::response;
use hyper::{HeaderMap, Method, Response, StatusCode, Version};
use memchr::{memchr, memmem};
use rustix::net::{RecvFlags, recv};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio_util::io::poll_read_buf;

/// The largest head of an answer, and how many fields it may have.
const MAX_HEAD: usize = 512 << 10;
const MAX_FIELDS: usize = 128;

/// How many fields whoever passes the answer on may add without making room anew.
const ADDED: usize = 4;

/// The longest line about a chunk, and all that may stand behind the last one.
const MAX_LINE: usize = 16 << 10;

/// How much is read at once: more each time that so much was there, less where it was little. The least is for streams, whose events are a few
/// hundred bytes: room of 8 KiB for each cost more than all else about it.
const STEPS: [usize; 5] = [2 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];

/// With which of them a connection begins.
const FIRST_STEP: usize = 1;

/// Heads up to here are read again each time that more of them comes.
const SMALL_HEAD: usize = 8 << 10;

/// Why an exchange came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The server closed the connection before the end.
    #[error("the connection was closed before the end")]
    Closed,
    /// What came is not HTTP.
    #[error("{0}")]
    Malformed(&'static str),
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A connection on which no request is under way.
pub struct Connection {
    stream: TcpStream,
    /// What was read and is not used yet.
    ahead: BytesMut,
    step: usize,
    /// How much of a head that is not all there was looked at.
    searched: usize,
}

impl Connection {
    /// Begins on a stream that is connected.
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, ahead: BytesMut::new(), step: FIRST_STEP, searched: 0 }
    }

    /// Whether a request can be sent: the server has neither closed the connection nor said something that nobody asked for, as far as the runtime
    /// has heard. (It is not the system that is asked: a read that brings less than it could leaves the connection marked as silent until there is
    /// news.)
    pub fn is_open(&self) -> bool {
        let heard = self.stream.try_read(&mut [0]);
        self.ahead.is_empty() && heard.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// The same, and the system is asked, too: it may have news of which the runtime has not heard yet.
    pub fn is_surely_open(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        self.is_open() && recv(&self.stream, &mut [0; 1], flags).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends a request, whose `head` is written out to its empty line, and waits for the head of the answer. Where it fails it also says
    /// whether anything was written. Dropping the future, or the body that it brings, closes the connection at once.
    pub async fn exchange(mut self, method: &Method, head: Bytes, body: Bytes) -> Result<Response<Body>, (Broken, bool)> {
        let mut unsent = Unsent { head, body, begun: false, failed: false };
        let head = poll_fn(|cx| self.poll_head(cx, &mut unsent)).await.map_err(|error| (error, unsent.begun))?;
        let framing = framing(method, &head).map_err(|error| (error, true))?;
        // Two framings mean that somebody may have read the end elsewhere (RFC 9112, 6.3).
        let is_plain = !(head.headers.contains_key(TRANSFER_ENCODING) && head.headers.contains_key(CONTENT_LENGTH));
        let keep = framing != Framing::Close && is_plain && wants_more(&head);
        Ok(Response::from_parts(head, Body { connection: Some(self), unsent, framing, keep }))
    }

    /// The head of the answer. The request is written meanwhile: a server may answer before it has all of it.
    fn poll_head(&mut self, cx: &mut Context<'_>, unsent: &mut Unsent) -> Poll<Result<response::Parts, Broken>> {
        unsent.poll_write(cx, &mut self.stream);
        loop {
            if let Some(head) = parse_head(&mut self.ahead, &mut self.searched)? {
                self.searched = 0;
                match head.status {
                    StatusCode::SWITCHING_PROTOCOLS => return Poll::Ready(Err(Broken::Malformed("an upgrade that nobody asked for"))),
                    status if status.is_informational() => continue,
                    _ => return Poll::Ready(Ok(head)),
                }
            }
            if ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Err(Broken::Closed));
            }
        }
    }

    /// Reads what there is, and says how much it was; nothing is the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // No room is made for what is not there, nor kept: of 2,000 slow streams each held 8 KiB.
        let Poll::Ready(ready) = self.stream.poll_read_ready(cx) else {
            self.let_go();
            return Poll::Pending;
        };
        ready?;
        let room = STEPS[self.step];
        self.ahead.reserve(room);
        let Poll::Ready(count) = poll_read_buf(Pin::new(&mut self.stream), cx, &mut self.ahead)? else {
            self.let_go();
            return Poll::Pending;
        };
        self.step =
            if count >= room { (self.step + 1).min(STEPS.len() - 1) } else { self.step.saturating_sub(usize::from(count < room / 2)) };
        Poll::Ready(Ok(count))
    }

    /// The next `count` bytes of what was read, or as many as there are.
    fn take(&mut self, count: u64) -> Bytes {
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(self.ahead.len());
        let piece = self.ahead.split_to(count).freeze();
        self.let_go();
        piece
    }

    /// Keeps no room for what may come.
    fn let_go(&mut self) {
        if self.ahead.is_empty() {
            self.ahead = BytesMut::new();
        }
    }
}

/// What of a request is not written yet.
struct Unsent {
    head: Bytes,
    body: Bytes,
    begun: bool,
    failed: bool,
}

impl Unsent {
    /// Writes as much as goes. Where that fails there may still be an answer, so that whoever reads has the last word.
    fn poll_write(&mut self, cx: &mut Context<'_>, stream: &mut TcpStream) {
        while !self.head.is_empty() || !self.body.is_empty() {
            let both = [IoSlice::new(&self.head), IoSlice::new(&self.body)];
            match Pin::new(&mut *stream).poll_write_vectored(cx, &both) {
                Poll::Pending => return,
                Poll::Ready(Ok(count)) if count > 0 => {
                    self.begun = true;
                    let of_head = count.min(self.head.len());
                    self.head.advance(of_head);
                    self.body.advance(count - of_head);
                }
                Poll::Ready(_) => {
                    self.failed = true;
                    (self.head, self.body) = (Bytes::new(), Bytes::new());
                }
            }
        }
        // What is empty may still hold what it was part of.
        (self.head, self.body) = (Bytes::new(), Bytes::new());
    }

    fn is_done(&self) -> bool {
        !self.failed && self.head.is_empty() && self.body.is_empty()
    }
}

/// How an answer's body ends, and how far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// After so many bytes.
    Length(u64),
    /// With its last chunk.
    Chunked(Chunk),
    /// With the connection.
    Close,
    /// It has ended.
    End,
    /// It will not end.
    Broken,
}

/// What of a chunked body comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    Size,
    Data(u64),
    /// The line end behind the data.
    DataEnd,
    Trailers,
}

/// The body of an answer, and the connection on which it comes.
pub struct Body {
    connection: Option<Connection>,
    unsent: Unsent,
    framing: Framing,
    keep: bool,
}

impl Body {
    /// The connection, if the answer has been read to its end and another request may follow. In any other case it is closed.
    pub fn finish(&mut self) -> Option<Connection> {
        let connection = self.connection.take()?;
        (self.keep && self.framing == Framing::End && self.unsent.is_done() && connection.ahead.is_empty()).then_some(connection)
    }

    /// What the bytes that are there come to; `None` where there are too few.
    fn step(&mut self) -> Result<Option<Step>, Broken> {
        let Some(connection) = &mut self.connection else { return Ok(Some(Step::End)) };
        loop {
            let left = match &mut self.framing {
                Framing::End => return Ok(Some(Step::End)),
                Framing::Broken => return Err(Broken::Closed),
                Framing::Length(0) => {
                    self.framing = Framing::End;
                    continue;
                }
                Framing::Chunked(Chunk::Data(0)) => {
                    self.framing = Framing::Chunked(Chunk::DataEnd);
                    continue;
                }
                _ if connection.ahead.is_empty() => return Ok(None),
                Framing::Length(left) | Framing::Chunked(Chunk::Data(left)) => left,
                Framing::Close => return Ok(Some(Step::Piece(connection.take(u64::MAX)))),
                Framing::Chunked(Chunk::Size) => {
                    let Some(size) = chunk_size(&mut connection.ahead)? else { return Ok(None) };
                    self.framing = Framing::Chunked(if size == 0 { Chunk::Trailers } else { Chunk::Data(size) });
                    continue;
                }
                Framing::Chunked(Chunk::DataEnd) => {
                    if connection.ahead.len() < 2 {
                        return Ok(None);
                    }
                    if connection.ahead[..2] != *b"\r\n" {
                        return Err(Broken::Malformed("a chunk is longer than it says"));
                    }
                    connection.take(2);
                    self.framing = Framing::Chunked(Chunk::Size);
                    continue;
                }
                Framing::Chunked(Chunk::Trailers) => {
                    let Some(trailers) = trailers(&mut connection.ahead)? else { return Ok(None) };
                    self.framing = Framing::End;
                    return Ok(Some(if trailers.is_empty() { Step::End } else { Step::Trailers(trailers) }));
                }
            };
            let piece = connection.take(*left);
            *left -= piece.len() as u64;
            if self.framing == Framing::Length(0) {
                self.framing = Framing::End;
            }
            return Ok(Some(Step::Piece(piece)));
        }
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, Broken>> {
        loop {
            if let Some(step) = self.step()? {
                return Poll::Ready(Ok(step));
            }
            let Some(connection) = &mut self.connection else { return Poll::Ready(Ok(Step::End)) };
            self.unsent.poll_write(cx, &mut connection.stream);
            connection.let_go();
            if ready!(connection.poll_fill(cx))? == 0 {
                if self.framing != Framing::Close {
                    return Poll::Ready(Err(Broken::Closed));
                }
                self.framing = Framing::End;
            }
        }
    }
}

enum Step {
    Piece(Bytes),
    Trailers(HeaderMap),
    End,
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        Poll::Ready(match ready!(self.poll_step(cx)) {
            Ok(Step::Piece(piece)) => Some(Ok(Frame::data(piece))),
            Ok(Step::Trailers(trailers)) => Some(Ok(Frame::trailers(trailers))),
            Ok(Step::End) => None,
            Err(error) => {
                self.framing = Framing::Broken;
                Some(Err(error))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.framing, Framing::End | Framing::Length(0))
    }

    fn size_hint(&self) -> SizeHint {
        match self.framing {
            Framing::Length(left) => SizeHint::with_exact(left),
            Framing::End => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }
}

/// Takes the head that `ahead` begins with; `None` where it is not all there.
///
/// `searched` tells how much of it was looked at before, and begins at 0. A small head is read each time that more of it comes, so that what is no HTTP
/// is noticed early; a large one only when its end is there, or one that comes byte by byte would be read as often.
fn parse_head(ahead: &mut BytesMut, searched: &mut usize) -> Result<Option<response::Parts>, Broken> {
    if ahead.is_empty() {
        return Ok(None);
    }
    let fresh = &ahead[searched.saturating_sub(3)..];
    let has_end = memmem::find(fresh, b"\n\r\n").is_some() || memmem::find(fresh, b"\n\n").is_some();
    *searched = ahead.len();
    if !has_end && ahead.len() > SMALL_HEAD && ahead.len() < MAX_HEAD {
        return Ok(None);
    }
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut []);
    let length = match httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut parsed, ahead, &mut fields) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if ahead.len() < MAX_HEAD => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => return Err(Broken::Malformed("the head is too large")),
        Err(_) => return Err(Broken::Malformed("what came is not HTTP/1.1")),
    };
    let malformed = Broken::Malformed("what came is not HTTP/1.1");
    // There are no others (RFC 9110, 15).
    let code = parsed.code.filter(|code| (100..600).contains(code));
    let Some(status) = code.and_then(|code| StatusCode::from_u16(code).ok()) else { return Err(malformed) };
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.version_mut() = if parsed.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    if let Some(reason) = parsed.reason.filter(|&reason| status.canonical_reason() != Some(reason))
        && let Ok(reason) = ReasonPhrase::try_from(reason.as_bytes())
    {
        response.extensions_mut().insert(reason);
    }
    let headers = response.headers_mut();
    headers.reserve(parsed.headers.len() + ADDED);
    let names: Vec<HeaderName> = parsed.headers.iter().filter_map(|field| HeaderName::from_bytes(field.name.as_bytes()).ok()).collect();
    if names.len() < parsed.headers.len() {
        return Err(malformed);
    }
    // Values are parts of the head, not copies of it.
    let begin = ahead.as_ptr().addr();
    let places: Vec<_> = parsed.headers.iter().map(|field| (field.value.as_ptr().addr() - begin, field.value.len())).collect();
    let bytes = ahead.split_to(length).freeze();
    for (name, (at, length)) in names.into_iter().zip(places) {
        let value = if length == 0 { Bytes::new() } else { bytes.slice(at..at + length) };
        headers.append(name, HeaderValue::from_maybe_shared(value).map_err(|_| Broken::Malformed("a field is not text"))?);
    }
    if ahead.is_empty() {
        *ahead = BytesMut::new();
    }
    Ok(Some(response.into_parts().0))
}

/// How the body of an answer with this head ends (RFC 9112, 6.3).
fn framing(method: &Method, head: &response::Parts) -> Result<Framing, Broken> {
    if *method == Method::HEAD || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return Ok(Framing::End);
    }
    if head.headers.contains_key(TRANSFER_ENCODING) {
        if head.version == Version::HTTP_10 {
            return Err(Broken::Malformed("HTTP/1.0 has no transfer encodings"));
        }
        let mut codings = head.headers.get_all(TRANSFER_ENCODING).iter();
        let (coding, more) = (codings.next().and_then(|value| value.to_str().ok()), codings.next());
        // No other one was asked for, and what is not undone here could not be told from the body.
        let is_chunked = more.is_none() && coding.is_some_and(|coding| coding.trim().eq_ignore_ascii_case("chunked"));
        return if is_chunked {
            Ok(Framing::Chunked(Chunk::Size))
        } else {
            Err(Broken::Malformed("a transfer encoding that nobody asked for"))
        };
    }
    let mut length = None;
    for value in head.headers.get_all(CONTENT_LENGTH) {
        for one in value.to_str().unwrap_or_default().split(',').map(str::trim) {
            let number = Some(one).filter(|one| one.bytes().all(|byte| byte.is_ascii_digit())).and_then(|one| one.parse::<u64>().ok());
            let number = number.filter(|&number| length.is_none_or(|length| length == number));
            length = Some(number.ok_or(Broken::Malformed("there is more than one length, or none that is a number"))?);
        }
    }
    Ok(length.map_or(Framing::Close, |length| if length == 0 { Framing::End } else { Framing::Length(length) }))
}

/// Whether the server takes another request on this connection.
fn wants_more(head: &response::Parts) -> bool {
    let says = |word: &str| {
        let lists = head.headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
        lists.flat_map(|list| list.split(',')).any(|token| token.trim().eq_ignore_ascii_case(word))
    };
    if head.version == Version::HTTP_10 { says("keep-alive") } else { !says("close") }
}

/// Takes the line that tells the next chunk's size; `None` where it is not all there.
fn chunk_size(ahead: &mut BytesMut) -> Result<Option<u64>, Broken> {
    let Some(line) = line(ahead)? else { return Ok(None) };
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (size, rest) = line.split_at(digits);
    // What follows is an extension, which means nothing here.
    let ends = rest.trim_ascii_start().first().is_none_or(|&byte| byte == b';');
    let size = std::str::from_utf8(size).ok().and_then(|size| u64::from_str_radix(size, 16).ok());
    size.filter(|_| ends).map(Some).ok_or(Broken::Malformed("a chunk has no size"))
}

/// Takes what stands behind the last chunk, up to the empty line; `None` where that is not there.
fn trailers(ahead: &mut BytesMut) -> Result<Option<HeaderMap>, Broken> {
    if ahead.starts_with(b"\r\n") {
        ahead.advance(2);
        return Ok(Some(HeaderMap::new()));
    }
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let malformed = |_| Broken::Malformed("what follows the last chunk is not HTTP");
    let (length, fields) = match httparse::parse_headers(ahead, &mut fields).map_err(malformed)? {
        httparse::Status::Complete(parsed) => parsed,
        httparse::Status::Partial if ahead.len() < MAX_LINE => return Ok(None),
        httparse::Status::Partial => return Err(Broken::Malformed("too much follows the last chunk")),
    };
    let mut trailers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(field.name.as_bytes()), HeaderValue::from_bytes(field.value)) {
            trailers.append(name, value);
        }
    }
    ahead.advance(length);
    Ok(Some(trailers))
}

/// Takes a line, without its end.
fn line(ahead: &mut BytesMut) -> Result<Option<Bytes>, Broken> {
    let Some(end) = memchr(b'\n', ahead) else {
        return if ahead.len() < MAX_LINE { Ok(None) } else { Err(Broken::Malformed("a chunk's line is too long")) };
    };
    let line = ahead.split_to(end + 1).freeze();
    line.strip_suffix(b"\r\n").map(|text| Some(line.slice_ref(text))).ok_or(Broken::Malformed("a chunk's line ends badly"))
}
