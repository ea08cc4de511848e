//! Kernels of float32 activations, written once over vectors: weights of any format are widened as they are read.
//!
//! A tile keeps R rows × NV vectors of sums in registers: many rows reuse each weight, one row with many vectors hides the latency
//! of the sums.

use super::{Kernel, Strip};
use crate::cpu::isa::Isa;
use crate::cpu::lanes::{Lanes, Portable};
use crate::cpu::weights::PANEL;
use crate::pages::KvFormat;

/// Bytes of weights asked for ahead of their use, which the hardware's own prefetch does not reach across pages (measured: a sixth faster).
const AHEAD: usize = 2048;

/// Packed weights of one format.
trait Source {
    /// Elements they are stored in.
    type W;
    /// Elements from one pair of inputs to the next.
    const STEP: usize;
    /// The weights of a pair's two inputs for `N` features.
    ///
    /// # Safety
    /// The features of `L`, and the pair's weights of as many features behind `w`.
    unsafe fn pair<L: Lanes>(w: *const Self::W) -> (L::V, L::V);
}

struct Bf16;
struct Fp16;
struct Fp32;

impl Source for Bf16 {
    type W = u32;
    const STEP: usize = PANEL;
    #[inline(always)]
    unsafe fn pair<L: Lanes>(w: *const u32) -> (L::V, L::V) {
        // SAFETY: the caller's contract.
        unsafe { L::load_pairs(w, KvFormat::Bf16) }
    }
}

impl Source for Fp16 {
    type W = u32;
    const STEP: usize = PANEL;
    #[inline(always)]
    unsafe fn pair<L: Lanes>(w: *const u32) -> (L::V, L::V) {
        // SAFETY: the caller's contract.
        unsafe { L::load_pairs(w, KvFormat::Fp16) }
    }
}

impl Source for Fp32 {
    type W = f32;
    const STEP: usize = 2 * PANEL;
    #[inline(always)]
    unsafe fn pair<L: Lanes>(w: *const f32) -> (L::V, L::V) {
        // SAFETY: the caller's contract; the second input's weights are a panel's width behind the first's.
        unsafe { (L::load(w), L::load(w.add(PANEL))) }
    }
}

/// Computes a strip: one row with `WIDE` vectors at a time, two or three with half of them, more with `NV`, up to `R` rows at once.
///
/// # Safety
/// A kernel's, with the features of `L`.
#[inline(always)]
unsafe fn strip<L: Lanes, S: Source, const R: usize, const NV: usize, const MID: usize, const WIDE: usize>(strip: Strip<f32, S::W>) {
    const { assert!(PANEL.is_multiple_of(NV * L::N) && WIDE * L::N <= 2 * PANEL && (2 * PANEL).is_multiple_of(MID * L::N)) };
    let padded = strip.cols.next_multiple_of(PANEL);
    let mut at = 0;
    // SAFETY: tiles stay within the strip's rows and panels.
    unsafe {
        while at < padded {
            let left = padded - at;
            if strip.rows == 1 && left >= WIDE * L::N {
                tile::<L, S, 1, WIDE>(&strip, at, 0);
                at += WIDE * L::N;
                continue;
            }
            if (2..4).contains(&strip.rows) && left >= MID * L::N {
                match strip.rows {
                    2 => tile::<L, S, 2, MID>(&strip, at, 0),
                    _ => tile::<L, S, 3, MID>(&strip, at, 0),
                };
                at += MID * L::N;
                continue;
            }
            let mut row = 0;
            while row < strip.rows {
                let rows = strip.rows - row;
                row += if rows >= R {
                    tile::<L, S, R, NV>(&strip, at, row)
                } else if rows >= 8 && R > 8 {
                    tile::<L, S, 8, NV>(&strip, at, row)
                } else if rows >= 4 {
                    tile::<L, S, 4, NV>(&strip, at, row)
                } else if rows >= 2 {
                    tile::<L, S, 2, NV>(&strip, at, row)
                } else {
                    tile::<L, S, 1, NV>(&strip, at, row)
                };
            }
            at += NV * L::N;
        }
    }
}

