//! Text to token ids and back, over a checkpoint's tokenizer.json.
//!
//! Encoding is the `tokenizers` crate's. Decoding is a table of each token's bytes, made once: a token may be part of a character, and
//! whoever streams text holds bytes back until they are whole ([`crate::detokenize`]).

mod limits;
mod size;
#[cfg(test)]
mod tests;
mod token_bytes;

use crate::detokenize::TokenText;
use std::borrow::Cow;
use std::io::Read;
use std::path::{Path, PathBuf};
use token_bytes::{Scheme, TokenBytes};

/// Longest tokenizer.json that is parsed; those of vocabularies of 262,144 have 33 MB.
const MAX_FILE: u64 = 64 << 20;

/// Why a tokenizer could not be opened or text not be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not a tokenizer, or larger than one should be.
    #[error("{}: {detail}", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        detail: String,
    },
    /// A decoder whose bytes a token are not known.
    #[error("{}: the decoder `{decoder}` is not supported (supported: ByteLevel, and byte fallback with ▁ for spaces)", path.display())]
    UnsupportedDecoder {
        /// Which file.
        path: PathBuf,
        /// Its decoder.
        decoder: String,
    },
    /// A part larger than it may be; what it would take is not tried.
    #[error("{}: `{field}`: {detail}", path.display())]
    Excess {
        /// Which file.
        path: PathBuf,
        /// Which part of it.
        field: String,
        /// How much it is, and the limit.
        detail: String,
    },
    /// A model other than byte-pair encoding.
    #[error("{}: the tokenizer model `{model}` is not supported (supported: BPE)", path.display())]
    UnsupportedModel {
        /// Which file.
        path: PathBuf,
        /// Its model.
        model: String,
    },
    /// The tokenizer has ids for which the model has no embedding.
    #[error("{}: token id {id} is outside the model's vocabulary of {vocab}", path.display())]
    Vocabulary {
        /// Which file.
        path: PathBuf,
        /// The largest id.
        id: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// Text that the tokenizer could not encode.
    #[error("the text could not be encoded: {0}")]
    Encode(String),
}

/// An opened tokenizer; shared freely between threads.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    bytes: TokenBytes,
}

impl Tokenizer {
    /// Opens `tokenizer.json` of a checkpoint folder whose embedding has `vocab` rows.
    ///
    /// # Errors
    /// The file is missing, malformed, of an unsupported kind, larger in some part than it may be, or has ids beyond `vocab`. The limits are
    /// checked before anything is built of it.
    pub fn open(dir: &Path, vocab: usize) -> Result<Self, TokenizerError> {
        let path = dir.join("tokenizer.json");
        let malformed = |detail: String| TokenizerError::Malformed { path: path.clone(), detail };
        let mut json = Vec::new();
        std::fs::File::open(&path)
            .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut json))
            .map_err(|source| TokenizerError::Io { path: path.clone(), source })?;
        if json.len() as u64 > MAX_FILE {
            return Err(malformed(format!("larger than the limit of {MAX_FILE} bytes")));
        }
        limits::check(&json, vocab).map_err(|refusal| match refusal {
            limits::Refusal::Malformed(detail) => malformed(detail),
            limits::Refusal::Model(model) => TokenizerError::UnsupportedModel { path: path.clone(), model },
            limits::Refusal::Excess(limits::Excess { field, detail }) => TokenizerError::Excess { path: path.clone(), field, detail },
        })?;
        let mut inner = tokenizers::Tokenizer::from_bytes(&json).map_err(|e| malformed(e.to_string()))?;
        // Some published files ask for truncation or padding; no prompt is shortened or lengthened here.
        inner.with_truncation(None).map_err(|e| malformed(e.to_string()))?;
        inner.with_padding(None);
        let scheme = Scheme::of(&inner).map_err(|decoder| TokenizerError::UnsupportedDecoder { path: path.clone(), decoder })?;
        let pairs = inner.get_vocab(true);
        if let Some(&id) = pairs.values().max().filter(|&&id| id as usize >= vocab) {
            return Err(TokenizerError::Vocabulary { path, id, vocab });
        }
        let bytes = TokenBytes::new(&inner, pairs, scheme);
        Ok(Self { inner, bytes })
    }

    /// Token ids of `text`. Special tokens written out in the text become their ids; `add_special` puts those in front (and behind)
    /// that the tokenizer itself adds, which a rendered chat template already holds.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`]; none is known for byte-level BPE.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, add_special).map_err(|e| TokenizerError::Encode(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The id of a token written as in the vocabulary (`<|im_end|>`).
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.bytes.len()
    }

    /// The text of ids, with U+FFFD for bytes that are no UTF-8.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let shown = ids.iter().filter(|&&id| !(skip_special && self.bytes.is_special(id)));
        let bytes: Vec<u8> = shown.flat_map(|&id| self.bytes.get(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl TokenText for Tokenizer {
    fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.bytes.get(id))
    }

    fn is_special(&self, id: u32) -> bool {
        self.bytes.is_special(id)
    }
}
