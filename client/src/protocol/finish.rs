//! Why a request ended; the same words on every interface.

use super::error::ErrorKind;
use serde::{Deserialize, Serialize};

/// The reason in the terminal event. `stop`, `length` and `tool_calls` are OpenAI's; the others end a stream that could not be finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// End-of-sequence token or a stop string.
    Stop,
    /// `max_tokens` reached: what has a form may end early.
    Length,
    /// As `stop`, and functions are called.
    ToolCalls,
    /// The caller cancelled.
    Cancelled,
    /// The deadline passed.
    Deadline,
    /// The reader was too slow.
    SlowReader,
    /// The daemon is shutting down.
    Shutdown,
    /// The device failed.
    DeviceFault,
    /// A fault in the daemon.
    Error,
}

impl FinishReason {
    /// The word on the wire.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::Cancelled => "cancelled",
            FinishReason::Deadline => "deadline",
            FinishReason::SlowReader => "slow_reader",
            FinishReason::Shutdown => "shutdown",
            FinishReason::DeviceFault => "device_fault",
            FinishReason::Error => "error",
        }
    }

    /// The reason that an error's kind amounts to.
    pub fn of_error(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Cancelled => FinishReason::Cancelled,
            ErrorKind::Deadline => FinishReason::Deadline,
            ErrorKind::SlowReader => FinishReason::SlowReader,
            ErrorKind::Shutdown => FinishReason::Shutdown,
            ErrorKind::DeviceFault => FinishReason::DeviceFault,
            _ => FinishReason::Error,
        }
    }

    /// None where the answer is whole as asked; otherwise the error it amounts to.
    pub fn error_kind(self) -> Option<ErrorKind> {
        match self {
            FinishReason::Stop | FinishReason::Length | FinishReason::ToolCalls => None,
            FinishReason::Cancelled => Some(ErrorKind::Cancelled),
            FinishReason::Deadline => Some(ErrorKind::Deadline),
            FinishReason::SlowReader => Some(ErrorKind::SlowReader),
            FinishReason::Shutdown => Some(ErrorKind::Shutdown),
            FinishReason::DeviceFault => Some(ErrorKind::DeviceFault),
            FinishReason::Error => Some(ErrorKind::Internal),
        }
    }
}

impl std::fmt::Display for FinishReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
