//! `price`: what every tier gains in time and costs in accuracy on this device, on real text, dense and skipping in turn.

use super::calibrate::{Texts, layers, refusal, today, write_key};
use super::{Job, asking, evaluate, hashed};
use crate::lifecycle::Stage;
use crate::state::{Daemon, Model};
use serde_json::{Map, Value};
use skip_client::protocol::{BreakEven, EvaluateOptions, Price, PriceAccuracy, PriceOptions, PriceSpeed, Selector};
use skip_client::{Error, ErrorKind};
use skip_engine::ask::ask;
use skip_engine::handle::TableSet;
use skip_tables::Phase;
use std::sync::Arc;

/// Lengths timed where none are named.
const LENGTHS: usize = 6;
/// Times that a disturbed round is run again.
const AGAIN: usize = 3;

/// What is to be timed.
pub struct Work {
    options: PriceOptions,
    /// Tokens of the longest prompt there may be.
    longest: usize,
    lengths: Vec<usize>,
    /// Name and tables; dense first.
    tiers: Vec<(String, TableSet)>,
    model: Arc<Model>,
}

/// Fewest tokens of a prompt.
const SHORTEST: usize = 16;

/// Tokens of the longest prompt that leaves room for so many drawn.
fn longest_prompt(request: usize, drawn: u32) -> Result<usize, Error> {
    let left = request.checked_sub(drawn as usize).filter(|left| *left >= SHORTEST);
    left.ok_or_else(|| {
        let most = request.saturating_sub(SHORTEST);
        Error::invalid(
            "decode_tokens",
            format!("{drawn}: the daemon's context is {request} tokens; at most {most} leave room for a prompt"),
        )
    })
}

/// What of a tier is timed: the phases that have it. Times of the other are dense ones, and would be told apart by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Timed {
    prefill: bool,
    decode: bool,
}

impl Timed {
    /// Dense is what both are held to.
    fn of(tables: &TableSet) -> Self {
        let dense = *tables == TableSet::default();
        Self { prefill: dense || tables.prefill.is_some(), decode: dense || tables.decode.is_some() }
    }

    /// Tokens that a request draws.
    fn drawn(self, wanted: u32) -> u32 {
        if self.decode { wanted } else { 1 }
    }
}

/// What one request took.
#[derive(Clone, Copy, Default)]
struct Sample {
    ttft_ms: f64,
    tpot_ms: f64,
    attention_ms: f64,
    prefill_skipped: f64,
    decode_skipped: f64,
}

impl Work {
    /// Checks the options against what is loaded.
    ///
    /// # Errors
    /// An option is wrong, the daemon is not ready, or the checkpoint has no ladder.
    pub fn of(daemon: &Daemon, options: &Map<String, Value>) -> Result<Self, Error> {
        let options = PriceOptions::from_map(options)?;
        let model = daemon.ready_model()?;
        let longest = longest_prompt(model.engine.longest_request() as usize, options.drawn())?;
        for (option, lengths) in [("lengths", &options.lengths), ("accuracy_lengths", &options.accuracy_lengths)] {
            if let Some(length) = lengths.iter().find(|length| !(SHORTEST..=longest).contains(length)) {
                return Err(Error::invalid(
                    option,
                    format!("{length}: from {SHORTEST} to {longest} tokens, with {} for the answer", options.drawn()),
                ));
            }
        }
        Ok(Self { options, longest, lengths: Vec::new(), tiers: Vec::new(), model })
    }

