//! How many prompt tokens a step can take: as many as the last steps' speed gets done in the time budget.

use skip_kernels::PAGE;
use std::time::Duration;

/// Weight of the newest measurement.
const NEWEST: f64 = 0.5;

/// Seconds a prompt token and a decode step take, as last seen.
#[derive(Debug)]
pub(super) struct Speed {
    budget: f64,
    fixed: Option<usize>,
    longest: usize,
    prefill: Option<f64>,
    decode: f64,
}

impl Speed {
    /// `fixed` is a chunk that follows nothing; `longest` bounds every chunk. Both are multiples of 128.
    pub fn new(budget: Duration, fixed: Option<usize>, longest: usize) -> Self {
        Self { budget: budget.as_secs_f64(), fixed, longest, prefill: None, decode: 0.0 }
    }

    /// Prompt tokens of the next step, at least one page; with decodes in the step only half of the budget, so that their streams stay smooth.
    pub fn tokens(&self, decodes: usize) -> usize {
        if let Some(chunk) = self.fixed {
            return chunk;
        }
        let budget = if decodes > 0 { self.budget / 2.0 - self.decode } else { self.budget };
        // The first chunk of all is a page: nothing is known yet.
        let tokens = self.prefill.map_or(PAGE, |seconds| (budget.max(0.0) / seconds.max(1e-9)) as usize);
        tokens.clamp(PAGE, self.longest)
    }

    /// Where a chunk that begins at `start` with `tokens` to spend ends: the prompt's end, or a multiple of 128 beyond `start`.
    pub fn chunk_end(start: usize, tokens: usize, prompt: usize) -> usize {
        let end = start + tokens;
        if end >= prompt {
            return prompt;
        }
        (end / PAGE * PAGE).max((start / PAGE + 1) * PAGE).min(prompt)
    }

    /// A step of `prefill` prompt tokens and `decodes` decoded ones took `seconds`.
    pub fn learn(&mut self, prefill: usize, decodes: usize, seconds: f64) {
        let blend = |old: f64, new: f64| old + NEWEST * (new - old);
        if prefill == 0 {
            self.decode = blend(self.decode, seconds);
            return;
        }
        // Short ends of prompts say little about a chunk's speed.
        if prefill >= PAGE / 2 {
            let decode = if decodes > 0 { self.decode.min(seconds / 2.0) } else { 0.0 };
            let new = (seconds - decode) / prefill as f64;
            self.prefill = Some(self.prefill.map_or(new, |old| blend(old, new)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_end_at_multiples_of_a_page_or_at_the_prompts_end() {
        assert_eq!(Speed::chunk_end(0, 300, 1000), 256);
        assert_eq!(Speed::chunk_end(256, 100, 1000), 384, "never empty");
        assert_eq!(Speed::chunk_end(896, 300, 1000), 1000);
        assert_eq!(Speed::chunk_end(0, 128, 100), 100);
    }

    #[test]
    fn chunks_follow_speed_within_the_budget() {
        let mut speed = Speed::new(Duration::from_millis(500), None, 2048);
        assert_eq!(speed.tokens(0), PAGE);
        speed.learn(128, 0, 0.128);
        assert_eq!(speed.tokens(0), 500);
        speed.learn(384, 0, 0.384 * 3.0);
        assert!((245..=250).contains(&speed.tokens(0)), "slower: {}", speed.tokens(0));
        assert!((PAGE..130).contains(&speed.tokens(3)), "half beside decodes: {}", speed.tokens(3));
    }

    #[test]
    fn a_fixed_chunk_is_deaf_to_speed() {
        let mut speed = Speed::new(Duration::from_millis(500), Some(256), 256);
        speed.learn(256, 1, 100.0);
        assert_eq!(speed.tokens(1), 256);
    }
}
