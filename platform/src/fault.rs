//! Why a node says nothing usable.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io;

/// Longest piece of a node's text that a message repeats, in characters.
const SHOWN: usize = 40;

/// What is wrong with a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "fault")]
#[non_exhaustive]
pub enum Fault {
    /// It is not there.
    #[error("absent")]
    Absent,
    /// The kernel refuses.
    #[error("{words} (errno {errno})")]
    Refused {
        /// The error's number; 0 where there is none.
        errno: i32,
        /// Its words.
        words: String,
    },
    /// It says what it cannot mean.
    #[error("says {text:?}")]
    Nonsense {
        /// The beginning of it.
        text: String,
    },
    /// It is longer than a node is.
    #[error("is longer than {limit} bytes")]
    TooLarge {
        /// What is read at most.
        limit: u64,
    },
}

impl Fault {
    /// Text that makes no sense where it was found.
    pub fn nonsense(text: &str) -> Self {
        Fault::Nonsense { text: text.trim().chars().take(SHOWN).collect() }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // A folder on the way that is a file is as absent as can be.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Fault::Absent,
            io::ErrorKind::InvalidData => Fault::Nonsense { text: "bytes that are no text".into() },
            kind => match error.raw_os_error() {
                Some(errno) => Fault::Refused { errno, words: io::Error::from(Errno::from_raw_os_error(errno)).kind().to_string() },
                None => Fault::Refused { errno: 0, words: kind.to_string() },
            },
        }
    }
}
