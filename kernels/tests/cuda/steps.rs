//! Whole steps through the [`Backend`]: mixed batches in shuffled, poisoned pages under several tables, each sampled row and every count
//! of votes compared with the CPU's.
//!
//! Rows of an "embedding" are packed QKV rows, the rotation turns by nothing, and the "head" is the unit matrix: so the logits are
//! attention's output.

use crate::fixture::Random;
use crate::script::{MAX_ROWS, MAX_SEQS, Part, Script};
use crate::{setting, threads};
use half::bf16;
use skip_kernels::attention::SkipCounters;
use skip_kernels::backend::{MatrixSource, QkvStore, Rope, SeqStep, StepReport, TableSlot, WeightFormat};
use skip_kernels::cpu::{CpuBackend, CpuOptions, Precision};
use skip_kernels::cuda::{Activations, CudaBackend, CudaOptions};
use skip_kernels::files::WeightFile;
use skip_kernels::pages::PageLayout;
use skip_kernels::sampling::SamplingParams;
use skip_kernels::{Backend, KernelError, PAGE, Phase};

/// Relative L2 error of an output row in bfloat16.
const OUT: f64 = 8e-3;

/// What a step gave: votes of each part, and the sampled parts' outputs.
#[derive(PartialEq)]
struct Given {
    votes: Vec<SkipCounters>,
    rows: Vec<Vec<f32>>,
}

fn matrix(rows: usize, cols: usize, values: &[u16]) -> MatrixSource {
    let mut map = memmap2::MmapMut::map_anon(values.len() * 2).unwrap();
    map.copy_from_slice(bytemuck::cast_slice(values));
    let file = WeightFile::of_memory(map.make_read_only().unwrap());
    MatrixSource { rows, cols, format: WeightFormat::Bf16, range: 0..values.len() * 2, file: std::sync::Arc::new(file) }
}

struct Player<'a, B: Backend> {
    backend: B,
    script: &'a Script,
    embedding: B::Matrix,
    head: B::Matrix,
    qkv: B::Tensor,
    out: B::Tensor,
    tail: B::Tensor,
    pool: B::KvPool,
    rope: B::RopeTable,
    parts: usize,
}

impl<'a, B: Backend> Player<'a, B> {
    fn new(mut backend: B, script: &'a Script) -> Result<Self, KernelError> {
        let g = script.geometry;
        let (width, out) = (script.width(), g.heads * g.head_dim);
        let mut unit = vec![0u16; out * out];
        unit.iter_mut().step_by(out + 1).for_each(|x| *x = bf16::ONE.to_bits());
        let layout = PageLayout { kv_heads: g.kv_heads, head_dim: g.head_dim, format: script.format };
        let longest = script.seqs.iter().map(|s| s.tokens.len()).max().unwrap_or(0).max(MAX_ROWS);
        for (slot, table) in script.tables.iter().enumerate() {
            backend.set_table(TableSlot(slot as u16), table)?;
        }
        Ok(Self {
            embedding: backend.lookup_table(&matrix(script.rows.len() / width, width, &script.rows))?,
            head: backend.matrix(&[matrix(out, out, &unit)])?,
            qkv: backend.wide(MAX_ROWS, width)?,
            out: backend.tensor(MAX_ROWS, out)?,
            tail: backend.tensor(MAX_SEQS, out)?,
            pool: backend.kv_pool(layout, script.pages)?,
            rope: backend.rope_table(&Rope { inv_freq: vec![0.0; g.head_dim / 2], factor: 1.0 }, longest)?,
            backend,
            script,
            parts: 0,
        })
    }

