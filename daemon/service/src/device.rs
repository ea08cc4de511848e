//! What the model runs on: CUDA where a usable device and kernels for it exist, else the CPU, and why.

use crate::config::{BackendChoice, QualifyChoice};
use crate::faults::{Faults, Rung, Standing};
use crate::lifecycle::Stage;
use crate::qualify::{self, QualifyError, Request, Selection};
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
        /// What it is.
        probe: Box<Probe>,
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
    /// Where earlier faults leave it.
    pub rung: Rung,
    /// What there is to say of kernels that may be left out.
    pub kernel_notes: Vec<String>,
}

impl Choice {
    /// The processor.
    pub fn cpu(reason: String, degraded: bool, rung: Rung) -> Self {
        let degraded = degraded.then(|| reason.clone());
        Self { chosen: Chosen::Cpu, reason, degraded, rung, kernel_notes: Vec::new() }
    }
}

/// A device that can be used.
struct Found {
    probe: Probe,
    kernels: Selection,
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
    if choice == BackendChoice::Cpu {
        return Ok(Choice::cpu("as configured".into(), false, Rung::All));
    }
    let standing = Faults::read(&daemon.config.state_dir).standing();
    let options = CudaOptions { system: daemon.config.system(), ..CudaOptions::new(needs.activations) };
    // A device that is not to be used is not touched either.
    let forgone = choice == BackendChoice::Auto && standing.rung == Rung::Cpu;
    let found = if forgone { None } else { Some(usable(daemon, checkpoint, needs, &options)) };
    let decided = decide(choice == BackendChoice::Cuda, &standing, options, found);
    match &decided {
        Ok(Choice { degraded: Some(reason), .. }) => tracing::error!(reason, "degraded"),
        Ok(Choice { chosen: Chosen::Cpu, reason, .. }) => tracing::info!(reason, "running on the CPU"),
        Ok(Choice { reason, .. }) => tracing::info!(reason, "running on CUDA"),
        Err(_) => {}
    }
    decided
}

/// Decides over a device, or what is wrong with it; `found` is None where it is not to be used. After faults the portable kernels are tried
/// before the processor, where other ones served.
fn decide(
    cuda_asked_for: bool,
    standing: &Standing,
    mut options: CudaOptions,
    found: Option<Result<Found, Against>>,
) -> Result<Choice, String> {
    const UNTIL: &str = "after a clean run the next start tries";
    let Standing { rung, why } = standing;
    let (rung, faulty) = (*rung, *rung != Rung::All);
    let Some(found) = found else {
        return Ok(Choice::cpu(format!("the CPU serves after {why}; {UNTIL} CUDA again"), true, Rung::Cpu));
    };
    let Found { probe, kernels } = match found {
        Ok(found) => found,
        Err(Against::Absent(reason)) if cuda_asked_for => return Err(format!("--backend cuda: {reason}")),
        Err(Against::Broken(reason)) if cuda_asked_for => return Err(format!("--backend cuda: {reason}")),
        // A device that faulted and is gone now is no machine without one.
        Err(Against::Absent(reason)) if faulty => {
            return Ok(Choice::cpu(format!("the CPU serves after {why}; now: {reason}"), true, Rung::Cpu));
        }
        Err(Against::Absent(reason)) => return Ok(Choice::cpu(reason.to_string(), false, rung)),
        Err(Against::Broken(reason)) => return Ok(Choice::cpu(reason, true, rung)),
    };
    if faulty && !cuda_asked_for && kernels.own.is_empty() {
        let reason = format!("the CPU serves after {why}, all of them with portable kernels; {UNTIL} CUDA again");
        return Ok(Choice::cpu(reason, true, Rung::Cpu));
    }
    let mut kernels = kernels;
    let mut degraded = kernels.degraded.take();
    if faulty {
        kernels = kernels.portable();
        let told = if rung == Rung::Cpu { " as --backend cuda was asked for" } else { "" };
        degraded = Some(format!("portable kernels alone serve after {why}{told}; {UNTIL} the others again"));
    }
    options.excluded = kernels.excluded;
    let driver = format!("CUDA {}.{}", probe.driver / 1000, probe.driver % 1000 / 10);
    Ok(Choice {
        chosen: Chosen::Cuda { options, probe: Box::new(probe) },
        reason: degraded.as_ref().map_or(driver.clone(), |reason| format!("{driver}; {reason}")),
        degraded,
        rung: if faulty { Rung::Portable } else { Rung::All },
        kernel_notes: kernels.notes,
    })
}

