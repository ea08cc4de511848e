//! A running request as an iterator, read by one thread and cancelled by any.

use super::background::Background;
use crate::generation::{Answer, Collected};
use crate::protocol::StreamEvent;
use crate::protocol::error::{Error, ErrorKind};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// Events that may wait for their reader here; behind them the daemon's own bound holds.
const WAITING: usize = 16;

/// An iterator of events that ends after exactly one terminal event or one error. Dropping it cancels the request.
#[derive(Debug)]
pub struct Generation {
    events: mpsc::Receiver<Result<StreamEvent, Error>>,
    task: Canceller,
    ended: bool,
    // The task's thread lives as long as this.
    background: Arc<Background>,
}

/// Cancels one request, from any thread; cheap to clone.
#[derive(Clone, Debug)]
pub struct Canceller {
    task: Option<AbortHandle>,
}

impl Canceller {
    /// Hangs up, so that the daemon ends the request. Its reader gets the events that had come and then the error `Cancelled`.
    /// Nothing happens where the request has ended.
    pub fn cancel(&self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Generation {
    pub(super) fn new(background: Arc<Background>, mut generation: crate::Generation) -> Self {
        let (sender, events) = mpsc::channel(WAITING);
        let task = background.spawn(async move {
            while let Some(event) = generation.next().await {
                if sender.send(event).await.is_err() {
                    return;
                }
            }
        });
        Self { events, task: Canceller { task }, ended: false, background }
    }

    /// Waits no longer than `limit` for the next event. Pending: none came in that time, and the request runs on.
    pub fn next_within(&mut self, limit: Duration) -> Poll<Option<Result<StreamEvent, Error>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        match Instant::now().checked_add(limit) {
            Some(end) => self.background.wait_until(self.events.recv(), end).map(|event| Some(self.note(event))),
            // Longer than the clock can say.
            None => Poll::Ready(self.next()),
        }
    }

    /// What cancels this request from another thread.
    pub fn canceller(&self) -> Canceller {
        self.task.clone()
    }

    /// Waits for the end and returns the whole answer; an early end is its error.
    pub fn answer(mut self) -> Result<Answer, Error> {
        let mut collected = Collected::default();
        loop {
            // After the terminal event or the error there is no next round.
            let event = self.next().unwrap_or_else(|| Err(cancelled()))?;
            if let Some(answer) = collected.add(event) {
                return answer;
            }
        }
    }

    /// Keeps count of the end. Streams end with a terminal event or an error; only a cancelled task leaves neither.
    fn note(&mut self, event: Option<Result<StreamEvent, Error>>) -> Result<StreamEvent, Error> {
        let event = event.unwrap_or_else(|| Err(cancelled()));
        self.ended = !matches!(event, Ok(StreamEvent::Text { .. } | StreamEvent::ToolCall { .. }));
        event
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the request was cancelled by its client")
}

impl Iterator for Generation {
    type Item = Result<StreamEvent, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let event = self.background.wait(self.events.recv());
        Some(self.note(event))
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.task.cancel();
    }
}
