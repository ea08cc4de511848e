//! What a table skips beside what was foretold. Measuring computes densely; under a table what a layer leaves out changes the scores of the next, and
//! a little less is skipped, or more. Two prompts a tier, run under it, tell by how much: the difference is nearly the same for every text.

use super::bins::Bin;
use super::curve::Curve;
use super::record::{Votes, VotesRecord};
use super::run::{CalibrateError, Settings};
use crate::EngineHandle;
use crate::ask::ask;
use crate::handle::{NamedTable, TableSet};
use crate::measured::Measured;
use skip_kernels::ScaleTable;
use skip_kernels::attention::SkipCounters;
use std::sync::Arc;

/// Prompts a tier.
const PROMPTS: usize = 2;
/// A larger difference is no property of a table.
const MOST: f64 = 0.1;

/// Runs some of a bin's prompts, each with what was measured of it, under each tier's row, and notes the difference in both phases' tiers.
pub(super) fn settle(
    engine: &EngineHandle,
    settings: &Settings,
    (bin, texts): (Bin, &[(Vec<u32>, &Measured)]),
    (mut prefill, mut decode): (Option<&mut VotesRecord>, Option<&mut VotesRecord>),
    cancelled: &dyn Fn() -> bool,
) -> Result<(), CalibrateError> {
    let chosen: Vec<_> =
        (0..PROMPTS.min(texts.len())).map(|i| &texts[(2 * i + 1) * texts.len() / (2 * PROMPTS.min(texts.len()))]).collect();
    for tier in 0..settings.tiers.len() {
        let row = |votes: &Option<&mut VotesRecord>| votes.as_ref().and_then(|votes| votes.tiers.get(tier)?.solved.s);
        let rows = [row(&prefill), row(&decode)];
        let [prefill_table, decode_table] = rows.map(|s| s.and_then(|s| table(bin, s)));
        let tables = TableSet { prefill: prefill_table, decode: decode_table };
        if tables == TableSet::default() {
            continue;
        }
        let mut seen = [(SkipCounters::default(), 0.0); 2];
        for (tokens, measured) in &chosen {
            let usage = ask(engine, settings.request(tokens.clone(), Some(tables.clone())), cancelled)?.finished.usage;
            let drawn = settings.drawn() as usize / 2;
            let of = [(usage.prefill.counters, Votes::Prefill, 0), (usage.decode.counters, Votes::Decode, drawn)];
            for ((counters, votes, behind), (sum, foretold)) in of.into_iter().zip(&mut seen) {
                let s = rows[usize::from(votes == Votes::Decode)].unwrap_or(0.0);
                *foretold += Curve::new(tokens.len() + behind, &measured.sum(votes)).at_scale(s).share() * counters.votes as f64;
                *sum += counters;
            }
        }
        for (votes, (counters, foretold)) in [&mut prefill, &mut decode].into_iter().zip(seen) {
            if let Some(found) = votes.as_mut().and_then(|votes| votes.tiers.get_mut(tier))
                && counters.votes > 0
            {
                found.bias = (counters.share() - foretold / counters.votes as f64).clamp(-MOST, MOST);
            }
        }
    }
    Ok(())
}

fn table(bin: Bin, s: f64) -> Option<Arc<NamedTable>> {
    let table = ScaleTable::new(vec![(bin.first as u32, s as f32).into()], None).ok()?;
    let hash = table.digest().to_string();
    Some(Arc::new(NamedTable { table, tier: None, origin: "calibrate".into(), hash }))
}
