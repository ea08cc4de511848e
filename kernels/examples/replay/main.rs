//! Replays case files (safetensors with the inputs of one kernel call each) and compares with the results they hold, if any.
//!
//! `cargo run --release -p skip-kernels --example replay -- DIR --backend cpu|cuda [--out DIR2]`

mod attention;
mod case;
mod result;
mod rows;

use anyhow::{Context, Result, bail};
use attention::On;
use case::CaseFile;
use clap::Parser;
use result::Replayed;
use skip_kernels::cpu::{attention::Isa, pool::Pool};
use skip_kernels::cuda::{Activations, Attend, CudaOptions};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Replay kernel cases from their inputs alone.
#[derive(Parser)]
struct Args {
    /// Folder of case files (*.safetensors).
    dir: PathBuf,
    /// What computes.
    #[arg(long, value_enum, default_value = "cpu")]
    backend: BackendChoice,
    /// Write outputs, votes, codes and selections here, under the names of the case files and their tensors.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Also run the kernels of every lesser instruction set that this processor has.
    #[arg(long)]
    all_sets: bool,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum BackendChoice {
    Cpu,
    /// Attention on the first CUDA device, beside the scalar reference; cases of other kinds are left to the CPU.
    Cuda,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// True when every case that can be replayed agreed with what its file expects.
fn run(args: &Args) -> Result<bool> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(&args.dir)
        .with_context(|| format!("{}", args.dir.display()))?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|f| f.extension().is_some_and(|e| e == "safetensors"));
    files.sort();
    if let Some(out) = &args.out {
        std::fs::create_dir_all(out).with_context(|| format!("{}", out.display()))?;
    }
    let pool = Pool::new(args.threads);
    let mut on = match args.backend {
        BackendChoice::Cpu => {
            let mut sets = Isa::available();
            if !args.all_sets {
                sets.truncate(1);
            }
            On::Cpu(sets)
        }
        BackendChoice::Cuda => On::Cuda(Box::new(Attend::open(&CudaOptions::new(Activations::Fp16))?)),
    };
    println!("{}, scalar with {} thread(s)", on.describe(), pool.workers());
    let (mut agreed, mut checked, mut failed, mut later, mut alone) = (0, 0, 0, 0, 0);
    for file in &files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        match replay(file, args.out.as_deref(), &pool, &mut on) {
            Ok(None) => {
                later += 1;
                println!("{name}: not yet");
            }
            Ok(Some(result)) => {
                println!("{name}: {}", result.lines.join("; "));
                checked += 1;
                alone += usize::from(result.scalar_alone);
                if result.failures.is_empty() {
                    agreed += 1;
                } else {
                    failed += 1;
                    println!("{name}: MISMATCH: {}", result.failures.join("; "));
                }
            }
            Err(e) => {
                failed += 1;
                println!("{name}: ERROR: {e:#}");
            }
        }
    }
    println!(
        "{checked} replayed: {agreed} without a mismatch, {failed} failed; {alone} of them by the scalar reference alone; {later} of kinds not there yet"
    );
    if checked + failed == 0 {
        bail!("{}: no case files to replay", args.dir.display());
    }
    Ok(failed == 0)
}

/// None for kinds that are not built yet.
fn replay(file: &Path, out: Option<&Path>, pool: &Pool, on: &mut On) -> Result<Option<Replayed>> {
    let bytes = std::fs::read(file).with_context(|| format!("{}", file.display()))?;
    let replayed = CaseFile::parse(&bytes).and_then(|case| {
        Ok(match case.kind() {
            "prefill" | "decode" => Some(attention::replay(&case, pool, on)?),
            _ if matches!(on, On::Cuda(_)) => None,
            "nvfp4" => Some(rows::nvfp4(&case)?),
            "select" => Some(rows::select(&case)?),
            "select_tail" => Some(rows::select_tail(&case)?),
            "low_bit" | "shadow" => None,
            other => bail!("kind {other:?} is unknown"),
        })
    });
    let replayed = replayed.with_context(|| format!("{}", file.display()))?;
    if let (Some(result), Some(out), Some(name)) = (&replayed, out, file.file_name()) {
        let path = out.join(name);
        result.save(&path).with_context(|| format!("{}", path.display()))?;
    }
    Ok(replayed)
}
