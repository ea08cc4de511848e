//! Why a checkpoint folder was not accepted; every error names the file, the field or the tensor.

use std::path::PathBuf;

/// What is wrong with a checkpoint folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is larger than anything of its kind should be.
    #[error("{}: {size} bytes, more than the limit of {limit}", path.display())]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// Its size.
        size: u64,
        /// What is allowed.
        limit: u64,
    },
    /// A file is not the JSON it should be.
    #[error("{}: {detail}", path.display())]
    Json {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        detail: String,
    },
    /// A field is missing or has the wrong type or an impossible value.
    #[error("{}: field `{field}`: {detail}", path.display())]
    Field {
        /// Which file.
        path: PathBuf,
        /// Name of the field, with dots.
        field: String,
        /// What is wrong with it.
        detail: String,
    },
    /// A well-formed checkpoint of a kind that is not supported.
    #[error("{what} `{name}` is not supported (supported: {supported})")]
    Unsupported {
        /// Kind of thing: `architecture`, `rope type` …
        what: &'static str,
        /// What the checkpoint asks for.
        name: String,
        /// What could be read.
        supported: &'static str,
    },
    /// The folder has neither `model.safetensors` nor an index.
    #[error("{}: neither model.safetensors nor model.safetensors.index.json", dir.display())]
    NoWeights {
        /// The folder.
        dir: PathBuf,
    },
    /// The index names a shard that is not there.
    #[error("{}: the shard `{shard}` named by the index is missing", dir.display())]
    ShardMissing {
        /// The folder.
        dir: PathBuf,
        /// The file's name.
        shard: String,
    },
    /// A safetensors file is cut short or its header is wrong.
    #[error("{}: {detail}", path.display())]
    Safetensors {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// A tensor the architecture needs is not there.
    #[error("tensor `{name}` is missing")]
    TensorMissing {
        /// Its name.
        name: String,
    },
    /// No head, though config.json does not tie it to the embedding.
    #[error("tensor `lm_head.weight` is missing, and config.json does not tie the head to the embedding (`tie_word_embeddings`)")]
    HeadMissing,
    /// A head that is not the embedding, though config.json ties it to that.
    #[error("tensor `lm_head.weight` differs from the embedding that config.json ties it to (`tie_word_embeddings`)")]
    HeadDiffers,
    /// The index says that a shard holds a tensor, and the shard does not.
    #[error("the index says that tensor `{name}` is in `{shard}`, which {}", found.as_ref().map_or("does not hold it".into(), |found| format!("holds `{found}` instead")))]
    IndexMismatch {
        /// Its name.
        name: String,
        /// The file.
        shard: String,
        /// A tensor there that differs by a prefix.
        found: Option<String>,
    },
    /// Two shards hold the same tensor.
    #[error("tensor `{name}` is in both `{first}` and `{second}`")]
    TensorTwice {
        /// Its name.
        name: String,
        /// One file.
        first: String,
        /// The other.
        second: String,
    },
    /// A tensor's shape does not follow from config.json.
    #[error("tensor `{name}` has shape {found:?}; config.json asks for {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// As stored.
        found: Vec<usize>,
        /// As configured.
        expected: Vec<usize>,
    },
    /// A tensor's element type cannot be used.
    #[error("tensor `{name}` has element type {found}; supported are BF16, F16 and F32")]
    ElementType {
        /// Its name.
        name: String,
        /// As stored.
        found: String,
    },
    /// A tensor does not begin at a multiple of its element size.
    #[error("tensor `{name}` is not aligned in its file")]
    Misaligned {
        /// Its name.
        name: String,
    },
    /// The folder changes the model in a way config.json does not say.
    #[error("tensor `{name}` is not part of a {family} model")]
    UnexpectedTensor {
        /// Its name.
        name: String,
        /// The architecture.
        family: &'static str,
    },
}
