//! Pinned prefixes: beginnings of prompts, a system message above all, that stay in the cache and are shared between all users.

use super::error::{Error, ErrorKind};
use super::fields::{Fields, object};
use super::names::ERROR_DETAILS;
use super::prompt::{ChatMessage, Prompt};
use super::tools::Tool;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Longest name of a prefix, in characters.
const MAX_NAME: usize = 64;

/// `POST /skipd/v1/prefixes`: either `prompt` or `messages`. Administrators only.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PinPrefix {
    /// Letters, digits, `.`, `_` and `-`, at most 64; missing: `prefix-` and a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What text completions begin with: text, or token ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Prompt>,
    /// What conversations begin with; rendered by the model's template as far as every conversation with this beginning has it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<ChatMessage>,
    /// Functions that these conversations tell the model of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool>,
}

impl PinPrefix {
    /// Parses a body; the error names the field.
    pub fn from_json(body: &[u8]) -> Result<Self, Error> {
        Self::from_object(object(body)?)
    }

    /// From the keys of a bus call, where messages and tools are JSON text.
    pub fn from_bus(mut keys: Map<String, Value>) -> Result<Self, Error> {
        keys.shift_remove(ERROR_DETAILS);
        for key in ["messages", "tools"] {
            if let Some(Value::String(text)) = keys.get(key) {
                let read = serde_json::from_str(text).map_err(|error| Error::invalid(key, format!("is text that is not JSON: {error}")))?;
                keys.insert(key.into(), read);
            }
        }
        Self::from_object(keys)
    }

    /// The keys of a bus call.
    pub fn to_bus(&self) -> Map<String, Value> {
        let mut keys = match serde_json::to_value(self) {
            Ok(Value::Object(keys)) => keys,
            // A struct of plain fields always serialises to an object.
            _ => Map::new(),
        };
        for key in ["messages", "tools"] {
            if let Some(value) = keys.get_mut(key) {
                *value = value.to_string().into();
            }
        }
        keys
    }

    /// Whether a prefix can be called so.
    pub fn is_name(name: &str) -> bool {
        let fits = (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        // A path segment of dots alone means another place.
        fits && !name.bytes().all(|b| b == b'.')
    }

    fn from_object(keys: Map<String, Value>) -> Result<Self, Error> {
        let mut fields = Fields::new(keys);
        let pin = Self {
            name: fields.optional("name")?,
            prompt: fields.optional("prompt")?,
            messages: fields.optional("messages")?.map(ChatMessage::list).transpose()?.unwrap_or_default(),
            tools: fields.optional("tools")?.map(Tool::list).transpose()?.unwrap_or_default(),
        };
        fields.end()?;
        if pin.name.as_deref().is_some_and(|name| !Self::is_name(name)) {
            return Err(Error::invalid("name", format!("has 1 to {MAX_NAME} letters, digits, `.`, `_` and `-`")));
        }
        match (&pin.prompt, pin.messages.is_empty()) {
            (None, true) => Err(Error::invalid("prompt", "is required, or `messages`")),
            (Some(_), false) => Err(Error::invalid("messages", "beside `prompt`: one of them")),
            (Some(_), true) if !pin.tools.is_empty() => Err(Error::invalid("tools", "needs `messages`")),
            _ => Ok(pin),
        }
    }
}

/// A pinned prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prefix {
    /// Its name.
    pub name: String,
    /// Tokens that are pinned: whole pages of 128.
    pub tokens: u32,
    /// Pages they take.
    pub pages: u32,
    /// Pages it holds now. They were computed with the table and row of the prompt that had it last.
    pub held: u32,
    /// User id of who pinned it.
    pub owner: u32,
    /// Requests that took pages of it instead of computing them. One counts once: for the prefix it has most pages in common with, of several for
    /// the shortest, then the oldest.
    pub hits: u64,
}

/// `GET /skipd/v1/prefixes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixList {
    /// In the order they were pinned.
    pub prefixes: Vec<Prefix>,
    /// Pages that all of them may take together.
    pub limit_pages: u32,
}

impl Prefix {
    /// What is said where there is none of a name.
    pub fn unknown(name: &str) -> Error {
        Error::new(ErrorKind::NotFound, format!("no prefix `{name}` is pinned")).at("name")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_prefix_is_a_prompt_or_messages_and_a_wrong_field_is_named() {
        let read = |body: Value| PinPrefix::from_json(body.to_string().as_bytes());
        assert_eq!(read(json!({"prompt": [1, 2]})).unwrap().prompt, Some(Prompt::Tokens(vec![1, 2])));
        for (body, param) in [
            (json!({}), "prompt"),
            (json!({"prompt": 1}), "prompt"),
            (json!({"prompt": "a", "messages": [{"role": "system", "content": "b"}]}), "messages"),
            (json!({"prompt": "a", "tools": [{"type": "function", "function": {"name": "f"}}]}), "tools"),
            (json!({"messages": []}), "messages"),
            (json!({"prompt": "a", "name": "a b"}), "name"),
            (json!({"prompt": "a", "name": ".."}), "name"),
            (json!({"prompt": "a", "name": "x".repeat(65)}), "name"),
            (json!({"prompt": "a", "uid": 3}), "uid"),
        ] {
            assert_eq!(read(body.clone()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn a_prefix_survives_the_bus() {
        let pin = PinPrefix {
            name: Some("robot".into()),
            messages: vec![ChatMessage::new("system", "You are a robot.")],
            tools: vec![Tool::function("move", "", json!({"type": "object"}))],
            ..PinPrefix::default()
        };
        let mut keys = pin.to_bus();
        assert!(keys["messages"].is_string() && keys["tools"].is_string());
        keys.insert(ERROR_DETAILS.into(), true.into());
        assert_eq!(PinPrefix::from_bus(keys), Ok(pin));
    }
}
