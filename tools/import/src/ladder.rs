//! Ladders that come with the importer, for checkpoints it knows by their GGUF file's SHA-256.
//!
//! No deployed tier is written: a fresh checkpoint is dense until a table is set.

use serde_json::{Map, Value, json};
use skip_tables::{Calibration, Digest, Geometry, Phase, Row, ScaleTable, Tier, Unreached};
use std::collections::BTreeMap;

/// What the importer knows of a measured checkpoint.
struct Known {
    gguf_sha256: &'static str,
    ladder: &'static str,
}

const KNOWN: [Known; 1] = [Known {
    gguf_sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ladder: include_str!("../data/smollm2-ladder.json"),
}];

/// `tier: [[length, S, share reached, mass skipped], …]`, S 0 where the tier was not reached at that length.
type Tiers = BTreeMap<Tier, Vec<(u32, f32, f64, f64)>>;

#[derive(serde::Deserialize)]
struct Ladder {
    measured: String,
    prefill: Tiers,
    decode: Tiers,
}

/// The keys to add to config.json, or None for an unknown file.
pub(crate) fn keys(gguf_sha256: &str, checkpoint: Digest, date: &str) -> Option<Map<String, Value>> {
    let known = KNOWN.iter().find(|k| k.gguf_sha256 == gguf_sha256)?;
    // The data file is compiled in; a test parses it.
    let ladder: Ladder = serde_json::from_str(known.ladder).ok()?;
    let mut keys = Map::new();
    for (phase, tiers) in [(Phase::Prefill, &ladder.prefill), (Phase::Decode, &ladder.decode)] {
        let tables: Map<String, Value> = tiers.iter().map(|(tier, rows)| Some((tier.to_string(), table(rows)?))).collect::<Option<_>>()?;
        let record = serde_json::to_value(record(phase, tiers, &ladder.measured, checkpoint, date)?).ok()?;
        keys.insert(format!("skip_softmax_{phase}_scale_tables"), Value::Object(tables));
        keys.insert(format!("skip_softmax_{phase}_calibration"), record);
    }
    Some(keys)
}

fn table(rows: &[(u32, f32, f64, f64)]) -> Option<Value> {
    let rows = rows.iter().map(|&(length, s, ..)| Row::from((length, s))).collect();
    Some(ScaleTable::new(rows, None).ok()?.to_json())
}

fn record(phase: Phase, tiers: &Tiers, measured: &str, checkpoint: Digest, date: &str) -> Option<Calibration> {
    let lengths = || tiers.values().flatten().map(|row| row.0);
    Some(Calibration {
        geometry: Geometry::portable(phase),
        kernel_family: "reference".into(),
        min_length: lengths().min()?,
        max_length: lengths().max()?,
        checkpoint_sha256: Some(checkpoint),
        corpus_sha256: None,
        table_sha256: None,
        unreached: tiers.iter().flat_map(|(&tier, rows)| unreached(tier, rows)).collect(),
        tool: concat!("skip-import ", env!("CARGO_PKG_VERSION")).into(),
        date: date.to_owned(),
        extra: Map::from_iter([("corpus".to_owned(), json!(measured))]),
    })
}

/// One entry a bin, or a single one with the largest share where no bin reaches the tier.
fn unreached(tier: Tier, rows: &[(u32, f32, f64, f64)]) -> Vec<Unreached> {
    let bins = rows.iter().filter(|row| row.1 == 0.0);
    if bins.clone().count() == rows.len() {
        let share = rows.iter().map(|row| row.2).fold(0.0, f64::max);
        return vec![Unreached { tier, first_length: None, share }];
    }
    bins.map(|row| Unreached { tier, first_length: Some(row.0), share: row.2 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip_tables::TableFile;

    #[test]
    fn every_known_ladder_reads_back_as_tables_without_a_deployed_tier() {
        for known in &KNOWN {
            let keys = keys(known.gguf_sha256, Digest::of(b""), "2026-11-30").expect("the data file parses");
            let file = TableFile::read(&keys).unwrap();
            for phase in Phase::ALL {
                let tables = file.phase(phase);
                assert!(tables.ladder.len() >= 4, "{phase}");
                assert!(tables.target.is_none() && tables.deployed.table().is_none(), "{phase} is dense until a table is set");
                let record = tables.record.as_ref().unwrap();
                assert_eq!((record.min_length, record.max_length), (1024, 8192));
            }
        }
    }

    #[test]
    fn a_tier_that_no_bin_reaches_is_recorded_with_its_best_share() {
        let keys = keys(KNOWN[0].gguf_sha256, Digest::of(b""), "2026-11-30").unwrap();
        let record: Calibration = serde_json::from_value(keys["skip_softmax_prefill_calibration"].clone()).unwrap();
        assert_eq!(record.never_reached("75%".parse().unwrap()), Some(0.691));
        assert_eq!(record.never_reached("60%".parse().unwrap()), None);
        assert_eq!(record.best_share("60%".parse().unwrap()), Some(0.509));
    }

    #[test]
    fn an_unknown_file_gets_no_ladder() {
        assert!(keys("00", Digest::of(b""), "2026-11-30").is_none());
    }
}
