//! The CPU implementation: a scalar reference, and SIMD with threads.

pub mod pool;
