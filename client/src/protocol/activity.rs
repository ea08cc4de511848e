//! What the daemon is at: the requests under way, and totals whose differences are rates.

use super::options::Priority;
use serde::{Deserialize, Serialize};

/// `GET /skipd/v1/requests`. Nothing in it tells what a request says; of other users' requests only their number is told, but to administrators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// Milliseconds since the process started: totals of two answers, divided by the time between them, are rates.
    pub uptime_ms: u64,
    /// The caller's own requests, an administrator's view of all: the running ones in order of admission, then the waiting ones.
    pub requests: Vec<RequestStatus>,
    /// Requests that are not listed.
    pub others: Others,
    /// Since the start.
    pub totals: Totals,
    /// In the last step that was long enough to tell.
    pub speed: Speed,
    /// The daemon's process.
    pub process: ProcessStatus,
}

/// One request under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestStatus {
    /// Its `X-Request-Id`; on the bus the end of its path, `SENDER/TOKEN`. A prefix being computed is a request too; pinned over the bus it
    /// has a name of the daemon's.
    pub id: String,
    /// Whose; 4294967295: a key holder's, over TCP.
    pub uid: u32,
    /// Its class.
    pub priority: Priority,
    /// Where it is.
    pub state: RequestState,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Of these, computed or taken from an earlier prompt.
    pub prefilled_tokens: u32,
    /// Tokens drawn.
    pub completion_tokens: u32,
    /// Most tokens it may draw.
    pub max_tokens: u32,
    /// Tokens a second after the first; null for fewer than two.
    #[serde(default)]
    pub tokens_per_second: Option<f64>,
    /// Milliseconds from its arrival to its admission, or until now.
    pub waited_ms: f64,
    /// Pages of 128 tokens set aside for it; 0 while it waits.
    pub pages: u32,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RequestState {
    /// For admission.
    #[default]
    Waiting,
    /// Its prompt is being computed.
    Prefill,
    /// It is being answered.
    Decode,
}

impl RequestState {
    /// The word on every interface.
    pub fn name(self) -> &'static str {
        match self {
            RequestState::Waiting => "waiting",
            RequestState::Prefill => "prefill",
            RequestState::Decode => "decode",
        }
    }
}

/// Requests that are counted and not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Others {
    /// Being computed.
    pub running: u32,
    /// Waiting for admission.
    pub waiting: u32,
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Prompt tokens computed.
    pub prompt_tokens: u64,
    /// Tokens drawn and delivered.
    pub completion_tokens: u64,
    /// Engine steps.
    pub steps: u64,
    /// Seconds in steps with prompt tokens.
    pub prefill_seconds: f64,
    /// Seconds in steps of decode alone.
    pub decode_seconds: f64,
    /// Of prefill tiles.
    pub prefill: Skips,
    /// Of decode runs.
    pub decode: Skips,
}

/// Votes, and how many of them were skips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skips {
    /// Votes taken.
    pub votes: u64,
    /// Tiles or runs left out.
    pub skipped: u64,
}

/// Tokens a second, over all requests; 0 before there were any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// Prompt tokens.
    pub prefill: f64,
    /// Drawn tokens.
    pub decode: f64,
}

/// What the daemon's process has of the system; 0 where the system does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Bytes in memory, mapped files (weights) among them.
    pub resident_bytes: u64,
    /// Of these, bytes of its own: no file has them.
    pub anonymous_bytes: u64,
    /// Threads.
    pub threads: u32,
    /// Open file descriptors.
    pub descriptors: u32,
}
