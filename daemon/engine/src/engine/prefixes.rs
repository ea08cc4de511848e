//! Pinning from outside: a prefix is pinned, then computed by a request of its owner like any other, so that it is there for the first who asks.

use super::EngineHandle;
use crate::handle::{FinishReason, Generation, Message, Priority, Request, RequestId};
use crate::prefix::{NewPrefix, PrefixError, PrefixInfo, Which};
use skip_kernels::PAGE;
use skip_kernels::sampling::SamplingParams;
use tokio::sync::{mpsc, oneshot};

/// A prefix that is pinned and being computed. Dropped before it is [`done`](Self::done), it is pinned no longer.
pub struct Pinning {
    engine: EngineHandle,
    generation: Generation,
    undo: Undo,
}

impl Pinning {
    /// The request that computes it.
    pub fn id(&self) -> RequestId {
        self.generation.id
    }

    /// Waits until its pages are there.
    ///
    /// # Errors
    /// It could not be computed, or was dropped meanwhile; nothing is pinned then.
    pub async fn done(self) -> Result<PrefixInfo, PrefixError> {
        let Self { engine, generation: Generation { finished, guard, tokens: _tokens, .. }, undo } = self;
        match finished.await {
            Ok(finished) if matches!(finished.reason, FinishReason::Length | FinishReason::Eos) => guard.disarm(),
            Ok(finished) => return Err(PrefixError::NotComputed { reason: finished.reason, detail: finished.detail }),
            Err(_) => return Err(engine.stopped_error().into()),
        }
        let serial = undo.serial;
        let pinned = engine.prefixes().await?.into_iter().find(|prefix| Some(prefix.serial) == serial);
        undo.disarm();
        // Somebody may have dropped it, and pinned another of its name.
        pinned.ok_or_else(|| PrefixError::NotComputed { reason: FinishReason::Cancelled, detail: Some("it was dropped meanwhile".into()) })
    }
}

impl EngineHandle {
    /// Pins a prefix and begins to compute it.
    ///
    /// # Errors
    /// [`PrefixError`]; nothing is pinned then.
    pub async fn pin(&self, new: NewPrefix) -> Result<Pinning, PrefixError> {
        let tokens = new.tokens.len();
        if tokens < PAGE {
            return Err(PrefixError::TooShort { tokens });
        }
        let request = Request {
            prompt: new.tokens[..tokens / PAGE * PAGE].to_vec(),
            max_tokens: 1,
            sampling: SamplingParams::default(),
            ignore_eos: true,
            priority: Priority::Interactive,
            deadline: None,
            client: new.owner,
            tables: None,
            steering: Default::default(),
            reuse: true,
            measure: false,
        };
        self.check(&request)?;
        let pinned = self.ask(|answer| Message::Pin(new, answer)).await??;
        let undo = Undo { serial: Some(pinned.serial), control: self.control.clone() };
        // The token that it draws is nobody's.
        let generation = self.enqueue(request, false)?;
        Ok(Pinning { engine: self.clone(), generation, undo })
    }

    /// Drops a pinned prefix; None: there is none of that name.
    ///
    /// # Errors
    /// The engine has ended.
    pub async fn unpin(&self, name: &str) -> Result<Option<PrefixInfo>, PrefixError> {
        self.ask(|answer| Message::Unpin(name.into(), answer)).await
    }

    /// The pinned prefixes, in the order they were pinned; waits for the step under way.
    ///
    /// # Errors
    /// The engine has ended.
    pub async fn prefixes(&self) -> Result<Vec<PrefixInfo>, PrefixError> {
        self.ask(Message::Prefixes).await
    }

    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> Message) -> Result<T, PrefixError> {
        let (answer, told) = oneshot::channel();
        let sent = self.control.send(message(answer)).is_ok();
        match told.await {
            Ok(told) if sent => Ok(told),
            _ => Err(self.stopped_error().into()),
        }
    }
}

/// Drops a prefix that was pinned and not computed.
struct Undo {
    serial: Option<u64>,
    control: mpsc::UnboundedSender<Message>,
}

impl Undo {
    fn disarm(mut self) {
        self.serial = None;
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(serial) = self.serial.take() {
            // Nobody waits for the answer; an ended engine has nothing pinned.
            let _ = self.control.send(Message::Unpin(Which::Serial(serial), oneshot::channel().0));
        }
    }
}
