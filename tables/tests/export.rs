//! Tables written into a config.json for TensorRT Edge-LLM.
#![allow(clippy::unwrap_used, reason = "a failing helper fails its test")]

use serde_json::{Value, json};
use skip_tables::{
    Decision, Document, ExportError, Exported, Geometry, Origin, Override, PerPhase, Phase, ScaleTable, Source, Sources, TableFile, Target,
    Weights, export, resolve,
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

/// A calibrated checkpoint whose decode record has tables for Edge-LLM's votes beside its own; `deployed` lies in its config.json.
fn calibrated(deployed: Value) -> String {
    let record = json!({"geometry": Geometry::portable(Phase::Decode), "kernel_family": "cpu", "min_length": 1024, "max_length": 8192,
        "table_sha256": table(&json!([[1024, 6.9]])).digest(), "tool": "test", "date": "2026-11-30",
        "reference": {"geometry": Geometry::reference(Phase::Decode), "scale_table": [[1024, 71.5]], "target_sparsity": 0.5,
            "scale_tables": {"0.5": [[1024, 71.5]], "0.75": [[1024, 0], [4096, 212]], "0.9": [[1024, 0]]},
            "unreached": [{"tier": "75%", "first_length": 1024, "share": 0.7}, {"tier": "90%", "share": 0.8}]}});
    json!({"skip_softmax_decode_scale_table": deployed, "skip_softmax_decode_target_sparsity": 0.5,
        "skip_softmax_decode_scale_tables": {"50%": [[1024, 6.9]], "75%": [[1024, 20]], "90%": [[1024, 90]], "95%": [[1024, 400]]},
        "skip_softmax_decode_calibration": record})
    .to_string()
}

fn table(rows: &Value) -> ScaleTable {
    match Document::parse(rows.to_string().as_bytes()).unwrap() {
        Document::Rows(table) => table,
        Document::Tables(_) => panic!("rows"),
    }
}

/// Decode alone, dense prefill.
fn decode(config: &str, decode: Override, force: bool) -> Result<Exported, ExportError> {
    let checkpoint = Source { place: "config.json".into(), file: TableFile::parse(config.as_bytes()).unwrap() };
    let decided = resolve(Phase::Decode, &Sources { checkpoint, ..Sources::default() }, &Target::portable(Weights::Unchecked));
    export(config, &PerPhase { prefill: Override::InForce, decode }, &PerPhase { prefill: None, decode: Some(decided) }, force)
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
fn tables_for_their_votes_are_exported_in_place_of_ours() {
    let config = calibrated(json!([[1024, 6.9]]));
    let out = decode(&config, Override::InForce, false).unwrap();
    assert_eq!(out.summary, ["decode: tier 50%, 2 rows, measured with Edge-LLM's votes beside these"]);
    let value: Value = serde_json::from_str(&out.text).unwrap();
    assert_eq!(value["skip_softmax_decode_scale_table"], json!([[1024, 71.5], [8193, 0]]));
    assert_eq!(value["skip_softmax_decode_target_sparsity"], 0.5);
    let ladder = json!({"50%": [[1024, 71.5], [8193, 0]], "75%": [[1024, 0], [4096, 212], [8193, 0]], "90%": [[1024, 0]]});
    assert_eq!(value["skip_softmax_decode_scale_tables"], ladder, "no rung of other votes stays");
    let record = &value["skip_softmax_decode_calibration"];
    assert_eq!((&record["geometry"]["keys"], &record["reference"]), (&json!(128), &Value::Null));
    assert_eq!(record["unreached"][1]["tier"], "90%");

    let again = decode(&out.text, Override::Target("75%".parse().unwrap()), false).unwrap();
    assert_eq!(again.summary, ["decode: tier 75%, 3 rows"], "an export is exported as it is");
    let forced = decode(&config, Override::Target("75%".parse().unwrap()), true).unwrap();
    assert!(forced.text.contains("212"), "--force is for what has no table for their votes");
}

#[test]
fn what_has_no_table_for_their_votes_is_refused_unless_forced() {
    let edited = calibrated(json!([[1024, 7]]));
    let in_force = decode(&edited, Override::InForce, false);
    assert!(matches!(in_force, Err(ExportError::Geometry { phase: Phase::Decode, .. })), "edited by hand: {in_force:?}");
    assert_eq!(decode(&edited, Override::InForce, true).unwrap().summary, ["decode: 2 rows"]);
    let config = calibrated(json!([[1024, 6.9]]));
    let tier = |name: &str| decode(&config, Override::Target(name.parse().unwrap()), false).unwrap_err().to_string();
    assert_eq!(tier("90%"), "decode never reached tier 90% with Edge-LLM's votes (80.0 % as λ → 1)");
    assert!(tier("95%").contains("it would skip another share"), "{}", tier("95%"));
}

#[test]
fn a_table_file_with_a_record_is_exchanged_too() {
    let given = calibrated(json!([[1024, 6.9]]));
    let document = Override::Table(Box::new(Document::parse(given.as_bytes()).unwrap()));
    let out = decode("{\"vocab_size\": 1}", document, false).unwrap();
    assert_eq!(out.summary, ["decode: tier 50%, 2 rows, measured with Edge-LLM's votes beside these"]);
    let value: Value = serde_json::from_str(&out.text).unwrap();
    assert_eq!(value["skip_softmax_decode_scale_tables"]["75%"][1], json!([4096, 212]));
}

#[test]
fn broken_tables_for_their_votes_are_named() {
    for (pointer, value, words) in [
        ("/scale_tables", json!({"0.5": [[1024, -1]]}), "reference.scale_tables[\"0.5\"]: row 0: S is negative (-1)"),
        ("/scale_tables", json!([]), "reference.scale_tables: expected an object of tables keyed by tier"),
        ("/scale_table", json!(7), "reference.scale_table: expected rows"),
        ("/target_sparsity", json!(100), "reference.target_sparsity: 100 is no tier"),
        ("/unreached", json!([{}]), "reference.unreached: missing field"),
        ("/geometry", json!({"rows": 1}), "reference.geometry: missing field"),
        ("/geometry", Value::Null, "reference.geometry: expected votes, found null"),
        ("", json!("all"), "skip_softmax_decode_calibration.reference: expected an object, found \"all\""),
    ] {
        let mut config: Value = serde_json::from_str(&calibrated(json!([[1024, 6.9]]))).unwrap();
        *config.pointer_mut(&format!("/skip_softmax_decode_calibration/reference{pointer}")).unwrap() = value;
        let error = decode(&config.to_string(), Override::InForce, false).unwrap_err().to_string();
        assert!(error.starts_with("config.json: skip_softmax_decode_calibration.reference") && error.contains(words), "{error}");
    }
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
