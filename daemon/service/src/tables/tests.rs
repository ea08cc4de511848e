//! The table store over real files and an engine whose model votes half of everything away.

use super::{OnDrift, Opened, Paths, Tables};
use serde_json::{Value, json};
use skip_client::ErrorKind;
use skip_client::protocol::{DecidedBy, Phase, Selector, SetTableOptions};
use skip_engine::engine::{CacheSize, ModelInfo, StepModel};
use skip_engine::handle::{ClientId, Finished, Priority, Request};
use skip_engine::{Engine, EngineHandle, EngineOptions};
use skip_kernels::attention::SkipCounters;
use skip_kernels::backend::{SeqStep, StepReport, TableSlot};
use skip_kernels::sampling::{Sampled, SamplingParams};
use skip_kernels::{BackendInfo, KernelError, ScaleTable};
use skip_tables::{Digest, Geometry};
use std::time::Duration;
use tempfile::TempDir;

const PREFILL: Phase = Phase::Prefill;
const DECODE: Phase = Phase::Decode;

/// Draws token 1; of ten votes a step it skips five, where its sequence has a table.
#[derive(Default)]
struct Half {
    draws: Vec<bool>,
}

impl StepModel for Half {
    fn backend(&self) -> BackendInfo {
        BackendInfo { name: "cpu", device: "a test".into(), kernel_set: "none".into(), parallelism: 1 }
    }

    fn set_table(&mut self, _slot: TableSlot, _table: &ScaleTable) -> Result<(), KernelError> {
        Ok(())
    }

    fn start(&mut self, seqs: &[SeqStep<'_>], _interrupted: &mut dyn FnMut() -> bool) -> Result<(), KernelError> {
        self.draws = seqs.iter().map(|seq| seq.sample.is_some()).collect();
        Ok(())
    }

    fn finish(&mut self, report: &mut StepReport) -> Result<(), KernelError> {
        report.sampled = self.draws.iter().map(|draws| draws.then(|| Sampled { token: 1, logprob: None, top: Vec::new() })).collect();
        report.counters = vec![SkipCounters { votes: 10, skipped: 5, bytes_not_read: 0 }; self.draws.len()];
        Ok(())
    }
}

fn engine(opened: &Opened) -> EngineHandle {
    let info = ModelInfo { name: "half".into(), context: 4096, vocabulary: 256, eos: vec![0], kv_bytes_per_token: 4 };
    let options = EngineOptions { cache: CacheSize::Tokens(4096), tables: opened.in_force(), ..EngineOptions::default() };
    Engine::start_with(options, info, |_, _, _| Ok(Half::default()))
}

/// A model folder with a ladder of two phases, and places for the other files.
struct World {
    dir: TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(world.path("model")).unwrap();
        std::fs::write(world.path("model/model.safetensors"), "weights").unwrap();
        world.write("model/config.json", &Self::config());
        world
    }

    fn config() -> Value {
        let record = |phase, weights: &[u8]| {
            json!({"geometry": Geometry::portable(phase), "kernel_family": "cpu", "min_length": 1024, "max_length": 8192,
                "checkpoint_sha256": Digest::of(weights), "table_sha256": null, "tool": "test", "date": "2026-11-30"})
        };
        json!({
            "skip_softmax_prefill_scale_tables": {"50%": [[1, 0.5]], "75%": [[1, 0]]},
            "skip_softmax_prefill_calibration": record(PREFILL, b"weights"),
            "skip_softmax_decode_scale_tables": {"90%": [[1, 0.25]]},
            "skip_softmax_decode_calibration": record(DECODE, b"weights"),
        })
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, value: &Value) {
        std::fs::write(self.path(name), value.to_string()).unwrap();
    }

    fn paths(&self) -> Paths {
        Paths { state_dir: self.path("state"), admin: self.path("tables.json"), checkpoint: self.path("model") }
    }

    /// A daemon's start, and the wait for the weights to be hashed.
    async fn start(&self) -> Tables {
        let opened = Opened::read(self.paths());
        let engine = engine(&opened);
        let mut tables = opened.serve(engine, OnDrift::Warn);
        while tables.checkpoint_hash().is_none() {
            assert!(tables.changed().await);
        }
        tables
    }
}

