//! Reads a request's body within bounds of size and time.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use skip_client::{Error, ErrorKind};
use std::time::Duration;

/// How long a body may take.
#[derive(Clone, Copy)]
struct Patience {
    /// Until the next piece.
    piece: Duration,
    /// Until the end.
    whole: Duration,
}

const PATIENCE: Patience = Patience { piece: Duration::from_secs(10), whole: Duration::from_secs(60) };

/// The body, or why it was not read to its end.
pub async fn read(body: Body, limit: usize) -> Result<Bytes, Error> {
    read_within(body, limit, PATIENCE).await
}

async fn read_within(body: Body, limit: usize, patience: Patience) -> Result<Bytes, Error> {
    match tokio::time::timeout(patience.whole, read_pieces(body, limit, patience.piece)).await {
        Ok(result) => result,
        Err(_) => Err(too_slow(patience.whole)),
    }
}

async fn read_pieces(mut body: Body, limit: usize, patience: Duration) -> Result<Bytes, Error> {
    if body.size_hint().lower() > (limit as u64).saturating_mul(2) {
        return Err(too_large(limit));
    }
    let mut whole = BytesMut::new();
    let mut seen = 0usize;
    loop {
        let piece = match tokio::time::timeout(patience, body.frame()).await {
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            Ok(Some(Err(error))) => return Err(Error::new(ErrorKind::InvalidRequest, format!("the body broke off: {error}"))),
            Ok(None) if seen > limit => return Err(too_large(limit)),
            Ok(None) => return Ok(whole.freeze()),
            Err(_) => return Err(too_slow(patience)),
        };
        seen = seen.saturating_add(piece.len());
        if seen <= limit {
            whole.extend_from_slice(&piece);
        } else if seen > limit.saturating_mul(2) {
            return Err(too_large(limit));
        } else {
            // A little too much is read and dropped, so that the client has finished sending when the answer comes.
            whole = BytesMut::new();
        }
    }
}

fn too_large(limit: usize) -> Error {
    Error::new(ErrorKind::TooLarge, format!("the body is larger than {limit} bytes")).with("limit_bytes", limit as u64)
}

fn too_slow(limit: Duration) -> Error {
    Error::new(ErrorKind::InvalidRequest, format!("the body did not come within {limit:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    fn pieces(count: usize, size: usize) -> Body {
        Body::from_stream(stream::iter((0..count).map(move |_| Ok::<_, std::io::Error>(vec![b'x'; size]))))
    }

    #[tokio::test]
    async fn a_body_within_the_limit_arrives_whole() {
        assert_eq!(read(pieces(4, 25), 100).await.unwrap().len(), 100);
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_with_the_limit() {
        for count in [5, 500] {
            let error = read(pieces(count, 25), 100).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::TooLarge);
            assert_eq!(error.details["limit_bytes"], 100);
        }
    }

    #[tokio::test]
    async fn a_body_that_stops_coming_is_given_up() {
        let body = Body::from_stream(stream::pending::<Result<Vec<u8>, std::io::Error>>());
        let patience = Patience { piece: Duration::from_millis(20), ..PATIENCE };
        let error = read_within(body, 100, patience).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidRequest);
    }

    #[tokio::test]
    async fn a_body_that_trickles_forever_is_given_up() {
        let trickle = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            Some((Ok::<_, std::io::Error>(vec![b' ']), ()))
        });
        let patience = Patience { whole: Duration::from_millis(30), ..PATIENCE };
        let error = read_within(Body::from_stream(trickle), 1 << 20, patience).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidRequest);
    }
}
