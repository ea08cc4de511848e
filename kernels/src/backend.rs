//! The seam between the decoder and the device: tensors and operators, asynchronous on one stream.
//!
//! A step is `begin_step` (lengths, block tables, thresholds, tokens: everything that changes from step to step), then the
//! operators in order (they name only tensors that live as long as the model, so a device may capture them once as a graph and replay
//! it), then `sample`; `finish` waits for what it gave. Batch data never travels through operator arguments.
//!
//! A device runs its steps one after the other in the order they were begun, and uploads of tables in between. So the next may be begun before
//! this one is finished ([`Backend::depth`]): its tokens may be ones that this one is still to draw ([`drawn_by`]), and pages or table slots that
//! this one still uses may be given to others there.

use crate::attention::{AttnGeometry, SkipCounters};
use crate::files::{ReadError, Reads, WeightFile};
use crate::gaps::Gaps;
use crate::ledger::{Ledger, ModelShape};
use crate::pages::PageLayout;
use crate::sampling::{Sampled, SamplingParams};
use skip_tables::{Phase, ScaleTable};

/// Element type of stored weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightFormat {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    Fp16,
    /// IEEE binary32.
    Fp32,
}

/// A weight matrix in a checkpoint: `[rows][cols]`, row-major, little-endian; y = x · Wᵀ.
#[derive(Clone)]
pub struct MatrixSource {
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Element type.
    pub format: WeightFormat,
    /// The file it lies in; kept alive by whoever borrows from it.
    pub file: std::sync::Arc<WeightFile>,
    /// Byte range of the tensor in the file.
    pub range: std::ops::Range<usize>,
}

impl WeightFormat {
    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            WeightFormat::Bf16 | WeightFormat::Fp16 => 2,
            WeightFormat::Fp32 => 4,
        }
    }
}

impl MatrixSource {
    /// The tensor's bytes, checked against its shape.
    pub fn bytes(&self) -> Result<&[u8], KernelError> {
        let bytes =
            self.file.bytes().get(self.range.clone()).ok_or_else(|| KernelError::Invalid("a tensor lies outside its file".into()))?;
        let want = self.rows.checked_mul(self.cols).and_then(|n| n.checked_mul(self.format.size()));
        if want != Some(bytes.len()) {
            return Err(KernelError::Invalid(format!("a tensor of {} × {} has {} bytes", self.rows, self.cols, bytes.len())));
        }
        Ok(bytes)
    }
}

/// A numbered place for a scale table on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableSlot(pub u16);

/// Token ids from here on stand for tokens that nobody has seen yet.
const UNSEEN: u32 = 0xffff_0000;

/// Stands, among a step's tokens, for the token that sequence `place` of the step begun before it draws. `place` is below 65,535.
pub fn drawn_by(place: usize) -> u32 {
    debug_assert!(place < 0xffff);
    // All ones mean that no token could be drawn.
    u32::MAX - 1 - place as u32
}

/// The place behind a token that [`drawn_by`] gave; None for a token's own id.
pub fn unseen(token: u32) -> Option<usize> {
    (UNSEEN..u32::MAX).contains(&token).then(|| (u32::MAX - 1 - token) as usize)
}

/// One sequence in a step.
#[derive(Clone, Debug)]
pub struct SeqStep<'a> {
    /// New tokens: a chunk of the prompt, or the one token decoded last, which may be one of [`drawn_by`] where [`Backend::depth`] allows it.
    /// Never empty.
    pub tokens: &'a [u32],
    /// Absolute position of `tokens[0]`: keys already cached.
    pub start: usize,
    /// L of the vote: prefill, the whole prompt's final length; decode, `start + 1`.
    pub final_len: usize,
    /// Which table and kernel.
    pub phase: Phase,
    /// The table the sequence was admitted with; None is dense.
    pub table: Option<TableSlot>,
    /// Pages in order, covering `start + tokens.len()`.
    pub block_table: &'a [u32],
    /// Draw a token from the last row's logits.
    pub sample: Option<&'a SamplingParams>,
    /// Tell its votes by gap, in [`StepReport::gaps`]; what it gives besides is dense. Its step has no other sequence, and the next is not begun
    /// to measure before this one is finished.
    pub measure: bool,
}

/// RoPE as precomputed per-dimension inverse frequencies (scaling folded in) and an attention factor on cos and sin.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// `head_dim / 2` values; pairs are (i, i + head_dim/2) ("rotate half").
    pub inv_freq: Vec<f32>,
    /// Multiplies cos and sin (yarn); 1 otherwise.
    pub factor: f32,
}

