//! The CPU's backend with attention computed twice, by its own kernels and by another implementation on the same numbers, vote by vote.

use half::f16;
use skip_kernels::attention::{AttnCall, AttnGeometry, AttnSeq, DEFAULT_VOTES, SkipCounters};
use skip_kernels::backend::{Activation, MatrixSource, QkvStore, Rope, SeqStep, StepReport, TableSlot};
use skip_kernels::cpu::backend::{KvPool, Tensor};
use skip_kernels::cpu::{CpuBackend, attention};
use skip_kernels::pages::{KvView, PageLayout};
use skip_kernels::{Backend, BackendInfo, KernelError, KvFormat, PAGE, Phase, ScaleTable};
use std::sync::{Arc, Mutex};

/// Computes a call; what is compared with the CPU.
pub type Other = Box<dyn FnMut(Phase, &mut AttnCall<'_>) -> Result<(), KernelError> + Send>;

/// Both sides of one layer, over chunks and steps.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    pub votes: u64,
    /// Left out by the CPU, and by the other.
    pub skipped: [u64; 2],
    /// Votes that went the other way.
    pub turned: u64,
    /// Of those looked at in float64: the largest |gap − ln λ| over what rounding may move it.
    pub looked_at: u64,
    pub worst: f64,
    /// Largest relative L2 error of a call's output.
    pub out: f64,
}

/// Layers by phase: prefill, decode.
pub type Layers = Arc<Mutex<[Vec<Layer>; 2]>>;

/// The backend. One phase a step.
pub struct Tap {
    inner: CpuBackend,
    other: Other,
    layers: Layers,
    /// Votes a layer that are looked at closely.
    look_at: usize,
    tables: Vec<Option<ScaleTable>>,
    seqs: Vec<Owned>,
    phase: Phase,
    layer: usize,
}

struct Owned {
    row: usize,
    len: usize,
    start: usize,
    pages: Vec<u32>,
    ln_lambda: Option<f32>,
}

impl Tap {
    pub fn new(inner: CpuBackend, other: Other, layers: Layers, look_at: usize) -> Self {
        Self { inner, other, layers, look_at, tables: Vec::new(), seqs: Vec::new(), phase: Phase::Prefill, layer: 0 }
    }

    fn compare(&self, call: &View<'_>, seqs: &[AttnSeq<'_>], [a, b]: [&Answer; 2]) -> Layer {
        let phase = self.phase;
        let mut layer = Layer { out: relative(&b.out, &a.out), ..Layer::default() };
        for (i, seq) in seqs.iter().enumerate().filter(|(_, s)| s.ln_lambda.is_some()) {
            let (ours, theirs) = (&a.kept[i], &b.kept[i]);
            assert_eq!(ours.len(), theirs.len(), "votes of a sequence");
            layer.votes += ours.iter().filter(|&&k| k != 2).count() as u64;
            for (side, kept) in [ours, theirs].into_iter().enumerate() {
                layer.skipped[side] += kept.iter().filter(|&&k| k == 0).count() as u64;
            }
            let turned: Vec<usize> = (0..ours.len()).filter(|&at| ours[at] != theirs[at]).collect();
            layer.turned += turned.len() as u64;
            let few: Vec<usize> = turned.iter().copied().step_by(turned.len().div_ceil(self.look_at).max(1)).collect();
            layer.looked_at += few.len() as u64;
            let results = Mutex::new(0.0f64);
            self.inner.pool().run(few.len(), &|at, _| {
                let (gap, rounding) = call.gap(phase, seq, few[at]);
                let off = (gap - f64::from(seq.ln_lambda.unwrap_or_default())).abs() / rounding;
                let mut worst = results.lock().unwrap();
                *worst = worst.max(off);
            });
            layer.worst = layer.worst.max(results.into_inner().unwrap());
        }
        layer
    }
}

struct Answer {
    out: Vec<f32>,
    kept: Vec<Vec<u8>>,
}

fn relative(a: &[f32], b: &[f32]) -> f64 {
    let (error, norm) = a.iter().zip(b).fold((0.0, 0.0), |(e, n), (a, b)| (e + f64::from(a - b).powi(2), n + f64::from(*b).powi(2)));
    (error / norm.max(1e-30)).sqrt()
}

/// Queries, keys and what they are over.
struct View<'a> {
    geometry: AttnGeometry,
    q: &'a [f32],
    width: usize,
    kv: KvView<'a>,
}

