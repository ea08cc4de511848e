//! Ladders that come with the importer, for checkpoints it knows by their GGUF file's SHA-256.
//!
//! No deployed tier is written: a fresh checkpoint is dense until a table is set.

use serde_json::{Map, Value, json};
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
type Tiers = BTreeMap<String, Vec<(u32, f64, f64, f64)>>;

#[derive(serde::Deserialize)]
struct Ladder {
    measured: String,
    prefill: Tiers,
    decode: Tiers,
}

/// The keys to add to config.json, or None for an unknown file.
pub(crate) fn keys(gguf_sha256: &str, checkpoint_hash: &str, date: &str) -> Option<Map<String, Value>> {
    let known = KNOWN.iter().find(|k| k.gguf_sha256 == gguf_sha256)?;
    // The data file is compiled in; a test parses it.
    let ladder: Ladder = serde_json::from_str(known.ladder).ok()?;
    let mut keys = Map::new();
    for (phase, tiers) in [("prefill", &ladder.prefill), ("decode", &ladder.decode)] {
        let tables: Map<String, Value> =
            tiers.iter().map(|(tier, rows)| (tier.clone(), rows.iter().map(|r| json!([r.0, r.1])).collect())).collect();
        keys.insert(format!("skip_softmax_{phase}_scale_tables"), Value::Object(tables));
        keys.insert(format!("skip_softmax_{phase}_calibration"), record(phase, tiers, &ladder.measured, checkpoint_hash, date));
    }
    Some(keys)
}

fn record(phase: &str, tiers: &Tiers, measured: &str, checkpoint_hash: &str, date: &str) -> Value {
    let geometry = match phase {
        "prefill" => json!({"query_rows": 128, "key_tile": 128, "reference": "running maximum"}),
        _ => json!({"key_run": 32, "reference": "true row maximum"}),
    };
    let lengths = || tiers.values().flatten().map(|row| row.0);
    let unreached_bins: Map<String, Value> = tiers
        .iter()
        .map(|(tier, rows)| (tier.clone(), rows.iter().filter(|r| r.1 == 0.0).map(|r| json!([r.0, r.2])).collect::<Vec<_>>()))
        .filter(|(_, bins)| !bins.is_empty())
        .map(|(tier, bins)| (tier, Value::Array(bins)))
        .collect();
    let unreached_tiers: Vec<&String> = tiers.iter().filter(|(_, rows)| rows.iter().all(|r| r.1 == 0.0)).map(|(tier, _)| tier).collect();
    json!({
        "geometry": geometry,
        "kernel_family": "reference",
        "min_length": lengths().min(),
        "max_length": lengths().max(),
        "checkpoint_hash": checkpoint_hash,
        "corpus": measured,
        "unreached_tiers": unreached_tiers,
        "unreached_bins": unreached_bins,
        "tool_version": concat!("skip-import ", env!("CARGO_PKG_VERSION")),
        "date": date,
    })
}
