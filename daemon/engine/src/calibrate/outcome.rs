//! From measured bins to what is written: the keys of a phase, and the advice beside them.

use super::advise::{Advice, advise};
use super::curve::Skipped;
use super::ladder::{Origin, TierRows, tables};
use super::record::{BinRecord, TierRecord, Votes, VotesRecord};
use super::smooth;
use serde_json::{Map, Value, json};
use skip_tables::{Geometry, Phase, PhaseTables, TableError, Tier};

/// Under which key of a decode record the tables for the reference documentation's votes lie: what an export for other engines takes.
pub const REFERENCE: &str = "reference";

/// One phase's keys and advice.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseOutcome {
    /// The rows, tier by tier.
    pub tiers: Vec<TierRows>,
    /// What config.json gets.
    pub tables: PhaseTables,
    /// Whether it pays; None where no bin has a reached tier.
    pub advice: Option<Advice>,
}

/// The keys of a phase from its measured bins; `deploy` is the tier that is wanted in force, `mass_ratio` what advice is held to.
///
/// # Errors
/// No bins, or bins without this phase.
pub fn outcome(phase: Phase, records: &[BinRecord], deploy: Tier, mass_ratio: f64, origin: Origin) -> Result<PhaseOutcome, TableError> {
    let votes = match phase {
        Phase::Prefill => Votes::Prefill,
        Phase::Decode => Votes::Decode,
    };
    let tiers = tier_rows(records, votes);
    let mut made = tables(&tiers, deploy, origin.clone())?;
    if phase == Phase::Decode {
        let origin = Origin { geometry: Geometry::reference(phase), ..origin };
        let reference = tables(&tier_rows(records, Votes::DecodeReference), deploy, origin)?;
        if let Some(record) = &mut made.record {
            record.extra.insert(REFERENCE.into(), reference_keys(&reference));
        }
    }
    let advice = made.target.and_then(|tier| advise(&prompts_at(records, votes, tier), mass_ratio));
    Ok(PhaseOutcome { tiers, tables: made, advice })
}

/// Bins that have a phase, with what was found of it.
fn of(records: &[BinRecord], votes: Votes) -> impl Iterator<Item = (&BinRecord, &VotesRecord)> {
    records.iter().filter_map(move |record| {
        let found = match votes {
            Votes::Prefill => &record.prefill,
            Votes::Decode => &record.decode,
            Votes::DecodeReference => &record.decode_reference,
        };
        found.as_ref().map(|found| (record, found))
    })
}

fn tier_rows(records: &[BinRecord], votes: Votes) -> Vec<TierRows> {
    let bins: Vec<(&BinRecord, &VotesRecord)> = of(records, votes).collect();
    let Some((_, first)) = bins.first() else { return Vec::new() };
    let rows = |(place, tier): (usize, &TierRecord)| {
        let solved = smooth::rows(&bins, place);
        TierRows { tier: tier.tier, rows: bins.iter().map(|(record, _)| record.bin()).zip(solved).collect() }
    };
    first.tiers.iter().enumerate().map(rows).collect()
}

/// What each prompt, of bins that reach the tier, skips of each layer there.
fn prompts_at(records: &[BinRecord], votes: Votes, tier: Tier) -> Vec<Vec<Skipped>> {
    let tiers = of(records, votes).flat_map(|(_, found)| &found.tiers);
    tiers.filter(|found| found.tier == tier && found.solved.s.is_some()).flat_map(|found| found.prompts.iter().cloned()).collect()
}

fn reference_keys(tables: &PhaseTables) -> Value {
    let ladder: Map<String, Value> = tables.ladder.iter().map(|(tier, table)| (tier.share().to_string(), table.to_json())).collect();
    let unreached = tables.record.as_ref().map(|record| json!(record.unreached));
    let (target, table) = (tables.target.map(Tier::share), tables.deployed.table().map(skip_tables::ScaleTable::to_json));
    json!({"geometry": Geometry::reference(Phase::Decode), "scale_table": table, "scale_tables": ladder, "target_sparsity": target, "unreached": unreached})
}

#[cfg(test)]
mod tests {
    use super::super::record::{PromptRecord, votes_record};
    use super::*;
    use crate::calibrate::bins::Bin;
    use crate::measured::{LayerVotes, Measured};
    use skip_tables::{Digest, TableFile};

