//! `import`: a GGUF file becomes a checkpoint folder.

use super::Context;
use crate::failure::Failure;
use crate::output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use skip_import::{Progress, Report, Stage};
use std::path::PathBuf;

pub async fn run(context: &Context, gguf: PathBuf, dir: PathBuf) -> Result<(), Failure> {
    let quiet = context.json;
    let place = dir.display().to_string();
    let worker = tokio::task::spawn_blocking(move || {
        let mut bars = Bars::new(quiet);
        skip_import::import(&gguf, &dir, |progress| bars.show(progress))
    });
    let report = worker.await.map_err(|error| Failure::Io("the import".into(), error.into()))??;
    if context.json {
        return output::json(&json(&report));
    }
    let ladder = if report.ladder { ", with a ladder of scale tables" } else { "" };
    let megabytes = report.bytes as f64 / 1e6;
    let name = report.name.as_deref().unwrap_or("a model");
    output::text_line(&format!("{place}: {name} ({}), {} tensors, {megabytes:.0} MB{ladder}", report.architecture, report.tensors))
}

fn json(report: &Report) -> serde_json::Value {
    serde_json::json!({
        "architecture": report.architecture,
        "name": report.name,
        "tensors": report.tensors,
        "bytes": report.bytes,
        "gguf_sha256": report.gguf_sha256,
        "checkpoint_hash": report.checkpoint_hash,
        "ladder": report.ladder,
    })
}

/// A bar a stage on a terminal, nothing elsewhere.
struct Bars {
    quiet: bool,
    stage: Option<Stage>,
    bar: ProgressBar,
}

impl Bars {
    fn new(quiet: bool) -> Self {
        Self { quiet, stage: None, bar: ProgressBar::hidden() }
    }

    fn show(&mut self, progress: Progress) {
        if self.stage != Some(progress.stage) {
            self.bar.finish_and_clear();
            self.bar = self.start(progress);
            self.stage = Some(progress.stage);
        }
        self.bar.set_position(progress.done);
    }

    fn start(&self, progress: Progress) -> ProgressBar {
        if self.quiet {
            return ProgressBar::hidden();
        }
        // Draws nothing where stderr is no terminal.
        let bar = ProgressBar::with_draw_target(Some(progress.total), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}") {
            bar.set_style(style);
        }
        bar.with_message(match progress.stage {
            Stage::Hash => "reading",
            Stage::Weights => "writing weights",
        })
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
