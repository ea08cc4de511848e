//! Scale tables on the wire: which is in force and why, which there are, and how to set another.

use super::error::{Error, ErrorKind};
use super::fields::Fields;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use skip_tables::Phase;
use std::time::Duration;

/// A row `[first_length, S]`.
pub type TableRow = (u32, f32);

/// What to put in force: a tier of the ladder, dense, or a table as it is.
/// On the wire a string (`"50%"`, `"none"`, or a table as JSON text), a number (0.5), or the table itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum Selector {
    /// Dense.
    None,
    /// A tier, as the ladder or the caller spells it.
    Tier(String),
    /// Bare rows or a table object (tables.md), not checked yet.
    Table(Value),
}

impl std::str::FromStr for Selector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.trim() {
            "" => Err(Error::invalid("selector", "must be a tier, `none` or a table")),
            "none" => Ok(Selector::None),
            // Reads a bare NaN as a string, so that the row which holds it is named when the table is checked.
            table if table.starts_with(['[', '{']) => skip_tables::parse_json(table.as_bytes())
                .map(Selector::Table)
                .map_err(|error| Error::invalid("selector", format!("the table: {error}"))),
            tier => Ok(Selector::Tier(tier.to_owned())),
        }
    }
}

impl TryFrom<Value> for Selector {
    type Error = Error;

    fn try_from(value: Value) -> Result<Self, Error> {
        match value {
            Value::String(text) => text.parse(),
            Value::Number(number) => Ok(Selector::Tier(number.to_string())),
            table @ (Value::Array(_) | Value::Object(_)) => Ok(Selector::Table(table)),
            Value::Null | Value::Bool(_) => Err(Error::invalid("selector", "must be a tier, `none` or a table")),
        }
    }
}

impl From<Selector> for Value {
    fn from(selector: Selector) -> Self {
        match selector {
            Selector::None => "none".into(),
            Selector::Tier(tier) => tier.into(),
            Selector::Table(table) => table,
        }
    }
}

impl std::fmt::Display for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Selector::None => f.write_str("none"),
            Selector::Tier(tier) => f.write_str(tier),
            Selector::Table(table) => table.fmt(f),
        }
    }
}

/// Body of `PUT /skipd/v1/tables/{phase}`; answered by [`PhaseTable`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetTable {
    /// What to put in force.
    pub selector: Selector,
    /// Keep it over restarts. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub persist: bool,
    /// Go back by itself after this many seconds unless confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_within: Option<f64>,
    /// Accept another checkpoint's or geometry's table, or an unreached tier. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// Longest `confirm_within`, seconds: one day.
pub const MAX_CONFIRM_WITHIN: f64 = 86_400.0;

/// [`SetTable`] without its selector: the `a{sv}` of the bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetTableOptions {
    /// See [`SetTable::persist`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub persist: bool,
    /// See [`SetTable::confirm_within`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_within: Option<f64>,
    /// See [`SetTable::force`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

impl SetTableOptions {
    /// Reads an object's fields; the error names the one that is wrong or unknown.
    pub fn from_object(object: Map<String, Value>) -> Result<Self, Error> {
        Self::take(Fields::new(object))
    }

    fn take(mut fields: Fields) -> Result<Self, Error> {
        let options = Self {
            persist: fields.optional("persist")?.unwrap_or(false),
            confirm_within: fields.optional("confirm_within")?,
            force: fields.optional("force")?.unwrap_or(false),
        };
        fields.end()?;
        Ok(options)
    }

    /// The time within which to confirm; an impossible one is an error.
    pub fn confirm_within(&self) -> Result<Option<Duration>, Error> {
        match self.confirm_within {
            None => Ok(None),
            Some(s) if s > 0.0 && s <= MAX_CONFIRM_WITHIN => Ok(Some(Duration::from_secs_f64(s))),
            Some(s) => Err(Error::invalid("confirm_within", format!("{s:?} s is not in (0, {MAX_CONFIRM_WITHIN}]"))),
        }
    }
}

