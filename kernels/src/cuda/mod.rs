//! The CUDA backend: kernels from cubin files, cuBLASLt for the large products, one stream, decode steps as graphs.
//!
//! Libraries are loaded at run time; a machine without a driver, a device or a kernel for it gets a reason instead of a backend.

mod attend;
mod attention;
mod backend;
mod cubins;
mod device;
mod edits;
mod ends;
mod flight;
mod graph;
mod image;
mod launch;
mod ledger;
mod matmul;
mod measure;
mod memory;
mod params;
mod products;
pub mod qualify;
mod sampler;
mod step;
mod unusable;
mod weights;

pub use attend::Attend;
pub use attention::takes;
pub use backend::{CudaBackend, CudaOptions, check};
pub use cubins::default_folder;
pub use device::Probe;
pub use ledger::estimate;
pub use unusable::Unusable;
pub use weights::{Activations, Matrix};
