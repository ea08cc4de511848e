//! Loads a checkpoint's weights onto a backend and allocates what a step needs.

use super::{Decoder, Layer, Rotations, Scratch, shape};
use crate::checkpoint::{Checkpoint, LayerWeights};
use crate::engine::{CachePlan, EngineOptions, LoadError, Loaded, ModelInfo};
use skip_kernels::attention::AttnGeometry;
use skip_kernels::backend::MatrixSource;
use skip_kernels::ledger::MatrixShape;
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
        Self::of(options, cache.pages, cache.context)
    }

    /// The same for so many pages and this context.
    pub fn of(options: &EngineOptions, pages: u32, context: u32) -> Self {
        let seqs = options.max_running.max(1);
        Self {
            rows: options.max_chunk().min((context as usize).next_multiple_of(skip_kernels::PAGE)) + seqs,
            seqs,
            pages: pages as usize,
            context: context as usize,
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
        let (geometry, tensors) = (shape::geometry(a), shape::tensors(a, limits));
        let shape = shape::shape(checkpoint, limits)?;
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
        let mut done = Done { bytes: 0, all: shape.matrices.iter().map(MatrixShape::bytes).sum(), progress };
        let (embedding, head) = if a.tied {
            (done.matrix(&mut backend, &[checkpoint.embedding()?])?, None)
        } else {
            let embedding = checkpoint.embedding()?;
            let table = backend.lookup_table(&embedding)?;
            done.add(&[embedding]);
            (table, Some(done.matrix(&mut backend, &[checkpoint.head()?])?))
        };
        let final_norm = backend.vector(&checkpoint.final_norm()?)?;
        let rope = backend.rope_table(&a.rope, limits.context)?;
        let windowed = a.windowed.as_ref().map(|w| backend.rope_table(&w.rope, limits.context)).transpose()?;
        let mut layers = Vec::with_capacity(a.layers);
        for index in 0..a.layers {
            let geometry = AttnGeometry { window: a.window(index).map(|w| w.keys), ..geometry };
            let pool = backend.kv_pool(shape.layout, limits.pages)?;
            layers.push(load_layer(&mut backend, checkpoint.layer(index)?, geometry, pool, &mut done)?);
        }
        progress(1.0);
        let reads = backend.reads();
        let loaded = Loaded { bytes: checkpoint.weight_bytes(), seconds: began.elapsed().as_secs_f64(), reads, ledger };
        if reads.is_some() {
            // What is on the device is not needed here too.
            checkpoint.forget_pages();
        }
        tracing::info!("{loaded}");
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

/// How much of the matrices is there, and who is told.
struct Done<'a> {
    bytes: u64,
    all: u64,
    progress: &'a mut dyn FnMut(f32),
}

impl Done<'_> {
    fn matrix<B: Backend>(&mut self, backend: &mut B, parts: &[MatrixSource]) -> Result<B::Matrix, KernelError> {
        let matrix = backend.matrix(parts)?;
        self.add(parts);
        Ok(matrix)
    }

    fn add(&mut self, parts: &[MatrixSource]) {
        self.bytes += parts.iter().map(|part| part.range.len() as u64).sum::<u64>();
        (self.progress)((self.bytes as f64 / self.all.max(1) as f64) as f32);
    }
}

fn load_layer<B: Backend>(
    backend: &mut B,
    w: LayerWeights,
    geometry: AttnGeometry,
    pool: B::KvPool,
    done: &mut Done<'_>,
) -> Result<Layer<B>, KernelError> {
    let mut pair = |pair: Option<(Vec<f32>, Vec<f32>)>| -> Result<_, KernelError> {
        pair.map(|(a, b)| Ok((backend.vector(&a)?, backend.vector(&b)?))).transpose()
    };
    Ok(Layer {
        geometry,
        qk_norm: pair(w.qk_norm)?,
        post_norms: pair(w.post_norms)?,
        input_norm: backend.vector(&w.input_norm)?,
        qkv: done.matrix(backend, &[w.q, w.k, w.v])?,
        qkv_bias: w.qkv_bias.map(|bias| backend.vector(&bias)).transpose()?,
        o: done.matrix(backend, &[w.o])?,
        mlp_norm: backend.vector(&w.mlp_norm)?,
        gate_up: done.matrix(backend, &[w.gate, w.up])?,
        down: done.matrix(backend, &[w.down])?,
        pool,
    })
}
