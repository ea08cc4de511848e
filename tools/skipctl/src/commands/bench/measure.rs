//! The measurements: rounds in which every mode has its turn, and what each request said and took.

use crate::failure::Failure;
use serde::Serialize;
use skip_client::protocol::{RequestTables, Selector, Usage};
use skip_client::{Client, Error, ErrorKind, StreamEvent};
use std::time::Instant;

/// A pair of tables; None keeps the one in force.
pub struct Mode {
    /// `dense` or `skip`.
    pub name: &'static str,
    /// Of prompts.
    pub prefill: Option<Selector>,
    /// Of answers.
    pub decode: Option<Selector>,
}

/// What is measured.
pub struct Plan<'a> {
    /// Prompt lengths, tokens.
    pub prompts: &'a [u32],
    /// Tokens of an answer.
    pub tokens: u32,
    /// Measured rounds, behind one that warms up.
    pub rounds: u32,
    /// Requests at once.
    pub concurrency: &'a [u32],
    /// Tokens that prompts are taken from.
    pub text: &'a [u32],
    /// In turn.
    pub modes: &'a [Mode],
}

/// One prompt length, concurrency and mode; times in milliseconds.
#[derive(Debug, Serialize)]
pub struct Run {
    /// `dense` or `skip`.
    pub mode: &'static str,
    /// Requests at once.
    pub concurrency: u32,
    /// Prompt tokens.
    pub input_len: u32,
    /// Requests measured.
    pub requests: usize,
    /// Tables as usage names them; null: dense.
    pub tables: [Option<String>; 2],
    /// From arrival to the first token.
    pub ttft_ms_p50: f64,
    /// The same, 99th percentile (of few: nearly the worst).
    pub ttft_ms_p99: f64,
    /// Between pieces of text as they came to this client.
    pub itl_ms_p50: f64,
    /// The same, 99th percentile.
    pub itl_ms_p99: f64,
    /// A request's mean time a token after the first.
    pub tpot_ms_p50: f64,
    /// Half of what lies between the quickest and the slowest request, as a share of the middle: first token, further tokens.
    pub spread: [f64; 2],
    /// Tokens generated a second, over all requests of a turn.
    pub throughput_tok_s: f64,
    /// From sending to the end, as this client sees it.
    pub e2e_latency_ms_p50: f64,
    /// Prompt tokens a second while a prompt is computed.
    pub prefill_tok_s: f64,
    /// Tokens a second of one answer.
    pub decode_tok_s: f64,
    /// Shares of votes skipped.
    pub sparsity: Sparsity,
}

/// Shares of votes skipped, in [0, 1].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sparsity {
    /// Of prefill tiles.
    pub prefill: f64,
    /// Of decode runs.
    pub decode: f64,
}

/// One request.
struct Sample {
    usage: Usage,
    gaps: Vec<f64>,
    latency: f64,
}

impl Plan<'_> {
    /// Measures everything; `progress` hears a line now and then.
    pub async fn run(&self, client: &Client, mut progress: impl FnMut(&str)) -> Result<Vec<Run>, Failure> {
        let mut runs = Vec::new();
        for &concurrency in self.concurrency {
            for &prompt in self.prompts {
                progress(&format!("{prompt} prompt tokens, {concurrency} at once"));
                let mut seen: Vec<(Vec<Sample>, Vec<f64>)> = self.modes.iter().map(|_| Default::default()).collect();
                for round in 0..=self.rounds {
                    for (mode, (samples, rates)) in self.modes.iter().zip(&mut seen) {
                        let began = Instant::now();
                        let turn = self.turn(client, mode, prompt, concurrency, round).await?;
                        let tokens: u32 = turn.iter().map(|sample| sample.usage.completion_tokens).sum();
                        if round > 0 {
                            rates.push(f64::from(tokens) / began.elapsed().as_secs_f64().max(1e-9));
                            samples.extend(turn);
                        }
                    }
                }
                let modes = self.modes.iter().zip(seen);
                runs.extend(modes.map(|(mode, (samples, rates))| summary(mode.name, concurrency, prompt, &samples, &rates)));
            }
        }
        Ok(runs)
    }

    /// Requests at once; all of them must end as asked.
    async fn turn(&self, client: &Client, mode: &Mode, prompt: u32, concurrency: u32, round: u32) -> Result<Vec<Sample>, Failure> {
        let requests: Vec<_> = (0..concurrency)
            .map(|i| {
                // Every request begins elsewhere in the text, so that nothing of it can be known from before.
                let from = (round * concurrency + i) as usize * 641;
                let tokens: Vec<u32> = self.text.iter().cycle().skip(from % self.text.len()).take(prompt as usize).copied().collect();
                let tables = RequestTables { prefill: mode.prefill.clone(), decode: mode.decode.clone() };
                let request = client.clone();
                let answer = self.tokens;
                tokio::spawn(async move { one(&request, tokens, answer, tables).await })
            })
            .collect();
        let mut samples = Vec::new();
        for request in requests {
            let joined = request.await.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
            samples.push(joined?);
        }
        Ok(samples)
    }
}

