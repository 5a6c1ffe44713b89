//! What becomes of a connection that is there when the server is to end.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::future::ready;

use axum::routing::get;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

/// Whether the end or the connection is seen first is left to chance, so there are many rounds.
#[tokio::test]
async fn a_request_that_is_there_when_all_end_is_answered() {
    for round in 0..64 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let service = Router::new().route("/", get(async || "here"));
        let (_settings, settings) = watch::channel(Settings::default());
        let mut answer = String::new();
        let (_, read) = tokio::join!(serve(listener, service, settings, None, ready(())), client.read_to_string(&mut answer));
        // A connection that nobody took before the listener was closed is reset; who takes it may not leave it unanswered.
        let is_reset = read.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset);
        assert!(is_reset || answer.ends_with("here"), "round {round}: {answer:?}");
    }
}
