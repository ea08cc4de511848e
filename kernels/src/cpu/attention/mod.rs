//! Attention on the CPU as the backend calls it: threads over (sequence, KV head, query tile), arithmetic in float32.

use super::pool::Pool;
use super::reference;
use crate::attention::{AttnCall, AttnGeometry, DEFAULT_VOTES};
use crate::backend::KernelError;

/// Attention of prompt chunks: any `q_len`, votes per 128×128 tile and head.
pub fn prefill(call: &mut AttnCall<'_>, _pool: &Pool) -> Result<(), KernelError> {
    reference::prefill(call, &DEFAULT_VOTES)
}

/// Attention of one query token a sequence: votes per run of 32 keys and KV head, against the true row maximum.
pub fn decode(call: &mut AttnCall<'_>, _pool: &Pool) -> Result<(), KernelError> {
    reference::decode(call, &DEFAULT_VOTES)
}

/// Whether SIMD kernels are built for this geometry; others run on the scalar reference, slowly.
pub fn has_kernel(_geometry: &AttnGeometry) -> bool {
    false
}

/// The instruction set in use, in words.
pub fn kernel_set() -> &'static str {
    "scalar"
}
