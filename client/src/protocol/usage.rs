//! What a request cost and what it left out; true counts, always there.

use serde::{Deserialize, Serialize};

/// OpenAI's usage, with skipd's part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt, template included.
    pub prompt_tokens: u32,
    /// Tokens drawn and delivered; a token that ends the answer counts.
    pub completion_tokens: u32,
    /// The sum of both.
    pub total_tokens: u32,
    /// What attention skipped, and how long the phases took.
    #[serde(default)]
    pub skipd: SkipdUsage,
}

/// skipd's part of usage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SkipdUsage {
    /// The prompt's phase.
    pub prefill: PrefillUsage,
    /// The answer's phase.
    pub decode: DecodeUsage,
    /// Prompt tokens taken from an earlier prompt with the same beginning, not computed again.
    pub reused_tokens: u32,
    /// Wall-clock time of the phases.
    pub timings_ms: Timings,
}

/// What prefill used and left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PrefillUsage {
    /// The table the request had: its tier (`50%`), or `sha256:` and the first 12 digits of its hash; null: dense.
    pub table: Option<String>,
    /// Row `[first_length, S]` in force at the prompt's length; null where dense.
    pub row: Option<(u32, f32)>,
    /// Tiles voted on, over layers, heads and chunks; dense attention takes no votes.
    pub votes: u64,
    /// Of these, the tiles left out.
    pub skipped: u64,
}

/// What decode used and left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DecodeUsage {
    /// The table the request had, named as in prefill; null: dense.
    pub table: Option<String>,
    /// Runs voted on, over layers, heads and steps.
    pub votes: u64,
    /// Of these, the runs left out.
    pub skipped: u64,
}

/// Milliseconds a request spent in each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// From arrival to admission.
    pub queue: f64,
    /// From admission to the first token.
    pub prefill: f64,
    /// From the first token to the last.
    pub decode: f64,
}

fn share(skipped: u64, votes: u64) -> f64 {
    if votes == 0 { 0.0 } else { skipped as f64 / votes as f64 }
}

impl PrefillUsage {
    /// Share of votes skipped, in [0, 1]; 0 where nothing was voted on.
    pub fn share(&self) -> f64 {
        share(self.skipped, self.votes)
    }
}

impl DecodeUsage {
    /// Share of votes skipped, in [0, 1]; 0 where nothing was voted on.
    pub fn share(&self) -> f64 {
        share(self.skipped, self.votes)
    }
}

impl Usage {
    /// Time to first token: queue and prefill, milliseconds.
    pub fn ttft_ms(&self) -> f64 {
        self.skipd.timings_ms.queue + self.skipd.timings_ms.prefill
    }

    /// Prompt tokens computed per second of prefill; None where no time passed.
    pub fn prefill_rate(&self) -> Option<f64> {
        let computed = f64::from(self.prompt_tokens.saturating_sub(self.skipd.reused_tokens));
        rate(computed, self.skipd.timings_ms.prefill)
    }

    /// Tokens per second after the first; None for fewer than two tokens.
    pub fn decode_rate(&self) -> Option<f64> {
        rate(f64::from(self.completion_tokens.saturating_sub(1)), self.skipd.timings_ms.decode)
    }
}

fn rate(tokens: f64, ms: f64) -> Option<f64> {
    (tokens > 0.0 && ms > 0.0).then(|| tokens * 1e3 / ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_leave_out_reused_tokens_and_the_first_token() {
        let usage = Usage {
            prompt_tokens: 300,
            completion_tokens: 11,
            total_tokens: 311,
            skipd: SkipdUsage {
                prefill: PrefillUsage { votes: 8, skipped: 2, ..PrefillUsage::default() },
                reused_tokens: 100,
                timings_ms: Timings { queue: 5.0, prefill: 500.0, decode: 100.0 },
                ..SkipdUsage::default()
            },
        };
        assert_eq!(usage.prefill_rate(), Some(400.0));
        assert_eq!(usage.decode_rate(), Some(100.0));
        assert_eq!(usage.ttft_ms(), 505.0);
        assert_eq!(usage.skipd.prefill.share(), 0.25);
        assert_eq!(Usage::default().decode_rate(), None);
    }

    #[test]
    fn a_dense_request_still_has_every_field() {
        let value = serde_json::to_value(Usage::default()).unwrap();
        assert_eq!(
            value["skipd"],
            serde_json::json!({
                "prefill": {"table": null, "row": null, "votes": 0, "skipped": 0},
                "decode": {"table": null, "votes": 0, "skipped": 0},
                "reused_tokens": 0,
                "timings_ms": {"queue": 0.0, "prefill": 0.0, "decode": 0.0}
            })
        );
    }
}
