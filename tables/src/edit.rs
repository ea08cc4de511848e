//! Changing keys of a JSON object in its text: every byte that is not theirs stays, so unknown keys, their order and their spelling survive.

use crate::json::{self, JsonError, string_len};
use serde_json::Value;
use std::ops::Range;

/// Why a text cannot be edited.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// No JSON.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// JSON, but no object.
    #[error("not a JSON object")]
    NoObject,
}

/// One member of the outermost object, as bytes of the text.
struct Member {
    key: String,
    /// From the opening quote of the key to the end of the value.
    all: Range<usize>,
    value: Range<usize>,
}

/// Sets keys of the outermost object (None takes a key out); a key that is there keeps its place, a new one is added at the end.
///
/// # Errors
/// [`EditError`]; the text must be an object.
pub fn set_keys(text: &str, changes: &[(String, Option<Value>)]) -> Result<String, EditError> {
    if !json::parse(text.as_bytes())?.is_object() {
        return Err(EditError::NoObject);
    }
    let mut text = text.to_owned();
    for (key, value) in changes {
        let members = members(&text).ok_or(EditError::NoObject)?;
        text = match value {
            Some(value) => set(&text, &members, key, value),
            None => remove(&text, &members, key),
        };
    }
    Ok(text)
}

fn set(text: &str, members: &[Member], key: &str, value: &Value) -> String {
    let indent = members.first().map_or("  ", |m| line_start(text, m.all.start));
    let written = layout(value, indent);
    if let Some(member) = members.iter().rev().find(|m| m.key == key) {
        return splice(text, member.value.clone(), &written);
    }
    let member = format!("{}: {written}", Value::from(key));
    match members {
        // `{}`: the brace is all there is before the end.
        [] => {
            let open = text.find('{').map_or(0, |at| at + 1);
            let close = text.rfind('}').unwrap_or(text.len());
            splice(text, open..close, &format!("\n{indent}{member}\n"))
        }
        [.., last] => {
            // One line stays one line.
            let separator = if text[..last.all.start].contains('\n') { format!(",\n{indent}") } else { ", ".into() };
            splice(text, last.all.end..last.all.end, &format!("{separator}{member}"))
        }
    }
}

fn remove(text: &str, members: &[Member], key: &str) -> String {
    let Some(at) = members.iter().position(|m| m.key == key) else { return text.to_owned() };
    let range = match (at.checked_sub(1).map(|before| &members[before]), members.get(at + 1)) {
        (_, Some(next)) => members[at].all.start..next.all.start,
        (Some(before), None) => before.all.end..members[at].all.end,
        (None, None) => members[at].all.clone(),
    };
    let shorter = splice(text, range, "");
    // A key that is there twice goes twice.
    match self::members(&shorter) {
        Some(rest) => remove(&shorter, &rest, key),
        None => shorter,
    }
}

fn splice(text: &str, range: Range<usize>, with: &str) -> String {
    [&text[..range.start], with, &text[range.end..]].concat()
}

/// The spaces before a member that starts its line.
fn line_start(text: &str, at: usize) -> &str {
    let line = text[..at].rfind('\n').map_or(at, |newline| newline + 1);
    let before = &text[line..at];
    if before.chars().all(|c| c == ' ' || c == '\t') { before } else { "" }
}

/// A value as people write it in a config.json: objects a member a line, everything inside on one line.
fn layout(value: &Value, indent: &str) -> String {
    match value {
        Value::Object(object) if !object.is_empty() && !indent.is_empty() => {
            let members: Vec<_> =
                object.iter().map(|(key, value)| format!("{indent}{indent}{}: {value}", Value::from(key.as_str()))).collect();
            format!("{{\n{}\n{indent}}}", members.join(",\n"))
        }
        other => other.to_string(),
    }
}

/// Finds the members of the outermost object of a text that is known to parse.
fn members(text: &str) -> Option<Vec<Member>> {
    let mut members = Vec::new();
    let mut at = skip_space(text, 0);
    text[at..].starts_with('{').then_some(())?;
    at = skip_space(text, at + 1);
    while text[at..].starts_with('"') {
        let start = at;
        let key_end = at + string_len(&text[at..]);
        let key: String = serde_json::from_str(&text[start..key_end]).ok()?;
        at = skip_space(text, key_end);
        text[at..].starts_with(':').then_some(())?;
        let value_start = skip_space(text, at + 1);
        let value_end = value_end(text, value_start);
        members.push(Member { key, all: start..value_end, value: value_start..value_end });
        at = skip_space(text, value_end);
        if text[at..].starts_with(',') {
            at = skip_space(text, at + 1);
        }
    }
    Some(members)
}

