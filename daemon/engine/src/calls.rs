//! How a model calls functions: what its chat template shows of a call, as the grammar writes it and the service reads it back.

use serde::{Deserialize, Serialize};

/// The control token that Llama 3 may put before a call that its template writes without any tag.
pub const PYTHON_TAG: &str = "<|python_tag|>";

/// The text of calls: `open call close` each, or, where they are a list, `open [call, call] close`; a call is
/// `{"name": "…", "KEY": {…}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallForm {
    /// Before a call or the list, spaces behind the tag included. Empty where the answer is the call and nothing else.
    pub open: String,
    /// The calls are one JSON list.
    pub list: bool,
    /// The key of the arguments: `arguments` or `parameters`.
    pub key: String,
    /// Behind a call or the list.
    pub close: String,
    /// Between two calls: spaces, or in a list its comma.
    pub between: String,
    /// One answer may hold several calls.
    pub several: bool,
    /// A call's id has nine letters and digits: the template refuses others when the call comes back.
    pub short_ids: bool,
}

impl CallForm {
    /// Hermes' and Qwen's: `<tool_call>\n{"name": …, "arguments": …}\n</tool_call>`.
    pub fn hermes() -> Self {
        Self {
            open: "<tool_call>\n".into(),
            list: false,
            key: "arguments".into(),
            close: "\n</tool_call>".into(),
            between: "\n".into(),
            several: true,
            short_ids: false,
        }
    }

    /// The tag before calls, without the spaces behind it; empty where there is none.
    pub fn tag(&self) -> &str {
        self.open.trim()
    }

    /// The tags that may be control tokens of the vocabulary.
    pub fn tags(&self) -> impl Iterator<Item = &str> {
        let open = if self.tag().is_empty() { PYTHON_TAG } else { self.tag() };
        [open, self.close.trim()].into_iter().filter(|tag| !tag.is_empty())
    }
}
