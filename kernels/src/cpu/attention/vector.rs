//! The float32 engine of prefill: vectors of any width, `PANEL` = `NV` · `L::N` query rows at a time.

use super::prefill::{Edge, Engine, Item, Prefill, ROWS, Rows};
use super::scratch::Scratch;
use super::tile::{self, SPARE, Stats};
use crate::cpu::lanes::Lanes;
use crate::pages::{KvFormat, PAGE};
use std::marker::PhantomData;

const SCORE_ROWS: usize = PAGE + SPARE;

/// Buffers of one item. Lines of `ROWS` rows a head.
pub(super) struct Vector<'s, L: Lanes, const D: usize, const NV: usize, const PANEL: usize> {
    /// `[128 + SPARE][D]`.
    k: &'s mut [f32],
    /// `[128 + SPARE][D]`.
    v: &'s mut [f32],
    /// `[panel][128 + SPARE][PANEL]`; exponentials after `accumulate`.
    scores: &'s mut [f32],
    /// `[head][panel][D][PANEL]`, in bits.
    q: &'s mut [f32],
    /// `[head][ROWS][D]`.
    acc: &'s mut [f32],
    row_max: &'s mut [f32],
    sum: &'s mut [f32],
    tile_max: &'s mut [f32],
    alpha: &'s mut [f32],
    tile_sum: &'s mut [f32],
    lanes: PhantomData<L>,
}

/// Rows from `at` on that belong to the item, of one panel.
fn here<const PANEL: usize>(edge: Edge, at: usize) -> usize {
    PANEL.min(edge.rows - at)
}

// SAFETY: needs the features of `L`; every slice below has the size its pass asks for.
unsafe impl<'s, L: Lanes, const D: usize, const NV: usize, const PANEL: usize> Engine<'s, D> for Vector<'s, L, D, NV, PANEL> {
    #[inline(always)]
    unsafe fn new(call: &Prefill<'_>, item: &Item, scratch: &'s mut Scratch) -> Self {
        const { assert!(PANEL == NV * L::N && ROWS.is_multiple_of(PANEL) && D.is_multiple_of(PANEL)) };
        let heads = item.heads.len();
        let sizes = [
            SCORE_ROWS * D,
            SCORE_ROWS * D,
            SCORE_ROWS * ROWS,
            heads * ROWS * D,
            heads * ROWS * D,
            heads * ROWS,
            heads * ROWS,
            ROWS,
            ROWS,
            ROWS,
        ];
        let [k, v, scores, q, acc, row_max, sum, tile_max, alpha, tile_sum] = scratch.parts(sizes);
        acc.fill(0.0);
        sum.fill(0.0);
        row_max.fill(f32::NEG_INFINITY);
        for (h, q) in q.chunks_exact_mut(ROWS * D).enumerate() {
            pack::<D, PANEL>(&call.rows(item, h), item.rows.len(), call.scale(), q);
        }
        Self { k, v, scores, q, acc, row_max, sum, tile_max, alpha, tile_sum, lanes: PhantomData }
    }

    #[inline(always)]
    unsafe fn load_keys(&mut self, page: &[u16], format: KvFormat, keys: usize) {
        // SAFETY: a page has 128 rows of D; the buffer has SPARE more.
        unsafe { tile::convert::<L, D>(page.as_ptr(), format, keys, self.k.as_mut_ptr()) };
    }

    #[inline(always)]
    unsafe fn load_values(&mut self, page: &[u16], format: KvFormat, keys: usize) {
        // SAFETY: as for keys.
        unsafe { tile::convert::<L, D>(page.as_ptr(), format, keys, self.v.as_mut_ptr()) };
    }

    #[inline(always)]
    unsafe fn scores(&mut self, h: usize, edge: Edge) {
        self.tile_max.fill(f32::NEG_INFINITY);
        let panels = self.scores.chunks_exact_mut(SCORE_ROWS * PANEL).zip(self.tile_max.chunks_exact_mut(PANEL));
        for (panel, (scores, top)) in panels.enumerate().take(edge.rows.div_ceil(PANEL)) {
            let mask = edge.mask_at(panel * PANEL);
            let rows = here::<PANEL>(edge, panel * PANEL);
            let q = self.q[(h * ROWS + panel * PANEL) * D..][..PANEL * D].as_ptr();
            // SAFETY: sizes as `tile::scores` asks, by the slices; a panel's row is an array.
            unsafe {
                if edge.keys == PAGE && mask.is_open(rows, PAGE) {
                    tile::scores::<L, D, NV, true>(PAGE, self.k.as_ptr(), q, scores.as_mut_ptr(), top.as_mut_ptr());
                } else {
                    let reach = mask.reach(rows, edge.keys);
                    tile::scores::<L, D, NV, false>(reach, self.k.as_ptr(), q, scores.as_mut_ptr(), top.as_mut_ptr());
                    let scores = std::slice::from_raw_parts_mut(scores.as_mut_ptr().cast::<[f32; PANEL]>(), reach);
                    tile::mask::<PANEL>(mask, scores, &mut *top.as_mut_ptr().cast::<[f32; PANEL]>());
                }
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
        for at in (0..edge.rows).step_by(PANEL) {
            let reach = edge.mask_at(at).reach(here::<PANEL>(edge, at), edge.keys);
            if reach == 0 {
                continue;
            }
            let scores = self.scores[at * SCORE_ROWS..][..SCORE_ROWS * PANEL].as_mut_ptr();
            let acc = self.acc[(h * ROWS + at) * D..][..PANEL * D].as_mut_ptr();
            let stats = Stats {
                row_max: self.row_max[h * ROWS + at..][..PANEL].as_mut_ptr(),
                sum: self.sum[h * ROWS + at..][..PANEL].as_mut_ptr(),
                tile_max: self.tile_max[at..at + PANEL].as_ptr(),
                alpha: self.alpha[at..at + PANEL].as_mut_ptr(),
                tile_sum: self.tile_sum[at..at + PANEL].as_mut_ptr(),
            };
            // SAFETY: `reach` keys of scores and values, PANEL statistics and rows, by the slices above.
            unsafe {
                tile::exponentials::<L, NV>(reach, scores, stats);
                tile::weigh::<L, D, NV>(reach, scores, self.v.as_ptr(), stats.alpha, acc);
            }
        }
    }

    #[inline(always)]
    unsafe fn finish(&mut self, h: usize, rows: &mut Rows<'_>, count: usize) {
        for r in 0..count {
            let at = h * ROWS + r;
            rows.write::<D>(r, self.row_max[at], self.sum[at], |out, inverse| {
                for (out, a) in out.iter_mut().zip(&self.acc[at * D..(at + 1) * D]) {
                    *out = a * inverse;
                }
            });
        }
    }
}

/// Packs a head's query rows for `tile::scores`: `[panel][D][PANEL]`, in bits; missing rows are zero.
#[inline(always)]
fn pack<const D: usize, const PANEL: usize>(rows: &Rows<'_>, count: usize, scale: f32, out: &mut [f32]) {
    for (panel, out) in out.chunks_exact_mut(D * PANEL).enumerate() {
        for r in 0..PANEL {
            let row = panel * PANEL + r;
            if row < count {
                for (i, x) in rows.query::<D>(row).iter().enumerate() {
                    out[i * PANEL + r] = x * scale;
                }
            } else {
                (0..D).for_each(|i| out[i * PANEL + r] = 0.0);
            }
        }
    }
}