impl View<'_> {
    /// Best score of a row and head over keys, and the sum of its products' sizes.
    fn best(&self, seq: &AttnSeq<'_>, row: usize, head: usize, keys: std::ops::Range<usize>) -> (f64, f64) {
        let (d, layout) = (self.geometry.head_dim, self.kv.layout);
        let q = &self.q[(seq.row + row) * self.width + head * d..][..d];
        let mut best = (f64::NEG_INFINITY, 0.0);
        for key in keys {
            let at = layout.offset(seq.block_table[key / PAGE], head / self.geometry.group(), key % PAGE);
            let products = q.iter().zip(&self.kv.k[at..at + d]).map(|(q, &k)| f64::from(*q) * f64::from(layout.format.decode(k)));
            let (sum, size) = products.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
            let scale = f64::from(self.geometry.scale);
            if sum * scale > best.0 {
                best = (sum * scale, size * scale);
            }
        }
        best
    }

    /// The number that vote `index` is about, and by how much float32 and pairs of bfloat16 may move it.
    fn gap(&self, phase: Phase, seq: &AttnSeq<'_>, index: usize) -> (f64, f64) {
        let worse = |(gap, rounding): (f64, f64), (best, before): ((f64, f64), (f64, f64))| {
            let next = best.0 - before.0;
            if next > gap { (next, (best.1 + before.1) / 32768.0 + 1e-5) } else { (gap, rounding) }
        };
        let none = (f64::NEG_INFINITY, 1e-5);
        if phase == Phase::Decode {
            let (run, runs) = (DEFAULT_VOTES.run, seq.kv_len.div_ceil(DEFAULT_VOTES.run));
            let (kv_head, at) = (index / runs, index % runs);
            let group = self.geometry.group();
            let keys = at * run..((at + 1) * run).min(seq.kv_len);
            let heads = kv_head * group..(kv_head + 1) * group;
            return heads.map(|h| (self.best(seq, 0, h, keys.clone()), self.best(seq, 0, h, 0..seq.kv_len))).fold(none, worse);
        }
        let columns = seq.kv_len.div_ceil(PAGE);
        let first = seq.q_start / PAGE;
        let tiles = (seq.q_start + seq.q_len - 1) / PAGE - first + 1;
        let (head, tile, column) = (index / (tiles * columns), index / columns % tiles, index % columns);
        let positions = ((first + tile) * PAGE).max(seq.q_start)..((first + tile + 1) * PAGE).min(seq.q_start + seq.q_len);
        let row = |position: usize| {
            let here = self.best(seq, position - seq.q_start, head, column * PAGE..((column + 1) * PAGE).min(position + 1));
            (here, self.best(seq, position - seq.q_start, head, 0..column * PAGE))
        };
        positions.filter(|&p| p >= column * PAGE).map(row).fold(none, worse)
    }
}

impl Backend for Tap {
    type Matrix = <CpuBackend as Backend>::Matrix;
    type Vector = <CpuBackend as Backend>::Vector;
    type Tensor = Tensor;
    type KvPool = KvPool;
    type RopeTable = <CpuBackend as Backend>::RopeTable;

    fn info(&self) -> BackendInfo {
        self.inner.info()
    }
    fn matrix(&mut self, parts: &[MatrixSource]) -> Result<Self::Matrix, KernelError> {
        self.inner.matrix(parts)
    }
    fn lookup_table(&mut self, source: &MatrixSource) -> Result<Self::Matrix, KernelError> {
        self.inner.lookup_table(source)
    }
    fn vector(&mut self, values: &[f32]) -> Result<Self::Vector, KernelError> {
        self.inner.vector(values)
    }
    fn tensor(&mut self, max_rows: usize, cols: usize) -> Result<Tensor, KernelError> {
        self.inner.tensor(max_rows, cols)
    }
    fn kv_pool(&mut self, layout: PageLayout, pages: usize) -> Result<KvPool, KernelError> {
        self.inner.kv_pool(layout, pages)
    }
    fn rope_table(&mut self, rope: &Rope, max_len: usize) -> Result<Self::RopeTable, KernelError> {
        self.inner.rope_table(rope, max_len)
    }
    fn set_table(&mut self, slot: TableSlot, table: &ScaleTable) -> Result<(), KernelError> {
        let at = usize::from(slot.0);
        self.tables.resize(self.tables.len().max(at + 1), None);
        self.tables[at] = Some(table.clone());
        self.inner.set_table(slot, table)
    }

