//! The engine seen from outside: requests in, events out, control by message. Nothing here blocks on the engine's step.

use crate::grammar::Grammar;
use crate::measured::Measured;
use crate::prefix::{NewPrefix, PrefixError, PrefixInfo, Which};
use skip_kernels::attention::SkipCounters;
use skip_kernels::sampling::{Sampled, SamplingParams};
use skip_kernels::{Phase, ScaleTable};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Identifies a request inside the process; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Who asks, for fairness and isolation: the uid of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

/// A higher class pauses a lower one at a step boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Best effort.
    Background,
    /// A person or a task waits.
    #[default]
    Interactive,
    /// A control loop waits.
    Control,
}

/// A table as the engine uses it: the rows, and what usage reports of it.
#[derive(Debug, PartialEq)]
pub struct NamedTable {
    /// The rows.
    pub table: ScaleTable,
    /// Tier (`50%`), if it is one of a ladder.
    pub tier: Option<String>,
    /// Which row of the precedence decided: `set-table`, `persisted`, `admin`, `update`, `checkpoint`, `request`.
    pub origin: String,
    /// SHA-256 over the rows as written, hexadecimal.
    pub hash: String,
}

/// The tables new requests start with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableSet {
    /// None: dense.
    pub prefill: Option<Arc<NamedTable>>,
    /// None: dense.
    pub decode: Option<Arc<NamedTable>>,
}

impl TableSet {
    /// The table of a phase.
    pub fn phase(&self, phase: Phase) -> Option<&Arc<NamedTable>> {
        match phase {
            Phase::Prefill => self.prefill.as_ref(),
            Phase::Decode => self.decode.as_ref(),
        }
    }
}

/// One request, tokenised and validated for form; the engine checks it against context and memory.
#[derive(Clone, Debug)]
pub struct Request {
    /// Prompt token ids.
    pub prompt: Vec<u32>,
    /// At most this many new tokens (≥ 1).
    pub max_tokens: u32,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Do not end at an end-of-sequence token.
    pub ignore_eos: bool,
    /// Scheduling class.
    pub priority: Priority,
    /// Cancelled with reason `deadline` at the next chance after this.
    pub deadline: Option<Instant>,
    /// Who asks.
    pub client: ClientId,
    /// Tables of this request alone, where the caller was authorised; None: those in force at admission.
    pub tables: Option<TableSet>,
    /// What changes the logits its tokens are drawn from.
    pub steering: Steering,
    /// It may take pages of earlier prompts with the same beginning, and leaves its own to later ones.
    pub reuse: bool,
    /// Its votes are told by gap ([`Finished::measured`]): it is computed densely, from its first token on, in steps of its own.
    pub measure: bool,
}

/// What changes a request's logits before its tokens are drawn.
#[derive(Clone, Debug, Default)]
pub struct Steering {
    /// The form of the answer.
    pub grammar: Option<Grammar>,
    /// Taken from a token's logit for each time it was drawn.
    pub frequency_penalty: f32,
    /// Taken from a token's logit once it was drawn.
    pub presence_penalty: f32,
    /// Added to tokens' logits; no token twice.
    pub bias: Vec<(u32, f32)>,
}

impl Steering {
    /// It changes nothing.
    pub fn is_idle(&self) -> bool {
        self.bias.is_empty() && !self.follows()
    }

    /// It depends on the tokens drawn so far: none can be drawn before the one in front of it was seen.
    pub fn follows(&self) -> bool {
        self.grammar.is_some() || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}

/// Why a request was not accepted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// No prompt.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A token id the vocabulary lacks.
    #[error("token id {id} is outside the vocabulary of {vocabulary}")]
    BadToken {
        /// The id.
        id: u32,
        /// Vocabulary size.
        vocabulary: u32,
    },
    /// Prompt and answer can never fit the context.
    #[error("{prompt} prompt tokens and {max_tokens} new ones exceed the context of {context}")]
    ContextOverflow {
        /// Prompt tokens.
        prompt: u32,
        /// Wanted tokens.
        max_tokens: u32,
        /// The model's (or the cache's) limit.
        context: u32,
    },
    /// The request needs more pages than the cache has.
    #[error("the request needs {needed} pages of 128 tokens; the cache has {total}")]
    CacheTooSmall {
        /// Pages needed.
        needed: u32,
        /// Pages in all.
        total: u32,
    },
    /// The queue is full; try again.
    #[error("the queue of {limit} requests is full")]
    Busy {
        /// Queue length.
        limit: u32,
    },
    /// Logits cannot be changed on this device.
    #[error("the device's kernels cannot change logits: no structured output, penalties or logit bias")]
    NoSteering,
    /// A request asks for at least one token.
    #[error("max_tokens is 0: a request asks for at least one token")]
    NoTokens,
    /// No new requests are taken.
    #[error("the engine is draining")]
    Draining,
    /// The engine has ended.
    #[error("the engine has stopped: {0}")]
    Stopped(String),
}

/// One drawn token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// Id and log-probabilities.
    pub sampled: Sampled,
    /// True for an end-of-sequence token that ends its request (the last event); never set under `ignore_eos`.
    pub is_eos: bool,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// End-of-sequence token.
    Eos,
    /// `max_tokens` reached.
    Length,
    /// The caller cancelled or went away.
    Cancelled,
    /// The deadline passed.
    Deadline,
    /// The token channel stayed full: the reader is too slow.
    SlowReader,
    /// The daemon is shutting down.
    Shutdown,
    /// The device failed.
    DeviceFault,
    /// This request could not be computed (`detail` says why); the engine lives on.
    Error,
}

