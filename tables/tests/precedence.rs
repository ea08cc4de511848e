//! Which source decides, what it may decide, and what is said about it.
#![allow(clippy::unwrap_used, reason = "a failing helper fails its test")]

use proptest::prelude::*;
use serde_json::{Value, json};
use skip_tables::{
    Decision, Digest, Document, Notice, Origin, PerPhase, Phase, Refusal, Row, ScaleTable, Selection, Setting, Source, Sources, TableFile,
    Target, Weights, check, resolve,
};

const PREFILL: Phase = Phase::Prefill;
const DECODE: Phase = Phase::Decode;

fn weights() -> Digest {
    Digest::of(b"these weights")
}

fn target() -> Target {
    Target::portable(Weights::Known(weights()))
}

fn source(place: &str, object: Value) -> Source {
    Source { place: place.into(), file: TableFile::parse(object.to_string().as_bytes()).unwrap() }
}

fn table(rows: Value) -> ScaleTable {
    match Document::parse(rows.to_string().as_bytes()).unwrap() {
        Document::Rows(table) => table,
        Document::Tables(_) => panic!("rows"),
    }
}

fn record(phase: Phase, written: Option<Value>) -> Value {
    json!({"geometry": skip_tables::Geometry::portable(phase), "kernel_family": "cpu", "min_length": 1024, "max_length": 8192,
        "checkpoint_sha256": weights(), "table_sha256": written.map(|rows| table(rows).digest()),
        "unreached": [{"tier": "75%", "first_length": 1024, "share": 0.326}, {"tier": "75%", "first_length": 4096, "share": 0.634}],
        "tool": "test", "date": "2026-11-30"})
}

/// A ladder of two tiers, one of them never reached, and no deployed table: what the importer writes.
fn ladder() -> Value {
    json!({
        "skip_softmax_prefill_scale_tables": {"50%": [[1024, 0], [2048, 1923.9]], "75%": [[1024, 0], [4096, 0]]},
        "skip_softmax_prefill_calibration": record(PREFILL, None),
        "skip_softmax_decode_scale_tables": {"50%": [[1024, 6.9]], "90%": [[1024, 443.2]]},
        "skip_softmax_decode_calibration": record(DECODE, None),
    })
}

fn with(mut object: Value, more: Value) -> Value {
    object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object
}

fn checkpoint(object: Value) -> Sources {
    Sources { checkpoint: source("config.json", object), ..Sources::default() }
}

fn set(selection: Selection) -> Setting {
    Setting { selection, force: false }
}

fn tier(name: &str) -> Selection {
    Selection::Tier(name.parse().unwrap())
}

fn checked(phase: Phase, setting: &Setting) -> Result<Decision, Refusal> {
    check(phase, setting, &source("config.json", ladder()), &target())
}

#[test]
fn a_ladder_alone_stays_dense() {
    let decision = resolve(PREFILL, &checkpoint(ladder()), &target());
    assert_eq!((decision.table, decision.decided_by, decision.notices), (None, Origin::Default, vec![]));
}

