//! Loads a checkpoint's weights onto a backend and allocates what a step needs.

use super::{Decoder, Layer, Scratch};
use crate::checkpoint::{Checkpoint, LayerWeights};
use crate::engine::{CachePlan, EngineOptions, LoadError, ModelInfo};
use skip_kernels::attention::AttnGeometry;
use skip_kernels::pages::PageLayout;
use skip_kernels::{Backend, KernelError};

/// Sizes of what a decoder allocates besides its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderLimits {
    /// Rows of one step.
    pub rows: usize,
    /// Sequences of one step.
    pub seqs: usize,
    /// Cache pages a layer.
    pub pages: usize,
    /// Positions below this are rotated.
    pub context: usize,
    /// Element format of the cache.
    pub kv_format: skip_kernels::KvFormat,
}

impl DecoderLimits {
    /// What an engine's options and cache ask for.
    pub fn new(options: &EngineOptions, cache: &CachePlan) -> Self {
        let seqs = options.max_running.max(1);
        Self {
            rows: options.max_chunk().min((cache.context as usize).next_multiple_of(skip_kernels::PAGE)) + seqs,
            seqs,
            pages: cache.pages as usize,
            context: cache.context as usize,
            kv_format: options.kv_format,
        }
    }
}

impl ModelInfo {
    /// What a checkpoint says of itself, under `name`.
    pub fn of(checkpoint: &Checkpoint, name: impl Into<String>) -> Self {
        let a = checkpoint.architecture();
        Self {
            name: name.into(),
            context: u32::try_from(a.max_position_embeddings).unwrap_or(u32::MAX),
            vocabulary: u32::try_from(a.vocab).unwrap_or(u32::MAX),
            eos: checkpoint.eos_token_ids().to_vec(),
            // K and V, two bytes an element in every format so far.
            kv_bytes_per_token: (a.layers * a.kv_heads * a.head_dim * 2 * 2) as u64,
        }
    }
}

impl<B: Backend> Decoder<B> {
    /// Loads every layer; `progress` goes from 0 to 1.
    pub fn load(mut backend: B, checkpoint: &Checkpoint, limits: &DecoderLimits, progress: &mut dyn FnMut(f32)) -> Result<Self, LoadError> {
        let a = checkpoint.architecture();
        let geometry = AttnGeometry {
            heads: a.heads,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
            scale: 1.0 / (a.head_dim as f32).sqrt(),
            window: None,
        };
        let layout = PageLayout { kv_heads: a.kv_heads, head_dim: a.head_dim, format: limits.kv_format };
        let tensor = |backend: &mut B, cols| backend.tensor(limits.rows, cols);
        let scratch = Scratch {
            x: backend.wide(limits.rows, a.hidden)?,
            normed: tensor(&mut backend, a.hidden)?,
            qkv: backend.wide(limits.rows, a.qkv_width())?,
            attended: tensor(&mut backend, a.heads * a.head_dim)?,
            gate_up: tensor(&mut backend, 2 * a.intermediate)?,
            gated: tensor(&mut backend, a.intermediate)?,
            delta: tensor(&mut backend, a.hidden)?,
            tail_x: backend.wide(limits.seqs, a.hidden)?,
            tail_attended: backend.tensor(limits.seqs, a.heads * a.head_dim)?,
        };
        let (embedding, head) = if a.tied {
            (backend.matrix(&[checkpoint.embedding()?])?, None)
        } else {
            (backend.lookup_table(&checkpoint.embedding()?)?, Some(backend.matrix(&[checkpoint.head()?])?))
        };
        let final_norm = backend.vector(&checkpoint.final_norm()?)?;
        let rope = backend.rope_table(&a.rope, limits.context)?;
        let total = (a.layers + 1) as f32;
        let mut layers = Vec::with_capacity(a.layers);
        for index in 0..a.layers {
            progress((index + 1) as f32 / total);
            layers.push(load_layer(&mut backend, checkpoint.layer(index)?, layout, limits.pages)?);
        }
        progress(1.0);
        Ok(Self { backend, geometry, activation: a.activation, eps: a.norm_eps, embedding, head, final_norm, rope, layers, scratch })
    }
}

fn load_layer<B: Backend>(backend: &mut B, w: LayerWeights, layout: PageLayout, pages: usize) -> Result<Layer<B>, KernelError> {
    Ok(Layer {
        input_norm: backend.vector(&w.input_norm)?,
        qkv: backend.matrix(&[w.q, w.k, w.v])?,
        qkv_bias: w.qkv_bias.map(|bias| backend.vector(&bias)).transpose()?,
        o: backend.matrix(&[w.o])?,
        mlp_norm: backend.vector(&w.post_attention_norm)?,
        gate_up: backend.matrix(&[w.gate, w.up])?,
        down: backend.matrix(&[w.down])?,
        pool: backend.kv_pool(layout, pages)?,
    })
}
