//! Reading JSON objects field by field, so that every complaint names the file and the field.

use super::CheckpointError;
use serde_json::{Map, Value};
use std::path::Path;

/// A JSON object of a file (or an object inside it), with what errors need.
pub(super) struct Fields<'a> {
    path: &'a Path,
    prefix: &'static str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The file's outermost object.
    pub fn root(path: &'a Path, value: &'a Value) -> Result<Self, CheckpointError> {
        let map = value.as_object().ok_or_else(|| CheckpointError::Json { path: path.to_owned(), detail: "not a JSON object".into() })?;
        Ok(Self { path, prefix: "", map })
    }

    /// An object inside, None where absent or null. `prefix` is its name with a dot, for errors.
    pub fn inner(&self, field: &str, prefix: &'static str) -> Result<Option<Fields<'a>>, CheckpointError> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields { path: self.path, prefix, map })),
            Some(_) => Err(self.bad(field, "not an object".into())),
        }
    }

    /// The value; None where absent or null.
    pub fn value(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|v| !v.is_null())
    }

    /// There, though perhaps null.
    pub fn has(&self, field: &str) -> bool {
        self.map.contains_key(field)
    }

    /// Absent or null.
    pub fn is_null(&self, field: &str) -> bool {
        self.value(field).is_none()
    }

    /// A complaint about a field.
    pub fn bad(&self, field: &str, detail: String) -> CheckpointError {
        CheckpointError::Field { path: self.path.to_owned(), field: format!("{}{field}", self.prefix), detail }
    }

    fn required(&self, field: &str) -> Result<&'a Value, CheckpointError> {
        self.value(field).ok_or_else(|| self.bad(field, "missing".into()))
    }

    /// A text.
    pub fn text(&self, field: &str) -> Result<&'a str, CheckpointError> {
        self.required(field)?.as_str().ok_or_else(|| self.bad(field, "not a string".into()))
    }

    /// A text with a default.
    pub fn text_or(&self, field: &str, default: &'a str) -> Result<&'a str, CheckpointError> {
        if self.is_null(field) { Ok(default) } else { self.text(field) }
    }

    /// A count from 1 to `max`.
    pub fn count(&self, field: &str, max: usize) -> Result<usize, CheckpointError> {
        let value = self.required(field)?;
        match value.as_u64() {
            Some(n) if n >= 1 && n <= max as u64 => Ok(n as usize),
            Some(n) => Err(self.bad(field, format!("{n} is not between 1 and {max}"))),
            None => Err(self.bad(field, format!("{value} is not a whole number between 1 and {max}"))),
        }
    }

    /// A count with a default.
    pub fn count_or(&self, field: &str, max: usize, default: usize) -> Result<usize, CheckpointError> {
        if self.is_null(field) { Ok(default) } else { self.count(field, max) }
    }

    /// A number above 0 and at most `max`.
    pub fn positive(&self, field: &str, max: f64) -> Result<f64, CheckpointError> {
        let value = self.required(field)?;
        match value.as_f64() {
            Some(x) if x > 0.0 && x <= max => Ok(x),
            _ => Err(self.bad(field, format!("{value} is not a number above 0 and at most {max}"))),
        }
    }

    /// A positive number with a default.
    pub fn positive_or(&self, field: &str, max: f64, default: f64) -> Result<f64, CheckpointError> {
        if self.is_null(field) { Ok(default) } else { self.positive(field, max) }
    }

    /// A share, above 0 and at most 1, with a default.
    pub fn fraction_or(&self, field: &str, default: f64) -> Result<f64, CheckpointError> {
        self.positive_or(field, 1.0, default)
    }

    /// A switch with a default.
    pub fn flag_or(&self, field: &str, default: bool) -> Result<bool, CheckpointError> {
        match self.value(field) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(_) => Err(self.bad(field, "neither true nor false".into())),
        }
    }

    /// Token ids below `vocab`: one number or a list of at most 64; empty where absent.
    pub fn token_ids(&self, field: &str, vocab: usize) -> Result<Vec<u32>, CheckpointError> {
        let id = |v: &Value| match v.as_u64().map(u32::try_from) {
            Some(Ok(id)) if (id as usize) < vocab => Ok(id),
            Some(_) => Err(self.bad(field, format!("{v} is outside the vocabulary of {vocab}"))),
            None => Err(self.bad(field, format!("{v} is not a token id"))),
        };
        match self.value(field) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) if list.len() > 64 => Err(self.bad(field, "more than 64 token ids".into())),
            Some(Value::Array(list)) => list.iter().map(id).collect(),
            Some(one) => Ok(vec![id(one)?]),
        }
    }
}
