//! Which instruction sets there are, and the kernels compiled for each.

use super::decode::{self, Decode};
use super::lanes::Portable;
use super::prefill::{self, Prefill};
use super::scratch::Scratch;
use super::vector::Vector;

/// Head sizes that kernels are compiled for.
pub(super) const HEAD_DIMS: [usize; 3] = [64, 128, 256];

/// An instruction set with kernels of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isa {
    /// AVX-512 with bfloat16 tile products (AMX) in prefill.
    Amx,
    /// AVX-512 F, DQ, BW and VL.
    Avx512,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// Whatever the compiler targets.
    Portable,
}

pub(super) type PrefillKernel = unsafe fn(&Prefill<'_>, &prefill::Item, &mut Scratch);
type DecodeKernel = unsafe fn(&Decode<'_>, decode::Item, &mut Scratch);

/// The two passes of decode.
#[derive(Clone, Copy)]
pub(super) struct DecodeKernels {
    pub scan: DecodeKernel,
    pub gather_survivors: DecodeKernel,
}

impl Isa {
    /// The instruction sets of this processor, best first.
    pub fn available() -> Vec<Isa> {
        let mut sets = vec![Isa::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                sets.insert(0, Isa::Avx2);
            }
            let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq");
            if avx512 && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
                sets.insert(0, Isa::Avx512);
                if tiles_available() {
                    sets.insert(0, Isa::Amx);
                }
            }
        }
        sets
    }

    /// The best of them, looked up once.
    pub fn best() -> Isa {
        static BEST: std::sync::OnceLock<Isa> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| Self::available()[0])
    }

    /// Its name in status.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Amx => "avx512+amx",
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2",
            Isa::Portable => "portable",
        }
    }

    pub(super) fn prefill(self, head_dim: usize, skip: bool) -> Option<PrefillKernel> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => tiled_prefill(head_dim, skip),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::prefill(head_dim, skip),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::prefill(head_dim, skip),
            _ => portable::prefill(head_dim, skip),
        }
    }

    pub(super) fn decode(self, head_dim: usize) -> Option<DecodeKernels> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx | Isa::Avx512 => avx512::decode(head_dim),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::decode(head_dim),
            _ => portable::decode(head_dim),
        }
    }
}

/// Whether the processor has tile registers for bfloat16 and the system gives them to this process.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tiles_available() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    if __cpuid(0).eax < 7 || __cpuid_count(7, 0).edx & (AMX_BF16 | AMX_TILE) != AMX_BF16 | AMX_TILE {
        return false;
    }
    // Linux: permission for the whole process to use feature 18, tile data
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call changes nothing but this permission; a system that does not know it returns an error.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn tiles_available() -> bool {
    false
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
use super::{
    tiled::Tiled,
    x86::{Avx2, Avx512},
};
#[cfg(target_arch = "x86_64")]
kernels!(avx512, Avx512, 16, 4, #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,f16c")]);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, Avx2, 8, 2, #[target_feature(enable = "avx2,fma,f16c")]);
kernels!(portable, Portable, 8, 2,);
