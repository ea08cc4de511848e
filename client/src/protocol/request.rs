//! Chat and text completion requests: OpenAI's shape, with vLLM's and skipd's additions.

use super::error::Error;
use super::fields::{Fields, object};
use super::options::{GenerationOptions, MAX_LOGPROBS};
use super::prompt::{ChatMessage, Prompt};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `POST /v1/chat/completions`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
pub struct ChatRequest {
    /// `default`, or the loaded model's name; missing means default.
    pub model: Option<String>,
    /// The conversation, at least one message.
    pub messages: Vec<ChatMessage>,
    /// How to generate. On the wire its fields lie beside `messages`.
    pub options: GenerationOptions,
    /// Fields this version does not know; see [`super::unsupported::check`].
    pub unknown: Map<String, Value>,
}

/// `POST /v1/completions`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
pub struct CompletionRequest {
    /// `default`, or the loaded model's name; missing means default.
    pub model: Option<String>,
    /// What to continue: text or token ids.
    pub prompt: Prompt,
    /// Repeat the prompt before the answer. Default false; true is refused.
    pub echo: bool,
    /// How to generate. On the wire its fields lie beside `prompt`.
    pub options: GenerationOptions,
    /// Fields this version does not know; see [`super::unsupported::check`].
    pub unknown: Map<String, Value>,
}

impl ChatRequest {
    /// A request with default options.
    pub fn new(messages: Vec<ChatMessage>) -> Self {
        Self { model: None, messages, options: GenerationOptions::new(), unknown: Map::new() }
    }

    /// Parses a body; the error names the field.
    pub fn from_json(body: &[u8]) -> Result<Self, Error> {
        Self::try_from(object(body)?)
    }
}

impl CompletionRequest {
    /// A request with default options.
    pub fn new(prompt: Prompt) -> Self {
        Self { model: None, prompt, echo: false, options: GenerationOptions::new(), unknown: Map::new() }
    }

    /// Parses a body; the error names the field.
    pub fn from_json(body: &[u8]) -> Result<Self, Error> {
        Self::try_from(object(body)?)
    }
}

impl TryFrom<Map<String, Value>> for ChatRequest {
    type Error = Error;

    fn try_from(body: Map<String, Value>) -> Result<Self, Error> {
        let mut fields = Fields::new(body);
        let messages = ChatMessage::list(fields.required("messages")?)?;
        let mut options = GenerationOptions::take(&mut fields)?;
        let wanted = fields.optional::<bool>("logprobs")?.unwrap_or(false);
        let top: Option<u8> = fields.optional("top_logprobs")?;
        if top.is_some_and(|n| n > MAX_LOGPROBS) {
            return Err(Error::invalid("top_logprobs", format!("at most {MAX_LOGPROBS}")));
        }
        if top.is_some() && !wanted {
            return Err(Error::invalid("top_logprobs", "needs `logprobs: true`"));
        }
        options.logprobs = wanted.then_some(top.unwrap_or(0));
        options.check()?;
        Ok(Self { model: fields.optional("model")?, messages, options, unknown: fields.rest() })
    }
}

impl TryFrom<Map<String, Value>> for CompletionRequest {
    type Error = Error;

    fn try_from(body: Map<String, Value>) -> Result<Self, Error> {
        let mut fields = Fields::new(body);
        let prompt = fields.required("prompt")?;
        let mut options = GenerationOptions::take(&mut fields)?;
        options.logprobs = fields.optional("logprobs")?;
        options.check()?;
        let echo = fields.optional("echo")?.unwrap_or(false);
        Ok(Self { model: fields.optional("model")?, prompt, echo, options, unknown: fields.rest() })
    }
}

/// The fields both requests share, in the order they are written.
fn body(first: (&str, Value), model: Option<String>, options: &GenerationOptions) -> Map<String, Value> {
    let mut body = Map::new();
    body.insert("model".into(), model.unwrap_or_else(|| super::names::DEFAULT_MODEL.to_owned()).into());
    body.insert(first.0.into(), first.1);
    if let Ok(Value::Object(fields)) = serde_json::to_value(options) {
        body.extend(fields);
    }
    body
}

