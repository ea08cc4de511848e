//! Takes fields out of a JSON object one by one, so that a wrong type names its field and what is left over is known.

use super::error::Error;
use super::words::words;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The fields of an object not taken yet.
pub(super) struct Fields {
    object: Map<String, Value>,
    /// Where the object lies, with a dot behind (`skipd.`); empty for the outermost.
    place: String,
}

impl Fields {
    pub(super) fn new(object: Map<String, Value>) -> Self {
        Self { object, place: String::new() }
    }

    /// A value that must be an object; errors name its fields under `place`.
    pub(super) fn within(place: &str, value: Value) -> Result<Self, Error> {
        match value {
            Value::Object(object) => Ok(Self { object, place: format!("{place}.") }),
            _ => Err(Error::invalid(place, "must be an object")),
        }
    }

    /// An object inside that may be missing or null.
    pub(super) fn inner(&mut self, name: &str) -> Result<Option<Self>, Error> {
        match self.object.shift_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => Self::within(&self.name(name), value).map(Some),
        }
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    /// A field that may be missing or null.
    pub(super) fn optional<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Error> {
        match self.object.shift_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value).map(Some).map_err(|error| Error::invalid(self.name(name), words(&error))),
        }
    }

    /// A field that must be there.
    pub(super) fn required<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, Error> {
        self.optional(name)?.ok_or_else(|| Error::invalid(self.name(name), "is required"))
    }

    /// What no field was taken from; nulls say nothing and are dropped.
    pub(super) fn rest(mut self) -> Map<String, Value> {
        self.object.retain(|_, value| !value.is_null());
        self.object
    }

    /// What no field was taken from, nulls too.
    pub(super) fn left(self) -> Map<String, Value> {
        self.object
    }

    /// Refuses what no field was taken from.
    pub(super) fn end(self) -> Result<(), Error> {
        let place = self.place.clone();
        match self.rest().keys().next() {
            Some(unknown) => Err(Error::invalid(format!("{place}{unknown}"), format!("`{unknown}` is not an option"))),
            None => Ok(()),
        }
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

/// Paths that the daemon is to read or write: whole ones, for it stands elsewhere than its caller.
pub(super) fn whole_paths<'a>(param: &str, paths: impl IntoIterator<Item = &'a String>) -> Result<(), Error> {
    match paths.into_iter().find(|path| !std::path::Path::new(path).is_absolute()) {
        Some(path) => Err(Error::invalid(param, format!("{path:?} is no absolute path: the daemon stands elsewhere"))),
        None => Ok(()),
    }
}
