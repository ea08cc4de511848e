//! NEON vectors: 8 lanes in two registers, which hide the latency of a sum as well as 8 lanes in one.

use super::{EXP2, EXP2_FLOOR, Lanes};
use crate::pages::KvFormat;
use std::arch::aarch64::*;
use std::arch::asm;

/// NEON, which every aarch64 processor has: 8 lanes.
#[derive(Clone, Copy)]
pub struct Neon;

type Pair = [float32x4_t; 2];

/// Applies `f` to both registers.
#[inline(always)]
fn both(a: Pair, b: Pair, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Pair {
    [f(a[0], b[0]), f(a[1], b[1])]
}

// SAFETY: NEON is there on every aarch64 processor that Rust's standard library runs on.
unsafe impl Lanes for Neon {
    const N: usize = 8;
    type V = Pair;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Pair {
        // SAFETY: the trait's contract: NEON is there. The same holds for every block below.
        unsafe { [vdupq_n_f32(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Pair {
        // SAFETY: NEON, and 8 readable elements.
        unsafe { [vld1q_f32(p), vld1q_f32(p.add(4))] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Pair) {
        // SAFETY: NEON, and 8 writable elements.
        unsafe {
            vst1q_f32(p, v[0]);
            vst1q_f32(p.add(4), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn add(a: Pair, b: Pair) -> Pair {
        // SAFETY: NEON.
        both(a, b, |a, b| unsafe { vaddq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn sub(a: Pair, b: Pair) -> Pair {
        // SAFETY: NEON.
        both(a, b, |a, b| unsafe { vsubq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn mul(a: Pair, b: Pair) -> Pair {
        // SAFETY: NEON.
        both(a, b, |a, b| unsafe { vmulq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn max(a: Pair, b: Pair) -> Pair {
        // SAFETY: NEON.
        both(a, b, |a, b| unsafe { vmaxq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn fma(a: Pair, b: Pair, c: Pair) -> Pair {
        // SAFETY: NEON.
        unsafe { [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn exp2(x: Pair) -> Pair {
        x.map(|x| {
            // SAFETY: NEON.
            unsafe {
                let floor = vdupq_n_f32(EXP2_FLOOR);
                let normal = vcgtq_f32(x, floor);
                let y = vmaxq_f32(x, floor);
                let n = vrndmq_f32(y);
                let r = vsubq_f32(y, n);
                let mut p = vdupq_n_f32(EXP2[4]);
                for c in [EXP2[3], EXP2[2], EXP2[1], EXP2[0], 1.0] {
                    p = vfmaq_f32(vdupq_n_f32(c), p, r);
                }
                let power = vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)));
                let scaled = vmulq_f32(p, vreinterpretq_f32_s32(power));
                vreinterpretq_f32_u32(vandq_u32(normal, vreinterpretq_u32_f32(scaled)))
            }
        })
    }
    #[inline(always)]
    unsafe fn load_half(p: *const u16, format: KvFormat) -> Pair {
        // SAFETY: NEON, and 8 readable elements.
        unsafe { widen(vld1q_u16(p), format) }
    }
    #[inline(always)]
    unsafe fn load_pairs(p: *const u32, format: KvFormat) -> (Pair, Pair) {
        // SAFETY: NEON, and 8 readable pairs.
        unsafe {
            match format {
                KvFormat::Bf16 => {
                    let pairs = [vld1q_u32(p), vld1q_u32(p.add(4))];
                    let upper = vdupq_n_u32(0xffff_0000);
                    (
                        pairs.map(|pair| vreinterpretq_f32_u32(vshlq_n_u32::<16>(pair))),
                        pairs.map(|pair| vreinterpretq_f32_u32(vandq_u32(pair, upper))),
                    )
                }
                KvFormat::Fp16 => {
                    let apart = vld2q_u16(p.cast());
                    (widen(apart.0, format), widen(apart.1, format))
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn sums(rows: *const Pair) -> Pair {
        // SAFETY: NEON, and 8 vectors.
        unsafe {
            let row = |i: usize| {
                let [a, b] = *rows.add(i);
                vaddq_f32(a, b)
            };
            let four = |i: usize| vpaddq_f32(vpaddq_f32(row(i), row(i + 1)), vpaddq_f32(row(i + 2), row(i + 3)));
            [four(0), four(4)]
        }
    }
    #[inline(always)]
    unsafe fn prefetch<T>(p: *const T) {
        // SAFETY: a prefetch never faults.
        unsafe { asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags, readonly)) }
    }
}

/// Eight 16-bit elements in float32.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn widen(bits: uint16x8_t, format: KvFormat) -> Pair {
    // SAFETY: the caller's contract.
    unsafe {
        match format {
            KvFormat::Bf16 => {
                let zero = vdupq_n_u16(0);
                [vreinterpretq_f32_u16(vzip1q_u16(zero, bits)), vreinterpretq_f32_u16(vzip2q_u16(zero, bits))]
            }
            KvFormat::Fp16 => {
                let half = vreinterpretq_f16_u16(bits);
                [vcvt_f32_f16(vget_low_f16(half)), vcvt_high_f32_f16(half)]
            }
        }
    }
}
