//! Items: what is asked, and what the answer is held against; from MMLU, LongBench and files of one's own.
//!
//! A parser makes [`Question`]s, which know nothing of a model; a question becomes an [`Item`], tokens within the context, by the
//! checkpoint's template.

mod csv;
pub mod longbench;
pub mod mmlu;
pub(crate) mod read;
pub mod tasks;
#[cfg(test)]
mod tests;

pub use read::ItemsError;

use super::metric::Reference;
use super::seed::Rng;
use super::{Framing, PromptError};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// What a model is given, and how its answer is scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Which one, the same in every run: `ruler/vt/4096/0`, `mmlu/anatomy_test.csv:7`.
    pub id: String,
    /// The group it is reported in.
    pub task: String,
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Tokens that the answer may have.
    pub max_tokens: usize,
    /// Strings that end the answer.
    pub stop: Vec<String>,
    /// How the answer is scored.
    pub reference: Reference,
}

/// A question before it becomes tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// As [`Item::id`].
    pub id: String,
    /// As [`Item::task`].
    pub task: String,
    /// What is asked.
    pub body: Body,
    /// Tokens that the answer may have, without thoughts.
    pub max_tokens: usize,
    /// Strings that end the answer.
    pub stop: Vec<String>,
    /// How the answer is scored.
    pub reference: Reference,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Text to be continued: no template.
    Raw(String),
    /// One user message, and the first words of the answer.
    User {
        /// The message.
        content: String,
        /// The first words; nothing, mostly.
        prefix: String,
    },
    /// A conversation.
    Messages(Vec<Value>),
}

/// An item made from a question.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The item.
    pub item: Item,
    /// Tokens of the question that were cut from its middle.
    pub cut: usize,
}

impl Question {
    /// Tokens of it, with the answer within `max_context`. Text that is too long is cut in its middle, as LongBench has it: both ends carry
    /// instructions. None where a conversation, which is not cut, is too long, or the context has no room at all.
    ///
    /// # Errors
    /// The template or the tokenizer failed.
    pub fn prepare(&self, framing: &Framing<'_>, max_context: usize) -> Result<Option<Prepared>, PromptError> {
        let max_tokens = self.max_tokens + framing.thinking_budget();
        let Some(room) = max_context.checked_sub(max_tokens).filter(|room| *room > 0) else { return Ok(None) };
        let frame = |text: &str| match &self.body {
            Body::User { prefix, .. } => framing.user(text, prefix),
            _ => framing.raw(text),
        };
        let (tokens, cut) = match &self.body {
            Body::Messages(messages) => (framing.messages(messages, "")?, 0),
            Body::Raw(text) | Body::User { content: text, .. } => match frame(text)? {
                tokens if tokens.len() <= room => (tokens, 0),
                tokens => cut_to(framing, text, tokens.len(), room, &frame)?,
            },
        };
        if tokens.len() > room {
            return Ok(None);
        }
        let (id, task, stop, reference) = (self.id.clone(), self.task.clone(), self.stop.clone(), self.reference.clone());
        Ok(Some(Prepared { item: Item { id, task, tokens, max_tokens, stop, reference }, cut }))
    }
}

/// Keeps as many tokens of the front as of the back. Text that is decoded and encoded again may have others at the seam: where that makes it
/// too long, more is cut.
fn cut_to(
    framing: &Framing<'_>,
    text: &str,
    framed: usize,
    room: usize,
    frame: &dyn Fn(&str) -> Result<Vec<u32>, PromptError>,
) -> Result<(Vec<u32>, usize), PromptError> {
    let tokenizer = framing.tokenizer();
    let whole = tokenizer.encode(text, false)?;
    let mut keep = whole.len().saturating_sub(framed - room);
    loop {
        let half = keep / 2;
        let front = tokenizer.decode(&whole[..keep - half], true);
        let back = tokenizer.decode(&whole[whole.len() - half..], true);
        let tokens = frame(&[front, back].concat())?;
        if tokens.len() <= room || keep == 0 {
            return Ok((tokens, whole.len() - keep));
        }
        keep -= (tokens.len() - room).min(keep);
    }
}

/// `count` of the questions, chosen by a seed, in their order; all where there are no more.
pub fn choose(questions: Vec<Question>, count: usize, seed: u64) -> Vec<Question> {
    let mut chosen = Rng::named(seed, "choose").sample(questions.len(), count);
    chosen.sort_unstable();
    let mut chosen = chosen.into_iter().peekable();
    questions.into_iter().enumerate().filter(|(index, _)| chosen.next_if_eq(index).is_some()).map(|(_, question)| question).collect()
}

/// SHA-256, in hexadecimal, of items: two runs with the same have asked the same tokens and scored them alike.
pub fn digest<'a>(items: impl IntoIterator<Item = &'a Item>) -> String {
    let mut hash = Sha256::new();
    let mut put = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for item in items {
        put(item.id.as_bytes());
        put(&item.tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>());
        put(&(item.max_tokens as u64).to_le_bytes());
        put(item.reference.metric.name().as_bytes());
        for text in item.stop.iter().chain(&item.reference.answers).chain(&item.reference.classes) {
            put(text.as_bytes());
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
