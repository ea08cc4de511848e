//! What the model runs on: CUDA where a usable device and kernels for it exist, else the CPU, and why.

use crate::config::{BackendChoice, QualifyChoice};
use crate::faults::Faults;
use crate::lifecycle::Stage;
use crate::qualify::{self, QualifyError, Request};
use crate::state::Daemon;
use skip_engine::EngineOptions;
use skip_engine::checkpoint::Checkpoint;
use skip_kernels::KvFormat;
use skip_kernels::attention::AttnGeometry;
use skip_kernels::backend::WeightFormat;
use skip_kernels::cuda::qualify::{Needs, Trial};
use skip_kernels::cuda::{Activations, CudaOptions, Probe, Unusable, check, takes};
use std::time::Duration;

/// The longest prefill chunk on a GPU, in tokens.
const GPU_CHUNK: usize = 8192;
/// How long a step may take there.
const GPU_STEP: Duration = Duration::from_millis(50);

/// What it runs on.
pub enum Chosen {
    /// The processor.
    Cpu,
    /// A CUDA device.
    Cuda {
        /// How to open it.
        options: CudaOptions,
        /// Bytes that its cache may count on once the weights are there; None where nobody says.
        available: Option<u64>,
    },
}

/// The choice.
pub struct Choice {
    /// What it runs on.
    pub chosen: Chosen,
    /// Why, for status.
    pub reason: String,
    /// The same, where there is something better that cannot be relied on.
    pub degraded: Option<String>,
}

/// Why CUDA is not used.
enum Against {
    /// There is none, or not for this checkpoint.
    Absent(Unusable),
    /// There is a device, and something is wrong with it or its kernels.
    Broken(String),
}

impl From<QualifyError> for Against {
    fn from(error: QualifyError) -> Self {
        Against::Broken(error.to_string())
    }
}

/// The CUDA kernels that a checkpoint takes.
///
/// # Errors
/// The checkpoint has no embedding.
pub fn needs(checkpoint: &Checkpoint, cache: KvFormat) -> Result<Needs, String> {
    let format = checkpoint.embedding().map_err(|error| error.to_string())?.format;
    let activations = if format == WeightFormat::Fp16 { Activations::Fp16 } else { Activations::Bf16 };
    let a = checkpoint.architecture();
    Ok(Needs { head_dim: a.head_dim, group: a.heads / a.kv_heads.max(1), cache, activations, gate: a.activation })
}

/// Chooses; tries the kernels first where that has to be.
///
/// # Errors
/// CUDA was asked for and cannot be used: why.
pub fn choose(daemon: &Daemon, checkpoint: &Checkpoint, needs: Needs) -> Result<Choice, String> {
    let choice = daemon.config.backend;
    let cpu = |reason: String, degraded: Option<String>| Ok(Choice { chosen: Chosen::Cpu, reason, degraded });
    if choice == BackendChoice::Cpu {
        return cpu("as configured".into(), None);
    }
    if let Some(faults) = Faults::read(&daemon.config.state_dir).repeated() {
        if choice == BackendChoice::Auto {
            let reason = format!("the CPU serves after {faults}; after a clean run the next start tries CUDA again");
            tracing::error!(reason, "degraded");
            return cpu(reason.clone(), Some(reason));
        }
        tracing::error!(reason = faults, "the device is used nevertheless: --backend cuda");
    }
    let options = CudaOptions::new(needs.activations);
    match usable(daemon, checkpoint, needs, &options) {
        Ok(probe) => {
            let available = probe.free.map(|free| free.saturating_sub(checkpoint.weight_bytes()));
            tracing::info!(device = probe.name, driver = probe.driver, "CUDA");
            let reason = format!("CUDA {}.{}", probe.driver / 1000, probe.driver % 1000 / 10);
            Ok(Choice { chosen: Chosen::Cuda { options, available }, reason, degraded: None })
        }
        Err(Against::Absent(reason)) if choice == BackendChoice::Cuda => Err(format!("--backend cuda: {reason}")),
        Err(Against::Broken(reason)) if choice == BackendChoice::Cuda => Err(format!("--backend cuda: {reason}")),
        Err(Against::Absent(reason)) => {
            tracing::info!(%reason, "running on the CPU");
            cpu(reason.to_string(), None)
        }
        Err(Against::Broken(reason)) => {
            tracing::error!(reason, "running on the CPU");
            cpu(reason.clone(), Some(reason))
        }
    }
}

/// Whether there is a device, with kernels for this checkpoint that are right.
fn usable(daemon: &Daemon, checkpoint: &Checkpoint, needs: Needs, options: &CudaOptions) -> Result<Probe, Against> {
    let probe = check(options).map_err(Against::Absent)?;
    let a = checkpoint.architecture();
    let geometry = AttnGeometry { heads: a.heads, kv_heads: a.kv_heads, head_dim: a.head_dim, scale: 1.0, window: None };
    takes(&geometry, needs.cache, needs.activations).map_err(Against::Absent)?;
    if daemon.config.qualify == QualifyChoice::Off {
        tracing::warn!("--qualify off: kernels are used untried");
        qualify::digest(options, &probe)?;
        let loaded = Trial::open(options, needs).and_then(|mut trial| trial.complete(options));
        return loaded.map(|()| probe).map_err(|error| Against::Broken(error.to_string()));
    }
    let mut progress = |at: qualify::Progress| daemon.life.advance(Stage::Qualifying { kernel: at.kernel, done: at.done, total: at.total });
    let request = Request {
        state_dir: &daemon.config.state_dir,
        options,
        probe: &probe,
        needs,
        progress: &mut progress,
        cancelled: &|| daemon.life.stage() == Stage::Draining,
    };
    qualify::ensure(request, daemon.config.qualify == QualifyChoice::Always)?;
    Ok(probe)
}

/// An engine's options on a GPU.
pub fn gpu_defaults(available: Option<u64>) -> EngineOptions {
    EngineOptions { longest_chunk: GPU_CHUNK, step_budget: GPU_STEP, available, ..EngineOptions::default() }
}
