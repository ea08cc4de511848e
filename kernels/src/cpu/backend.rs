//! The CPU backend: packed weights, float32 activations, a pool of threads.

use std::time::Instant;

use super::attention;
use super::buffer::Buffer;
use super::isa::Isa;
use super::ledger::{self, Work};
use super::matmul::{Inputs, Scratch, matmul};
use super::norm::{Delta, RowsMut, gated, rms_norm_rows};
use super::pool::Pool;
use super::rope::{Angles, RopeTable};
use super::sampler;
use super::shared::SharedMut;
use super::store::{RowArgs, qkv_store};
use super::weights::{self, Weights};
use crate::attention::{AttnCall, AttnGeometry, SkipCounters};
use crate::backend::{Activation, Backend, BackendInfo, KernelError, MatrixSource, QkvStore, Rope, SeqStep, StepReport, TableSlot};
use crate::ledger::{Ledger, ModelShape};
use crate::pages::{KvView, PageLayout};
use crate::sampling::Sampled;
use crate::step::Step;
use crate::system::System;
use skip_tables::{Phase, ScaleTable};

/// How activations enter matrix products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// As float32: logits within a few hundredths of a float32 reference.
    Float32,
    /// Rounded to bfloat16 first, as the weights are; sums stay float32.
    Bfloat16,
    /// Bfloat16 where the processor multiplies it, else float32.
    #[default]
    Auto,
}

/// What the CPU backend may use.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Threads, the caller included; None takes what the system says are available.
    pub threads: Option<usize>,
    /// How activations enter matrix products.
    pub precision: Precision,
}

impl CpuOptions {
    fn work(&self) -> Work {
        let isa = Isa::detect();
        let inputs = match self.precision {
            Precision::Float32 => Inputs::Float32,
            Precision::Bfloat16 => Inputs::Bfloat16,
            Precision::Auto if isa.multiplies_bfloat16() => Inputs::Bfloat16,
            Precision::Auto => Inputs::Float32,
        };
        let threads = self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        Work { threads, isa, inputs }
    }
}

/// What a model takes on the processor with these options, and what `system` can give; None where nobody says.
pub fn estimate(shape: &ModelShape, options: CpuOptions, system: &System) -> Option<Ledger> {
    system.bounds(ledger::ledger(shape, options.work()))
}

/// The CPU implementation of [`Backend`].
pub struct CpuBackend {
    options: CpuOptions,
    system: System,
    pool: Pool,
    isa: Isa,
    /// Attention's: tile registers round queries and weights to pairs of bfloat16, which float32 precision does not take.
    attention_isa: Isa,
    inputs: Inputs,
    tables: Vec<Option<ScaleTable>>,
    step: Step,
    /// Each rotation's.
    angles: Vec<Angles>,
    scratch: Scratch,
    logits: Vec<f32>,
    vocab: usize,
    /// When the step was begun.
    began: Instant,
    /// What it gave, until it is asked for.
    done: Option<StepReport>,
}

/// A weight matrix: packed for products, or mapped for look-ups, or both.
pub struct Matrix {
    rows: usize,
    cols: usize,
    packed: Option<Weights>,
    source: Option<MatrixSource>,
}

/// Activations, `[max_rows][cols]`.
pub struct Tensor {
    data: Buffer<f32>,
    max_rows: usize,
    cols: usize,
}

/// One layer's pools.
pub struct KvPool {
    layout: PageLayout,
    pages: usize,
    k: Buffer<u16>,
    v: Buffer<u16>,
}

impl KvPool {
    /// What attention reads.
    pub fn view(&self) -> KvView<'_> {
        KvView { layout: self.layout, k: &self.k, v: &self.v }
    }
}

impl Tensor {
    /// The first `rows` rows.
    fn rows(&self, rows: usize) -> &[f32] {
        &self.data[..rows * self.cols]
    }

    /// All of it, `[max_rows][cols]`, for tests that compute an operator themselves.
    pub fn values(&self) -> &[f32] {
        &self.data
    }

    /// The same, to be written.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    fn rows_mut(&mut self, rows: usize) -> &mut [f32] {
        &mut self.data[..rows * self.cols]
    }
}

/// Refuses arguments that do not fit.
fn check(fits: bool, what: impl FnOnce() -> String) -> Result<(), KernelError> {
    if fits { Ok(()) } else { Err(KernelError::Invalid(what())) }
}

impl CpuBackend {
    /// Starts the threads.
    pub fn new(options: CpuOptions) -> Self {
        Self::within(options, System::default())
    }

