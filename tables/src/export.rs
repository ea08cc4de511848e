//! Tables written into a config.json for TensorRT Edge-LLM, which knows one deployed table, a ladder and a target a phase, and its own vote geometry.

use crate::edit::{EditError, set_keys};
use crate::file::Keys;
use crate::reference::{REFERENCE, Reference};
use crate::{
    Calibration, Decision, Deployed, Document, FileError, Geometry, PerPhase, Phase, PhaseTables, Row, ScaleTable, TableFile, Tier,
    TierError,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What Edge-LLM's flags say of one phase: `--skip-softmax-<phase>-scale-table FILE|none|0` and `--<phase>-target-sparsity R`.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Override {
    /// Neither flag: what is in force.
    #[default]
    InForce,
    /// `--skip-softmax-<phase>-scale-table none` or `0`.
    Dense,
    /// `--skip-softmax-<phase>-scale-table FILE`: bare rows, or an object with the keys of config.json.
    Table(Box<Document>),
    /// `--<phase>-target-sparsity R`: a tier of the config.json's ladder.
    Target(Tier),
}

impl Override {
    /// Reads the two flags; the table flag wins, as it does there. `read` gives a file's bytes.
    ///
    /// # Errors
    /// [`ExportError`], naming the flag.
    pub fn from_flags(
        phase: Phase,
        table: Option<&str>,
        target: Option<&str>,
        read: impl FnOnce(&str) -> std::io::Result<Vec<u8>>,
    ) -> Result<Self, ExportError> {
        match (table, target) {
            (Some("none" | "0"), _) => Ok(Self::Dense),
            (Some(path), _) => {
                let bytes = read(path).map_err(|e| ExportError::Read { path: path.into(), message: e.to_string() })?;
                let document = Document::parse(&bytes).map_err(|error| ExportError::File { path: path.into(), error })?;
                Ok(Self::Table(Box::new(document)))
            }
            (None, Some(tier)) => {
                Ok(Self::Target(tier.parse().map_err(|error| ExportError::Target { flag: format!("--{phase}-target-sparsity"), error })?))
            }
            (None, None) => Ok(Self::InForce),
        }
    }
}

/// Why nothing is exported; the config.json is untouched.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// A table file cannot be read.
    #[error("{path}: {message}")]
    Read {
        /// The file.
        path: String,
        /// The system's words.
        message: String,
    },
    /// A table file is wrong.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        error: FileError,
    },
    /// A target flag is no tier.
    #[error("{flag}: {error}")]
    Target {
        /// The flag.
        flag: String,
        /// Why not.
        error: TierError,
    },
    /// The config.json is wrong.
    #[error("config.json: {0}")]
    Config(#[from] FileError),
    /// The config.json cannot be edited.
    #[error("config.json: {0}")]
    Edit(#[from] EditError),
    /// The config.json's ladder lacks the tier.
    #[error("the {phase} ladder of the config.json has no tier {tier}")]
    NoSuchTier {
        /// The phase.
        phase: Phase,
        /// The tier.
        tier: Tier,
    },
    /// The file given for a phase does not speak of it.
    #[error("the table file holds nothing for {0}")]
    Silent(Phase),
    /// The record's tables for Edge-LLM's votes never reach the tier.
    #[error("{phase} never reached tier {tier} with Edge-LLM's votes ({:.1} % as λ → 1)", share * 100.0)]
    Unreached {
        /// The phase.
        phase: Phase,
        /// The tier.
        tier: Tier,
        /// Share that was reached.
        share: f64,
    },
    /// S means something else under Edge-LLM's votes.
    #[error(
        "the {phase} table was measured with {measured}, and Edge-LLM takes {needed}: there it would skip another share (--force exports it all the same)"
    )]
    Geometry {
        /// The phase.
        phase: Phase,
        /// What it was measured with.
        measured: Geometry,
        /// Edge-LLM's votes.
        needed: Geometry,
    },
}

/// What an export wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Exported {
    /// The new config.json.
    pub text: String,
    /// For people: what each phase got.
    pub summary: Vec<String>,
}

/// Which of its holder's tables a table is.
#[derive(Clone, Copy)]
enum Place {
    /// A rung of the ladder.
    Rung(Tier),
    /// The deployed table, as calibration wrote it.
    Deployed,
    /// None of them: rows of somebody's own.
    Elsewhere,
}

