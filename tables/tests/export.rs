//! Tables written into a config.json for TensorRT Edge-LLM.
#![allow(clippy::unwrap_used, reason = "a failing helper fails its test")]

use serde_json::{Value, json};
use skip_tables::{
    Decision, Document, ExportError, Geometry, Origin, Override, PerPhase, Phase, Source, Sources, TableFile, Target, Weights, export,
    resolve,
};

fn config() -> String {
    let record = |phase| {
        json!({"geometry": Geometry::portable(phase), "kernel_family": "cpu", "min_length": 1024, "max_length": 8192,
            "table_sha256": null, "tool": "test", "date": "2026-11-30"})
    };
    let tables = json!({
        "skip_softmax_prefill_scale_tables": {"50%": [[1024, 0], [2048, 1923.9]], "60%": [[1024, 3]]},
        "skip_softmax_prefill_calibration": record(Phase::Prefill),
        "skip_softmax_decode_scale_tables": {"50%": [[1024, 6.9]]},
        "skip_softmax_decode_calibration": record(Phase::Decode),
    });
    let tables = serde_json::to_string_pretty(&tables).unwrap();
    format!("{{\n  \"rms_norm_eps\": 1e-05,\n  \"vocab_size\": 49152,{}", &tables[1..])
}

fn only_prefill(prefill: Override) -> PerPhase<Override> {
    PerPhase { prefill, decode: Override::InForce }
}

fn no_decisions() -> PerPhase<Option<Decision>> {
    PerPhase::default()
}

fn flags(table: Option<&str>, target: Option<&str>) -> Result<Override, ExportError> {
    Override::from_flags(Phase::Prefill, table, target, |_| Ok(b"[[512, 9]]".to_vec()))
}

#[test]
fn a_target_tier_is_deployed_with_the_end_of_its_range() {
    let out = export(&config(), &only_prefill(flags(None, Some("0.5")).unwrap()), &no_decisions(), false).unwrap();
    assert_eq!(out.summary, ["prefill: tier 50%, 3 rows"]);
    let value: Value = serde_json::from_str(&out.text).unwrap();
    let rows = json!([[1024, 0], [2048, 1923.9], [8193, 0]]);
    assert_eq!(value["skip_softmax_prefill_scale_table"], rows);
    assert_eq!(value["skip_softmax_prefill_scale_tables"]["50%"], rows);
    assert_eq!(value["skip_softmax_prefill_target_sparsity"], 0.5);
    assert!(out.text.starts_with("{\n  \"rms_norm_eps\": 1e-05,\n  \"vocab_size\": 49152,"), "other bytes stay");
    assert!(value.get("skip_softmax_decode_scale_table").is_none(), "a phase that nobody speaks of stays");
}

#[test]
fn an_export_read_back_decides_the_same_and_is_no_edit_by_hand() {
    let out = export(&config(), &only_prefill(Override::Target("50%".parse().unwrap())), &no_decisions(), false).unwrap();
    let checkpoint = Source { place: "config.json".into(), file: TableFile::parse(out.text.as_bytes()).unwrap() };
    let decision = resolve(Phase::Prefill, &Sources { checkpoint, ..Sources::default() }, &Target::portable(Weights::Unchecked));
    assert_eq!((decision.decided_by, decision.tier), (Origin::Checkpoint, Some("50%".parse().unwrap())));
    assert!(!decision.notices.contains(&skip_tables::Notice::EditedByHand));
}

#[test]
fn dense_takes_table_and_target_out() {
    let tier = export(&config(), &only_prefill(Override::Target("60%".parse().unwrap())), &no_decisions(), false).unwrap();
    for word in ["none", "0"] {
        let out = export(&tier.text, &only_prefill(flags(Some(word), Some("0.5")).unwrap()), &no_decisions(), false).unwrap();
        let value: Value = serde_json::from_str(&out.text).unwrap();
        assert!(value.get("skip_softmax_prefill_scale_table").is_none() && value.get("skip_softmax_prefill_target_sparsity").is_none());
    }
}

#[test]
fn a_table_file_replaces_the_target() {
    let tier = export(&config(), &only_prefill(Override::Target("60%".parse().unwrap())), &no_decisions(), false).unwrap();
    let out = export(&tier.text, &only_prefill(flags(Some("t.json"), None).unwrap()), &no_decisions(), false).unwrap();
    let value: Value = serde_json::from_str(&out.text).unwrap();
    assert_eq!(value["skip_softmax_prefill_scale_table"], json!([[512, 9]]));
    assert!(value.get("skip_softmax_prefill_target_sparsity").is_none(), "there the target would win");
}

#[test]
fn a_decode_table_of_these_kernels_votes_is_refused_for_theirs() {
    let decode = |force| {
        let overrides = PerPhase { prefill: Override::InForce, decode: Override::Target("50%".parse().unwrap()) };
        export(&config(), &overrides, &no_decisions(), force)
    };
    assert!(matches!(decode(false), Err(ExportError::Geometry { phase: Phase::Decode, .. })));
    assert_eq!(decode(true).unwrap().summary, ["decode: tier 50%, 2 rows"]);
}

#[test]
fn what_is_in_force_is_exported_without_flags() {
    let checkpoint = Source { place: "config.json".into(), file: TableFile::parse(config().as_bytes()).unwrap() };
    let set = skip_tables::Setting { selection: skip_tables::Selection::Tier("50%".parse().unwrap()), force: false };
    let sources = Sources { set: PerPhase { prefill: Some(set), decode: None }, checkpoint, ..Sources::default() };
    let in_force = PerPhase::from_fn(|phase| Some(resolve(phase, &sources, &Target::portable(Weights::Unchecked))));
    let out = export(&config(), &PerPhase::default(), &in_force, false).unwrap();
    assert_eq!(out.summary, ["prefill: tier 50%, 3 rows", "decode: dense"]);
}

#[test]
fn wrong_flags_and_files_are_named() {
    let missing = Override::from_flags(Phase::Decode, Some("gone.json"), None, |_| Err(std::io::Error::from(std::io::ErrorKind::NotFound)));
    assert!(missing.unwrap_err().to_string().starts_with("gone.json: "));
    let rows = Override::from_flags(Phase::Decode, Some("t.json"), None, |_| Ok(b"[[1, -1]]".to_vec()));
    assert_eq!(rows.unwrap_err().to_string(), "t.json: table: row 0: S is negative (-1)");
    assert!(flags(None, Some("2")).is_ok_and(|o| o == Override::Target("2%".parse().unwrap())));
    assert!(flags(None, Some("x")).unwrap_err().to_string().starts_with("--prefill-target-sparsity: "));
    let unknown = export(&config(), &only_prefill(Override::Target("55%".parse().unwrap())), &no_decisions(), false);
    assert_eq!(unknown.unwrap_err().to_string(), "the prefill ladder of the config.json has no tier 55%");
    let silent = Override::Table(Box::new(Document::parse(b"{}").unwrap()));
    assert_eq!(export(&config(), &only_prefill(silent), &no_decisions(), false), Err(ExportError::Silent(Phase::Prefill)));
    assert!(matches!(export("[]", &PerPhase::default(), &no_decisions(), false), Err(ExportError::Config(_))));
}
