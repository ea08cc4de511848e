//! What the service needs of a tokenizer and a chat template, so that tests can do with bytes.

use crate::renderer::{RenderError, Renderer};
use serde_json::Value;
use skip_client::protocol::{ChatMessage, Tool};
use skip_client::{Error, ErrorKind};
use skip_engine::calls::CallForm;
use skip_engine::detokenize::TokenText;
use skip_engine::tokenizer::Tokenizer;
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

/// Text to tokens; the way back is [`TokenText`].
pub trait TextModel: TokenText {
    /// Tokens of text as it is, with the special tokens a prompt begins with.
    fn encode(&self, text: &str) -> Result<Vec<u32>, Error>;
    /// Tokens of a conversation, rendered by the model's template up to where the answer begins.
    /// It is told of `tools`; empty where [`Self::calls`] is None.
    fn encode_chat(&self, messages: &[ChatMessage], tools: &[Tool]) -> Result<Vec<u32>, Error>;
    /// How the template has functions called; None where it tells the model of none, or its form is not known.
    fn calls(&self) -> Option<&CallForm>;
    /// The id of a control token that is written so.
    fn control_token(&self, written: &str) -> Option<u32>;
    /// One more than the largest token id.
    fn tokens(&self) -> usize;
}

/// The tokenizer and template of a checkpoint's folder whose embedding has `vocab` rows; the error names the file.
pub fn open(dir: &Path, vocab: usize) -> Result<Arc<dyn TextModel>, String> {
    let tokenizer = Tokenizer::open(dir, vocab).map_err(|e| e.to_string())?;
    let template = Renderer::open(dir).map_err(|e| e.to_string())?;
    Ok(Arc::new(FolderText { tokenizer, template }))
}

struct FolderText {
    tokenizer: Tokenizer,
    template: Option<Renderer>,
}

impl FolderText {
    fn ids(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Error> {
        self.tokenizer.encode(text, add_special).map_err(|e| Error::new(ErrorKind::InvalidRequest, e.to_string()))
    }
}

impl TextModel for FolderText {
    fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.ids(text, true)
    }

    fn encode_chat(&self, messages: &[ChatMessage], tools: &[Tool]) -> Result<Vec<u32>, Error> {
        let Some(template) = &self.template else {
            return Err(Error::new(ErrorKind::Unsupported, "the model has no chat template: use text completions").at("messages"));
        };
        let messages = messages.iter().enumerate().map(|(i, message)| template_message(i, message)).collect::<Result<Vec<_>, _>>()?;
        let tools: Vec<_> = tools.iter().map(|tool| serde_json::to_value(tool).unwrap_or_default()).collect();
        let text = template.render(&messages, &tools).map_err(refusal)?;
        // The template has written the special tokens itself.
        self.ids(&text, false)
    }

    fn calls(&self) -> Option<&CallForm> {
        self.template.as_ref().and_then(Renderer::calls)
    }

    fn control_token(&self, written: &str) -> Option<u32> {
        self.tokenizer.token_id(written).filter(|&id| self.tokenizer.is_special(id))
    }

    fn tokens(&self) -> usize {
        self.tokenizer.vocab_size()
    }
}

impl TokenText for FolderText {
    fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        self.tokenizer.token_bytes(id)
    }

    fn is_special(&self, id: u32) -> bool {
        self.tokenizer.is_special(id)
    }
}

/// A vocabulary some of whose control tokens are text like any other.
pub struct WithTags {
    text: Arc<dyn TextModel>,
    tags: Vec<u32>,
}

impl WithTags {
    /// The same text, with these tags in it.
    pub fn show<'a>(text: &Arc<dyn TextModel>, tags: impl Iterator<Item = &'a str>) -> Arc<dyn TokenText> {
        let tags: Vec<u32> = tags.filter_map(|tag| text.control_token(tag)).collect();
        Arc::new(Self { text: text.clone(), tags })
    }
}

impl TokenText for WithTags {
    fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        self.text.token_bytes(id)
    }

    fn is_special(&self, id: u32) -> bool {
        self.text.is_special(id) && !self.tags.contains(&id)
    }
}

/// As a template reads it; `developer` is what newer OpenAI clients call `system`.
fn template_message(index: usize, message: &ChatMessage) -> Result<Value, Error> {
    let role = if message.role == "developer" { "system" } else { &message.role };
    let mut fields = message.other.clone();
    fields.insert("role".into(), role.into());
    fields.insert("content".into(), message.content.0.as_str().into());
    // Some clients send the field with nothing in it; templates ask whether it is there.
    if fields.get("tool_calls").is_some_and(|calls| calls.is_null() || calls.as_array().is_some_and(Vec::is_empty)) {
        fields.shift_remove("tool_calls");
    }
    if let Some(calls) = fields.get_mut("tool_calls") {
        let calls = calls.as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
        for (call, value) in calls.iter_mut().enumerate() {
            arguments_as_object(value).map_err(|field| {
                Error::invalid(
                    format!("messages[{index}].tool_calls[{call}].{field}"),
                    "a call has a function with its name, and its arguments as a JSON object or the text of one",
                )
            })?;
        }
    }
    Ok(fields.into())
}

/// OpenAI has a call's arguments as text, a template as an object; the field that is wrong otherwise.
fn arguments_as_object(call: &mut Value) -> Result<(), &'static str> {
    let function = call.get_mut("function").and_then(Value::as_object_mut).ok_or("function")?;
    if !function.get("name").is_some_and(Value::is_string) {
        return Err("function.name");
    }
    let arguments = function.get_mut("arguments").ok_or("function.arguments")?;
    if let Value::String(text) = arguments {
        *arguments = serde_json::from_str(text).map_err(|_| "function.arguments")?;
    }
    if arguments.is_object() { Ok(()) } else { Err("function.arguments") }
}

fn refusal(error: RenderError) -> Error {
    match error {
        RenderError::Refused { param, message } => Error::invalid(param, message),
        RenderError::TooMuch { .. } => {
            tracing::warn!(%error, "a conversation was not rendered");
            Error::invalid("messages", error.to_string())
        }
        RenderError::Template(_) | RenderError::Process(_) => Error::new(ErrorKind::Internal, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_template_reads_a_call_s_arguments_as_an_object_and_wrong_ones_are_named() {
        let said =
            |call: Value| ChatMessage::list(json!([{"role": "assistant", "content": null, "tool_calls": [call]}])).unwrap().remove(0);
        let call = |arguments: Value| json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}});
        for arguments in [json!("{\"a\": 1}"), json!({"a": 1})] {
            let message = template_message(0, &said(call(arguments))).unwrap();
            assert_eq!(message["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
        }
        for (wrong, field) in [
            (call(json!("{")), "function.arguments"),
            (call(json!([1])), "function.arguments"),
            (json!({"function": {"name": "f"}}), "function.arguments"),
            (json!({"function": {"arguments": "{}"}}), "function.name"),
            (json!(3), "function"),
        ] {
            let error = template_message(2, &said(wrong)).unwrap_err();
            assert_eq!(error.param, Some(format!("messages[2].tool_calls[0].{field}")));
        }
    }
}
