//! Times the decoder on a checkpoint, one measurement a line of standard input, so that a driver can take turns with another program.
//!
//! `prefill N` runs a prompt of N tokens in chunks and draws one token; `decode N COUNT` then draws COUNT more after a prompt of N.
//! `text FILE` takes prompts from a file's tokens, over and over, instead of numbers; `table PREFILL DECODE` sets S for the phases, 0 for dense;
//! `ahead on|off` says whether a decode step is started before the one before it is finished, as the engine does where the device allows it.
//! Each answer is a line of JSON; end of input ends the program.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use skip_engine::checkpoint::Checkpoint;
use skip_engine::decoder::{Decoder, DecoderLimits};
use skip_engine::engine::StepModel;
use skip_engine::tokenizer::Tokenizer;
use skip_kernels::attention::SkipCounters;
use skip_kernels::backend::{SeqStep, StepReport, TableSlot, drawn_by};
use skip_kernels::cpu::{CpuBackend, CpuOptions, Precision};
use skip_kernels::cuda::{Activations, CudaBackend, CudaOptions};
use skip_kernels::pages::KvFormat;
use skip_kernels::sampling::SamplingParams;
use skip_kernels::{Backend, PAGE, Phase, ScaleTable};

/// Processor seconds of the whole process so far, in all threads.
fn processor_seconds() -> anyhow::Result<f64> {
    let ticks = std::fs::read_to_string("/proc/self/stat")?;
    // Fields behind the name in parentheses: user and system time are the 14th and 15th of all, in hundredths.
    let fields: Vec<&str> = ticks.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).context("/proc/self/stat");
    Ok((field(11)? + field(12)?) / 100.0)
}

/// Longest prompt and answer together.
const CPU_CONTEXT: usize = 8192 + 512;
const GPU_CONTEXT: usize = 131_072 + 512;

struct Bench<B: Backend> {
    model: Decoder<B>,
    pages: Vec<u32>,
    vocab: usize,
    chunk: usize,
    text: Vec<u32>,
    tables: [Option<TableSlot>; 2],
    votes: SkipCounters,
    ahead: bool,
}

impl<B: Backend> Bench<B> {
    fn start(&mut self, tokens: &[u32], start: usize, final_len: usize, phase: Phase, sample: bool) -> anyhow::Result<()> {
        let greedy = SamplingParams::default();
        let block_table = &self.pages[..(start + tokens.len()).div_ceil(PAGE)];
        let table = self.tables[usize::from(phase == Phase::Decode)];
        let seq = SeqStep { tokens, start, final_len, phase, table, block_table, sample: sample.then_some(&greedy), measure: false };
        Ok(self.model.start(&[seq], &mut || false)?)
    }

    /// Its token, and what it reports.
    fn finish(&mut self) -> anyhow::Result<(u32, StepReport)> {
        let mut report = StepReport::default();
        self.model.finish(&mut report)?;
        self.votes += report.counters.first().copied().unwrap_or_default();
        Ok((report.sampled.first().cloned().flatten().map_or(0, |s| s.token), report))
    }

    /// Runs a prompt; seconds in all and in attention, and the first token.
    fn prefill(&mut self, len: usize) -> anyhow::Result<(f64, f64, u32)> {
        let number = |i: usize| ((i * 7919 + 13) % (self.vocab - 1000)) as u32 + 500;
        let token = |i: usize| if self.text.is_empty() { number(i) } else { self.text[i % self.text.len()] };
        let prompt: Vec<u32> = (0..len).map(token).collect();
        self.votes = SkipCounters::default();
        let began = Instant::now();
        let (mut attention, mut token) = (0.0, 0);
        for (i, chunk) in prompt.chunks(self.chunk).enumerate() {
            let start = i * self.chunk;
            self.start(chunk, start, len, Phase::Prefill, start + chunk.len() == len)?;
            let (drawn, report) = self.finish()?;
            (token, attention) = (drawn, attention + report.attention_seconds);
        }
        Ok((began.elapsed().as_secs_f64(), attention, token))
    }

    fn measure_prefill(&mut self, len: usize) -> anyhow::Result<serde_json::Value> {
        let processor = processor_seconds()?;
        let (seconds, attention, token) = self.prefill(len)?;
        Ok(serde_json::json!({
            "seconds": seconds, "attention": attention, "token": token, "skipped": self.votes.share(), "processor": processor_seconds()? - processor,
        }))
    }

