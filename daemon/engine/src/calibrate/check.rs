//! Whether deployed tables keep their promise: requests of other texts, under the tables, and the share that the kernels skipped.

use super::bins::Bin;
use super::run::{CalibrateError, Prompt};
use crate::EngineHandle;
use crate::ask::{ask, background};
use crate::handle::{ClientId, TableSet};
use serde::{Deserialize, Serialize};
use skip_kernels::Phase;
use skip_kernels::attention::SkipCounters;

/// What the kernels skipped of a bin's texts in one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckRecord {
    /// The bin's first length, in keys.
    pub first: usize,
    /// Where the next begins.
    pub end: usize,
    /// `prefill` or `decode`.
    pub phase: String,
    /// The share of all texts' votes together, 0 to 1.
    pub share: f64,
    /// Each text's.
    pub texts: Vec<TextShare>,
}

/// One text's share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextShare {
    /// Tokens.
    pub length: usize,
    /// What text it is.
    pub source: String,
    /// 0 to 1.
    pub share: f64,
}

/// Runs `prompts` under `tables`, each with `drawn` tokens behind it, and tells the shares of the phases that have a table.
///
/// # Errors
/// A request failed, or it was cancelled.
pub fn check(
    engine: &EngineHandle,
    (bin, prompts): (Bin, &[Prompt]),
    tables: &TableSet,
    (client, drawn): (ClientId, u32),
    cancelled: &dyn Fn() -> bool,
) -> Result<Vec<CheckRecord>, CalibrateError> {
    let (mut sums, mut texts) = ([SkipCounters::default(); 2], [Vec::new(), Vec::new()]);
    for prompt in prompts {
        let request = background(client, prompt.tokens.clone(), drawn, Some(tables.clone()));
        let usage = ask(engine, request, cancelled)?.finished.usage;
        for (phase, counters) in [(Phase::Prefill, usage.prefill.counters), (Phase::Decode, usage.decode.counters)] {
            sums[phase as usize] += counters;
            texts[phase as usize].push(TextShare { length: prompt.tokens.len(), source: prompt.source.clone(), share: counters.share() });
        }
    }
    let mut texts = texts.into_iter();
    let record = |phase: Phase| {
        let (share, texts) = (sums[phase as usize].share(), texts.next().unwrap_or_default());
        tables.phase(phase).map(|_| CheckRecord { first: bin.first, end: bin.end, phase: phase.name().into(), share, texts })
    };
    Ok(Phase::ALL.into_iter().filter_map(record).collect())
}