impl From<ChatRequest> for Map<String, Value> {
    fn from(request: ChatRequest) -> Self {
        let messages = serde_json::to_value(&request.messages).unwrap_or_default();
        let mut body = body(("messages", messages), request.model, &request.options);
        if let Some(top) = request.options.logprobs {
            body.insert("logprobs".into(), true.into());
            body.insert("top_logprobs".into(), top.into());
        }
        body.extend(request.unknown);
        body
    }
}

impl From<CompletionRequest> for Map<String, Value> {
    fn from(request: CompletionRequest) -> Self {
        let prompt = serde_json::to_value(&request.prompt).unwrap_or_default();
        let mut body = body(("prompt", prompt), request.model, &request.options);
        if let Some(n) = request.options.logprobs {
            body.insert("logprobs".into(), n.into());
        }
        if request.echo {
            body.insert("echo".into(), true.into());
        }
        body.extend(request.unknown);
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_openai_chat_body_is_read_and_written_back() {
        let body = json!({
            "model": "default", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 5, "logprobs": true,
            "top_logprobs": 3, "stream": true, "stream_options": {"include_usage": true}, "stop": "\n", "seed": 7,
            "repetition_penalty": 1.5, "presence_penalty": 0.5, "tools": null, "skipd": {"priority": "background", "prefix_reuse": false}
        });
        let request = ChatRequest::from_json(body.to_string().as_bytes()).unwrap();
        assert_eq!(request.options.max_tokens, Some(5));
        assert_eq!(request.options.logprobs, Some(3));
        assert_eq!(request.unknown.keys().collect::<Vec<_>>(), ["repetition_penalty"]);
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<ChatRequest>(&text).unwrap(), request);
    }

    #[test]
    fn a_text_body_is_read_and_written_back() {
        let body = json!({"prompt": [1, 2, 3], "max_tokens": 4, "logprobs": 2, "echo": true, "best_of": 2});
        let request = CompletionRequest::from_json(body.to_string().as_bytes()).unwrap();
        assert_eq!((request.options.logprobs, request.echo, request.unknown.len()), (Some(2), true, 1));
        let text = serde_json::to_string(&request).unwrap();
        let back = serde_json::from_str::<CompletionRequest>(&text).unwrap();
        assert_eq!((back.prompt, back.options), (request.prompt, request.options));
    }

    #[test]
    fn wrong_bodies_name_the_field() {
        for (text, param) in [
            (r#"{"messages": []}"#, Some("messages")),
            (r#"{}"#, Some("messages")),
            (r#"{"messages": "hi"}"#, Some("messages")),
            (r#"{"messages": ["hi"]}"#, Some("messages[0]")),
            (r#"{"messages": [{"role": "user", "content": 3}]}"#, Some("messages[0].content")),
            (r#"{"messages": [{"role": "user", "content": "a"}, {"content": "b"}]}"#, Some("messages[1].role")),
            (r#"{"messages": [{"role": 1, "content": "b"}]}"#, Some("messages[0].role")),
            (r#"{"messages": [{"role": "user", "content": "a"}], "stream": 1}"#, Some("stream")),
            (r#"{"messages": [{"role": "user", "content": "a"}], "top_logprobs": 1}"#, Some("top_logprobs")),
            (r#"{"messages": [{"role": "user", "content": "a"}], "skipd": {"prio": 1}}"#, Some("skipd.prio")),
            (r#"{"messages": [{"role": "user", "content": "a"}], "skipd": {"priority": "urgent"}}"#, Some("skipd.priority")),
            (r#"{"messages": [{"role": "user", "content": "a"}], "skipd": 3}"#, Some("skipd")),
            ("[]", None),
            ("{", None),
        ] {
            assert_eq!(ChatRequest::from_json(text.as_bytes()).unwrap_err().param.as_deref(), param, "{text}");
        }
        assert!(ChatRequest::from_json(b"{\"messages\": \"\xff\"}").is_err());
    }
}
