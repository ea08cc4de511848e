//! Tile registers (AMX) for float32 products: each operand is cut into two bfloat16 terms, and the products of terms that matter are added.
//!
//! Two terms hold 17 bits of a float32 and all 11 of an fp16 cache element; a bf16 element is one term. What is left out is below 2⁻¹⁶ of
//! each product, less than storing the cache in 16 bits cost. The compiler knows no tile registers, hence the assembly.

use std::arch::asm;
use std::arch::x86_64::*;

/// Elements of a tile's side in float32, and pairs of bfloat16 in a tile's row.
pub(super) const SIDE: usize = 16;
/// Bytes of a tile's row.
pub(super) const ROW_BYTES: usize = 64;

/// The tile registers, configured (all eight 16 × 64 bytes) as long as this lives.
pub(super) struct Tiles(());

#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: Config = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut tile = 0;
    while tile < 8 {
        (row_bytes[tile], rows[tile]) = (ROW_BYTES as u16, SIDE as u8);
        tile += 1;
    }
    Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

impl Tiles {
    /// # Safety
    /// `Isa::Amx` is available.
    #[inline(always)]
    pub(super) unsafe fn configure() -> Self {
        // SAFETY: the caller's contract; the shapes are palette 1's largest.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly)) };
        Self(())
    }

    /// Clears the four accumulators.
    #[inline(always)]
    pub(super) fn zero(&mut self) {
        // SAFETY: configured.
        unsafe { asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem)) };
    }

    /// Fills the accumulators from four tiles of 1 KB.
    ///
    /// # Safety
    /// Four readable tiles.
    #[inline(always)]
    pub(super) unsafe fn load(&mut self, from: [*const f32; 4]) {
        // SAFETY: the caller's contract.
        unsafe {
            asm!(
                "tileloadd tmm0, [{a} + {s}*1]",
                "tileloadd tmm1, [{b} + {s}*1]",
                "tileloadd tmm2, [{c} + {s}*1]",
                "tileloadd tmm3, [{d} + {s}*1]",
                a = in(reg) from[0], b = in(reg) from[1], c = in(reg) from[2], d = in(reg) from[3], s = in(reg) ROW_BYTES,
                options(nostack, readonly)
            );
        }
    }

    /// Stores the accumulators as four tiles of 1 KB.
    ///
    /// # Safety
    /// Four writable tiles.
    #[inline(always)]
    pub(super) unsafe fn store(&mut self, to: [*mut f32; 4]) {
        // SAFETY: the caller's contract.
        unsafe {
            asm!(
                "tilestored [{a} + {s}*1], tmm0",
                "tilestored [{b} + {s}*1], tmm1",
                "tilestored [{c} + {s}*1], tmm2",
                "tilestored [{d} + {s}*1], tmm3",
                a = in(reg) to[0], b = in(reg) to[1], c = in(reg) to[2], d = in(reg) to[3], s = in(reg) ROW_BYTES,
                options(nostack)
            );
        }
    }

    /// Adds the products of a 32 × 32 left and a 32 × 32 right operand to the accumulators (left 0 · right 0, left 0 · right 1, left 1 ·
    /// right 0, left 1 · right 1): the left's first term with both of the right's, and its second, where it has one, with the right's first.
    ///
    /// # Safety
    /// Readable tiles with their row strides.
    #[inline(always)]
    pub(super) unsafe fn multiply(&mut self, left: &Left, right: &Right) {
        // SAFETY: the caller's contract.
        unsafe {
            asm!(
                "tileloadd tmm4, [{l0} + {ls}*1]",
                "tileloadd tmm6, [{s0} + {rs}*1]",
                "tileloadd tmm7, [{s1} + {rs}*1]",
                "tileloadd tmm5, [{l1} + {ls}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm6, [{r0} + {rs}*1]",
                "tileloadd tmm7, [{r1} + {rs}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                l0 = in(reg) left.first[0], l1 = in(reg) left.first[1], ls = in(reg) left.stride,
                r0 = in(reg) right.first[0], r1 = in(reg) right.first[1],
                s0 = in(reg) right.second[0], s1 = in(reg) right.second[1], rs = in(reg) right.stride,
                options(nostack, readonly)
            );
            if let Some(second) = left.second {
                asm!(
                    "tileloadd tmm4, [{l0} + {ls}*1]",
                    "tileloadd tmm5, [{l1} + {ls}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    l0 = in(reg) second[0], l1 = in(reg) second[1], ls = in(reg) left.stride,
                    options(nostack, readonly)
                );
            }
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: gives the registers back, so that the system need not save them when the thread is switched out.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Left operand: two tiles of 16 rows × 32 bfloat16, `stride` bytes from row to row; the second term of the cache's elements, if any.
pub(super) struct Left {
    pub first: [*const u16; 2],
    pub second: Option<[*const u16; 2]>,
    pub stride: usize,
}

/// Right operand: two tiles of 16 pairs × 16 columns, and the second terms.
pub(super) struct Right {
    pub first: [*const u32; 2],
    pub second: [*const u32; 2],
    pub stride: usize,
}

const HIGH: i32 = 0xFFFF_0000u32 as i32;

/// The upper halves of `odd` and `even`, as pairs (even low).
#[inline(always)]
unsafe fn pairs(even: __m512i, odd: __m512i) -> __m512i {
    // SAFETY: AVX-512, as everywhere in this file.
    unsafe { _mm512_or_si512(_mm512_srli_epi32::<16>(even), _mm512_and_si512(odd, _mm512_set1_epi32(HIGH))) }
}

/// Bits whose upper half is the bfloat16 nearest to `x` (ties away from zero).
#[inline(always)]
unsafe fn nearest(x: __m512) -> __m512i {
    // SAFETY: AVX-512.
    unsafe { _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000)) }
}

