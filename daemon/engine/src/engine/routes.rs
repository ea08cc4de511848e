//! The way from the loop to each request's reader: tokens through a bounded channel that is never waited for, the terminal event beside it.

use crate::handle::{FinishReason, Finished, RequestId, TokenEvent};
use std::collections::HashMap;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

/// Open requests' channels.
#[derive(Default)]
pub(super) struct Routes {
    open: HashMap<RequestId, Route>,
}

struct Route {
    tokens: mpsc::Sender<TokenEvent>,
    finished: oneshot::Sender<Finished>,
    /// Tokens drawn that could not be delivered, and why.
    lost: u32,
    broken: Option<FinishReason>,
    /// Whether its tokens are anybody's answer.
    counts: bool,
}

impl Routes {
    pub fn open(&mut self, id: RequestId, tokens: mpsc::Sender<TokenEvent>, finished: oneshot::Sender<Finished>, counts: bool) {
        self.open.insert(id, Route { tokens, finished, lost: 0, broken: None, counts });
    }

    /// Delivers a token; gives how many that is in the statistics, or a reason to cancel where it cannot be done.
    pub fn token(&mut self, id: RequestId, token: TokenEvent) -> Result<u64, FinishReason> {
        let Some(route) = self.open.get_mut(&id) else { return Ok(0) };
        let broken = match route.broken {
            Some(reason) => reason,
            None => match route.tokens.try_send(token) {
                Ok(()) => return Ok(u64::from(route.counts)),
                Err(TrySendError::Full(_)) => FinishReason::SlowReader,
                Err(TrySendError::Closed(_)) => FinishReason::Cancelled,
            },
        };
        route.broken = Some(broken);
        route.lost += 1;
        Err(broken)
    }

    /// Closes a request's route; gives the terminal event as its reader shall see it (its count without what was lost), to be sent once
    /// the statistics show the end too.
    pub fn close(&mut self, id: RequestId, mut finished: Finished) -> Option<(oneshot::Sender<Finished>, Finished)> {
        let route = self.open.remove(&id)?;
        finished.usage.completion_tokens = finished.usage.completion_tokens.saturating_sub(route.lost);
        finished.reason = route.broken.unwrap_or(finished.reason);
        Some((route.finished, finished))
    }
}
