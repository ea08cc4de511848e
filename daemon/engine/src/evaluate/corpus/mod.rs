//! Real text for haystacks and for calibration: from files given, else from what the system has of documentation, licences and source.
//!
//! Scores over random tokens are near uniform and nothing would be skipped, so text that is binary, random or too little is refused, with the
//! numbers. Each kind of text is cut into two halves that share no paragraph: tables are calibrated on one and checked on the other.

mod gather;
mod inspect;
mod kind;
mod stretch;
#[cfg(test)]
mod tests;

pub use inspect::Refusal;
pub use kind::Kind;
pub use stretch::{Passage, Passages};

use crate::regular::Cancelled;
use gather::Document;
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};
use stretch::Stretch;

/// Where text is looked for when no files are given, in this order.
const SYSTEM: [&str; 7] = [
    "/usr/share/common-licenses",
    "/usr/share/doc",
    "/usr/share/info",
    "/usr/include",
    "/usr/lib/python3",
    "/usr/share/perl",
    "/usr/share/perl5",
];

/// How much is read, and how little is enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one file; the rest of it is left.
    pub file_bytes: u64,
    /// Bytes of one kind of text in all, of folders and of files that are named.
    pub kind_bytes: u64,
    /// Entries of folders looked at.
    pub entries: usize,
    /// Bytes of a kind below which it is not used.
    pub least_bytes: usize,
}

impl Default for Limits {
    /// 4 MiB of a file, 16 MiB of a kind, 200,000 entries, at least 64 KiB (some 16,000 tokens).
    fn default() -> Self {
        Self { file_bytes: 4 << 20, kind_bytes: 16 << 20, entries: 200_000, least_bytes: 64 << 10 }
    }
}

/// Why there is no text to work with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorpusError {
    /// A path could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that was named is no text to calibrate on.
    #[error("{}: {refusal}", path.display())]
    Refused {
        /// Which.
        path: PathBuf,
        /// Why.
        refusal: Refusal,
    },
    /// Neither a file nor a folder: a pipe, a device, or a file that the kernel makes up.
    #[error("{}: neither a regular file nor a folder", path.display())]
    Special {
        /// Which.
        path: PathBuf,
    },
    /// Too little text in all.
    #[error("{found} bytes of text in {files} files, once every paragraph is taken once; a kind of text needs {needed}. Name longer texts")]
    TooShort {
        /// Bytes of the kind with the most.
        found: usize,
        /// Files they are in.
        files: usize,
        /// Bytes that one kind must have.
        needed: usize,
    },
    /// It was told to end.
    #[error("cancelled")]
    Cancelled,
    /// A passage longer than what there is of its kind.
    #[error("a passage of {wanted} bytes was asked for; half of the {kind} has {found}. Name longer texts")]
    Exhausted {
        /// Bytes asked for.
        wanted: usize,
        /// Of which kind.
        kind: Kind,
        /// Bytes there are.
        found: usize,
    },
}

/// Which half of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Half {
    /// What tables are made from.
    Calibration,
    /// Other text of the same kinds: what they are checked and evaluated on.
    Check,
}

/// Text, by kind and half.
#[derive(Debug)]
pub struct Corpus {
    kinds: Vec<(Kind, [Stretch; 2])>,
    digest: String,
    files: usize,
    skipped: usize,
}

impl Corpus {
    /// The text of files, and of the files in folders.
    ///
    /// # Errors
    /// A path cannot be read, a file that is named itself is refused, or there is too little text. Files of folders that are no text are
    /// left out and counted. Or it was cancelled.
    pub fn load(paths: &[PathBuf], limits: &Limits, cancelled: Cancelled<'_>) -> Result<Self, CorpusError> {
        Self::of(gather::gather(paths, limits, cancelled)?, limits)
    }

    /// What the system has.
    ///
    /// # Errors
    /// Too little text: a small image has no documentation. Or it was cancelled.
    pub fn of_system(limits: &Limits, cancelled: Cancelled<'_>) -> Result<Self, CorpusError> {
        let there: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).filter(|path| Path::new(path).is_dir()).collect();
        Self::load(&there, limits, cancelled)
    }

    fn of(gathered: gather::Gathered, limits: &Limits) -> Result<Self, CorpusError> {
        let mut hash = Sha256::new();
        let mut kinds = Vec::new();
        let (mut files, mut most) = (0, 0);
        for kind in Kind::ALL {
            let documents: Vec<Document> = gathered.documents.iter().filter(|document| document.kind == kind).cloned().collect();
            let bytes: usize = documents.iter().map(|document| document.text.len()).sum();
            most = most.max(bytes);
            if bytes < limits.least_bytes.max(1) {
                continue;
            }
            for document in &documents {
                hash.update(kind.name());
                hash.update((document.text.len() as u64).to_le_bytes());
                hash.update(&document.text);
            }
            files += documents.len();
            kinds.push((kind, stretch::halves(documents)));
        }
        if kinds.is_empty() {
            return Err(CorpusError::TooShort { found: most, files: gathered.documents.len(), needed: limits.least_bytes });
        }
        let digest = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let skipped = gathered.skipped + gathered.documents.len() - files;
        Ok(Self { kinds, digest, files, skipped })
    }

    /// Kinds of text there is enough of.
    pub fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.kinds.iter().map(|(kind, _)| *kind)
    }

    /// SHA-256, in hexadecimal, of the texts used: of each its kind, its length in bytes (eight, little-endian) and itself.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Files used.
    pub fn files(&self) -> usize {
        self.files
    }

    /// Files left out: no room for their kind, or of folders: no text, unreadable, said elsewhere, or of a kind there is too little of.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// Bytes of a kind in one half; 0 where there is none of the kind.
    pub fn bytes(&self, kind: Kind, half: Half) -> usize {
        self.stretch(kind, half).map_or(0, Stretch::len)
    }

    /// Passages of a kind (of the first, where there is none of it), one after the other from a place that the seed chooses.
    pub fn passages(&self, kind: Kind, half: Half, seed: u64) -> Passages<'_> {
        // A corpus has a kind: `of` refuses to make one without.
        let (kind, halves) = self.kinds.iter().find(|(k, _)| *k == kind).unwrap_or(&self.kinds[0]);
        Passages::new(*kind, &halves[half as usize], seed)
    }

    /// The kind whose sentences carry planted facts best: prose, else documentation, else source.
    pub fn haystack(&self) -> Kind {
        self.kinds[0].0
    }

    /// Plain lower-case words of 4 to 10 letters that occur in one half, each once, in the order of their first place; at most `most`.
    pub fn words(&self, half: Half, most: usize) -> Vec<String> {
        let mut seen = std::collections::HashMap::new();
        let mut out = Vec::new();
        let plain = |word: &&str| (4..=10).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase());
        for (_, halves) in &self.kinds {
            for word in halves[half as usize].text().split_whitespace().filter(plain) {
                let count = seen.entry(word).or_insert(0u32);
                *count += 1;
                // Once may be a slip or a name; twice is a word.
                if *count == 2 {
                    out.push(word.to_owned());
                    if out.len() == most {
                        return out;
                    }
                }
            }
        }
        out
    }

    fn stretch(&self, kind: Kind, half: Half) -> Option<&Stretch> {
        self.kinds.iter().find(|(k, _)| *k == kind).map(|(_, halves)| &halves[half as usize])
    }
}
