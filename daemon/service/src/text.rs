//! What the service needs of a tokenizer and a chat template, so that tests can do with bytes.

use crate::renderer::{RenderError, Renderer};
use skip_client::protocol::ChatMessage;
use skip_client::{Error, ErrorKind};
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
    fn encode_chat(&self, messages: &[ChatMessage]) -> Result<Vec<u32>, Error>;
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

    fn encode_chat(&self, messages: &[ChatMessage]) -> Result<Vec<u32>, Error> {
        let Some(template) = &self.template else {
            return Err(Error::new(ErrorKind::Unsupported, "the model has no chat template: use text completions").at("messages"));
        };
        let messages: Vec<_> = messages.iter().map(template_message).collect();
        let text = template.render(&messages).map_err(refusal)?;
        // The template has written the special tokens itself.
        self.ids(&text, false)
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

/// As a template reads it; `developer` is what newer OpenAI clients call `system`.
fn template_message(message: &ChatMessage) -> serde_json::Value {
    let role = if message.role == "developer" { "system" } else { &message.role };
    let mut fields = message.other.clone();
    fields.insert("role".into(), role.into());
    fields.insert("content".into(), message.content.0.as_str().into());
    fields.into()
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
