//! Random structured sequences, placed in pages out of order with every unused slot poisoned, and one call over any of them.

use skip_kernels::attention::{AttnCall, AttnGeometry, AttnSeq, DEFAULT_VOTES, SkipCounters};
use skip_kernels::cpu::attention::{Isa, decode_on, prefill_on};
use skip_kernels::cpu::pool::Pool;
use skip_kernels::cpu::reference;
use skip_kernels::pages::{KvView, PageLayout};
use skip_kernels::{KernelError, KvFormat, PAGE};

const RUN: usize = 32;

/// One sequence (or chunk) of a call.
#[derive(Clone)]
pub struct Sequence {
    /// `[q_len][heads][head_dim]`.
    pub q: Vec<f32>,
    /// `[kv_len][kv_heads][head_dim]`.
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub q_len: usize,
    pub kv_len: usize,
    pub q_start: usize,
    pub ln_lambda: Option<f32>,
}

/// What a call gave, for each sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub out: Vec<f32>,
    pub lse: Vec<f32>,
    pub kept: Vec<u8>,
    pub counters: SkipCounters,
}

impl Answer {
    pub fn skipped(&self) -> usize {
        self.kept.iter().filter(|&&k| k == 0).count()
    }

    pub fn votes(&self) -> usize {
        self.kept.iter().filter(|&&k| k != 2).count()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Who {
    Scalar,
    Simd(Isa),
}

/// The scalar reference and every instruction set of this machine.
pub fn everyone() -> Vec<Who> {
    std::iter::once(Who::Scalar).chain(Isa::available().into_iter().map(Who::Simd)).collect()
}

pub fn best() -> Who {
    Who::Simd(Isa::detect())
}

pub fn geometry(heads: usize, kv_heads: usize, head_dim: usize) -> AttnGeometry {
    AttnGeometry { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), window: None }
}

/// The last `q_len` rows of a sequence of `kv_len` keys: every run of 32 keys has a direction, rows like run 0 and a few others.
pub fn sequence(g: &AttnGeometry, q_len: usize, kv_len: usize, ln_lambda: Option<f32>, seed: u64) -> Sequence {
    let mut random = Random::new(seed);
    let d = g.head_dim;
    let runs = kv_len.div_ceil(RUN);
    let directions: Vec<Vec<f32>> = (0..runs * g.kv_heads).map(|_| random.direction(d)).collect();
    let mut q: Vec<f32> = (0..q_len * g.heads * d).map(|_| 0.2 * random.normal()).collect();
    let q_start = kv_len - q_len;
    for head in 0..g.heads {
        let mut like = |row: usize, run: usize, strength: f32| {
            let at = (row * g.heads + head) * d;
            let w = &directions[run * g.kv_heads + head / g.group()];
            q[at..at + d].iter_mut().zip(w).for_each(|(q, w)| *q += strength * w);
        };
        (0..q_len).for_each(|row| like(row, 0, 7.0));
        for tile in q_start / PAGE..kv_len.div_ceil(PAGE) {
            let rows = (tile * PAGE).max(q_start) - q_start..((tile + 1) * PAGE).min(kv_len) - q_start;
            let (run, strength) = (random.below(runs), random.between(3.0, 6.0));
            rows.clone().for_each(|row| like(row, run, strength));
            like(rows.end - 1, random.below(runs), random.between(4.0, 6.0));
        }
    }
    let mut k = vec![0.0; kv_len * g.kv_heads * d];
    for key in 0..kv_len {
        for head in 0..g.kv_heads {
            let at = (key * g.kv_heads + head) * d;
            for (k, w) in k[at..at + d].iter_mut().zip(&directions[key / RUN * g.kv_heads + head]) {
                *k = 0.2 * random.normal() + w * (d as f32).sqrt();
            }
        }
    }
    let v = (0..k.len()).map(|_| random.normal()).collect();
    Sequence { q, k, v, q_len, kv_len, q_start, ln_lambda }
}

impl Sequence {
    /// Rows `from..to` of the sequence as a chunk of the same prefill: the history before it, the same threshold.
    pub fn chunk(&self, g: &AttnGeometry, from: usize, to: usize) -> Sequence {
        let (q_row, kv_row) = (g.heads * g.head_dim, g.kv_heads * g.head_dim);
        let keys = self.q_start + to;
        Sequence {
            q: self.q[from * q_row..to * q_row].to_vec(),
            k: self.k[..keys * kv_row].to_vec(),
            v: self.v[..keys * kv_row].to_vec(),
            q_len: to - from,
            kv_len: keys,
            q_start: self.q_start + from,
            ln_lambda: self.ln_lambda,
        }
    }
}

pub fn prefill(who: Who, g: &AttnGeometry, format: KvFormat, seqs: &[Sequence]) -> Vec<Answer> {
    run(who, g, format, seqs, &Pool::new(2), false).expect("a call that fits")
}

pub fn decode(who: Who, g: &AttnGeometry, format: KvFormat, seqs: &[Sequence]) -> Vec<Answer> {
    run(who, g, format, seqs, &Pool::new(2), true).expect("a call that fits")
}

pub fn run(who: Who, g: &AttnGeometry, format: KvFormat, seqs: &[Sequence], pool: &Pool, decode: bool) -> Result<Vec<Answer>, KernelError> {
    with_call(g, format, seqs, 7, |call| match (who, decode) {
        (Who::Scalar, false) => reference::prefill(call, &DEFAULT_VOTES),
        (Who::Scalar, true) => reference::decode(call, &DEFAULT_VOTES),
        (Who::Simd(isa), false) => prefill_on(isa, call, pool),
        (Who::Simd(isa), true) => decode_on(isa, call, pool),
    })
}

/// Places the sequences (pages in an order that `seed` shuffles) and hands the call to `compute`.
pub fn with_call(
    g: &AttnGeometry,
    format: KvFormat,
    seqs: &[Sequence],
    seed: u64,
    compute: impl FnOnce(&mut AttnCall<'_>) -> Result<(), KernelError>,
) -> Result<Vec<Answer>, KernelError> {
    let (heads, width) = (g.heads, g.heads * g.head_dim);
    let layout = PageLayout { kv_heads: g.kv_heads, head_dim: g.head_dim, format };
    let pages: usize = seqs.iter().map(|s| s.kv_len.div_ceil(PAGE)).sum();
    let order = Random::new(seed).order(pages + 2);
    let nan = match format {
        KvFormat::Bf16 => half::bf16::NAN.to_bits(),
        _ => half::f16::NAN.to_bits(),
    };
    let mut k = vec![nan; order.len() * layout.page_len()];
    let mut v = k.clone();
    let mut tables: Vec<&[u32]> = Vec::new();
    let mut next = 0;
    for s in seqs {
        let table = &order[next..next + s.kv_len.div_ceil(PAGE)];
        next += table.len();
        for (i, row) in (0..s.kv_len * g.kv_heads).enumerate() {
            let (key, head) = (row / g.kv_heads, row % g.kv_heads);
            let to = layout.offset(table[key / PAGE], head, key % PAGE);
            for j in 0..g.head_dim {
                k[to + j] = format.encode(s.k[i * g.head_dim + j]);
                v[to + j] = format.encode(s.v[i * g.head_dim + j]);
            }
        }
        tables.push(table);
    }
    // one poisoned row between sequences, and poison behind every row
    let q_stride = width + 5;
    let rows: usize = seqs.iter().map(|s| s.q_len + 1).sum();
    let mut q = vec![f32::NAN; rows * q_stride];
    let mut list = Vec::new();
    let mut row = 0;
    for (s, table) in seqs.iter().zip(&tables) {
        for r in 0..s.q_len {
            q[(row + r) * q_stride..(row + r) * q_stride + width].copy_from_slice(&s.q[r * width..(r + 1) * width]);
        }
        list.push(AttnSeq { row, q_len: s.q_len, q_start: s.q_start, kv_len: s.kv_len, block_table: table, ln_lambda: s.ln_lambda });
        row += s.q_len + 1;
    }
    let (mut out, mut lse) = (vec![f32::NAN; rows * width], vec![f32::NAN; rows * heads]);
    let mut kept = vec![vec![9; 3]; seqs.len()];
    let mut counters = vec![SkipCounters::default(); seqs.len()];
    let mut call = AttnCall {
        geometry: *g,
        q: &q,
        q_stride,
        kv: KvView { layout, k: &k, v: &v },
        seqs: &list,
        out: &mut out,
        lse: Some(&mut lse),
        kept: Some(&mut kept),
        counters: &mut counters,
    };
    compute(&mut call)?;
    let part = |s: &AttnSeq<'_>, x: &[f32], width: usize| x[s.row * width..(s.row + s.q_len) * width].to_vec();
    let answers: Vec<Answer> = list
        .iter()
        .zip(kept)
        .zip(counters)
        .map(|((s, kept), counters)| Answer { out: part(s, &out, width), lse: part(s, &lse, heads), kept, counters })
        .collect();
    for answer in &answers {
        assert!(answer.out.iter().all(|x| x.is_finite()), "poison or an infinity reached the output");
    }
    for s in &list {
        let after = s.row + s.q_len;
        assert!(out[after * width..(after + 1) * width].iter().all(|x| x.is_nan()), "a row of nobody was written");
    }
    Ok(answers)
}

/// Votes exactly; outputs and log-sum-exp to float32 rounding, with room for tile products, which leave out what is below 2⁻¹⁶ of a product.
#[track_caller]
pub fn assert_same(a: &Answer, b: &Answer, what: &str) {
    assert_eq!(a.kept, b.kept, "{what}: votes");
    assert_eq!(a.counters, b.counters, "{what}: counters");
    let error: f64 = a.out.iter().zip(&b.out).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let norm: f64 = b.out.iter().map(|b| f64::from(*b).powi(2)).sum();
    assert!(error.sqrt() <= 1e-5 * norm.sqrt(), "{what}: output error {:e}", (error / norm).sqrt());
    for (a, b) in a.lse.iter().zip(&b.lse) {
        assert!(a == b || (a - b).abs() <= 5e-5, "{what}: log-sum-exp {a} and {b}");
    }
}

/// xorshift, and near-normals from sums of uniforms.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..8 {
            random.uniform();
        }
        random
    }

    pub fn uniform(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }

    pub fn below(&mut self, n: usize) -> usize {
        ((self.uniform() * n as f32) as usize).min(n - 1)
    }

    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.uniform()
    }

    pub fn normal(&mut self) -> f32 {
        ((0..4).map(|_| self.uniform()).sum::<f32>() - 2.0) * 3f32.sqrt()
    }

    fn direction(&mut self, d: usize) -> Vec<f32> {
        let x: Vec<f32> = (0..d).map(|_| self.normal()).collect();
        let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
        x.iter().map(|x| x / norm).collect()
    }

    pub fn order(&mut self, n: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n as u32).collect();
        (1..n).rev().for_each(|i| order.swap(i, self.below(i + 1)));
        order
    }
}
