//! `table export`: the tables in force as a config.json for TensorRT Edge-LLM.

use crate::cli::Export;
use crate::commands::Context;
use crate::failure::Failure;
use crate::output;
use skip_client::protocol::{DecidedBy, PhaseTable};
use skip_tables::{
    Decision, Origin, Override, PerPhase, Phase, ScaleTable, Source, Sources, TableFile, Target, Weights, export, replace_file, resolve,
};
use std::path::{Path, PathBuf};

pub async fn run(context: &Context, args: Export) -> Result<(), Failure> {
    let path = config_path(&args.config);
    let config = std::fs::read_to_string(&path).map_err(|error| Failure::Io(path.display().to_string(), error))?;
    let overrides = PerPhase {
        prefill: flags(Phase::Prefill, &args.skip_softmax_prefill_scale_table, &args.prefill_target_sparsity)?,
        decode: flags(Phase::Decode, &args.skip_softmax_decode_scale_table, &args.decode_target_sparsity)?,
    };
    let asked = Phase::ALL.iter().any(|&phase| overrides[phase] == Override::InForce);
    let in_force = match (asked, args.offline) {
        (false, _) => PerPhase::default(),
        (true, true) => of_config(&path, &config)?,
        (true, false) => of_daemon(context).await?,
    };
    let exported = export(&config, &overrides, &in_force, args.force).map_err(|error| Failure::Table(error.to_string()))?;
    match &args.output {
        Some(file) => {
            replace_file(file, exported.text.as_bytes(), false).map_err(|error| Failure::Io(file.display().to_string(), error))?;
            let report = serde_json::json!({"file": file, "tables": exported.summary});
            context.show(&report, |_| format!("{}: {}", file.display(), exported.summary.join("; ")))
        }
        None => {
            exported.summary.iter().for_each(|line| output::note(line));
            output::text_line(exported.text.trim_end_matches('\n'))
        }
    }
}

fn config_path(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("config.json") } else { path.to_owned() }
}

fn flags(phase: Phase, table: &Option<String>, target: &Option<String>) -> Result<Override, Failure> {
    Override::from_flags(phase, table.as_deref(), target.as_deref(), |path| std::fs::read(path))
        .map_err(|error| Failure::Table(error.to_string()))
}

/// What the config.json decides by itself.
fn of_config(path: &Path, config: &str) -> Result<PerPhase<Option<Decision>>, Failure> {
    let place = path.display().to_string();
    let file = TableFile::parse(config.as_bytes()).map_err(|error| Failure::Table(format!("{place}: {error}")))?;
    let sources = Sources { checkpoint: Source { place, file }, ..Sources::default() };
    Ok(PerPhase::from_fn(|phase| Some(resolve(phase, &sources, &Target::portable(Weights::Unchecked)))))
}

async fn of_daemon(context: &Context) -> Result<PerPhase<Option<Decision>>, Failure> {
    let show = context.connect().await?.tables().await?;
    Ok(PerPhase { prefill: Some(decision(&show.prefill)?), decode: Some(decision(&show.decode)?) })
}

fn decision(table: &PhaseTable) -> Result<Decision, Failure> {
    let wrong = |error: String| Failure::Table(format!("the {} table in force: {error}", table.phase));
    let rows = table.rows.as_ref().map(|rows| rows.iter().map(|&row| row.into()).collect());
    Ok(Decision {
        phase: table.phase,
        table: rows.map(|rows| ScaleTable::new(rows, table.max_length)).transpose().map_err(|error| wrong(error.to_string()))?,
        decided_by: origin(table.decided_by),
        location: table.location.clone(),
        tier: table.tier.as_deref().map(str::parse).transpose().map_err(|error: skip_tables::TierError| wrong(error.to_string()))?,
        notices: Vec::new(),
    })
}

fn origin(decided_by: DecidedBy) -> Origin {
    match decided_by {
        DecidedBy::SetTable => Origin::SetTable,
        DecidedBy::Persisted => Origin::Persisted,
        DecidedBy::Admin => Origin::Admin,
        DecidedBy::Update => Origin::Update,
        DecidedBy::Checkpoint => Origin::Checkpoint,
        _ => Origin::Default,
    }
}
