//! Measuring a checkpoint, bin by bin, through the engine that serves it: its requests are the background's, and whoever asks for an answer comes
//! first.

use super::bins::Bin;
use super::record::{BinRecord, PromptRecord, Votes, votes_record};
use super::settle::settle;
use crate::EngineHandle;
use crate::ask::{AskError, ask, background};
use crate::handle::{ClientId, Request, TableSet};
use crate::measured::Measured;
use skip_tables::{Phase, Tier};
use std::time::Instant;

/// Of a bin's time, what measuring is; the rest settles its tiers.
const MEASURING: f64 = 0.6;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Prefill, decode, or both.
    pub phases: Vec<Phase>,
    /// In ascending order.
    pub bins: Vec<Bin>,
    /// The ladder.
    pub tiers: Vec<Tier>,
    /// Tokens drawn behind each prompt, whose votes are decode's.
    pub decode_tokens: u32,
    /// Whose requests these are.
    pub client: ClientId,
}

/// A text to measure, of its bin's length.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// What text it is of.
    pub source: String,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct At {
    /// The bin.
    pub bin: Bin,
    /// Which of its prompts, from 0, and of how many.
    pub prompt: (usize, usize),
    /// Of all work, 0 to 1.
    pub done: f64,
}

/// Who runs it: gives the texts, keeps what was found, is told how far it is, and may end it.
pub trait Host {
    /// The prompts of a bin: the same ones whenever it is asked.
    ///
    /// # Errors
    /// Why there are none.
    fn prompts(&mut self, bin: Bin) -> Result<Vec<Prompt>, CalibrateError>;
    /// A bin that an earlier run has measured with the same settings; what it gives is trusted ([`BinRecord::is_of`](super::record::BinRecord::is_of)).
    fn kept(&mut self, bin: Bin) -> Option<BinRecord>;
    /// Keeps a bin.
    ///
    /// # Errors
    /// Why not, in words.
    fn keep(&mut self, record: &BinRecord) -> Result<(), String>;
    /// How far it is.
    fn at(&mut self, at: At);
    /// It is to end.
    fn is_cancelled(&self) -> bool;
}

/// Why there are no tables.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// It was told to end.
    #[error("cancelled")]
    Cancelled,
    /// The cache holds no prompt that long.
    #[error(
        "max-seqlen {wanted}: the daemon's context is {context} tokens, {drawn} of which decode takes (a larger --kv-tokens of skipd, where the model has it, or a smaller max-seqlen)"
    )]
    TooLong {
        /// The longest prompt.
        wanted: usize,
        /// What the daemon holds.
        context: usize,
        /// Tokens drawn behind it.
        drawn: u32,
    },
    /// No layer votes.
    #[error("every layer of this checkpoint has a sliding window: none votes, and there is nothing to skip")]
    NoVotes,
    /// The prompts cannot be had.
    #[error("{0}")]
    Prompts(String),
    /// A prompt could not be measured.
    #[error(transparent)]
    Asked(AskError),
    /// What was found cannot be kept.
    #[error("{0}")]
    Keep(String),
}

/// Measures every bin that is not known yet; gives them all, in their order.
///
/// # Errors
/// [`CalibrateError`]; bins that were kept stay so.
pub fn run(engine: &EngineHandle, settings: &Settings, host: &mut dyn Host) -> Result<Vec<BinRecord>, CalibrateError> {
    let longest = settings.bins.last().map_or(0, |bin| bin.end.saturating_sub(1));
    settings.fits(longest, engine.longest_request() as usize)?;
    let cost: Vec<f64> = settings.bins.iter().map(|bin| cost(bin.first.midpoint(bin.end))).collect();
    let (all, mut before) = (cost.iter().sum::<f64>().max(1.0), 0.0);
    let mut records = Vec::new();
    for (&bin, cost) in settings.bins.iter().zip(cost) {
        let record = match host.kept(bin) {
            Some(record) => record,
            None => {
                let record = measure_bin(engine, settings, bin, host, &|part| (before + part * cost) / all)?;
                host.keep(&record).map_err(CalibrateError::Keep)?;
                record
            }
        };
        before += cost;
        records.push(record);
    }
    Ok(records)
}

