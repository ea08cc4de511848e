//! The handle: checks a request for form and room, then hands it to the loop; never waits for a step.

use super::options::{CachePlan, ModelInfo};
use super::{EngineError, EngineState};
use crate::handle::{CancelGuard, Generation, Message, Priority, Progress, Request, RequestId, Submission, SubmitError, TableSet};
use crate::stats::Status;
use skip_kernels::PAGE;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::{mpsc, oneshot, watch};

/// What the handle and the loop share.
pub(super) struct Shared {
    pub(super) info: ModelInfo,
    pub(super) cache: CachePlan,
    pub(super) queue_limit: u32,
    pub(super) token_buffer: usize,
    /// Requests accepted and not yet admitted or ended.
    pub(super) waiting: AtomicU32,
    pub(super) draining: AtomicBool,
    /// Of those waiting, background requests that are held back.
    pub(super) held: AtomicU32,
    /// The device can change logits; true until it is known.
    pub(super) edits_logits: AtomicBool,
    pub(super) status: Mutex<Status>,
    pub(super) state: watch::Sender<EngineState>,
    /// How often the loop has turned, or got a layer further in a step.
    turns: AtomicU64,
    next_id: AtomicU64,
}

impl Shared {
    pub(super) fn new(info: ModelInfo, cache: CachePlan, queue_limit: u32, token_buffer: usize, tables: TableSet) -> Self {
        Self {
            status: Mutex::new(Status::new(&cache, tables)),
            info,
            cache,
            queue_limit: queue_limit.max(1),
            token_buffer: token_buffer.max(1),
            waiting: AtomicU32::new(0),
            draining: AtomicBool::new(false),
            held: AtomicU32::new(0),
            edits_logits: AtomicBool::new(true),
            state: watch::Sender::new(EngineState::Loading { progress: 0.0 }),
            turns: AtomicU64::new(0),
            next_id: AtomicU64::new(1),
        }
    }

    /// Requests of a class that may wait. Control has a few places beyond the limit, so that a queue full of others does not turn it away;
    /// background requests that are held back take no place from anybody else.
    fn queue_limit_of(&self, priority: Priority) -> u32 {
        let others = self.queue_limit.saturating_add(self.held.load(Ordering::Acquire));
        match priority {
            Priority::Control => others.saturating_add(self.queue_limit.div_ceil(8)),
            Priority::Interactive => others,
            Priority::Background => self.queue_limit,
        }
    }

    pub(super) fn update_status(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The loop lives.
    pub(super) fn turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// A final state stays.
    pub(super) fn set_state(&self, state: EngineState) {
        self.state.send_if_modified(|now| {
            if now.is_final() {
                return false;
            }
            *now = state;
            true
        });
    }
}

/// The engine seen by the service; cheap to clone.
#[derive(Clone)]
pub struct EngineHandle {
    pub(super) shared: Arc<Shared>,
    pub(super) control: mpsc::UnboundedSender<Message>,
}

impl EngineHandle {
    /// Accepts a request or says at once why not. While the model loads, requests queue.
    pub fn submit(&self, request: Request) -> Result<Generation, SubmitError> {
        self.enqueue(request, true)
    }

