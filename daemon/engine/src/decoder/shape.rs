//! How large a decoder is, told by its checkpoint and limits before anything of it is there.

use super::DecoderLimits;
use crate::checkpoint::{Architecture, Checkpoint, CheckpointError};
use crate::engine::{EngineOptions, ModelInfo};
use skip_kernels::attention::AttnGeometry;
use skip_kernels::backend::MatrixSource;
use skip_kernels::ledger::{MatrixShape, ModelShape};
use skip_kernels::pages::PageLayout;

/// Activations of a step, as `[rows][cols]`, and whether they are float32 whatever the type of the others; in the order of
/// [`Scratch`](super::Scratch).
pub(super) fn tensors(a: &Architecture, limits: &DecoderLimits) -> [(usize, usize, bool); 9] {
    let (rows, seqs, attended) = (limits.rows, limits.seqs, a.heads * a.head_dim);
    [
        (rows, a.hidden, true),
        (rows, a.hidden, false),
        (rows, a.qkv_width(), true),
        (rows, attended, false),
        (rows, 2 * a.intermediate, false),
        (rows, a.intermediate, false),
        (rows, a.hidden, false),
        (seqs, a.hidden, true),
        (seqs, attended, false),
    ]
}

/// Heads of every layer, windows aside.
pub(super) fn geometry(a: &Architecture) -> AttnGeometry {
    AttnGeometry { heads: a.heads, kv_heads: a.kv_heads, head_dim: a.head_dim, scale: a.attention_scale, window: None }
}

/// What decides how much memory a decoder of this checkpoint takes.
///
/// # Errors
/// A tensor is missing; an opened checkpoint has all.
pub fn shape(checkpoint: &Checkpoint, limits: &DecoderLimits) -> Result<ModelShape, CheckpointError> {
    let a = checkpoint.architecture();
    Ok(ModelShape {
        geometry: geometry(a),
        layers: a.layers,
        matrices: matrices(checkpoint)?,
        vector_elements: (a.layers * (4 * a.hidden + a.qkv_width() + 2 * a.head_dim) + a.hidden) as u64,
        vocab: a.vocab,
        tensors: tensors(a, limits).to_vec(),
        seqs: limits.seqs,
        layout: PageLayout { kv_heads: a.kv_heads, head_dim: a.head_dim, format: limits.kv_format },
        pages: limits.pages,
        context: limits.context,
        ropes: 1 + usize::from(a.windowed.is_some()),
    })
}

/// The same with no cache yet, at the longest context there may be: what the cache must leave room for.
///
/// # Errors
/// As [`shape`].
pub fn shape_without_cache(checkpoint: &Checkpoint, options: &EngineOptions) -> Result<ModelShape, CheckpointError> {
    let context = options.context_of(&ModelInfo::of(checkpoint, ""));
    shape(checkpoint, &DecoderLimits::of(options, 0, context))
}

/// Every matrix as the loader gives it to the backend.
fn matrices(checkpoint: &Checkpoint) -> Result<Vec<MatrixShape>, CheckpointError> {
    let a = checkpoint.architecture();
    let stacked = |parts: &[&MatrixSource]| MatrixShape {
        rows: parts.iter().map(|part| part.rows).sum(),
        cols: parts.first().map_or(0, |part| part.cols),
        format: parts.first().map_or(skip_kernels::backend::WeightFormat::Bf16, |part| part.format),
        lookup: false,
    };
    let mut all = vec![MatrixShape { lookup: !a.tied, ..stacked(&[&checkpoint.embedding()?]) }];
    if !a.tied {
        all.push(stacked(&[&checkpoint.head()?]));
    }
    for index in 0..a.layers {
        let w = checkpoint.layer(index)?;
        all.extend([stacked(&[&w.q, &w.k, &w.v]), stacked(&[&w.o]), stacked(&[&w.gate, &w.up]), stacked(&[&w.down])]);
    }
    Ok(all)
}
