//! JSON values as D-Bus variants and back: how options and tables travel as `a{sv}`.
//! For this workspace's two ends of the bus; not part of the client's API.

use crate::protocol::error::Error;
use serde_json::{Map, Number, Value};
use std::collections::HashMap;
use zbus::wire::{Array, Dict, OwnedVariant, Signature, Structure, Variant};

/// An `a{sv}`; nulls are left out, nested objects become `a{sv}`, lists `av`, whole numbers `x` (or `t`), others `d`.
pub fn to_dict(object: &Map<String, Value>) -> HashMap<String, Variant<'static>> {
    object.iter().filter_map(|(key, value)| Some((key.clone(), to_variant(value)?))).collect()
}

/// None for null, which D-Bus lacks.
fn to_variant(value: &Value) -> Option<Variant<'static>> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(flag) => Variant::Bool(*flag),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(n), _) => Variant::I64(n),
            (None, Some(n)) => Variant::U64(n),
            (None, None) => Variant::F64(number.as_f64()?),
        },
        Value::String(text) => Variant::Str(text.clone().into()),
        Value::Array(items) => {
            let mut array = Array::new(&Signature::Variant);
            for item in items.iter().filter_map(to_variant) {
                // An element of the array's own type is always taken.
                array.append(Variant::Variant(Box::new(item))).ok()?;
            }
            Variant::Array(array)
        }
        Value::Object(object) => {
            let mut dict = Dict::new(&Signature::Str, &Signature::Variant);
            for (key, value) in to_dict(object) {
                dict.append(Variant::Str(key.into()), Variant::Variant(Box::new(value))).ok()?;
            }
            Variant::Dict(dict)
        }
    })
}

/// The object of an `a{sv}`.
///
/// # Errors
/// Names the key whose value JSON cannot hold: a NaN, an infinity, a file descriptor.
pub fn from_dict(dict: &HashMap<String, OwnedVariant>) -> Result<Map<String, Value>, Error> {
    let foreign = |key: &String| Error::invalid(key.clone(), "must be made of text, flags and finite numbers");
    dict.iter().map(|(key, value)| Ok((key.clone(), from_variant(value).ok_or_else(|| foreign(key))?))).collect()
}

/// The JSON of a variant: structures become lists. None where JSON has no such value.
fn from_variant(value: &Variant<'_>) -> Option<Value> {
    Some(match value {
        Variant::U8(n) => (*n).into(),
        Variant::Bool(flag) => (*flag).into(),
        Variant::I16(n) => (*n).into(),
        Variant::U16(n) => (*n).into(),
        Variant::I32(n) => (*n).into(),
        Variant::U32(n) => (*n).into(),
        Variant::I64(n) => (*n).into(),
        Variant::U64(n) => (*n).into(),
        Variant::F64(x) => Value::Number(Number::from_f64(*x)?),
        Variant::Str(text) => text.as_str().into(),
        Variant::Signature(signature) => signature.to_string().into(),
        Variant::ObjectPath(path) => path.as_str().into(),
        Variant::Variant(inner) => from_variant(inner)?,
        Variant::Array(items) => items.iter().map(from_variant).collect::<Option<_>>()?,
        Variant::Structure(fields) => structure(fields)?,
        Variant::Dict(entries) => {
            Value::Object(entries.iter().map(|(key, value)| Some((name(key)?, from_variant(value)?))).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

fn structure(fields: &Structure<'_>) -> Option<Value> {
    fields.fields().iter().map(from_variant).collect()
}

fn name(key: &Variant<'_>) -> Option<String> {
    Some(match from_variant(key)? {
        Value::String(text) => text,
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_object_comes_back_without_its_nulls() {
        let object = json!({"a": 1, "b": -0.5, "c": "x", "d": [[256, 3.25], []], "e": {"f": true, "g": null}, "h": null, "i": u64::MAX});
        let dict = to_dict(object.as_object().unwrap());
        let back: Map<String, Value> = dict.iter().map(|(key, value)| (key.clone(), from_variant(value).unwrap())).collect();
        let whole = json!({"a": 1, "b": -0.5, "c": "x", "d": [[256, 3.25], []], "e": {"f": true}, "i": u64::MAX});
        assert_eq!(Value::Object(back), whole);
    }

    #[test]
    fn what_json_lacks_is_an_error_that_names_its_key() {
        assert_eq!(from_variant(&Variant::new((1u32, 2.5f64))), Some(json!([1, 2.5])));
        for value in [Variant::F64(f64::NAN), Variant::new((1u32, f64::INFINITY))] {
            let dict = HashMap::from([("top_p".to_owned(), OwnedVariant::try_from(value).unwrap())]);
            assert_eq!(from_dict(&dict).unwrap_err().param.as_deref(), Some("top_p"));
        }
    }
}
