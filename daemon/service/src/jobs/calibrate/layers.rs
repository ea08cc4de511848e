//! Share and mass by layer, from the bins that the last calibration of this checkpoint kept.

use super::kept::Kept;
use crate::tables::Tables;
use skip_client::protocol::PriceLayers;
use skip_engine::calibrate::curve::Skipped;
use skip_engine::calibrate::record::{BinRecord, TierRecord, VotesRecord};
use skip_tables::Phase;
use std::path::Path;

/// At the tier in force in each phase; a phase that is dense, or was not calibrated here, is left out.
pub fn of_last_calibration(state_dir: &Path, tables: &Tables) -> Vec<PriceLayers> {
    let Some(checkpoint) = tables.checkpoint_hash() else { return Vec::new() };
    let bins = Kept::last(&state_dir.join("calibrate"), |key| key.split(' ').nth(1) == Some(checkpoint.as_str()));
    let shown = tables.show();
    let of = |phase: Phase| {
        let tier = shown.phase(phase).tier.clone()?;
        let votes: Vec<(&BinRecord, &VotesRecord)> = bins.iter().filter_map(|bin| Some((bin, votes(bin, phase)?))).collect();
        let found: Vec<(usize, &TierRecord)> = votes
            .into_iter()
            .filter_map(|(bin, votes)| Some((bin.first, votes.tiers.iter().find(|found| found.tier.to_string() == tier)?)))
            .collect();
        let rows = |of: fn(&Skipped) -> f64| found.iter().map(|(_, found)| layers(found).iter().map(of).collect()).collect();
        let (share, mass) = (rows(Skipped::share), rows(Skipped::mass_share));
        let bins: Vec<usize> = found.iter().map(|(first, _)| *first).collect();
        (!bins.is_empty()).then(|| PriceLayers { phase: phase.name().into(), tier, bins, share, mass })
    };
    Phase::ALL.into_iter().filter_map(of).collect()
}

fn votes(bin: &BinRecord, phase: Phase) -> Option<&VotesRecord> {
    match phase {
        Phase::Prefill => bin.prefill.as_ref(),
        Phase::Decode => bin.decode.as_ref(),
    }
}

/// Every layer's, all prompts together.
fn layers(found: &TierRecord) -> Vec<Skipped> {
    let mut sums = Vec::new();
    for prompt in &found.prompts {
        sums.resize(sums.len().max(prompt.len()), Skipped::default());
        sums.iter_mut().zip(prompt).for_each(|(sum, layer)| *sum += *layer);
    }
    sums
}
