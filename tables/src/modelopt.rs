//! ModelOpt's `sparse_attention_config`: a fitted curve S = a·exp(b·target) a phase, from which one S for all lengths follows.
//! Only that formula is evaluated; whatever else would change which tiles are skipped is refused by its name.

use crate::file::{cut, read_tier};
use crate::{Geometry, PerPhase, Phase, Row, ScaleTable, Tier};
use serde_json::{Map, Value};

/// Where ModelOpt writes it in a config.json.
pub const KEY: &str = "sparse_attention_config";
/// More groups than this are not looked through.
const MOST_GROUPS: usize = 100;
/// Keys of a group that make its threshold depend on what is not modelled here: layers left out, steps of a diffusion.
const UNSUPPORTED: [&str; 3] = ["ignore", "initial_disabled_steps", "disabled_until_timestep"];

/// What ModelOpt recorded for a phase, as a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Modelopt {
    /// One row, from length 0 on: where S ≥ L attention is dense.
    pub table: ScaleTable,
    /// The share of tiles the S was fitted for.
    pub target: Tier,
    /// The other algorithms that the file asks for and that are not done here.
    pub left_out: Vec<String>,
}

impl Modelopt {
    /// The one S.
    pub fn s(&self) -> f32 {
        self.table.rows().first().map_or(0.0, |row| row.s)
    }

    /// Votes that ModelOpt simulates: each head for itself in both phases.
    pub const fn geometry(phase: Phase) -> Geometry {
        Geometry { voting: crate::Voting::Head, ..Geometry::reference(phase) }
    }
}

/// Why it cannot be converted: the field and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct ModeloptError {
    /// Path of the field.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
}

/// A phase of a config.json: nothing said, a table, or the reason why there is none.
pub type Found = Option<Result<Modelopt, ModeloptError>>;

/// Reads what a config.json says of each phase.
pub(crate) fn read(object: &Map<String, Value>) -> PerPhase<Found> {
    match object.get(KEY) {
        None | Some(Value::Null) => PerPhase::default(),
        Some(config) => match group(config) {
            Ok(group) => PerPhase::from_fn(|phase| of_phase(&group, phase).transpose()),
            Err(error) => PerPhase::from_fn(|_| Some(Err(error.clone()))),
        },
    }
}

/// The group that skips tiles, and where it lies.
struct Group<'a> {
    place: String,
    fields: &'a Map<String, Value>,
    left_out: Vec<String>,
}

fn error(field: impl Into<String>, reason: impl Into<String>) -> ModeloptError {
    ModeloptError { field: field.into(), reason: reason.into() }
}

fn group(config: &Value) -> Result<Group<'_>, ModeloptError> {
    let Value::Object(config) = config else { return Err(error(KEY, format!("expected an object, found {}", cut(&config.to_string())))) };
    // Older files have no groups: the object itself is one.
    let groups: Vec<(String, &Value)> = match config.get("config_groups") {
        Some(Value::Object(groups)) => {
            groups.iter().take(MOST_GROUPS).map(|(name, group)| (format!("{KEY}.config_groups.{}", cut(name)), group)).collect()
        }
        Some(other) => return Err(error(format!("{KEY}.config_groups"), format!("expected an object, found {}", cut(&other.to_string())))),
        None => {
            let fields = Group { place: KEY.into(), fields: config, left_out: Vec::new() };
            return match algorithm(config) {
                Some(name) if skips(name) => Ok(fields),
                name => Err(no_group(name.map(cut))),
            };
        }
    };
    let mut found: Option<Group<'_>> = None;
    let mut left_out = Vec::new();
    for (place, group) in groups {
        let Value::Object(fields) = group else {
            return Err(error(place, format!("expected an object, found {}", cut(&group.to_string()))));
        };
        match algorithm(fields) {
            Some(name) if skips(name) && found.is_some() => return Err(error(place, "a second group with skip_softmax: one is read")),
            Some(name) if skips(name) => found = Some(Group { place, fields, left_out: Vec::new() }),
            Some(name) => left_out.push(cut(name)),
            None => return Err(error(place, "names no algorithm")),
        }
    }
    match found {
        Some(group) => Ok(Group { left_out, ..group }),
        None => Err(no_group(left_out.into_iter().next())),
    }
}

fn no_group(other: Option<String>) -> ModeloptError {
    let other = other.map(|name| format!("; {name} is not done here")).unwrap_or_default();
    error(KEY, format!("no group with the algorithm skip_softmax{other}"))
}

fn algorithm(fields: &Map<String, Value>) -> Option<&str> {
    fields.get("algorithm").or_else(|| fields.get("sparse_algo")).and_then(Value::as_str)
}

fn skips(name: &str) -> bool {
    matches!(name, "skip_softmax" | "softmax_skip")
}

fn of_phase(group: &Group<'_>, phase: Phase) -> Result<Option<Modelopt>, ModeloptError> {
    let at = |field: &str| format!("{}.{field}", group.place);
    for name in UNSUPPORTED {
        if group.fields.get(name).is_some_and(|value| !asks_for_nothing(value)) {
            return Err(error(at(name), "is not supported: a table holds for every full-attention layer and step"));
        }
    }
    let factor = match group.fields.get("threshold_scale_factor") {
        Some(Value::Object(factor)) => factor,
        Some(other) => {
            return Err(error(
                at("threshold_scale_factor"),
                format!("expected a formula and its coefficients, found {}", cut(&other.to_string())),
            ));
        }
        None => return Err(error(at("threshold_scale_factor"), "is missing: the group is not calibrated")),
    };
    let at = |field: &str| format!("{}.threshold_scale_factor.{field}", group.place);
    let formula = factor.get("formula").and_then(Value::as_str).ok_or_else(|| error(at("formula"), "is missing, or no text"))?;
    if formula.split_whitespace().collect::<String>() != "a*exp(b*target_sparsity)" {
        return Err(error(at("formula"), format!("`{}` is not read, only `a * exp(b * target_sparsity)`", cut(formula))));
    }
    let coefficients = match factor.get(phase.name()) {
        None | Some(Value::Null) => return Ok(None),
        Some(value) => value,
    };
    let number = |name: &str| {
        let value = coefficients.get(name).and_then(Value::as_f64).filter(|value| value.is_finite());
        value.ok_or_else(|| error(at(&format!("{phase}.{name}")), "expected a finite number"))
    };
    let (a, b) = (number("a")?, number("b")?);
    let target = target(group, phase)?;
    let s = (a * (b * target.share()).exp()) as f32;
    let table = ScaleTable::new(vec![Row { first_length: 0, s }], None).ok().filter(|_| s > 0.0);
    let table =
        table.ok_or_else(|| error(at(phase.name()), format!("S = {a} * exp({b} * {}) is no finite number above 0", target.share())))?;
    Ok(Some(Modelopt { table, target, left_out: group.left_out.clone() }))
}

/// The share that is aimed at: one for both phases, or one each.
fn target(group: &Group<'_>, phase: Phase) -> Result<Tier, ModeloptError> {
    let field = format!("{}.target_sparsity", group.place);
    let value = match group.fields.get("target_sparsity") {
        Some(Value::Object(phases)) => phases.get(phase.name()),
        value => value,
    };
    let value = value.ok_or_else(|| error(&field, format!("says nothing of {phase}")))?;
    read_tier(&field, value).map_err(|e| error(&field, e.to_string().trim_start_matches(&format!("{field}: ")).to_owned()))
}

/// An empty list, nothing, zero.
fn asks_for_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}
