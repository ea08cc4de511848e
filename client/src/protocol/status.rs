//! What the daemon is and does at the moment.

use super::error::Error;
use super::fields::{Fields, object};
use super::profile::ClockStatus;
use serde::{Deserialize, Serialize};

/// The daemon's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum State {
    /// The process has begun; interfaces answer.
    #[default]
    Starting,
    /// The model is being read.
    Loading,
    /// Requests are taken.
    Ready,
    /// Running requests finish; nothing new is taken.
    Draining,
    /// The model could not be loaded or the device failed; the reason says why.
    Failed,
}

impl State {
    /// The word on every interface.
    pub fn name(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Loading => "loading",
            State::Ready => "ready",
            State::Draining => "draining",
            State::Failed => "failed",
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a request sent now would be served well, and if not, why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Availability {
    /// Yes, with restrictions, or no.
    pub state: AvailabilityState,
    /// Empty when available.
    pub reason: String,
}

/// The three answers of [`Availability`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum AvailabilityState {
    /// As configured.
    Available,
    /// Served, but slower or with less than configured (fallback backend, full queue).
    Degraded,
    /// Not served.
    #[default]
    Unavailable,
}

/// Body of `GET /ready`; 200 when ready, else 503.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// The daemon's life.
    pub state: State,
    /// Share of the model loaded, 0 to 1.
    pub progress: f64,
    /// Why not ready; empty when ready.
    #[serde(default)]
    pub reason: String,
}

/// `GET /skipd/v1/status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// skipd's version.
    pub version: String,
    /// The daemon's life.
    pub state: State,
    /// Whether requests are served.
    pub availability: Availability,
    /// Share of the model loaded, 0 to 1.
    pub load_progress: f64,
    /// Milliseconds since the process started.
    pub uptime_ms: u64,
    /// From the start of the process to ready, milliseconds; null until then.
    #[serde(default)]
    pub startup_ms: Option<f64>,
    /// The model; null until it is known.
    #[serde(default)]
    pub model: Option<ModelStatus>,
    /// What computes; null until it is chosen.
    #[serde(default)]
    pub backend: Option<BackendStatus>,
    /// Tables in force, by their short names: a tier, `sha256:…`, or null where dense.
    #[serde(default)]
    pub tables: TableNames,
    /// Drift alarms that stand: a table skips far more or less than its tier stands for.
    #[serde(default)]
    pub alarms: Vec<String>,
    /// Table files that are passed over, and keys in them that look like tables' and are not read.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Shares of votes skipped since the start; null where nothing was voted on.
    #[serde(default)]
    pub measured_sparsity: Shares,
    /// Requests.
    #[serde(default)]
    pub queue: QueueStatus,
    /// Pages.
    #[serde(default)]
    pub cache: CacheStatus,
    /// Background work and its share of the time.
    #[serde(default)]
    pub background: BackgroundStatus,
    /// The board's clocks; null until they were looked at.
    #[serde(default)]
    pub clocks: Option<ClockStatus>,
    /// Memory that the model was counted with; null where nobody says what is free, and until the model is loaded.
    #[serde(default)]
    pub memory: Option<MemoryStatus>,
    /// How fast the weights came; null until the model is loaded.
    #[serde(default)]
    pub load: Option<LoadStatus>,
}

/// The loaded model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelStatus {
    /// The name requests use.
    pub name: String,
    /// `llama`, `qwen2`, …
    pub architecture: String,
    /// Longest prompt and answer together, tokens.
    pub context_length: u32,
    /// Vocabulary size.
    #[serde(default)]
    pub vocabulary: u32,
    /// Layers.
    #[serde(default)]
    pub layers: u32,
    /// SHA-256 over the safetensors files in name order, once computed.
    #[serde(default)]
    pub checkpoint_hash: Option<String>,
}

/// What computes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BackendStatus {
    /// `cpu` or `cuda`.
    pub name: String,
    /// Why this one.
    pub reason: String,
    /// Kernels in use, e.g. `avx512`.
    pub kernel_set: String,
    /// Threads of the CPU backend.
    #[serde(default)]
    pub threads: Option<u32>,
    /// Format of the KV cache.
    pub kv_format: String,
}

/// A short table name for each phase; null is dense.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableNames {
    /// For prompts.
    pub prefill: Option<String>,
    /// For answers.
    pub decode: Option<String>,
}

/// A share for each phase, in [0, 1].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// Of prefill tiles.
    pub prefill: Option<f64>,
    /// Of decode runs.
    pub decode: Option<f64>,
}

/// Requests now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Being computed.
    pub running: u32,
    /// Waiting for admission.
    pub waiting: u32,
    /// Longest queue before new requests are refused.
    pub limit: u32,
}

/// The KV cache now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStatus {
    /// Pages of 128 tokens in all.
    pub pages: u32,
    /// Pages that requests can have.
    pub free: u32,
    /// Of the free ones, those that hold beginnings of earlier prompts until somebody needs their room.
    #[serde(default)]
    pub cached: u32,
    /// Of the others, those that pinned prefixes hold.
    #[serde(default)]
    pub pinned: u32,
}

/// Bytes that the model was counted to take before it was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// By purpose: weights, KV pages, activations, …, and a reserve.
    pub counted: std::collections::BTreeMap<String, u64>,
    /// Their sum.
    pub total: u64,
    /// Free before.
    pub free_before: u64,
    /// Where it was free: `on the device`, `of the system's memory`, or under the limit of a control group.
    #[serde(default)]
    pub source: String,
}

/// The background class's share of the time while nothing else runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BackgroundStatus {
    /// Percent that it may compute; 100 is no limit.
    pub duty_percent: u32,
    /// Seconds that its steps took.
    pub step_seconds: f64,
    /// Seconds that it rested for its share.
    pub rest_seconds: f64,
}

/// How fast the weights came from their files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadStatus {
    /// Bytes of weights in the files.
    pub bytes: u64,
    /// From the first to the last, seconds.
    pub seconds: f64,
    /// The disk's part; null where weights are read in place, as on the CPU.
    #[serde(default)]
    pub reads: Option<ReadStatus>,
}

/// What was read of the weight files to be copied to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadStatus {
    /// Bytes.
    pub bytes: u64,
    /// Seconds in which they were being read: their rate is the disk's own.
    pub seconds: f64,
    /// Past the page cache; false where the file system refuses that.
    pub direct: bool,
}

/// `POST /skipd/v1/tokenize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizeRequest {
    /// Text, taken as it is (no template).
    pub text: String,
}

impl TokenizeRequest {
    /// Parses a body; the error names the field.
    pub fn from_json(body: &[u8]) -> Result<Self, Error> {
        let mut fields = Fields::new(object(body)?);
        let request = Self { text: fields.required("text")? };
        fields.end()?;
        Ok(request)
    }
}

/// Its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizeResponse {
    /// Token ids.
    pub tokens: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_to_tokenise_names_its_wrong_field() {
        assert_eq!(TokenizeRequest::from_json(br#"{"text": "a"}"#), Ok(TokenizeRequest { text: "a".into() }));
        for (body, param) in [(r#"{"text": 1}"#, "text"), ("{}", "text"), (r#"{"text": "a", "prompt": "b"}"#, "prompt")] {
            assert_eq!(TokenizeRequest::from_json(body.as_bytes()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }
}
