//! Loads a checkpoint's weights onto a backend and allocates what a step needs.

use super::{Decoder, Layer, Rotations, Scratch};
use crate::checkpoint::{Architecture, Checkpoint, LayerWeights};
use crate::engine::{CachePlan, EngineOptions, LoadError, Loaded, ModelInfo};
use skip_kernels::attention::AttnGeometry;
use skip_kernels::ledger::ModelShape;
use skip_kernels::pages::PageLayout;
use skip_kernels::{Backend, KernelError};
use std::time::Instant;

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
        let geometry = AttnGeometry { heads: a.heads, kv_heads: a.kv_heads, head_dim: a.head_dim, scale: a.attention_scale, window: None };
        let layout = PageLayout { kv_heads: a.kv_heads, head_dim: a.head_dim, format: limits.kv_format };
        let (rows, seqs, attended) = (limits.rows, limits.seqs, a.heads * a.head_dim);
        let tensors = [
            (rows, a.hidden, true),
            (rows, a.hidden, false),
            (rows, a.qkv_width(), true),
            (rows, attended, false),
            (rows, 2 * a.intermediate, false),
            (rows, a.intermediate, false),
            (rows, a.hidden, false),
            (seqs, a.hidden, true),
            (seqs, attended, false),
        ];
        let shape = ModelShape {
            geometry,
            layers: a.layers,
            matrix_elements: matrix_elements(a) as u64,
            vector_elements: (a.layers * (4 * a.hidden + a.qkv_width() + 2 * a.head_dim) + a.hidden) as u64,
            vocab: a.vocab,
            tensors: tensors.to_vec(),
            seqs,
            layout,
            pages: limits.pages,
            context: limits.context,
            ropes: 1 + usize::from(a.windowed.is_some()),
        };
        let ledger = backend.admit(&shape)?;
        if let Some(ledger) = &ledger {
            tracing::info!(%ledger, "memory");
        }
        let mut tensor = |i: usize| {
            let (rows, cols, wide) = tensors[i];
            if wide { backend.wide(rows, cols) } else { backend.tensor(rows, cols) }
        };
        let scratch = Scratch {
            x: tensor(0)?,
            normed: tensor(1)?,
            qkv: tensor(2)?,
            attended: tensor(3)?,
            gate_up: tensor(4)?,
            gated: tensor(5)?,
            delta: tensor(6)?,
            tail_x: tensor(7)?,
            tail_attended: tensor(8)?,
        };
        let began = Instant::now();
        let (embedding, head) = if a.tied {
            (backend.matrix(&[checkpoint.embedding()?])?, None)
        } else {
            (backend.lookup_table(&checkpoint.embedding()?)?, Some(backend.matrix(&[checkpoint.head()?])?))
        };
        let final_norm = backend.vector(&checkpoint.final_norm()?)?;
        let rope = backend.rope_table(&a.rope, limits.context)?;
        let windowed = a.windowed.as_ref().map(|w| backend.rope_table(&w.rope, limits.context)).transpose()?;
        let total = (a.layers + 1) as f32;
        let mut layers = Vec::with_capacity(a.layers);
        for index in 0..a.layers {
            progress((index + 1) as f32 / total);
            let geometry = AttnGeometry { window: a.window(index).map(|w| w.keys), ..geometry };
            let pool = backend.kv_pool(layout, limits.pages)?;
            layers.push(load_layer(&mut backend, checkpoint.layer(index)?, geometry, pool)?);
        }
        progress(1.0);
        let loaded = Loaded { bytes: checkpoint.weight_bytes(), seconds: began.elapsed().as_secs_f64(), ledger };
        let rate = loaded.bytes as f64 / 1e6 / loaded.seconds.max(1e-9);
        tracing::info!("{} MB of weights in {:.2} s, {rate:.0} MB/s", loaded.bytes / 1_000_000, loaded.seconds);
        Ok(Self {
            backend,
            activation: a.activation,
            eps: a.norm_eps,
            embedding,
            embedding_scale: a.embedding_scale,
            head,
            final_norm,
            rotations: Rotations { full: rope, windowed },
            layers,
            scratch,
            loaded,
        })
    }
}

/// Elements of all matrices.
fn matrix_elements(a: &Architecture) -> usize {
    let tables = if a.tied { 1 } else { 2 };
    let layer = a.qkv_width() + a.heads * a.head_dim + 3 * a.intermediate;
    (tables * a.vocab + a.layers * layer) * a.hidden
}

fn load_layer<B: Backend>(backend: &mut B, w: LayerWeights, geometry: AttnGeometry, pool: B::KvPool) -> Result<Layer<B>, KernelError> {
    let mut pair = |pair: Option<(Vec<f32>, Vec<f32>)>| -> Result<_, KernelError> {
        pair.map(|(a, b)| Ok((backend.vector(&a)?, backend.vector(&b)?))).transpose()
    };
    Ok(Layer {
        geometry,
        qk_norm: pair(w.qk_norm)?,
        post_norms: pair(w.post_norms)?,
        input_norm: backend.vector(&w.input_norm)?,
        qkv: backend.matrix(&[w.q, w.k, w.v])?,
        qkv_bias: w.qkv_bias.map(|bias| backend.vector(&bias)).transpose()?,
        o: backend.matrix(&[w.o])?,
        mlp_norm: backend.vector(&w.mlp_norm)?,
        gate_up: backend.matrix(&[w.gate, w.up])?,
        down: backend.matrix(&[w.down])?,
        pool,
    })
}
