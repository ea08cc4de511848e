//! A generation as server-sent events in OpenAI's shape, or collected into one answer.
//! A stream ends in exactly one way: the chunk with the reason (then usage, if asked for) and `[DONE]`, or an error event and nothing more.

use super::reply;
use crate::generation::{Event, Outcome, Running};
use crate::request_id::{RequestId, unix_seconds};
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, HeaderValue};
use axum::http::{Response, StatusCode};
use bytes::Bytes;
use serde::Serialize;
use skip_client::protocol::{ErrorBody, FinishReason, LogprobEntry, ToolCall, ToolCallDelta, Usage};
use skip_client::{Error, ErrorKind};
use std::convert::Infallible;
use std::time::SystemTime;

/// What every chunk of an answer carries.
#[derive(Clone, Debug)]
pub struct Envelope {
    /// Unique in the process.
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
}

impl Envelope {
    /// For the answer to a request.
    pub fn new(prefix: &str, request: &RequestId, model: &str) -> Self {
        Self { id: format!("{prefix}-{}", request.serial()), created: unix_seconds(SystemTime::now()), model: model.to_owned() }
    }
}

/// How a route shapes its chunks.
pub trait Shape: Send + 'static {
    /// One event's JSON.
    type Chunk: Serialize;
    /// Sent before any text.
    fn first(&mut self) -> Option<Self::Chunk>;
    /// New text.
    fn text(&mut self, text: String, logprobs: Vec<LogprobEntry>) -> Self::Chunk;
    /// More of a call of a function.
    fn call(&mut self, call: ToolCallDelta) -> Self::Chunk;
    /// The reason.
    fn last(&mut self, reason: FinishReason) -> Self::Chunk;
    /// The counts.
    fn usage(&mut self, usage: Usage) -> Self::Chunk;
}

/// Streams; when the client leaves, the body and with it the generation is dropped, which cancels it.
pub fn respond<S: Shape>(running: Running, mut shape: S, include_usage: bool) -> Response<Body> {
    let first = shape.first().map(|chunk| Ok::<_, Infallible>(event(&chunk)));
    let rest = futures_util::stream::unfold((running, shape), move |(mut running, mut shape)| async move {
        let event = running.next().await?;
        Some((Ok(block(&mut shape, event, include_usage)), (running, shape)))
    });
    let stream = futures_util::StreamExt::chain(futures_util::stream::iter(first), rest);
    let mut response = reply::with_type(StatusCode::OK, "text/event-stream", Body::from_stream(stream));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// The bytes of one event: the terminal one is written in one piece with what belongs to it.
fn block<S: Shape>(shape: &mut S, next: Event, include_usage: bool) -> Bytes {
    let outcome = match next {
        Event::Text { text, logprobs } => return event(&shape.text(text, logprobs)),
        Event::Call(call) => return event(&shape.call(call)),
        Event::End(outcome) => outcome,
    };
    if let Some(error) = outcome.error {
        let usage = serde_json::to_value(&outcome.usage).unwrap_or_default();
        return event(&ErrorBody::from(error.with("usage", usage)));
    }
    let mut bytes = event(&shape.last(outcome.reason)).to_vec();
    if include_usage {
        bytes.extend_from_slice(&event(&shape.usage(outcome.usage)));
    }
    bytes.extend_from_slice(b"data: [DONE]\n\n");
    bytes.into()
}

/// `data: JSON` and an empty line. JSON has no raw line breaks.
fn event<T: Serialize>(chunk: &T) -> Bytes {
    let mut bytes = b"data: ".to_vec();
    // The protocol's types have string keys and no failing serializers; writing to memory cannot fail.
    if serde_json::to_writer(&mut bytes, chunk).is_err() {
        bytes.truncate(b"data: ".len());
        bytes.extend_from_slice(b"null");
    }
    bytes.extend_from_slice(b"\n\n");
    bytes.into()
}

/// A whole answer.
#[derive(Debug, Default)]
pub struct Whole {
    /// Its text.
    pub text: String,
    /// One entry a token, where asked for.
    pub logprobs: Vec<LogprobEntry>,
    /// Its calls.
    pub calls: Vec<ToolCall>,
}

/// Runs to the end; one that is not `stop`, `length` or `tool_calls` is an error with the usage in its details.
pub async fn collect(running: &mut Running) -> Result<(Whole, Outcome), Error> {
    let mut whole = Whole::default();
    while let Some(event) = running.next().await {
        match event {
            Event::Text { text, logprobs } => {
                whole.text.push_str(&text);
                whole.logprobs.extend(logprobs);
            }
            Event::Call(call) => call.add_to(&mut whole.calls),
            Event::End(Outcome { error: Some(error), usage, .. }) => {
                return Err(error.with("usage", serde_json::to_value(&usage).unwrap_or_default()));
            }
            Event::End(outcome) => return Ok((whole, outcome)),
        }
    }
    Err(Error::new(ErrorKind::Internal, "the generation ended without an end"))
}
