//! What config.json says of a decoder: sizes, rotation, activation, norms, windows. Parsed once; what is not understood is refused by name.

use super::CheckpointError;
use super::family::Family;
use super::fields::Fields;
use super::{rope, window};
use skip_kernels::backend::{Activation, Rope};

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
    /// Factor from q·k to nats.
    pub attention_scale: f32,
    /// Factor on the rows of the embedding.
    pub embedding_scale: f32,
    /// Rotation of q and k, in layers that see everything.
    pub rope: Rope,
    /// The layers that do not.
    pub windowed: Option<Windowed>,
    /// Longest sequence: what the model was made for, or what its rotation stretches that to.
    pub max_position_embeddings: usize,
    /// The head is the embedding.
    pub tied: bool,
}

/// Layers that see no further back than a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Windowed {
    /// A query at p sees the keys j with p − `keys` < j ≤ p.
    pub keys: usize,
    /// Which layers, one entry each.
    pub layers: Vec<bool>,
    /// Their rotation of q and k.
    pub rope: Rope,
}

impl Architecture {
    /// Reads config.json's fields.
    pub(super) fn parse(config: &Fields<'_>) -> Result<Self, CheckpointError> {
        let family = Family::of(config.text("model_type")?)?;
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
        refuse_variants(config, family)?;
        let layers = config.count("num_hidden_layers", 1 << 10)?;
        let trained = config.count("max_position_embeddings", 1 << 24)?;
        let rotations = rope::parse(config, family, head_dim, trained)?;
        let gemma = family == Family::Gemma3;
        let scalar = if gemma { config.positive_or("query_pre_attn_scalar", 1e6, 256.0)? } else { head_dim as f64 };
        Ok(Self {
            family,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            intermediate: config.count("intermediate_size", 1 << 20)?,
            vocab: config.count("vocab_size", 1 << 22)?,
            norm_eps: config.positive("rms_norm_eps", 1.0)? as f32,
            activation: activation(config, family)?,
            attention_scale: scalar.powf(-0.5) as f32,
            embedding_scale: if gemma { (hidden as f32).sqrt() } else { 1.0 },
            windowed: window::parse(config, family, layers, rotations.context)?.map(|(keys, layers)| Windowed {
                keys,
                layers,
                rope: rotations.windowed,
            }),
            rope: rotations.full,
            max_position_embeddings: rotations.context,
            tied: config.flag_or("tie_word_embeddings", family.is_tied_unless_told())?,
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

    /// What layer `index` sees, None for everything.
    pub fn window(&self, index: usize) -> Option<&Windowed> {
        self.windowed.as_ref().filter(|windowed| windowed.layers.get(index) == Some(&true))
    }
}

fn activation(config: &Fields<'_>, family: Family) -> Result<Activation, CheckpointError> {
    let name = match family {
        Family::Gemma3 => config.text_or("hidden_activation", "gelu_pytorch_tanh")?,
        _ => config.text_or("hidden_act", "silu")?,
    };
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_pytorch_tanh" | "gelu_tanh" => Ok(Activation::GeluTanh),
        other => Err(CheckpointError::Unsupported { what: "activation", name: other.to_owned(), supported: "silu, gelu_pytorch_tanh" }),
    }
}

/// Switches which would change the arithmetic and which this decoder does not have.
fn refuse_variants(config: &Fields<'_>, family: Family) -> Result<(), CheckpointError> {
    for field in ["attention_bias", "mlp_bias", "use_bidirectional_attention"] {
        if config.flag_or(field, false)? {
            return Err(config.bad(field, format!("not supported for {} yet", family.name())));
        }
    }
    for field in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if !config.is_null(field) {
            return Err(config.bad(field, format!("soft-capping is not supported for {}", family.name())));
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
