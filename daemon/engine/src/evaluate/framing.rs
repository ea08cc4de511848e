//! Text to the tokens a model reads: the checkpoint's template around it, and the first words of the answer behind it.

use super::PromptError;
use crate::regular::{Cancelled, NEVER};
use crate::template::{ChatTemplate, RenderOptions};
use crate::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// How a question becomes tokens.
#[derive(Clone)]
pub struct Framing<'a> {
    tokenizer: &'a Tokenizer,
    template: Option<&'a ChatTemplate>,
    variables: Map<String, Value>,
    thinking_budget: usize,
    cancelled: Cancelled<'a>,
}

impl<'a> Framing<'a> {
    /// With the checkpoint's template; without one the text stands alone, behind what the tokenizer itself puts in front.
    pub fn new(tokenizer: &'a Tokenizer, template: Option<&'a ChatTemplate>) -> Self {
        Self { tokenizer, template, variables: Map::new(), thinking_budget: 0, cancelled: NEVER }
    }

    /// Without a template.
    pub fn plain(tokenizer: &'a Tokenizer) -> Self {
        Self::new(tokenizer, None)
    }

    /// Sets a variable of the template, such as `enable_thinking`.
    #[must_use]
    pub fn variable(mut self, name: &str, value: Value) -> Self {
        self.variables.insert(name.to_owned(), value);
        self
    }

    /// Lets the model think before it answers: so many tokens more for every answer, and no first words of the answer, which would end its
    /// thoughts. What it thought is not scored ([`super::metric::Reference::score`]).
    #[must_use]
    pub fn thinking(mut self, budget: usize) -> Self {
        self.thinking_budget = budget;
        self
    }

    /// Nothing is encoded any more once this says so: whatever makes a prompt ends with [`PromptError::Cancelled`], between two encodings.
    #[must_use]
    pub fn until(mut self, cancelled: Cancelled<'a>) -> Self {
        self.cancelled = cancelled;
        self
    }

    /// Tokens for thoughts; 0 where it answers at once.
    pub fn thinking_budget(&self) -> usize {
        self.thinking_budget
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &'a Tokenizer {
        self.tokenizer
    }

    /// Tokens of one user message and the first words of the answer, `prefix`.
    ///
    /// # Errors
    /// The template or the tokenizer failed.
    pub fn user(&self, content: &str, prefix: &str) -> Result<Vec<u32>, PromptError> {
        match self.template {
            Some(_) => self.messages(&[json!({"role": "user", "content": content})], prefix),
            None => self.raw(&[content, self.prefix(prefix)].concat()),
        }
    }

    /// Tokens of a conversation and the first words of the answer. Without a template the contents stand one after the other.
    ///
    /// # Errors
    /// The template or the tokenizer failed.
    pub fn messages(&self, messages: &[Value], prefix: &str) -> Result<Vec<u32>, PromptError> {
        let Some(template) = self.template else {
            let texts: Vec<&str> = messages.iter().filter_map(|message| message["content"].as_str()).collect();
            return self.raw(&[&texts.join("\n\n"), self.prefix(prefix)].concat());
        };
        let options = RenderOptions { tools: None, add_generation_prompt: true, extra: self.variables.clone() };
        let rendered = template.render(messages, &options)?;
        self.encode(&[&rendered, self.prefix(prefix)].concat(), false)
    }

    /// Tokens of a text as it is.
    ///
    /// # Errors
    /// The tokenizer failed.
    pub fn raw(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        self.encode(text, true)
    }

    fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, PromptError> {
        if (self.cancelled)() { Err(PromptError::Cancelled) } else { Ok(self.tokenizer.encode(text, special)?) }
    }

    fn prefix<'t>(&self, prefix: &'t str) -> &'t str {
        if self.thinking_budget > 0 { "" } else { prefix }
    }
}
