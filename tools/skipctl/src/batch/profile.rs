//! `--dump-profile`: what a batch took, in the keys of Edge-LLM's profile that skipd can fill.

use serde::Serialize;
use skip_client::protocol::Usage;
use std::time::Duration;

/// What the answers of a batch took together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// Prompts.
    pub prefill: Prefill,
    /// Tokens after the first of each answer.
    pub generation: Generation,
    /// From the first request to the last answer.
    pub wall_clock: WallClock,
}

/// Prompts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prefill {
    /// Prompts.
    pub total_runs: usize,
    /// Tokens taken from earlier prompts.
    pub reused_tokens: u64,
    /// Tokens computed.
    pub computed_tokens: u64,
    /// Of the computed ones.
    pub average_tokens_per_run: f64,
    /// Milliseconds from admission to the first token; requests at once share the device.
    pub average_time_per_run_ms: f64,
    /// Computed tokens a second of prefill.
    pub tokens_per_second: f64,
    /// Its inverse.
    pub average_time_per_token_ms: f64,
}

/// Further tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Generation {
    /// Answers.
    pub total_runs: usize,
    /// Tokens of all answers.
    pub generated_tokens: u64,
    /// Of an answer.
    pub average_tokens_per_run: f64,
    /// Tokens a second of one answer, without its first.
    pub tokens_per_second: f64,
    /// Its inverse.
    pub average_time_per_token_ms: f64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WallClock {
    /// Tokens of all answers.
    pub generated_tokens: u64,
    /// Milliseconds.
    pub total_time_ms: f64,
    /// Over all requests at once.
    pub tokens_per_second: f64,
    /// Its inverse.
    pub ms_per_token: f64,
}

/// A quotient, 0 of nothing.
fn per(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

impl Profile {
    /// Of the usages of all answers.
    pub fn of<'a>(usages: impl Iterator<Item = &'a Usage> + Clone, took: Duration) -> Self {
        let sum = |of: &dyn Fn(&Usage) -> f64| usages.clone().map(of).sum::<f64>();
        let runs = usages.clone().count();
        let reused = sum(&|u| f64::from(u.skipd.reused_tokens));
        let computed = sum(&|u| f64::from(u.prompt_tokens.saturating_sub(u.skipd.reused_tokens)));
        let prefill = sum(&|u| u.skipd.timings_ms.prefill);
        let generated = sum(&|u| f64::from(u.completion_tokens));
        let further = sum(&|u| f64::from(u.completion_tokens.saturating_sub(1)));
        let decode = sum(&|u| u.skipd.timings_ms.decode);
        let wall = took.as_secs_f64() * 1e3;
        Self {
            prefill: Prefill {
                total_runs: runs,
                reused_tokens: reused as u64,
                computed_tokens: computed as u64,
                average_tokens_per_run: per(computed, runs as f64),
                average_time_per_run_ms: per(prefill, runs as f64),
                tokens_per_second: per(computed * 1e3, prefill),
                average_time_per_token_ms: per(prefill, computed),
            },
            generation: Generation {
                total_runs: runs,
                generated_tokens: generated as u64,
                average_tokens_per_run: per(generated, runs as f64),
                tokens_per_second: per(further * 1e3, decode),
                average_time_per_token_ms: per(decode, further),
            },
            wall_clock: WallClock {
                generated_tokens: generated as u64,
                total_time_ms: wall,
                tokens_per_second: per(generated * 1e3, wall),
                ms_per_token: per(wall, generated),
            },
        }
    }
}

/// For people.
pub fn text(profile: &Profile) -> String {
    let Profile { prefill, generation, wall_clock } = profile;
    format!(
        "prefill: {} prompts, {} tokens computed, {} reused, {:.1} ms a prompt, {:.1} tokens/s\n\
         generation: {} tokens, {:.2} ms a token, {:.1} tokens/s of one answer\n\
         wall clock: {:.1} ms, {:.1} tokens/s",
        prefill.total_runs,
        prefill.computed_tokens,
        prefill.reused_tokens,
        prefill.average_time_per_run_ms,
        prefill.tokens_per_second,
        generation.generated_tokens,
        generation.average_time_per_token_ms,
        generation.tokens_per_second,
        wall_clock.total_time_ms,
        wall_clock.tokens_per_second
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip_client::protocol::{SkipdUsage, Timings};

    #[test]
    fn rates_are_of_all_answers_and_nothing_makes_no_nan() {
        let usage = |reused_tokens| Usage {
            prompt_tokens: 100,
            completion_tokens: 11,
            total_tokens: 111,
            skipd: SkipdUsage { reused_tokens, timings_ms: Timings { queue: 1.0, prefill: 50.0, decode: 20.0 }, ..SkipdUsage::default() },
        };
        let profile = Profile::of([usage(0), usage(50)].iter(), Duration::from_millis(220));
        assert_eq!((profile.prefill.computed_tokens, profile.prefill.reused_tokens, profile.prefill.tokens_per_second), (150, 50, 1500.0));
        assert_eq!((profile.generation.average_time_per_token_ms, profile.wall_clock.tokens_per_second), (2.0, 100.0));
        let nothing = serde_json::to_string(&Profile::of([].iter(), Duration::ZERO)).unwrap();
        assert!(!nothing.contains("null"), "{nothing}");
    }
}
