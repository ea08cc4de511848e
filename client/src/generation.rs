//! A running request seen by its client: text events and then one terminal event.

use crate::protocol::error::{Error, ErrorKind};
use crate::protocol::{FinishReason, LogprobEntry, StreamEvent, ToolCall, Usage};
use futures_util::{Stream, StreamExt};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A `Stream` of events that ends after exactly one terminal event or one error. Dropping it cancels the request.
pub struct Generation {
    events: Pin<Box<dyn Stream<Item = Result<StreamEvent, Error>> + Send>>,
    ended: bool,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// One entry a token, where asked for.
    pub logprobs: Vec<LogprobEntry>,
    /// Calls of functions, in order.
    pub tool_calls: Vec<ToolCall>,
    /// `Stop`, `Length` or `ToolCalls`; every other end is an error.
    pub reason: FinishReason,
    /// True counts.
    pub usage: Usage,
}

impl Generation {
    pub(crate) fn new(events: impl Stream<Item = Result<StreamEvent, Error>> + Send + 'static) -> Self {
        Self { events: Box::pin(events), ended: false }
    }

    /// The next event; None after the terminal one.
    pub async fn next(&mut self) -> Option<Result<StreamEvent, Error>> {
        StreamExt::next(self).await
    }

    /// Waits for the end and returns the whole answer; an early end is its error.
    pub async fn answer(mut self) -> Result<Answer, Error> {
        let mut collected = Collected::default();
        while let Some(event) = self.next().await {
            if let Some(answer) = collected.add(event?) {
                return answer;
            }
        }
        Err(disconnected())
    }
}

/// An answer on its way.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    text: String,
    logprobs: Vec<LogprobEntry>,
    tool_calls: Vec<ToolCall>,
}

impl Collected {
    /// Adds an event; the terminal one gives the answer, or the error that an early end is.
    pub(crate) fn add(&mut self, event: StreamEvent) -> Option<Result<Answer, Error>> {
        match event {
            StreamEvent::Text { text, logprobs } => {
                self.text.push_str(&text);
                self.logprobs.extend(logprobs);
                None
            }
            StreamEvent::ToolCall { call } => {
                call.add_to(&mut self.tool_calls);
                None
            }
            StreamEvent::Finished { reason, usage, error } => {
                let early = reason.error_kind().map(|kind| Error::new(kind, format!("the request ended early: {reason}")));
                let Self { text, logprobs, tool_calls } = std::mem::take(self);
                Some(error.or(early).map_or(Ok(Answer { text, logprobs, tool_calls, reason, usage }), Err))
            }
        }
    }
}

fn disconnected() -> Error {
    Error::new(ErrorKind::Disconnected, "the stream broke off before its terminal event")
}

impl Stream for Generation {
    type Item = Result<StreamEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let Poll::Ready(item) = self.events.as_mut().poll_next(context) else { return Poll::Pending };
        let item = item.unwrap_or_else(|| Err(disconnected()));
        self.ended = !matches!(item, Ok(StreamEvent::Text { .. } | StreamEvent::ToolCall { .. }));
        if self.ended {
            // Nothing follows: let go of the connection now.
            self.events = Box::pin(futures_util::stream::empty());
        }
        Poll::Ready(Some(item))
    }
}

impl std::fmt::Debug for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generation").field("ended", &self.ended).finish_non_exhaustive()
    }
}
