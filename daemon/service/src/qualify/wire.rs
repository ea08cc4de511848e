//! What the two processes of a trial say to each other: a job on the child's standard input, a report a line on its standard output.

use serde::{Deserialize, Serialize};
use skip_client::protocol::KernelVerdict;
use skip_kernels::KvFormat;
use skip_kernels::backend::Activation;
use skip_kernels::cuda::qualify::Needs;
use skip_kernels::cuda::{Activations, CudaOptions};
use std::path::PathBuf;

/// What a child is to try.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Job {
    device: usize,
    cubins: PathBuf,
    head_dim: usize,
    group: usize,
    fp16_cache: bool,
    fp16_activations: bool,
    gelu: bool,
    /// The kernels, in order; none: all.
    pub kernels: Vec<String>,
}

impl Job {
    /// These kernels of these files.
    pub fn new(options: &CudaOptions, needs: &Needs, kernels: Vec<String>) -> Self {
        Self {
            device: options.device,
            cubins: options.cubins.clone(),
            head_dim: needs.head_dim,
            group: needs.group,
            fp16_cache: needs.cache == KvFormat::Fp16,
            fp16_activations: needs.activations == Activations::Fp16,
            gelu: needs.gate == Activation::GeluTanh,
            kernels,
        }
    }

    /// The same for other kernels.
    pub fn with(&self, kernels: Vec<String>) -> Self {
        Self { kernels, ..self.clone() }
    }

    /// Device and files.
    pub fn options(&self) -> CudaOptions {
        CudaOptions { device: self.device, cubins: self.cubins.clone(), ..CudaOptions::new(self.needs().activations) }
    }

    /// The checkpoint's side of it.
    pub fn needs(&self) -> Needs {
        Needs {
            head_dim: self.head_dim,
            group: self.group,
            cache: if self.fp16_cache { KvFormat::Fp16 } else { KvFormat::Bf16 },
            activations: if self.fp16_activations { Activations::Fp16 } else { Activations::Bf16 },
            gate: if self.gelu { Activation::GeluTanh } else { Activation::Silu },
        }
    }
}

/// What a child tells.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase", tag = "report")]
pub enum Report {
    /// The device is open and the kernel files are loaded.
    Opened,
    /// A kernel will be launched now.
    Begun {
        /// Its name.
        kernel: String,
    },
    /// It came back.
    Tried(KernelVerdict),
    /// Nothing can be tried: why.
    Unusable {
        /// For a person.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_survives_the_pipe() {
        for (cache, activations, gate) in
            [(KvFormat::Fp16, Activations::Bf16, Activation::Silu), (KvFormat::Bf16, Activations::Bf16, Activation::GeluTanh)]
        {
            let needs = Needs { head_dim: 128, group: 7, cache, activations, gate };
            let options = CudaOptions { cubins: "/a b".into(), ..CudaOptions::new(activations) };
            let job = Job::new(&options, &needs, vec!["k".into()]);
            let back: Job = serde_json::from_str(&serde_json::to_string(&job).unwrap()).unwrap();
            assert_eq!((back.needs(), back.options().cubins, &back), (needs, options.cubins.clone(), &job));
        }
    }
}
