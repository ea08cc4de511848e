//! A submitted request: text as it comes, then exactly one end with true counts. Dropping it cancels the request at the next step.

use super::account::Account;
use super::assemble::Assembler;
use super::calls::{Calls, Part};
use super::log::Log;
use super::plan::Plan;
use crate::metrics::Timing;
use crate::socket::Stall;
use crate::state::{Daemon, Model};
use crate::text::WithTags;
use skip_client::protocol::{FinishReason, LogprobEntry, StreamEvent, ToolCallDelta, Usage};
use skip_client::{Error, ErrorKind};
use skip_engine::EngineHandle;
use skip_engine::handle::{self, CancelGuard, Finished, RequestId, SubmitError, TokenEvent};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;

/// What a generation gives.
#[derive(Debug)]
pub enum Event {
    /// New text, new log-probabilities, or both.
    Text {
        /// Whole UTF-8.
        text: String,
        /// One entry a token, where asked for.
        logprobs: Vec<LogprobEntry>,
    },
    /// More of a call of a function.
    Call(ToolCallDelta),
    /// The end; nothing follows.
    End(Outcome),
}

/// How a generation ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Why.
    pub reason: FinishReason,
    /// Set where the reason is not `stop`, `length` or `tool_calls`.
    pub error: Option<Error>,
    /// True counts, whatever the reason.
    pub usage: Usage,
}

impl From<Event> for StreamEvent {
    fn from(event: Event) -> Self {
        match event {
            Event::Text { text, logprobs } => StreamEvent::Text { text, logprobs },
            Event::Call(call) => StreamEvent::ToolCall { call },
            Event::End(Outcome { reason, error, usage }) => StreamEvent::Finished { reason, usage, error },
        }
    }
}

/// Where a generation stands.
enum Stage {
    /// Tokens may come.
    Tokens,
    /// No token is taken any more; the engine's last word is awaited.
    Closing { stopped: bool },
    /// The end was given.
    Done,
}

/// A running generation.
pub struct Running {
    model_name: String,
    engine: EngineHandle,
    id: RequestId,
    tokens: mpsc::Receiver<TokenEvent>,
    guard: Option<CancelGuard>,
    assembler: Assembler,
    /// Where the model was told of functions: its calls so far.
    calls: Option<Calls>,
    /// What is to be told next.
    ready: VecDeque<Event>,
    stage: Stage,
    /// Open until the end was given.
    account: Option<Account>,
    stalled: Arc<AtomicBool>,
}

impl Running {
    pub(super) fn submit(daemon: Arc<Daemon>, model: Arc<Model>, plan: Plan) -> Result<Self, Error> {
        let (uid, priority) = (plan.request.client.0, plan.request.priority);
        let generation = model.engine.submit(plan.request).map_err(|error| refusal(error, plan.steered_by))?;
        let stalled = Arc::new(AtomicBool::new(false));
        let account = Account {
            finished: generation.finished,
            timing: Timing::from(plan.arrived),
            // What was refused never began.
            log: Log::begin(uid, priority),
            taken: 0,
            stalled: stalled.clone(),
            _name: daemon.names.enter(generation.id, plan.id),
            daemon,
        };
        // Tags that are control tokens say where calls are, and are read as text.
        let text = match &plan.calls {
            Some(expected) => WithTags::show(&model.text, expected.form.tags()),
            None => model.text.clone(),
        };
        Ok(Self {
            assembler: Assembler::new(text, plan.skip_special, &plan.stops, plan.wants_logprobs),
            model_name: model.name.clone(),
            engine: model.engine.clone(),
            id: generation.id,
            tokens: generation.tokens,
            guard: Some(generation.guard),
            calls: plan.calls.map(Calls::new),
            ready: VecDeque::new(),
            stage: Stage::Tokens,
            account: Some(account),
            stalled,
        })
    }

    /// The model's name, as answers carry it.
    pub fn model_name(&self) -> &str {
        &self.model_name
    }

    /// Ends the request at the next step; its end, with true counts, still comes.
    pub fn cancel(&mut self) {
        self.guard = None;
    }

    /// Ends the request where its reader is found to take nothing for too long; who comes back then still gets its end.
    pub fn heed(&self, reader: &Stall) {
        let (engine, id, stalled) = (self.engine.clone(), self.id, self.stalled.clone());
        reader.then(move || {
            stalled.store(true, Ordering::Release);
            engine.cancel(id);
        });
    }