#[test]
fn a_target_tier_decides_over_the_deployed_table() {
    let rows = json!([[1024, 5]]);
    let object = json!({"skip_softmax_prefill_scale_table": rows, "skip_softmax_prefill_target_sparsity": 0.5,
        "skip_softmax_prefill_calibration": record(PREFILL, Some(rows.clone()))});
    let decision = resolve(PREFILL, &checkpoint(with(ladder(), object)), &target());
    assert_eq!(decision.tier, Some("50%".parse().unwrap()));
    assert_eq!(decision.location, r#"config.json: skip_softmax_prefill_scale_tables["50%"]"#);
    assert_eq!(decision.notices, [Notice::DenseBins { first_lengths: vec![1024] }, Notice::DenseBeyond(8192)]);
}

#[test]
fn a_deployed_table_edited_by_hand_wins_over_the_target() {
    let object = json!({"skip_softmax_prefill_scale_table": [[1024, 7]], "skip_softmax_prefill_target_sparsity": 0.5,
        "skip_softmax_prefill_calibration": record(PREFILL, Some(json!([[1024, 5]])))});
    let decision = resolve(PREFILL, &checkpoint(with(ladder(), object)), &target());
    assert_eq!(decision.table.unwrap().rows(), [Row { first_length: 1024, s: 7.0 }]);
    assert_eq!(decision.location, "config.json: skip_softmax_prefill_scale_table");
    assert!(decision.notices.contains(&Notice::EditedByHand));
}

#[test]
fn a_deployed_table_added_by_hand_wins_over_a_calibration_that_wrote_none() {
    let object = json!({"skip_softmax_decode_scale_table": [[1024, 7]]});
    let decision = resolve(DECODE, &checkpoint(with(ladder(), object)), &target());
    assert_eq!(decision.decided_by, Origin::Checkpoint);
    assert!(decision.notices.contains(&Notice::EditedByHand));
}

#[test]
fn a_deployed_table_removed_by_hand_is_dense() {
    let object = json!({"skip_softmax_prefill_target_sparsity": "50%",
        "skip_softmax_prefill_calibration": record(PREFILL, Some(json!([[1024, 5]])))});
    let decision = resolve(PREFILL, &checkpoint(with(ladder(), object)), &target());
    assert_eq!((decision.table, decision.decided_by), (None, Origin::Checkpoint));
    assert_eq!(decision.notices, [Notice::RemovedByHand]);
}

#[test]
fn a_target_that_cannot_be_had_leaves_the_deployed_table() {
    let rows = json!([[1024, 5]]);
    let object = json!({"skip_softmax_prefill_scale_table": rows, "skip_softmax_prefill_target_sparsity": 0.6,
        "skip_softmax_prefill_calibration": record(PREFILL, Some(rows.clone()))});
    let decision = resolve(PREFILL, &checkpoint(with(ladder(), object)), &target());
    assert_eq!(decision.table.unwrap().rows()[0].s, 5.0);
    assert!(matches!(decision.notices[0], Notice::TargetPassedOver(Refusal::NoSuchTier { .. })));
}

#[test]
fn each_source_outranks_those_after_it() {
    let rows = |s: u32| json!({"skip_softmax_prefill_scale_table": [[1024, s]]});
    let all = Sources {
        set: PerPhase { prefill: Some(set(Selection::Rows(table(json!([[1024, 1]]))))), decode: None },
        persisted: Some(source("persisted.json", rows(2))),
        admin: Some(source("tables.json", rows(3))),
        update: Some(source("slot", rows(4))),
        checkpoint: source("config.json", rows(5)),
    };
    type Remove = fn(&mut Sources);
    let removals: [Remove; 5] =
        [|s| s.set.prefill = None, |s| s.persisted = None, |s| s.admin = None, |s| s.update = None, |s| s.checkpoint = Source::default()];
    let origins = [Origin::SetTable, Origin::Persisted, Origin::Admin, Origin::Update, Origin::Checkpoint];
    let mut sources = all;
    for (n, (origin, remove)) in origins.into_iter().zip(removals).enumerate() {
        let decision = resolve(PREFILL, &sources, &target());
        assert_eq!(decision.decided_by, origin);
        assert_eq!(decision.table.unwrap().rows()[0].s, n as f32 + 1.0);
        assert_eq!(resolve(DECODE, &sources, &target()).decided_by, Origin::Default, "each phase on its own");
        remove(&mut sources);
    }
    assert_eq!(resolve(PREFILL, &sources, &target()).decided_by, Origin::Default);
}

#[test]
fn an_override_says_dense_with_null_and_a_tier_by_name() {
    let mut sources = checkpoint(with(ladder(), json!({"skip_softmax_prefill_target_sparsity": 0.5})));
    sources.admin =
        Some(source("tables.json", json!({"skip_softmax_prefill_scale_table": null, "skip_softmax_decode_target_sparsity": "90%"})));
    let prefill = resolve(PREFILL, &sources, &target());
    assert_eq!((prefill.table, prefill.decided_by), (None, Origin::Admin));
    let decode = resolve(DECODE, &sources, &target());
    assert_eq!((decode.decided_by, decode.tier), (Origin::Admin, Some("90%".parse().unwrap())));
    assert_eq!(decode.location, r#"config.json: skip_softmax_decode_scale_tables["90%"]"#, "the ladder it names is the checkpoint's");
}

#[test]
fn an_override_that_is_refused_is_passed_over_and_said() {
    let mut sources = checkpoint(with(ladder(), json!({"skip_softmax_decode_target_sparsity": 0.5})));
    sources.admin = Some(source("tables.json", json!({"skip_softmax_decode_scale_table": [[1024, 9000]]})));
    let decision = resolve(DECODE, &sources, &target());
    assert_eq!(decision.decided_by, Origin::Checkpoint);
    let Some(Notice::PassedOver { place, reason }) = decision.notices.last() else { panic!() };
    assert_eq!(place, "tables.json");
    assert!(reason.contains("no calibration record"), "{reason}");

    sources.admin =
        Some(source("tables.json", json!({"skip_softmax_decode_scale_table": [[1024, 9000]], "skip_softmax_decode_force": true})));
    let decision = resolve(DECODE, &sources, &target());
    assert_eq!(decision.decided_by, Origin::Admin);
    assert!(matches!(decision.notices[0], Notice::Forced(Refusal::Unrecorded { .. })));
}

#[test]
fn tiers_that_cannot_be_had_name_those_that_can() {
    let refusal = checked(DECODE, &set(tier("0.55"))).unwrap_err();
    assert_eq!(refusal.to_string(), "the decode ladder has no tier 55%; it reaches 50%, 90%");
    let refusal = checked(PREFILL, &set(tier("75%"))).unwrap_err();
    assert_eq!(refusal.to_string(), "prefill never reached tier 75% (63.4 % as λ → 1); the ladder reaches 50%");
    let forced = checked(PREFILL, &Setting { selection: tier("75%"), force: true }).unwrap();
    assert!(forced.notices.contains(&Notice::NeverSkips));
    let refusal = check(PREFILL, &set(tier("50%")), &Source::default(), &target()).unwrap_err();
    assert_eq!(refusal.to_string(), "prefill has no ladder to find tier 50% in");
}

#[test]
fn bare_rows_are_the_callers_own_word_in_both_phases() {
    for phase in Phase::ALL {
        let decision = checked(phase, &set(Selection::Rows(table(json!([[0, 1e9]]))))).unwrap();
        assert_eq!(decision.notices[0], Notice::CallersWord);
    }
}

#[test]
fn a_table_file_without_a_record_serves_prefill_but_not_decode() {
    let object = json!({"skip_softmax_prefill_scale_table": [[1024, 9]], "skip_softmax_decode_scale_table": [[1024, 9]]});
    let of = |phase| {
        let document = Document::parse(object.to_string().as_bytes()).unwrap();
        checked(phase, &set(Selection::of_document(document, phase)))
    };
    assert!(matches!(of(PREFILL).unwrap().notices[..], [Notice::Unrecorded(_)]));
    assert!(matches!(of(DECODE), Err(Refusal::Unrecorded { .. })));
}

#[test]
fn another_checkpoints_table_is_refused() {
    let mut other = record(PREFILL, None);
    other["checkpoint_sha256"] = json!(Digest::of(b"other weights"));
    let object = with(ladder(), json!({"skip_softmax_prefill_calibration": other}));
    let document =
        Document::parse(with(object.clone(), json!({"skip_softmax_prefill_target_sparsity": 0.5})).to_string().as_bytes()).unwrap();
    let setting = set(Selection::of_document(document, PREFILL));
    assert!(matches!(checked(PREFILL, &setting), Err(Refusal::OtherCheckpoint { .. })));
    assert!(checked(PREFILL, &Setting { force: true, ..setting }).is_ok());
    let unknown = Target::portable(Weights::Unchecked);
    assert!(
        check(PREFILL, &set(tier("50%")), &source("config.json", object), &unknown).is_ok(),
        "without a digest nothing can be compared"
    );
}

#[test]
fn a_recorded_table_waits_until_the_weights_are_hashed() {
    let mut sources = checkpoint(with(ladder(), json!({"skip_softmax_prefill_target_sparsity": 0.5})));
    let pending = Target::portable(Weights::Pending);
    let decision = resolve(PREFILL, &sources, &pending);
    assert_eq!((decision.table, decision.decided_by), (None, Origin::Default));
    assert!(matches!(decision.notices[..], [Notice::PassedOver { .. }]));
    sources.set.prefill = Some(set(Selection::Rows(table(json!([[1024, 1]])))));
    assert_eq!(resolve(PREFILL, &sources, &pending).decided_by, Origin::SetTable, "bare rows are of no weights");
}

#[test]
fn another_geometry_is_refused_in_decode_and_mentioned_in_prefill() {
    let of = |phase: Phase| {
        let mut other = record(phase, None);
        other["geometry"]["keys"] = json!(64);
        let key = |what: &str| format!("skip_softmax_{phase}_{what}");
        let object = json!({key("scale_tables"): {"50%": [[1024, 9]]}, key("calibration"): other});
        check(phase, &set(tier("50%")), &source("config.json", object), &target())
    };
    assert!(matches!(of(DECODE), Err(Refusal::OtherGeometry { .. })));
    assert!(of(PREFILL).unwrap().notices.iter().any(|n| matches!(n, Notice::OtherGeometry { .. })));
}

#[test]
fn a_file_silent_on_the_phase_is_refused() {
    let document = Document::parse(br#"{"skip_softmax_prefill_scale_table": [[1024, 9]]}"#).unwrap();
    assert_eq!(checked(DECODE, &set(Selection::of_document(document, DECODE))), Err(Refusal::Silent { phase: DECODE }));
}

fn selection() -> impl Strategy<Value = Selection> {
    prop_oneof![
        Just(Selection::Dense),
        prop_oneof![Just("50%"), Just("75%"), Just("90%"), Just("10%")].prop_map(tier),
        (0u32..9000, 0f32..1e4).prop_map(|row| Selection::Rows(ScaleTable::new(vec![row.into()], None).unwrap())),
        (0u32..9000, 0f32..1e4).prop_map(|(length, s)| {
            let document = json!({"skip_softmax_prefill_scale_table": [[length, s]], "skip_softmax_decode_scale_table": [[length, s]]});
            Selection::of_document(Document::parse(document.to_string().as_bytes()).unwrap(), DECODE)
        }),
    ]
}

proptest! {
    #[test]
    fn a_persisted_setting_decides_as_the_setting_did(selection in selection(), force: bool, decode: bool) {
        let phase = if decode { DECODE } else { PREFILL };
        let setting = Setting { selection, force };
        let mut sources = checkpoint(ladder());
        let asked = check(phase, &setting, &sources.checkpoint, &target());
        let mut persisted = Source { place: "persisted.json".into(), ..Source::default() };
        *persisted.file.phase_mut(phase) = setting.to_tables();
        sources.persisted = Some(persisted);
        let decision = resolve(phase, &sources, &target());
        match asked {
            Ok(asked) => prop_assert_eq!((decision.decided_by, decision.table, decision.tier), (Origin::Persisted, asked.table, asked.tier)),
            Err(refusal) => {
                prop_assert_eq!(decision.decided_by, Origin::Default);
                prop_assert_eq!(decision.notices, vec![Notice::PassedOver { place: "persisted.json".into(), reason: refusal.to_string() }]);
            }
        }
    }

    #[test]
    fn a_decision_holds_a_table_or_is_dense_for_a_reason(set_to in proptest::option::of(selection()), admin in proptest::option::of(selection()), force: bool) {
        let mut sources = checkpoint(ladder());
        sources.set.decode = set_to.map(|selection| Setting { selection, force });
        sources.admin = admin.map(|selection| {
            let mut source = Source { place: "tables.json".into(), ..Source::default() };
            source.file.decode = Setting { selection, force }.to_tables();
            source
        });
        let decision = resolve(DECODE, &sources, &target());
        prop_assert_eq!(decision.decided_by == Origin::SetTable, sources.set.decode.as_ref().is_some_and(|s| check(DECODE, s, &sources.checkpoint, &target()).is_ok()));
        if let Some(table) = &decision.table {
            prop_assert_ne!(decision.decided_by, Origin::Default);
            // Only the checkpoint's own recorded tier, a vouched table or the caller's word reaches a decode kernel.
            let vouched = decision.notices.iter().any(|n| matches!(n, Notice::CallersWord | Notice::Forced(_)));
            prop_assert!(vouched || table.max_len() == Some(8192));
        }
    }
}
