//! The kernels compiled for each instruction set.

use super::decode::{self, Decode};
use super::notes::Notes;
use super::prefill::{self, Prefill};
use super::scratch::Scratch;
use super::tally::Vote;
use super::vector::Vector;
use super::weigh;
use crate::cpu::isa::Isa;
use crate::cpu::lanes::Portable;

/// Head sizes that kernels are compiled for.
pub(super) const HEAD_DIMS: [usize; 3] = [64, 128, 256];

type PrefillKernel = unsafe fn(&Prefill<'_>, &prefill::Item, &mut Scratch);
type DecodeKernel = unsafe fn(&Decode<'_>, decode::Item, &mut Scratch);

/// Prefill without votes, with them, and without but weighing what could be left out.
#[derive(Clone, Copy)]
pub(super) struct PrefillKernels {
    pub dense: PrefillKernel,
    pub skip: PrefillKernel,
    pub measure: unsafe fn(&Prefill<'_>, &prefill::Item, &mut Scratch, &mut Notes<'_>),
}

/// The two passes of decode, and one that weighs what the first has scored.
#[derive(Clone, Copy)]
pub(super) struct DecodeKernels {
    pub scan: DecodeKernel,
    pub gather_survivors: DecodeKernel,
    pub weigh: unsafe fn(&Decode<'_>, decode::Item, &mut [Vec<Vote>; 2]),
}

/// The kernels of a head size and instruction set.
pub(super) fn prefill(isa: Isa, head_dim: usize) -> Option<PrefillKernels> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => tiles::prefill(head_dim),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => avx512::prefill(head_dim),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::prefill(head_dim),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonBf16 => neon::prefill(head_dim),
        _ => portable::prefill(head_dim),
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

/// Kernels of the head size, out of functions of their names that are generic over it.
macro_rules! by_head_dim {
    ($head_dim:expr, $kernels:ident { $($kernel:ident),+ }) => {
        Some(match $head_dim {
            64 => $kernels { $($kernel: $kernel::<64>),+ },
            128 => $kernels { $($kernel: $kernel::<128>),+ },
            256 => $kernels { $($kernel: $kernel::<256>),+ },
            _ => return None,
        })
    };
}

/// Compiles the kernels of prefill over an engine and its lanes.
macro_rules! prefill_kernels {
    ($engine:ty, $lanes:ty, $(#[$feature:meta])?) => {
        $(#[$feature])?
        unsafe fn dense<const D: usize>(call: &Prefill<'_>, item: &prefill::Item, scratch: &mut Scratch) {
            // SAFETY: the caller has detected the features and keeps the kernel's contract.
            unsafe { prefill::run::<$engine, D, false>(call, item, scratch, &mut ()) }
        }

        $(#[$feature])?
        unsafe fn skip<const D: usize>(call: &Prefill<'_>, item: &prefill::Item, scratch: &mut Scratch) {
            // SAFETY: as above.
            unsafe { prefill::run::<$engine, D, true>(call, item, scratch, &mut ()) }
        }

        $(#[$feature])?
        unsafe fn measure<const D: usize>(call: &Prefill<'_>, item: &prefill::Item, scratch: &mut Scratch, notes: &mut Notes<'_>) {
            // SAFETY: as above.
            unsafe {
                prefill::run::<$engine, D, false>(call, item, scratch, notes);
                notes.weigh::<$lanes>();
            }
        }

        pub(super) fn prefill(head_dim: usize) -> Option<PrefillKernels> {
            by_head_dim!(head_dim, PrefillKernels { dense, skip, measure })
        }
    };
}

/// Compiles the kernels over one set of lanes: `$nl` lanes a vector, `$nv` vectors a panel.
macro_rules! kernels {
    ($module:ident, $lanes:ty, $nl:literal, $nv:literal, $(#[$feature:meta])?) => {
        mod $module {
            use super::*;

            prefill_kernels!(Vector<'_, $lanes, D, $nv, { $nl * $nv }>, $lanes, $(#[$feature])?);

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

            $(#[$feature])?
            unsafe fn weigh<const D: usize>(call: &Decode<'_>, item: decode::Item, votes: &mut [Vec<Vote>; 2]) {
                // SAFETY: as above.
                unsafe { weigh::weigh::<$lanes, $nl>(call, item, votes) }
            }

            pub(super) fn decode(head_dim: usize) -> Option<DecodeKernels> {
                by_head_dim!(head_dim, DecodeKernels { scan, gather_survivors, weigh })
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod tiles {
    use super::*;
    use crate::cpu::attention::tiled::Tiled;

    prefill_kernels!(Tiled<'_, D>, Avx512, #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,f16c")]);
}
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
