//! Tables written into a config.json for TensorRT Edge-LLM, which knows one deployed table, a ladder and a target a phase, and its own vote geometry.

use crate::edit::{EditError, set_keys};
use crate::file::Keys;
use crate::{Decision, Deployed, Document, FileError, Geometry, PerPhase, Phase, PhaseTables, Row, ScaleTable, TableFile, Tier, TierError};
use serde_json::{Value, json};

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

/// One phase's outcome.
struct Choice {
    table: Option<ScaleTable>,
    tier: Option<Tier>,
    /// Votes it was measured with, where recorded.
    geometry: Option<Geometry>,
}

/// Writes tables into the text of a config.json: the deployed table, and the target tier where it is one (Edge-LLM looks there first); dense takes
/// both keys out. Where a calibration bounds the lengths, a closing row of S 0 does so for Edge-LLM, which knows no record. All else keeps its bytes.
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
        choice.table = choice.table.map(close);
        let needed = Geometry::reference(phase);
        if let (Some(measured), Some(_), false) = (choice.geometry, &choice.table, force)
            && measured != needed
        {
            return Err(ExportError::Geometry { phase, measured, needed });
        }
        summary.push(summarise(phase, &choice));
        changes.extend(write(phase, said, &choice));
    }
    Ok(Exported { text: set_keys(config, &changes)?, summary })
}

fn choose(phase: Phase, said: &PhaseTables, wanted: &Override, in_force: Option<&Decision>) -> Result<Option<Choice>, ExportError> {
    let measured = |tables: &PhaseTables| tables.record.as_ref().map(|r| r.geometry);
    let choice = match wanted {
        Override::Dense => Choice { table: None, tier: None, geometry: None },
        Override::Target(tier) => of_ladder(phase, said, *tier)?,
        Override::Table(document) => match &**document {
            Document::Rows(table) => Choice { table: Some(table.clone()), tier: None, geometry: None },
            Document::Tables(file) => {
                let given = file.phase(phase);
                match (&given.deployed, given.target) {
                    (_, Some(tier)) if given.ladder.contains_key(&tier) => {
                        Choice { table: given.ladder.get(&tier).cloned(), tier: None, geometry: measured(given) }
                    }
                    (Deployed::Table(table), _) => Choice { table: Some(table.clone()), tier: None, geometry: measured(given) },
                    (Deployed::Dense, _) => Choice { table: None, tier: None, geometry: None },
                    (Deployed::Absent, _) => return Err(ExportError::Silent(phase)),
                }
            }
        },
        Override::InForce => match in_force {
            None => return Ok(None),
            Some(decision) => Choice {
                table: decision.table.clone(),
                tier: decision
                    .tier
                    .filter(|t| said.ladder.get(t).is_some_and(|rung| Some(rung.rows()) == decision.table.as_ref().map(|t| t.rows()))),
                // A table in force is of the checkpoint's calibration where its bound says so; else nobody recorded its votes.
                geometry: decision.table.as_ref().and_then(|t| t.max_len()).and(measured(said)),
            },
        },
    };
    Ok(Some(choice))
}

fn of_ladder(phase: Phase, said: &PhaseTables, tier: Tier) -> Result<Choice, ExportError> {
    let table = said.ladder.get(&tier).ok_or(ExportError::NoSuchTier { phase, tier })?;
    Ok(Choice { table: Some(table.clone()), tier: Some(tier), geometry: said.record.as_ref().map(|r| r.geometry) })
}

fn write(phase: Phase, said: &PhaseTables, choice: &Choice) -> Vec<(String, Option<Value>)> {
    let keys = Keys::of(phase);
    let mut changes =
        vec![(keys.table, choice.table.as_ref().map(ScaleTable::to_json)), (keys.target, choice.tier.map(|tier| json!(tier.share())))];
    if let (Some(tier), Some(table)) = (choice.tier, &choice.table) {
        // Edge-LLM reads the tier's rows, so the bound must stand there too.
        let mut ladder = said.ladder.clone();
        ladder.insert(tier, table.clone());
        let ladder = ladder.iter().map(|(tier, table)| (tier.to_string(), table.to_json())).collect();
        changes.push((keys.ladder, Some(Value::Object(ladder))));
    }
    if let Some(record) = &said.record {
        // The export is not an edit by hand: the record follows.
        let record = crate::Calibration { table_sha256: choice.table.as_ref().map(ScaleTable::digest), ..record.clone() };
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

fn summarise(phase: Phase, choice: &Choice) -> String {
    match (&choice.table, choice.tier) {
        (None, _) => format!("{phase}: dense"),
        (Some(table), Some(tier)) => format!("{phase}: tier {tier}, {} rows", table.rows().len()),
        (Some(table), None) => format!("{phase}: {} rows", table.rows().len()),
    }
}
