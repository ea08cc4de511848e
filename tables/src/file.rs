//! The tables of one file: a checkpoint's config.json, an override file, or bare rows.
//! Every refusal names the field; what the file says of other things is not looked at.

use crate::json::{self, JsonError};
use crate::modelopt;
use crate::unread::{self, Unread};
use crate::{Calibration, PerPhase, Phase, Row, ScaleTable, TableError, Tier};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// More tiers than this in a ladder are refused.
pub const MAX_TIERS: usize = 100;

/// Why a file holds no usable tables.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// No JSON document.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// A field of another type or form.
    #[error("{field}: expected {expected}, found {found}")]
    Form {
        /// Key, with indices: `skip_softmax_prefill_scale_table[3][1]`.
        field: String,
        /// What belongs there.
        expected: &'static str,
        /// What is there, cut short.
        found: String,
    },
    /// Rows that make no table.
    #[error("{field}: {error}")]
    Table {
        /// Key of the table.
        field: String,
        /// What is wrong with the rows.
        error: TableError,
    },
    /// A key that is a slip away from one of ours (table files alone; a config.json may hold what it likes).
    #[error("{field}: no such key; {meant} is meant?")]
    Mistyped {
        /// The key.
        field: String,
        /// Ours.
        meant: String,
    },
    /// A value that its own type refuses (a tier, a record).
    #[error("{field}: {message}")]
    Value {
        /// Key.
        field: String,
        /// The type's own words.
        message: String,
    },
}

/// The deployed table of a phase as a file states it.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Deployed {
    /// The key is not there.
    #[default]
    Absent,
    /// The key is null: dense, said in so many words.
    Dense,
    /// Rows.
    Table(ScaleTable),
}

impl Deployed {
    /// The table, if there is one.
    pub fn table(&self) -> Option<&ScaleTable> {
        match self {
            Self::Table(table) => Some(table),
            Self::Absent | Self::Dense => None,
        }
    }
}

/// What a file says of one phase. Where there is a record, its `max_length` is the tables' `max_len`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhaseTables {
    /// `skip_softmax_<phase>_scale_table`.
    pub deployed: Deployed,
    /// `skip_softmax_<phase>_scale_tables`.
    pub ladder: BTreeMap<Tier, ScaleTable>,
    /// `skip_softmax_<phase>_target_sparsity`.
    pub target: Option<Tier>,
    /// `skip_softmax_<phase>_calibration`.
    pub record: Option<Calibration>,
    /// `skip_softmax_<phase>_force` (override files only): the administrator vouches for the table where hash, geometry or record would refuse it.
    pub force: bool,
}

impl PhaseTables {
    /// Nothing is said of the phase.
    pub fn is_silent(&self) -> bool {
        self.deployed == Deployed::Absent && self.target.is_none()
    }
}

/// The tables of a config.json or an override file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableFile {
    /// Prefill's.
    pub prefill: PhaseTables,
    /// Decode's.
    pub decode: PhaseTables,
    /// `skip_softmax_prefill_shape_advice`, carried as it is.
    pub shape_advice: Option<Value>,
    /// `skip_softmax_price_list`, carried as it is.
    pub price_list: Option<Value>,
    /// ModelOpt's `sparse_attention_config`, which counts in a checkpoint for phases without keys of their own; [`Self::to_object`] leaves it out.
    pub modelopt: PerPhase<modelopt::Found>,
    /// Keys that look like these and are not read; [`Self::to_object`] leaves them out.
    pub unread: Vec<Unread>,
}

/// A table file: bare rows, which know no phase and have no record, or an object with the keys of config.json.
#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    /// `[[length, S], …]`.
    Rows(ScaleTable),
    /// `{"skip_softmax_prefill_scale_table": …}`.
    Tables(Box<TableFile>),
}

impl Document {
    /// Reads a table file.
    ///
    /// # Errors
    /// [`FileError`], naming the field or row; a mistyped key is one.
    pub fn parse(bytes: &[u8]) -> Result<Self, FileError> {
        match json::parse(bytes)? {
            rows @ Value::Array(_) => Ok(Self::Rows(read_rows("table", &rows, None)?)),
            Value::Object(object) => {
                let file = TableFile::read(&object)?;
                let mistyped = file.unread.iter().find_map(|u| Some((u.key.clone(), u.meant.clone()?)));
                match mistyped {
                    Some((field, meant)) => Err(FileError::Mistyped { field, meant }),
                    None => Ok(Self::Tables(Box::new(file))),
                }
            }
            other => Err(form("table file", "rows or an object", &other)),
        }
    }
}

