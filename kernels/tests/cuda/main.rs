//! The CUDA kernels against the CPU's on random ragged batches: each attention call vote by vote, and whole steps through the [`Backend`].
//!
//! What needs a device is ignored: `cargo test --release --workspace --test cuda -- --ignored --nocapture`, or `tools/check-gpu`.
//! `SKIP_ROUNDS` and `SKIP_SEED` say how many batches are drawn and from where on.
//!
//! [`Backend`]: skip_kernels::Backend

#![allow(clippy::unwrap_used)] // a test may panic wherever it stands

#[path = "../attention/fixture.rs"]
#[allow(dead_code)]
mod fixture;
mod gaps;
mod ragged;
mod script;
mod steps;

/// A number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Threads for the CPU's side.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}