    /// The same; `counts` says whether its tokens are an answer.
    pub(super) fn enqueue(&self, request: Request, counts: bool) -> Result<Generation, SubmitError> {
        let shared = &*self.shared;
        self.check(&request)?;
        if shared.draining.load(Ordering::Acquire) {
            return Err(SubmitError::Draining);
        }
        let limit = shared.queue_limit_of(request.priority);
        shared
            .waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < limit).then_some(n + 1))
            .map_err(|_| SubmitError::Busy { limit })?;
        let id = RequestId(shared.next_id.fetch_add(1, Ordering::Relaxed));
        let (tokens_in, tokens) = mpsc::channel(shared.token_buffer);
        let (finished_in, finished) = oneshot::channel();
        let submission = Submission { id, request, at: Instant::now(), tokens: tokens_in, finished: finished_in, counts };
        if self.control.send(Message::Submit(Box::new(submission))).is_err() {
            shared.waiting.fetch_sub(1, Ordering::AcqRel);
            return Err(self.stopped_error());
        }
        let guard = CancelGuard { id, control: Some(self.control.clone()) };
        Ok(Generation { id, tokens, finished, guard })
    }

    pub(super) fn check(&self, request: &Request) -> Result<(), SubmitError> {
        let shared = &*self.shared;
        let Shared { info, cache, .. } = shared;
        if self.shared.state.borrow().is_final() {
            return Err(self.stopped_error());
        }
        if request.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        if request.max_tokens == 0 {
            return Err(SubmitError::NoTokens);
        }
        if let Some(&id) = request.prompt.iter().find(|id| **id >= info.vocabulary) {
            return Err(SubmitError::BadToken { id, vocabulary: info.vocabulary });
        }
        if !request.steering.is_idle() && !shared.edits_logits.load(Ordering::Acquire) {
            return Err(SubmitError::NoSteering);
        }
        let prompt = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        let total = u64::from(prompt) + u64::from(request.max_tokens);
        let model_context = u64::from(info.context);
        if total > u64::from(cache.context) {
            let needed = total.div_ceil(PAGE as u64);
            if total <= model_context && needed > u64::from(cache.pages) {
                return Err(SubmitError::CacheTooSmall { needed: needed as u32, total: cache.pages });
            }
            return Err(SubmitError::ContextOverflow { prompt, max_tokens: request.max_tokens, context: cache.context });
        }
        Ok(())
    }

    pub(super) fn stopped_error(&self) -> SubmitError {
        SubmitError::Stopped(match &*self.shared.state.borrow() {
            EngineState::Failed(error) => error.to_string(),
            _ => "shut down".to_string(),
        })
    }

    /// New requests start with `tables`; returns when the loop has applied them (between steps). False: the engine has ended.
    pub async fn set_tables(&self, tables: TableSet) -> bool {
        let (ack, done) = oneshot::channel();
        self.control.send(Message::SetTables(tables, ack)).is_ok() && done.await.is_ok()
    }

    /// Ends a request at the next chance; its terminal event follows.
    pub fn cancel(&self, id: RequestId) {
        // An ended engine has no request left to cancel.
        let _ = self.control.send(Message::Cancel(id));
    }

    /// Whether background requests that wait are held back: they keep their places, and what runs goes on. A drain ends it, as what was
    /// accepted is finished.
    pub fn hold_background(&self, hold: bool) {
        // An ended engine has nothing to hold back.
        let _ = self.control.send(Message::HoldBackground(hold));
    }

    /// Refuses new requests from now on; returns when the running ones have ended. False: the engine ended first.
    pub async fn drain(&self) -> bool {
        self.shared.draining.store(true, Ordering::Release);
        let (ack, done) = oneshot::channel();
        self.control.send(Message::Drain(ack)).is_ok() && done.await.is_ok()
    }

    /// Ends every request with a terminal event and the loop after them; seen between layers. Wait for it with [`stopped`](Self::stopped).
    pub fn shutdown(&self) {
        self.shared.draining.store(true, Ordering::Release);
        // An ended engine needs no telling.
        let _ = self.control.send(Message::Shutdown);
    }

    /// Waits until the engine has ended (stopped or failed).
    pub async fn stopped(&self) {
        let mut state = self.watch();
        // The sender lives in `shared`, which `self` holds: the wait cannot fail.
        let _ = state.wait_for(EngineState::is_final).await;
    }

    /// Waits until the model is loaded.
    pub async fn ready(&self) -> Result<(), Arc<EngineError>> {
        let mut state = self.watch();
        let state = state.wait_for(|s| !matches!(s, EngineState::Loading { .. })).await;
        match state.as_deref() {
            Ok(EngineState::Failed(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Follows the state, load progress included.
    pub fn watch(&self) -> watch::Receiver<EngineState> {
        self.shared.state.subscribe()
    }

    /// The state now.
    pub fn state(&self) -> EngineState {
        self.shared.state.borrow().clone()
    }

    /// Tokens of prompt and answer together that a request may have at most.
    pub fn longest_request(&self) -> u32 {
        self.shared.cache.context
    }

    /// The model's facts known before its weights are loaded.
    pub fn model(&self) -> &ModelInfo {
        &self.shared.info
    }

    /// A number that is another one whenever the loop got further: a turn, or a layer of a step. It stands still while the model loads, where a
    /// step is stuck, and where there is nothing to do, unless it is [nudged](Self::nudge).
    pub fn turns(&self) -> u64 {
        self.shared.turns.load(Ordering::Relaxed)
    }

    /// Makes a loop that has nothing to do turn once.
    pub fn nudge(&self) {
        // An ended engine turns no more.
        let _ = self.control.send(Message::Nudge);
    }

    /// How far every request is, once the step under way has ended; None where the engine has.
    pub async fn progress(&self) -> Option<Vec<Progress>> {
        let (answer, told) = oneshot::channel();
        self.control.send(Message::Look(answer)).ok()?;
        told.await.ok()
    }

    /// A snapshot of the counters after the last step.
    pub fn status(&self) -> Status {
        let mut status = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        status.state = self.state();
        status.queued = self.shared.waiting.load(Ordering::Acquire);
        status
    }
}

impl std::fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineHandle").field("state", &*self.shared.state.borrow()).finish_non_exhaustive()
    }
}