/// The keys of one phase.
pub(crate) struct Keys {
    pub table: String,
    pub ladder: String,
    pub target: String,
    pub record: String,
    pub force: String,
}

impl Keys {
    pub(crate) fn of(phase: Phase) -> Self {
        let key = |what: &str| format!("skip_softmax_{phase}_{what}");
        Self {
            table: key("scale_table"),
            ladder: key("scale_tables"),
            target: key("target_sparsity"),
            record: key("calibration"),
            force: key("force"),
        }
    }
}

const SHAPE_ADVICE: &str = "skip_softmax_prefill_shape_advice";
const PRICE_LIST: &str = "skip_softmax_price_list";

/// Every key that is read.
pub(crate) fn known_keys() -> Vec<String> {
    let of_phases = Phase::ALL.into_iter().flat_map(|phase| {
        let Keys { table, ladder, target, record, force } = Keys::of(phase);
        [table, ladder, target, record, force]
    });
    of_phases.chain([SHAPE_ADVICE, PRICE_LIST].map(str::to_owned)).collect()
}

impl TableFile {
    /// Reads a config.json or an override file; an object without any of the keys is a file without tables.
    ///
    /// # Errors
    /// [`FileError`], naming the field or row.
    pub fn parse(bytes: &[u8]) -> Result<Self, FileError> {
        match json::parse(bytes)? {
            Value::Object(object) => Self::read(&object),
            other => Err(form("document", "an object", &other)),
        }
    }

    /// Reads the keys out of a parsed object.
    ///
    /// # Errors
    /// [`FileError`], naming the field or row.
    pub fn read(object: &Map<String, Value>) -> Result<Self, FileError> {
        Ok(Self {
            prefill: read_phase(object, Phase::Prefill)?,
            decode: read_phase(object, Phase::Decode)?,
            shape_advice: object.get(SHAPE_ADVICE).cloned(),
            price_list: object.get(PRICE_LIST).cloned(),
            modelopt: modelopt::read(object),
            unread: unread::find(object),
        })
    }

    /// What is said of a phase.
    pub fn phase(&self, phase: Phase) -> &PhaseTables {
        match phase {
            Phase::Prefill => &self.prefill,
            Phase::Decode => &self.decode,
        }
    }

    /// The same, to change.
    pub fn phase_mut(&mut self, phase: Phase) -> &mut PhaseTables {
        match phase {
            Phase::Prefill => &mut self.prefill,
            Phase::Decode => &mut self.decode,
        }
    }

    /// The object [`Self::read`] reads back.
    pub fn to_object(&self) -> Map<String, Value> {
        let mut object = Map::new();
        for phase in Phase::ALL {
            write_phase(&mut object, phase, self.phase(phase));
        }
        let opaque = [(SHAPE_ADVICE, &self.shape_advice), (PRICE_LIST, &self.price_list)];
        for (key, value) in opaque {
            if let Some(value) = value {
                object.insert(key.into(), value.clone());
            }
        }
        object
    }
}

fn read_phase(object: &Map<String, Value>, phase: Phase) -> Result<PhaseTables, FileError> {
    let keys = Keys::of(phase);
    let record = match object.get(&keys.record) {
        None | Some(Value::Null) => None,
        Some(value) => Some(read_record(&keys.record, value)?),
    };
    let max_len = record.as_ref().map(|r| r.max_length);
    let deployed = match object.get(&keys.table) {
        None => Deployed::Absent,
        Some(Value::Null) => Deployed::Dense,
        Some(rows) => Deployed::Table(read_rows(&keys.table, rows, max_len)?),
    };
    let target = match object.get(&keys.target) {
        None | Some(Value::Null) => None,
        Some(value) => Some(read_tier(&keys.target, value)?),
    };
    let force = match object.get(&keys.force) {
        None | Some(Value::Null) => false,
        Some(Value::Bool(force)) => *force,
        Some(other) => return Err(form(&keys.force, "true or false", other)),
    };
    let ladder = match object.get(&keys.ladder) {
        None | Some(Value::Null) => BTreeMap::new(),
        Some(value) => read_ladder(&keys.ladder, value, max_len)?,
    };
    Ok(PhaseTables { deployed, ladder, target, record, force })
}

