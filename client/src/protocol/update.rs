//! Updates of tables over the air, on the wire: which is in force, which on trial, and how to take one.

use super::error::Error;
use super::fields::object;
use serde::{Deserialize, Serialize};

/// `POST /skipd/v1/update/apply` with a path that the daemon can read. Or else the body is the bundle's archive itself, of at most 34 MiB.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplyUpdate {
    /// A bundle: an archive, or a folder with `metadata` and `targets`.
    pub path: String,
    /// Where the clock is behind what has passed for sure, judge expiry at that moment. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relax_expiry: bool,
}

impl ApplyUpdate {
    /// Reads a body.
    ///
    /// # Errors
    /// It is no object, or has other fields.
    pub fn from_json(body: &[u8]) -> Result<Self, Error> {
        serde_json::from_value(object(body)?.into()).map_err(|error| Error::invalid("body", error.to_string()))
    }
}

/// What updates brought: nothing of it is there where none was ever taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UpdateShow {
    /// The update in force.
    pub active: Option<UpdateSlot>,
    /// The one before, which a rollback returns to.
    pub previous: Option<UpdateSlot>,
    /// The one that has not shown yet that it is good.
    pub probation: Option<Probation>,
    /// Versions above this one are taken.
    pub floor: u64,
    /// Why the last trial or rollback ended as it did.
    pub reason: Option<String>,
    /// What was found damaged and is passed over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// An update in the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UpdateSlot {
    /// Its name there.
    pub slot: String,
    /// Its version.
    pub version: u64,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// What its maker says of it.
    pub note: String,
    /// SHA-256 over the weights that its tables are for.
    pub checkpoint: String,
}

/// An update on trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probation {
    /// The update.
    pub slot: UpdateSlot,
    /// How often it may still be begun.
    pub tries_left: u32,
    /// What is being measured; empty where nothing is.
    pub stage: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_and_other_fields_are_refused() {
        let wanted = ApplyUpdate { path: "/media/usb/bundle.tar".into(), relax_expiry: false };
        assert_eq!(ApplyUpdate::from_json(br#"{"path": "/media/usb/bundle.tar"}"#).unwrap(), wanted);
        assert!(ApplyUpdate::from_json(br#"{"path": "x", "force": true}"#).is_err());
        assert!(ApplyUpdate::from_json(b"[]").is_err());
    }
}
