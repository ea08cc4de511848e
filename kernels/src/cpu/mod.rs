//! The CPU implementation: a scalar reference, and SIMD with threads.

pub mod backend;
mod buffer;
mod isa;
mod matmul;
mod norm;
pub mod pool;
mod rope;
pub mod sampler;
mod shared;
mod step;
mod store;
mod weights;

pub use backend::{CpuBackend, CpuOptions, Precision};