pub(crate) fn read_ladder(field: &str, value: &Value, max_len: Option<u32>) -> Result<BTreeMap<Tier, ScaleTable>, FileError> {
    let Value::Object(tiers) = value else {
        return Err(form(field, "an object of tables keyed by tier", value));
    };
    if tiers.len() > MAX_TIERS {
        return Err(FileError::Value { field: field.into(), message: format!("{} tiers: at most {MAX_TIERS}", tiers.len()) });
    }
    let mut ladder = BTreeMap::new();
    for (name, rows) in tiers {
        let field = format!("{field}[{:?}]", cut(name));
        let tier: Tier = name.parse().map_err(|e: crate::TierError| FileError::Value { field: field.clone(), message: e.to_string() })?;
        if ladder.insert(tier, read_rows(&field, rows, max_len)?).is_some() {
            return Err(FileError::Value { field, message: format!("tier {tier} is there twice") });
        }
    }
    Ok(ladder)
}

pub(crate) fn read_tier(field: &str, value: &Value) -> Result<Tier, FileError> {
    let tier = match value {
        Value::Number(number) => Tier::from_number(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => text.parse(),
        other => return Err(form(field, "a share or a percentage", other)),
    };
    tier.map_err(|e| FileError::Value { field: field.into(), message: e.to_string() })
}

fn read_record(field: &str, value: &Value) -> Result<Calibration, FileError> {
    let wrong = |message: String| FileError::Value { field: field.into(), message };
    let record = Calibration::deserialize(value).map_err(|e| wrong(e.to_string()))?;
    if record.max_length < record.min_length {
        return Err(wrong(format!("max_length {} is below min_length {}", record.max_length, record.min_length)));
    }
    Ok(record)
}

/// Reads `[[length, S], …]`.
pub(crate) fn read_rows(field: &str, value: &Value, max_len: Option<u32>) -> Result<ScaleTable, FileError> {
    let Value::Array(values) = value else {
        return Err(form(field, "rows [[length, S], …]", value));
    };
    let refused = |error| FileError::Table { field: field.into(), error };
    if values.len() > ScaleTable::MAX_ROWS {
        return Err(refused(TableError::TooManyRows(values.len())));
    }
    let mut rows = Vec::with_capacity(values.len());
    for (index, row) in values.iter().enumerate() {
        let Some([length, s]) = row.as_array().map(Vec::as_slice) else {
            return Err(form(&format!("{field}[{index}]"), "a row [length, S]", row));
        };
        let first_length = read_length(length)
            .ok_or_else(|| form(&format!("{field}[{index}][0]"), "a length in keys, a whole number from 0 on", length))?;
        let s = read_s(s).ok_or_else(|| form(&format!("{field}[{index}][1]"), "S, a number", s))?;
        rows.push(Row { first_length, s });
    }
    ScaleTable::new(rows, max_len).map_err(refused)
}

/// A length, also where a tool wrote 4096.0.
fn read_length(value: &Value) -> Option<u32> {
    let number = value.as_f64()?;
    (number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number)).then_some(number as u32)
}

/// A number, or the non-finite words that [`json::parse`] turned into strings, left to the table's own check.
fn read_s(value: &Value) -> Option<f32> {
    match value {
        Value::Number(number) => number.as_f64().map(|s| s as f32),
        Value::String(word) if matches!(word.as_str(), "NaN" | "Infinity" | "-Infinity") => Some(f32::NAN),
        _ => None,
    }
}

fn write_phase(object: &mut Map<String, Value>, phase: Phase, tables: &PhaseTables) {
    let keys = Keys::of(phase);
    match &tables.deployed {
        Deployed::Absent => {}
        Deployed::Dense => {
            object.insert(keys.table, Value::Null);
        }
        Deployed::Table(table) => {
            object.insert(keys.table, table.to_json());
        }
    }
    if !tables.ladder.is_empty() {
        let ladder = tables.ladder.iter().map(|(tier, table)| (tier.to_string(), table.to_json())).collect();
        object.insert(keys.ladder, Value::Object(ladder));
    }
    if let Some(target) = tables.target {
        object.insert(keys.target, json!(target.share()));
    }
    if let Some(record) = &tables.record {
        // A record holds only strings, integers, finite numbers and JSON values.
        object.insert(keys.record, serde_json::to_value(record).unwrap_or(Value::Null));
    }
    if tables.force {
        object.insert(keys.force, Value::Bool(true));
    }
}

pub(crate) fn form(field: &str, expected: &'static str, found: &Value) -> FileError {
    FileError::Form { field: field.into(), expected, found: cut(&found.to_string()) }
}

/// The first characters of a text from outside, so that an error stays a line.
pub(crate) fn cut(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.into(),
    }
}
