//! What a calibration tells when it is done.

use super::internal;
use super::write::Written;
use serde_json::Value;
use skip_client::Error;
use skip_client::protocol::{Calibrated, CalibratedPhase, CalibratedRow, CalibratedTier, CheckedBin};
use skip_engine::calibrate::bins::Bin;
use skip_engine::calibrate::check::CheckRecord;
use skip_engine::calibrate::curve::Skipped;
use skip_engine::calibrate::ladder::TierRows;
use skip_engine::calibrate::outcome::PhaseOutcome;
use skip_engine::calibrate::record::BinRecord;
use skip_tables::{Phase, Tier};
use std::time::Duration;

pub fn report(
    (records, notes): (&[BinRecord], Vec<String>),
    outcomes: &[(Phase, PhaseOutcome)],
    checked: &[CheckRecord],
    written: &Written,
    took: Duration,
) -> Result<Value, Error> {
    let deployed = |phase: &str| {
        let of = outcomes.iter().find(|(other, _)| other.name() == phase);
        of.and_then(|(_, of)| of.tables.target).map(|tier| tier.to_string())
    };
    let check = |c: &CheckRecord| CheckedBin {
        phase: c.phase.clone(),
        tier: deployed(&c.phase).unwrap_or_default(),
        first_length: c.first,
        share: c.share,
        spread: spread(c.texts.iter().map(|text| text.share)),
        texts: c.texts.len(),
    };
    let done = Calibrated {
        written: written.path.display().to_string(),
        backup: written.backup.as_ref().map(|path| path.display().to_string()),
        phases: outcomes.iter().map(|(phase, of)| phase_report(*phase, of, records)).collect::<Result<_, _>>()?,
        check: checked.iter().map(check).collect(),
        notes,
        seconds: took.as_secs_f64(),
    };
    serde_json::to_value(done).map_err(internal)
}

fn phase_report(phase: Phase, of: &PhaseOutcome, records: &[BinRecord]) -> Result<CalibratedPhase, Error> {
    // What a bin's prompts skip each, at the S that its own texts gave.
    let spread_of = |bin: Bin, tier: Tier| {
        let record = records.iter().find(|record| record.bin() == bin)?;
        let votes = match phase {
            Phase::Prefill => record.prefill.as_ref()?,
            Phase::Decode => record.decode.as_ref()?,
        };
        let found = votes.tiers.iter().find(|found| found.tier == tier)?;
        Some(spread(found.prompts.iter().map(|layers| share(layers))))
    };
    let tier = |rows: &TierRows| CalibratedTier {
        tier: rows.tier.to_string(),
        rows: rows
            .rows
            .iter()
            .map(|&(bin, solved)| CalibratedRow {
                first_length: bin.first,
                s: solved.s,
                share: solved.skipped.share(),
                mass: solved.skipped.mass_share(),
                spread: spread_of(bin, rows.tier).unwrap_or_default(),
            })
            .collect(),
    };
    let advice = of.advice.as_ref().map(serde_json::to_value).transpose().map_err(internal)?;
    let deployed = of.tables.target.map(|tier| tier.to_string());
    Ok(CalibratedPhase { phase: phase.name().into(), deployed, tiers: of.tiers.iter().map(tier).collect(), advice })
}

fn share(layers: &[Skipped]) -> f64 {
    let mut sum = Skipped::default();
    layers.iter().for_each(|layer| sum += *layer);
    sum.share()
}

/// Smallest and largest; zeros of nothing.
fn spread(shares: impl Iterator<Item = f64>) -> [f64; 2] {
    shares.fold(None, |seen: Option<[f64; 2]>, s| Some(seen.map_or([s, s], |[low, high]| [low.min(s), high.max(s)]))).unwrap_or_default()
}
