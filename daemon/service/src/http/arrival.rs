//! Whether the request a connection is on has come in whole: a stop waits for answers, not for senders.

use axum::body::Body as AnyBody;
use bytes::Bytes;
use hyper::Request;
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

/// Follows one connection's requests.
#[derive(Clone, Debug, Default)]
pub struct Arrival(Arc<AtomicBool>);

impl Arrival {
    /// The last request begun has been read to its end; false before the first.
    pub fn is_whole(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Watches the next request's body as it is read.
    pub fn follow<B>(&self, request: Request<B>) -> Request<AnyBody>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.note(request.body().is_end_stream());
        request.map(|body| AnyBody::new(Followed { body, arrival: self.clone() }))
    }

    fn note(&self, whole: bool) {
        self.0.store(whole, Ordering::Release);
    }
}

/// A body that tells of its end.
struct Followed<B> {
    body: B,
    arrival: Arrival,
}

impl<B: Body + Unpin> Body for Followed<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.arrival.note(true);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt, Empty, Full};

    #[tokio::test]
    async fn a_request_is_whole_when_its_body_was_read() {
        let arrival = Arrival::default();
        assert!(!arrival.is_whole(), "none has begun");
        let request = arrival.follow(Request::new(Full::new(Bytes::from_static(b"body"))));
        assert!(!arrival.is_whole());
        request.into_body().collect().await.unwrap();
        assert!(arrival.is_whole());
        let _next = arrival.follow(Request::new(Full::new(Bytes::from_static(b"body"))));
        assert!(!arrival.is_whole(), "another has begun");
        let _get = arrival.follow(Request::new(Empty::<Bytes>::new()));
        assert!(arrival.is_whole());
    }
}