    fn begin_step(&mut self, seqs: &[SeqStep<'_>]) -> Result<(), KernelError> {
        let mut row = 0;
        self.seqs.clear();
        for s in seqs {
            let table = s.table.and_then(|slot| self.tables.get(usize::from(slot.0))).and_then(Option::as_ref);
            let ln_lambda = table.and_then(|t| t.ln_lambda(s.final_len));
            self.seqs.push(Owned { row, len: s.tokens.len(), start: s.start, pages: s.block_table.to_vec(), ln_lambda });
            row += s.tokens.len();
            assert_eq!(s.phase, seqs[0].phase, "one phase a step");
        }
        (self.phase, self.layer) = (seqs[0].phase, 0);
        self.inner.begin_step(seqs)
    }
    fn embed(&mut self, table: &Self::Matrix, scale: f32, out: &mut Tensor) -> Result<(), KernelError> {
        self.inner.embed(table, scale, out)
    }
    fn rms_norm(&mut self, x: &Tensor, w: &Self::Vector, eps: f32, out: &mut Tensor) -> Result<(), KernelError> {
        self.inner.rms_norm(x, w, eps, out)
    }
    fn add_rms_norm(
        &mut self,
        x: &mut Tensor,
        d: &Tensor,
        post: Option<&Self::Vector>,
        w: &Self::Vector,
        eps: f32,
        out: &mut Tensor,
    ) -> Result<(), KernelError> {
        self.inner.add_rms_norm(x, d, post, w, eps, out)
    }
    fn matmul(&mut self, x: &Tensor, w: &Self::Matrix, out: &mut Tensor) -> Result<(), KernelError> {
        self.inner.matmul(x, w, out)
    }
    fn qkv_store(&mut self, qkv: &mut Tensor, args: &QkvStore<'_, Self>, pool: &mut KvPool) -> Result<(), KernelError> {
        let args = QkvStore { geometry: args.geometry, bias: args.bias, qk_norm: args.qk_norm, rope: args.rope };
        self.inner.qkv_store(qkv, &args, pool)
    }

    /// The CPU's answer goes on; the other's is compared with it.
    fn attention(&mut self, qkv: &Tensor, geometry: &AttnGeometry, pool: &KvPool, out: &mut Tensor) -> Result<(), KernelError> {
        let (g, rows) = (*geometry, self.seqs.iter().map(|s| s.row + s.len).max().unwrap_or(0));
        let (stride, width) = ((g.heads + 2 * g.kv_heads) * g.head_dim, g.heads * g.head_dim);
        assert_eq!(pool.view().layout.format, KvFormat::Fp16);
        // Queries as the device rounds them, so that both have the same.
        let rounded = |row: &[f32]| row[..width].iter().map(|&x| f16::from_f32(x).to_f32()).collect::<Vec<f32>>();
        let q: Vec<f32> = qkv.values()[..rows * stride].chunks_exact(stride).flat_map(rounded).collect();
        let seqs: Vec<AttnSeq<'_>> = self
            .seqs
            .iter()
            .map(|s| AttnSeq {
                row: s.row,
                q_len: s.len,
                q_start: s.start,
                kv_len: s.start + s.len,
                block_table: &s.pages,
                ln_lambda: s.ln_lambda,
            })
            .collect();
        let answer = |compute: &mut dyn FnMut(&mut AttnCall<'_>) -> Result<(), KernelError>| {
            let mut answer = Answer { out: vec![f32::NAN; rows * width], kept: vec![Vec::new(); seqs.len()] };
            let mut counters = vec![SkipCounters::default(); seqs.len()];
            compute(&mut AttnCall {
                geometry: g,
                q: &q,
                q_stride: width,
                kv: pool.view(),
                seqs: &seqs,
                out: &mut answer.out,
                lse: None,
                kept: Some(&mut answer.kept),
                counters: &mut counters,
            })?;
            Ok::<_, KernelError>(answer)
        };
        let phase = self.phase;
        let cpu = answer(&mut |call| match phase {
            Phase::Prefill => attention::prefill(call, self.inner.pool()),
            Phase::Decode => attention::decode(call, self.inner.pool()),
        })?;
        let other = answer(&mut |call| (self.other)(phase, call))?;
        let view = View { geometry: g, q: &q, width, kv: pool.view() };
        let layer = self.compare(&view, &seqs, [&cpu, &other]);
        let mut all = self.layers.lock().unwrap();
        let all = &mut all[usize::from(phase == Phase::Decode)];
        all.resize(all.len().max(self.layer + 1), Layer::default());
        all[self.layer].add(&layer);
        self.layer += 1;
        out.values_mut()[..rows * width].copy_from_slice(&cpu.out);
        Ok(())
    }

    fn gated(&mut self, gate_up: &Tensor, act: Activation, out: &mut Tensor) -> Result<(), KernelError> {
        self.inner.gated(gate_up, act, out)
    }
    fn last_rows(&mut self, x: &Tensor, out: &mut Tensor) -> Result<(), KernelError> {
        self.inner.last_rows(x, out)
    }
    fn sample(&mut self, x: &Tensor, head: &Self::Matrix) -> Result<(), KernelError> {
        self.inner.sample(x, head)
    }
    fn finish(&mut self, report: &mut StepReport) -> Result<(), KernelError> {
        self.inner.finish(report)
    }
    fn logits(&self) -> Vec<Vec<f32>> {
        self.inner.logits()
    }
}

impl Layer {
    pub fn add(&mut self, other: &Layer) {
        self.votes += other.votes;
        self.skipped[0] += other.skipped[0];
        self.skipped[1] += other.skipped[1];
        self.turned += other.turned;
        self.looked_at += other.looked_at;
        self.worst = self.worst.max(other.worst);
        self.out = self.out.max(other.out);
    }
}
