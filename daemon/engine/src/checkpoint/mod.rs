//! A checkpoint folder as Hugging Face writes it: opened, checked against its config.json as a whole, and mapped.
//!
//! Nothing is computed from the weights here: [`Checkpoint`] says what the decoder is ([`Architecture`]) and where each matrix lies.
//! The values themselves are not scanned; a NaN in a weight shows as NaN logits.

mod architecture;
mod error;
mod family;
mod fields;
mod index;
mod rope;
#[cfg(test)]
mod tests;
mod weights;
mod window;

pub use architecture::{Architecture, Windowed};
pub use error::CheckpointError;
pub use family::Family;

use fields::Fields;
use serde_json::Value;
use skip_kernels::backend::MatrixSource;
use std::io::Read;
use std::path::{Path, PathBuf};
use weights::Weights;

/// Longest JSON file (config.json, generation_config.json) that is parsed.
const MAX_JSON: u64 = 4 << 20;

/// Name of the head's tensor.
const HEAD: &str = "lm_head.weight";

/// An opened folder; every tensor the decoder needs is there with the right shape.
pub struct Checkpoint {
    dir: PathBuf,
    config: Value,
    architecture: Architecture,
    eos: Vec<u32>,
    weights: Weights,
    prefix: &'static str,
}

/// The weights of one decoder layer. Norms are what rows are multiplied by, whatever a family stores.
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
    /// `[head_dim]` each: norms of a head of q and of k.
    pub qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    /// `[hidden][heads · head_dim]`.
    pub o: MatrixSource,
    /// `[hidden]` each: norms of what attention and of what the MLP adds.
    pub post_norms: Option<(Vec<f32>, Vec<f32>)>,
    /// `[hidden]`, before the MLP.
    pub mlp_norm: Vec<f32>,
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

    /// Lets go of what is in memory of the weight files, after they were copied to a device.
    pub fn forget_pages(&self) {
        self.weights.forget();
    }

    /// `[vocab][hidden]`.
    pub fn embedding(&self) -> Result<MatrixSource, CheckpointError> {
        let a = &self.architecture;
        self.weights.matrix(&self.name("embed_tokens.weight"), a.vocab, a.hidden)
    }

    /// `[vocab][hidden]`; the embedding where they are tied.
    pub fn head(&self) -> Result<MatrixSource, CheckpointError> {
        let a = &self.architecture;
        if a.tied {
            return self.embedding();
        }
        if self.weights.contains(HEAD) { self.weights.matrix(HEAD, a.vocab, a.hidden) } else { Err(CheckpointError::HeadMissing) }
    }

    /// `[hidden]`.
    pub fn final_norm(&self) -> Result<Vec<f32>, CheckpointError> {
        self.norm(&self.name("norm.weight"), self.architecture.hidden)
    }

    /// The weights of a norm as rows are multiplied by them.
    fn norm(&self, name: &str, len: usize) -> Result<Vec<f32>, CheckpointError> {
        let offset = self.architecture.family.norm_offset();
        let mut weights = self.weights.vector(name, len)?;
        weights.iter_mut().for_each(|w| *w += offset);
        Ok(weights)
    }

    /// The weights of layer `index` (below `architecture().layers`).
    pub fn layer(&self, index: usize) -> Result<LayerWeights, CheckpointError> {
        let a = &self.architecture;
        let (q_rows, kv_rows) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let name = |part: &str| self.name(&format!("layers.{index}.{part}"));
        let matrix = |part: &str, rows, cols| self.weights.matrix(&name(part), rows, cols);
        let vector = |part: &str, len| self.weights.vector(&name(part), len);
        let norm = |part: &str, len| self.norm(&name(part), len);
        let pair = |there: bool, parts: [&str; 2], len| {
            if there { Ok(Some((norm(parts[0], len)?, norm(parts[1], len)?))) } else { Ok(None) }
        };
        let qkv_bias = if a.family.has_qkv_bias() {
            let mut packed = vector("self_attn.q_proj.bias", q_rows)?;
            packed.extend(vector("self_attn.k_proj.bias", kv_rows)?);
            packed.extend(vector("self_attn.v_proj.bias", kv_rows)?);
            Some(packed)
        } else {
            None
        };
        Ok(LayerWeights {
            input_norm: norm("input_layernorm.weight", a.hidden)?,
            q: matrix("self_attn.q_proj.weight", q_rows, a.hidden)?,
            k: matrix("self_attn.k_proj.weight", kv_rows, a.hidden)?,
            v: matrix("self_attn.v_proj.weight", kv_rows, a.hidden)?,
            qkv_bias,
            qk_norm: pair(a.family.has_qk_norm(), ["self_attn.q_norm.weight", "self_attn.k_norm.weight"], a.head_dim)?,
            o: matrix("self_attn.o_proj.weight", a.hidden, q_rows)?,
            post_norms: pair(
                a.family.has_post_norms(),
                ["post_attention_layernorm.weight", "post_feedforward_layernorm.weight"],
                a.hidden,
            )?,
            mlp_norm: norm(a.family.mlp_norm(), a.hidden)?,
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
        if let Some(name) = self.weights.names().find(|name| !self.has_place(name)) {
            return Err(CheckpointError::UnexpectedTensor { name: name.to_owned(), family: self.architecture.family.name() });
        }
        let a = &self.architecture;
        if a.tied && self.weights.contains(HEAD) {
            // Some files have a copy; only a head of its own would be left out.
            let head = self.weights.matrix(HEAD, a.vocab, a.hidden)?;
            let embedding = self.embedding()?;
            if head.file.bytes()[head.range.clone()] != embedding.file.bytes()[embedding.range.clone()] {
                return Err(CheckpointError::HeadDiffers);
            }
        }
        Ok(())
    }

    /// Whether a tensor of that name is one the decoder uses.
    fn has_place(&self, name: &str) -> bool {
        let Some(name) = name.strip_prefix(self.prefix) else { return name == HEAD };
        let Some(rest) = name.strip_prefix("layers.") else {
            return ["embed_tokens.weight", "norm.weight", HEAD].contains(&name);
        };
        let layer = rest.split_once('.').and_then(|(index, part)| Some((index.parse::<usize>().ok()?, part)));
        layer.is_some_and(|(index, part)| index < self.architecture.layers && self.architecture.family.has(part))
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
