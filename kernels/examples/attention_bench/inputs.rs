//! Structured queries, keys and values: every run of 32 keys has a direction of its own, and a tile of rows likes a few of them.
//!
//! The same construction as `tensors` of the oracle's `make_cases.py`: pure noise has no tile worth skipping.

use skip_kernels::attention::{AttnCall, AttnGeometry, AttnSeq, SkipCounters};
use skip_kernels::cpu::attention::{Isa, decode_on, measure_on, prefill_on};
use skip_kernels::cpu::pool::Pool;
use skip_kernels::gaps::Gaps;
use skip_kernels::pages::{KvView, PageLayout};
use skip_kernels::{KvFormat, PAGE, Phase};

const RUN: usize = 32;

pub struct Inputs {
    geometry: AttnGeometry,
    layout: PageLayout,
    q: Vec<f32>,
    k: Vec<u16>,
    v: Vec<u16>,
    block_tables: Vec<Vec<u32>>,
    q_len: usize,
    kv_len: usize,
    out: Vec<f32>,
}

impl Inputs {
    /// `layers` copies of the cache at different places.
    pub fn new(q_len: usize, kv_len: usize, heads: usize, kv_heads: usize, d: usize, layers: usize) -> Self {
        let mut random = Random(0x1234_5678_9ABC_DEF1);
        let group = heads / kv_heads;
        let runs = kv_len.div_ceil(RUN);
        let directions: Vec<Vec<f32>> = (0..runs * kv_heads).map(|_| random.direction(d)).collect();
        let direction = |run: usize, head: usize| &directions[run * kv_heads + head];
        let mut q = vec![0.0; q_len * heads * d];
        q.iter_mut().for_each(|x| *x = 0.2 * random.normal());
        let start = kv_len - q_len;
        for head in 0..heads {
            let mut like = |row: usize, run: usize, strength: f32| {
                let at = (row * heads + head) * d;
                q[at..at + d].iter_mut().zip(direction(run, head / group)).for_each(|(q, w)| *q += strength * w);
            };
            for row in 0..q_len {
                like(row, 0, 7.0);
            }
            for tile in start / PAGE..kv_len.div_ceil(PAGE) {
                let rows = (tile * PAGE).max(start) - start..((tile + 1) * PAGE).min(kv_len) - start;
                for _ in 0..2 {
                    let (run, strength) = (random.below(runs), random.between(3.0, 6.5));
                    rows.clone().for_each(|row| like(row, run, strength));
                }
                let late = rows.end - 1 - random.below(rows.len().div_ceil(4));
                for row in [rows.end - 1, late, rows.start + random.below(rows.len())] {
                    like(row, random.below(runs), random.between(4.5, 6.0));
                }
            }
        }
        let layout = PageLayout { kv_heads, head_dim: d, format: KvFormat::Fp16 };
        let pages = kv_len.div_ceil(PAGE);
        let nan = half::f16::NAN.to_bits();
        let (mut k, mut v) = (vec![nan; pages * layout.page_len()], vec![nan; pages * layout.page_len()]);
        for head in 0..kv_heads {
            for key in 0..kv_len {
                let at = layout.offset((key / PAGE) as u32, head, key % PAGE);
                for (i, w) in direction(key / RUN, head).iter().enumerate() {
                    k[at + i] = layout.format.encode(0.2 * random.normal() + w * (d as f32).sqrt());
                    v[at + i] = layout.format.encode(random.normal());
                }
            }
        }
        let block_tables = (0..layers).map(|l| (0..pages).map(|p| (l * pages + p) as u32).collect()).collect();
        Self {
            geometry: AttnGeometry { heads, kv_heads, head_dim: d, scale: 1.0 / (d as f32).sqrt(), window: None },
            layout,
            q,
            k: k.repeat(layers),
            v: v.repeat(layers),
            block_tables,
            q_len,
            kv_len,
            out: vec![f32::NAN; q_len * heads * d],
        }
    }

    pub fn prefill(&mut self, isa: Isa, pool: &Pool, ln_lambda: Option<f32>, layer: usize) -> SkipCounters {
        self.call(ln_lambda, layer, |call| prefill_on(isa, call, pool))
    }

    pub fn decode(&mut self, isa: Isa, pool: &Pool, ln_lambda: Option<f32>, layer: usize) -> SkipCounters {
        self.call(ln_lambda, layer, |call| decode_on(isa, call, pool))
    }

    /// Dense attention, measured: the votes by gap. One query row is decoded.
    pub fn measure(&mut self, isa: Isa, pool: &Pool, layer: usize) -> Vec<Gaps> {
        let phase = if self.q_len == 1 { Phase::Decode } else { Phase::Prefill };
        let mut gaps = Vec::new();
        self.call(None, layer, |call| {
            gaps = measure_on(isa, phase, call, pool)?;
            Ok(())
        });
        gaps
    }

    fn call(
        &mut self,
        ln_lambda: Option<f32>,
        layer: usize,
        run: impl FnOnce(&mut AttnCall<'_>) -> Result<(), skip_kernels::KernelError>,
    ) -> SkipCounters {
        let mut counters = [SkipCounters::default()];
        let seqs = [AttnSeq {
            row: 0,
            q_len: self.q_len,
            q_start: self.kv_len - self.q_len,
            kv_len: self.kv_len,
            block_table: &self.block_tables[layer],
            ln_lambda,
        }];
        let mut call = AttnCall {
            geometry: self.geometry,
            q: &self.q,
            q_stride: self.geometry.heads * self.geometry.head_dim,
            kv: KvView { layout: self.layout, k: &self.k, v: &self.v },
            seqs: &seqs,
            out: &mut self.out,
            lse: None,
            kept: None,
            counters: &mut counters,
        };
        if let Err(e) = run(&mut call) {
            panic!("the benchmark's own call is wrong: {e}");
        }
        counters[0]
    }
}

/// xorshift, and normals from sums of uniforms.
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }

    fn below(&mut self, n: usize) -> usize {
        ((self.uniform() * n as f32) as usize).min(n - 1)
    }

    fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.uniform()
    }

    fn normal(&mut self) -> f32 {
        ((0..4).map(|_| self.uniform()).sum::<f32>() - 2.0) * 3f32.sqrt()
    }

    fn direction(&mut self, d: usize) -> Vec<f32> {
        let x: Vec<f32> = (0..d).map(|_| self.normal()).collect();
        let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
        x.iter().map(|x| x / norm).collect()
    }
}
