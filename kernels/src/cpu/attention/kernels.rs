//! The kernels compiled for each instruction set.

use super::decode::{self, Decode};
use super::prefill::{self, Prefill};
use super::scratch::Scratch;
use super::vector::Vector;
use crate::cpu::isa::Isa;
use crate::cpu::lanes::Portable;

/// Head sizes that kernels are compiled for.
pub(super) const HEAD_DIMS: [usize; 3] = [64, 128, 256];

pub(super) type PrefillKernel = unsafe fn(&Prefill<'_>, &prefill::Item, &mut Scratch);
type DecodeKernel = unsafe fn(&Decode<'_>, decode::Item, &mut Scratch);

/// The two passes of decode.
#[derive(Clone, Copy)]
pub(super) struct DecodeKernels {
    pub scan: DecodeKernel,
    pub gather_survivors: DecodeKernel,
}

/// The kernel of a head size and instruction set.
pub(super) fn prefill(isa: Isa, head_dim: usize, skip: bool) -> Option<PrefillKernel> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => tiled_prefill(head_dim, skip),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => avx512::prefill(head_dim, skip),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::prefill(head_dim, skip),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonBf16 => neon::prefill(head_dim, skip),
        _ => portable::prefill(head_dim, skip),
    }
}

/// The kernels of a head size and instruction set.
pub(super) fn decode(isa: Isa, head_dim: usize) -> Option<DecodeKernels> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => avx512::decode(head_dim),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::decode(head_dim),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonBf16 => neon::decode(head_dim),
        _ => portable::decode(head_dim),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,f16c")]
unsafe fn tiled<const D: usize, const SKIP: bool>(call: &Prefill<'_>, item: &prefill::Item, scratch: &mut Scratch) {
    // SAFETY: the caller has detected the features and keeps the kernel's contract.
    unsafe { prefill::run::<Tiled<'_, D>, D, SKIP>(call, item, scratch) }
}

#[cfg(target_arch = "x86_64")]
fn tiled_prefill(head_dim: usize, skip: bool) -> Option<PrefillKernel> {
    Some(match (head_dim, skip) {
        (64, false) => tiled::<64, false>,
        (64, true) => tiled::<64, true>,
        (128, false) => tiled::<128, false>,
        (128, true) => tiled::<128, true>,
        (256, false) => tiled::<256, false>,
        (256, true) => tiled::<256, true>,
        _ => return None,
    })
}

/// Compiles the kernels over one set of lanes: `$nl` lanes a vector, `$nv` vectors a panel.
macro_rules! kernels {
    ($module:ident, $lanes:ty, $nl:literal, $nv:literal, $(#[$feature:meta])?) => {
        mod $module {
            use super::*;

            $(#[$feature])?
            unsafe fn run<const D: usize, const SKIP: bool>(call: &Prefill<'_>, item: &prefill::Item, scratch: &mut Scratch) {
                // SAFETY: the caller has detected the features and keeps the kernel's contract.
                unsafe { prefill::run::<Vector<'_, $lanes, D, $nv, { $nl * $nv }>, D, SKIP>(call, item, scratch) }
            }

            $(#[$feature])?
            unsafe fn scan<const D: usize>(call: &Decode<'_>, item: decode::Item, scratch: &mut Scratch) {
                // SAFETY: as above.
                unsafe { decode::scan::<$lanes, D, $nl, $nv>(call, item, scratch) }
            }

            $(#[$feature])?
            unsafe fn gather_survivors<const D: usize>(call: &Decode<'_>, item: decode::Item, scratch: &mut Scratch) {
                // SAFETY: as above.
                unsafe { decode::gather_survivors::<$lanes, D, $nl, $nv>(call, item, scratch) }
            }

            pub(super) fn prefill(head_dim: usize, skip: bool) -> Option<PrefillKernel> {
                Some(match (head_dim, skip) {
                    (64, false) => run::<64, false>,
                    (64, true) => run::<64, true>,
                    (128, false) => run::<128, false>,
                    (128, true) => run::<128, true>,
                    (256, false) => run::<256, false>,
                    (256, true) => run::<256, true>,
                    _ => return None,
                })
            }

            pub(super) fn decode(head_dim: usize) -> Option<DecodeKernels> {
                Some(match head_dim {
                    64 => DecodeKernels { scan: scan::<64>, gather_survivors: gather_survivors::<64> },
                    128 => DecodeKernels { scan: scan::<128>, gather_survivors: gather_survivors::<128> },
                    256 => DecodeKernels { scan: scan::<256>, gather_survivors: gather_survivors::<256> },
                    _ => return None,
                })
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
use super::tiled::Tiled;
#[cfg(target_arch = "x86_64")]
use crate::cpu::lanes::x86::{Avx2, Avx512};
#[cfg(target_arch = "x86_64")]
kernels!(avx512, Avx512, 16, 4, #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,f16c")]);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, Avx2, 8, 2, #[target_feature(enable = "avx2,fma,f16c")]);
#[cfg(target_arch = "aarch64")]
use crate::cpu::lanes::neon::Neon;
#[cfg(target_arch = "aarch64")]
kernels!(neon, Neon, 8, 2, #[target_feature(enable = "neon")]);
kernels!(portable, Portable, 8, 2,);
