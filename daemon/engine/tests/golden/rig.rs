//! Checkpoints, and a decoder driven step by step without the scheduler.

use skip_engine::checkpoint::Checkpoint;
use skip_engine::decoder::{Decoder, DecoderLimits};
use skip_engine::engine::StepModel;
use skip_engine::tokenizer::Tokenizer;
use skip_kernels::backend::{SeqStep, StepReport, TableSlot};
use skip_kernels::cpu::{CpuBackend, CpuOptions, Precision};
use skip_kernels::cuda::{Activations, CudaBackend, CudaOptions};
use skip_kernels::sampling::SamplingParams;
use skip_kernels::{Backend, KvFormat, PAGE, Phase, ScaleTable};
use std::path::PathBuf;
use std::sync::Arc;

/// Tokens the rig's cache holds for one sequence.
pub const CONTEXT: usize = 4096;
/// Sequences of a rig.
pub const SEQS: usize = 4;

/// The repository; on a machine that did not build the tests, `$SKIPD_TEST_ROOT`.
pub fn repository() -> PathBuf {
    let root = std::env::var_os("SKIPD_TEST_ROOT").map(PathBuf::from);
    root.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")))
}

/// Opens the imported checkpoint `name`.
pub fn checkpoint(name: &str) -> Arc<Checkpoint> {
    let models = std::env::var_os("SKIPD_TEST_MODELS").map(PathBuf::from);
    let cache = std::env::var_os("SKIPD_CACHE").map_or_else(|| repository().join(".cache"), PathBuf::from);
    let dir = models.unwrap_or_else(|| cache.join("models")).join(name);
    let opened = Checkpoint::open(&dir);
    Arc::new(opened.unwrap_or_else(|e| panic!("{}: {e}; `tools/fetch-model {name}` makes it", dir.display())))
}

/// The tokenizer's ids of `text`, special tokens written out.
pub fn encode(checkpoint: &Checkpoint, text: &str) -> Vec<u32> {
    let tokenizer = Tokenizer::open(checkpoint.dir(), checkpoint.architecture().vocab).unwrap();
    tokenizer.encode(text, false).unwrap()
}

/// A decoder and one block table for each of a few sequences.
pub struct Rig<B: Backend> {
    pub decoder: Decoder<B>,
    tables: Vec<Vec<u32>>,
    greedy: SamplingParams,
}

/// One sequence's part in a step: which, its tokens so far, where the step begins, and whether its logits are wanted.
pub struct Part<'a> {
    pub seq: usize,
    /// The prompt's length: what comes behind it is decoded.
    pub prompt: usize,
    pub tokens: &'a [u32],
    pub start: usize,
    pub table: Option<TableSlot>,
    pub sample: bool,
}

/// The CPU.
pub fn cpu(precision: Precision) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: None, precision })
}

/// The first CUDA device.
pub fn cuda() -> CudaBackend {
    CudaBackend::new(CudaOptions::new(Activations::Bf16)).unwrap()
}

impl<B: Backend> Rig<B> {
    pub fn new(checkpoint: &Checkpoint, backend: B) -> Self {
        let pages = CONTEXT / PAGE;
        let limits = DecoderLimits { rows: CONTEXT + SEQS, seqs: SEQS, pages: pages * SEQS, context: CONTEXT, kv_format: KvFormat::Fp16 };
        let decoder = Decoder::load(backend, checkpoint, &limits, &mut |_| {}).unwrap();
        // Pages of the sequences alternate, so that a wrong block table would show.
        let tables = (0..SEQS).map(|s| (0..pages).map(|p| (p * SEQS + s) as u32).collect()).collect();
        Self { decoder, tables, greedy: SamplingParams::default() }
    }

    pub fn set_table(&mut self, slot: u16, rows: &[(u32, f32)]) -> TableSlot {
        let table = ScaleTable::new(rows.iter().map(|&r| r.into()).collect(), None).unwrap();
        self.decoder.set_table(TableSlot(slot), &table).unwrap();
        TableSlot(slot)
    }

    pub fn step(&mut self, parts: &[Part<'_>]) -> StepReport {
        let steps: Vec<SeqStep<'_>> = parts
            .iter()
            .map(|p| {
                let decode = p.start >= p.prompt;
                SeqStep {
                    tokens: &p.tokens[p.start..],
                    start: p.start,
                    final_len: if decode { p.tokens.len() } else { p.prompt },
                    phase: if decode { Phase::Decode } else { Phase::Prefill },
                    table: p.table,
                    block_table: &self.tables[p.seq],
                    sample: p.sample.then_some(&self.greedy),
                    measure: false,
                }
            })
            .collect();
        let mut report = StepReport::default();
        self.decoder.step(&steps, &mut || false, &mut report).unwrap();
        report
    }

    /// Logits of the last step's sampled rows.
    pub fn logits(&self) -> Vec<Vec<f32>> {
        self.decoder.backend().logits()
    }
}

/// Index of the largest.
pub fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a))).unwrap() as u32
}