impl SetTable {
    /// Parses a body; the error names the field. A bare NaN is left to the table's own check, which names the row.
    pub fn from_json(body: &[u8]) -> Result<Self, Error> {
        let wrong = |message: String| Error::new(ErrorKind::InvalidRequest, message);
        let object = match skip_tables::parse_json(body) {
            Ok(Value::Object(object)) => object,
            Ok(_) => return Err(wrong("the body must be a JSON object".into())),
            Err(error) => return Err(wrong(format!("the body: {error}"))),
        };
        let mut fields = Fields::new(object);
        let selector = Selector::try_from(fields.required::<Value>("selector")?)?;
        Ok(Self::from_parts(selector, SetTableOptions::take(fields)?))
    }

    /// Selector and options apart.
    pub fn into_parts(self) -> (Selector, SetTableOptions) {
        (self.selector, SetTableOptions { persist: self.persist, confirm_within: self.confirm_within, force: self.force })
    }

    /// From selector and options.
    pub fn from_parts(selector: Selector, options: SetTableOptions) -> Self {
        Self { selector, persist: options.persist, confirm_within: options.confirm_within, force: options.force }
    }
}

/// `GET /skipd/v1/tables`: both phases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableShow {
    /// For prompts.
    pub prefill: PhaseTable,
    /// For answers.
    pub decode: PhaseTable,
}

impl TableShow {
    /// One phase.
    pub fn phase(&self, phase: Phase) -> &PhaseTable {
        match phase {
            Phase::Prefill => &self.prefill,
            Phase::Decode => &self.decode,
        }
    }
}

/// The table in force in one phase, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseTable {
    /// The phase.
    pub phase: Phase,
    /// Tier, if the table is one of a ladder.
    #[serde(default)]
    pub tier: Option<String>,
    /// Rows `[first_length, S]`; null: dense.
    #[serde(default)]
    pub rows: Option<Vec<TableRow>>,
    /// Longest calibrated length, tokens; beyond it attention is dense.
    #[serde(default)]
    pub max_length: Option<u32>,
    /// Which row of the precedence decided.
    pub decided_by: DecidedBy,
    /// File and key the table lies in; empty where there is none.
    #[serde(default)]
    pub location: String,
    /// SHA-256 over the rows, hexadecimal; null: dense.
    #[serde(default)]
    pub hash: Option<String>,
    /// Counts changes of the table in force since the daemon started.
    #[serde(default)]
    pub version: u64,
    /// What a person should know: edited by hand, unrecorded, dense beyond the calibrated length, drift.
    #[serde(default)]
    pub notices: Vec<String>,
    /// Set when the table goes away by itself unless confirmed.
    #[serde(default)]
    pub pending: Option<Pending>,
    /// Share of votes skipped under this table since it came in force, in [0, 1]; null: no votes.
    #[serde(default)]
    pub measured: Option<f64>,
}

impl PhaseTable {
    /// The tier, else `sha256:` and 12 digits of the hash; None where dense. The same name stands in usage.
    pub fn name(&self) -> Option<String> {
        self.rows.as_ref()?;
        self.tier.clone().or_else(|| self.hash.as_deref().map(short_hash))
    }
}

/// How a table without a tier is named: `sha256:` and the first 12 digits.
pub fn short_hash(hash: &str) -> String {
    format!("sha256:{}", hash.get(..12).unwrap_or(hash))
}

/// The precedence, first match first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DecidedBy {
    /// `set-table`, until restart.
    SetTable,
    /// A persisted `set-table`.
    Persisted,
    /// `/etc/skipd/tables.json`.
    Admin,
    /// A committed update.
    Update,
    /// The checkpoint's config.json.
    Checkpoint,
    /// Nothing: dense.
    #[default]
    Default,
}

