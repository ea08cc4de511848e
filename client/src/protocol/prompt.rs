//! Prompts, messages and stop strings, as leniently as OpenAI reads them.

use super::error::Error;
use super::fields::Fields;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A text completion's prompt: text, or token ids. A list that holds one prompt is that prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, try_from = "Value")]
pub enum Prompt {
    /// Text, tokenised as it is (no template).
    Text(String),
    /// Token ids, taken as they are.
    Tokens(Vec<u32>),
}

impl TryFrom<Value> for Prompt {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match value {
            Value::String(text) => Ok(Prompt::Text(text)),
            Value::Array(mut items) => match items.first() {
                Some(Value::String(_) | Value::Array(_)) if items.len() == 1 => Prompt::try_from(items.remove(0)),
                Some(Value::String(_) | Value::Array(_)) => Err("one prompt a request, not several".into()),
                _ => items
                    .iter()
                    .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
                    .collect::<Option<Vec<u32>>>()
                    .map(Prompt::Tokens)
                    .ok_or_else(|| "token ids must be whole numbers from 0".into()),
            },
            _ => Err("must be text or a list of token ids".into()),
        }
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Prompt::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Prompt::Text(text)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(tokens: Vec<u32>) -> Self {
        Prompt::Tokens(tokens)
    }
}

/// One chat message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, or what the model's template knows (`developer` is read as `system`).
    pub role: String,
    /// Text or text parts; null counts as empty.
    #[serde(default)]
    pub content: Content,
    /// Further fields, handed to the template as they are.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl ChatMessage {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Content(content.into()), other: Map::new() }
    }

    /// OpenAI's `messages`, at least one; the error names the message and its field (`messages[1].content`).
    pub fn list(messages: Value) -> Result<Vec<Self>, Error> {
        match messages {
            Value::Array(list) if list.is_empty() => Err(Error::invalid("messages", "must hold at least one message")),
            Value::Array(list) => list.into_iter().enumerate().map(|(index, message)| Self::read(index, message)).collect(),
            _ => Err(Error::invalid("messages", "must be a list of messages")),
        }
    }

    fn read(index: usize, message: Value) -> Result<Self, Error> {
        let mut fields = Fields::within(&format!("messages[{index}]"), message)?;
        let role = fields.required("role")?;
        let content = fields.optional("content")?.unwrap_or_default();
        Ok(Self { role, content, other: fields.left() })
    }
}

/// A message's text; parts (`{"type": "text", "text": …}`) are joined, other part types are refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct Content(pub String);

impl TryFrom<Value> for Content {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let parts = match value {
            Value::String(text) => return Ok(Content(text)),
            Value::Null => return Ok(Content::default()),
            Value::Array(parts) => parts,
            _ => return Err("content must be text or a list of text parts".into()),
        };
        let mut text = String::new();
        for part in &parts {
            match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
                (Some("text" | "input_text") | None, Some(piece)) => text.push_str(piece),
                (Some(kind), _) if kind != "text" => {
                    return Err(format!("content parts of type `{kind}` are not supported, only text"));
                }
                _ => return Err("a content part needs `type` and `text`".into()),
            }
        }
        Ok(Content(text))
    }
}

/// Stop strings: one, or a list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct Stop(pub Vec<String>);

impl TryFrom<Value> for Stop {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let list = match value {
            Value::String(text) => vec![text],
            Value::Array(items) => items
                .into_iter()
                .map(|item| match item {
                    Value::String(text) => Ok(text),
                    _ => Err("stop strings must be text".to_owned()),
                })
                .collect::<Result<_, _>>()?,
            _ => return Err("must be a string or a list of strings".into()),
        };
        if list.iter().any(String::is_empty) {
            return Err("a stop string must not be empty".into());
        }
        Ok(Stop(list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn prompt(value: Value) -> Result<Prompt, String> {
        serde_json::from_value(value).map_err(|e| e.to_string())
    }

    #[test]
    fn a_prompt_is_text_or_ids_or_a_list_of_one_of_these() {
        assert_eq!(prompt(json!("a")), Ok(Prompt::Text("a".into())));
        assert_eq!(prompt(json!([1, 2])), Ok(Prompt::Tokens(vec![1, 2])));
        assert_eq!(prompt(json!([[1, 2]])), Ok(Prompt::Tokens(vec![1, 2])));
        assert_eq!(prompt(json!(["a"])), Ok(Prompt::Text("a".into())));
        assert_eq!(prompt(json!([])), Ok(Prompt::Tokens(vec![])));
        for wrong in [json!(["a", "b"]), json!([1, -2]), json!([1.5]), json!([1, "a"]), json!({}), json!(3), json!([4294967296u64])] {
            assert!(prompt(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn content_joins_text_parts_and_refuses_images() {
        let message: ChatMessage =
            serde_json::from_value(json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}))
                .unwrap();
        assert_eq!(message.content.0, "ab");
        let error = serde_json::from_value::<ChatMessage>(json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}));
        assert!(error.unwrap_err().to_string().contains("image_url"));
        let empty: ChatMessage = serde_json::from_value(json!({"role": "assistant", "content": null, "tool_calls": []})).unwrap();
        assert_eq!((empty.content.0.as_str(), empty.other.len()), ("", 1));
    }

    #[test]
    fn stop_is_a_string_or_a_list() {
        assert_eq!(serde_json::from_value::<Stop>(json!("x")).unwrap().0, ["x"]);
        assert_eq!(serde_json::from_value::<Stop>(json!(["x", "y"])).unwrap().0, ["x", "y"]);
        assert!(serde_json::from_value::<Stop>(json!([1])).is_err());
        assert!(serde_json::from_value::<Stop>(json!([""])).is_err());
    }
}
