//! `table check`: is a file a table, and would this machine's kernels take it? No daemon is asked.

use crate::commands::Context;
use crate::failure::Failure;
use crate::output::columns;
use serde::Serialize;
use skip_tables::{Deployed, Digest, Document, Phase, PhaseTables, ScaleTable, Source, TableFile, Target, Weights, admit, is_reached};
use std::path::Path;

/// What was found; one line a table.
#[derive(Serialize)]
struct Report {
    file: String,
    tables: Vec<Line>,
    /// Why a table would be refused without --force.
    refusals: Vec<String>,
    notices: Vec<String>,
}

#[derive(Serialize)]
struct Line {
    /// Null for bare rows, which suit either phase.
    phase: Option<Phase>,
    /// `deployed`, a tier, or `rows`.
    name: String,
    rows: usize,
    /// Shortest length with a threshold; null: never skips.
    skips_from: Option<usize>,
    sha256: String,
    reached: bool,
}

impl Line {
    fn new(phase: Option<Phase>, name: String, table: &ScaleTable) -> Self {
        let skips_from = table.first_skippable_length();
        Self { phase, name, rows: table.rows().len(), skips_from, sha256: table.digest().to_string(), reached: true }
    }
}

pub fn run(context: &Context, path: &Path, checkpoint: Option<&Path>) -> Result<(), Failure> {
    let place = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| Failure::Io(place.clone(), error))?;
    let document = Document::parse(&bytes).map_err(|error| Failure::Table(format!("{place}: {error}")))?;
    let weights = match checkpoint {
        Some(dir) => Weights::Known(Digest::of_checkpoint(dir).map_err(|error| Failure::Io(dir.display().to_string(), error))?),
        None => Weights::Unchecked,
    };
    let mut report = Report { file: place.clone(), tables: Vec::new(), refusals: Vec::new(), notices: Vec::new() };
    match document {
        Document::Rows(table) => report.tables.push(Line::new(None, "rows".into(), &table)),
        Document::Tables(file) => inspect(&mut report, &Source { place, file: *file }, &Target::portable(weights)),
    }
    let refused = report.refusals.join("; ");
    context.show(&report, text)?;
    if refused.is_empty() { Ok(()) } else { Err(Failure::Table(refused)) }
}

fn inspect(report: &mut Report, source: &Source, target: &Target) {
    for phase in Phase::ALL {
        let said = source.file.phase(phase);
        if let Deployed::Table(table) = &said.deployed {
            report.tables.push(Line::new(Some(phase), "deployed".into(), table));
        }
        for (tier, table) in &said.ladder {
            report.tables.push(Line { reached: is_reached(said, *tier), ..Line::new(Some(phase), tier.to_string(), table) });
        }
        match &source.file.modelopt[phase] {
            Some(Ok(found)) => report.notices.push(format!(
                "{phase}: ModelOpt: S = {} for {} at every length, if this is a checkpoint's file",
                found.s(),
                found.target
            )),
            Some(Err(error)) => report.notices.push(format!("{phase}: {error}")),
            None => {}
        }
        if said.deployed.table().is_none() && said.ladder.is_empty() {
            continue;
        }
        match admit(phase, said.record.as_ref(), target, said.force) {
            Ok(notices) => report.notices.extend(notices.iter().map(|notice| format!("{phase}: {notice}"))),
            Err(refusal) => report.refusals.push(refusal.to_string()),
        }
        report.notices.extend(missing_target(phase, said));
    }
    report.notices.extend(source.file.unread.iter().map(ToString::to_string));
    if (TableFile { unread: Vec::new(), ..source.file.clone() }) == TableFile::default() {
        report.notices.push("the file holds no tables".into());
    }
}

fn missing_target(phase: Phase, said: &PhaseTables) -> Option<String> {
    let target = said.target.filter(|tier| !said.ladder.contains_key(tier))?;
    Some(format!("{phase}: the target {target} is not in this file's ladder"))
}

fn text(report: &Report) -> String {
    let mut rows = vec![["PHASE", "TABLE", "ROWS", "SKIPS FROM", "SHA-256"].map(str::to_owned).to_vec()];
    for line in &report.tables {
        let from = match (line.reached, line.skips_from) {
            (true, Some(length)) => length.to_string(),
            (true, None) => "never".into(),
            (false, _) => "not reached".into(),
        };
        let phase = line.phase.map_or("either", Phase::name);
        rows.push(vec![phase.into(), line.name.clone(), line.rows.to_string(), from, line.sha256[..12].into()]);
    }
    let mut out = if report.tables.is_empty() { String::new() } else { columns(&rows) };
    for notice in &report.notices {
        out.push_str(&format!("note: {notice}\n"));
    }
    if report.refusals.is_empty() && !report.tables.is_empty() {
        out.push_str(&format!("{}: good\n", report.file));
    }
    out
}