/// The gate's activation in a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x · σ(x).
    Silu,
    /// GELU, tanh form.
    GeluTanh,
}

/// What a layer does to its packed QKV rows before attention.
pub struct QkvStore<'a, B: Backend + ?Sized> {
    /// Heads and scaling.
    pub geometry: AttnGeometry,
    /// Bias of the packed `[q | k | v]` row.
    pub bias: Option<&'a B::Vector>,
    /// Per-head RMS norm weights of q and k with their epsilon.
    pub qk_norm: Option<(&'a B::Vector, &'a B::Vector, f32)>,
    /// Rotation.
    pub rope: &'a B::RopeTable,
}

/// Why a backend could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// Shapes or arguments that do not fit; a defect of the caller.
    #[error("{0}")]
    Invalid(String),
    /// Memory the device cannot give.
    #[error("not enough memory for {what}: {bytes} bytes")]
    OutOfMemory {
        /// What was asked for.
        what: &'static str,
        /// Its size.
        bytes: u64,
    },
    /// Weights that could not be read from their file.
    #[error(transparent)]
    Read(ReadError),
    /// A model that the memory there is cannot hold; nothing of it was allocated.
    #[error("{0}")]
    TooLarge(Box<Ledger>),
    /// The device is gone; the process must end.
    #[error("device fault: {0}")]
    Device(String),
    /// `abort` was raised between layers.
    #[error("step aborted")]
    Aborted,
}

/// What runs, for status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendInfo {
    /// `cpu` or `cuda`.
    pub name: &'static str,
    /// Device or processor, in words.
    pub device: String,
    /// The kernel set in use, e.g. `avx512+bf16`.
    pub kernel_set: String,
    /// Worker threads or streaming multiprocessors.
    pub parallelism: usize,
}