/// Where the value that starts at `from` ends.
fn value_end(text: &str, from: usize) -> usize {
    let mut depth = 0usize;
    let mut at = from;
    while let Some(byte) = text.as_bytes().get(at) {
        match byte {
            b'"' => {
                at += string_len(&text[at..]);
                if depth == 0 {
                    return at;
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return trimmed_end(text, from, at),
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            b',' if depth == 0 => return trimmed_end(text, from, at),
            _ => {}
        }
        at += 1;
    }
    text.len()
}

fn trimmed_end(text: &str, from: usize, to: usize) -> usize {
    from + text[from..to].trim_end().len()
}

fn skip_space(text: &str, from: usize) -> usize {
    text.len() - text[from..].trim_start_matches([' ', '\t', '\r', '\n']).len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const CONFIG: &str = "{\n  \"rms_norm_eps\": 1e-05,\n  \"a\": [1,\n   2], \"rope\": {\"a\": NaN},\n  \"vocab_size\": 49152\n}\n";

    fn edit(text: &str, key: &str, value: Option<Value>) -> String {
        set_keys(text, &[(key.into(), value)]).unwrap()
    }

    #[test]
    fn what_is_not_changed_stays_to_the_byte() {
        assert_eq!(edit(CONFIG, "a", Some(json!([[1, 0.5]]))), CONFIG.replace("[1,\n   2]", "[[1,0.5]]"));
        assert_eq!(edit(CONFIG, "vocab_size", None), CONFIG.replace(",\n  \"vocab_size\": 49152", ""));
        assert_eq!(edit(CONFIG, "rms_norm_eps", None), CONFIG.replace("\"rms_norm_eps\": 1e-05,\n  ", ""));
        assert_eq!(edit(CONFIG, "missing", None), CONFIG);
    }

    #[test]
    fn a_new_key_goes_to_the_end_in_the_files_own_layout() {
        let added = CONFIG.replace("49152", "49152,\n  \"t\": {\n    \"50%\": [[1,2]],\n    \"75%\": [[1,3]]\n  }");
        assert_eq!(edit(CONFIG, "t", Some(json!({"50%": [[1, 2]], "75%": [[1, 3]]}))), added);
        assert_eq!(edit("{\"a\": 1}", "t", Some(json!(0.5))), "{\"a\": 1, \"t\": 0.5}");
        assert_eq!(edit("{ }", "t", Some(json!(true))), "{\n  \"t\": true\n}");
    }

    #[test]
    fn what_is_no_object_is_refused() {
        assert_eq!(set_keys("[1]", &[]), Err(EditError::NoObject));
        assert!(matches!(set_keys("{\"a\": }", &[]), Err(EditError::Json(_))));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(".{0,4}", inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn an_edit_of_the_text_is_an_edit_of_the_value(
            object in proptest::collection::btree_map("[a-c\"\\\\{}:,]{0,3}", value(), 0..5),
            changes in proptest::collection::vec(("[a-c\"\\\\{}:,]{0,3}", proptest::option::of(value())), 0..4),
            pretty: bool,
        ) {
            let mut expected = Value::Object(object.into_iter().collect());
            let text = if pretty { serde_json::to_string_pretty(&expected).unwrap() } else { expected.to_string() };
            let edited = set_keys(&text, &changes).unwrap();
            let members = expected.as_object_mut().unwrap();
            for (key, value) in changes {
                match value {
                    Some(value) => { members.insert(key, value); }
                    None => { members.shift_remove(&key); }
                }
            }
            let edited: Value = serde_json::from_str(&edited).unwrap();
            prop_assert_eq!(edited.as_object().unwrap().keys().collect::<Vec<_>>(), expected.as_object().unwrap().keys().collect::<Vec<_>>());
            prop_assert_eq!(edited, expected);
        }
    }
}
