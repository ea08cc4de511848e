//! The prompts of a calibration, and those of its check: real text, cut to lengths spread over each bin.

use super::super::asking::unless;
use skip_client::protocol::CalibrateOptions;
use skip_client::{Error, ErrorKind};
use skip_engine::calibrate::bins::Bin;
use skip_engine::calibrate::run::{CalibrateError, Prompt};
use skip_engine::evaluate::calibration::calibration_prompts;
use skip_engine::evaluate::corpus::{Corpus, Half, Limits};
use skip_engine::evaluate::{Framing, PromptError};
use skip_engine::regular::Cancelled;
use skip_engine::template::ChatTemplate;
use skip_engine::tokenizer::Tokenizer;
use skip_tables::Digest;
use std::path::{Path, PathBuf};

/// Texts and what turns them into tokens.
pub struct Texts {
    corpus: Corpus,
    digest: Digest,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    samples: usize,
    seed: u64,
}

impl Texts {
    /// Reads the texts that the options name, or the system's, and the checkpoint's tokenizer and template.
    ///
    /// # Errors
    /// A file cannot be read, holds no text, or there is too little; or it was cancelled.
    pub fn open(model: &Path, vocabulary: usize, options: &CalibrateOptions, cancelled: Cancelled<'_>) -> Result<Self, Error> {
        let texts = Self::of_corpus(model, vocabulary, (&options.corpus, options.seed), cancelled)?;
        Ok(Self { samples: options.samples, ..texts })
    }

    /// The same of these files and folders; none: of the system's text.
    ///
    /// # Errors
    /// Likewise.
    pub fn of_corpus(model: &Path, vocabulary: usize, (corpus, seed): (&[String], u64), cancelled: Cancelled<'_>) -> Result<Self, Error> {
        let wrong = |error: &dyn std::fmt::Display| unless(cancelled(), Error::invalid("corpus", error.to_string()));
        let paths: Vec<PathBuf> = corpus.iter().map(PathBuf::from).collect();
        let limits = Limits::default();
        let corpus = if paths.is_empty() { Corpus::of_system(&limits, cancelled) } else { Corpus::load(&paths, &limits, cancelled) };
        let corpus = corpus.map_err(|error| wrong(&error))?;
        let digest = corpus.digest().parse().map_err(|_| Error::new(ErrorKind::Internal, "the digest of the texts is none"))?;
        let internal = |error: &dyn std::fmt::Display| Error::new(ErrorKind::Internal, error.to_string());
        let tokenizer = Tokenizer::open(model, vocabulary).map_err(|error| internal(&error))?;
        let template = ChatTemplate::open(model).map_err(|error| internal(&error))?;
        Ok(Self { corpus, digest, tokenizer, template, samples: 1, seed })
    }

    /// SHA-256 over the texts.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// A bin's prompts.
    ///
    /// # Errors
    /// Too little text for the length, or it was cancelled.
    pub fn prompts(&self, bin: Bin, cancelled: Cancelled<'_>) -> Result<Vec<Prompt>, CalibrateError> {
        self.of(bin, Half::Calibration, self.samples, cancelled)
    }

    /// As many prompts of other texts of the same kinds.
    ///
    /// # Errors
    /// Likewise.
    pub fn other_prompts(&self, bin: Bin, count: usize, cancelled: Cancelled<'_>) -> Result<Vec<Prompt>, CalibrateError> {
        self.of(bin, Half::Check, count, cancelled)
    }

    /// One prompt of a length, of text that calibrates nothing.
    ///
    /// # Errors
    /// Likewise.
    pub fn one(&self, length: usize, cancelled: Cancelled<'_>) -> Result<Vec<u32>, CalibrateError> {
        let prompts = self.other_prompts(Bin { first: length, end: length.saturating_add(1) }, 1, cancelled)?;
        prompts.into_iter().next().map(|prompt| prompt.tokens).ok_or_else(|| CalibrateError::Prompts("no text".into()))
    }

    fn of(&self, bin: Bin, half: Half, count: usize, cancelled: Cancelled<'_>) -> Result<Vec<Prompt>, CalibrateError> {
        let framing = Framing::new(&self.tokenizer, self.template.as_ref()).until(cancelled);
        // Another bin has other passages.
        let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(bin.first as u64);
        let prompts = calibration_prompts(&self.corpus, half, &framing, &bin.lengths(count), seed).map_err(|error| match error {
            PromptError::Cancelled => CalibrateError::Cancelled,
            other => CalibrateError::Prompts(other.to_string()),
        })?;
        Ok(prompts.into_iter().map(|prompt| Prompt { tokens: prompt.tokens, source: prompt.source }).collect())
    }
}
