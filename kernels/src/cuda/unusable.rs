//! Why a machine's GPU cannot be used: each a sentence for an operator, none a defect of the daemon.

use std::path::PathBuf;

/// A reason not to run on CUDA.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// libcuda is not installed.
    #[error("no CUDA driver (libcuda.so.1 not found)")]
    NoDriver,
    /// The driver is older than the kernels were compiled for.
    #[error("the CUDA driver supports CUDA {}.{}, the kernels need {}.{}", found / 1000, found % 1000 / 10, needed / 1000, needed % 1000 / 10)]
    OldDriver {
        /// As the driver says: 1000 · major + 10 · minor.
        found: i32,
        /// The least that works.
        needed: i32,
    },
    /// No device is visible to this process.
    #[error("no CUDA device ({0})")]
    NoDevice(String),
    /// The device number does not exist.
    #[error("CUDA device {wanted} of {count}")]
    NoSuchDevice {
        /// Asked for.
        wanted: usize,
        /// How many there are.
        count: i32,
    },
    /// cuBLASLt is not installed.
    #[error("cuBLASLt not found (libcublasLt.so.13)")]
    NoCublasLt,
    /// No kernels for this device.
    #[error("no kernels for compute capability {major}.{minor} in {folder}")]
    NoKernels {
        /// Compute capability.
        major: i32,
        /// Compute capability.
        minor: i32,
        /// Where they were looked for.
        folder: PathBuf,
    },
    /// A kernel file cannot be read or is not what the manifest says.
    #[error("{path}: {reason}")]
    BadKernels {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A kernel that serving needs is in none of the files.
    #[error("no kernel {name} in {folder}")]
    MissingKernel {
        /// The kernel.
        name: String,
        /// Where the files are.
        folder: PathBuf,
    },
    /// The kernels do not take the checkpoint.
    #[error("no CUDA kernels for {0}")]
    Checkpoint(String),
    /// The driver refused something else.
    #[error("CUDA: {0}")]
    Driver(String),
}

impl From<cudarc::driver::DriverError> for Unusable {
    fn from(error: cudarc::driver::DriverError) -> Self {
        Unusable::Driver(super::device::words(error))
    }
}
