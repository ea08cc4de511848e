//! Pinning from outside: a prefix is pinned, then computed by a request of its owner like any other, so that it is there for the first who asks.

use super::EngineHandle;
use crate::handle::{FinishReason, Generation, Message, Priority, Request};
use crate::prefix::{NewPrefix, PrefixError, PrefixInfo};
use skip_kernels::PAGE;
use skip_kernels::sampling::SamplingParams;
use tokio::sync::{mpsc, oneshot};

impl EngineHandle {
    /// Pins a prefix and computes it; returns when its pages are there.
    ///
    /// # Errors
    /// [`PrefixError`]; nothing is pinned then, nor where the caller goes away meanwhile.
    pub async fn pin(&self, new: NewPrefix) -> Result<PrefixInfo, PrefixError> {
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
        };
        self.check(&request)?;
        let name = new.name.clone();
        self.ask(|answer| Message::Pin(new, answer)).await??;
        let undo = Undo { name: Some(name.clone()), control: self.control.clone() };
        let Generation { finished, guard, tokens: _tokens, .. } = self.submit(request)?;
        match finished.await {
            Ok(finished) if matches!(finished.reason, FinishReason::Length | FinishReason::Eos) => guard.disarm(),
            Ok(finished) => return Err(PrefixError::NotComputed { reason: finished.reason, detail: finished.detail }),
            Err(_) => return Err(self.stopped_error().into()),
        }
        let pinned = self.prefixes().await?.into_iter().find(|prefix| prefix.name == name);
        undo.disarm();
        // Somebody may have dropped it just now.
        pinned.ok_or(PrefixError::NotComputed { reason: FinishReason::Cancelled, detail: None })
    }

    /// Drops a pinned prefix; None: there is none of that name.
    ///
    /// # Errors
    /// The engine has ended.
    pub async fn unpin(&self, name: &str) -> Result<Option<PrefixInfo>, PrefixError> {
        self.ask(|answer| Message::Unpin(name.to_owned(), answer)).await
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
    name: Option<String>,
    control: mpsc::UnboundedSender<Message>,
}

impl Undo {
    fn disarm(mut self) {
        self.name = None;
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            // Nobody waits for the answer; an ended engine has nothing pinned.
            let _ = self.control.send(Message::Unpin(name, oneshot::channel().0));
        }
    }
}