    /// Two layers: one with a far field, one whose tiles all carry alike.
    fn measured() -> Measured {
        let mut layers = vec![LayerVotes::default(), LayerVotes::default()];
        for i in 0..1000 {
            let far = -8.0 * f64::from(i) / 1000.0;
            layers[0].prefill.add(far, far.exp());
            layers[1].prefill.add(if i % 2 == 0 { 0.0 } else { -0.3 }, 1.0);
            layers[0].decode[0].add(far, far.exp());
            layers[0].decode[1].add(0.5 * far, far.exp());
        }
        Measured { layers }
    }

    fn records(tiers: &[Tier]) -> Vec<BinRecord> {
        let bin = |first, end| {
            let bin = Bin { first, end };
            let of = |votes| Some(votes_record(bin, &[(first + 100, measured()), (first + 900, measured())], votes, tiers));
            let prompts = [100, 900].map(|more| PromptRecord { length: first + more, source: "a text".into() }).to_vec();
            let (prefill, decode, decode_reference) = (of(Votes::Prefill), of(Votes::Decode), of(Votes::DecodeReference));
            BinRecord { first, end, prompts, prefill, decode, decode_reference, measuring_seconds: 0.5, seconds: 1.0 }
        };
        vec![bin(4096, 6144), bin(6144, 8193)]
    }

    fn origin(phase: Phase) -> Origin {
        let digest = Digest::of(b"");
        Origin {
            geometry: Geometry::portable(phase),
            kernel_family: "cpu".into(),
            checkpoint: digest,
            corpus: digest,
            date: "2026-11-30".into(),
        }
    }

    #[test]
    fn records_come_back_from_their_json_and_make_the_same_tables() {
        let tiers = ["30%", "50%", "90%"].map(|t| t.parse().unwrap());
        let records = records(&tiers);
        let text = serde_json::to_string(&records).unwrap();
        let back: Vec<BinRecord> = serde_json::from_str(&text).unwrap();
        for phase in Phase::ALL {
            // Shares may come back another in their last bit; S has six digits.
            let made = |records: &[BinRecord]| outcome(phase, records, tiers[1], 0.3, origin(phase)).unwrap().tables;
            let (made, expected) = (made(&back), made(&records));
            assert_eq!((&made.ladder, &made.deployed, made.target), (&expected.ladder, &expected.deployed, expected.target));
            assert_eq!(made.ladder.len(), 3);
        }
    }

    #[test]
    fn the_wanted_tier_is_deployed_and_judged() {
        let tiers = ["30%", "50%", "90%"].map(|t| t.parse().unwrap());
        let made = outcome(Phase::Prefill, &records(&tiers), tiers[1], 0.3, origin(Phase::Prefill)).unwrap();
        assert_eq!(made.tables.target, Some(tiers[1]));
        let record = made.tables.record.as_ref().unwrap();
        assert!(
            record.never_reached(tiers[2]).is_some_and(|share| 0.7 < share && share < 0.8),
            "half of one layer never skips: {record:?}"
        );
        let advice = made.advice.unwrap();
        // Skipped: most of the far field, which carries nothing, or of the flat layer, which carries what its number says.
        assert!((0.3..0.7).contains(&advice.sparsity) && 0.0 < advice.ratio, "of the worst prompt: {advice:?}");
        let file = TableFile { prefill: made.tables, ..TableFile::default() };
        TableFile::parse(serde_json::to_string(&file.to_object()).unwrap().as_bytes()).unwrap();
    }

    #[test]
    fn decode_brings_tables_for_the_reference_votes() {
        let tiers = ["50%"].map(|t| t.parse().unwrap());
        let made = outcome(Phase::Decode, &records(&tiers), tiers[0], 0.3, origin(Phase::Decode)).unwrap();
        let extra = &made.tables.record.as_ref().unwrap().extra[REFERENCE];
        assert_eq!(extra["geometry"]["keys"], 128);
        let rows = |table: &Value| table[0][1].as_f64().unwrap();
        // Its gaps are half as deep: half of the tiles need a larger S.
        assert!(rows(&extra["scale_table"]) > 2.0 * f64::from(made.tables.deployed.table().unwrap().rows()[0].s), "{extra}");
        assert_eq!(extra["scale_table"], extra["scale_tables"]["0.5"]);
    }

    #[test]
    fn a_phase_that_was_not_measured_has_no_tables() {
        let mut records = records(&["50%".parse().unwrap()]);
        records.iter_mut().for_each(|record| record.decode = None);
        assert_eq!(outcome(Phase::Decode, &records, "50%".parse().unwrap(), 0.3, origin(Phase::Decode)).unwrap_err(), TableError::Empty);
    }
}