    /// Times, scores, and puts it together.
    pub fn run(mut self, daemon: &Daemon, job: &Job) -> Result<Value, Error> {
        let cancelled = || job.is_cancelled() || daemon.life.stage() == Stage::Draining;
        job.advance("reading texts".into(), 0.0);
        let (vocabulary, of) = (self.model.engine.model().vocabulary as usize, (self.options.corpus.as_slice(), self.options.seed));
        let texts = Texts::of_corpus(&daemon.config.model, vocabulary, of, &cancelled)?;
        hashed(&self.model, &cancelled)?;
        self.choose()?;
        let speed_part = if self.options.accuracy_lengths.is_empty() { 1.0 } else { 0.4 };
        let (mut speed, mut disturbed) = (Vec::new(), 0);
        let work: f64 = self.lengths.iter().map(|&length| length as f64).sum();
        let mut done = 0.0;
        for &length in &self.lengths {
            let prompt = texts.one(length, &cancelled).map_err(|error| refusal(error).at("corpus"))?;
            let at = |part: f64| speed_part * (done + part * length as f64) / work;
            let (found, again) =
                self.time(&prompt, &|tier, part| job.advance(format!("timing {length} tokens, {tier}"), at(part)), &cancelled)?;
            (disturbed, done) = (disturbed + again, done + length as f64);
            speed.extend(found);
        }
        let break_even = self.break_even(&speed);
        let mut accuracy = Vec::new();
        for (i, &length) in self.options.accuracy_lengths.iter().enumerate() {
            let part = |tier: usize| {
                speed_part
                    + (1.0 - speed_part) * (i as f64 + tier as f64 / self.tiers.len() as f64) / self.options.accuracy_lengths.len() as f64
            };
            for (n, (tier, _)) in self.tiers.iter().enumerate().skip(1) {
                job.advance(format!("scoring {length} tokens, {tier}"), part(n));
                accuracy.extend(self.score(daemon, job, length, tier)?);
            }
        }
        let status = self.model.engine.status();
        let device = status.backend.as_ref().map(|b| format!("{}: {}, {}", b.name, b.device, b.kernel_set)).unwrap_or_default();
        let note = if disturbed > 0 {
            format!("{disturbed} rounds were disturbed by other requests and are in the numbers")
        } else {
            String::new()
        };
        let price = Price {
            format: 1,
            tool: concat!("skipd ", env!("CARGO_PKG_VERSION")).into(),
            date: today(),
            label: self.options.label.clone().unwrap_or_default(),
            model: self.model.name.clone(),
            architecture: format!("{}, {} layers", self.model.family, self.model.layers),
            device,
            clocks: note,
            checkpoint_sha256: self.model.tables.checkpoint_hash(),
            speed,
            accuracy,
            break_even,
            layers: layers::of_last_calibration(&daemon.config.state_dir, &self.model.tables),
        };
        if self.options.write {
            let list = serde_json::to_value(&price.speed).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
            // What was measured is worth more than the note of it.
            if let Err(error) = write_key(&self.model.tables.paths(), "skip_softmax_price_list", list) {
                tracing::warn!(%error, "the price list is not in the checkpoint");
            }
        }
        serde_json::to_value(price).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
    }

    /// The tiers that there are, and the lengths where none were named.
    fn choose(&mut self) -> Result<(), Error> {
        let model = &self.model;
        let (ladders, mut tiers) = (model.tables.tiers(), vec![("dense".to_owned(), TableSet::default())]);
        let mut names: Vec<String> =
            ladders.prefill.iter().chain(&ladders.decode).filter(|tier| tier.reached).map(|tier| tier.name.clone()).collect();
        names.sort_by_key(|name| name.trim_end_matches('%').parse::<f64>().map_or(u64::MAX, |share| (1000.0 * share) as u64));
        names.dedup();
        for name in names {
            let [prefill, decode] = Phase::ALL.map(|phase| model.tables.resolve(phase, &Selector::Tier(name.clone())).unwrap_or_default());
            tiers.push((name, TableSet { prefill, decode }));
        }
        if tiers.len() == 1 {
            return Err(Error::new(ErrorKind::Unsupported, "the checkpoint has no ladder with a reached tier: calibrate first"));
        }
        let (longest, mut lengths) = (self.longest, self.options.lengths.clone());
        if lengths.is_empty() {
            let rows = ladders.prefill.iter().chain(&ladders.decode).flat_map(|tier| &tier.rows);
            let mut firsts: Vec<usize> = rows.map(|(first, _)| *first as usize).filter(|first| (128..=longest).contains(first)).collect();
            firsts.sort_unstable();
            firsts.dedup();
            let last = firsts.len().saturating_sub(1);
            let most = LENGTHS.min(firsts.len());
            lengths = (0..most).map(|i| firsts[i * last / (most - 1).max(1)]).collect();
        }
        lengths.sort_unstable();
        lengths.dedup();
        (self.tiers, self.lengths) = (tiers, lengths);
        Ok(())
    }

