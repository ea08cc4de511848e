//! The families of decoders, and which tensors a layer of each has.

use super::CheckpointError;

/// A family of decoders that the engine can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Family {
    /// Llama, and what is shaped like it (SmolLM2).
    Llama,
    /// Mistral: Llama, perhaps with a window in every layer.
    Mistral,
    /// Qwen 2 and 2.5: q, k and v have biases.
    Qwen2,
    /// Qwen 3: q and k have norms.
    Qwen3,
    /// Gemma 3, text alone: layers with and without a window, norms of q, k and of what a layer adds, scaled embeddings.
    Gemma3,
}

/// Matrices and norms that a layer of every family has.
const COMMON: [&str; 9] = [
    "input_layernorm.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "post_attention_layernorm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
];

impl Family {
    /// By the `model_type` of config.json.
    pub(super) fn of(model_type: &str) -> Result<Self, CheckpointError> {
        let all = [Family::Llama, Family::Mistral, Family::Qwen2, Family::Qwen3, Family::Gemma3];
        all.into_iter().find(|family| family.name() == model_type).ok_or_else(|| CheckpointError::Unsupported {
            what: "architecture",
            name: model_type.to_owned(),
            supported: "llama, mistral, qwen2, qwen3, gemma3_text",
        })
    }

    /// The `model_type` of config.json.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Mistral => "mistral",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Gemma3 => "gemma3_text",
        }
    }

    /// q, k and v have biases.
    pub fn has_qkv_bias(self) -> bool {
        self == Family::Qwen2
    }

    /// Each head of q and k is normed before it is rotated.
    pub fn has_qk_norm(self) -> bool {
        matches!(self, Family::Qwen3 | Family::Gemma3)
    }

    /// What attention and the MLP give is normed before it is added.
    pub fn has_post_norms(self) -> bool {
        self == Family::Gemma3
    }

    /// What is added to the stored weights of every norm.
    pub(super) fn norm_offset(self) -> f32 {
        if self == Family::Gemma3 { 1.0 } else { 0.0 }
    }

    /// What a missing `tie_word_embeddings` means.
    pub(super) fn is_tied_unless_told(self) -> bool {
        self == Family::Gemma3
    }

    /// Name of the norm before the MLP.
    pub(super) fn mlp_norm(self) -> &'static str {
        if self.has_post_norms() { "pre_feedforward_layernorm.weight" } else { "post_attention_layernorm.weight" }
    }

    /// Whether a layer has a tensor of that name, or one that is no weight.
    pub(super) fn has(self, part: &str) -> bool {
        COMMON.contains(&part)
            || part == "self_attn.rotary_emb.inv_freq"
            || (self.has_qkv_bias() && ["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"].contains(&part))
            || (self.has_qk_norm() && ["self_attn.q_norm.weight", "self_attn.k_norm.weight"].contains(&part))
            || (self.has_post_norms() && ["pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"].contains(&part))
    }
}
