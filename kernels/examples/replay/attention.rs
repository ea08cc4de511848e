//! Prefill and decode cases: pages in random order, everything unused poisoned, each implementation that takes the geometry.

use crate::case::CaseFile;
use crate::result::{Replayed, count, max_error, relative_l2};
use anyhow::{Context, Result, ensure};
use half::{bf16, f16};
use serde::Deserialize;
use skip_kernels::attention::{AttnCall, AttnGeometry, AttnSeq, DEFAULT_VOTES, SkipCounters, VoteGeometry};
use skip_kernels::cpu::{self, attention::Isa, pool::Pool, reference};
use skip_kernels::cuda::Attend;
use skip_kernels::pages::{KvView, PageLayout};
use skip_kernels::{KvFormat, PAGE, Phase, ScaleTable};

/// Relative L2 of the output a sequence, absolute log-sum-exp: float32 arithmetic, and 16-bit weights and outputs on a GPU.
#[derive(Clone, Copy)]
struct Tolerance {
    out: f64,
    lse: f64,
}

const FLOAT32: Tolerance = Tolerance { out: 1e-4, lse: 1e-4 };
const GPU_FP16: Tolerance = Tolerance { out: 4e-3, lse: 2e-3 };
const GPU_BF16: Tolerance = Tolerance { out: 8e-3, lse: 2e-3 };

/// What computes beside the scalar reference.
pub enum On {
    /// These instruction sets.
    Cpu(Vec<Isa>),
    /// A CUDA device.
    Cuda(Box<Attend>),
}