impl FinishReason {
    /// Every reason, for tables of counters.
    pub const ALL: [FinishReason; 8] = [
        FinishReason::Eos,
        FinishReason::Length,
        FinishReason::Cancelled,
        FinishReason::Deadline,
        FinishReason::SlowReader,
        FinishReason::Shutdown,
        FinishReason::DeviceFault,
        FinishReason::Error,
    ];

    /// The name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Eos => "eos",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
            FinishReason::Deadline => "deadline",
            FinishReason::SlowReader => "slow_reader",
            FinishReason::Shutdown => "shutdown",
            FinishReason::DeviceFault => "device_fault",
            FinishReason::Error => "error",
        }
    }
}

/// What a phase used and left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhaseUsage {
    /// The table the request had; None: dense.
    pub table: Option<Arc<NamedTable>>,
    /// Row `[first_length, S]` in force at the prompt's length (prefill); None where dense.
    pub row: Option<(u32, f32)>,
    /// Votes and skips, summed over layers and steps.
    pub counters: SkipCounters,
}

/// True counts of one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Tokens drawn and put into the channel, the end-of-sequence token among them. Who cancels at a stop string counts those it took itself.
    pub completion_tokens: u32,
    /// Prompt tokens taken from an earlier prompt, not computed again.
    pub reused_tokens: u32,
    /// Prefill.
    pub prefill: PhaseUsage,
    /// Decode.
    pub decode: PhaseUsage,
    /// Waiting for admission.
    pub queue_time: Duration,
    /// From admission to the first token.
    pub prefill_time: Duration,
    /// From the first token to the last.
    pub decode_time: Duration,
}

/// The terminal event: exactly one a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// More words for an error.
    pub detail: Option<String>,
    /// Counts.
    pub usage: Usage,
    /// Votes by gap, of a request that was measured.
    pub measured: Option<Arc<Measured>>,
}

/// A request's two ends: tokens in order, then one terminal event that is delivered even if the token channel is full.
#[derive(Debug)]
pub struct Generation {
    /// For cancelling.
    pub id: RequestId,
    /// Drawn tokens; closes after the last.
    pub tokens: mpsc::Receiver<TokenEvent>,
    /// The terminal event.
    pub finished: oneshot::Receiver<Finished>,
    /// Cancels the request when dropped; `disarm` it after the terminal event.
    pub guard: CancelGuard,
}

/// Cancels a request when dropped, so that a vanished client frees its slot at the next step.
#[derive(Debug)]
pub struct CancelGuard {
    pub(crate) id: RequestId,
    pub(crate) control: Option<mpsc::UnboundedSender<Message>>,
}

impl CancelGuard {
    /// The request ended by itself.
    pub fn disarm(mut self) {
        self.control = None;
    }
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        if let Some(control) = self.control.take() {
            // The engine may have ended first; then there is nothing to cancel.
            let _ = control.send(Message::Cancel(self.id));
        }
    }
}

/// Everything that changes engine state; applied between steps.
#[derive(Debug)]
pub enum Message {
    /// A new request (already counted against the queue).
    Submit(Box<Submission>),
    /// Ends a request at the next chance.
    Cancel(RequestId),
    /// New requests start with these tables; acknowledged when applied.
    SetTables(TableSet, oneshot::Sender<()>),
    /// Shares a prefix between all clients; answered when applied.
    Pin(NewPrefix, oneshot::Sender<Result<PrefixInfo, PrefixError>>),
    /// Shares it no longer; answered with what it was.
    Unpin(Which, oneshot::Sender<Option<PrefixInfo>>),
    /// Asks for the pinned prefixes.
    Prefixes(oneshot::Sender<Vec<PrefixInfo>>),
    /// Refuse new requests, finish the rest; acknowledged when idle.
    Drain(oneshot::Sender<()>),
    /// Tell how far every request is; answered between two steps.
    Look(oneshot::Sender<Vec<Progress>>),
    /// Start no step until `Resume`; acknowledged when none is under way.
    Pause(oneshot::Sender<()>),
    /// Look at the device, and go on.
    Resume,
    /// Admit no background request until told otherwise; while requests are drained, none is held back.
    HoldBackground(bool),
    /// Turn once: whoever watches the loop wants to see it move.
    Nudge,
    /// Cancel everything and end the loop.
    Shutdown,
}

/// Where a request is between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits for admission.
    Waiting,
    /// Its prompt is being computed.
    Prefill,
    /// It draws tokens.
    Decode,
}

/// How far a request is; nothing of what it says.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Which.
    pub id: RequestId,
    /// Whose.
    pub client: ClientId,
    /// Its class.
    pub priority: Priority,
    /// Where it is.
    pub stage: Stage,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Of these, in the cache: computed, or taken from an earlier prompt.
    pub prefilled: u32,
    /// Tokens drawn.
    pub generated: u32,
    /// Most tokens it may draw.
    pub max_tokens: u32,
    /// Pages set aside for it; 0 while it waits.
    pub pages: u32,
    /// From its arrival to its admission, or until now.
    pub waited: Duration,
    /// Since its first token; zero before.
    pub decoding: Duration,
}

/// A request with its channels.
#[derive(Debug)]
pub struct Submission {
    /// Identity.
    pub id: RequestId,
    /// What is asked.
    pub request: Request,
    /// When it was submitted.
    pub at: Instant,
    /// Whether its tokens are an answer, to be counted; a prefix that is computed has none.
    pub counts: bool,
    /// Tokens out.
    pub tokens: mpsc::Sender<TokenEvent>,
    /// Terminal event out.
    pub finished: oneshot::Sender<Finished>,
}
