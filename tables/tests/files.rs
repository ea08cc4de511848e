//! What files may and may not hold: every refusal names the field or the row, and nothing panics.
#![allow(clippy::unwrap_used, reason = "a failing helper fails its test")]

use proptest::prelude::*;
use skip_tables::{Calibration, Deployed, Document, Phase, PhaseTables, Row, ScaleTable, TableFile, Tier};
use std::collections::BTreeMap;

fn refusal(text: &str) -> String {
    Document::parse(text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn bare_rows_make_a_table() {
    let Document::Rows(table) = Document::parse(b"[[1024, 833.6], [2048.0, 0]]").unwrap() else { panic!() };
    assert_eq!(table.rows(), [Row { first_length: 1024, s: 833.6 }, Row { first_length: 2048, s: 0.0 }]);
    assert_eq!(table.to_json().to_string(), "[[1024,833.6],[2048,0]]");
}

#[test]
fn bad_rows_are_refused_by_their_index() {
    assert_eq!(refusal("[[1, 2], [3, NaN]]"), "table: row 1: S is not a finite number");
    assert_eq!(refusal("[[1, -Infinity]]"), "table: row 0: S is not a finite number");
    assert_eq!(refusal("[[1, 1e300]]"), "table: row 0: S is not a finite number");
    assert_eq!(refusal("[[1, -2]]"), "table: row 0: S is negative (-2)");
    assert_eq!(refusal("[[4, 1], [4, 1]]"), "table: row 1: length 4 does not come after 4");
    assert_eq!(refusal("[]"), "table: a table needs at least one row");
    assert_eq!(refusal("[[1, 2, 3]]"), "table[0]: expected a row [length, S], found [1,2,3]");
    assert_eq!(refusal("[[1.5, 2]]"), "table[0][0]: expected a length in keys, a whole number from 0 on, found 1.5");
    assert_eq!(refusal("[[1, \"2\"]]"), "table[0][1]: expected S, a number, found \"2\"");
    assert_eq!(refusal("7"), "table file: expected rows or an object, found 7");
    let many = format!("[{}[9999999, 1]]", "[1, 1],".repeat(4096));
    assert_eq!(refusal(&many), "table: 4097 rows: a table has at most 4096");
}

#[test]
fn bad_fields_are_refused_by_their_key() {
    assert_eq!(
        refusal(r#"{"skip_softmax_decode_scale_tables": {"75%": [[1, 1]], "0.75": [[1, 1]]}}"#),
        r#"skip_softmax_decode_scale_tables["0.75"]: tier 75% is there twice"#
    );
    assert_eq!(
        refusal(r#"{"skip_softmax_prefill_target_sparsity": 100}"#),
        "skip_softmax_prefill_target_sparsity: 100 is no tier: write a share above 0 and below 1 (0.75) or a percentage (75%)"
    );
    assert_eq!(
        refusal(r#"{"skip_softmax_prefill_scale_table": {"50%": 1}}"#),
        r#"skip_softmax_prefill_scale_table: expected rows [[length, S], …], found {"50%":1}"#
    );
    assert!(
        refusal(r#"{"skip_softmax_prefill_calibration": {"kernel_family": "cpu"}}"#)
            .starts_with("skip_softmax_prefill_calibration: missing field")
    );
}

#[test]
fn keys_without_a_phase_are_not_read_and_told() {
    let file = TableFile::parse(br#"{"skip_softmax_scale_table": "x", "skip_softmax_scale_factor": NaN, "hidden_size": 64}"#).unwrap();
    let told: Vec<&str> = file.unread.iter().map(|u| u.key.as_str()).collect();
    assert_eq!(told, ["skip_softmax_scale_table", "skip_softmax_scale_factor"]);
    assert_eq!(TableFile { unread: Vec::new(), ..file }, TableFile::default());
}

#[test]
fn a_mistyped_key_is_refused_in_a_table_file_and_told_in_a_config() {
    let text = r#"{"skip_softmax_prefil_scale_table": [[1024, 9]]}"#;
    assert_eq!(refusal(text), "skip_softmax_prefil_scale_table: no such key; skip_softmax_prefill_scale_table is meant?");
    let file = TableFile::parse(text.as_bytes()).unwrap();
    assert_eq!(file.unread[0].meant.as_deref(), Some("skip_softmax_prefill_scale_table"));
    assert!(file.prefill.is_silent());
}

#[test]
fn the_record_bounds_the_tables() {
    let text = r#"{"skip_softmax_decode_scale_table": [[1024, 5]], "skip_softmax_decode_target_sparsity": "75%",
        "skip_softmax_decode_scale_tables": {"75%": [[1024, 5]]},
        "skip_softmax_decode_calibration": {"geometry": {"rows": 1, "keys": 32, "maximum": "true", "voting": "group"}, "kernel_family": "cpu",
            "min_length": 1024, "max_length": 8192, "table_sha256": null, "tool": "t", "date": "d"}}"#;
    let file = TableFile::parse(text.as_bytes()).unwrap();
    let Deployed::Table(table) = &file.decode.deployed else { panic!() };
    assert!(table.ln_lambda(8192).is_some());
    assert_eq!(table.ln_lambda(8193), None);
    assert_eq!(file.decode.ladder[&file.decode.target.unwrap()].max_len(), Some(8192));
}

fn table() -> impl Strategy<Value = ScaleTable> {
    proptest::collection::btree_map(0u32..100_000, 0f32..1e6, 1..8)
        .prop_map(|rows| ScaleTable::new(rows.into_iter().map(Row::from).collect(), None).unwrap())
}

fn tier() -> impl Strategy<Value = Tier> {
    (1u32..9_999).prop_map(|n| Tier::from_share(f64::from(n) / 10_000.0).unwrap())
}

fn phase_tables() -> impl Strategy<Value = PhaseTables> {
    let deployed = prop_oneof![Just(Deployed::Absent), Just(Deployed::Dense), table().prop_map(Deployed::Table)];
    let ladder = proptest::collection::btree_map(tier(), table(), 0..4);
    let max = proptest::option::of(1u32..200_000);
    (deployed, ladder, proptest::option::of(tier()), max, any::<bool>()).prop_map(|(deployed, ladder, target, max, force)| {
        let deployed = match deployed {
            Deployed::Table(table) => Deployed::Table(table.with_max_len(max)),
            other => other,
        };
        let ladder: BTreeMap<_, _> = ladder.into_iter().map(|(tier, table)| (tier, table.with_max_len(max))).collect();
        let record = max.map(|max_length| Calibration {
            geometry: skip_tables::Geometry::portable(Phase::Decode),
            kernel_family: "cpu".into(),
            min_length: 0,
            max_length,
            checkpoint_sha256: Some(skip_tables::Digest::of(b"weights")),
            corpus_sha256: None,
            table_sha256: deployed.table().map(ScaleTable::digest),
            unreached: Vec::new(),
            tool: "test".into(),
            date: "2026-11-30".into(),
            extra: serde_json::Map::new(),
        });
        PhaseTables { deployed, ladder, target, record, force }
    })
}

proptest! {
    #[test]
    fn a_file_reads_back_what_was_written(prefill in phase_tables(), decode in phase_tables()) {
        let file = TableFile { prefill, decode, shape_advice: None, price_list: Some(serde_json::json!([1])), ..TableFile::default() };
        let text = serde_json::Value::Object(file.to_object()).to_string();
        prop_assert_eq!(TableFile::parse(text.as_bytes()).unwrap(), file);
    }

    #[test]
    fn a_digest_is_of_the_rows_alone(table in table()) {
        let pretty = serde_json::to_string_pretty(&table.to_json()).unwrap();
        let Document::Rows(back) = Document::parse(pretty.as_bytes()).unwrap() else { panic!() };
        prop_assert_eq!(back.digest(), table.digest());
        prop_assert_eq!(back.clone().with_max_len(Some(5)).digest(), back.digest());
    }

    #[test]
    fn no_document_panics(key in 0usize..5, value in "[\\[\\]{}\",:0-9eE.%NaInfty -]{0,60}") {
        let keys = ["scale_table", "scale_tables", "target_sparsity", "calibration", "force"];
        let _ = Document::parse(format!("{{\"skip_softmax_prefill_{}\": {value}}}", keys[key]).as_bytes());
        let _ = Document::parse(value.as_bytes());
    }
}