impl On {
    /// In words.
    pub fn describe(&self) -> String {
        match self {
            On::Cpu(sets) => format!("cpu, {}", sets.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ")),
            On::Cuda(attend) => format!("cuda, {}", attend.device()),
        }
    }
}

/// One implementation.
enum Kernel<'a> {
    Scalar,
    Simd(Isa),
    Cuda(&'a mut Attend),
}

#[derive(Deserialize)]
struct Fields {
    kind: String,
    seqs: Vec<SeqFields>,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    scale: f64,
    table: Option<Vec<(u32, f32)>>,
    max_len: Option<u32>,
    window: Option<usize>,
    tile: Option<Tile>,
    run: Option<Run>,
}

#[derive(Deserialize)]
struct SeqFields {
    q_len: usize,
    kv_len: usize,
    q_start: Option<usize>,
    final_len: Option<usize>,
}

#[derive(Deserialize)]
struct Tile {
    rows: usize,
    keys: usize,
}

#[derive(Deserialize)]
struct Run {
    keys: usize,
}

/// The case in memory, and what each sequence's share of it is.
struct Problem {
    geometry: AttnGeometry,
    votes: VoteGeometry,
    decode: bool,
    seqs: Vec<Seq>,
    q: Vec<f32>,
    q_stride: usize,
    rows: usize,
    k: Vec<f32>,
    v: Vec<f32>,
}

struct Seq {
    row: usize,
    q_len: usize,
    q_start: usize,
    kv_len: usize,
    ln_lambda: Option<f32>,
}

/// One implementation's answer.
struct Answer {
    out: Vec<f32>,
    lse: Vec<f32>,
    kept: Vec<Vec<u8>>,
    mass_share: Vec<f64>,
}

/// Runs the scalar reference and, where they have the geometry, the other implementations; the first gives the result, with an fp16 cache.
pub fn replay(case: &CaseFile<'_>, pool: &Pool, on: &mut On) -> Result<Replayed> {
    let problem = Problem::read(case)?;
    let mut result = Replayed::new(case);
    let formats = problem.formats();
    let reference = problem.run(formats[0], Kernel::Scalar, pool)?;
    problem.compare(case, "scalar", &reference, FLOAT32, &mut result)?;
    let mut answer = &reference;
    let mut others = Vec::new();
    match on {
        On::Cpu(sets) if cpu::attention::has_kernel(&problem.geometry) && problem.votes == DEFAULT_VOTES => {
            for isa in sets.iter() {
                for &format in &formats {
                    let name = format!("{} {}", isa.name(), format.name());
                    others.push((name, problem.run(format, Kernel::Simd(*isa), pool)?, FLOAT32));
                }
            }
        }
        On::Cuda(attend) if problem.votes == DEFAULT_VOTES => {
            for &format in &formats {
                if attend.has_kernel(problem.phase(), &problem.geometry, format) {
                    let tolerance = if format == KvFormat::Bf16 { GPU_BF16 } else { GPU_FP16 };
                    let name = format!("cuda {}", format.name());
                    others.push((name, problem.run(format, Kernel::Cuda(&mut *attend), pool)?, tolerance));
                }
            }
        }
        _ => {}
    }
    for (name, other, tolerance) in &others {
        problem.compare(case, name, other, *tolerance, &mut result)?;
        problem.agree(name, &reference, other, *tolerance, &mut result);
    }
    if let Some((_, best, _)) = others.first() {
        answer = best;
    } else {
        result.scalar_alone = true;
        result.lines.push("no other kernel of this geometry".into());
    }
    let width = [problem.rows, problem.geometry.heads, problem.geometry.head_dim];
    result.push("out", &width, &answer.out);
    result.push("lse", &width[..2], &answer.lse);
    for (i, kept) in answer.kept.iter().enumerate() {
        result.push(&format!("kept_{i}"), &problem.kept_shape(i), kept);
    }
    let shares: Vec<f64> = answer.kept.iter().map(|kept| share(kept)).collect();
    result.set("skipped_share", serde_json::json!(shares));
    result.set("mass_share", serde_json::json!(reference.mass_share));
    Ok(result)
}

/// Skipped votes over votes taken.
fn share(kept: &[u8]) -> f64 {
    let votes = kept.iter().filter(|&&k| k != 2).count();
    kept.iter().filter(|&&k| k == 0).count() as f64 / votes.max(1) as f64
}

impl Problem {
    fn read(case: &CaseFile<'_>) -> Result<Self> {
        let fields: Fields = case.describe()?;
        let decode = fields.kind == "decode";
        let votes = match (decode, &fields.tile, &fields.run) {
            (false, Some(tile), _) => VoteGeometry { rows: tile.rows, keys: tile.keys, ..DEFAULT_VOTES },
            (true, _, Some(run)) => VoteGeometry { run: run.keys, ..DEFAULT_VOTES },
            _ => anyhow::bail!("a {} case without its vote geometry", fields.kind),
        };
        let sizes = [votes.rows, votes.keys, votes.run];
        ensure!(sizes.iter().all(|&s| (1..=1 << 16).contains(&s)), "vote geometry {sizes:?} is out of range");
        let geometry = AttnGeometry {
            heads: fields.heads,
            kv_heads: fields.kv_heads,
            head_dim: fields.head_dim,
            scale: fields.scale as f32,
            window: fields.window,
        };
        let table = match fields.table.filter(|t| !t.is_empty()) {
            Some(rows) => Some(ScaleTable::new(rows.into_iter().map(Into::into).collect(), fields.max_len).context("table")?),
            None => None,
        };
        let mut seqs = Vec::new();
        let (mut rows, mut keys) = (0, 0);
        for s in &fields.seqs {
            count(&[s.q_len, geometry.heads, geometry.head_dim])?;
            count(&[s.kv_len, geometry.kv_heads, geometry.head_dim])?;
            let q_start = match s.q_start {
                Some(start) => start,
                None => s.kv_len.checked_sub(s.q_len).context("more queries than keys")?,
            };
            let final_len = s.final_len.unwrap_or(s.kv_len);
            let ln_lambda = table.as_ref().and_then(|t| t.ln_lambda(final_len));
            seqs.push(Seq { row: rows, q_len: s.q_len, q_start, kv_len: s.kv_len, ln_lambda });
            rows += s.q_len;
            keys += s.kv_len;
        }
        let packed: Vec<f32> = case.shaped("q", &[rows, geometry.heads, geometry.head_dim])?;
        let kv_shape = [keys, geometry.kv_heads, geometry.head_dim];
        let (k, v) = (case.shaped("k", &kv_shape)?, case.shaped("v", &kv_shape)?);
        // queries as the decoder has them: the front of a packed QKV row, here with poison behind
        let width = geometry.heads * geometry.head_dim;
        let q_stride = width + 2 * geometry.kv_heads * geometry.head_dim;
        let mut q = vec![f32::NAN; count(&[rows, q_stride])?];
        for (row, packed) in q.chunks_exact_mut(q_stride.max(1)).zip(packed.chunks_exact(width.max(1))) {
            row[..width].copy_from_slice(packed);
        }
        Ok(Self { geometry, votes, decode, seqs, q, q_stride, rows, k, v })
    }

