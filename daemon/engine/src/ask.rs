//! One request asked on a thread that may wait: what jobs measure and score.

use crate::EngineHandle;
use crate::handle::{ClientId, FinishReason, Finished, Generation, Priority, Request, SubmitError, TableSet};
use skip_kernels::sampling::{Sampled, SamplingParams};
use std::time::Duration;
use tokio::sync::oneshot::error::TryRecvError;

/// How often a request under way is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How long it waits where the queue is full.
const FULL: Duration = Duration::from_millis(200);

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The tokens drawn, without the one that ended it.
    pub tokens: Vec<u32>,
    /// The same with the log-probabilities that were asked for.
    pub sampled: Vec<Sampled>,
    /// How it ended, with its counts.
    pub finished: Finished,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// It was to end.
    #[error("cancelled")]
    Cancelled,
    /// The engine does not take it.
    #[error(transparent)]
    Refused(#[from] SubmitError),
    /// It ended otherwise than by its length or an end-of-sequence token.
    #[error("a prompt of {length} tokens was not answered: {}{}", reason.name(), detail.as_ref().map(|d| format!(" ({d})")).unwrap_or_default())]
    Ended {
        /// Its tokens.
        length: usize,
        /// Why it ended.
        reason: FinishReason,
        /// In words.
        detail: Option<String>,
    },
}

/// A job's request: the most likely tokens, behind everybody else's, of nothing that was kept.
pub fn background(client: ClientId, prompt: Vec<u32>, max_tokens: u32, tables: Option<TableSet>) -> Request {
    Request {
        prompt,
        max_tokens,
        sampling: SamplingParams::default(),
        ignore_eos: true,
        priority: Priority::Background,
        deadline: None,
        client,
        tables,
        steering: Default::default(),
        reuse: false,
        measure: false,
    }
}

/// Asks, waits while the queue is full, and collects the answer; gives up where `cancelled` says so.
///
/// # Errors
/// [`AskError`].
pub fn ask(engine: &EngineHandle, request: Request, cancelled: &dyn Fn() -> bool) -> Result<Answer, AskError> {
    let length = request.prompt.len();
    let Generation { mut tokens, mut finished, guard, .. } = loop {
        match engine.submit(request.clone()) {
            Err(SubmitError::Busy { .. }) if cancelled() => return Err(AskError::Cancelled),
            Err(SubmitError::Busy { .. }) => std::thread::sleep(FULL),
            other => break other?,
        }
    };
    let mut drawn = Vec::new();
    let mut collect = || {
        while let Ok(token) = tokens.try_recv() {
            if !token.is_eos {
                drawn.push(token.sampled);
            }
        }
    };
    let ended = loop {
        collect();
        match finished.try_recv() {
            Ok(ended) => break ended,
            Err(TryRecvError::Empty) if !cancelled() => std::thread::sleep(LOOK),
            // The guard cancels it.
            Err(TryRecvError::Empty) => return Err(AskError::Cancelled),
            Err(TryRecvError::Closed) => return Err(AskError::Ended { length, reason: FinishReason::DeviceFault, detail: None }),
        }
    };
    // What came between the last look and the end.
    collect();
    guard.disarm();
    match ended.reason {
        FinishReason::Length | FinishReason::Eos => {
            Ok(Answer { tokens: drawn.iter().map(|sampled| sampled.token).collect(), sampled: drawn, finished: ended })
        }
        FinishReason::Cancelled => Err(AskError::Cancelled),
        reason => Err(AskError::Ended { length, reason, detail: ended.detail }),
    }
}