    /// The same where another system says what memory there is.
    pub fn within(options: CpuOptions, system: System) -> Self {
        let Work { threads, isa, inputs } = options.work();
        Self {
            options,
            system,
            pool: Pool::new(threads),
            isa,
            attention_isa: if options.precision == Precision::Float32 { isa.min(Isa::Avx512Bf16) } else { isa },
            inputs,
            tables: Vec::new(),
            step: Step::default(),
            angles: Vec::new(),
            scratch: Scratch::default(),
            logits: Vec::new(),
            vocab: 0,
            began: Instant::now(),
            done: None,
        }
    }

    /// The threads, for work beside the model's.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Rows of the step, if the tensor has room for them.
    fn fit(&self, what: &str, tensor: &Tensor, cols: usize) -> Result<usize, KernelError> {
        let rows = self.step.rows;
        check(tensor.cols == cols && tensor.max_rows >= rows, || {
            format!("{what}: a tensor of {} × {} for {rows} × {cols}", tensor.max_rows, tensor.cols)
        })?;
        Ok(rows)
    }
}

impl Backend for CpuBackend {
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Tensor = Tensor;
    type KvPool = KvPool;
    type RopeTable = RopeTable;

    fn info(&self) -> BackendInfo {
        let inputs = match self.inputs {
            Inputs::Float32 => "float32 activations",
            Inputs::Bfloat16 => "bfloat16 activations",
        };
        BackendInfo {
            name: "cpu",
            device: processor(),
            kernel_set: format!("{}, {inputs}; attention {}", self.isa.name(), self.attention_isa.name()),
            parallelism: self.pool.workers(),
        }
    }

    fn admit(&mut self, shape: &ModelShape) -> Result<Option<Ledger>, KernelError> {
        estimate(shape, self.options, &self.system).map(Ledger::admit).transpose()
    }

    fn matrix(&mut self, parts: &[MatrixSource]) -> Result<Matrix, KernelError> {
        parts.iter().for_each(|part| part.file.will_need(&part.range));
        let packed = Weights::pack(&self.pool, parts)?;
        // What is packed is not read again where it lies, but for a row now and then.
        parts.iter().for_each(|part| part.file.release(&part.range));
        // A tied embedding is looked up row by row, which the mapped file serves as it lies.
        let source = (parts.len() == 1).then(|| parts[0].clone());
        Ok(Matrix { rows: packed.rows, cols: packed.cols, packed: Some(packed), source })
    }

    fn lookup_table(&mut self, source: &MatrixSource) -> Result<Matrix, KernelError> {
        source.bytes()?;
        Ok(Matrix { rows: source.rows, cols: source.cols, packed: None, source: Some(source.clone()) })
    }

    fn vector(&mut self, values: &[f32]) -> Result<Vec<f32>, KernelError> {
        Ok(values.to_vec())
    }

    fn tensor(&mut self, max_rows: usize, cols: usize) -> Result<Tensor, KernelError> {
        let len = max_rows.checked_mul(cols).ok_or(KernelError::OutOfMemory { what: "activations", bytes: u64::MAX })?;
        Ok(Tensor { data: Buffer::zeroed(len, "activations")?, max_rows, cols })
    }

    fn kv_pool(&mut self, layout: PageLayout, pages: usize) -> Result<KvPool, KernelError> {
        let len = layout.page_len().checked_mul(pages).ok_or(KernelError::OutOfMemory { what: "KV pages", bytes: u64::MAX })?;
        Ok(KvPool { layout, pages, k: Buffer::zeroed(len, "KV pages")?, v: Buffer::zeroed(len, "KV pages")? })
    }

    fn rope_table(&mut self, rope: &Rope, max_len: usize) -> Result<RopeTable, KernelError> {
        self.angles.push(Angles::default());
        Ok(RopeTable::new(rope, max_len, self.angles.len() - 1))
    }

    fn set_table(&mut self, slot: TableSlot, table: &ScaleTable) -> Result<(), KernelError> {
        let slot = usize::from(slot.0);
        if slot >= self.tables.len() {
            self.tables.resize(slot + 1, None);
        }
        self.tables[slot] = Some(table.clone());
        Ok(())
    }

