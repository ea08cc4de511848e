//! A long prompt of real text: every layer's attention on the device against the CPU's on the same queries, keys and values, vote by vote;
//! then the whole model on the device against the CPU's, layer shares and logits.

use crate::rig::{argmax, checkpoint, cpu, cuda, encode, repository};
use crate::tap::{Layers, Other, Tap};
use skip_engine::checkpoint::Checkpoint;
use skip_engine::decoder::{Decoder, DecoderLimits};
use skip_engine::engine::StepModel;
use skip_kernels::attention::SkipCounters;
use skip_kernels::backend::{SeqStep, StepReport, TableSlot};
use skip_kernels::cpu::{Precision, attention, pool::Pool};
use skip_kernels::cuda::{Activations, Attend, CudaOptions};
use skip_kernels::sampling::SamplingParams;
use skip_kernels::{Backend, KvFormat, PAGE, Phase, ScaleTable};
use std::path::Path;
use std::time::Instant;

const CHUNK: usize = 8192;

/// Sources of this repository, or the file that `SKIPD_TEST_TEXT` names: `tokens` of it.
fn text(checkpoint: &Checkpoint, tokens: usize) -> Vec<u32> {
    let text = match std::env::var_os("SKIPD_TEST_TEXT") {
        Some(file) => std::fs::read_to_string(file).unwrap(),
        None => {
            let mut files = Vec::new();
            ["kernels", "daemon", "client", "tables", "docs"].iter().for_each(|f| sources(&repository().join(f), &mut files));
            files.sort();
            files.iter().map(|f| std::fs::read_to_string(f).unwrap()).collect()
        }
    };
    let mut ids = encode(checkpoint, &text);
    assert!(ids.len() >= tokens, "{} tokens of text", ids.len());
    ids.truncate(tokens);
    ids
}

fn sources(folder: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "cu" || e == "cuh" || e == "md") {
            files.push(path);
        }
    }
}

/// Prefills all of `tokens` but the last few, which are decoded as if drawn; votes by phase and the last logits.
fn run<B: Backend>(
    backend: B,
    checkpoint: &Checkpoint,
    tokens: &[u32],
    decoded: usize,
    tables: &[ScaleTable; 2],
) -> ([SkipCounters; 2], Vec<f32>) {
    let pages = tokens.len().div_ceil(PAGE);
    let limits = DecoderLimits { rows: CHUNK + 64, seqs: 1, pages, context: tokens.len(), kv_format: KvFormat::Fp16 };
    let mut model = Decoder::load(backend, checkpoint, &limits, &mut |_| {}).unwrap();
    for (slot, table) in tables.iter().enumerate() {
        model.set_table(TableSlot(slot as u16), table).unwrap();
    }
    // Pages backwards: any order must do.
    let block_table: Vec<u32> = (0..pages as u32).rev().collect();
    let (greedy, prompt) = (SamplingParams::default(), tokens.len() - decoded);
    let mut votes = [SkipCounters::default(); 2];
    let mut start = 0;
    while start < tokens.len() {
        let decode = start >= prompt;
        let end = if decode { start + 1 } else { (start + CHUNK).min(prompt) };
        let step = SeqStep {
            tokens: &tokens[start..end],
            start,
            final_len: if decode { end } else { prompt },
            phase: if decode { Phase::Decode } else { Phase::Prefill },
            table: Some(TableSlot(u16::from(decode))),
            block_table: &block_table[..end.div_ceil(PAGE)],
            sample: (end >= prompt).then_some(&greedy),
            measure: false,
        };
        let mut report = StepReport::default();
        model.step(&[step], &mut || false, &mut report).unwrap();
        votes[usize::from(decode)] += report.counters[0];
        start = end;
    }
    (votes, model.backend().logits().remove(0))
}

fn table(s: f32) -> ScaleTable {
    ScaleTable::new(vec![(1024, s).into()], None).unwrap()
}