async fn one(client: &Client, prompt: Vec<u32>, tokens: u32, tables: RequestTables) -> Result<Sample, Error> {
    let began = Instant::now();
    let mut request = client.complete(prompt).max_tokens(tokens).temperature(0.0).ignore_eos(true).prefix_reuse(false);
    if tables != RequestTables::default() {
        request = request.tables(tables);
    }
    let mut generation = request.send().await?;
    let (mut last, mut gaps) = (None, Vec::new());
    while let Some(event) = generation.next().await {
        match event? {
            StreamEvent::Text { .. } => {
                let now = Instant::now();
                gaps.extend(last.replace(now).map(|before: Instant| (now - before).as_secs_f64() * 1e3));
            }
            StreamEvent::Finished { reason, usage, error } => {
                let early = reason.error_kind().map(|kind| Error::new(kind, format!("a request ended early: {reason}")));
                return match error.or(early) {
                    Some(error) => Err(error),
                    None => Ok(Sample { usage, gaps, latency: began.elapsed().as_secs_f64() * 1e3 }),
                };
            }
            _ => {}
        }
    }
    Err(Error::new(ErrorKind::Disconnected, "the stream broke off before its terminal event"))
}

fn summary(mode: &'static str, concurrency: u32, input_len: u32, samples: &[Sample], rates: &[f64]) -> Run {
    let values = |of: &dyn Fn(&Sample) -> f64| samples.iter().map(of).collect::<Vec<f64>>();
    let ttft = values(&|s| s.usage.ttft_ms());
    let tpot = values(&|s| s.usage.decode_rate().map_or(0.0, |rate| 1e3 / rate));
    let gaps: Vec<f64> = samples.iter().flat_map(|s| s.gaps.iter().copied()).collect();
    let share = |of: &dyn Fn(&Usage) -> (u64, u64)| {
        let (votes, skipped) = samples.iter().map(|s| of(&s.usage)).fold((0, 0), |(v, s), (votes, skipped)| (v + votes, s + skipped));
        if votes == 0 { 0.0 } else { skipped as f64 / votes as f64 }
    };
    let spread = |values: &[f64]| (percentile(values, 1.0) - percentile(values, 0.0)) / 2.0 / percentile(values, 0.5).max(1e-9);
    let tables = samples.first().map_or([None, None], |s| [s.usage.skipd.prefill.table.clone(), s.usage.skipd.decode.table.clone()]);
    Run {
        mode,
        concurrency,
        input_len,
        requests: samples.len(),
        tables,
        ttft_ms_p50: percentile(&ttft, 0.5),
        ttft_ms_p99: percentile(&ttft, 0.99),
        itl_ms_p50: percentile(&gaps, 0.5),
        itl_ms_p99: percentile(&gaps, 0.99),
        tpot_ms_p50: percentile(&tpot, 0.5),
        spread: [spread(&ttft), spread(&tpot)],
        throughput_tok_s: percentile(rates, 0.5),
        e2e_latency_ms_p50: percentile(&values(&|s| s.latency), 0.5),
        prefill_tok_s: percentile(&values(&|s| s.usage.prefill_rate().unwrap_or(0.0)), 0.5),
        decode_tok_s: percentile(&values(&|s| s.usage.decode_rate().unwrap_or(0.0)), 0.5),
        sparsity: Sparsity {
            prefill: share(&|u| (u.skipd.prefill.votes, u.skipd.prefill.skipped)),
            decode: share(&|u| (u.skipd.decode.votes, u.skipd.decode.skipped)),
        },
    }
}

/// Nearest rank, the lower middle of an even number; 0 of nothing.
fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank - 1).copied().unwrap_or(0.0)
}

/// The daemon's own clocks, where its metrics have them.
pub struct Counters {
    steps: f64,
    attention: f64,
}

impl Counters {
    /// None over a bus, or where the backend does not time attention.
    pub async fn read(client: &Client) -> Option<Self> {
        let text = client.metrics().await.ok()?;
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        Some(Self { steps: value("skipd_step_seconds_total ")?, attention: value("skipd_attention_seconds_total ")? })
    }

    /// Attention's share of the time in steps between two readings.
    pub fn attention_share(&self, after: &Self) -> Option<f64> {
        let (steps, attention) = (after.steps - self.steps, after.attention - self.attention);
        (steps > 0.0 && attention > 0.0).then(|| attention / steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        assert_eq!(percentile(&[3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(percentile(&[4.0, 1.0, 3.0, 2.0], 0.5), 2.0);
        assert_eq!(percentile(&[4.0, 1.0, 3.0, 2.0], 0.99), 4.0);
        assert_eq!((percentile(&[5.0, 7.0], 0.0), percentile(&[5.0, 7.0], 1.0), percentile(&[], 0.5)), (5.0, 7.0, 0.0));
    }

    #[test]
    fn attention_is_a_share_of_what_passed_between_two_readings() {
        let (before, after) = (Counters { steps: 1.0, attention: 0.5 }, Counters { steps: 3.0, attention: 1.0 });
        assert_eq!(before.attention_share(&after), Some(0.25));
        assert_eq!(before.attention_share(&before), None);
    }
}