/// Work of a prompt, in tokens of a short one: attention grows with the square.
fn cost(length: usize) -> f64 {
    length as f64 * (1.0 + length as f64 / 16_384.0)
}

fn measure_bin(
    engine: &EngineHandle,
    settings: &Settings,
    bin: Bin,
    host: &mut dyn Host,
    done: &dyn Fn(f64) -> f64,
) -> Result<BinRecord, CalibrateError> {
    let prompts = host.prompts(bin)?;
    let began = Instant::now();
    let count = prompts.len();
    let (mut measured, mut told, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    for (i, prompt) in prompts.into_iter().enumerate() {
        host.at(At { bin, prompt: (i, count), done: done(MEASURING * i as f64 / count as f64) });
        let length = prompt.tokens.len();
        told.push(PromptRecord { length, source: prompt.source });
        let finished = ask(engine, settings.request(prompt.tokens.clone(), None), &|| host.is_cancelled())?.finished;
        texts.push(prompt.tokens);
        let of = finished.measured.as_deref().cloned().unwrap_or_default();
        if of.sum(Votes::Prefill).votes.iter().all(|&votes| votes == 0) {
            return Err(CalibrateError::NoVotes);
        }
        measured.push((length, of));
    }
    let measuring_seconds = began.elapsed().as_secs_f64();
    let wants = |phase| settings.phases.contains(&phase);
    // Decode's L grows by a token a step.
    let behind = |&(length, ref of): &(usize, Measured)| (length + settings.drawn() as usize / 2, of.clone());
    let decoded: Vec<_> = if wants(Phase::Decode) { measured.iter().map(behind).collect() } else { Vec::new() };
    let of = |votes, measured: &[_]| votes_record(bin, measured, votes, &settings.tiers);
    let mut prefill = wants(Phase::Prefill).then(|| of(Votes::Prefill, &measured));
    let mut decode = wants(Phase::Decode).then(|| of(Votes::Decode, &decoded));
    host.at(At { bin, prompt: (count, count), done: done(MEASURING) });
    let texts: Vec<(Vec<u32>, &Measured)> = texts.into_iter().zip(measured.iter().map(|(_, of)| of)).collect();
    settle(engine, settings, (bin, &texts), (prefill.as_mut(), decode.as_mut()), &|| host.is_cancelled())?;
    Ok(BinRecord {
        first: bin.first,
        end: bin.end,
        prompts: told,
        prefill,
        decode,
        decode_reference: wants(Phase::Decode).then(|| of(Votes::DecodeReference, &decoded)),
        measuring_seconds,
        seconds: began.elapsed().as_secs_f64(),
    })
}

impl Settings {
    /// Whether a request of `context` tokens holds a prompt of `wanted` and what is drawn behind it.
    ///
    /// # Errors
    /// It does not.
    pub fn fits(&self, wanted: usize, context: usize) -> Result<(), CalibrateError> {
        let drawn = self.drawn();
        if wanted.saturating_add(drawn as usize) > context { Err(CalibrateError::TooLong { wanted, context, drawn }) } else { Ok(()) }
    }

    /// Tokens that a request draws: the first is the prompt's.
    pub fn drawn(&self) -> u32 {
        if self.phases.contains(&Phase::Decode) { self.decode_tokens + 1 } else { 1 }
    }

    /// A request that is measured, or one under tables.
    pub(super) fn request(&self, prompt: Vec<u32>, tables: Option<TableSet>) -> Request {
        Request { measure: tables.is_none(), ..background(self.client, prompt, self.drawn(), tables) }
    }
}

impl From<AskError> for CalibrateError {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Cancelled => Self::Cancelled,
            error => Self::Asked(error),
        }
    }
}