/// One phase's outcome.
struct Choice<'a> {
    table: Option<ScaleTable>,
    /// The tier to name, where the config.json's ladder holds the table.
    tier: Option<Tier>,
    /// Whose calibration it is of, where it is of one.
    holder: Option<(&'a PhaseTables, Place)>,
    /// Tables for Edge-LLM's votes, where they stand in for the holder's.
    reference: Option<Reference>,
}

impl<'a> Choice<'a> {
    fn rows(table: Option<ScaleTable>) -> Self {
        Self { table, tier: None, holder: None, reference: None }
    }

    fn of(holder: &'a PhaseTables, place: Place, table: Option<ScaleTable>, tier: Option<Tier>) -> Self {
        Self { table, tier, holder: Some((holder, place)), reference: None }
    }

    fn record(&self) -> Option<&'a Calibration> {
        self.holder.and_then(|(tables, _)| tables.record.as_ref())
    }

    /// The same table for Edge-LLM's votes, where the record has it.
    fn for_reference(&self, phase: Phase) -> Result<Option<Self>, ExportError> {
        let (Some(record), Some((_, place))) = (self.record(), self.holder) else { return Ok(None) };
        let Some(reference) = Reference::of(phase, &Keys::of(phase).record, record)? else { return Ok(None) };
        let (table, tier) = match place {
            Place::Rung(tier) => (reference.ladder.get(&tier), Some(tier)),
            Place::Deployed => (reference.deployed.as_ref(), reference.target),
            Place::Elsewhere => return Ok(None),
        };
        let Some(table) = table.cloned() else { return Ok(None) };
        if let Some(tier) = tier
            && let Some(share) = reference.never_reached(tier)
        {
            return Err(ExportError::Unreached { phase, tier, share });
        }
        let tier = tier.filter(|tier| reference.ladder.get(tier).is_some_and(|rung| rung.rows() == table.rows()));
        Ok(Some(Self { table: Some(table), tier, reference: Some(reference), ..*self }))
    }
}

/// Writes tables into the text of a config.json: the deployed table, and the target tier where it is one (Edge-LLM looks there first); dense takes
/// both keys out. Where a calibration bounds the lengths, a closing row of S 0 does so for Edge-LLM, which knows no record. All else keeps its bytes.
///
/// A table measured with other votes is exchanged for the one that its record holds for Edge-LLM's, together with the ladder around it.
///
/// `in_force` is what decided here, with the votes it was measured with; it is used for phases without an override. A phase without either stays.
///
/// # Errors
/// [`ExportError`].
pub fn export(
    config: &str,
    overrides: &PerPhase<Override>,
    in_force: &PerPhase<Option<Decision>>,
    force: bool,
) -> Result<Exported, ExportError> {
    let file = TableFile::parse(config.as_bytes())?;
    let mut changes = Vec::new();
    let mut summary = Vec::new();
    for phase in Phase::ALL {
        let said = file.phase(phase);
        let Some(mut choice) = choose(phase, said, &overrides[phase], in_force[phase].as_ref())? else { continue };
        let needed = Geometry::reference(phase);
        if let (Some(measured), Some(_)) = (choice.record().map(|record| record.geometry), &choice.table)
            && measured != needed
        {
            match choice.for_reference(phase)? {
                Some(reference) => choice = reference,
                None if force => {}
                None => return Err(ExportError::Geometry { phase, measured, needed }),
            }
        }
        choice.table = choice.table.map(close);
        summary.push(summarise(phase, &choice));
        changes.extend(write(phase, said, &choice));
    }
    Ok(Exported { text: set_keys(config, &changes)?, summary })
}

fn choose<'a>(
    phase: Phase,
    said: &'a PhaseTables,
    wanted: &'a Override,
    in_force: Option<&Decision>,
) -> Result<Option<Choice<'a>>, ExportError> {
    let choice = match wanted {
        Override::Dense => Choice::rows(None),
        Override::Target(tier) => {
            let table = said.ladder.get(tier).ok_or(ExportError::NoSuchTier { phase, tier: *tier })?;
            Choice::of(said, Place::Rung(*tier), Some(table.clone()), Some(*tier))
        }
        Override::Table(document) => match &**document {
            Document::Rows(table) => Choice::rows(Some(table.clone())),
            Document::Tables(file) => of_file(phase, file.phase(phase))?,
        },
        Override::InForce => match in_force {
            None => return Ok(None),
            Some(decision) => of_decision(said, decision),
        },
    };
    Ok(Some(choice))
}