    /// Cache formats that hold K and V exactly, so that all runs have the same inputs; fp16, rounding, where none does.
    fn formats(&self) -> Vec<KvFormat> {
        let exact = |format: &KvFormat| self.k.iter().chain(&self.v).all(|&x| format.decode(format.encode(x)) == x);
        let mut formats = vec![KvFormat::Fp16, KvFormat::Bf16];
        formats.retain(exact);
        if formats.is_empty() { vec![KvFormat::Fp16] } else { formats }
    }

    fn phase(&self) -> Phase {
        if self.decode { Phase::Decode } else { Phase::Prefill }
    }

    fn kept_shape(&self, i: usize) -> Vec<usize> {
        let s = &self.seqs[i];
        if self.decode {
            return vec![self.geometry.kv_heads, s.kv_len.div_ceil(self.votes.run)];
        }
        let tiles = if s.q_len == 0 { 0 } else { (s.q_start + s.q_len - 1) / self.votes.rows - s.q_start / self.votes.rows + 1 };
        vec![self.geometry.heads, tiles, s.kv_len.div_ceil(self.votes.keys)]
    }

    fn run(&self, format: KvFormat, kernel: Kernel<'_>, pool: &Pool) -> Result<Answer> {
        let layout = PageLayout { kv_heads: self.geometry.kv_heads, head_dim: self.geometry.head_dim, format };
        let pages: usize = self.seqs.iter().map(|s| s.kv_len.div_ceil(PAGE)).sum();
        let order = shuffled(pages + 3);
        let nan = match format {
            KvFormat::Bf16 => bf16::NAN.to_bits(),
            _ => f16::NAN.to_bits(),
        };
        let size = count(&[order.len(), layout.page_len()])?;
        let (mut k, mut v) = (vec![nan; size], vec![nan; size]);
        let (mut tables, mut next, mut token) = (Vec::new(), 0, 0);
        let row_len = self.geometry.head_dim;
        for s in &self.seqs {
            let table = &order[next..next + s.kv_len.div_ceil(PAGE)];
            next += table.len();
            for key in 0..s.kv_len {
                for head in 0..self.geometry.kv_heads {
                    let from = ((token + key) * self.geometry.kv_heads + head) * row_len;
                    let to = layout.offset(table[key / PAGE], head, key % PAGE);
                    for i in 0..row_len {
                        k[to + i] = format.encode(self.k[from + i]);
                        v[to + i] = format.encode(self.v[from + i]);
                    }
                }
            }
            token += s.kv_len;
            tables.push(table);
        }
        let seqs: Vec<AttnSeq<'_>> = self
            .seqs
            .iter()
            .zip(&tables)
            .map(|(s, table)| AttnSeq {
                row: s.row,
                q_len: s.q_len,
                q_start: s.q_start,
                kv_len: s.kv_len,
                block_table: table,
                ln_lambda: s.ln_lambda,
            })
            .collect();
        let mut answer = Answer {
            out: vec![f32::NAN; self.rows * self.geometry.heads * row_len],
            lse: vec![f32::NAN; self.rows * self.geometry.heads],
            kept: vec![Vec::new(); seqs.len()],
            mass_share: Vec::new(),
        };
        let mut counters = vec![SkipCounters::default(); seqs.len()];
        let mut call = AttnCall {
            geometry: self.geometry,
            q: &self.q,
            q_stride: self.q_stride,
            kv: KvView { layout, k: &k, v: &v },
            seqs: &seqs,
            out: &mut answer.out,
            lse: Some(&mut answer.lse),
            kept: Some(&mut answer.kept),
            counters: &mut counters,
        };
        let scalar = matches!(kernel, Kernel::Scalar);
        match (kernel, self.decode) {
            (Kernel::Scalar, false) => reference::prefill(&mut call, &self.votes)?,
            (Kernel::Scalar, true) => reference::decode(&mut call, &self.votes)?,
            (Kernel::Simd(isa), false) => cpu::attention::prefill_on(isa, &mut call, pool)?,
            (Kernel::Simd(isa), true) => cpu::attention::decode_on(isa, &mut call, pool)?,
            (Kernel::Cuda(attend), _) => attend.run(self.phase(), &mut call)?,
        }
        if scalar {
            let kept = call.kept.take().map(|k| k.to_vec()).unwrap_or_default();
            answer.mass_share =
                kept.iter().enumerate().map(|(i, kept)| reference::mass_share(&call, i, kept, &self.votes, self.decode)).collect();
        }
        for (i, (counters, kept)) in counters.iter().zip(&answer.kept).enumerate() {
            let skips = kept.iter().filter(|&&k| k == 0).count() as u64;
            ensure!(counters.skipped == skips, "sequence {i} counts {} skips and votes {skips}", counters.skipped);
        }
        Ok(answer)
    }

