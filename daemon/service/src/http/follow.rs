//! Gives every request its name and the span of the log that bears it, and the answer the name back.

use crate::request_id::RequestId;
use crate::socket::Stall;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use skip_client::protocol::names::REQUEST_ID_HEADER;
use tracing::Instrument;

/// Around every route.
pub async fn follow(mut request: Request, next: Next) -> Response {
    let id = wanted(&request);
    request.extensions_mut().insert(id.clone());
    let method = request.method().clone();
    let answering = async move {
        let response = next.run(request).await;
        tracing::debug!(%method, status = response.status().as_u16(), "told");
        response
    };
    let mut response = answering.instrument(tracing::info_span!("request", id = id.name())).await;
    tell(&mut response, &id);
    response
}

/// What a request wants to be called, or a name of ours.
pub fn wanted<B>(request: &axum::http::Request<B>) -> RequestId {
    RequestId::new(request.headers().get(REQUEST_ID_HEADER).and_then(|value| value.to_str().ok()))
}

/// Gives an answer its request's name.
pub fn tell(response: &mut Response, id: &RequestId) {
    // A name has no other characters than a header may.
    if let Ok(value) = HeaderValue::from_str(id.name()) {
        response.headers_mut().insert(HeaderName::from_static(REQUEST_ID_HEADER), value);
    }
}

/// What is told when the request's reader stalls; one that came by no connection has none.
pub fn stall(request: &Request) -> Stall {
    request.extensions().get::<Stall>().cloned().unwrap_or_default()
}

/// The name of a request; one that came by another way than [`follow`] gets one here.
pub fn id(request: &Request) -> RequestId {
    request.extensions().get::<RequestId>().cloned().unwrap_or_else(|| RequestId::new(None))
}
