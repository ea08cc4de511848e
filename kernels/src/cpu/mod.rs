//! The CPU implementation: a scalar reference, and SIMD with threads.

pub mod attention;
pub mod backend;
mod buffer;
mod isa;
mod lanes;
mod ledger;
mod matmul;
pub mod measure;
mod norm;
mod pages;
pub mod pool;
pub mod reference;
mod rope;
pub mod sampler;
mod shared;
mod simd;
mod store;
mod weights;

pub use backend::{CpuBackend, CpuOptions, Precision, estimate};
