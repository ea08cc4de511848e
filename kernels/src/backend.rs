//! The seam between the decoder and the device: tensors and operators, asynchronous on one stream.
//!
//! A step is `begin_step` (lengths, block tables, thresholds, tokens: everything that changes from step to step), then the
//! operators in order (they name only tensors that live as long as the model, so a device may capture them once as a graph and replay
//! it), then `sample`, which waits. Batch data never travels through operator arguments.

use crate::attention::{AttnGeometry, SkipCounters};
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
    /// The mapped file; kept alive by whoever borrows from it.
    pub map: std::sync::Arc<memmap2::Mmap>,
    /// Byte range of the tensor in the map.
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
        let bytes = self.map.get(self.range.clone()).ok_or_else(|| KernelError::Invalid("a tensor lies outside its file".into()))?;
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

/// One sequence in a step.
#[derive(Clone, Debug)]
pub struct SeqStep<'a> {
    /// New tokens: a chunk of the prompt, or the one token decoded last. Never empty.
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

    /// Loads matrices stacked by rows as one (QKV, gate and up); all have the same `cols`.
    fn matrix(&mut self, parts: &[MatrixSource]) -> Result<Self::Matrix, KernelError>;
    /// Loads a matrix that only `embed` reads (an untied embedding), which a device may keep where it lies.
    fn lookup_table(&mut self, source: &MatrixSource) -> Result<Self::Matrix, KernelError> {
        self.matrix(std::slice::from_ref(source))
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

    /// Uploads what differs from step to step. Rows of the step: the sequences' tokens, concatenated.
    fn begin_step(&mut self, seqs: &[SeqStep<'_>]) -> Result<(), KernelError>;
    /// Row r of `out` is row `token[r]` of the table, times `scale`.
    fn embed(&mut self, table: &Self::Matrix, scale: f32, out: &mut Self::Tensor) -> Result<(), KernelError>;
    /// out = x / rms(x) · w. `out` may be read until `x` changes: a device may leave the norm to whoever reads it.
    fn rms_norm(&mut self, x: &Self::Tensor, w: &Self::Vector, eps: f32, out: &mut Self::Tensor) -> Result<(), KernelError>;
    /// x += delta, then out = rms_norm(x), with the same rule for `out`; `delta` is not read again.
    fn add_rms_norm(
        &mut self,
        x: &mut Self::Tensor,
        delta: &Self::Tensor,
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
    /// Head and draw for the rows of `last_rows`, normed since; waits. One entry for each sequence of the step, None where it does not sample.
    fn sample(&mut self, x: &Self::Tensor, head: &Self::Matrix, report: &mut StepReport) -> Result<(), KernelError>;

    /// Copies logits of the step's sampled rows, in order, for tests and tools.
    fn logits(&self) -> Vec<Vec<f32>>;
}

/// What a step gave.
#[derive(Clone, Debug, Default)]
pub struct StepReport {
    /// One a sequence of the step; None where it does not sample.
    pub sampled: Vec<Option<Sampled>>,
    /// Votes of the step, summed over layers, one a sequence.
    pub counters: Vec<SkipCounters>,
    /// Seconds spent in attention, where the backend measures it.
    pub attention_seconds: f64,
}
