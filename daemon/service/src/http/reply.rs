//! Answers as JSON, errors in OpenAI's shape with the status of their kind.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, Response, StatusCode};
use axum::response::IntoResponse;
use serde::Serialize;
use skip_client::protocol::names::IGNORED_HEADER;
use skip_client::{Error, ErrorKind, protocol::ErrorBody};

/// A handler's error, ready to be an answer.
#[derive(Debug)]
pub struct Refusal(pub Error);

/// What handlers give.
pub type Reply = Result<Response<Body>, Refusal>;

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response<Body> {
        let Refusal(error) = self;
        let status = StatusCode::from_u16(error.kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry = error.retry_after_s().or(matches!(error.kind, ErrorKind::Busy | ErrorKind::NotReady).then_some(1));
        let key_wanted = error.kind == ErrorKind::Unauthenticated;
        let mut response = json(status, &ErrorBody::from(error));
        if key_wanted {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = retry {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// A JSON answer.
pub fn json<T: Serialize>(status: StatusCode, value: &T) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(text) => with_type(status, "application/json", text),
        // The protocol's types have string keys and no failing serializers.
        Err(error) => with_type(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", error.to_string().into_bytes()),
    }
}

/// An answer of any type.
pub fn with_type(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Longest list of ignored fields, in bytes: clients bound the heads they read, and a request of ours must not break its own answer.
const MAX_IGNORED: usize = 1024;

/// Names the fields that were read and not acted on, as many as there is room for.
pub fn name_ignored(response: &mut Response<Body>, ignored: &[String]) {
    if ignored.is_empty() {
        return;
    }
    let mut plain = String::new();
    for name in ignored {
        let separator = if plain.is_empty() { "" } else { ", " };
        // Escaped, a name is no shorter; the characters kept are ASCII.
        let name: String = name.chars().take(64).collect::<String>().escape_default().to_string();
        if plain.len() + separator.len() + name.len() > MAX_IGNORED {
            plain.push_str(", ...");
            break;
        }
        plain.push_str(separator);
        plain.push_str(&name);
    }
    if let Ok(value) = HeaderValue::from_str(&plain) {
        response.headers_mut().insert(HeaderName::from_static(IGNORED_HEADER), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_says_when_to_come_back() {
        let response = Refusal(Error::new(ErrorKind::Busy, "full").with("retry_after_s", 7)).into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "7");
    }

    #[test]
    fn ignored_fields_make_one_header_however_odd_their_names() {
        let mut response = Response::new(Body::empty());
        name_ignored(&mut response, &["user".into(), "a\nb".into()]);
        assert_eq!(response.headers()[IGNORED_HEADER], "user, a\\nb");
    }

    #[test]
    fn ignored_fields_do_not_make_a_head_that_no_client_reads() {
        let mut response = Response::new(Body::empty());
        let many: Vec<String> = (0..1000).map(|i| format!("{i}{}", "ü".repeat(1 << 16))).collect();
        name_ignored(&mut response, &many);
        let value = response.headers()[IGNORED_HEADER].to_str().unwrap();
        assert!(value.starts_with("0\\u{fc}") && value.ends_with(", ...") && value.len() <= MAX_IGNORED + 5, "{}", value.len());
    }
}
