//! The decoder a GGUF file describes, and the config.json that says the same.

use crate::ImportError;
use crate::family::Family;
use crate::gguf::Gguf;
use crate::rope;
use serde_json::{Map, Value, json};

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
    windowed: Option<Windowed>,
}

/// Layers that see a window of keys.
#[derive(Clone, Debug)]
struct Windowed {
    keys: usize,
    /// Which layers; None where all have it.
    layers: Option<Vec<bool>>,
    /// Base of their rotation.
    theta: f64,
}

/// Keys that change the arithmetic in ways the decoder does not have.
const FOREIGN: [&str; 9] = [
    "expert_count",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.temperature_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
];

impl Model {
    /// Reads the metadata.
    pub fn read(gguf: &mut Gguf) -> Result<Self, ImportError> {
        let family = Family::of(gguf.text("general.architecture")?)?;
        let key = |name: &str| format!("{}.{name}", family.name());
        let hidden = gguf.count(&key("embedding_length"), 1 << 16)?;
        let heads = gguf.count(&key("attention.head_count"), 1 << 12)?;
        let count_or = |name: &str, max: usize, default: usize| {
            let key = key(name);
            if gguf.has(&key) { gguf.count(&key, max) } else { Ok(default) }
        };
        let kv_heads = count_or("attention.head_count_kv", 1 << 12, heads)?;
        let head_dim = count_or("attention.key_length", 1 << 10, hidden / heads)?;
        if head_dim == 0 || !head_dim.is_multiple_of(2) || !heads.is_multiple_of(kv_heads) {
            return Err(ImportError::key(
                &key("attention.head_count"),
                format!("{heads} heads, {kv_heads} KV heads, hidden size {hidden} do not fit"),
            ));
        }
        if count_or("attention.value_length", 1 << 10, head_dim)? != head_dim {
            return Err(ImportError::key(&key("attention.value_length"), "other than the keys' is not supported"));
        }
        if count_or("rope.dimension_count", 1 << 10, head_dim)? != head_dim {
            return Err(ImportError::key(&key("rope.dimension_count"), "partial rotation is not supported"));
        }
        if let Some(foreign) = FOREIGN.iter().map(|name| key(name)).find(|key| gguf.has(key)) {
            return Err(ImportError::key(&foreign, format!("not supported for {}", family.name())));
        }
        let vocab = match gguf.shape("token_embd.weight") {
            Some(&[rows, _]) if rows <= 1 << 22 => rows,
            _ => return Err(ImportError::tensor("token_embd.weight", "missing, or not a matrix of at most 4,194,304 rows")),
        };
        let layers = gguf.count(&key("block_count"), 1 << 10)?;
        let rope_theta = gguf.positive_opt(&key("rope.freq_base"))?.unwrap_or(10_000.0);
        Ok(Self {
            family,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            intermediate: gguf.count(&key("feed_forward_length"), 1 << 20)?,
            vocab,
            tied: gguf.shape("output.weight").is_none(),
            context: gguf.count(&key("context_length"), 1 << 24)?,
            eps: gguf.positive(&key("attention.layer_norm_rms_epsilon"))?,
            rope_theta,
            windowed: Windowed::read(gguf, family, key, layers)?,
            rope_scaling: rope::scaling(gguf, key, rope_theta, head_dim)?,
        })
    }

    /// Longest sequence the model was made for.
    pub fn context(&self) -> usize {
        self.context
    }

    /// config.json, without token ids and tables.
    pub fn config(&self) -> Map<String, Value> {
        let (kind, class) = match self.family {
            Family::Llama if self.windowed.is_some() => ("mistral", "MistralForCausalLM"),
            Family::Llama => ("llama", "LlamaForCausalLM"),
            Family::Qwen2 => ("qwen2", "Qwen2ForCausalLM"),
            Family::Qwen3 => ("qwen3", "Qwen3ForCausalLM"),
            Family::Gemma3 => ("gemma3_text", "Gemma3ForCausalLM"),
        };
        let mut config = Map::new();
        let mut set = |key: &str, value: Value| config.insert(key.to_owned(), value);
        set("architectures", json!([class]));
        set("model_type", json!(kind));
        set("hidden_size", json!(self.hidden));
        set("intermediate_size", json!(self.intermediate));
        set("num_hidden_layers", json!(self.layers));
        set("num_attention_heads", json!(self.heads));
        set("num_key_value_heads", json!(self.kv_heads));
        set("head_dim", json!(self.head_dim));
        set("vocab_size", json!(self.vocab));
        set("max_position_embeddings", json!(self.context));
        match self.family {
            Family::Gemma3 => set("hidden_activation", json!("gelu_pytorch_tanh")),
            _ => set("hidden_act", json!("silu")),
        };
        set("rms_norm_eps", json!(self.eps));
        set("rope_theta", json!(self.rope_theta));
        set("rope_scaling", json!(self.rope_scaling));
        set("tie_word_embeddings", json!(self.tied));
        if self.family != Family::Qwen2 {
            set("attention_bias", json!(false));
        }
        if kind == "llama" {
            set("mlp_bias", json!(false));
        }
        if let Some(windowed) = &self.windowed {
            set("sliding_window", json!(windowed.keys));
            if let Some(layers) = &windowed.layers {
                let name = |&windowed: &bool| if windowed { "sliding_attention" } else { "full_attention" };
                set("layer_types", json!(layers.iter().map(name).collect::<Vec<_>>()));
                set("rope_local_base_freq", json!(windowed.theta));
            }
        }
        if self.family == Family::Gemma3 {
            set("query_pre_attn_scalar", json!(self.query_pre_attn_scalar()));
        }
        set("torch_dtype", json!("bfloat16"));
        config
    }

    /// GGUF does not say; as in llama.cpp the 27B, known by its 62 layers, is the one that differs.
    fn query_pre_attn_scalar(&self) -> usize {
        if self.layers == 62 { self.hidden / self.heads } else { self.head_dim }
    }
}

impl Windowed {
    fn read(gguf: &Gguf, family: Family, key: impl Fn(&str) -> String, layers: usize) -> Result<Option<Self>, ImportError> {
        let window = key("attention.sliding_window");
        match family {
            Family::Qwen2 | Family::Qwen3 if gguf.has(&window) => Err(ImportError::key(&window, "not supported for this architecture")),
            Family::Qwen2 | Family::Qwen3 => Ok(None),
            // Mistral's.
            Family::Llama if gguf.has(&window) => Ok(Some(Self { keys: gguf.count(&window, 1 << 24)?, layers: None, theta: 0.0 })),
            Family::Llama => Ok(None),
            Family::Gemma3 => {
                let pattern = key("attention.sliding_window_pattern");
                let listed = match gguf.flags_opt(&pattern)? {
                    Some(list) if list.len() == layers => list,
                    Some(list) => return Err(ImportError::key(&pattern, format!("{} entries for {layers} layers", list.len()))),
                    None => {
                        let every = if gguf.has(&pattern) { gguf.count(&pattern, 1 << 10)? } else { 6 };
                        (1..=layers).map(|n| !n.is_multiple_of(every)).collect()
                    }
                };
                let theta = gguf.positive_opt(&key("rope.freq_base_swa"))?.unwrap_or(10_000.0);
                Ok(Some(Self { keys: gguf.count(&window, 1 << 24)?, layers: Some(listed), theta }))
            }
        }
    }
}
