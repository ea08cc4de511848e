//! Kernel of bfloat16 activations and weights by AVX-512's dot products of pairs.
//!
//! A tile keeps R rows × P panels of sums in registers: many rows with one panel reuse each weight, few rows with several panels
//! hide the latency of the sums.

use std::arch::x86_64::*;

use super::Strip;
use crate::cpu::weights::PANEL;

/// Vectors a panel.
const VECS: usize = 2;
/// Weights asked for ahead of their use: 2 KiB, which the hardware's own prefetch does not reach across pages (measured: a sixth faster).
const AHEAD: usize = 512;

/// bfloat16 activations, in pairs.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub unsafe fn bfloat16(strip: Strip<u32, u32>) {
    let mut panel = 0;
    let panels = strip.cols.div_ceil(PANEL);
    // SAFETY: the caller's promise; tiles stay within the strip's rows and panels.
    unsafe {
        while panel < panels {
            let several = if strip.rows <= 4 && panel + 2 <= panels { 2 } else { 1 };
            let mut row = 0;
            while row < strip.rows {
                row += match (strip.rows - row, several) {
                    (1, 2) => bfloat16_tile::<1, 2>(&strip, panel, row),
                    (2..4, 2) => bfloat16_tile::<2, 2>(&strip, panel, row),
                    (_, 2) => bfloat16_tile::<4, 2>(&strip, panel, row),
                    (12.., _) => bfloat16_tile::<12, 1>(&strip, panel, row),
                    (8.., _) => bfloat16_tile::<8, 1>(&strip, panel, row),
                    (4.., _) => bfloat16_tile::<4, 1>(&strip, panel, row),
                    (2.., _) => bfloat16_tile::<2, 1>(&strip, panel, row),
                    _ => bfloat16_tile::<1, 1>(&strip, panel, row),
                };
            }
            panel += several;
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn bfloat16_tile<const R: usize, const P: usize>(strip: &Strip<u32, u32>, panel: usize, row: usize) -> usize {
    let mut sums = [[[_mm512_setzero_ps(); VECS]; P]; R];
    // SAFETY: rows `row .. row + R` and panels `panel .. panel + P` lie in the strip, with `pairs` pairs each; 512 bits of
    // integers are as good as 32 bfloat16.
    unsafe {
        let x = strip.x.add(row * strip.x_stride);
        let w = strip.w.add(panel * strip.w_stride);
        for p in 0..strip.pairs {
            let mut weights = [[_mm512_setzero_si512(); VECS]; P];
            for (i, weights) in weights.iter_mut().enumerate() {
                for (v, weights) in weights.iter_mut().enumerate() {
                    let line = w.add(i * strip.w_stride + p * PANEL + v * 16);
                    _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(AHEAD).cast());
                    *weights = _mm512_loadu_si512(line.cast());
                }
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_epi32(x.add(r * strip.x_stride + p).read() as i32);
                for (sums, weights) in sums.iter_mut().zip(&weights) {
                    for (sum, &weights) in sums.iter_mut().zip(weights) {
                        *sum = _mm512_dpbf16_ps(
                            *sum,
                            std::mem::transmute::<__m512i, __m512bh>(x),
                            std::mem::transmute::<__m512i, __m512bh>(weights),
                        );
                    }
                }
            }
        }
        store(strip, panel, row, &sums);
    }
    R
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn store<const R: usize, const P: usize>(strip: &Strip<u32, u32>, panel: usize, row: usize, sums: &[[[__m512; VECS]; P]; R]) {
    for (r, sums) in sums.iter().enumerate() {
        for (i, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                let at = (panel + i) * PANEL + v * 16;
                let n = strip.cols.saturating_sub(at).min(16);
                let mask = ((1u32 << n) - 1) as u16;
                // SAFETY: only features below `cols` are written.
                unsafe { _mm512_mask_storeu_ps(strip.out.wrapping_add((row + r) * strip.out_stride + at), mask, sum) };
            }
        }
    }
}