    /// Every tier's rounds on one prompt, in turn; and how many of them other requests disturbed.
    fn time(&self, prompt: &[u32], at: &dyn Fn(&str, f64), cancelled: &dyn Fn() -> bool) -> Result<(Vec<PriceSpeed>, usize), Error> {
        let rounds = self.options.rounds.unwrap_or(3);
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); self.tiers.len()];
        let mut disturbed = 0;
        // Round 0 warms up.
        for round in 0..=rounds {
            for (i, (name, tables)) in self.tiers.iter().enumerate() {
                at(name, (round as f64 + i as f64 / self.tiers.len() as f64) / (rounds + 1) as f64);
                let mut tries = 0;
                let sample = loop {
                    let (sample, alone) = self.sample(prompt, tables, cancelled)?;
                    tries += 1;
                    if alone || tries > AGAIN {
                        disturbed += usize::from(!alone && round > 0);
                        break sample;
                    }
                };
                if round > 0 {
                    samples[i].push(sample);
                }
            }
        }
        let attends = self.model.engine.status().attention_seconds > 0.0;
        let row = |((tier, tables), samples): (&(String, TableSet), &Vec<Sample>)| {
            let timed = Timed::of(tables);
            let of = |value: fn(&Sample) -> f64| {
                let mut all: Vec<f64> = samples.iter().map(value).collect();
                all.sort_by(f64::total_cmp);
                (all[all.len() / 2], [all[0], all[all.len() - 1]])
            };
            let ((ttft_ms, ttft_spread_ms), (tpot_ms, tpot_spread_ms)) = (of(|s| s.ttft_ms), of(|s| s.tpot_ms));
            PriceSpeed {
                length: prompt.len(),
                tier: tier.clone(),
                ttft_ms: timed.prefill.then_some(ttft_ms),
                ttft_spread_ms: timed.prefill.then_some(ttft_spread_ms),
                tpot_ms: timed.decode.then_some(tpot_ms),
                tpot_spread_ms: timed.decode.then_some(tpot_spread_ms),
                attention_ms: (attends && timed.prefill).then(|| of(|s| s.attention_ms).0),
                prefill_skipped: of(|s| s.prefill_skipped).0,
                decode_skipped: of(|s| s.decode_skipped).0,
                rounds,
            }
        };
        Ok((self.tiers.iter().zip(&samples).map(row).collect(), disturbed))
    }

    /// One request, and whether nothing else ran beside it.
    fn sample(&self, prompt: &[u32], tables: &TableSet, cancelled: &dyn Fn() -> bool) -> Result<(Sample, bool), Error> {
        let drawn = Timed::of(tables).drawn(self.options.drawn());
        let before = self.model.engine.status();
        let answer = ask(&self.model.engine, asking::request(prompt.to_vec(), drawn, tables.clone()), cancelled).map_err(asking::failed)?;
        let (after, usage) = (self.model.engine.status(), answer.finished.usage);
        let alone = before.running == 0 && after.prompt_tokens.saturating_sub(before.prompt_tokens) == prompt.len() as u64;
        let ms = |seconds: f64| 1e3 * seconds;
        let sample = Sample {
            ttft_ms: ms(usage.prefill_time.as_secs_f64()),
            tpot_ms: ms(usage.decode_time.as_secs_f64()) / f64::from(drawn.saturating_sub(1).max(1)),
            attention_ms: ms(after.attention_seconds - before.attention_seconds),
            prefill_skipped: usage.prefill.counters.share(),
            decode_skipped: usage.decode.counters.share(),
        };
        Ok((sample, alone))
    }

    /// From the times of the lowest tier that decode has: the shortest length from which on every length gains.
    fn break_even(&self, speed: &[PriceSpeed]) -> Option<BreakEven> {
        let (tier, _) = self.tiers.iter().find(|(_, tables)| tables.decode.is_some())?;
        let of = |name: &str, length: usize| speed.iter().find(|s| s.tier == name && s.length == length)?.tpot_ms;
        let measured: Vec<(usize, f64, f64)> =
            self.lengths.iter().filter_map(|&length| Some((length, of("dense", length)?, of(tier, length)?))).collect();
        let gains = measured.iter().rev().take_while(|(_, dense, skip)| skip < dense).last();
        Some(BreakEven { length: gains.map(|(length, ..)| *length), tier: tier.clone(), measured })
    }

    /// RULER at a length, dense and under a tier.
    fn score(&self, daemon: &Daemon, job: &Job, length: usize, tier: &str) -> Result<Vec<PriceAccuracy>, Error> {
        let options = EvaluateOptions {
            max_context: Some(length),
            tier: Some(tier.to_owned()),
            samples: self.options.accuracy_samples.unwrap_or(8),
            corpus: self.options.corpus.clone(),
            seed: self.options.seed,
            ..EvaluateOptions::default()
        };
        let found = evaluate::Work::with(daemon, options)?.results(daemon, job, false)?;
        let row = |arm: &skip_engine::evaluate::results::ArmScores| {
            let drop = arm.gate.as_ref()?.groups.first()?.kept;
            Some(PriceAccuracy {
                length,
                tier: tier.to_owned(),
                arm: arm.arm.name().into(),
                dense: drop.dense,
                score: drop.arm,
                drop: drop.drop,
                interval: drop.interval,
                items: drop.n,
            })
        };
        Ok(found.results.arms.iter().filter_map(row).collect())
    }
}

