//! What a sampler takes and gives; the CPU's host sampler is the reference for one on a device.

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
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, logprobs: None }
    }
}

/// What is drawn where no logit is a number: the computation went wrong, and the request with it.
pub const NO_TOKEN: u32 = u32::MAX;

/// A drawn token. Log-probabilities are of the model's own distribution (temperature 1, nothing cut), natural log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    /// Token id, or [`NO_TOKEN`].
    pub token: u32,
    /// Its log-probability, where asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens, descending.
    pub top: Vec<(u32, f32)>,
}
