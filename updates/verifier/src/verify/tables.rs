//! Whether an update's tables would be used by the daemon: the same checks that every table is put to there.

use skip_tables::{Notice, Origin, Phase, Source, Sources, TableFile, Target, Weights, resolve};
use skip_updates::{Check, Entry, Rejection};

/// Checks the tables of a checkpoint.
///
/// # Errors
/// [`Check::Schema`], [`Check::Checkpoint`] or [`Check::Table`].
pub fn check(bytes: &[u8], entry: &Entry) -> Result<(), Rejection> {
    let refused = |check: Check, message: String| Rejection::new(check, format!("{}: {message}", entry.file));
    let file = TableFile::parse(bytes).map_err(|e| refused(Check::Schema, e.to_string()))?;
    if let Some(unread) = file.unread.first() {
        return Err(refused(Check::Schema, unread.to_string()));
    }
    for phase in Phase::ALL {
        let said = file.phase(phase);
        if said.force {
            return Err(refused(Check::Schema, format!("{phase}: force is the word of somebody at the device, not of an update")));
        }
        if let Some(other) = said.record.as_ref().and_then(|r| r.checkpoint_sha256).filter(|&other| other != entry.checkpoint) {
            return Err(refused(
                Check::Checkpoint,
                format!("{phase} was calibrated on weights {other}, and is sent for {}", entry.checkpoint),
            ));
        }
    }
    let target = Target::portable(Weights::Known(entry.checkpoint));
    let speaking: Vec<Phase> = Phase::ALL.into_iter().filter(|&phase| !file.phase(phase).is_silent()).collect();
    let sources = Sources { update: Some(Source { place: entry.file.clone(), file }), ..Sources::default() };
    for &phase in &speaking {
        let decision = resolve(phase, &sources, &target);
        if decision.decided_by != Origin::Update {
            let why = decision.notices.iter().find_map(|notice| match notice {
                Notice::PassedOver { reason, .. } => Some(reason.clone()),
                _ => None,
            });
            return Err(refused(Check::Table, why.unwrap_or_else(|| format!("nothing of it can be used for {phase}"))));
        }
    }
    if speaking.is_empty() {
        return Err(refused(Check::Table, "it holds a table for neither phase".into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use skip_tables::{Digest, Geometry};

    fn entry() -> Entry {
        Entry { checkpoint: Digest::of(b"weights"), name: "tiny".into(), file: "tiny.json".into(), sha256: Digest::of(b"") }
    }

    fn record(phase: Phase, weights: &[u8]) -> Value {
        json!({"geometry": Geometry::portable(phase), "kernel_family": "cpu", "min_length": 1024, "max_length": 8192,
            "checkpoint_sha256": Digest::of(weights), "table_sha256": null, "tool": "test", "date": "2026-11-30"})
    }

    fn verdict(file: &Value) -> Option<Check> {
        check(file.to_string().as_bytes(), &entry()).err().map(|e| e.check)
    }

    #[test]
    fn a_ladder_with_its_target_and_record_is_taken() {
        let file = json!({
            "skip_softmax_prefill_scale_tables": {"50%": [[1024, 100.0]]}, "skip_softmax_prefill_target_sparsity": 0.5,
            "skip_softmax_prefill_calibration": record(Phase::Prefill, b"weights"),
        });
        assert_eq!(verdict(&file), None);
    }

    #[test]
    fn tables_that_would_not_be_used_are_refused_by_name() {
        let rows = json!([[1024, 100.0]]);
        for (file, expected) in [
            (json!({}), Check::Table),
            (json!({"skip_softmax_prefill_scale_table": [[1024, -1]]}), Check::Schema),
            (json!({"skip_softmax_prefill_scale_table": [[1024, "NaN"]]}), Check::Schema),
            (json!({"skip_softmax_prefil_scale_table": rows}), Check::Schema),
            (json!({"skip_softmax_prefill_scale_table": rows, "skip_softmax_prefill_force": true}), Check::Schema),
            (json!({"skip_softmax_decode_scale_table": rows}), Check::Table),
            (json!({"skip_softmax_prefill_target_sparsity": 0.5}), Check::Table),
            (
                json!({"skip_softmax_prefill_scale_table": rows, "skip_softmax_prefill_calibration": record(Phase::Prefill, b"others")}),
                Check::Checkpoint,
            ),
        ] {
            assert_eq!(verdict(&file), Some(expected), "{file}");
        }
    }

    #[test]
    fn infinite_and_undefined_numbers_are_refused() {
        for number in ["NaN", "Infinity", "-Infinity", "1e400"] {
            let text = format!("{{\"skip_softmax_prefill_scale_table\": [[1024, {number}]]}}");
            assert_eq!(check(text.as_bytes(), &entry()).unwrap_err().check, Check::Schema, "{number}");
        }
    }
}
