//! The families of decoders that can be imported, and how GGUF's version of each differs from the Hugging Face one.

use crate::ImportError;

/// Architectures that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Llama and Mistral: q and k are stored interleaved, rows must be brought back to "rotate half" order.
    Llama,
    /// q, k and v have biases.
    Qwen2,
    /// q and k have norms.
    Qwen3,
    /// Norms of q, k and of what a layer adds; every norm is stored with the 1 that the decoder adds.
    Gemma3,
}

impl Family {
    /// By `general.architecture`.
    pub fn of(architecture: &str) -> Result<Self, ImportError> {
        let all = [Family::Llama, Family::Qwen2, Family::Qwen3, Family::Gemma3];
        all.into_iter().find(|family| family.name() == architecture).ok_or_else(|| ImportError::Unsupported {
            what: "architecture",
            name: architecture.to_owned(),
            supported: "llama, qwen2, qwen3, gemma3",
        })
    }

    /// `general.architecture`.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Gemma3 => "gemma3",
        }
    }

    /// Rows of q's and k's heads are interleaved.
    pub fn is_interleaved(self) -> bool {
        self == Family::Llama
    }

    pub fn has_qkv_bias(self) -> bool {
        self == Family::Qwen2
    }

    pub fn has_qk_norm(self) -> bool {
        matches!(self, Family::Qwen3 | Family::Gemma3)
    }

    pub fn has_post_norms(self) -> bool {
        self == Family::Gemma3
    }

    /// What is taken from the stored weights of norms.
    pub fn norm_offset(self) -> f32 {
        if self == Family::Gemma3 { 1.0 } else { 0.0 }
    }
}
