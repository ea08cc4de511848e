//! Job `price`: what every tier costs and gains on this device; its result is price.json, which `skipctl report` draws.

use super::error::Error;
use super::fields::{Fields, whole_paths};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Options of job `price`; all may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PriceOptions {
    /// Prompt lengths to time, in tokens; empty: the first length of each row of the tables, at most six of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lengths: Vec<usize>,
    /// Lengths at which accuracy is measured; empty: none is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accuracy_lengths: Vec<usize>,
    /// Items of each RULER task a length; None: 8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy_samples: Option<usize>,
    /// Rounds of each length and tier, in turn; None: 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<usize>,
    /// Tokens of an answer, which time decode; None: 32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_tokens: Option<u32>,
    /// Files and folders of text, on the daemon's machine, absolute; empty: what the system has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub corpus: Vec<String>,
    /// Chooses the texts.
    pub seed: u64,
    /// Names the run in a report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Write `skip_softmax_price_list` into the checkpoint's config.json.
    pub write: bool,
}

/// Most of each.
const MOST: usize = 64;

impl PriceOptions {
    /// Reads a job's options.
    ///
    /// # Errors
    /// Names the option that is unknown, of another type, or out of range.
    pub fn from_map(options: &Map<String, Value>) -> Result<Self, Error> {
        let mut fields = Fields::new(options.clone());
        let found = Self {
            lengths: fields.optional("lengths")?.unwrap_or_default(),
            accuracy_lengths: fields.optional("accuracy_lengths")?.unwrap_or_default(),
            accuracy_samples: fields.optional("accuracy_samples")?,
            rounds: fields.optional("rounds")?,
            decode_tokens: fields.optional("decode_tokens")?,
            corpus: fields.optional("corpus")?.unwrap_or_default(),
            seed: fields.optional("seed")?.unwrap_or_default(),
            label: fields.optional("label")?,
            write: fields.optional("write")?.unwrap_or_default(),
        };
        fields.end()?;
        for (name, lengths) in [("lengths", &found.lengths), ("accuracy_lengths", &found.accuracy_lengths)] {
            if lengths.len() > MOST || lengths.contains(&0) {
                return Err(Error::invalid(name, format!("at most {MOST} lengths above 0")));
            }
        }
        if found.rounds.is_some_and(|n| !(1..=100).contains(&n)) {
            return Err(Error::invalid("rounds", "from 1 to 100"));
        }
        if found.decode_tokens.is_some_and(|n| !(2..=1024).contains(&n)) {
            return Err(Error::invalid("decode_tokens", "from 2 to 1024"));
        }
        if found.accuracy_samples.is_some_and(|n| !(1..=1000).contains(&n)) {
            return Err(Error::invalid("accuracy_samples", "from 1 to 1000"));
        }
        whole_paths("corpus", &found.corpus)?;
        Ok(found)
    }
}

/// price.json.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Price {
    /// Version of this format: 1.
    pub format: u32,
    /// Tool and version.
    pub tool: String,
    /// ISO 8601.
    pub date: String,
    /// Names the run.
    #[serde(default)]
    pub label: String,
    /// The model's name.
    pub model: String,
    /// `llama`, `qwen2`, …
    #[serde(default)]
    pub architecture: String,
    /// Backend, device and kernels.
    pub device: String,
    /// How the clocks stood, and what that means for these numbers.
    #[serde(default)]
    pub clocks: String,
    /// SHA-256 over the weights.
    #[serde(default)]
    pub checkpoint_sha256: Option<String>,
    /// Times, a length and tier each; dense first.
    pub speed: Vec<PriceSpeed>,
    /// What tiers cost in accuracy, a length, tier and arm each.
    #[serde(default)]
    pub accuracy: Vec<PriceAccuracy>,
    /// The length from which skipping decode pays.
    #[serde(default)]
    pub break_even: Option<BreakEven>,
    /// Share and mass by layer, a phase each.
    #[serde(default)]
    pub layers: Vec<PriceLayers>,
}

/// One length under one tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PriceSpeed {
    /// Tokens of the prompt.
    pub length: usize,
    /// `dense`, or the tier in force in the phases that have it.
    pub tier: String,
    /// Time to the first token, milliseconds: the rounds' median. None of a tier that prefill does not have.
    #[serde(default)]
    pub ttft_ms: Option<f64>,
    /// Its smallest and largest.
    #[serde(default)]
    pub ttft_spread_ms: Option<[f64; 2]>,
    /// Time of a further token, likewise. None of a tier that decode does not have.
    #[serde(default)]
    pub tpot_ms: Option<f64>,
    /// Its smallest and largest.
    #[serde(default)]
    pub tpot_spread_ms: Option<[f64; 2]>,
    /// Attention's time in prefill, milliseconds; None where the backend does not tell, and of a tier that prefill does not have.
    #[serde(default)]
    pub attention_ms: Option<f64>,
    /// Share of tiles skipped in prefill.
    pub prefill_skipped: f64,
    /// Share of runs skipped in decode.
    pub decode_skipped: f64,
    /// Rounds.
    pub rounds: usize,
}

/// One length, tier and arm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PriceAccuracy {
    /// Tokens of the items.
    pub length: usize,
    /// The tier.
    pub tier: String,
    /// Which phases skipped: `prefill`, `decode` or `both`.
    pub arm: String,
    /// Dense score, 0 to 1.
    pub dense: f64,
    /// Score under the tier.
    pub score: f64,
    /// Mean paired drop.
    pub drop: f64,
    /// Its 95 % confidence interval.
    pub interval: [f64; 2],
    /// Items compared.
    pub items: usize,
}

/// Where skipping decode begins to pay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BreakEven {
    /// The shortest measured length from which on every length is faster skipping; None: none is.
    pub length: Option<usize>,
    /// The tier it was measured with.
    pub tier: String,
    /// Length, dense and skipping time of a token in milliseconds.
    pub measured: Vec<(usize, f64, f64)>,
}

/// Share and mass by layer at the deployed tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PriceLayers {
    /// `prefill` or `decode`.
    pub phase: String,
    /// The tier.
    pub tier: String,
    /// First lengths of the bins.
    pub bins: Vec<usize>,
    /// Share of tiles skipped, `[bin][layer]`.
    pub share: Vec<Vec<f64>>,
    /// Share of mass skipped, likewise.
    pub mass: Vec<Vec<f64>>,
}
