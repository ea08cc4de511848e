//! What is wrong with a value, in JSON's words: serde's name Rust's types, and repeat what was sent.

use std::fmt::Display;

/// An error of serde's for a person who writes JSON or TOML, without the text that was sent.
pub fn words(error: &impl Display) -> String {
    let text = error.to_string();
    let mismatch = text.strip_prefix("invalid type: ").or_else(|| text.strip_prefix("invalid value: "));
    // What was found may be text with anything in it; what was expected is a short phrase behind it.
    match mismatch.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, wanted)) => format!("expected {}, not {}", expected(wanted), found_in_json(found)),
        None => text,
    }
}

fn expected(wanted: &str) -> String {
    let wanted = wanted.split(" at line ").next().unwrap_or(wanted);
    let whole = |from: i128, upto: i128| format!("a whole number from {from} to {upto}");
    match wanted {
        "u8" => whole(0, u8::MAX.into()),
        "u16" => whole(0, u16::MAX.into()),
        "u32" => whole(0, u32::MAX.into()),
        "u64" | "usize" => whole(0, u64::MAX.into()),
        "i8" => whole(i8::MIN.into(), i8::MAX.into()),
        "i16" => whole(i16::MIN.into(), i16::MAX.into()),
        "i32" => whole(i32::MIN.into(), i32::MAX.into()),
        "i64" | "isize" => whole(i64::MIN.into(), i64::MAX.into()),
        "u128" | "i128" => "a whole number".into(),
        "f32" | "f64" => "a number".into(),
        "a boolean" => "true or false".into(),
        "string or map" | "variant identifier" => "a string".into(),
        "a sequence" => "a list".into(),
        "a map" => "an object".into(),
        other if other.starts_with("struct ") => "an object".into(),
        other => other.to_owned(),
    }
}

/// Numbers, truth values and null as they stand; of texts, lists and objects what they are.
fn found_in_json(found: &str) -> &str {
    let (kind, value) = found.split_once(" `").map_or((found, ""), |(kind, value)| (kind, value.trim_end_matches('`')));
    match kind {
        "boolean" | "integer" | "floating point" | "number" => value,
        "unit value" => "null",
        "sequence" => "a list",
        "map" => "an object",
        kind if kind.starts_with("string ") => "a string",
        _ => kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};
    use std::collections::HashMap;

    fn said<T: DeserializeOwned>(value: Value) -> String {
        words(&serde_json::from_value::<T>(value).err().unwrap())
    }

    #[test]
    fn types_are_named_as_json_names_them() {
        assert_eq!(said::<u32>(json!("secret")), "expected a whole number from 0 to 4294967295, not a string");
        assert_eq!(said::<u32>(json!(-1)), "expected a whole number from 0 to 4294967295, not -1");
        assert_eq!(said::<u8>(json!(1000)), "expected a whole number from 0 to 255, not 1000");
        assert_eq!(said::<u64>(json!(2.5)), "expected a whole number from 0 to 18446744073709551615, not 2.5");
        assert_eq!(said::<i64>(json!([])), "expected a whole number from -9223372036854775808 to 9223372036854775807, not a list");
        assert_eq!(said::<i128>(json!({})), "expected a whole number, not an object");
        assert_eq!(said::<f32>(json!(true)), "expected a number, not true");
        assert_eq!(said::<bool>(json!(null)), "expected true or false, not null");
        assert_eq!(said::<bool>(json!("a, expected u32 `b`")), "expected true or false, not a string");
        assert_eq!(said::<String>(json!(7)), "expected a string, not 7");
        assert_eq!(said::<Vec<u8>>(json!("a")), "expected a list, not a string");
        assert_eq!(said::<HashMap<String, u8>>(json!(1)), "expected an object, not 1");
    }

    #[test]
    fn structures_are_objects_and_other_errors_stay_as_they_are() {
        use crate::protocol::{Priority, StreamOptions};
        assert_eq!(said::<StreamOptions>(json!(1)), "expected an object, not 1");
        assert_eq!(said::<Priority>(json!(1)), "expected a string, not 1");
        assert!(said::<Priority>(json!("urgent")).contains("`background`"));
        let cut = serde_json::from_str::<Value>("{\"a\": 1,").unwrap_err();
        assert_eq!(words(&cut), cut.to_string());
    }
}