trait Drawn {
    fn drawn(&self) -> u32;
}

impl Drawn for PriceOptions {
    fn drawn(&self) -> u32 {
        self.decode_tokens.unwrap_or(32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip_engine::handle::NamedTable;
    use skip_tables::ScaleTable;

    #[test]
    fn an_answer_longer_than_the_context_is_refused_and_wraps_nothing() {
        assert_eq!(longest_prompt(4096, 32).unwrap(), 4064);
        for (request, drawn) in [(31, 32), (32, 32), (40, 32), (0, 2)] {
            let error = longest_prompt(request, drawn).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("decode_tokens"), "{error}");
        }
        assert_eq!(longest_prompt(48, 32).unwrap(), SHORTEST);
    }

    #[test]
    fn a_tier_is_timed_in_the_phases_that_have_it() {
        let table = ScaleTable::new(vec![(16, 2.0).into()], None).unwrap();
        let hash = table.digest().to_string();
        let table = Some(Arc::new(NamedTable { table, tier: None, origin: "a test".into(), hash }));
        let of = |prefill: bool, decode: bool| {
            Timed::of(&TableSet { prefill: table.clone().filter(|_| prefill), decode: table.clone().filter(|_| decode) })
        };
        assert_eq!(of(false, false), Timed { prefill: true, decode: true }, "dense");
        for (prefill, decode) in [(true, false), (false, true), (true, true)] {
            assert_eq!(of(prefill, decode), Timed { prefill, decode });
        }
        assert_eq!((of(true, false).drawn(32), of(false, true).drawn(32)), (1, 32), "no answer is drawn to be left out");
    }
}
