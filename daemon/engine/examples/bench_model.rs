//! Times the decoder on a checkpoint, one measurement a line of standard input, so that a driver can take turns with another program.
//!
//! `prefill N` runs a prompt of N tokens in chunks and draws one token; `decode N COUNT` then draws COUNT more after a prompt of N.
//! Each answer is a line of JSON; end of input ends the program.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use skip_engine::checkpoint::Checkpoint;
use skip_engine::decoder::{Decoder, DecoderLimits};
use skip_engine::engine::StepModel;
use skip_kernels::backend::{SeqStep, StepReport};
use skip_kernels::cpu::{CpuBackend, CpuOptions, Precision};
use skip_kernels::pages::KvFormat;
use skip_kernels::sampling::SamplingParams;
use skip_kernels::{PAGE, Phase};

/// Processor seconds of the whole process so far, in all threads.
fn processor_seconds() -> anyhow::Result<f64> {
    let ticks = std::fs::read_to_string("/proc/self/stat")?;
    // Fields behind the name in parentheses: user and system time are the 14th and 15th of all, in hundredths.
    let fields: Vec<&str> = ticks.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).context("/proc/self/stat");
    Ok((field(11)? + field(12)?) / 100.0)
}

/// Longest prompt and answer together.
const CONTEXT: usize = 8192 + 512;

struct Bench {
    model: Decoder<CpuBackend>,
    pages: Vec<u32>,
    vocab: usize,
    chunk: usize,
}

impl Bench {
    fn step(&mut self, tokens: &[u32], start: usize, final_len: usize, phase: Phase, sample: bool) -> anyhow::Result<(u32, f64)> {
        let greedy = SamplingParams::default();
        let block_table = &self.pages[..(start + tokens.len()).div_ceil(PAGE)];
        let seq = SeqStep { tokens, start, final_len, phase, table: None, block_table, sample: sample.then_some(&greedy) };
        let mut report = StepReport::default();
        self.model.step(&[seq], &mut || false, &mut report)?;
        let token = report.sampled.first().cloned().flatten().map_or(0, |s| s.token);
        Ok((token, report.attention_seconds))
    }

    /// Runs a prompt; seconds in all and in attention, and the first token.
    fn prefill(&mut self, len: usize) -> anyhow::Result<(f64, f64, u32)> {
        let prompt: Vec<u32> = (0..len).map(|i| ((i * 7919 + 13) % (self.vocab - 1000)) as u32 + 500).collect();
        let began = Instant::now();
        let (mut attention, mut token) = (0.0, 0);
        for (i, chunk) in prompt.chunks(self.chunk).enumerate() {
            let start = i * self.chunk;
            let (drawn, seconds) = self.step(chunk, start, len, Phase::Prefill, start + chunk.len() == len)?;
            (token, attention) = (drawn, attention + seconds);
        }
        Ok((began.elapsed().as_secs_f64(), attention, token))
    }

    fn measure_prefill(&mut self, len: usize) -> anyhow::Result<serde_json::Value> {
        let processor = processor_seconds()?;
        let (seconds, attention, token) = self.prefill(len)?;
        Ok(serde_json::json!({
            "seconds": seconds, "attention": attention, "token": token, "processor": processor_seconds()? - processor,
        }))
    }

    /// The times of `count` decode steps after a prompt, and their seconds in attention.
    fn measure_decode(&mut self, len: usize, count: usize) -> anyhow::Result<serde_json::Value> {
        let (_, _, mut token) = self.prefill(len)?;
        let processor = processor_seconds()?;
        let (mut times, mut attention) = (Vec::with_capacity(count), 0.0);
        for i in 0..count {
            let began = Instant::now();
            let (drawn, seconds) = self.step(&[token], len + i, len + i + 1, Phase::Decode, true)?;
            times.push(began.elapsed().as_secs_f64());
            (token, attention) = (drawn, attention + seconds);
        }
        Ok(serde_json::json!({"times": times, "attention": attention, "processor": processor_seconds()? - processor}))
    }
}

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args_os().skip(1);
    let usage = "usage: bench_model DIR THREADS float32|bfloat16|auto CHUNK";
    let dir: PathBuf = args.next().context(usage)?.into();
    let mut word = || args.next().and_then(|a| a.into_string().ok()).context(usage);
    let threads: usize = word()?.parse()?;
    let precision = match word()?.as_str() {
        "float32" => Precision::Float32,
        "bfloat16" => Precision::Bfloat16,
        "auto" => Precision::Auto,
        other => bail!("precision {other}: {usage}"),
    };
    let chunk: usize = word()?.parse()?;

    let began = Instant::now();
    let checkpoint = Checkpoint::open(&dir)?;
    let pages = CONTEXT.div_ceil(PAGE);
    let limits = DecoderLimits { rows: chunk, seqs: 1, pages, context: CONTEXT, kv_format: KvFormat::Fp16 };
    let backend = CpuBackend::new(CpuOptions { threads: Some(threads), precision });
    let model = Decoder::load(backend, &checkpoint, &limits, &mut |_| {})?;
    let load = began.elapsed().as_secs_f64();
    let info = StepModel::backend(&model);
    let mut out = std::io::stdout();
    writeln!(out, "{}", serde_json::json!({"load": load, "device": info.device, "kernels": info.kernel_set, "threads": info.parallelism}))?;
    let mut bench = Bench { model, pages: (0..pages as u32).collect(), vocab: checkpoint.architecture().vocab, chunk };
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let answer = match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["prefill", len] => bench.measure_prefill(len.parse()?)?,
            ["decode", len, count] => bench.measure_decode(len.parse()?, count.parse()?)?,
            _ => bail!("{line}: prefill N, or decode N COUNT"),
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}
