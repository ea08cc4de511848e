//! A generation in the books: its clock, its line of the log, and its name among those under way.
//! It is closed once, with true counts: by its end, or, where its client is gone, by what the engine says of it.

use super::log::Log;
use super::usage;
use crate::activity::Named;
use crate::metrics::Timing;
use crate::state::Daemon;
use skip_client::protocol::Usage;
use skip_engine::handle::{self, Finished};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// What vLLM calls the end of a request whose client is gone.
const ABORT: &str = "abort";
/// The end of one whose reader slept until it was put out.
const SLOW_READER: &str = "slow_reader";

/// One generation's account.
pub(super) struct Account {
    pub daemon: Arc<Daemon>,
    pub finished: oneshot::Receiver<Finished>,
    pub timing: Timing,
    pub log: Log,
    /// Tokens its client was given.
    pub taken: u32,
    /// Its reader took nothing for too long.
    pub stalled: Arc<AtomicBool>,
    /// Held until the engine has ended it.
    pub _name: Named,
}

impl Account {
    /// A token was taken.
    pub fn token(&mut self) {
        self.taken += 1;
        self.timing.token(&self.daemon.metrics, Instant::now());
    }

    /// The engine's last word. May be dropped while it waits: nothing is lost.
    pub async fn finished(&mut self) -> Finished {
        (&mut self.finished).await.unwrap_or_else(|_| Finished {
            reason: handle::FinishReason::DeviceFault,
            detail: Some("the engine ended without a word".into()),
            usage: handle::Usage::default(),
            measured: None,
        })
    }

    pub fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Acquire)
    }

    /// It ended.
    pub fn close(mut self, reason: &'static str, counts: &handle::Usage) -> Usage {
        self.timing.end(&self.daemon.metrics, Instant::now(), counts, reason);
        let usage = usage::report(counts, self.taken);
        self.log.end(reason, &usage);
        usage
    }

    /// Nobody is there to be told of the end; it is recorded all the same.
    pub fn abandon(mut self) {
        // Without a runtime the process is at its end: the log then has a line without counts.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                let finished = self.finished().await;
                let reason = if self.is_stalled() { SLOW_READER } else { ABORT };
                self.close(reason, &finished.usage);
            });
        }
    }
}
