//! ModelOpt's `sparse_attention_config`: what it becomes, and what is refused by name.
#![allow(clippy::unwrap_used, reason = "a failing helper fails its test")]

use serde_json::{Value, json};
use skip_tables::{Modelopt, Notice, Origin, PerPhase, Phase, Source, Sources, TableFile, Target, Weights, resolve};

/// As ModelOpt exports a calibrated checkpoint; prefill's coefficients are Qwen3-1.7B's at 4k.
fn exported() -> Value {
    json!({"sparse_attention_config": {
        "config_groups": {
            "group_0": {"algorithm": "skip_softmax", "targets": ["Qwen3Attention"], "ignore": [],
                "threshold_scale_factor": {"formula": "a * exp(b * target_sparsity)", "prefill": {"a": 115.0, "b": 4.70}, "decode": {"a": 0.12, "b": 9.85}},
                "target_sparsity": {"prefill": 0.5, "decode": 0.75}},
            "group_1": {"algorithm": "sparse_softmax", "sparsity_n": 2, "sparsity_m": 4}},
        "producer": {"name": "modelopt", "version": "0.40"}}})
}

fn with(pointer: &str, value: Value) -> Value {
    let mut config = exported();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    config.pointer_mut(&format!("/sparse_attention_config{parent}")).unwrap()[key] = value;
    config
}

fn read(config: &Value) -> PerPhase<Option<Result<Modelopt, String>>> {
    let file = TableFile::parse(config.to_string().as_bytes()).unwrap();
    PerPhase::from_fn(|phase| file.modelopt[phase].clone().map(|found| found.map_err(|error| error.to_string())))
}

fn refusal(config: &Value) -> String {
    read(config).prefill.unwrap().unwrap_err()
}

fn decide(phase: Phase, config: Value) -> skip_tables::Decision {
    let file = TableFile::parse(config.to_string().as_bytes()).unwrap();
    let sources = Sources { checkpoint: Source { place: "config.json".into(), file }, ..Sources::default() };
    resolve(phase, &sources, &Target::portable(Weights::Unchecked))
}

#[test]
fn the_curve_gives_one_s_for_all_lengths() {
    let found = read(&exported());
    let prefill = found.prefill.unwrap().unwrap();
    assert!((prefill.s() - 1206.0).abs() < 1.0, "{}", prefill.s());
    assert_eq!((prefill.target.to_string(), prefill.left_out), ("50%".into(), vec!["sparse_softmax".to_owned()]));
    assert_eq!(prefill.table.ln_lambda(1200), None, "dense where S ≥ L");
    assert!(prefill.table.ln_lambda(100_000).is_some());
    let decode = found.decode.unwrap().unwrap();
    assert!((decode.s() - 0.12 * (9.85f32 * 0.75).exp()).abs() < 0.1);
}

#[test]
fn an_older_file_without_groups_and_with_one_target_is_read() {
    let old = json!({"sparse_attention_config": {"sparse_algo": "softmax_skip", "target_sparsity": 0.3,
        "threshold_scale_factor": {"formula": "a*exp(b*target_sparsity)", "prefill": {"a": 100, "b": 5}}}});
    let found = read(&old);
    assert!((found.prefill.unwrap().unwrap().s() - 448.2).abs() < 0.1);
    assert_eq!(found.decode, None, "a phase that is not spoken of");
    assert_eq!(read(&json!({"sparse_attention_config": null})), PerPhase::default());
}

#[test]
fn what_would_mean_something_else_is_refused_by_name() {
    let factor = "/config_groups/group_0/threshold_scale_factor";
    let scale = "sparse_attention_config.config_groups.group_0.threshold_scale_factor";
    for (config, words) in [
        (
            with(&format!("{factor}/formula"), json!("a / (1 - target_sparsity) ** p")),
            format!("{scale}.formula: `a / (1 - target_sparsity) ** p` is not read"),
        ),
        (with(&format!("{factor}/formula"), json!("__import__('os')")), format!("{scale}.formula: `__import__('os')` is not read")),
        (with(factor, json!(1000.0)), format!("{scale}: expected a formula and its coefficients, found 1000.0")),
        (with(factor, Value::Null), format!("{scale}: expected a formula")),
        (with(&format!("{factor}/prefill"), json!({"a": 1})), format!("{scale}.prefill.b: expected a finite number")),
        (with(&format!("{factor}/prefill/a"), json!("1")), format!("{scale}.prefill.a: expected a finite number")),
        (with(&format!("{factor}/prefill/b"), json!(1e6)), format!("{scale}.prefill: S = ")),
        (
            with(&format!("{factor}/prefill/a"), json!(-3.0)),
            format!("{scale}.prefill: S = -3 * exp(4.7 * 0.5) is no finite number above 0"),
        ),
        (with("/config_groups/group_0/target_sparsity", json!({})), "target_sparsity: says nothing of prefill".into()),
        (with("/config_groups/group_0/target_sparsity", json!(1.5e9)), "target_sparsity: 1500000000 is no tier".into()),
        (with("/config_groups/group_0/ignore", json!(["*layers.0*"])), "group_0.ignore: is not supported".into()),
        (with("/config_groups/group_0/initial_disabled_steps", json!(4)), "group_0.initial_disabled_steps: is not supported".into()),
        (with("/config_groups/group_1/algorithm", json!("softmax_skip")), "group_1: a second group with skip_softmax".into()),
        (
            with("/config_groups/group_0/algorithm", json!("quest")),
            "no group with the algorithm skip_softmax; quest is not done here".into(),
        ),
        (with("/config_groups/group_1", json!([])), "group_1: expected an object".into()),
        (with("/config_groups", json!([])), "config_groups: expected an object, found []".into()),
        (json!({"sparse_attention_config": "on"}), "sparse_attention_config: expected an object, found \"on\"".into()),
    ] {
        let refusal = refusal(&config);
        assert!(refusal.contains(&words), "{refusal}\nlacks {words}");
    }
}

#[test]
fn it_decides_with_a_notice_where_the_checkpoint_has_no_tables_of_its_own() {
    let decision = decide(Phase::Prefill, exported());
    assert_eq!((decision.decided_by, decision.location.as_str()), (Origin::Checkpoint, "config.json: sparse_attention_config"));
    assert_eq!(decision.table.as_ref().unwrap().rows().len(), 1);
    let told = decision.notices.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(
        told.contains("converted from ModelOpt's sparse_attention_config") && told.contains("50%") && told.contains("sparse_softmax"),
        "{told}"
    );

    let mut own = exported();
    own["skip_softmax_prefill_scale_table"] = json!([[4096, 9]]);
    assert_eq!(decide(Phase::Prefill, own.clone()).location, "config.json: skip_softmax_prefill_scale_table");
    own["skip_softmax_prefill_scale_table"] = Value::Null;
    assert_eq!(decide(Phase::Prefill, own).table, None, "null is the checkpoint's own word");
}

#[test]
fn what_cannot_be_used_leaves_the_phase_dense_and_says_why() {
    let decode = decide(Phase::Decode, exported());
    assert_eq!((decode.table, decode.decided_by), (None, Origin::Default));
    let told = decode.notices[0].to_string();
    assert!(told.contains("config.json: sparse_attention_config is passed over") && told.contains("1×128 votes a head"), "{told}");

    let formula = with("/config_groups/group_0/threshold_scale_factor/formula", json!("a"));
    let decision = decide(Phase::Prefill, formula);
    assert_eq!(decision.table, None);
    assert!(
        matches!(&decision.notices[..], [Notice::PassedOver { reason, .. }] if reason.contains("`a` is not read")),
        "{:?}",
        decision.notices
    );
}