/// `x` in two terms, each in the upper halves: the nearest bfloat16, and the nearest to what that leaves (exact for an fp16 `x`).
#[inline(always)]
unsafe fn terms(x: __m512) -> (__m512i, __m512i) {
    // SAFETY: AVX-512.
    unsafe {
        let first = nearest(x);
        let rest = _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_and_si512(first, _mm512_set1_epi32(HIGH))));
        (first, nearest(rest))
    }
}

/// Two neighbouring rows as pairs, in two terms.
#[inline(always)]
pub(super) unsafe fn split_pairs(even: __m512, odd: __m512) -> (__m512i, __m512i) {
    // SAFETY: AVX-512.
    unsafe {
        let (even, odd) = (terms(even), terms(odd));
        (pairs(even.0, odd.0), pairs(even.1, odd.1))
    }
}

/// 32 neighbouring elements in order, in two terms.
#[inline(always)]
pub(super) unsafe fn split_row(a: __m512, b: __m512) -> (__m512i, __m512i) {
    // SAFETY: AVX-512.
    unsafe {
        let (a, b) = (terms(a), terms(b));
        (narrow(a.0, b.0), narrow(a.1, b.1))
    }
}

/// The upper halves of `a`, then those of `b`.
#[inline(always)]
unsafe fn narrow(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: AVX-512.
    unsafe {
        let (a, b) = (_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(a)), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(b)));
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b)
    }
}

/// Transposes 16 × 16 elements of 32 bits.
#[inline(always)]
pub(super) unsafe fn transpose(r: &mut [__m512i; SIDE]) {
    // SAFETY: AVX-512.
    unsafe {
        let mut t = *r;
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        // u[4g + c]: in 128-bit part p, column 4p + c of rows 4g .. 4g + 3
        let mut u = t;
        for i in (0..SIDE).step_by(4) {
            u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
            u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
            u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
            u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
        }
        for c in 0..4 {
            let (x, y) = (_mm512_shuffle_i32x4::<0x88>(u[c], u[4 + c]), _mm512_shuffle_i32x4::<0xDD>(u[c], u[4 + c]));
            let (z, w) = (_mm512_shuffle_i32x4::<0x88>(u[8 + c], u[12 + c]), _mm512_shuffle_i32x4::<0xDD>(u[8 + c], u[12 + c]));
            r[c] = _mm512_shuffle_i32x4::<0x88>(x, z);
            r[4 + c] = _mm512_shuffle_i32x4::<0x88>(y, w);
            r[8 + c] = _mm512_shuffle_i32x4::<0xDD>(x, z);
            r[12 + c] = _mm512_shuffle_i32x4::<0xDD>(y, w);
        }
    }
}
