//! The AMX engine of prefill: scores and weighted values on tile registers, exponentials in AVX-512.
//!
//! Scores come out as `[key][row]` in blocks of 16 rows, like the vector engine's; their exponentials, two keys a pair, are the right
//! operand of Vᵀ · P, whose accumulators are `[element][row]`, so that rescaling is a multiplication down the elements too.

use super::amx::{self, Left, ROW_BYTES, Right, SIDE, Tiles};
use super::prefill::{Edge, Engine, Item, Prefill, ROWS, Rows};
use super::scratch::Scratch;
use super::tile;
use crate::cpu::lanes::Lanes;
use crate::cpu::lanes::x86::Avx512;
use crate::pages::{KvFormat, PAGE};
use std::arch::x86_64::*;

/// Keys and rows of one step: two tiles.
const STEP: usize = 2 * SIDE;
/// Elements of a 1 KB tile of 32-bit elements.
const TILE: usize = SIDE * SIDE;
/// Blocks of 16 rows.
const BLOCKS: usize = ROWS / SIDE;
static ZEROS: [u16; SIDE] = [0; SIDE];
/// bfloat16 terms of queries and exponentials.
const TERMS: usize = 2;

pub(super) struct Tiled<'s, const D: usize> {
    tiles: Tiles,
    /// Second terms are there (fp16 caches).
    second: bool,
    /// `[term][128][D]` bfloat16.
    k: &'s mut [u16],
    /// `[term][D / 16][4 chunks of 32 keys]` left tiles of Vᵀ.
    v: &'s mut [u32],
    /// `[head][term][block][D / 32]` right tiles.
    q: &'s mut [u32],
    /// `[block][128][16]`; after the exponentials, pairs of keys: a row of first terms, a row of second terms.
    scores: &'s mut [f32],
    /// `[head][block][D][16]`.
    acc: &'s mut [f32],
    row_max: &'s mut [f32],
    sum: &'s mut [f32],
    tile_max: &'s mut [f32],
    tile_sum: &'s mut [f32],
    /// `[16][D]`.
    rows: &'s mut [f32],
}

/// Keys that the 32 rows from `at` on reach, in whole steps.
fn reach(edge: Edge, at: usize) -> usize {
    edge.mask_at(at).reach(STEP.min(edge.rows - at), edge.keys).next_multiple_of(STEP)
}