    fn step(&mut self, seqs: &[SeqStep<'_>]) -> Result<StepReport, KernelError> {
        let g = self.script.geometry;
        let b = &mut self.backend;
        b.begin_step(seqs)?;
        b.embed(&self.embedding, 1.0, &mut self.qkv)?;
        b.qkv_store(&mut self.qkv, &QkvStore { geometry: g, bias: None, qk_norm: None, rope: &self.rope }, &mut self.pool)?;
        b.attention(&self.qkv, &g, &self.pool, &mut self.out)?;
        b.last_rows(&self.out, &mut self.tail)?;
        let mut report = StepReport::default();
        b.sample(&self.tail, &self.head)?;
        b.finish(&mut report)?;
        Ok(report)
    }

    /// Leaves NaN keys and values in every slot of every page, as an owner before might.
    fn poison(&mut self) -> Result<(), KernelError> {
        let pages: Vec<u32> = (0..self.script.pages as u32).collect();
        let tokens = vec![self.script.poison(); MAX_ROWS];
        for block_table in pages.chunks(MAX_ROWS / PAGE) {
            let tokens = &tokens[..block_table.len() * PAGE];
            let seq = SeqStep {
                tokens,
                start: 0,
                final_len: tokens.len(),
                phase: Phase::Prefill,
                table: None,
                block_table,
                sample: None,
                measure: false,
            };
            self.step(&[seq])?;
        }
        Ok(())
    }

    fn part(&mut self, parts: &[Part]) -> Result<Given, KernelError> {
        let greedy = SamplingParams::default();
        let script = self.script;
        let seqs = parts.iter().map(|part| {
            let seq = &script.seqs[part.seq];
            let end = part.start + part.len;
            let (table, final_len) = if part.phase == Phase::Decode { (seq.decode, end) } else { (seq.prefill, seq.prompt) };
            SeqStep {
                tokens: &seq.tokens[part.start..end],
                start: part.start,
                final_len,
                phase: part.phase,
                table: table.map(TableSlot),
                block_table: &seq.pages,
                sample: part.sample.then_some(&greedy),
                measure: false,
            }
        });
        let seqs = seqs.collect::<Vec<_>>();
        self.parts += 1;
        if self.parts.is_multiple_of(4) {
            // A step that is given up, as one aborted between layers is.
            self.backend.begin_step(&seqs)?;
            self.backend.embed(&self.embedding, 1.0, &mut self.qkv)?;
        }
        let report = self.step(&seqs)?;
        let sampled = parts.iter().filter(|p| p.sample).count();
        let rows = if sampled == 0 { Vec::new() } else { self.backend.logits() };
        assert_eq!((report.counters.len(), rows.len()), (parts.len(), sampled), "parts and rows of a step");
        Ok(Given { votes: report.counters, rows })
    }
}

fn play<B: Backend>(backend: B, script: &Script) -> Result<Vec<Given>, KernelError> {
    let mut player = Player::new(backend, script)?;
    player.poison()?;
    script.steps.iter().map(|parts| player.part(parts)).collect()
}

#[derive(Debug, Default)]
struct Tally {
    scripts: usize,
    steps: usize,
    largest_batch: usize,
    rows: usize,
    votes: u64,
    skipped: u64,
    turned: u64,
    out: f64,
}

fn compare(script: &Script, device: &[Given], cpu: &[Given], tally: &mut Tally) {
    tally.scripts += 1;
    for (at, ((a, b), parts)) in device.iter().zip(cpu).zip(&script.steps).enumerate() {
        tally.steps += 1;
        tally.largest_batch = tally.largest_batch.max(parts.len());
        let mut rows = a.rows.iter().zip(&b.rows);
        for (part, (a, b)) in parts.iter().zip(a.votes.iter().zip(&b.votes)) {
            let what = || format!("script {}, step {at}: {:?} of {} rows from {}", script.seed, part.phase, part.len, part.start);
            let turned = a.skipped.abs_diff(b.skipped);
            assert!(a.votes == b.votes && turned * 200 <= b.votes + 200, "{}: {a:?}, on the CPU {b:?}", what());
            // Of a sequence's last run the device counts the keys that are not there.
            let most = (script.geometry.kv_heads * 31 * script.geometry.head_dim * 2) as u64;
            let beyond = a.bytes_not_read.checked_sub(b.bytes_not_read);
            assert!(turned > 0 || beyond.is_some_and(|bytes| bytes <= most), "{}: {a:?}, on the CPU {b:?}", what());
            (tally.votes, tally.skipped, tally.turned) = (tally.votes + b.votes, tally.skipped + b.skipped, tally.turned + turned);
            if !part.sample {
                continue;
            }
            let (a, b) = rows.next().unwrap();
            let error: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            let norm: f64 = b.iter().map(|b| f64::from(*b).powi(2)).sum();
            let out = (error / norm).sqrt();
            assert!(out <= OUT || turned > 0, "{}: output error {out:e}", what());
            tally.rows += 1;
            tally.out = tally.out.max(if turned > 0 { 0.0 } else { out });
        }
    }
}

fn check<B: Backend>(rounds: u64, longest: usize, device: impl Fn() -> B) {
    let mut tally = Tally::default();
    let first = setting("SKIP_SEED", 1);
    for seed in first..first + rounds {
        let script = Script::new(seed, longest);
        let cpu = CpuBackend::new(CpuOptions { threads: Some(threads()), precision: Precision::Float32 });
        let cpu = play(cpu, &script).unwrap();
        let given = play(device(), &script).unwrap_or_else(|e| panic!("script {seed}: {e}"));
        compare(&script, &given, &cpu, &mut tally);
    }
    println!("steps: {tally:?}");
    assert!(0 < tally.skipped && tally.skipped < tally.votes, "nothing or everything was skipped");
    assert!(tally.turned * 5000 <= tally.votes + 25_000, "{} of {} votes turned", tally.turned, tally.votes);
}

#[test]
#[ignore = "needs a CUDA device and target/cubins"]
fn cuda_steps_agree_with_the_cpu() {
    check(setting("SKIP_ROUNDS", 12), 1500, || CudaBackend::new(CudaOptions::new(Activations::Bf16)).unwrap());
}

/// As few and short as a sanitizer takes.
#[test]
#[ignore = "needs a CUDA device and target/cubins"]
fn cuda_small_steps_agree_with_the_cpu() {
    check(setting("SKIP_ROUNDS", 2), 200, || CudaBackend::new(CudaOptions::new(Activations::Bf16)).unwrap());
}

/// The comparison itself, without a device: another precision stands for it.
#[test]
fn the_cpu_agrees_with_itself() {
    check(4, 300, || CpuBackend::new(CpuOptions { threads: Some(1), precision: Precision::Bfloat16 }));
}

#[test]
fn a_script_runs_every_sequence_to_its_end_and_shares_no_page() {
    let script = Script::new(Random::new(3).below(100) as u64, 700);
    let mut pages: Vec<u32> = script.seqs.iter().flat_map(|s| s.pages.clone()).collect();
    let all = pages.len();
    pages.sort_unstable();
    pages.dedup();
    assert_eq!(pages.len(), all);
    let rows: usize = script.steps.iter().flatten().map(|p| p.len).sum();
    assert_eq!(rows, script.seqs.iter().map(|s| s.tokens.len()).sum::<usize>());
}
