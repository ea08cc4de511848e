//! The decoder, written once over a backend's operators: embedding, layers of attention and gated MLP, head.
//! It knows nothing of requests: a step is whatever sequences it is given.

mod load;
mod shape;

pub use load::DecoderLimits;
pub use shape::{shape, shape_without_cache};

use crate::engine::{Loaded, StepModel};
use skip_kernels::attention::AttnGeometry;
use skip_kernels::backend::{Activation, QkvStore, SeqStep, StepReport, TableSlot};
use skip_kernels::{Backend, BackendInfo, KernelError, ScaleTable};

/// A loaded model on one device.
pub struct Decoder<B: Backend> {
    backend: B,
    activation: Activation,
    eps: f32,
    embedding: B::Matrix,
    embedding_scale: f32,
    /// None: tied to the embedding.
    head: Option<B::Matrix>,
    final_norm: B::Vector,
    rotations: Rotations<B>,
    layers: Vec<Layer<B>>,
    scratch: Scratch<B>,
    loaded: Loaded,
}

/// Rotations by what a layer sees.
struct Rotations<B: Backend> {
    /// Everything.
    full: B::RopeTable,
    /// A window; None where no layer has one.
    windowed: Option<B::RopeTable>,
}

struct Layer<B: Backend> {
    /// Heads, scaling, and what it sees.
    geometry: AttnGeometry,
    input_norm: B::Vector,
    /// Packed `[q | k | v]`.
    qkv: B::Matrix,
    qkv_bias: Option<B::Vector>,
    /// Of each head of q and of k.
    qk_norm: Option<(B::Vector, B::Vector)>,
    o: B::Matrix,
    /// Of what attention and of what the MLP adds.
    post_norms: Option<(B::Vector, B::Vector)>,
    mlp_norm: B::Vector,
    /// Packed `[gate | up]`.
    gate_up: B::Matrix,
    down: B::Matrix,
    pool: B::KvPool,
}

/// Activations of a step, as many rows as a step may have; the `tail` ones hold only rows that sample.
struct Scratch<B: Backend> {
    /// The residual stream.
    x: B::Tensor,
    normed: B::Tensor,
    qkv: B::Tensor,
    attended: B::Tensor,
    gate_up: B::Tensor,
    gated: B::Tensor,
    delta: B::Tensor,
    tail_x: B::Tensor,
    tail_attended: B::Tensor,
}

impl<B: Backend> Decoder<B> {
    /// The backend, for what tests and tools ask of it.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    fn layers(&mut self, samples: bool, interrupted: &mut dyn FnMut() -> bool) -> Result<(), KernelError> {
        let Self { backend, activation, eps, embedding, embedding_scale, final_norm, rotations, layers, scratch, .. } = self;
        let s = scratch;
        let Some(first) = layers.first() else {
            return Err(KernelError::Invalid("a decoder without layers".into()));
        };
        backend.embed(embedding, *embedding_scale, &mut s.x)?;
        backend.rms_norm(&s.x, &first.input_norm, *eps, &mut s.normed)?;
        let count = layers.len();
        for i in 0..count {
            if interrupted() {
                return Err(KernelError::Aborted);
            }
            let (done, rest) = layers.split_at_mut(i + 1);
            let layer = &mut done[i];
            backend.matmul(&s.normed, &layer.qkv, &mut s.qkv)?;
            let geometry = layer.geometry;
            let rope = rotations.windowed.as_ref().filter(|_| geometry.window.is_some()).unwrap_or(&rotations.full);
            let qk_norm = layer.qk_norm.as_ref().map(|(q, k)| (q, k, *eps));
            let store = QkvStore { geometry, bias: layer.qkv_bias.as_ref(), qk_norm, rope };
            backend.qkv_store(&mut s.qkv, &store, &mut layer.pool)?;
            backend.attention(&s.qkv, &geometry, &layer.pool, &mut s.attended)?;
            // What follows the last attention only matters for rows that sample.
            let (x, attended) = if rest.is_empty() {
                backend.last_rows(&s.x, &mut s.tail_x)?;
                if !samples {
                    return Ok(());
                }
                backend.last_rows(&s.attended, &mut s.tail_attended)?;
                (&mut s.tail_x, &s.tail_attended)
            } else {
                (&mut s.x, &s.attended)
            };
            let (post_attention, post_mlp) = layer.post_norms.as_ref().map_or((None, None), |(a, m)| (Some(a), Some(m)));
            backend.matmul(attended, &layer.o, &mut s.delta)?;
            backend.add_rms_norm(x, &s.delta, post_attention, &layer.mlp_norm, *eps, &mut s.normed)?;
            backend.matmul(&s.normed, &layer.gate_up, &mut s.gate_up)?;
            backend.gated(&s.gate_up, *activation, &mut s.gated)?;
            backend.matmul(&s.gated, &layer.down, &mut s.delta)?;
            let next_norm = rest.first().map_or(&*final_norm, |next| &next.input_norm);
            backend.add_rms_norm(x, &s.delta, post_mlp, next_norm, *eps, &mut s.normed)?;
        }
        Ok(())
    }
}

impl<B: Backend> StepModel for Decoder<B> {
    fn backend(&self) -> BackendInfo {
        self.backend.info()
    }

    fn set_table(&mut self, slot: TableSlot, table: &ScaleTable) -> Result<(), KernelError> {
        self.backend.set_table(slot, table)
    }

    fn loaded(&self) -> Option<Loaded> {
        Some(self.loaded.clone())
    }

    fn depth(&self) -> usize {
        self.backend.depth()
    }

    fn check(&mut self) -> Result<(), KernelError> {
        self.backend.check()
    }

    fn edits_logits(&self) -> bool {
        self.backend.edits_logits()
    }

    fn start(&mut self, seqs: &[SeqStep<'_>], interrupted: &mut dyn FnMut() -> bool) -> Result<(), KernelError> {
        self.backend.begin_step(seqs)?;
        self.layers(seqs.iter().any(|seq| seq.sample.is_some()), interrupted)?;
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        self.backend.sample(&self.scratch.normed, head)
    }

    fn finish(&mut self, report: &mut StepReport) -> Result<(), KernelError> {
        self.backend.finish(report)
    }
}
