//! The CPU implementation: a scalar reference, and SIMD with threads.

pub mod attention;
mod pages;
pub mod pool;
pub mod reference;
