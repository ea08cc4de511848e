//! Pinned prefixes: beginnings of prompts that an administrator shares between all users and keeps in the cache.

use crate::handle::{ClientId, FinishReason, SubmitError};

/// Prefixes at most.
pub const MAX_PREFIXES: usize = 64;

/// A prefix to pin.
#[derive(Clone, Debug)]
pub struct NewPrefix {
    /// What it is called from then on.
    pub name: String,
    /// The tokens that prompts begin with. Whole pages of 128 are pinned, the rest is computed for every prompt.
    pub tokens: Vec<u32>,
    /// Who pins it.
    pub owner: ClientId,
}

/// Which pinned prefix is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one of this name, whoever pinned it.
    Name(String),
    /// The one with this number: a name may be another's by now.
    Serial(u64),
}

impl From<&str> for Which {
    fn from(name: &str) -> Self {
        Which::Name(name.to_owned())
    }
}

/// A pinned prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixInfo {
    /// Its number, which no other has had or will have while the engine lives.
    pub serial: u64,
    /// Its name.
    pub name: String,
    /// Tokens in its pages.
    pub tokens: u32,
    /// Pages it counts for.
    pub pages: u32,
    /// Pages it holds now: all of them once a prompt with it was computed, none before.
    pub held: u32,
    /// Who pinned it.
    pub owner: ClientId,
    /// Requests that took pages of it instead of computing them; one counts for the prefix it has most pages in common with.
    pub hits: u64,
}

/// Why a prefix is not pinned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PrefixError {
    /// Nothing to pin.
    #[error("a prefix of {tokens} tokens has no whole page of 128")]
    TooShort {
        /// Its tokens.
        tokens: usize,
    },
    /// More than pinned prefixes may take.
    #[error("the prefix needs {needed} pages; {pinned} of at most {limit} are pinned, the rest is kept for requests of full context")]
    NoRoom {
        /// Its pages.
        needed: usize,
        /// Pages pinned.
        pinned: usize,
        /// Pages that may be.
        limit: usize,
    },
    /// More than are kept track of.
    #[error("{MAX_PREFIXES} prefixes are pinned; drop one first")]
    TooMany,
    /// Two of one name.
    #[error("a prefix called `{0}` is pinned")]
    NameTaken(String),
    /// The pages are pinned under another name.
    #[error("the same pages are pinned as `{0}`")]
    AlreadyPinned(String),
    /// It cannot be computed.
    #[error(transparent)]
    Refused(#[from] SubmitError),
    /// Computing it ended early.
    #[error("the prefix was not computed: {}{}", .reason.name(), .detail.as_ref().map(|d| format!(": {d}")).unwrap_or_default())]
    NotComputed {
        /// Why.
        reason: FinishReason,
        /// More words.
        detail: Option<String>,
    },
}
