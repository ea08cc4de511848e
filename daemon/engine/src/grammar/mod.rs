//! Answers held to a form: a schema, a regular expression, a list of choices, or calls of functions, as the set of tokens that may come next.
//!
//! llguidance does the work. What a client asks for is bounded before it is compiled, while it is compiled, and at every token: a form that
//! takes too much ends its own request.

mod calls;
mod limits;
mod source;
#[cfg(test)]
mod tests;

pub use source::{Function, Spec};

use crate::detokenize::TokenText;
use limits::Allowance;
use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// Why an answer cannot be held to a form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The form is not one that can be kept to; the words say what of it.
    #[error("{0}")]
    Refused(String),
    /// The form is larger than it may be.
    #[error("{what} is {found}; the limit is {limit}")]
    TooLarge {
        /// What of it.
        what: &'static str,
        /// How much there is.
        found: usize,
        /// How much there may be.
        limit: usize,
    },
    /// It takes more work a token than it may.
    #[error("the form takes too much work: {0}")]
    TooMuchWork(String),
    /// No token of the vocabulary goes on as the form asks.
    #[error("no token goes on as the form asks")]
    NoToken,
    /// The vocabulary cannot be used.
    #[error("the vocabulary cannot be held to a form: {0}")]
    Vocabulary(String),
}

/// Compiles forms for one vocabulary; shared between requests.
pub struct Grammars {
    factory: ParserFactory,
}

impl Grammars {
    /// For a vocabulary of `tokens` ids, of which `eos` end an answer. Takes some tenths of a second for 150,000 tokens.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`].
    pub fn new(text: &dyn TokenText, tokens: usize, eos: &[u32]) -> Result<Self, GrammarError> {
        let unusable = |reason: String| GrammarError::Vocabulary(reason);
        let factory = catch_unwind(AssertUnwindSafe(|| {
            let trie = trie(text, tokens, eos);
            let environment: llguidance::toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            ParserFactory::new(&environment, InferenceCapabilities::default(), &SlicedBiasComputer::general_slices())
        }));
        let mut factory = factory.map_err(|_| unusable("it is not a vocabulary".into()))?.map_err(|e| unusable(first_line(&e)))?;
        factory.quiet();
        *factory.limits_mut() = limits::parser();
        Ok(Self { factory })
    }

    /// A form at its beginning. Bounded in work, but it may take a second, and deep recursion: not for a thread that others wait for.
    ///
    /// # Errors
    /// Whatever of the form cannot be kept to.
    pub fn compile(&self, spec: &Spec) -> Result<Grammar, GrammarError> {
        let vocabulary = self.factory.tok_env().tok_trie();
        let source = spec.source(&|tag| vocabulary.get_special_token(tag))?;
        let parser = self.factory.create_parser(TopLevelGrammar::from_grammar(source));
        let parser = parser.map_err(|e| GrammarError::Refused(first_line(&e)))?;
        let mut grammar = Grammar { matcher: Matcher::new(Ok(parser)), allowed: Vec::new(), allowance: Allowance::default() };
        if let Some(warning) = grammar.matcher.grammar_warnings().first() {
            return Err(GrammarError::Refused(warning.clone()));
        }
        grammar.look_ahead()?;
        Ok(grammar)
    }
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

/// The vocabulary as bytes. Control tokens and those that end an answer are no text, whatever they are written like.
fn trie(text: &dyn TokenText, tokens: usize, eos: &[u32]) -> TokTrie {
    let words: Vec<Vec<u8>> = (0..tokens as u32)
        .map(|id| {
            let bytes = text.token_bytes(id);
            if text.is_special(id) || eos.contains(&id) {
                [&[TokTrie::SPECIAL_TOKEN_MARKER], &*bytes].concat()
            } else if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
                // Begins no UTF-8, and would be taken for a control token.
                Vec::new()
            } else {
                bytes.into_owned()
            }
        })
        .collect();
    let eos: Vec<u32> = eos.iter().copied().filter(|&id| (id as usize) < tokens).collect();
    let first = eos.first().copied().unwrap_or(INVALID_TOKEN);
    let trie = TokTrie::from(&TokRxInfo::new(tokens as u32, first), &words);
    if eos.is_empty() { trie } else { trie.with_eos_tokens(&eos) }
}

/// An answer's form, and how far the answer has come in it.
#[derive(Clone)]
pub struct Grammar {
    matcher: Matcher,
    allowed: Vec<u32>,
    allowance: Allowance,
}

impl Grammar {
    /// Tokens that may come next: bit i % 32 of word i / 32 for token i.
    pub fn allowed(&self) -> &[u32] {
        &self.allowed
    }

    /// Takes the next token, one that was allowed; true where the answer is complete with it, and nothing can follow.
    ///
    /// # Errors
    /// What follows cannot be told within the limits, or nothing may follow though the answer is not complete.
    pub fn take(&mut self, token: u32) -> Result<bool, GrammarError> {
        let began = Instant::now();
        self.matcher.consume_token(token).map_err(|e| failure(&e))?;
        if self.matcher.is_stopped() {
            return Ok(true);
        }
        self.look_ahead()?;
        self.allowance.spend(began.elapsed())?;
        Ok(false)
    }

    fn look_ahead(&mut self) -> Result<(), GrammarError> {
        let allowed = self.matcher.compute_mask().map_err(|e| failure(&e))?;
        self.allowed.clear();
        self.allowed.extend_from_slice(allowed.as_slice());
        Ok(())
    }
}

/// A matcher that failed knows its reason as words alone.
fn failure(error: &impl fmt::Display) -> GrammarError {
    let words = first_line(error);
    if words.contains("NoExtension") { GrammarError::NoToken } else { GrammarError::TooMuchWork(words) }
}

impl fmt::Debug for Grammar {
    /// Without the answer so far.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

/// What is wrong, without the dump of states behind it.
fn first_line(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or("unknown").trim();
    line.chars().take(240).collect()
}