fn of_file(phase: Phase, given: &PhaseTables) -> Result<Choice<'_>, ExportError> {
    let rung = given.target.and_then(|tier| Some((tier, given.ladder.get(&tier)?)));
    match (&given.deployed, rung) {
        (_, Some((tier, table))) => Ok(Choice::of(given, Place::Rung(tier), Some(table.clone()), None)),
        (Deployed::Table(table), _) => Ok(Choice::of(given, deployed(given, table), Some(table.clone()), None)),
        (Deployed::Dense, _) => Ok(Choice::rows(None)),
        (Deployed::Absent, _) => Err(ExportError::Silent(phase)),
    }
}

fn of_decision<'a>(said: &'a PhaseTables, decision: &Decision) -> Choice<'a> {
    let Some(table) = &decision.table else { return Choice::rows(None) };
    let tier = decision.tier.filter(|tier| said.ladder.get(tier).is_some_and(|rung| rung.rows() == table.rows()));
    let place = tier.map_or_else(|| deployed(said, table), Place::Rung);
    // A table in force is of the checkpoint's calibration where its bound says so; else nobody recorded its votes.
    match table.max_len() {
        Some(_) => Choice::of(said, place, Some(table.clone()), tier),
        None => Choice { tier, ..Choice::rows(Some(table.clone())) },
    }
}

/// Whether a table is the one that calibration deployed: one that was edited by hand has another digest.
fn deployed(said: &PhaseTables, table: &ScaleTable) -> Place {
    let written = said.record.as_ref().and_then(|record| record.table_sha256);
    if written == Some(table.digest()) { Place::Deployed } else { Place::Elsewhere }
}

fn write(phase: Phase, said: &PhaseTables, choice: &Choice<'_>) -> Vec<(String, Option<Value>)> {
    let keys = Keys::of(phase);
    let mut changes =
        vec![(keys.table, choice.table.as_ref().map(ScaleTable::to_json)), (keys.target, choice.tier.map(|tier| json!(tier.share())))];
    let rungs = choice.reference.as_ref().map(|reference| &reference.ladder);
    if rungs.is_some() || choice.tier.is_some() {
        // Edge-LLM reads the tier's rows, so the bound must stand there too; tables for its votes take the place of all others.
        let mut ladder: BTreeMap<Tier, ScaleTable> = match rungs {
            Some(rungs) => rungs.iter().map(|(tier, rung)| (*tier, close(rung.clone()))).collect(),
            None => said.ladder.clone(),
        };
        if let (Some(tier), Some(table)) = (choice.tier, &choice.table) {
            ladder.insert(tier, table.clone());
        }
        let ladder = ladder.iter().map(|(tier, table)| (tier.to_string(), table.to_json())).collect();
        changes.push((keys.ladder, Some(Value::Object(ladder))));
    }
    let record = match &choice.reference {
        Some(reference) => choice.record().map(|record| {
            let mut record = Calibration { geometry: Geometry::reference(phase), unreached: reference.unreached.clone(), ..record.clone() };
            record.extra.shift_remove(REFERENCE);
            record
        }),
        None => said.record.clone(),
    };
    if let Some(record) = record {
        // The export is not an edit by hand: the record follows.
        let record = Calibration { table_sha256: choice.table.as_ref().map(ScaleTable::digest), ..record };
        changes.push((keys.record, serde_json::to_value(record).ok()));
    }
    changes
}

/// The rows with the calibrated range's end as a row of its own.
fn close(table: ScaleTable) -> ScaleTable {
    let Some(end) = table.max_len().and_then(|max| max.checked_add(1)) else { return table };
    let mut rows: Vec<Row> = table.rows().iter().copied().filter(|row| row.first_length < end).collect();
    if rows.last().is_some_and(|row| row.s > 0.0) && rows.len() < ScaleTable::MAX_ROWS {
        rows.push(Row { first_length: end, s: 0.0 });
    }
    ScaleTable::new(rows, table.max_len()).unwrap_or(table)
}

fn summarise(phase: Phase, choice: &Choice<'_>) -> String {
    let votes = if choice.reference.is_some() { ", measured with Edge-LLM's votes beside these" } else { "" };
    match (&choice.table, choice.tier) {
        (None, _) => format!("{phase}: dense"),
        (Some(table), Some(tier)) => format!("{phase}: tier {tier}, {} rows{votes}", table.rows().len()),
        (Some(table), None) => format!("{phase}: {} rows{votes}", table.rows().len()),
    }
}