impl DecidedBy {
    /// The word on the wire.
    pub fn name(self) -> &'static str {
        match self {
            DecidedBy::SetTable => "set-table",
            DecidedBy::Persisted => "persisted",
            DecidedBy::Admin => "admin",
            DecidedBy::Update => "update",
            DecidedBy::Checkpoint => "checkpoint",
            DecidedBy::Default => "default",
        }
    }
}

impl std::fmt::Display for DecidedBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A table on trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pending {
    /// Milliseconds until it is taken back.
    pub remaining_ms: u64,
    /// When that is, Unix milliseconds.
    pub deadline_unix_ms: u64,
    /// Name of the table that comes back; null: dense.
    #[serde(default)]
    pub previous: Option<String>,
    /// Whether confirming also persists it.
    #[serde(default)]
    pub persist: bool,
}

/// `GET /skipd/v1/tiers`: the checkpoint's ladders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TierList {
    /// Ascending by sparsity.
    pub prefill: Vec<Tier>,
    /// Ascending by sparsity.
    pub decode: Vec<Tier>,
}

/// One tier of a ladder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tier {
    /// As the ladder spells it, e.g. `50%`.
    pub name: String,
    /// Rows `[first_length, S]`; S 0 is a dense bin.
    pub rows: Vec<TableRow>,
    /// Whether new requests start with it.
    #[serde(default)]
    pub in_force: bool,
    /// First lengths of the bins that no λ < 1 reached; they run dense.
    #[serde(default)]
    pub unreached_bins: Vec<u32>,
    /// False where no bin was reached; such a tier is refused unless forced.
    #[serde(default = "yes")]
    pub reached: bool,
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_selector_is_a_tier_none_or_a_table() {
        let parse = |value: Value| serde_json::from_value::<Selector>(value);
        assert_eq!(parse(json!("none")).unwrap(), Selector::None);
        assert_eq!(parse(json!("50%")).unwrap(), Selector::Tier("50%".into()));
        assert_eq!(parse(json!(0.5)).unwrap(), Selector::Tier("0.5".into()));
        assert_eq!(parse(json!("[[256, 3.5]]")).unwrap(), Selector::Table(json!([[256, 3.5]])));
        assert_eq!(parse(json!([[256, 3.5]])).unwrap(), Selector::Table(json!([[256, 3.5]])));
        for wrong in [json!(null), json!(""), json!("[[1,"), json!(true)] {
            assert!(parse(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_wrong_set_table_names_its_field() {
        for (body, param) in [
            (r#"{"selector": null}"#, Some("selector")),
            (r#"{"selector": true}"#, Some("selector")),
            (r#"{"selector": "none", "force": "yes"}"#, Some("force")),
            (r#"{"selector": "none", "confirm_within": NaN}"#, Some("confirm_within")),
            (r#"{"selector": "none", "forced": true}"#, Some("forced")),
            (r#"{"selector": "none", "selector": "50%"}"#, None),
            ("[]", None),
        ] {
            assert_eq!(SetTable::from_json(body.as_bytes()).unwrap_err().param.as_deref(), param, "{body}");
        }
        let wanted = SetTable::from_json(br#"{"selector": [[1024, NaN]], "persist": true, "confirm_within": 5}"#).unwrap();
        assert_eq!(wanted.into_parts().1, SetTableOptions { persist: true, confirm_within: Some(5.0), force: false });
    }

    #[test]
    fn set_table_refuses_fields_it_does_not_know() {
        let body = json!({"selector": "50%", "confirm_within": 60});
        let set: SetTable = serde_json::from_value(body).unwrap();
        assert_eq!(set.into_parts().1.confirm_within().unwrap(), Some(Duration::from_secs(60)));
        assert!(serde_json::from_value::<SetTable>(json!({"selector": "50%", "forever": true})).is_err());
        for s in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            assert!(SetTableOptions { confirm_within: Some(s), ..Default::default() }.confirm_within().is_err(), "{s}");
        }
    }
}
