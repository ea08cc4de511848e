//! Takes fields out of a JSON object one by one, so that a wrong type names its field and what is left over is known.

use super::error::Error;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The fields of an object not taken yet.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    pub(super) fn new(object: Map<String, Value>) -> Self {
        Self(object)
    }

    /// A field that may be missing or null.
    pub(super) fn optional<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Error> {
        match self.0.shift_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value).map(Some).map_err(|error| Error::invalid(name, error.to_string())),
        }
    }

    /// A field that must be there.
    pub(super) fn required<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, Error> {
        self.optional(name)?.ok_or_else(|| Error::invalid(name, "is required"))
    }

    /// What no field was taken from; nulls say nothing and are dropped.
    pub(super) fn rest(mut self) -> Map<String, Value> {
        self.0.retain(|_, value| !value.is_null());
        self.0
    }
}

/// A request's body as an object.
pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, Error> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Error::new(super::ErrorKind::InvalidRequest, "the body must be a JSON object")),
        Err(error) => Err(Error::new(super::ErrorKind::InvalidRequest, format!("the body is not JSON: {error}"))),
    }
}
