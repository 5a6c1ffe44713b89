//! What clients are sent: an answer that is all there, or a replica's as it comes.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::Full;
use hyper::header::CONTENT_LENGTH;

use super::stream::{CutOff, ResponseBody};

/// An answer to a client.
pub type Response = hyper::Response<Body>;

/// An answer to HEAD from one to GET. (hyper leaves out bodies in HTTP/1.1 only.)
pub(super) fn without_body(response: Response) -> Response {
    let (mut head, body) = response.into_parts();
    let Body::Whole(whole) = &body else { return Response::from_parts(head, body) };
    let length = whole.size_hint().exact().unwrap_or_default();
    head.headers.entry(CONTENT_LENGTH).or_insert(length.into());
    Response::from_parts(head, Body::empty())
}

/// Its body.
pub enum Body {
    /// It is all there.
    Whole(Full<Bytes>),
    /// It comes from a replica.
    Streamed(Box<ResponseBody>),
}

impl Body {
    pub(super) fn empty() -> Self {
        Self::Whole(Full::default())
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(bytes: T) -> Self {
        Self::Whole(Full::new(bytes.into()))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            Self::Streamed(body) => Pin::new(&mut **body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Streamed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Streamed(body) => body.size_hint(),
        }
    }
}
