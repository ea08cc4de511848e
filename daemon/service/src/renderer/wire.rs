//! What the daemon and a rendering process say to each other: a job is a line of JSON, messages and tools; an answer is a line of JSON, behind
//! which a rendering follows as it is.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use skip_engine::calls::CallForm;

/// What is rendered.
#[derive(Debug, Deserialize)]
pub struct Job {
    /// As a template reads them.
    pub messages: Vec<Value>,
    /// As a template reads them; none: the template hears of no tools.
    pub tools: Vec<Value>,
}

/// A job from parts that lie elsewhere.
#[derive(Debug, Serialize)]
pub struct JobOf<'a> {
    /// [`Job::messages`].
    pub messages: &'a [Value],
    /// [`Job::tools`].
    pub tools: &'a [Value],
}

/// Longest rendering that is taken, bytes; the template's own limit is the same.
pub const MAX_TEXT: usize = 64 << 20;

/// The first line of a process.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase", tag = "hello")]
pub enum Hello {
    /// The template is compiled.
    Ready {
        /// The file it is in.
        template: String,
        /// How it has functions called, where it does and that is understood.
        calls: Option<CallForm>,
    },
    /// The folder has none.
    None,
    /// It cannot be used.
    Failed {
        /// For a person.
        reason: String,
    },
}

/// The line that answers a job.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase", tag = "answer")]
pub enum Answer {
    /// So many bytes of text follow.
    Text {
        /// How many.
        bytes: usize,
    },
    /// The template refuses the messages, or fails on them.
    Refused {
        /// The field of the request at fault.
        param: String,
        /// For a person.
        message: String,
    },
}