    fn begin_step(&mut self, seqs: &[SeqStep<'_>]) -> Result<(), KernelError> {
        self.began = Instant::now();
        self.done = None;
        self.step.begin(seqs, &self.tables)
    }

    fn embed(&mut self, table: &Matrix, scale: f32, out: &mut Tensor) -> Result<(), KernelError> {
        let rows = self.fit("embed", out, table.cols)?;
        let source = table.source.as_ref().ok_or_else(|| KernelError::Invalid("embed: the table has several parts".into()))?;
        let bytes = source.bytes()?;
        let row_len = bytes.len() / source.rows.max(1);
        for (&token, out) in self.step.tokens.iter().zip(out.rows_mut(rows).chunks_exact_mut(table.cols)) {
            let token = token as usize;
            check(token < table.rows, || format!("token {token} of a vocabulary of {}", table.rows))?;
            weights::decode_row(source.format, &bytes[token * row_len..(token + 1) * row_len], out);
            if scale != 1.0 {
                out.iter_mut().for_each(|x| *x *= scale);
            }
        }
        Ok(())
    }

    fn rms_norm(&mut self, x: &Tensor, w: &Vec<f32>, eps: f32, out: &mut Tensor) -> Result<(), KernelError> {
        let rows = self.fit("rms_norm", x, w.len())?;
        self.fit("rms_norm", out, w.len())?;
        rms_norm_rows(&self.pool, self.isa, RowsMut::Fixed(x.rows(rows)), None, w, eps, out.rows_mut(rows));
        Ok(())
    }

    fn add_rms_norm(
        &mut self,
        x: &mut Tensor,
        delta: &Tensor,
        post: Option<&Vec<f32>>,
        w: &Vec<f32>,
        eps: f32,
        out: &mut Tensor,
    ) -> Result<(), KernelError> {
        let rows = self.fit("add_rms_norm", x, w.len())?;
        self.fit("add_rms_norm", delta, w.len())?;
        self.fit("add_rms_norm", out, w.len())?;
        check(post.is_none_or(|post| post.len() == w.len()), || "add_rms_norm: weights".into())?;
        let delta = Delta { rows: delta.rows(rows), post: post.map(Vec::as_slice) };
        let x = RowsMut::Shared(SharedMut::new(x.rows_mut(rows)));
        rms_norm_rows(&self.pool, self.isa, x, Some(delta), w, eps, out.rows_mut(rows));
        Ok(())
    }

    fn matmul(&mut self, x: &Tensor, w: &Matrix, out: &mut Tensor) -> Result<(), KernelError> {
        let rows = self.fit("matmul", x, w.cols)?;
        self.fit("matmul", out, w.rows)?;
        let packed = w.packed.as_ref().ok_or_else(|| KernelError::Invalid("matmul: a look-up table".into()))?;
        matmul(&self.pool, self.isa, self.inputs, x.rows(rows), packed, out.rows_mut(rows), &mut self.scratch);
        Ok(())
    }

    fn qkv_store(&mut self, qkv: &mut Tensor, args: &QkvStore<'_, Self>, pool: &mut KvPool) -> Result<(), KernelError> {
        let g = args.geometry;
        let cols = (g.heads + 2 * g.kv_heads) * g.head_dim;
        let rows = self.fit("qkv_store", qkv, cols)?;
        check(rows == self.step.tokens.len(), || "qkv_store: after last_rows".into())?;
        check(pool.layout.kv_heads == g.kv_heads && pool.layout.head_dim == g.head_dim, || "qkv_store: another layer's pool".into())?;
        check(args.rope.head_dim() == g.head_dim, || format!("qkv_store: a rotation of {} elements", args.rope.head_dim()))?;
        check(args.bias.is_none_or(|b| b.len() == cols), || "qkv_store: bias".into())?;
        check(args.qk_norm.is_none_or(|(q, k, _)| q.len() == g.head_dim && k.len() == g.head_dim), || "qkv_store: norms".into())?;
        let end = self.step.end;
        check(end <= args.rope.max_len(), || format!("qkv_store: position {end} of a rotation for {}", args.rope.max_len()))?;
        check(self.step.last_page.is_none_or(|p| (p as usize) < pool.pages), || "qkv_store: a page outside the pool".into())?;
        let angles =
            self.angles.get_mut(args.rope.place()).ok_or_else(|| KernelError::Invalid("qkv_store: another backend's rotation".into()))?;
        angles.prepare(&self.step, args.rope);
        let qk_norm = args.qk_norm.map(|(q, k, eps)| (q.as_slice(), k.as_slice(), eps));
        let row = RowArgs { isa: self.isa, geometry: g, bias: args.bias.map(Vec::as_slice), qk_norm, angles };
        qkv_store(&self.pool, &self.step, qkv.rows_mut(rows), &row, pool.layout, &mut pool.k, &mut pool.v);
        Ok(())
    }

    fn attention(&mut self, qkv: &Tensor, geometry: &AttnGeometry, pool: &KvPool, out: &mut Tensor) -> Result<(), KernelError> {
        let began = Instant::now();
        let g = geometry;
        let rows = self.fit("attention", qkv, (g.heads + 2 * g.kv_heads) * g.head_dim)?;
        self.fit("attention", out, g.heads * g.head_dim)?;
        check(self.step.last_page.is_none_or(|p| (p as usize) < pool.pages), || "attention: a page outside the pool".into())?;
        for phase in [Phase::Prefill, Phase::Decode] {
            let (seqs, places) = self.step.attention(phase);
            if seqs.is_empty() {
                continue;
            }
            let mut counters = vec![SkipCounters::default(); seqs.len()];
            let mut call = AttnCall {
                geometry: *g,
                q: qkv.rows(rows),
                q_stride: qkv.cols,
                kv: pool.view(),
                seqs: &seqs,
                out: out.rows_mut(rows),
                lse: None,
                kept: None,
                counters: &mut counters,
            };
            let mut gaps = None;
            match phase {
                _ if self.step.measures() => gaps = attention::measure_on(self.attention_isa, phase, &mut call, &self.pool)?.pop(),
                Phase::Prefill => attention::prefill_on(self.attention_isa, &mut call, &self.pool)?,
                Phase::Decode => attention::decode_on(self.attention_isa, &mut call, &self.pool)?,
            }
            for (&place, &votes) in places.iter().zip(&counters) {
                self.step.counters[place] += votes;
            }
            self.step.gaps.extend(gaps);
        }
        self.step.attention_seconds += began.elapsed().as_secs_f64();
        Ok(())
    }

    fn gated(&mut self, gate_up: &Tensor, act: Activation, out: &mut Tensor) -> Result<(), KernelError> {
        let cols = out.cols;
        let rows = self.fit("gated", gate_up, 2 * cols)?;
        self.fit("gated", out, cols)?;
        gated(&self.pool, self.isa, gate_up.rows(rows), cols, act, out.rows_mut(rows));
        Ok(())
    }

    fn last_rows(&mut self, x: &Tensor, out: &mut Tensor) -> Result<(), KernelError> {
        self.fit("last_rows", x, out.cols)?;
        let cols = out.cols;
        check(x.max_rows >= self.step.tokens.len(), || format!("last_rows: a tensor of {} rows", x.max_rows))?;
        let sampled = self.step.seqs.iter().filter(|s| s.sample.is_some());
        let last: Vec<usize> = sampled.map(|s| s.row + s.len - 1).collect();
        check(out.max_rows >= last.len(), || format!("last_rows: {} rows of {}", last.len(), out.max_rows))?;
        for (&row, out) in last.iter().zip(out.data.chunks_exact_mut(cols)) {
            out.copy_from_slice(&x.data[row * cols..(row + 1) * cols]);
        }
        self.step.rows = last.len();
        Ok(())
    }

    fn sample(&mut self, x: &Tensor, head: &Matrix) -> Result<(), KernelError> {
        let rows = self.fit("sample", x, head.cols)?;
        let sampling: Vec<usize> = (0..self.step.seqs.len()).filter(|&i| self.step.seqs[i].sample.is_some()).collect();
        check(rows == sampling.len(), || "sample: before last_rows".into())?;
        let packed = head.packed.as_ref().ok_or_else(|| KernelError::Invalid("sample: a look-up table".into()))?;
        self.vocab = head.rows;
        self.logits.resize(rows * self.vocab, 0.0);
        matmul(&self.pool, self.isa, self.inputs, x.rows(rows), packed, &mut self.logits, &mut self.scratch);

        let mut drawn = vec![Sampled::default(); rows];
        let shared = SharedMut::new(&mut drawn);
        let (step, logits, vocab) = (&self.step, &self.logits, self.vocab);
        self.pool.run(rows, &|row, _| {
            let seq = &step.seqs[sampling[row]];
            if let Some(params) = &seq.sample {
                // SAFETY: each row is one task's.
                let out = unsafe { shared.part(row, 1) };
                out[0] = sampler::sample(&logits[row * vocab..(row + 1) * vocab], params, seq.start + seq.len);
            }
        });
        let mut sampled = vec![None; self.step.seqs.len()];
        for (place, token) in sampling.into_iter().zip(drawn) {
            sampled[place] = Some(token);
        }
        self.done = Some(StepReport {
            sampled,
            counters: std::mem::take(&mut self.step.counters),
            gaps: std::mem::take(&mut self.step.gaps),
            attention_seconds: self.step.attention_seconds,
            device_seconds: self.began.elapsed().as_secs_f64(),
        });
        Ok(())
    }

    fn finish(&mut self, report: &mut StepReport) -> Result<(), KernelError> {
        *report = self.done.take().ok_or_else(|| KernelError::Invalid("finish: no step was sampled".into()))?;
        Ok(())
    }

    fn logits(&self) -> Vec<Vec<f32>> {
        self.logits.chunks_exact(self.vocab.max(1)).map(<[f32]>::to_vec).collect()
    }
}

/// The processor's name, as the system gives it.
fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")).and_then(|rest| rest.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_string(), |(_, name)| name.trim().to_string())
}

#[cfg(test)]
#[path = "backend_tests.rs"]
mod tests;