/// Runs the CPU's model with `other` beside it. Gives its last logits.
fn tapped(other: Other, model: &str, tokens: usize, decoded: usize, scales: [f32; 2], look_at: usize) -> (Vec<f32>, [f64; 2]) {
    let checkpoint = checkpoint(model);
    let ids = text(&checkpoint, tokens);
    let layers = Layers::default();
    let began = Instant::now();
    let tap = Tap::new(cpu(Precision::Auto), other, layers.clone(), look_at);
    let (_, logits) = run(tap, &checkpoint, &ids, decoded, &scales.map(table));
    println!("{model}: {tokens} tokens, {decoded} of them decoded, in {:.0?} on the CPU and beside it", began.elapsed());
    let layers = layers.lock().unwrap();
    let mut shares = [0.0; 2];
    for (phase, layers) in ["prefill", "decode"].iter().zip(layers.iter()) {
        let mut all = crate::tap::Layer::default();
        for (i, layer) in layers.iter().enumerate() {
            let [cpu, other] = layer.skipped.map(|s| 100.0 * s as f64 / layer.votes.max(1) as f64);
            println!(
                "  {phase} layer {i:2}: {} votes, skipped {cpu:.3} % and {other:.3} %, {} turned, worst {:.2} of rounding, output {:.1e}",
                layer.votes, layer.turned, layer.worst, layer.out
            );
            all.add(layer);
        }
        shares[usize::from(*phase == "decode")] = all.skipped[0] as f64 / all.votes.max(1) as f64;
        println!("  {phase}: {all:?}");
        assert!(0 < all.skipped[0] && all.skipped[0] < all.votes, "{phase}: nothing or everything was skipped");
        assert!(all.worst <= 1.0, "{phase}: a vote turned although its gap was clear: {all:?}");
        assert!(all.turned * 1000 <= all.votes + 1000, "{phase}: too many votes turned: {all:?}");
        assert!(all.out <= 1e-2, "{phase}: outputs differ: {all:?}");
    }
    (logits, shares)
}

/// The largest difference over the eight most likely of `a`.
fn top8(a: &[f32], b: &[f32]) -> f32 {
    let mut order: Vec<usize> = (0..a.len()).collect();
    order.sort_by(|&x, &y| a[y].total_cmp(&a[x]));
    order[..8].iter().map(|&i| (a[i] - b[i]).abs()).fold(0.0, f32::max)
}

/// `SKIP_LONG_MODEL` and `SKIP_LONG_TOKENS` choose another checkpoint and length.
#[test]
#[ignore = "needs a CUDA device, target/cubins and many cores"]
fn cuda_long_prompt() {
    let model = std::env::var("SKIP_LONG_MODEL").unwrap_or_else(|_| "qwen2.5-coder-0.5b".into());
    let tokens = std::env::var("SKIP_LONG_TOKENS").ok().and_then(|t| t.parse().ok()).unwrap_or(32_000);
    // About half of the tiles and nine tenths of the runs, for these checkpoints.
    let (decoded, scales) = (3, [tokens as f32 / 16.0, tokens as f32 / 50.0]);
    let mut attend = Attend::open(&CudaOptions::new(Activations::Fp16)).unwrap();
    let (cpu, cpu_shares) = tapped(Box::new(move |phase, call| attend.run(phase, call)), &model, tokens, decoded, scales, 24);

    let checkpoint = checkpoint(&model);
    let (votes, logits) = run(cuda(), &checkpoint, &text(&checkpoint, tokens), decoded, &scales.map(table));
    let worst = top8(&cpu, &logits);
    let shares = votes.map(|v| v.share());
    println!("{model}: the whole model skips {shares:.4?}, on the CPU {cpu_shares:.4?}; top-8 logits differ by at most {worst:.3}");
    for (a, b) in shares.iter().zip(cpu_shares) {
        assert!((a - b).abs() < 0.01, "{shares:?} and {cpu_shares:?}");
    }
    // Activations are rounded otherwise there, so votes near the threshold turn, and what they leave out adds up over layers.
    assert!(worst < 1.0, "a logit is off by {worst}");
    let (a, b) = (argmax(&cpu), argmax(&logits));
    assert!(a == b || cpu[a as usize] - cpu[b as usize] < 2.0 * worst, "another token although its lead was clear");
}

/// The comparison without a device: the CPU's lesser kernels stand for it.
#[test]
fn layers_agree_with_another_instruction_set() {
    let isa = *attention::Isa::available().last().unwrap();
    let pool = Pool::new(2);
    let other: Other = Box::new(move |phase, call| match phase {
        Phase::Prefill => attention::prefill_on(isa, call, &pool),
        Phase::Decode => attention::decode_on(isa, call, &pool),
    });
    tapped(other, "smollm2", 1500, 2, [900.0, 60.0], 4);
}
