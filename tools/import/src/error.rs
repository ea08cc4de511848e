//! Why an import was refused; every error names the file, key or tensor.

use std::path::PathBuf;

/// What went wrong. Nothing is left in the target folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// Reading or writing failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not a GGUF file, or one that is cut short or contradicts itself.
    #[error("{}: {detail}", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// A metadata key is not there.
    #[error("the GGUF file has no key `{key}`")]
    MissingKey {
        /// Its name.
        key: String,
    },
    /// A metadata key has the wrong type or an impossible value.
    #[error("the GGUF key `{key}`: {detail}")]
    Key {
        /// Its name.
        key: String,
        /// What is wrong with it.
        detail: String,
    },
    /// A well-formed file of a kind that is not supported.
    #[error("{what} `{name}` is not supported (supported: {supported})")]
    Unsupported {
        /// Kind of thing: `architecture`, `pre-tokenizer` …
        what: &'static str,
        /// What the file asks for.
        name: String,
        /// What could be read.
        supported: &'static str,
    },
    /// A tensor is missing, of the wrong shape, or not one of the architecture.
    #[error("tensor `{name}`: {detail}")]
    Tensor {
        /// Its name in the GGUF file.
        name: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The target folder has something in it.
    #[error("{} is not empty; give a new folder", dir.display())]
    TargetExists {
        /// The folder.
        dir: PathBuf,
    },
    /// Another import into the same folder is running.
    #[error("another import into {} is running", dir.display())]
    TargetBusy {
        /// The folder.
        dir: PathBuf,
    },
}

impl ImportError {
    /// For `map_err`: adds the path to an I/O error.
    pub(crate) fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> ImportError + use<> {
        let path = path.to_owned();
        move |source| ImportError::Io { path, source }
    }

    pub(crate) fn key(key: &str, detail: impl Into<String>) -> Self {
        ImportError::Key { key: key.to_owned(), detail: detail.into() }
    }

    pub(crate) fn tensor(name: &str, detail: impl std::fmt::Display) -> Self {
        ImportError::Tensor { name: name.to_owned(), detail: detail.to_string() }
    }
}
