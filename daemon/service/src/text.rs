//! What the service needs of a tokenizer and a chat template, so that tests can do with bytes.

use skip_client::Error;
use skip_client::protocol::ChatMessage;
use skip_engine::detokenize::TokenText;

/// Text to tokens; the way back is [`TokenText`].
pub trait TextModel: TokenText {
    /// Tokens of text as it is, with the special tokens a prompt begins with.
    fn encode(&self, text: &str) -> Result<Vec<u32>, Error>;
    /// Tokens of a conversation, rendered by the model's template up to where the answer begins.
    fn encode_chat(&self, messages: &[ChatMessage]) -> Result<Vec<u32>, Error>;
}

/// The tokenizer and template of a checkpoint's folder.
pub fn open(dir: &std::path::Path) -> Result<std::sync::Arc<dyn TextModel>, String> {
    Err(format!("{}: no tokenizer is built in yet", dir.display()))
}
