//! `prefix-router healthcheck`: asks a running router, over plain HTTP/1.1, whether it is ready. For containers, whose
//! images need no curl then.
//!
//! It is a client of one request on blocking sockets, not the one that talks to replicas: no runtime, no pool, no TLS.
//! A host name in its URL, where it is given one, is the business of the system's resolver library.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How long an answer may take. Below the timeouts that container runtimes allow a check (Docker: 30 s; a probe of
/// Kubernetes, often: a few).
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Where the router with this admin address says whether it is ready.
pub fn ready_url(admin: SocketAddr) -> String {
    // One listens on all addresses, but connects to one.
    let ip = match admin.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("http://{}/ready", SocketAddr::new(ip, admin.port()))
}

/// Whether `url` answers 200 within `patience`; else what happened, in one line.
pub fn ask(url: &str, patience: Duration) -> Result<(), String> {
    let deadline = Instant::now() + patience;
    let (authority, path) = split(url).ok_or("is not a URL; allowed: http://HOST:PORT/PATH")?;
    let mut stream = connect(&authority, deadline)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
    let status = exchange(&mut stream, request.as_bytes(), deadline).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => format!("no answer within {patience:?}"),
        _ => format!("no answer: {error}"),
    })?;
    match status.as_str() {
        "200" => Ok(()),
        "" => Err("the answer is not HTTP".to_owned()),
        other => Err(format!("answered {other}")),
    }
}

/// `http://a/b` as `a:80` and `/b`.
fn split(url: &str) -> Option<(String, &str)> {
    let rest = url.strip_prefix("http://")?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = if path.is_empty() { "/" } else { path };
    // Either would end the request's first line early.
    if authority.is_empty() || !url.bytes().all(|b| b.is_ascii_graphic()) {
        return None;
    }
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    Some((if has_port { authority.to_owned() } else { format!("{authority}:80") }, path))
}

fn connect(authority: &str, deadline: Instant) -> Result<TcpStream, String> {
    let addresses = authority.to_socket_addrs().map_err(|error| format!("cannot be resolved: {error}"))?;
    let mut outcome = Err("has no address".to_owned());
    for address in addresses {
        match left(deadline).and_then(|left| TcpStream::connect_timeout(&address, left)) {
            Ok(stream) => return Ok(stream),
            Err(error) => outcome = Err(format!("cannot connect: {error}")),
        }
    }
    outcome
}

/// Sends `request`, and gives the status of the response; an empty one if what came is not HTTP.
fn exchange(stream: &mut TcpStream, request: &[u8], deadline: Instant) -> std::io::Result<String> {
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(request)?;
    // `HTTP/1.1 200`; what follows is not needed.
    let mut head = [0; 12];
    let mut filled = 0;
    while filled < head.len() {
        // Each piece anew, so that many small ones do not add up to more than the whole time.
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut head[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let text = std::str::from_utf8(&head[..filled]).unwrap_or_default();
    let status = text.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..)).unwrap_or_default();
    Ok(if status.bytes().all(|b| b.is_ascii_digit()) { status.to_owned() } else { String::new() })
}

/// The time until `deadline`, as sockets take it: never zero, which to them means forever.
fn left(deadline: Instant) -> std::io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Answers one connection with `answer`, and keeps it open until the client has gone.
    fn stub(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(answer).unwrap();
            let mut request = Vec::new();
            stream.read_to_end(&mut request).ok();
        });
        address
    }

    #[test]
    fn only_200_is_ready() {
        let patience = Duration::from_millis(300);
        for (answer, expected) in [
            (&b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"[..], Ok(())),
            (b"HTTP/1.0 200 OK\r\n\r\n", Ok(())),
            (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", Err("answered 503")),
            (b"SSH-2.0-OpenSSH_9.6\r\n", Err("the answer is not HTTP")),
            (b"", Err("no answer within 300ms")),
        ] {
            let outcome = ask(&ready_url(stub(answer)), patience);
            assert_eq!(outcome, expected.map_err(str::to_owned), "{}", answer.escape_ascii());
        }
    }

    #[test]
    fn what_cannot_be_asked_says_why() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let why = ask(&ready_url(free), PATIENCE).unwrap_err();
        assert!(why.starts_with("cannot connect: "), "{why}");
        for url in ["", "https://a/", "127.0.0.1:8081", "http://", "http:///x", "http://a b/"] {
            assert!(ask(url, PATIENCE).unwrap_err().starts_with("is not a URL"), "{url}");
        }
    }

    #[test]
    fn urls() {
        for (admin, expected) in
            [("0.0.0.0:9", "http://127.0.0.1:9/ready"), ("[::]:9", "http://[::1]:9/ready"), ("10.0.0.1:9", "http://10.0.0.1:9/ready")]
        {
            assert_eq!(ready_url(admin.parse().unwrap()), expected);
        }
        for (url, expected) in [
            ("http://a", ("a:80", "/")),
            ("http://a:1/b?c=d", ("a:1", "/b?c=d")),
            ("http://[::1]/b", ("[::1]:80", "/b")),
            ("http://[::1]:2", ("[::1]:2", "/")),
        ] {
            assert_eq!(split(url), Some((expected.0.to_owned(), expected.1)));
        }
    }
}