/// Rows `row .. row + R`, features `at .. at + NV · N`. Returns R.
///
/// # Safety
/// The strip has them, the features filled up to whole panels.
#[inline(always)]
unsafe fn tile<L: Lanes, S: Source, const R: usize, const NV: usize>(strip: &Strip<f32, S::W>, at: usize, row: usize) -> usize {
    // SAFETY: the caller's contract; panels have `pairs` pairs, rows as many inputs.
    unsafe {
        let mut sums = [[L::splat(0.0); NV]; R];
        let x = strip.x.add(row * strip.x_stride);
        let w: [*const S::W; NV] = std::array::from_fn(|v| {
            let at = at + v * L::N;
            strip.w.add(at / PANEL * strip.w_stride + at % PANEL)
        });
        for p in 0..strip.pairs {
            let mut weights = [(L::splat(0.0), L::splat(0.0)); NV];
            for (weights, w) in weights.iter_mut().zip(w) {
                let w = w.add(p * S::STEP);
                L::prefetch(w.wrapping_byte_add(AHEAD));
                *weights = S::pair::<L>(w);
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = x.add(r * strip.x_stride + 2 * p);
                let (first, second) = (L::splat(*x), L::splat(*x.add(1)));
                for (sum, weights) in sums.iter_mut().zip(&weights) {
                    *sum = L::fma(second, weights.1, L::fma(first, weights.0, *sum));
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                let at = at + v * L::N;
                let out = strip.out.wrapping_add((row + r) * strip.out_stride + at);
                if at + L::N <= strip.cols {
                    L::store(out, sum);
                } else if at < strip.cols {
                    let mut last = [0.0; PANEL];
                    L::store(last.as_mut_ptr(), sum);
                    std::ptr::copy_nonoverlapping(last.as_ptr(), out, strip.cols - at);
                }
            }
        }
    }
    R
}

/// Compiles the kernels over one set of lanes, with `strip`'s numbers.
macro_rules! kernels {
    ($module:ident, $lanes:ty, [$($numbers:literal),*], $(#[$feature:meta])?) => {
        mod $module {
            use super::*;

            $(#[$feature])?
            pub unsafe fn bf16(part: Strip<f32, u32>) {
                // SAFETY: the caller's promise.
                unsafe { strip::<$lanes, Bf16, $($numbers),*>(part) }
            }

            $(#[$feature])?
            pub unsafe fn fp16(part: Strip<f32, u32>) {
                // SAFETY: the caller's promise.
                unsafe { strip::<$lanes, Fp16, $($numbers),*>(part) }
            }

            $(#[$feature])?
            pub unsafe fn fp32(part: Strip<f32, f32>) {
                // SAFETY: the caller's promise.
                unsafe { strip::<$lanes, Fp32, $($numbers),*>(part) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
use crate::cpu::lanes::x86::{Avx2, Avx512};
#[cfg(target_arch = "x86_64")]
kernels!(avx512, Avx512, [12, 2, 4, 4], #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, Avx2, [4, 2, 4, 8], #[target_feature(enable = "avx2,fma,f16c")]);
#[cfg(target_arch = "aarch64")]
use crate::cpu::lanes::neon::Neon;
#[cfg(target_arch = "aarch64")]
kernels!(neon, Neon, [6, 2, 4, 8], #[target_feature(enable = "neon")]);
kernels!(portable, Portable, [4, 2, 2, 4],);

/// The kernel of a module, by instruction set.
macro_rules! choose {
    ($isa:expr, $name:ident) => {
        match $isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => avx512::$name,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::$name,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::NeonBf16 => neon::$name,
            _ => portable::$name,
        }
    };
}

/// The kernel of bfloat16 weights.
pub fn bf16_kernel(isa: Isa) -> Kernel<f32, u32> {
    choose!(isa, bf16)
}

/// The kernel of binary16 weights.
pub fn fp16_kernel(isa: Isa) -> Kernel<f32, u32> {
    choose!(isa, fp16)
}

/// The kernel of binary32 weights.
pub fn fp32_kernel(isa: Isa) -> Kernel<f32, f32> {
    choose!(isa, fp32)
}
