//! Times the CPU's matrix products on a decoder's shapes, beside the `gemm` library with weights already in float32.
//!
//! All sides take turns within one run; each line gives the best and the median of the rounds.

use std::sync::Arc;

use clap::Parser;
use half::bf16;
use memmap2::MmapMut;
use skip_kernels::backend::{Backend, MatrixSource, SeqStep, WeightFormat};
use skip_kernels::cpu::{CpuBackend, CpuOptions, Precision};
use skip_kernels::files::WeightFile;
use skip_kernels::{PAGE, Phase};

#[derive(Parser)]
struct Args {
    /// Threads of every side.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Rows of activations, comma-separated.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64, 512])]
    rows: Vec<usize>,
    /// Features × inputs, comma-separated; SmolLM2-135M's by default.
    #[arg(long, value_delimiter = ',', default_values_t = ["960x576", "3072x576", "576x1536", "49152x576"].map(String::from))]
    shapes: Vec<String>,
    /// Rounds.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Count this process's processor time instead of the wall clock: on a busy machine, with one thread.
    #[arg(long)]
    cpu_time: bool,
}

/// Seconds since whenever.
fn now(args: &Args) -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let clock = if args.cpu_time { libc::CLOCK_PROCESS_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    // SAFETY: a valid clock and a valid place for its answer.
    unsafe { libc::clock_gettime(clock, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

fn source(rows: usize, cols: usize) -> anyhow::Result<(MatrixSource, Vec<f32>)> {
    let values: Vec<f32> = (0..rows * cols).map(|i| bf16::from_f32((i as f32 * 0.37).sin()).to_f32()).collect();
    let mut map = MmapMut::map_anon(rows * cols * 2)?;
    for (out, &x) in map.chunks_exact_mut(2).zip(&values) {
        out.copy_from_slice(&bf16::from_f32(x).to_le_bytes());
    }
    Ok((
        MatrixSource {
            rows,
            cols,
            format: WeightFormat::Bf16,
            file: Arc::new(WeightFile::of_memory(map.make_read_only()?)),
            range: 0..rows * cols * 2,
        },
        values,
    ))
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let options = |precision| CpuOptions { threads: Some(args.threads), precision };
    let mut sides = [CpuBackend::new(options(Precision::Float32)), CpuBackend::new(options(Precision::Bfloat16))];
    println!(
        "{}, {} threads; {} | {} | gemm float32",
        sides[0].info().device,
        args.threads,
        sides[0].info().kernel_set,
        sides[1].info().kernel_set
    );
    for shape in &args.shapes {
        let (n, k) = shape.split_once('x').and_then(|(n, k)| Some((n.parse().ok()?, k.parse().ok()?))).ok_or(anyhow::anyhow!("{shape}"))?;
        let (source, plain) = source(n, k)?;
        for &m in &args.rows {
            let mut times = [const { Vec::new() }; 3];
            let (tokens, pages): (Vec<u32>, Vec<u32>) = (vec![0; m], (0..m.div_ceil(PAGE) as u32).collect());
            let step = SeqStep {
                tokens: &tokens,
                start: 0,
                final_len: m,
                phase: Phase::Prefill,
                table: None,
                block_table: &pages,
                sample: None,
                measure: false,
            };
            let mut prepared = Vec::new();
            for b in &mut sides {
                b.begin_step(std::slice::from_ref(&step))?;
                prepared.push((b.matrix(std::slice::from_ref(&source))?, b.tensor(m, k)?, b.tensor(m, n)?));
            }
            let (x, mut out) = (vec![0.5f32; m * k], vec![0f32; m * n]);
            let repeats = (2e9 / (2.0 * (m * n * k) as f64) / 20.0).clamp(1.0, 50.0) as usize;
            for _ in 0..args.rounds {
                for (side, times) in times.iter_mut().enumerate() {
                    let began = now(&args);
                    for _ in 0..repeats {
                        match (sides.get_mut(side), prepared.get_mut(side)) {
                            (Some(b), Some((w, x, out))) => b.matmul(x, w, out)?,
                            _ => library(args.threads, &plain, &x, &mut out, (m, n, k)),
                        }
                    }
                    times.push((now(&args) - began) / repeats as f64);
                }
            }
            print!("{m:5} × {n}×{k}:");
            for times in &mut times {
                times.sort_by(f64::total_cmp);
                let (best, median) = (times[0], times[times.len() / 2]);
                print!(
                    "  {:8.1} µs (median {:8.1}) {:7.1} GFLOP/s {:5.1} GB/s",
                    best * 1e6,
                    median * 1e6,
                    2e-9 * (m * n * k) as f64 / best,
                    2e-9 * (n * k) as f64 / best
                );
            }
            println!();
        }
    }
    Ok(())
}

/// The library's product with row-major float32 weights.
fn library(threads: usize, w: &[f32], x: &[f32], out: &mut [f32], (m, n, k): (usize, usize, usize)) {
    // SAFETY: the slices are m × n, m × k and n × k, row-major.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            false,
            x.as_ptr(),
            1,
            k as isize,
            w.as_ptr(),
            k as isize,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::Rayon(threads),
        );
    }
}
