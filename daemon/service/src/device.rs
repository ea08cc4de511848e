//! What the model runs on: CUDA where a usable device and kernels for it exist, else the CPU, and why.

use crate::config::BackendChoice;
use skip_engine::EngineOptions;
use skip_engine::checkpoint::Checkpoint;
use skip_kernels::KvFormat;
use skip_kernels::attention::AttnGeometry;
use skip_kernels::backend::WeightFormat;
use skip_kernels::cuda::{Activations, CudaOptions, check, takes};
use std::time::Duration;

/// The longest prefill chunk on a GPU, in tokens.
const GPU_CHUNK: usize = 8192;
/// How long a step may take there.
const GPU_STEP: Duration = Duration::from_millis(50);

/// The choice.
pub enum Chosen {
    /// The processor.
    Cpu,
    /// A CUDA device.
    Cuda {
        /// How to open it.
        options: CudaOptions,
        /// Bytes that its cache may count on once the weights are there; None where it shares the system's memory.
        available: Option<u64>,
    },
}

/// Chooses; gives the reason for status too.
///
/// # Errors
/// CUDA was asked for and cannot be used: why.
pub fn choose(choice: BackendChoice, cache: KvFormat, checkpoint: &Checkpoint) -> Result<(Chosen, String), String> {
    if choice == BackendChoice::Cpu {
        return Ok((Chosen::Cpu, "as configured".into()));
    }
    let format = checkpoint.embedding().map_err(|error| error.to_string())?.format;
    let activations = if format == WeightFormat::Fp16 { Activations::Fp16 } else { Activations::Bf16 };
    let options = CudaOptions::new(activations);
    let a = checkpoint.architecture();
    let geometry = AttnGeometry { heads: a.heads, kv_heads: a.kv_heads, head_dim: a.head_dim, scale: 1.0, window: None };
    match check(&options).and_then(|probe| takes(&geometry, cache, activations).map(|()| probe)) {
        Ok(probe) => {
            let available = (!probe.integrated).then(|| probe.free.saturating_sub(checkpoint.weight_bytes()));
            tracing::info!(device = probe.name, driver = probe.driver, "CUDA");
            Ok((Chosen::Cuda { options, available }, format!("CUDA {}.{}", probe.driver / 1000, probe.driver % 1000 / 10)))
        }
        Err(reason) if choice == BackendChoice::Cuda => Err(format!("--backend cuda: {reason}")),
        Err(reason) => {
            tracing::info!(%reason, "running on the CPU");
            Ok((Chosen::Cpu, reason.to_string()))
        }
    }
}

/// An engine's options on a GPU.
pub fn gpu_defaults(available: Option<u64>) -> EngineOptions {
    EngineOptions { longest_chunk: GPU_CHUNK, step_budget: GPU_STEP, available, ..EngineOptions::default() }
}