    /// The times of `count` decode steps after a prompt, and their seconds in attention.
    fn measure_decode(&mut self, len: usize, count: usize) -> anyhow::Result<serde_json::Value> {
        let (_, _, mut token) = self.prefill(len)?;
        self.votes = SkipCounters::default();
        let processor = processor_seconds()?;
        let (mut times, mut host, mut attention) = (Vec::with_capacity(count), Vec::with_capacity(count), 0.0);
        let ahead = self.ahead && self.model.depth() > 1;
        let mut since = Instant::now();
        for i in 0..count {
            let at = len + i;
            if i == 0 || !ahead {
                self.start(&[token], at, at + 1, Phase::Decode, true)?;
            }
            if ahead && i + 1 < count {
                self.start(&[drawn_by(0)], at + 1, at + 2, Phase::Decode, true)?;
            }
            let (drawn, report) = self.finish()?;
            let now = Instant::now();
            let seconds = (now - since).as_secs_f64();
            times.push(seconds);
            host.push(seconds - report.device_seconds);
            (since, token, attention) = (now, drawn, attention + report.attention_seconds);
        }
        host.sort_by(f64::total_cmp);
        Ok(serde_json::json!({
            "times": times, "attention": attention, "skipped": self.votes.share(), "host": host.get(count / 2), "token": token,
            "processor": processor_seconds()? - processor,
        }))
    }
}

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args_os().skip(1);
    let usage = "usage: bench_model DIR THREADS float32|bfloat16|auto|cuda CHUNK";
    let dir: PathBuf = args.next().context(usage)?.into();
    let mut word = || args.next().and_then(|a| a.into_string().ok()).context(usage);
    let threads: usize = word()?.parse()?;
    let what = word()?;
    let chunk: usize = word()?.parse()?;
    let cpu = |precision| CpuBackend::new(CpuOptions { threads: Some(threads), precision });
    match what.as_str() {
        "float32" => serve(cpu(Precision::Float32), &dir, chunk, CPU_CONTEXT),
        "bfloat16" => serve(cpu(Precision::Bfloat16), &dir, chunk, CPU_CONTEXT),
        "auto" => serve(cpu(Precision::Auto), &dir, chunk, CPU_CONTEXT),
        "cuda" => serve(CudaBackend::new(CudaOptions::new(Activations::Bf16))?, &dir, chunk, GPU_CONTEXT),
        other => bail!("{other}: {usage}"),
    }
}

fn serve<B: Backend>(backend: B, dir: &Path, chunk: usize, context: usize) -> anyhow::Result<()> {
    let began = Instant::now();
    let checkpoint = Checkpoint::open(dir)?;
    let context = context.min(checkpoint.architecture().max_position_embeddings);
    let pages = context.div_ceil(PAGE);
    let limits = DecoderLimits { rows: chunk, seqs: 1, pages, context, kv_format: KvFormat::Fp16 };
    let model = Decoder::load(backend, &checkpoint, &limits, &mut |_| {})?;
    let load = began.elapsed().as_secs_f64();
    let info = StepModel::backend(&model);
    let mut out = std::io::stdout();
    writeln!(out, "{}", serde_json::json!({"load": load, "device": info.device, "kernels": info.kernel_set, "threads": info.parallelism}))?;
    let mut bench = Bench {
        model,
        pages: (0..pages as u32).collect(),
        vocab: checkpoint.architecture().vocab,
        chunk,
        text: Vec::new(),
        tables: [None; 2],
        votes: SkipCounters::default(),
        ahead: true,
    };
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let answer = match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["prefill", len] => bench.measure_prefill(len.parse()?)?,
            ["decode", len, count] => bench.measure_decode(len.parse()?, count.parse()?)?,
            ["text", file] => {
                let tokenizer = Tokenizer::open(checkpoint.dir(), checkpoint.architecture().vocab)?;
                bench.text = tokenizer.encode(&std::fs::read_to_string(file)?, false)?;
                serde_json::json!({"tokens": bench.text.len()})
            }
            ["table", prefill, decode] => {
                for (slot, s) in [prefill, decode].into_iter().enumerate() {
                    let s: f32 = s.parse()?;
                    let table = ScaleTable::new(vec![(1, s).into()], None)?;
                    bench.model.set_table(TableSlot(slot as u16), &table)?;
                    bench.tables[slot] = (s > 0.0).then_some(TableSlot(slot as u16));
                }
                serde_json::json!({"prefill": prefill, "decode": decode})
            }
            ["ahead", word] => {
                bench.ahead = word == "on";
                serde_json::json!({"ahead": bench.ahead})
            }
            _ => bail!("{line}: prefill N, decode N COUNT, text FILE, or table PREFILL DECODE"),
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}
