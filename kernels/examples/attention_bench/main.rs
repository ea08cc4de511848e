//! Attention alone on the CPU: dense against skipping, or against measuring, paired in one run, on structured inputs.
//!
//! `cargo run --release -p skip-kernels --example attention_bench -- [--lengths 4096,8192] [--threads 2] [--rounds 7] [--only measure]`

mod inputs;

use anyhow::{Result, ensure};
use clap::Parser;
use inputs::Inputs;
use skip_kernels::attention::SkipCounters;
use skip_kernels::cpu::attention::Isa;
use skip_kernels::cpu::pool::Pool;
use skip_kernels::gaps::Gaps;
use std::time::Duration;

/// Time dense and skipping attention, prefill and decode.
#[derive(Parser)]
struct Args {
    /// Prompt lengths.
    #[arg(long, value_delimiter = ',', default_value = "4096,8192")]
    lengths: Vec<usize>,
    /// Context lengths of decode.
    #[arg(long, value_delimiter = ',', default_value = "8192,32768")]
    contexts: Vec<usize>,
    /// Heads × KV heads × head_dim.
    #[arg(long, value_delimiter = ',', default_value = "9x3x64,8x2x128")]
    shapes: Vec<String>,
    /// Shares to skip.
    #[arg(long, value_delimiter = ',', default_value = "0.5,0.75,0.9")]
    shares: Vec<f64>,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Rounds; each runs every variant once, and ratios are taken inside a round.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// avx512, avx2 or portable instead of the best one.
    #[arg(long)]
    isa: Option<String>,
    /// Count this process's processor time instead of the wall clock: on a busy machine, with one thread.
    #[arg(long)]
    cpu_time: bool,
    /// Leave decode out, or prefill; or time measuring against dense, in both.
    #[arg(long, value_enum)]
    only: Option<Only>,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Only {
    Prefill,
    Decode,
    Measure,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let pool = Pool::new(args.threads);
    let isa = match &args.isa {
        None => Isa::detect(),
        Some(name) => match Isa::available().into_iter().find(|isa| isa.name() == name) {
            Some(isa) => isa,
            None => anyhow::bail!("{name}: this processor has {:?}", Isa::available()),
        },
    };
    println!("{}, {} thread(s), {}", processor(), pool.workers(), isa.name());
    println!("{} rounds; medians (smallest .. largest) of {}", args.rounds, if args.cpu_time { "processor time" } else { "time" });
    println!("the gemm crate's float32 product of 1024x1024x1024 on one thread: {:.0} GFLOP/s", gemm_speed(&args));
    for shape in &args.shapes {
        let sizes: Vec<usize> = shape.split('x').map(str::parse).collect::<Result<_, _>>()?;
        ensure!(sizes.len() == 3 && sizes.iter().all(|&s| s > 0), "{shape}: not HEADSxKV_HEADSxHEAD_DIM");
        let (heads, kv_heads, d) = (sizes[0], sizes[1], sizes[2]);
        if args.only != Some(Only::Decode) {
            for &length in &args.lengths {
                prefill(&args, &pool, isa, [heads, kv_heads, d], length)?;
            }
        }
        if args.only != Some(Only::Prefill) {
            for &context in &args.contexts {
                decode(&args, &pool, isa, [heads, kv_heads, d], context)?;
            }
        }
    }
    Ok(())
}

fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| info.lines().find(|l| l.starts_with(name)).and_then(|l| l.split(": ").nth(1)).unwrap_or("?").to_owned();
    format!("{} (model {})", field("model name"), field("model\t"))
}

