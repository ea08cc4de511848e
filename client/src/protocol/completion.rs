//! Answers of the OpenAI routes: whole completions, streamed chunks, the model list.

use super::finish::FinishReason;
use super::tools::{ToolCall, ToolCallDelta};
use super::usage::Usage;
use serde::{Deserialize, Serialize};

/// A whole chat completion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatCompletion {
    /// `chatcmpl-…`, unique in the process.
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// Unix seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// Exactly one.
    pub choices: Vec<ChatChoice>,
    /// Counts.
    pub usage: Usage,
}

/// The answer of a chat completion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatChoice {
    /// 0.
    pub index: u32,
    /// What the model said.
    pub message: Answered,
    /// Where asked for.
    #[serde(default)]
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

/// What a model said: text, calls, or both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    /// `assistant`.
    pub role: String,
    /// Text; null where there are calls alone.
    pub content: Option<String>,
    /// Calls of functions, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// A server-sent event of a chat completion. The first carries the role, the last with a choice the reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatChunk {
    /// `chatcmpl-…`, the same in every chunk.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: String,
    /// Unix seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// One, or none in the usage chunk.
    pub choices: Vec<ChatChunkChoice>,
    /// Only in the last chunk, and only with `stream_options.include_usage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// A piece of a chat answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatChunkChoice {
    /// 0.
    pub index: u32,
    /// What is new.
    pub delta: Delta,
    /// Log-probabilities of the tokens drawn since the last chunk, where asked for.
    #[serde(default)]
    pub logprobs: Option<ChatLogprobs>,
    /// Null until the answer ends.
    pub finish_reason: Option<FinishReason>,
}

/// What a chunk adds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Delta {
    /// `assistant`, in the first chunk only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Text, always whole UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// More of the calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallDelta>,
}

/// Log-probabilities of a chat answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatLogprobs {
    /// One entry a token, in order.
    pub content: Vec<LogprobEntry>,
}

/// A drawn token and the most likely ones; natural log, of the model's distribution after grammar, penalties and biases, at temperature 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogprobEntry {
    /// Its text; incomplete UTF-8 shows as U+FFFD.
    pub token: String,
    /// Its log-probability.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Option<Vec<u8>>,
    /// The most likely tokens, descending; empty unless asked for.
    #[serde(default)]
    pub top_logprobs: Vec<TopLogprob>,
}

/// One of the most likely tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopLogprob {
    /// Its text; incomplete UTF-8 shows as U+FFFD.
    pub token: String,
    /// Its log-probability.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Option<Vec<u8>>,
}

/// A text completion; streamed chunks have the same shape, with a null `finish_reason` until the last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// `cmpl-…`, unique in the process, the same in every chunk.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// Unix seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// One, or none in the usage chunk.
    pub choices: Vec<CompletionChoice>,
    /// In a whole answer always; in a stream only in the last chunk, with `stream_options.include_usage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// The text of a completion, or a piece of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletionChoice {
    /// 0.
    pub index: u32,
    /// Text, always whole UTF-8.
    pub text: String,
    /// Where asked for.
    #[serde(default)]
    pub logprobs: Option<TextLogprobs>,
    /// Null until the answer ends.
    pub finish_reason: Option<FinishReason>,
}

/// Log-probabilities in the older text shape: parallel lists, one entry a token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TextLogprobs {
    /// Text of each token.
    pub tokens: Vec<String>,
    /// Log-probability of each token.
    pub token_logprobs: Vec<f32>,
    /// The most likely tokens of each position, text → log-probability.
    pub top_logprobs: Vec<serde_json::Map<String, serde_json::Value>>,
    /// Where each token begins in the text, in characters.
    pub text_offset: Vec<u32>,
}

/// `GET /v1/models`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// The loaded model; empty while loading.
    pub data: Vec<ModelCard>,
}

/// One model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    /// The name requests use; `default` always works too.
    pub id: String,
    /// `model`.
    pub object: String,
    /// Unix seconds of loading.
    pub created: u64,
    /// `skipd`.
    pub owned_by: String,
    /// Longest prompt and answer together, tokens (vLLM's field).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u32>,
}
