//! Tables for the reference documentation's votes, which a decode record carries beside tables for other votes: what an export for other engines takes.

use crate::file::{cut, form, read_ladder, read_rows, read_tier};
use crate::{Calibration, FileError, Geometry, Phase, ScaleTable, Tier, Unreached};
use serde::Deserialize as _;
use serde_json::Value;
use std::collections::BTreeMap;

/// Where in a record they lie.
pub(crate) const REFERENCE: &str = "reference";

/// They are keyed like a phase's own tables, and hold for the record's lengths.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reference {
    /// The deployed table.
    pub deployed: Option<ScaleTable>,
    /// A table a tier.
    pub ladder: BTreeMap<Tier, ScaleTable>,
    /// The deployed tier.
    pub target: Option<Tier>,
    /// What these votes do not reach.
    pub unreached: Vec<Unreached>,
}

impl Reference {
    /// Reads them out of a phase's record; None where it has none, or they are for other votes than the reference documentation's.
    ///
    /// # Errors
    /// [`FileError`], naming the field.
    pub fn of(phase: Phase, key: &str, record: &Calibration) -> Result<Option<Self>, FileError> {
        let field = format!("{key}.{REFERENCE}");
        let object = match record.extra.get(REFERENCE) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Object(object)) => object,
            Some(other) => return Err(form(&field, "an object", other)),
        };
        let at = |name: &str| format!("{field}.{name}");
        let given = |name: &str| object.get(name).filter(|value| !value.is_null());
        let wrong = |name: &str, error: serde_json::Error| FileError::Value { field: at(name), message: cut(&error.to_string()) };
        let geometry = given("geometry").ok_or_else(|| form(&at("geometry"), "votes", &Value::Null))?;
        if Geometry::deserialize(geometry).map_err(|error| wrong("geometry", error))? != Geometry::reference(phase) {
            return Ok(None);
        }
        let max_len = Some(record.max_length);
        let ladder = given("scale_tables").map(|value| read_ladder(&at("scale_tables"), value, max_len)).transpose()?;
        let unreached = given("unreached").map(|value| Vec::deserialize(value).map_err(|error| wrong("unreached", error))).transpose()?;
        Ok(Some(Self {
            deployed: given("scale_table").map(|value| read_rows(&at("scale_table"), value, max_len)).transpose()?,
            ladder: ladder.unwrap_or_default(),
            target: given("target_sparsity").map(|value| read_tier(&at("target_sparsity"), value)).transpose()?,
            unreached: unreached.unwrap_or_default(),
        }))
    }

    /// The share reached where no bin reaches the tier.
    pub fn never_reached(&self, tier: Tier) -> Option<f64> {
        self.unreached.iter().find(|u| u.tier == tier && u.first_length.is_none()).map(|u| u.share)
    }
}
