//! Messages as a text template can read them: an object with a role, and content that is one string.

use super::TemplateError;
use serde_json::{Map, Value};

/// The message with its content as one string (or null, beside tool calls).
pub(super) fn flattened(index: usize, message: &Value) -> Result<Value, TemplateError> {
    let bad = |field: &'static str, detail: String| TemplateError::Message { index, field, detail };
    let Value::Object(message) = message else { return Err(bad("role", "the message is not an object".into())) };
    if !matches!(message.get("role"), Some(Value::String(_))) {
        return Err(bad("role", "missing, or not a string".into()));
    }
    let mut out: Map<String, Value> = message.clone();
    if let Some(content) = out.get_mut("content") {
        match content {
            Value::Null | Value::String(_) => {}
            Value::Array(parts) => *content = Value::String(flatten_content(parts).map_err(|detail| bad("content", detail))?),
            _ => return Err(bad("content", "neither a string nor a list of parts".into())),
        }
    }
    Ok(Value::Object(out))
}

/// The text of content parts, one after the other.
///
/// # Errors
/// Names the first part that is not text, and its type.
pub fn flatten_content(parts: &[Value]) -> Result<String, String> {
    let texts: Vec<&str> = parts
        .iter()
        .enumerate()
        .map(|(i, part)| match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(text)) => Ok(text),
            (Some("text"), None) => Err(format!("part {i} has no text")),
            (Some(kind), _) => Err(format!("part {i} is of type `{kind}`; only text is supported")),
            (None, _) => Err(format!("part {i} has no type")),
        })
        .collect::<Result<_, _>>()?;
    Ok(texts.concat())
}