    /// Compares with the file's expectations, where it has them.
    fn compare(&self, case: &CaseFile<'_>, name: &str, answer: &Answer, tolerance: Tolerance, result: &mut Replayed) -> Result<()> {
        let width = [self.rows, self.geometry.heads, self.geometry.head_dim];
        let mut line = vec![format!("{name} ran, skipped {:.3}", self.skipped(answer))];
        if case.expected::<f32>("out")?.is_some() {
            let error = self.output_error(&answer.out, &case.shaped("out", &width)?);
            check(error, tolerance.out, &format!("{name} out error"), result);
            line.push(format!("out {error:.1e}"));
        }
        if case.expected::<f32>("lse")?.is_some() {
            let error = max_error(&answer.lse, &case.shaped("lse", &width[..2])?);
            check(error, tolerance.lse, &format!("{name} lse error"), result);
            line.push(format!("lse {error:.1e}"));
        }
        let (mut votes, mut equal) = (0, 0);
        for (i, kept) in answer.kept.iter().enumerate() {
            let tensor = format!("kept_{i}");
            if case.expected::<u8>(&tensor)?.is_none() {
                continue;
            }
            let expected: Vec<u8> = case.shaped(&tensor, &self.kept_shape(i))?;
            votes += expected.len();
            equal += expected.iter().zip(kept).filter(|(a, b)| a == b).count();
        }
        if votes > 0 {
            line.push(format!("votes {equal}/{votes}"));
            if equal != votes {
                result.failures.push(format!("{name}: {} of {votes} votes differ", votes - equal));
            }
        }
        result.lines.push(line.join(" "));
        Ok(())
    }

    /// Two implementations must agree with each other as with the file.
    fn agree(&self, name: &str, reference: &Answer, other: &Answer, tolerance: Tolerance, result: &mut Replayed) {
        check(self.output_error(&other.out, &reference.out), tolerance.out, &format!("{name} against scalar, out"), result);
        check(max_error(&other.lse, &reference.lse), tolerance.lse, &format!("{name} against scalar, lse"), result);
        if reference.kept != other.kept {
            result.failures.push(format!("{name} votes otherwise than scalar"));
        }
    }

    /// The worst sequence's relative L2 error.
    fn output_error(&self, out: &[f32], expected: &[f32]) -> f64 {
        let width = self.geometry.heads * self.geometry.head_dim;
        let rows = |x: &Seq| x.row * width..(x.row + x.q_len) * width;
        self.seqs.iter().map(|s| relative_l2(&out[rows(s)], &expected[rows(s)])).fold(0.0, f64::max)
    }

    fn skipped(&self, answer: &Answer) -> f64 {
        share(&answer.kept.concat())
    }
}

fn check(error: f64, bound: f64, what: &str, result: &mut Replayed) {
    if error > bound || error.is_nan() {
        result.failures.push(format!("{what} {error:.2e} above {bound:.0e}"));
    }
}

/// `0..n` in a fixed random order (xorshift).
fn shuffled(n: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    for i in (1..n).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(i, (state % (i as u64 + 1)) as usize);
    }
    order
}
