//! A client that speaks HTTP/2 without TLS (h2c, prior knowledge). Only what differs from HTTP/1.1 is tested through it.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::support::{Router, within};

/// One connection.
pub(crate) struct H2 {
    sender: SendRequest<Full<Bytes>>,
    authority: String,
}

/// A response and how it ended: the error that broke it, if any.
pub(crate) struct H2Response {
    pub(crate) head: hyper::http::response::Parts,
    pub(crate) bytes: Vec<u8>,
    pub(crate) broken: Option<String>,
}

impl H2 {
    pub(crate) async fn connect(router: &Router) -> Self {
        let stream = within("connection", TcpStream::connect(router.traffic)).await.expect("the router accepts");
        let (sender, connection) =
            within("handshake", http2::handshake(TokioExecutor::new(), TokioIo::new(stream))).await.expect("the router speaks HTTP/2");
        tokio::spawn(connection);
        Self { sender, authority: router.traffic.to_string() }
    }

    /// A request up to the response's head.
    pub(crate) async fn start(&mut self, method: &str, target: &str, body: impl Into<Bytes>) -> hyper::Response<Incoming> {
        self.start_with(method, target, &[("content-type", "application/json")], body).await
    }

    /// A request with these fields up to the response's head.
    pub(crate) async fn start_with(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> hyper::Response<Incoming> {
        let builder = hyper::Request::builder().method(method).uri(format!("http://{}{target}", self.authority));
        let builder = fields.iter().fold(builder, |builder, &(name, value)| builder.header(name, value));
        let request = builder.body(Full::new(body.into())).expect("a request");
        within("head of a response", self.sender.send_request(request)).await.expect("the router answers")
    }

    /// A request and its response.
    pub(crate) async fn request(&mut self, method: &str, target: &str, body: impl Into<Bytes>) -> H2Response {
        let (head, mut incoming) = self.start(method, target, body).await.into_parts();
        let mut bytes = Vec::new();
        let mut broken = None;
        while let Some(frame) = within("piece of a body", incoming.frame()).await {
            match frame {
                Ok(frame) => bytes.extend(frame.into_data().unwrap_or_default()),
                Err(error) => {
                    broken = Some(format!("{error:?}"));
                    break;
                }
            }
        }
        H2Response { head, bytes, broken }
    }
}