/// Tensors and operators on one device, in order on one stream.
pub trait Backend: Send + 'static {
    /// A weight matrix.
    type Matrix: Send;
    /// A float32 vector: norm weights, biases.
    type Vector: Send;
    /// Activations, `[max_rows][cols]`; a step uses the rows it has.
    type Tensor: Send;
    /// One layer's K and V pools.
    type KvPool: Send;
    /// A prepared rotation.
    type RopeTable: Send;

    /// What this is.
    fn info(&self) -> BackendInfo;

    /// Counts what a model is going to take and sets aside what does not depend on its weights. None where a backend does not count.
    ///
    /// # Errors
    /// [`KernelError::TooLarge`] before anything was allocated.
    fn admit(&mut self, _shape: &ModelShape) -> Result<Option<Ledger>, KernelError> {
        Ok(None)
    }

    /// Loads matrices stacked by rows as one (QKV, gate and up); all have the same `cols`.
    fn matrix(&mut self, parts: &[MatrixSource]) -> Result<Self::Matrix, KernelError>;
    /// Loads a matrix that only `embed` reads (an untied embedding), which a device may keep where it lies.
    fn lookup_table(&mut self, source: &MatrixSource) -> Result<Self::Matrix, KernelError> {
        self.matrix(std::slice::from_ref(source))
    }
    /// What was read of the files of matrices, past the page cache, to be copied; None where weights are read where they are mapped.
    fn reads(&self) -> Option<Reads> {
        None
    }
    /// Loads a vector.
    fn vector(&mut self, values: &[f32]) -> Result<Self::Vector, KernelError>;
    /// Allocates activations.
    fn tensor(&mut self, max_rows: usize, cols: usize) -> Result<Self::Tensor, KernelError>;
    /// Allocates activations that want float32 whatever the type of the others: the residual stream, and QKV rows before they are stored.
    fn wide(&mut self, max_rows: usize, cols: usize) -> Result<Self::Tensor, KernelError> {
        self.tensor(max_rows, cols)
    }
    /// Allocates pools of `pages` pages.
    fn kv_pool(&mut self, layout: PageLayout, pages: usize) -> Result<Self::KvPool, KernelError>;
    /// Prepares a rotation for positions below `max_len`.
    fn rope_table(&mut self, rope: &Rope, max_len: usize) -> Result<Self::RopeTable, KernelError>;
    /// Puts a table in a numbered slot, for sequences that start from now on.
    fn set_table(&mut self, slot: TableSlot, table: &ScaleTable) -> Result<(), KernelError>;
    /// Whether the device still works, asked while no step is under way: a machine that slept may have lost it.
    fn check(&mut self) -> Result<(), KernelError> {
        Ok(())
    }

    /// Steps that may be begun before the first of them is finished: 1, or 2 where a device runs one while the host prepares the next.
    fn depth(&self) -> usize {
        1
    }

    /// Whether sequences may bring [`LogitEdits`](crate::sampling::LogitEdits); where not, a step with them is refused.
    fn edits_logits(&self) -> bool {
        true
    }

    /// Uploads what differs from step to step. Rows of the step: the sequences' tokens, concatenated. A step that was begun and not sampled is
    /// given up; it has had no effect but on cache slots at and behind each sequence's `start`.
    fn begin_step(&mut self, seqs: &[SeqStep<'_>]) -> Result<(), KernelError>;
    /// Row r of `out` is row `token[r]` of the table, times `scale`.
    fn embed(&mut self, table: &Self::Matrix, scale: f32, out: &mut Self::Tensor) -> Result<(), KernelError>;
    /// out = x / rms(x) · w. `out` may be read until `x` changes: a device may leave the norm to whoever reads it.
    fn rms_norm(&mut self, x: &Self::Tensor, w: &Self::Vector, eps: f32, out: &mut Self::Tensor) -> Result<(), KernelError>;
    /// x += delta, then out = rms_norm(x), with the same rule for `out`; `delta` is not read again. With `post` weights x += rms_norm(delta) · post.
    fn add_rms_norm(
        &mut self,
        x: &mut Self::Tensor,
        delta: &Self::Tensor,
        post: Option<&Self::Vector>,
        w: &Self::Vector,
        eps: f32,
        out: &mut Self::Tensor,
    ) -> Result<(), KernelError>;
    /// out = x · wᵀ.
    fn matmul(&mut self, x: &Self::Tensor, w: &Self::Matrix, out: &mut Self::Tensor) -> Result<(), KernelError>;
    /// Bias, per-head norms and RoPE on packed `[q | k | v]` rows in place; k and v also stored in the pages (whose unwritten tail becomes zero in V).
    fn qkv_store(&mut self, qkv: &mut Self::Tensor, args: &QkvStore<'_, Self>, pool: &mut Self::KvPool) -> Result<(), KernelError>;
    /// Attention of every sequence of the step over its pages; q is the front of the packed rows. Counters accumulate until `sample`.
    fn attention(
        &mut self,
        qkv: &Self::Tensor,
        geometry: &AttnGeometry,
        pool: &Self::KvPool,
        out: &mut Self::Tensor,
    ) -> Result<(), KernelError>;
    /// out = act(gate) · up from packed `[gate | up]` rows.
    fn gated(&mut self, gate_up: &Self::Tensor, act: Activation, out: &mut Self::Tensor) -> Result<(), KernelError>;
    /// Narrows the step to the last row of each sequence that samples: `out` gets those rows of `x`, in order. `x` holds all rows of
    /// the step, so that several tensors can be narrowed one after the other.
    fn last_rows(&mut self, x: &Self::Tensor, out: &mut Self::Tensor) -> Result<(), KernelError>;
    /// Head and draw for the rows of `last_rows`, normed since. The step is complete with it, though perhaps still to run.
    fn sample(&mut self, x: &Self::Tensor, head: &Self::Matrix) -> Result<(), KernelError>;

    /// Waits for the oldest step that was sampled and not finished, and gives what it gave.
    fn finish(&mut self, report: &mut StepReport) -> Result<(), KernelError>;

    /// Copies logits of the last sampled step's rows, in order, for tests and tools.
    fn logits(&self) -> Vec<Vec<f32>>;
}

/// What a step gave.
#[derive(Clone, Debug, Default)]
pub struct StepReport {
    /// One a sequence of the step; None where it does not sample.
    pub sampled: Vec<Option<Sampled>>,
    /// Votes of the step, summed over layers, one a sequence.
    pub counters: Vec<SkipCounters>,
    /// Votes by gap of the sequence that measures, one a layer; empty where none does.
    pub gaps: Vec<Gaps>,
    /// Seconds spent in attention, where the backend measures it; CUDA does in steps with prefill.
    pub attention_seconds: f64,
    /// Seconds of the caller's thread that were the device's: `finish` waiting for it, or computing where the caller's thread is the device.
    pub device_seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_nobody_has_seen_names_its_place_and_is_neither_an_id_nor_a_failed_draw() {
        for place in [0, 1, 63, 0xfffe] {
            assert_eq!(unseen(drawn_by(place)), Some(place));
            assert_ne!(drawn_by(place), crate::sampling::NO_TOKEN);
        }
        assert_eq!([0, 151_935, UNSEEN - 1, u32::MAX].map(unseen), [None; 4]);
    }
}
