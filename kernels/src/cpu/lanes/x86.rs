//! AVX-512 and AVX2 vectors.

use super::{EXP2, EXP2_FLOOR, Lanes};
use crate::pages::KvFormat;
use std::arch::x86_64::*;

/// AVX-512 with F, DQ, BW and VL: 16 lanes.
#[derive(Clone, Copy)]
pub struct Avx512;

// SAFETY: used only inside functions compiled for these four, after detecting them.
unsafe impl Lanes for Avx512 {
    const N: usize = 16;
    type V = __m512;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: the trait's contract: features are there. The same holds for every block below.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: features, and 16 readable elements.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        // SAFETY: features, and 16 writable elements.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: features.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: features.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: features.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: features.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: features.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn exp2(x: __m512) -> __m512 {
        // SAFETY: features.
        unsafe {
            let floor = _mm512_set1_ps(EXP2_FLOOR);
            let normal = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, floor);
            let y = _mm512_max_ps(x, floor);
            let r = _mm512_reduce_ps::<0b1001>(y); // y − ⌊y⌋
            let mut p = _mm512_set1_ps(EXP2[4]);
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP2[3]));
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP2[2]));
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP2[1]));
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP2[0]));
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0));
            _mm512_maskz_scalef_ps(normal, p, y) // p · 2^⌊y⌋
        }
    }
    #[inline(always)]
    unsafe fn load_half(p: *const u16, format: KvFormat) -> __m512 {
        // SAFETY: features, and 16 readable elements.
        unsafe {
            let bits = _mm256_loadu_si256(p.cast());
            match format {
                KvFormat::Bf16 => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits))),
                KvFormat::Fp16 => _mm512_cvtph_ps(bits),
            }
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(p: *const u32, format: KvFormat) -> (__m512, __m512) {
        // SAFETY: features, and 16 readable pairs.
        unsafe {
            let both = _mm512_loadu_si512(p.cast());
            match format {
                KvFormat::Bf16 => {
                    let upper = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32));
                    (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)), _mm512_castsi512_ps(upper))
                }
                KvFormat::Fp16 => {
                    let half = |pairs| _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
                    (half(both), half(_mm512_srli_epi32::<16>(both)))
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn prefetch<T>(p: *const T) {
        // SAFETY: features; a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn sums(rows: *const __m512) -> __m512 {
        // SAFETY: features, and 16 vectors.
        unsafe {
            let (x, y, z, w) = (quad512(rows), quad512(rows.add(4)), quad512(rows.add(8)), quad512(rows.add(12)));
            let xy = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(x, y), _mm512_shuffle_f32x4::<0xEE>(x, y));
            let zw = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(z, w), _mm512_shuffle_f32x4::<0xEE>(z, w));
            _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(xy, zw), _mm512_shuffle_f32x4::<0xDD>(xy, zw))
        }
    }
}

/// In each 128-bit part, the sums over that part of four vectors.
///
/// # Safety
/// Four readable vectors; AVX-512.
#[inline(always)]
unsafe fn quad512(rows: *const __m512) -> __m512 {
    // SAFETY: the caller's contract.
    unsafe {
        let (a, b, c, d) = (*rows, *rows.add(1), *rows.add(2), *rows.add(3));
        let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)))
    }
}

/// AVX2 with FMA and F16C: 8 lanes.
#[derive(Clone, Copy)]
pub struct Avx2;

// SAFETY: used only inside functions compiled for avx2, fma and f16c, after detecting all three.
unsafe impl Lanes for Avx2 {
    const N: usize = 8;
    type V = __m256;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: the trait's contract: features are there. The same holds for every block below.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        // SAFETY: features, and 8 readable elements.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        // SAFETY: features, and 8 writable elements.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: features.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        // SAFETY: features.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: features.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        // SAFETY: features.
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: features.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn exp2(x: __m256) -> __m256 {
        // SAFETY: features.
        unsafe {
            let floor = _mm256_set1_ps(EXP2_FLOOR);
            let normal = _mm256_cmp_ps::<_CMP_GT_OQ>(x, floor);
            let y = _mm256_max_ps(x, floor);
            let n = _mm256_floor_ps(y);
            let r = _mm256_sub_ps(y, n);
            let mut p = _mm256_set1_ps(EXP2[4]);
            p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP2[3]));
            p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP2[2]));
            p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP2[1]));
            p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP2[0]));
            p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0));
            let power = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)));
            _mm256_and_ps(normal, _mm256_mul_ps(p, _mm256_castsi256_ps(power)))
        }
    }
    #[inline(always)]
    unsafe fn load_half(p: *const u16, format: KvFormat) -> __m256 {
        // SAFETY: features, and 8 readable elements.
        unsafe {
            let bits = _mm_loadu_si128(p.cast());
            match format {
                KvFormat::Bf16 => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits))),
                KvFormat::Fp16 => _mm256_cvtph_ps(bits),
            }
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(p: *const u32, format: KvFormat) -> (__m256, __m256) {
        // SAFETY: features, and 8 readable pairs.
        unsafe {
            let both = _mm256_loadu_si256(p.cast());
            match format {
                KvFormat::Bf16 => {
                    let upper = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32 as i32));
                    (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)), _mm256_castsi256_ps(upper))
                }
                KvFormat::Fp16 => {
                    // in each 128-bit part the lower halves, then the upper ones; then all lower ones, all upper ones
                    let order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
                    let apart = _mm256_permute4x64_epi64::<0xD8>(_mm256_shuffle_epi8(both, _mm256_broadcastsi128_si256(order)));
                    (_mm256_cvtph_ps(_mm256_castsi256_si128(apart)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(apart)))
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn prefetch<T>(p: *const T) {
        // SAFETY: features; a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn sums(rows: *const __m256) -> __m256 {
        // SAFETY: features, and 8 vectors.
        unsafe {
            let x = _mm256_hadd_ps(_mm256_hadd_ps(*rows, *rows.add(1)), _mm256_hadd_ps(*rows.add(2), *rows.add(3)));
            let y = _mm256_hadd_ps(_mm256_hadd_ps(*rows.add(4), *rows.add(5)), _mm256_hadd_ps(*rows.add(6), *rows.add(7)));
            _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(x, y), _mm256_permute2f128_ps::<0x31>(x, y))
        }
    }
}
