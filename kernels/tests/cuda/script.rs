//! Random steps of many sequences, as a scheduler makes them, over rows whose queries, keys and values are known beforehand.

use crate::fixture::{Random, sequence};
use half::bf16;
use skip_kernels::attention::AttnGeometry;
use skip_kernels::{KvFormat, PAGE, Phase, ScaleTable};

/// Rows of a step.
pub const MAX_ROWS: usize = 2048;
/// Sequences of a step.
pub const MAX_SEQS: usize = 64;

/// Steps to run and what they are over.
pub struct Script {
    pub seed: u64,
    pub geometry: AttnGeometry,
    pub format: KvFormat,
    /// Packed `[q | k | v]` rows, bfloat16, one a token id; the last one is all NaN.
    pub rows: Vec<u16>,
    pub tables: Vec<ScaleTable>,
    pub pages: usize,
    pub seqs: Vec<Seq>,
    pub steps: Vec<Vec<Part>>,
}

/// One sequence.
pub struct Seq {
    /// Token ids, one after the other in `Script::rows`.
    pub tokens: Vec<u32>,
    pub pages: Vec<u32>,
    /// Tokens that are prefilled; the others are decoded.
    pub prompt: usize,
    /// Slots of the tables it was admitted with.
    pub prefill: Option<u16>,
    pub decode: Option<u16>,
}

/// A sequence's part of a step.
#[derive(Clone, Copy)]
pub struct Part {
    pub seq: usize,
    pub start: usize,
    pub len: usize,
    pub phase: Phase,
    pub sample: bool,
}

impl Script {
    /// Elements of a row.
    pub fn width(&self) -> usize {
        (self.geometry.heads + 2 * self.geometry.kv_heads) * self.geometry.head_dim
    }

    /// The token whose row is NaN.
    pub fn poison(&self) -> u32 {
        (self.rows.len() / self.width() - 1) as u32
    }

    /// Draws one; `longest` bounds a prompt.
    pub fn new(seed: u64, longest: usize) -> Self {
        let mut random = Random::new(seed ^ 0xB00C);
        let d = [64, 128, 256][random.below(3)];
        let (group, kv_heads) = (1 + random.below(8), 1 + random.below(if d == 256 { 2 } else { 3 }));
        let window = (random.below(6) == 0).then(|| 1 + random.below(500));
        let geometry = AttnGeometry { heads: group * kv_heads, kv_heads, head_dim: d, scale: 1.0 / (d as f32).sqrt(), window };
        let tables: Vec<ScaleTable> = (0..1 + random.below(6)).map(|_| table(&mut random, longest)).collect();
        let count = [1, 3, 17, 40, MAX_SEQS][random.below(5)];
        let longest = if count > 16 { longest / 3 } else { longest }.max(2);

        let (mut rows, mut seqs, mut pages) = (Vec::new(), Vec::new(), 0);
        for i in 0..count {
            let prompt = 1 + random.below(longest);
            let len = prompt + random.below(20);
            let data = sequence(&geometry, len, len, None, seed * 100 + i as u64);
            let first = seqs.iter().map(|s: &Seq| s.tokens.len()).sum::<usize>() as u32;
            for at in 0..len {
                let (q, kv) = (geometry.heads * d, geometry.kv_heads * d);
                let row = data.q[at * q..][..q].iter().chain(&data.k[at * kv..][..kv]).chain(&data.v[at * kv..][..kv]);
                rows.extend(row.map(|&x| bf16::from_f32(x).to_bits()));
            }
            pages += len.div_ceil(PAGE);
            let mut slot = || (random.below(4) > 0).then(|| random.below(tables.len()) as u16);
            let (prefill, decode) = (slot(), slot());
            seqs.push(Seq { tokens: (first..first + len as u32).collect(), pages: Vec::new(), prompt, prefill, decode });
        }
        rows.resize(rows.len() + (geometry.heads + 2 * geometry.kv_heads) * d, bf16::NAN.to_bits());
        let pages = pages + 3;
        let mut order = random.order(pages).into_iter();
        seqs.iter_mut().for_each(|s| s.pages = order.by_ref().take(s.tokens.len().div_ceil(PAGE)).collect());
        let steps = steps(&mut random, &seqs);
        let format = KvFormat::Fp16;
        Self { seed, geometry, format, rows, tables, pages, seqs, steps }
    }
}

/// One to five rows, S between a tenth of a percent and half of the row's length, 0 now and then.
fn table(random: &mut Random, longest: usize) -> ScaleTable {
    let (mut rows, mut length) = (Vec::new(), 0);
    for _ in 0..1 + random.below(5) {
        length += 1 + random.below(longest / 4 + 1) as u32;
        let s = if random.below(8) == 0 { 0.0 } else { length as f32 * random.between(-6.0, -0.5).exp() };
        rows.push((length, s).into());
    }
    let max_len = (random.below(4) == 0).then(|| length + random.below(longest) as u32);
    ScaleTable::new(rows, max_len).unwrap_or_else(|e| panic!("a drawn table: {e}"))
}

/// Every sequence to its end: chunks of whole pages, then single tokens, whoever has a turn.
fn steps(random: &mut Random, seqs: &[Seq]) -> Vec<Vec<Part>> {
    let mut done = vec![0; seqs.len()];
    let mut steps = Vec::new();
    while done.iter().zip(seqs).any(|(&done, s)| done < s.tokens.len()) {
        let (mut parts, mut rows) = (Vec::new(), 0);
        let prefills = random.below(3) > 0;
        for (seq, s) in seqs.iter().enumerate() {
            let start = done[seq];
            let prefill = start < s.prompt;
            if start == s.tokens.len() || (prefill && !prefills) || random.below(5) == 0 {
                continue;
            }
            let len = if prefill { (PAGE * (1 + random.below(4))).min(s.prompt - start) } else { 1 };
            if rows + len > MAX_ROWS {
                continue;
            }
            let phase = if prefill { Phase::Prefill } else { Phase::Decode };
            let sample = !prefill || start + len == s.prompt || random.below(2) == 0;
            parts.push(Part { seq, start, len, phase, sample });
            (rows, done[seq]) = (rows + len, start + len);
        }
        if !parts.is_empty() {
            steps.push(parts);
        }
    }
    steps
}
