//! The loop's thread: loads, then steps until it is told to stop.

use super::control::Shared;
use super::options::{CachePlan, EngineOptions};
use super::{EngineState, LoadError, StepModel};
use crate::handle::{FinishReason, Finished, Message, Usage};
use std::sync::Arc;
use tokio::sync::mpsc;

pub(super) fn run<M: StepModel, L>(shared: &Arc<Shared>, mut messages: mpsc::UnboundedReceiver<Message>, options: &EngineOptions, load: L)
where
    L: FnOnce(&EngineOptions, &CachePlan, &mut dyn FnMut(f32)) -> Result<M, LoadError>,
{
    let loaded = load(options, &shared.cache, &mut |progress| shared.set_state(EngineState::Loading { progress }));
    match loaded {
        Ok(_) => shared.set_state(EngineState::Ready),
        Err(error) => shared.set_state(EngineState::Failed(Arc::new(error.into()))),
    }
    while let Some(message) = messages.blocking_recv() {
        match message {
            Message::Submit(submission) => {
                let finished = Finished { reason: FinishReason::Error, detail: None, usage: Usage::default() };
                // A caller that went away needs no answer.
                let _ = submission.finished.send(finished);
            }
            Message::SetTables(_, ack) | Message::Drain(ack) => {
                // As above.
                let _ = ack.send(());
            }
            Message::Cancel(_) => {}
            Message::Shutdown => break,
        }
    }
    shared.set_state(EngineState::Stopped);
}