/// Whether there is a device, with kernels for this checkpoint that are right.
fn usable(daemon: &Daemon, checkpoint: &Checkpoint, needs: Needs, options: &CudaOptions) -> Result<Found, Against> {
    let probe = check(options).map_err(Against::Absent)?;
    let a = checkpoint.architecture();
    let geometry = AttnGeometry { heads: a.heads, kv_heads: a.kv_heads, head_dim: a.head_dim, scale: 1.0, window: None };
    takes(&geometry, needs.cache, needs.activations).map_err(Against::Absent)?;
    if daemon.config.qualify == QualifyChoice::Off {
        tracing::warn!("--qualify off: kernels are used untried");
        qualify::digest(options, &probe)?;
        let own = Trial::open(options, needs).and_then(|mut trial| trial.complete(options).map(|()| trial.own()));
        let found = own.map(|own| Found { probe, kernels: Selection::untried(own) });
        return found.map_err(|error| Against::Broken(error.to_string()));
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
    let kernels = qualify::ensure(request, daemon.config.qualify == QualifyChoice::Always)?;
    Ok(Found { probe, kernels })
}

/// An engine's options on a GPU.
pub fn gpu_defaults() -> EngineOptions {
    EngineOptions { longest_chunk: GPU_CHUNK, step_budget: GPU_STEP, ..EngineOptions::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: [&str; 2] = ["attn_prefill_bf16_d64_dense_wgmma", "attn_prefill_bf16_d64_skip_wgmma"];

    fn standing(rung: Rung) -> Standing {
        Standing { rung, why: if rung == Rung::All { String::new() } else { "3 device faults, the last: trap".into() } }
    }

    fn device(kernels: Selection) -> Option<Result<Found, Against>> {
        let (name, uuid) = ("H200".into(), "ab".into());
        let probe =
            Probe { name, uuid, capability: (9, 0), driver: 13010, integrated: false, memory: 1 << 33, free: Some(1 << 32), sms: 132 };
        Some(Ok(Found { probe, kernels }))
    }

    fn hopper() -> Option<Result<Found, Against>> {
        device(Selection { own: OWN.map(str::to_owned).to_vec(), ..Selection::default() })
    }

    fn decided(cuda: bool, rung: Rung, found: Option<Result<Found, Against>>) -> Choice {
        decide(cuda, &standing(rung), CudaOptions::new(Activations::Bf16), found).unwrap()
    }

    /// Kernels left out on CUDA; None: it is the processor.
    fn excluded(choice: &Choice) -> Option<usize> {
        match &choice.chosen {
            Chosen::Cpu => None,
            Chosen::Cuda { options, .. } => Some(options.excluded.len()),
        }
    }

    #[test]
    fn a_device_without_faults_serves_with_all_that_is_right() {
        let choice = decided(false, Rung::All, hopper());
        assert_eq!((excluded(&choice), choice.rung, choice.degraded.as_ref()), (Some(0), Rung::All, None));
        assert_eq!(choice.reason, "CUDA 13.1");
        assert!(matches!(choice.chosen, Chosen::Cuda { probe, .. } if probe.free == Some(1 << 32)));
    }

    #[test]
    fn a_refused_kernel_of_the_device_s_own_leaves_cuda_degraded() {
        let refused = Selection {
            excluded: OWN.map(str::to_owned).into(),
            notes: vec!["refused: k (hung)".into()],
            degraded: Some("refused: k (hung)".into()),
            ..Selection::default()
        };
        for cuda in [false, true] {
            let choice = decided(cuda, Rung::All, device(refused.clone()));
            assert_eq!((excluded(&choice), choice.rung), (Some(2), Rung::All));
            assert_eq!((choice.degraded.as_deref(), choice.kernel_notes.len()), (Some("refused: k (hung)"), 1));
        }
    }

    #[test]
    fn after_faults_portable_kernels_serve_and_after_more_the_processor() {
        let portable = decided(false, Rung::Portable, hopper());
        assert_eq!((excluded(&portable), portable.rung), (Some(2), Rung::Portable));
        assert!(portable.degraded.unwrap().starts_with("portable kernels alone serve after 3 device faults"));
        assert!(portable.reason.starts_with("CUDA 13.1; portable kernels alone"), "{}", portable.reason);
        let cpu = decided(false, Rung::Cpu, None);
        assert_eq!((excluded(&cpu), cpu.rung), (None, Rung::Cpu));
        assert!(cpu.degraded.unwrap().starts_with("the CPU serves after 3 device faults"));
    }

    #[test]
    fn where_portable_kernels_served_already_the_processor_is_next() {
        let cpu = decided(false, Rung::Portable, device(Selection::default()));
        assert_eq!((excluded(&cpu), cpu.rung), (None, Rung::Cpu));
        assert!(cpu.degraded.unwrap().contains("all of them with portable kernels"));
    }

    #[test]
    fn cuda_that_was_asked_for_stays_with_portable_kernels() {
        for (rung, found) in [(Rung::Portable, hopper()), (Rung::Cpu, hopper()), (Rung::Cpu, device(Selection::default()))] {
            let choice = decided(true, rung, found);
            assert!(excluded(&choice).is_some());
            assert_eq!(choice.rung, Rung::Portable);
            assert_eq!(choice.degraded.unwrap().contains("--backend cuda"), rung == Rung::Cpu);
        }
    }

    #[test]
    fn what_is_against_cuda_ends_it_or_is_the_reason_for_the_processor() {
        let absent = || Some(Err(Against::Absent(Unusable::NoDriver)));
        let broken = || Some(Err(Against::Broken("kernels refused".into())));
        for found in [absent(), broken()] {
            let refusal = decide(true, &standing(Rung::All), CudaOptions::new(Activations::Bf16), found);
            assert!(refusal.err().unwrap().starts_with("--backend cuda: "));
        }
        assert_eq!(decided(false, Rung::All, absent()).degraded, None);
        assert_eq!(decided(false, Rung::All, broken()).degraded.as_deref(), Some("kernels refused"));
        let gone = decided(false, Rung::Portable, absent());
        let reason = gone.degraded.unwrap();
        assert!(reason.contains("3 device faults") && reason.contains("libcuda"), "{reason}");
        assert_eq!(gone.rung, Rung::Cpu);
    }
}