fn selector(text: &str) -> Selector {
    text.parse().unwrap()
}

fn persist() -> SetTableOptions {
    SetTableOptions { persist: true, ..SetTableOptions::default() }
}

fn within(seconds: f64) -> SetTableOptions {
    SetTableOptions { confirm_within: Some(seconds), ..SetTableOptions::default() }
}

async fn set(tables: &Tables, phase: Phase, text: &str, options: SetTableOptions) -> Result<DecidedBy, skip_client::Error> {
    tables.set(phase, selector(text), options).await.map(|t| t.decided_by)
}

async fn generate(tables: &Tables) -> Finished {
    let request = Request {
        prompt: vec![1; 8],
        max_tokens: 4,
        sampling: SamplingParams::default(),
        ignore_eos: false,
        priority: Priority::default(),
        deadline: None,
        client: ClientId(0),
        tables: None,
        steering: Default::default(),
        reuse: false,
        measure: false,
    };
    let mut generation = tables.engine.as_ref().unwrap().submit(request).unwrap();
    while generation.tokens.recv().await.is_some() {}
    generation.finished.await.unwrap()
}

#[tokio::test]
async fn a_set_table_is_in_force_when_it_is_acknowledged() {
    let tables = World::new().start().await;
    assert_eq!(tables.show().prefill.decided_by, DecidedBy::Default);
    let shown = tables.set(PREFILL, selector("0.5"), SetTableOptions::default()).await.unwrap();
    assert_eq!((shown.tier.as_deref(), shown.decided_by, shown.version), (Some("50%"), DecidedBy::SetTable, 1));
    assert_eq!(shown.rows, Some(vec![(1, 0.5)]));
    assert!(shown.location.ends_with(r#"config.json: skip_softmax_prefill_scale_tables["50%"]"#), "{}", shown.location);
    let usage = generate(&tables).await.usage;
    assert_eq!(usage.prefill.table.unwrap().tier.as_deref(), Some("50%"));
    assert_eq!(tables.show().prefill.measured, Some(0.5));
    assert_eq!(set(&tables, PREFILL, "none", SetTableOptions::default()).await.unwrap(), DecidedBy::SetTable);
    assert_eq!(generate(&tables).await.usage.prefill.table, None);
    assert_eq!((tables.show().prefill.version, tables.show().decode.version), (2, 0));
}

#[tokio::test]
async fn refusals_leave_the_old_table_and_name_what_can_be_had() {
    let tables = World::new().start().await;
    set(&tables, PREFILL, "50%", SetTableOptions::default()).await.unwrap();
    let before = tables.show();
    for (phase, text, says) in [
        (PREFILL, "60%", "the prefill ladder has no tier 60%; it reaches 50%"),
        (PREFILL, "75%", "prefill never reached tier 75%; the ladder reaches 50% (force uses it all the same)"),
        (PREFILL, "fast", "\"fast\" is no tier"),
        (PREFILL, "[[2, 1], [1, 1]]", "row 1: length 1 does not come after 2"),
        (PREFILL, "[[2, -1]]", "row 0: S is negative (-1)"),
        (DECODE, r#"{"skip_softmax_decode_scale_table": [[1, 1]]}"#, "the decode table has no calibration record"),
        (DECODE, r#"{"skip_softmax_prefill_scale_table": [[1, 1]]}"#, "the table file holds nothing for decode"),
    ] {
        let error = set(&tables, phase, text, persist()).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::TableRefused, "{text}");
        assert!(error.to_string().contains(says), "{error}");
    }
    let error = set(&tables, PREFILL, "60%", SetTableOptions::default()).await.unwrap_err();
    assert_eq!(error.details["available"], json!(["50%"]));
    assert_eq!(tables.show(), before);
}

#[tokio::test]
async fn another_checkpoints_ladder_is_refused() {
    let world = World::new();
    std::fs::write(world.path("model/model.safetensors"), "other weights").unwrap();
    let tables = world.start().await;
    let error = set(&tables, PREFILL, "50%", SetTableOptions::default()).await.unwrap_err();
    assert!(error.message.contains("belongs to another checkpoint"), "{error}");
    let forced = SetTableOptions { force: true, ..SetTableOptions::default() };
    assert_eq!(set(&tables, PREFILL, "50%", forced).await.unwrap(), DecidedBy::SetTable);
    assert!(tables.show().prefill.notices[0].starts_with("forced: "));
}

#[tokio::test]
async fn an_unconfirmed_table_goes_away_by_itself() {
    let tables = World::new().start().await;
    set(&tables, PREFILL, "50%", SetTableOptions::default()).await.unwrap();
    set(&tables, PREFILL, "none", within(0.2)).await.unwrap();
    let pending = tables.show().prefill.pending.unwrap();
    assert!(pending.remaining_ms <= 200 && pending.previous.as_deref() == Some("50%"), "{pending:?}");
    let mut changes = tables.clone();
    while tables.show().prefill.pending.is_some() {
        assert!(changes.changed().await);
    }
    assert_eq!(tables.show().prefill.tier.as_deref(), Some("50%"));
    assert_eq!(generate(&tables).await.usage.prefill.table.unwrap().tier.as_deref(), Some("50%"), "the engine went back too");
    assert_eq!(tables.confirm().await.unwrap_err().kind, ErrorKind::NothingPending);
}

#[tokio::test]
async fn a_confirmed_table_persists_over_a_restart_and_auto_takes_it_back() {
    let world = World::new();
    let tables = world.start().await;
    let options = SetTableOptions { persist: true, ..within(60.0) };
    set(&tables, DECODE, "90%", options).await.unwrap();
    assert!(!world.paths().persisted().exists(), "not before it is confirmed");
    let shown = tables.confirm().await.unwrap().decode;
    assert_eq!((shown.decided_by, shown.pending), (DecidedBy::Persisted, None));
    drop(tables);

    let tables = world.start().await;
    assert_eq!((tables.show().decode.tier.as_deref(), tables.show().decode.decided_by), (Some("90%"), DecidedBy::Persisted));
    assert_eq!(generate(&tables).await.usage.decode.table.unwrap().origin, "persisted");
    assert_eq!(set(&tables, DECODE, "auto", persist()).await.unwrap(), DecidedBy::Default);
    drop(tables);
    assert_eq!(world.start().await.show().decode.decided_by, DecidedBy::Default);
}

#[tokio::test]
async fn a_revert_brings_both_phases_back() {
    let tables = World::new().start().await;
    set(&tables, PREFILL, "50%", within(60.0)).await.unwrap();
    set(&tables, DECODE, "[[5, 1]]", within(60.0)).await.unwrap();
    let shown = tables.revert().await.unwrap();
    assert_eq!((shown.prefill.rows, shown.decode.rows, shown.decode.pending), (None, None, None));
    assert_eq!(tables.revert().await.unwrap_err().kind, ErrorKind::NothingPending);
}

#[tokio::test]
async fn an_edited_file_counts_on_reload_and_a_broken_one_changes_nothing() {
    let world = World::new();
    let tables = world.start().await;
    world.write("tables.json", &json!({"skip_softmax_prefill_target_sparsity": 0.5}));
    let shown = tables.reload().await.unwrap().prefill;
    assert_eq!((shown.tier.as_deref(), shown.decided_by), (Some("50%"), DecidedBy::Admin));

    world.write("tables.json", &json!({"skip_softmax_prefill_scale_table": [[5, 1], [4, 1]]}));
    let error = tables.reload().await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::TableRefused);
    assert!(error.message.contains("tables.json: skip_softmax_prefill_scale_table: row 1: length 4"), "{error}");
    assert_eq!(tables.show().prefill.tier.as_deref(), Some("50%"));

    std::fs::remove_file(world.path("tables.json")).unwrap();
    let mut config = World::config();
    config["skip_softmax_prefill_scale_table"] = json!([[7, 0.25]]);
    world.write("model/config.json", &config);
    let shown = tables.reload().await.unwrap().prefill;
    assert_eq!((shown.rows, shown.decided_by), (Some(vec![(7, 0.25)]), DecidedBy::Checkpoint));
    assert!(shown.notices.iter().any(|n| n.contains("edited by hand")), "{:?}", shown.notices);
}

#[tokio::test]
async fn a_broken_file_does_not_keep_the_daemon_from_starting() {
    let world = World::new();
    std::fs::write(world.path("tables.json"), "{").unwrap();
    let shown = world.start().await.show();
    assert_eq!(shown.prefill.decided_by, DecidedBy::Default);
    assert!(shown.prefill.notices.iter().any(|n| n.contains("tables.json") && n.contains("not JSON")), "{:?}", shown.prefill.notices);
}

#[tokio::test]
async fn a_table_that_cannot_be_persisted_is_not_put_in_force() {
    let world = World::new();
    let tables = world.start().await;
    std::fs::remove_dir_all(world.path("state")).unwrap();
    std::fs::write(world.path("state"), "a file in the way").unwrap();
    let error = set(&tables, PREFILL, "50%", persist()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal);
    assert!(error.message.contains("persisted.json cannot be written"), "{error}");
    assert_eq!(tables.show().prefill.decided_by, DecidedBy::Default);
}

#[tokio::test]
async fn a_request_may_name_its_own_table() {
    let tables = World::new().start().await;
    let own = tables.resolve(PREFILL, &selector("50%")).unwrap().unwrap();
    assert_eq!((own.origin.as_str(), own.tier.as_deref()), ("request", Some("50%")));
    assert_eq!(tables.resolve(PREFILL, &selector("none")).unwrap(), None);
    assert_eq!(tables.resolve(PREFILL, &selector("55%")).unwrap_err().kind, ErrorKind::TableRefused);
    assert_eq!(tables.show().prefill.decided_by, DecidedBy::Default, "which changes nothing for others");
}

#[tokio::test]
async fn tiers_say_which_can_be_had() {
    let tables = World::new().start().await;
    set(&tables, PREFILL, "50%", SetTableOptions::default()).await.unwrap();
    let tiers = tables.tiers().prefill;
    let said: Vec<_> = tiers.iter().map(|t| (t.name.as_str(), t.in_force, t.reached, t.unreached_bins.clone())).collect();
    assert_eq!(said, [("50%", true, true, vec![]), ("75%", false, false, vec![1])]);
}

#[tokio::test]
async fn after_the_engine_nothing_is_changed_any_more() {
    let tables = World::new().start().await;
    let engine = tables.engine.clone().unwrap();
    engine.shutdown();
    engine.stopped().await;
    for _ in 0..2 {
        let error = tokio::time::timeout(Duration::from_secs(5), set(&tables, PREFILL, "50%", persist())).await.unwrap().unwrap_err();
        assert_eq!(error.kind, ErrorKind::Shutdown);
    }
    assert_eq!(Tables::default().confirm().await.unwrap_err().kind, ErrorKind::Shutdown);
}

#[tokio::test]
async fn a_mistyped_key_is_told_where_its_phase_is_shown_and_goes_when_it_is_mended() {
    let world = World::new();
    let mut config = World::config();
    config["skip_softmax_prefil_target_sparsity"] = json!(0.5);
    world.write("model/config.json", &config);
    world.write("tables.json", &json!({"skip_softmax_scale_table": [[1, 1]]}));
    let tables = world.start().await;
    let notices = |tables: &Tables| Phase::ALL.map(|phase| tables.show().phase(phase).notices.join("\n"));
    let [prefill, decode] = notices(&tables);
    assert!(prefill.contains("skip_softmax_prefil_target_sparsity is not read: skip_softmax_prefill_target_sparsity"), "{prefill}");
    assert!(!decode.contains("prefil_target"), "{decode}");
    assert!(decode.contains("tables.json: skip_softmax_scale_table is not read"), "{decode}");
    assert_eq!(tables.warnings().len(), 2, "{:?}", tables.warnings());

    world.write("model/config.json", &World::config());
    std::fs::remove_file(world.path("tables.json")).unwrap();
    tables.reload().await.unwrap();
    assert_eq!(tables.warnings(), Vec::<String>::new());
    assert!(!notices(&tables).concat().contains("not read"));
}

#[tokio::test]
async fn a_mistyped_key_in_a_table_that_is_set_is_refused_by_name() {
    let tables = World::new().start().await;
    let error = set(&tables, PREFILL, r#"{"skip_softmax_prefill_scale_tabel": [[1, 0.5]]}"#, SetTableOptions::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::TableRefused);
    assert!(error.message.contains("skip_softmax_prefill_scale_tabel"), "{error}");
}
