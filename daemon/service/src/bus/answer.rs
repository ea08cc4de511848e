//! What the socket answers with a JSON object, as an `a{sv}`.

use super::failure::Failure;
use serde_json::Value;
use skip_client::variant;
use std::collections::HashMap;
use zbus::wire::Variant;

/// `a{sv}`; nulls are left out.
pub type Answer = HashMap<String, Variant<'static>>;

/// The keys of a structure of the protocol.
pub fn answer(value: &impl serde::Serialize) -> Result<Answer, Failure> {
    match serde_json::to_value(value) {
        Ok(Value::Object(object)) => Ok(variant::to_dict(&object)),
        _ => Err(Failure::internal("the answer is no object")),
    }
}