/// Time that has passed, of the kind asked for.
fn now(args: &Args) -> Duration {
    let clock = if args.cpu_time { libc::CLOCK_PROCESS_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid clock and a valid place for its answer.
    unsafe { libc::clock_gettime(clock, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// What a core reaches in a plain float32 product, as a yardstick.
fn gemm_speed(args: &Args) -> f64 {
    let n = 1024;
    let (a, b) = (vec![1.0f32; n * n], vec![0.5f32; n * n]);
    let mut c = vec![0.0f32; n * n];
    let times = (0..args.rounds.max(3)).map(|_| {
        let start = now(args);
        let (rows, one) = (n as isize, 1);
        let parallelism = gemm::Parallelism::None;
        // SAFETY: three row-major n × n matrices.
        unsafe {
            gemm::gemm(
                n,
                n,
                n,
                c.as_mut_ptr(),
                one,
                rows,
                false,
                a.as_ptr(),
                one,
                rows,
                b.as_ptr(),
                one,
                rows,
                0.0,
                1.0,
                false,
                false,
                false,
                parallelism,
            )
        };
        (now(args) - start).as_secs_f64()
    });
    2.0 * (n * n * n) as f64 / times.fold(f64::MAX, f64::min) * 1e-9
}

fn prefill(args: &Args, pool: &Pool, isa: Isa, [heads, kv_heads, d]: [usize; 3], length: usize) -> Result<()> {
    let mut inputs = Inputs::new(length, length, heads, kv_heads, d, 1);
    let variants = variants(args, &mut |ln_lambda| inputs.prefill(isa, pool, ln_lambda, 0))?;
    let flops = 2.0 * (length * (length + 1)) as f64 * (d * heads) as f64;
    println!("prefill {length} keys, {heads}/{kv_heads} heads of {d}");
    report(
        args,
        &variants,
        |variant| match variant {
            Variant::Attend(threshold) => _ = inputs.prefill(isa, pool, threshold, 0),
            Variant::Measure => assert!(votes(&inputs.measure(isa, pool, 0)) > 0),
        },
        |seconds| format!("{:.0} GFLOP/s", flops / seconds * 1e-9),
    );
    Ok(())
}

fn decode(args: &Args, pool: &Pool, isa: Isa, [heads, kv_heads, d]: [usize; 3], context: usize) -> Result<()> {
    // as many caches in turn as outlast the processor's caches, like the layers of a model
    let bytes = 4 * context * kv_heads * d;
    let layers = (400_000_000 / bytes).clamp(2, 64);
    let mut inputs = Inputs::new(1, context, heads, kv_heads, d, layers);
    let variants = variants(args, &mut |ln_lambda| inputs.decode(isa, pool, ln_lambda, 0))?;
    println!("decode at {context} keys, {heads}/{kv_heads} heads of {d}, {layers} layers of {:.1} MB in turn", bytes as f64 * 1e-6);
    let all_layers = |variant| {
        for layer in 0..layers {
            match variant {
                Variant::Attend(threshold) => _ = inputs.decode(isa, pool, threshold, layer),
                Variant::Measure => assert!(votes(&inputs.measure(isa, pool, layer)) > 0),
            }
        }
    };
    report(args, &variants, all_layers, |seconds| {
        format!("{:.1} us a layer, {:.1} GB/s of K and V", seconds / layers as f64 * 1e6, (bytes * layers) as f64 / seconds * 1e-9)
    });
    Ok(())
}

/// What is timed.
#[derive(Clone, Copy)]
enum Variant {
    Attend(Option<f32>),
    Measure,
}

fn votes(gaps: &[Gaps]) -> u64 {
    gaps.iter().flatten().flat_map(|g| &g.votes).sum()
}

/// Dense and measuring; or dense, the skipping kernel with nothing skipped, and the thresholds that come closest to the wanted shares.
fn variants(args: &Args, run: &mut dyn FnMut(Option<f32>) -> SkipCounters) -> Result<Vec<(String, Variant)>> {
    let mut variants = vec![("dense".to_owned(), Variant::Attend(None))];
    if args.only == Some(Only::Measure) {
        variants.push(("measuring".to_owned(), Variant::Measure));
        return Ok(variants);
    }
    variants.push(("skips 0 %".to_owned(), Variant::Attend(Some(-1e6))));
    for &share in &args.shares {
        let (mut low, mut high) = (-40.0f32, -1e-4f32);
        for _ in 0..12 {
            let middle = (low + high) / 2.0;
            if run(Some(middle)).share() < share { low = middle } else { high = middle }
        }
        let reached = run(Some(high)).share();
        ensure!(reached > 0.0 && reached < 1.0, "no threshold skips about {share}");
        variants.push((format!("skips {:.0} %", reached * 100.0), Variant::Attend(Some(high))));
    }
    Ok(variants)
}

fn report(args: &Args, variants: &[(String, Variant)], mut run: impl FnMut(Variant), unit: impl Fn(f64) -> String) {
    let mut seconds = vec![Vec::new(); variants.len()];
    for _ in 0..args.rounds {
        for (times, (_, variant)) in seconds.iter_mut().zip(variants) {
            let start = now(args);
            run(*variant);
            times.push((now(args) - start).as_secs_f64());
        }
    }
    for (times, (name, _)) in seconds.iter().zip(variants) {
        let ratio = median(times.iter().zip(&seconds[0]).map(|(a, b)| a / b).collect());
        let (low, high) = times.iter().fold((f64::MAX, 0.0f64), |(l, h), &t| (l.min(t), h.max(t)));
        let middle = median(times.clone());
        println!("  {name:12} {:9.2} ms ({:.2} .. {:.2})  {:.2} of dense  best {}", middle * 1e3, low * 1e3, high * 1e3, ratio, unit(low));
    }
}

fn median(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    x.get(x.len() / 2).copied().unwrap_or(f64::NAN)
}
