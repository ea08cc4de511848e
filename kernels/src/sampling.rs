//! What a sampler takes and gives; the CPU's host sampler is the reference for one on a device.

use std::sync::Arc;

/// How one token is drawn. Defaults are greedy with nothing cut.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep this many most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this times the most likely; 0 drops none.
    pub min_p: f32,
    /// The draw depends on (seed, position) alone: not on batch, load or what was drawn before.
    pub seed: u64,
    /// How many most likely tokens to report beside the drawn one; None reports nothing.
    pub logprobs: Option<u8>,
    /// Changes to the logits before anything else, of this one token; None: none.
    pub edits: Option<Arc<LogitEdits>>,
}

/// What is changed in a row of logits before a token is drawn and before log-probabilities are taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogitEdits {
    /// Token i may be drawn where bit i % 32 of word i / 32 is set; tokens behind the last word may not. None: every token may.
    pub allowed: Option<Vec<u32>>,
    /// Added to a token's logit; no token twice.
    pub added: Vec<(u32, f32)>,
}

impl LogitEdits {
    /// Whether a token may be drawn.
    pub fn allows(&self, id: usize) -> bool {
        self.allowed.as_ref().is_none_or(|words| words.get(id / 32).is_some_and(|word| word >> (id % 32) & 1 == 1))
    }

    /// The row with its changes. Tokens that it does not have are passed over.
    pub fn applied(&self, logits: &[f32]) -> Vec<f32> {
        let mut row: Vec<f32> = logits.iter().enumerate().map(|(id, &x)| if self.allows(id) { x } else { f32::NEG_INFINITY }).collect();
        for &(id, bias) in &self.added {
            if let Some(x) = row.get_mut(id as usize) {
                *x += bias;
            }
        }
        row
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, logprobs: None, edits: None }
    }
}

/// What is drawn where no logit is a number: the computation went wrong, and the request with it.
pub const NO_TOKEN: u32 = u32::MAX;

/// A drawn token. Log-probabilities are of the logits at temperature 1 with nothing cut but what [`LogitEdits`] change, natural log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    /// Token id, or [`NO_TOKEN`].
    pub token: u32,
    /// Its log-probability, where asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens, descending.
    pub top: Vec<(u32, f32)>,
}
