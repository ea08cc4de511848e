//! Why a prompt could not be made.

use super::corpus::CorpusError;
use crate::template::TemplateError;
use crate::tokenizer::TokenizerError;

/// Why a prompt could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// It was told to end.
    #[error("cancelled")]
    Cancelled,
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The corpus has too little text for it.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    /// The shortest prompt of the task is longer than what was asked for.
    #[error("{task}: a prompt of {wanted} tokens was asked for, and the shortest has {least}")]
    TooLong {
        /// Which task.
        task: String,
        /// Tokens that the prompt may have.
        wanted: usize,
        /// Tokens of the shortest prompt.
        least: usize,
    },
    /// A task that needs a file of questions, and none was given.
    #[error("{task} needs a file of questions and documents")]
    NoQuestions {
        /// Which task.
        task: &'static str,
    },
}
