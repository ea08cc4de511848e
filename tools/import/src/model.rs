//! The decoder a GGUF file describes, and the config.json that says the same.

use crate::ImportError;
use crate::gguf::Gguf;
use serde_json::{Map, Value, json};

/// Architectures that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// q and k are stored interleaved: rows must be brought back to "rotate half" order.
    Llama,
    /// q, k and v have biases; rows as they are.
    Qwen2,
}

impl Family {
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
        }
    }
}

/// Sizes, as in config.json.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub family: Family,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub intermediate: usize,
    pub vocab: usize,
    pub tied: bool,
    context: usize,
    eps: f64,
    rope_theta: f64,
    rope_scaling: Option<Value>,
}

impl Model {
    /// Reads the metadata.
    pub fn read(gguf: &mut Gguf) -> Result<Self, ImportError> {
        let family = match gguf.text("general.architecture")? {
            "llama" => Family::Llama,
            "qwen2" => Family::Qwen2,
            other => {
                return Err(ImportError::Unsupported { what: "architecture", name: other.to_owned(), supported: "llama, qwen2" });
            }
        };
        let key = |name: &str| format!("{}.{name}", family.name());
        let hidden = gguf.count(&key("embedding_length"), 1 << 16)?;
        let heads = gguf.count(&key("attention.head_count"), 1 << 12)?;
        let kv_key = key("attention.head_count_kv");
        let kv_heads = if gguf.has(&kv_key) { gguf.count(&kv_key, 1 << 12)? } else { heads };
        let length_key = key("attention.key_length");
        let head_dim = if gguf.has(&length_key) { gguf.count(&length_key, 1 << 10)? } else { hidden / heads };
        if head_dim == 0 || !head_dim.is_multiple_of(2) || !heads.is_multiple_of(kv_heads) {
            return Err(ImportError::key(
                &key("attention.head_count"),
                format!("{heads} heads, {kv_heads} KV heads, hidden size {hidden} do not fit"),
            ));
        }
        let rotated = key("rope.dimension_count");
        if gguf.has(&rotated) && gguf.count(&rotated, 1 << 10)? != head_dim {
            return Err(ImportError::key(&rotated, "partial rotation is not supported"));
        }
        if let Some(kind) = gguf.text_opt(&key("rope.scaling.type"))?.filter(|kind| *kind != "none") {
            return Err(ImportError::Unsupported { what: "rope scaling", name: kind.to_owned(), supported: "none" });
        }
        if gguf.has(&key("expert_count")) {
            return Err(ImportError::key(&key("expert_count"), "mixtures of experts are not supported"));
        }
        let vocab = match gguf.shape("token_embd.weight") {
            Some(&[rows, _]) if rows <= 1 << 22 => rows,
            _ => return Err(ImportError::tensor("token_embd.weight", "missing, or not a matrix of at most 4,194,304 rows")),
        };
        let theta_key = key("rope.freq_base");
        let rope_theta = if gguf.has(&theta_key) { gguf.positive(&theta_key)? } else { 10_000.0 };
        Ok(Self {
            family,
            hidden,
            layers: gguf.count(&key("block_count"), 1 << 10)?,
            heads,
            kv_heads,
            head_dim,
            intermediate: gguf.count(&key("feed_forward_length"), 1 << 20)?,
            vocab,
            tied: gguf.shape("output.weight").is_none(),
            context: gguf.count(&key("context_length"), 1 << 24)?,
            eps: gguf.positive(&key("attention.layer_norm_rms_epsilon"))?,
            rope_theta,
            rope_scaling: llama3_scaling(gguf, rope_theta, head_dim)?,
        })
    }

    /// Longest sequence the model was made for.
    pub fn context(&self) -> usize {
        self.context
    }

    /// config.json, without token ids and tables.
    pub fn config(&self) -> Map<String, Value> {
        let class = match self.family {
            Family::Llama => "LlamaForCausalLM",
            Family::Qwen2 => "Qwen2ForCausalLM",
        };
        let mut config = Map::new();
        let mut set = |key: &str, value: Value| config.insert(key.to_owned(), value);
        set("architectures", json!([class]));
        set("model_type", json!(self.family.name()));
        set("hidden_size", json!(self.hidden));
        set("intermediate_size", json!(self.intermediate));
        set("num_hidden_layers", json!(self.layers));
        set("num_attention_heads", json!(self.heads));
        set("num_key_value_heads", json!(self.kv_heads));
        set("head_dim", json!(self.head_dim));
        set("vocab_size", json!(self.vocab));
        set("max_position_embeddings", json!(self.context));
        set("hidden_act", json!("silu"));
        set("rms_norm_eps", json!(self.eps));
        set("rope_theta", json!(self.rope_theta));
        set("rope_scaling", json!(self.rope_scaling));
        set("tie_word_embeddings", json!(self.tied));
        if self.family == Family::Llama {
            set("attention_bias", json!(false));
            set("mlp_bias", json!(false));
        }
        set("torch_dtype", json!("bfloat16"));
        config
    }
}

/// Llama 3.1 and later store per-dimension divisors instead of the four numbers they come from. All published ones have
/// low 1, high 4 and 8,192 original positions; the factor is the largest divisor. Taken only if these numbers give the stored divisors.
fn llama3_scaling(gguf: &mut Gguf, theta: f64, head_dim: usize) -> Result<Option<Value>, ImportError> {
    const NAME: &str = "rope_freqs.weight";
    let Some(shape) = gguf.shape(NAME) else { return Ok(None) };
    if shape != [head_dim / 2] {
        return Err(ImportError::tensor(NAME, format!("shape {shape:?}; expected [{}]", head_dim / 2)));
    }
    let divisors = gguf.rows(NAME, 0..1)?;
    let (low, high, original) = (1.0, 4.0, 8192.0);
    let factor = f64::from(divisors.iter().copied().fold(1.0, f32::max)).round();
    for (i, &found) in divisors.iter().enumerate() {
        let wavelength = std::f64::consts::TAU * theta.powf((2 * i) as f64 / head_dim as f64);
        let smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0);
        let expected = 1.0 / ((1.0 - smooth) / factor + smooth);
        if (expected - f64::from(found)).abs() > 1e-3 * expected {
            return Err(ImportError::tensor(NAME, "frequency divisors other than Llama 3's are not supported"));
        }
    }
    Ok(Some(json!({"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": original as u64})))
}