    /// The next event; None after the end. May be dropped while it waits: nothing is lost.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            match self.stage {
                Stage::Tokens => {
                    let token = self.tokens.recv().await;
                    self.take(token);
                }
                Stage::Closing { stopped } => {
                    let finished = self.account.as_mut()?.finished().await;
                    self.stage = Stage::Done;
                    let account = self.account.take()?;
                    return Some(Event::End(self.end(account, finished, stopped)));
                }
                Stage::Done => return None,
            }
        }
    }

    /// One token, or the end of tokens.
    fn take(&mut self, token: Option<TokenEvent>) {
        let at_end = token.is_none();
        let piece = match token {
            Some(token) => {
                if let Some(account) = &mut self.account {
                    account.token();
                }
                if token.is_eos {
                    return;
                }
                self.assembler.push(&token.sampled)
            }
            None => {
                self.stage = Stage::Closing { stopped: false };
                self.assembler.finish()
            }
        };
        self.tell(piece.text, piece.logprobs, at_end || piece.stopped);
        let called_enough = self.calls.as_ref().is_some_and(|calls| calls.complete() >= calls.most());
        if piece.stopped || (called_enough && !at_end) {
            self.stage = Stage::Closing { stopped: true };
            // Cancels what the engine has not done yet; its counts still come.
            self.guard = None;
        }
    }

    /// Text, or the calls that it is.
    fn tell(&mut self, text: String, mut logprobs: Vec<LogprobEntry>, last: bool) {
        let Some(calls) = &mut self.calls else {
            if !text.is_empty() || !logprobs.is_empty() {
                self.ready.push_back(Event::Text { text, logprobs });
            }
            return;
        };
        let mut parts = calls.push(&text);
        if last {
            parts.extend(calls.finish());
        }
        for part in parts {
            match part {
                Part::Text(text) => self.ready.push_back(Event::Text { text, logprobs: std::mem::take(&mut logprobs) }),
                // Of more calls than there may be, none of the token that ends the last.
                Part::Call(call) if call.index < calls.most() => self.ready.push_back(Event::Call(call)),
                Part::Call(_) => {}
            }
        }
        if !logprobs.is_empty() {
            self.ready.push_back(Event::Text { text: String::new(), logprobs });
        }
    }

    fn end(&mut self, account: Account, finished: Finished, stopped: bool) -> Outcome {
        if let Some(guard) = self.guard.take() {
            guard.disarm();
        }
        let reason = match if stopped { FinishReason::Stop } else { reason(finished.reason) } {
            FinishReason::Stop if self.calls.as_ref().is_some_and(|calls| calls.complete() > 0) => FinishReason::ToolCalls,
            FinishReason::Cancelled if account.is_stalled() => FinishReason::SlowReader,
            reason => reason,
        };
        let error = reason.error_kind().map(|kind| Error::new(kind, explain(kind, finished.detail)));
        let usage = account.close(reason.name(), &finished.usage);
        Outcome { reason, error, usage }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Cancelled first: its account waits for the end.
        self.guard = None;
        if let Some(account) = self.account.take() {
            account.abandon();
        }
    }
}

/// The engine's reason in the protocol's words.
pub(crate) fn reason(engine: handle::FinishReason) -> FinishReason {
    match engine {
        handle::FinishReason::Eos => FinishReason::Stop,
        handle::FinishReason::Length => FinishReason::Length,
        handle::FinishReason::Cancelled => FinishReason::Cancelled,
        handle::FinishReason::Deadline => FinishReason::Deadline,
        handle::FinishReason::SlowReader => FinishReason::SlowReader,
        handle::FinishReason::Shutdown => FinishReason::Shutdown,
        handle::FinishReason::DeviceFault => FinishReason::DeviceFault,
        _ => FinishReason::Error,
    }
}

fn explain(kind: ErrorKind, detail: Option<String>) -> String {
    let what = match kind {
        ErrorKind::Cancelled => "the request was cancelled",
        ErrorKind::Deadline => "the request's deadline passed",
        ErrorKind::SlowReader => "the answer was not read fast enough",
        ErrorKind::Shutdown => "the daemon is shutting down",
        ErrorKind::DeviceFault => "the device failed",
        _ => "the request could not be computed",
    };
    match detail {
        Some(detail) => format!("{what}: {detail}"),
        None => what.to_owned(),
    }
}

/// The engine's refusal as a protocol error, with its numbers.
pub(crate) fn refusal(error: SubmitError, steered_by: Option<&'static str>) -> Error {
    let message = error.to_string();
    let new = |kind| Error::new(kind, message.clone());
    match error {
        SubmitError::EmptyPrompt => new(ErrorKind::InvalidRequest).at("prompt"),
        SubmitError::NoTokens => new(ErrorKind::InvalidRequest).at("max_tokens"),
        SubmitError::BadToken { id, vocabulary } => {
            new(ErrorKind::InvalidRequest).at("prompt").with("token", id).with("vocabulary", vocabulary)
        }
        SubmitError::ContextOverflow { prompt, max_tokens, context } => {
            new(ErrorKind::ContextOverflow).with("prompt_tokens", prompt).with("max_tokens", max_tokens).with("context_length", context)
        }
        SubmitError::CacheTooSmall { needed, total } => {
            new(ErrorKind::CacheTooSmall).with("pages_needed", needed).with("pages_total", total)
        }
        SubmitError::Busy { limit } => new(ErrorKind::Busy).with("queue_limit", limit).with("retry_after_s", 1),
        SubmitError::NoSteering => new(ErrorKind::Unsupported).at(steered_by.unwrap_or("logit_bias")),
        SubmitError::Draining => new(ErrorKind::Draining),
        SubmitError::Stopped(_) => new(ErrorKind::DeviceFault),
        _ => new(ErrorKind::Internal),
    }
}
