//! The stream of a request on the bus: newline-delimited JSON, text events and then exactly one terminal event.

use super::completion::LogprobEntry;
use super::error::Error;
use super::finish::FinishReason;
use super::tools::ToolCallDelta;
use super::usage::Usage;
use serde::{Deserialize, Serialize};

/// One line of the stream fd.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum StreamEvent {
    /// New text.
    Text {
        /// Always whole UTF-8; may be empty when only log-probabilities are new.
        text: String,
        /// Of the tokens drawn since the last event, where asked for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        logprobs: Vec<LogprobEntry>,
    },
    /// More of a call of a function.
    ToolCall {
        /// What is new of it.
        call: ToolCallDelta,
    },
    /// The end; nothing follows.
    Finished {
        /// Why.
        reason: FinishReason,
        /// True counts, whatever the reason.
        usage: Usage,
        /// What went wrong, where the reason is not `stop`, `length` or `tool_calls`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Error>,
    },
}

/// What the bus methods that generate answer, beside the stream fd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHandle {
    /// Object path of the request.
    pub path: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn events_are_single_lines_that_come_back() {
        for event in [
            StreamEvent::Text { text: "a\nb".into(), logprobs: vec![] },
            StreamEvent::ToolCall { call: ToolCallDelta::more(1, "{".into()) },
            StreamEvent::Finished { reason: FinishReason::Stop, usage: Usage::default(), error: None },
            StreamEvent::Finished {
                reason: FinishReason::Deadline,
                usage: Usage::default(),
                error: Some(Error::new(ErrorKind::Deadline, "40 ms passed")),
            },
        ] {
            let line = serde_json::to_string(&event).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<StreamEvent>(&line).unwrap(), event);
        }
    }
}