// SAFETY: needs AVX-512 F, BW, DQ, VL and AMX with bfloat16; every pointer is into a buffer of the size said at its field.
unsafe impl<'s, const D: usize> Engine<'s, D> for Tiled<'s, D> {
    #[inline(always)]
    unsafe fn new(call: &Prefill<'_>, item: &Item, scratch: &'s mut Scratch) -> Self {
        const { assert!(D.is_multiple_of(STEP) && PAGE.is_multiple_of(STEP) && ROWS.is_multiple_of(STEP)) };
        let heads = item.heads.len();
        let sizes = [PAGE * D, PAGE * D, heads * ROWS * D, ROWS * PAGE, heads * ROWS * D, heads * ROWS, heads * ROWS, ROWS, ROWS, SIDE * D];
        let [k, v, q, scores, acc, row_max, sum, tile_max, tile_sum, rows] = scratch.parts(sizes);
        acc.fill(0.0);
        sum.fill(0.0);
        row_max.fill(f32::NEG_INFINITY);
        let q: &mut [u32] = bytemuck::cast_slice_mut(q);
        for (h, q) in q.chunks_exact_mut(ROWS * D).enumerate() {
            // SAFETY: features as for the engine.
            unsafe { pack_queries::<D>(&call.rows(item, h), item.rows.len(), call.scale(), q) };
        }
        Self {
            // SAFETY: AMX is there.
            tiles: unsafe { Tiles::configure() },
            second: true,
            k: bytemuck::cast_slice_mut(k),
            v: bytemuck::cast_slice_mut(v),
            q,
            scores,
            acc,
            row_max,
            sum,
            tile_max,
            tile_sum,
            rows,
        }
    }

    #[inline(always)]
    unsafe fn load_keys(&mut self, page: &[u16], format: KvFormat, keys: usize) {
        self.second = format != KvFormat::Bf16;
        let (first, second) = self.k.split_at_mut(PAGE * D);
        first[keys * D..].fill(0);
        if !self.second {
            first[..keys * D].copy_from_slice(&page[..keys * D]);
            return;
        }
        second[keys * D..].fill(0);
        for i in (0..keys * D).step_by(STEP) {
            // SAFETY: D is a multiple of 32, so 32 elements from i on exist in all three.
            unsafe {
                let page = page[i..i + STEP].as_ptr();
                let (a, b) = amx::split_row(Avx512::load_half(page, format), Avx512::load_half(page.add(SIDE), format));
                _mm512_storeu_si512(first[i..i + STEP].as_mut_ptr().cast(), a);
                _mm512_storeu_si512(second[i..i + STEP].as_mut_ptr().cast(), b);
            }
        }
    }

    #[inline(always)]
    unsafe fn load_values(&mut self, page: &[u16], format: KvFormat, keys: usize) {
        let (first, second) = self.v.split_at_mut(PAGE / 2 * D);
        for column in (0..D).step_by(SIDE) {
            for chunk in 0..PAGE / STEP {
                let at = (column / SIDE * (PAGE / STEP) + chunk) * TILE;
                // SAFETY: 16 elements of the rows that exist; a whole tile of either term.
                unsafe {
                    let mut a = [_mm512_setzero_si512(); SIDE];
                    let mut b = a;
                    for (pair, (a, b)) in a.iter_mut().zip(&mut b).enumerate() {
                        let key = chunk * STEP + 2 * pair;
                        let row = |key: usize| {
                            if key < keys { page[key * D + column..][..SIDE].as_ptr() } else { ZEROS.as_ptr() }
                        };
                        let (even, odd) = (Avx512::load_half(row(key), format), Avx512::load_half(row(key + 1), format));
                        (*a, *b) = amx::split_pairs(even, odd);
                    }
                    amx::transpose(&mut a);
                    store_tile(&a, &mut first[at..at + TILE]);
                    if self.second {
                        amx::transpose(&mut b);
                        store_tile(&b, &mut second[at..at + TILE]);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn scores(&mut self, h: usize, edge: Edge) {
        let plane = ROWS / 2 * D;
        let q = self.q[h * TERMS * plane..(h + 1) * TERMS * plane].as_ptr();
        let (k, s) = (self.k.as_ptr(), self.scores.as_mut_ptr());
        for at in (0..edge.rows).step_by(STEP) {
            let reach = reach(edge, at);
            for key in (0..reach).step_by(STEP) {
                self.tiles.zero();
                for chunk in 0..D / STEP {
                    let keys = |term: usize| [0, SIDE].map(|i| k.wrapping_add((term * PAGE + key + i) * D + chunk * STEP));
                    let rows = |term: usize| [0, 1].map(|i| q.wrapping_add(term * plane + ((at / SIDE + i) * (D / STEP) + chunk) * TILE));
                    let left = Left { first: keys(0), second: self.second.then(|| keys(1)), stride: 2 * D };
                    let right = Right { first: rows(0), second: rows(1), stride: ROW_BYTES };
                    // SAFETY: tiles inside K's and this head's terms.
                    unsafe { self.tiles.multiply(&left, &right) };
                }
                let to = [(0, 0), (0, SIDE), (SIDE, 0), (SIDE, SIDE)].map(|(k, r)| s.wrapping_add((at + r) * PAGE + (key + k) * SIDE));
                // SAFETY: tiles inside the scores.
                unsafe { self.tiles.store(to) };
            }
            for at in [at, at + SIDE] {
                let mask = edge.mask_at(at);
                let (blocks, top) = (&mut self.scores[at * PAGE..][..reach * SIDE], &mut self.tile_max[at..at + SIDE]);
                let (blocks, _) = blocks.as_chunks_mut::<SIDE>();
                let mut max = [f32::NEG_INFINITY; SIDE];
                if edge.keys == PAGE && reach == PAGE && mask.is_open(SIDE, PAGE) {
                    // SAFETY: vectors of 16.
                    unsafe { maxima(blocks, &mut max) };
                } else {
                    tile::mask::<SIDE>(mask, blocks, &mut max);
                }
                top.copy_from_slice(&max);
            }
        }
    }

    fn tile_max(&self) -> &[f32] {
        self.tile_max
    }

    fn tile_sum(&self) -> &[f32] {
        self.tile_sum
    }

    fn row_max(&self, h: usize) -> &[f32] {
        &self.row_max[h * ROWS..(h + 1) * ROWS]
    }

    #[inline(always)]
    unsafe fn accumulate(&mut self, h: usize, edge: Edge) {
        for at in (0..edge.rows).step_by(STEP) {
            let reach = reach(edge, at);
            if reach == 0 {
                continue;
            }
            for at in [at, at + SIDE] {
                let line = h * ROWS + at;
                // SAFETY: 16 statistics, `reach` scores and D accumulators of 16 rows.
                unsafe {
                    let alpha = exponentials(
                        &mut self.scores[at * PAGE..][..reach * SIDE],
                        &mut self.row_max[line..line + SIDE],
                        &mut self.sum[line..line + SIDE],
                        &self.tile_max[at..at + SIDE],
                        &mut self.tile_sum[at..at + SIDE],
                    );
                    rescale(&mut self.acc[line * D..(line + SIDE) * D], alpha);
                }
            }
            let (p, v) = (self.scores.as_ptr().cast::<u32>(), self.v.as_ptr().cast::<u16>());
            let acc = self.acc[h * ROWS * D..(h + 1) * ROWS * D].as_mut_ptr();
            for column in (0..D).step_by(STEP) {
                let to = [(0, 0), (0, SIDE), (SIDE, 0), (SIDE, SIDE)].map(|(c, r)| acc.wrapping_add((at + r) * D + (column + c) * SIDE));
                // SAFETY: tiles inside this head's accumulators.
                unsafe { self.tiles.load(to.map(|t| t.cast_const())) };
                for chunk in 0..reach / STEP {
                    let values = |term: usize| {
                        let tile = |i: usize| (column / SIDE + i) * (PAGE / STEP) + chunk;
                        [0, 1].map(|i| v.wrapping_add(term * PAGE * D + tile(i) * 2 * TILE))
                    };
                    let weights = |term: usize| [0, SIDE].map(|r| p.wrapping_add((at + r) * PAGE + (chunk * STEP + term) * SIDE));
                    let left = Left { first: values(0), second: self.second.then(|| values(1)), stride: ROW_BYTES };
                    let right = Right { first: weights(0), second: weights(1), stride: 2 * ROW_BYTES };
                    // SAFETY: tiles inside V's terms and the exponentials.
                    unsafe { self.tiles.multiply(&left, &right) };
                }
                // SAFETY: as for the load.
                unsafe { self.tiles.store(to) };
            }
        }
    }

    #[inline(always)]
    unsafe fn finish(&mut self, h: usize, rows: &mut Rows<'_>, count: usize) {
        for block in 0..count.div_ceil(SIDE) {
            let line = h * ROWS + block * SIDE;
            for column in (0..D).step_by(SIDE) {
                // SAFETY: a tile of the accumulators, and columns of 16 rows of D.
                unsafe {
                    let acc = self.acc[(line * D) + column * SIDE..][..TILE].as_ptr();
                    let mut a: [__m512i; SIDE] = std::array::from_fn(|i| _mm512_loadu_si512(acc.add(i * SIDE).cast()));
                    amx::transpose(&mut a);
                    for (r, a) in a.iter().enumerate() {
                        _mm512_storeu_si512(self.rows[r * D + column..][..SIDE].as_mut_ptr().cast(), *a);
                    }
                }
            }
            for r in 0..SIDE.min(count - block * SIDE) {
                rows.write::<D>(block * SIDE + r, self.row_max[line + r], self.sum[line + r], |out, inverse| {
                    for (out, a) in out.iter_mut().zip(&self.rows[r * D..(r + 1) * D]) {
                        *out = a * inverse;
                    }
                });
            }
        }
    }
}

/// Packs a head's query rows as right tiles, in bits: `[term][block][D / 32][16 pairs][16 rows]`; missing rows are zero.
#[inline(always)]
unsafe fn pack_queries<const D: usize>(rows: &Rows<'_>, count: usize, scale: f32, out: &mut [u32]) {
    let (first, second) = out.split_at_mut(ROWS / 2 * D);
    for block in 0..BLOCKS {
        for chunk in 0..D / STEP {
            let at = (block * (D / STEP) + chunk) * TILE;
            // SAFETY: AVX-512; 32 elements of a query row; whole tiles.
            unsafe {
                let mut a = [_mm512_setzero_si512(); SIDE];
                let mut b = a;
                for r in 0..SIDE.min(count.saturating_sub(block * SIDE)) {
                    let x = &rows.query::<D>(block * SIDE + r)[chunk * STEP..][..STEP];
                    let bits = |x: &[f32]| Avx512::mul(Avx512::load(x.as_ptr()), Avx512::splat(scale));
                    (a[r], b[r]) = amx::split_row(bits(&x[..SIDE]), bits(&x[SIDE..]));
                }
                amx::transpose(&mut a);
                amx::transpose(&mut b);
                store_tile(&a, &mut first[at..at + TILE]);
                store_tile(&b, &mut second[at..at + TILE]);
            }
        }
    }
}

#[inline(always)]
unsafe fn store_tile(rows: &[__m512i; SIDE], out: &mut [u32]) {
    for (row, out) in rows.iter().zip(out.chunks_exact_mut(SIDE)) {
        // SAFETY: AVX-512; 16 elements.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), *row) };
    }
}

/// Maxima of 16 rows down the keys.
#[inline(always)]
unsafe fn maxima(scores: &[[f32; SIDE]], out: &mut [f32; SIDE]) {
    // SAFETY: AVX-512; vectors of 16.
    unsafe {
        let mut top = [Avx512::splat(f32::NEG_INFINITY); 4];
        for keys in scores.chunks_exact(4) {
            for (top, key) in top.iter_mut().zip(keys) {
                *top = Avx512::max(*top, Avx512::load(key.as_ptr()));
            }
        }
        Avx512::store(out.as_mut_ptr(), Avx512::max(Avx512::max(top[0], top[1]), Avx512::max(top[2], top[3])));
    }
}

/// Turns 16 rows' scores into pairs of exponentials in place, updates the statistics, and returns what the accumulators shrink by.
#[inline(always)]
unsafe fn exponentials(scores: &mut [f32], row_max: &mut [f32], sum: &mut [f32], tile_max: &[f32], tile_sum: &mut [f32]) -> __m512 {
    // SAFETY: AVX-512; every slice is a multiple of 16 long, the scores of 32.
    unsafe {
        let old = Avx512::load(row_max.as_ptr());
        let new = Avx512::max(old, Avx512::load(tile_max.as_ptr()));
        Avx512::store(row_max.as_mut_ptr(), new);
        // a row that has seen nothing keeps −∞ and is measured from a finite floor: −∞ − (−∞) never happens
        let from = Avx512::max(new, Avx512::splat(f32::MIN));
        let alpha = Avx512::exp2(Avx512::sub(old, from));
        let mut sums = [Avx512::splat(0.0); 2];
        for pair in scores.chunks_exact_mut(STEP) {
            let even = Avx512::exp2(Avx512::sub(Avx512::load(pair.as_ptr()), from));
            let odd = Avx512::exp2(Avx512::sub(Avx512::load(pair[SIDE..].as_ptr()), from));
            sums = [Avx512::add(sums[0], even), Avx512::add(sums[1], odd)];
            let (first, second) = amx::split_pairs(even, odd);
            _mm512_storeu_si512(pair.as_mut_ptr().cast(), first);
            _mm512_storeu_si512(pair[SIDE..].as_mut_ptr().cast(), second);
        }
        let here = Avx512::add(sums[0], sums[1]);
        Avx512::store(tile_sum.as_mut_ptr(), here);
        let total = Avx512::fma(Avx512::load(sum.as_ptr()), alpha, here);
        Avx512::store(sum.as_mut_ptr(), total);
        alpha
    }
}

/// Shrinks 16 rows' accumulators, if any of them has a new maximum.
#[inline(always)]
unsafe fn rescale(acc: &mut [f32], alpha: __m512) {
    // SAFETY: AVX-512; a multiple of 16 accumulators.
    unsafe {
        if _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(alpha, Avx512::splat(1.0)) == 0 {
            return;
        }
        for acc in acc.chunks_exact_mut(SIDE) {
            Avx512::store(acc.as_mut_ptr(), Avx512::mul(Avx512::load(acc.as_ptr()), alpha));
        }
    }
}
