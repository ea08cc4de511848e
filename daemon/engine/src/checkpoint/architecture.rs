//! What config.json says of a decoder: sizes, rotation, activation, which biases there are. Parsed once; what is not understood is refused by name.

use super::CheckpointError;
use super::fields::Fields;
use super::rope;
use skip_kernels::backend::{Activation, Rope};

/// A family of decoders that the engine can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Family {
    /// Llama, and what is shaped like it (SmolLM2).
    Llama,
    /// Qwen 2 and 2.5: q, k and v have biases.
    Qwen2,
}

impl Family {
    /// The `model_type` of config.json.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
        }
    }
}

/// A decoder's sizes and variants. Counts are of heads, features, layers or tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// Which family.
    pub family: Family,
    /// Features of the residual stream.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Features of one head; even.
    pub head_dim: usize,
    /// Features inside the gated MLP.
    pub intermediate: usize,
    /// Rows of the embedding and of the head; the tokenizer may know fewer.
    pub vocab: usize,
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
    /// The MLP gate's activation.
    pub activation: Activation,
    /// Rotation of q and k.
    pub rope: Rope,
    /// Longest sequence the model was made for.
    pub max_position_embeddings: usize,
    /// The head is the embedding.
    pub tied: bool,
    /// q, k and v have biases.
    pub qkv_bias: bool,
}

impl Architecture {
    /// Reads config.json's fields.
    pub(super) fn parse(config: &Fields<'_>) -> Result<Self, CheckpointError> {
        let family = match config.text("model_type")? {
            "llama" => Family::Llama,
            "qwen2" => Family::Qwen2,
            other => {
                return Err(CheckpointError::Unsupported { what: "architecture", name: other.to_owned(), supported: "llama, qwen2" });
            }
        };
        let hidden = config.count("hidden_size", 1 << 16)?;
        let heads = config.count("num_attention_heads", 1 << 12)?;
        let kv_heads = config.count_or("num_key_value_heads", 1 << 12, heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(config.bad("num_key_value_heads", format!("{kv_heads} does not divide {heads} heads")));
        }
        if config.is_null("head_dim") && !hidden.is_multiple_of(heads) {
            return Err(config.bad("num_attention_heads", format!("{heads} does not divide a hidden size of {hidden}")));
        }
        let head_dim = config.count_or("head_dim", 1 << 10, hidden / heads)?;
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(config.bad("head_dim", format!("{head_dim} is not an even number of features")));
        }
        let activation = match config.text_or("hidden_act", "silu")? {
            "silu" | "swish" => Activation::Silu,
            "gelu_pytorch_tanh" | "gelu_tanh" => Activation::GeluTanh,
            other => {
                return Err(CheckpointError::Unsupported {
                    what: "activation",
                    name: other.to_owned(),
                    supported: "silu, gelu_pytorch_tanh",
                });
            }
        };
        refuse_variants(config, family)?;
        Ok(Self {
            family,
            hidden,
            layers: config.count("num_hidden_layers", 1 << 10)?,
            heads,
            kv_heads,
            head_dim,
            intermediate: config.count("intermediate_size", 1 << 20)?,
            vocab: config.count("vocab_size", 1 << 22)?,
            norm_eps: config.positive("rms_norm_eps", 1.0)? as f32,
            activation,
            rope: rope::parse(config, head_dim)?,
            max_position_embeddings: config.count("max_position_embeddings", 1 << 24)?,
            tied: config.flag_or("tie_word_embeddings", false)?,
            qkv_bias: match family {
                Family::Llama => false,
                Family::Qwen2 => true,
            },
        })
    }

    /// Query heads that share one KV head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Features of a packed `[q | k | v]` row.
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

/// Switches which would change the arithmetic and which this decoder does not have.
fn refuse_variants(config: &Fields<'_>, family: Family) -> Result<(), CheckpointError> {
    for field in ["attention_bias", "mlp_bias", "use_sliding_window"] {
        if config.flag_or(field, false)? {
            return Err(config.bad(field, format!("not supported for {} yet", family.name())));
        }
    }
    if !config.is_null("quantization_config") {
        return Err(config.bad("quantization_config", "quantised weights are not supported yet".into()));
    }
    if config.fraction_or("partial_rotary_factor", 1.0)? != 1.0 {
        return Err(config.bad("partial_rotary_factor", "partial rotation is not supported".into()));
    }
    Ok(())
}
