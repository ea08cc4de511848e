//! A checkpoint folder as Hugging Face writes it: opened, checked against its config.json as a whole, and mapped.
//!
//! Nothing is computed from the weights here: [`Checkpoint`] says what the decoder is ([`Architecture`]) and where each matrix lies.
//! The values themselves are not scanned; a NaN in a weight shows as NaN logits.

mod architecture;
mod error;
mod fields;
mod rope;
#[cfg(test)]
mod tests;
mod weights;

pub use architecture::{Architecture, Family};
pub use error::CheckpointError;

use fields::Fields;
use serde_json::Value;
use skip_kernels::backend::MatrixSource;
use std::io::Read;
use std::path::{Path, PathBuf};
use weights::Weights;

/// Longest JSON file (config.json, generation_config.json) that is parsed.
const MAX_JSON: u64 = 4 << 20;

/// An opened folder; every tensor the decoder needs is there with the right shape.
pub struct Checkpoint {
    dir: PathBuf,
    config: Value,
    architecture: Architecture,
    eos: Vec<u32>,
    weights: Weights,
    prefix: &'static str,
}

/// The weights of one decoder layer.
#[derive(Clone)]
pub struct LayerWeights {
    /// `[hidden]`, before attention.
    pub input_norm: Vec<f32>,
    /// `[heads · head_dim][hidden]`.
    pub q: MatrixSource,
    /// `[kv_heads · head_dim][hidden]`.
    pub k: MatrixSource,
    /// `[kv_heads · head_dim][hidden]`.
    pub v: MatrixSource,
    /// Bias of the packed `[q | k | v]` row.
    pub qkv_bias: Option<Vec<f32>>,
    /// `[hidden][heads · head_dim]`.
    pub o: MatrixSource,
    /// `[hidden]`, before the MLP.
    pub post_attention_norm: Vec<f32>,
    /// `[intermediate][hidden]`.
    pub gate: MatrixSource,
    /// `[intermediate][hidden]`.
    pub up: MatrixSource,
    /// `[hidden][intermediate]`.
    pub down: MatrixSource,
}

impl Checkpoint {
    /// Opens a folder: config.json, generation_config.json (optional) and the safetensors files, whose headers must fit the config.
    ///
    /// # Errors
    /// Names the file, field or tensor that is missing, cut short, of the wrong shape or type, or not supported.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let path = dir.join("config.json");
        let config = read_json(&path)?;
        let fields = Fields::root(&path, &config)?;
        let architecture = Architecture::parse(&fields)?;
        let eos = end_tokens(dir, &fields, architecture.vocab)?;
        let weights = Weights::open(dir)?;
        let prefix = if weights.contains("embed_tokens.weight") { "" } else { "model." };
        let checkpoint = Self { dir: dir.to_owned(), config, architecture, eos, weights, prefix };
        checkpoint.check()?;
        Ok(checkpoint)
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// config.json as it stands.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// What the decoder is.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Tokens that end an answer.
    pub fn eos_token_ids(&self) -> &[u32] {
        &self.eos
    }

    /// Bytes of all weight files.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }

    /// `[vocab][hidden]`.
    pub fn embedding(&self) -> Result<MatrixSource, CheckpointError> {
        let a = &self.architecture;
        self.weights.matrix(&self.name("embed_tokens.weight"), a.vocab, a.hidden)
    }

    /// `[vocab][hidden]`; the embedding where they are tied.
    pub fn head(&self) -> Result<MatrixSource, CheckpointError> {
        let a = &self.architecture;
        if a.tied { self.embedding() } else { self.weights.matrix("lm_head.weight", a.vocab, a.hidden) }
    }

    /// `[hidden]`.
    pub fn final_norm(&self) -> Result<Vec<f32>, CheckpointError> {
        self.weights.vector(&self.name("norm.weight"), self.architecture.hidden)
    }

    /// The weights of layer `index` (below `architecture().layers`).
    pub fn layer(&self, index: usize) -> Result<LayerWeights, CheckpointError> {
        let a = &self.architecture;
        let (q_rows, kv_rows) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let name = |part: &str| self.name(&format!("layers.{index}.{part}"));
        let matrix = |part: &str, rows, cols| self.weights.matrix(&name(part), rows, cols);
        let vector = |part: &str, len| self.weights.vector(&name(part), len);
        let qkv_bias = if a.qkv_bias {
            let mut packed = vector("self_attn.q_proj.bias", q_rows)?;
            packed.extend(vector("self_attn.k_proj.bias", kv_rows)?);
            packed.extend(vector("self_attn.v_proj.bias", kv_rows)?);
            Some(packed)
        } else {
            None
        };
        Ok(LayerWeights {
            input_norm: vector("input_layernorm.weight", a.hidden)?,
            q: matrix("self_attn.q_proj.weight", q_rows, a.hidden)?,
            k: matrix("self_attn.k_proj.weight", kv_rows, a.hidden)?,
            v: matrix("self_attn.v_proj.weight", kv_rows, a.hidden)?,
            qkv_bias,
            o: matrix("self_attn.o_proj.weight", a.hidden, q_rows)?,
            post_attention_norm: vector("post_attention_layernorm.weight", a.hidden)?,
            gate: matrix("mlp.gate_proj.weight", a.intermediate, a.hidden)?,
            up: matrix("mlp.up_proj.weight", a.intermediate, a.hidden)?,
            down: matrix("mlp.down_proj.weight", a.hidden, a.intermediate)?,
        })
    }

    /// Everything the decoder will ask for is there, and nothing it would silently leave out.
    fn check(&self) -> Result<(), CheckpointError> {
        self.embedding()?;
        self.head()?;
        self.final_norm()?;
        for index in 0..self.architecture.layers {
            self.layer(index)?;
        }
        for name in self.weights.names() {
            let known_bias = self.architecture.qkv_bias && ["q_proj.bias", "k_proj.bias", "v_proj.bias"].iter().any(|b| name.ends_with(b));
            if name.ends_with(".bias") && !known_bias {
                return Err(CheckpointError::UnexpectedTensor { name: name.to_owned(), family: self.architecture.family.name() });
            }
        }
        Ok(())
    }

    fn name(&self, part: &str) -> String {
        format!("{}{part}", self.prefix)
    }
}

/// From generation_config.json, else from config.json; what either says must be ids of the vocabulary, also where it does not decide.
fn end_tokens(dir: &Path, config: &Fields<'_>, vocab: usize) -> Result<Vec<u32>, CheckpointError> {
    let configured = config.token_ids("eos_token_id", vocab)?;
    let path = dir.join("generation_config.json");
    let generation = if path.exists() { Some(read_json(&path)?) } else { None };
    let recommended = match &generation {
        Some(value) => Fields::root(&path, value)?.token_ids("eos_token_id", vocab)?,
        None => Vec::new(),
    };
    Ok(if recommended.is_empty() { configured } else { recommended })
}

fn read_json(path: &Path) -> Result<Value, CheckpointError> {
    serde_json::from_slice(&read_limited(path, MAX_JSON)?)
        .map_err(|e| CheckpointError::Json { path: path.to_owned(), detail: e.to_string() })
}

/// Reads a whole file of at most `limit` bytes.
fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, CheckpointError> {
    let io = |source| CheckpointError::Io { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    let size = file.take(limit + 1).read_to_end(&mut bytes).map_err(io)? as u64;
    if size > limit {
        return Err(CheckpointError::TooLarge { path: path.to_owned(), size, limit });
    }
    Ok(bytes)
}
