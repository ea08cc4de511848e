//! Prefill: one item is a tile of query rows, a KV head and some of its query heads; keys ascend and the heads share each converted tile.

use super::lanes::Lanes;
use super::scratch::{Scratch, Shared};
use super::tile::{self, Mask, SPARE, Stats};
use crate::attention::{AttnCall, AttnGeometry, AttnSeq, DEFAULT_VOTES};
use crate::cpu::pages::Keys;
use crate::pages::{KvView, PAGE};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

const ROWS: usize = DEFAULT_VOTES.rows;
// a tile's keys are a page
const _: () = assert!(DEFAULT_VOTES.keys == PAGE && ROWS == PAGE);

/// What all items of a call share.
pub(super) struct Prefill<'a> {
    geometry: AttnGeometry,
    q: &'a [f32],
    q_stride: usize,
    kv: KvView<'a>,
    seqs: &'a [AttnSeq<'a>],
    out: Shared<f32>,
    lse: Option<Shared<f32>>,
    kept: Option<Vec<Shared<u8>>>,
    /// Votes and skips of each sequence.
    tallies: Vec<[AtomicU64; 2]>,
}

/// One piece of work.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub seq: usize,
    pub kv_head: usize,
    /// Query heads, all of `kv_head`'s group.
    pub heads: Range<usize>,
    /// Tile index: rows at absolute positions from `tile · 128` on.
    pub tile: usize,
    /// Rows of the sequence in the tile, counted from `q_start`.
    pub rows: Range<usize>,
    /// Key tiles in reach.
    pub k_tiles: Range<usize>,
    /// ln λ, or None for the dense kernel.
    pub ln_lambda: Option<f32>,
}

impl Item {
    fn cost(&self) -> usize {
        self.k_tiles.len() * self.heads.len() * self.rows.len().div_ceil(16)
    }
}

impl<'a> Prefill<'a> {
    /// Borrows the call's parts and sizes the vote record.
    pub(super) fn new(call: &mut AttnCall<'a>) -> Self {
        let seqs = call.seqs;
        let heads = call.geometry.heads;
        let kept = call.kept.as_mut().map(|kept| {
            kept.iter_mut()
                .zip(seqs)
                .map(|(kept, seq)| {
                    kept.clear();
                    kept.resize(heads * q_tiles(seq).len() * seq.kv_len.div_ceil(PAGE), 2);
                    Shared::new(kept)
                })
                .collect()
        });
        Self {
            geometry: call.geometry,
            q: call.q,
            q_stride: call.q_stride,
            kv: call.kv,
            seqs,
            out: Shared::new(call.out),
            lse: call.lse.as_mut().map(|lse| Shared::new(lse)),
            kept,
            tallies: seqs.iter().map(|_| Default::default()).collect(),
        }
    }

    /// The work, longest first; heads of a group are taken apart where there would be too few items for the workers.
    pub(super) fn plan(&self, workers: usize) -> Vec<Item> {
        let group = self.geometry.group();
        let tiles: usize = self.seqs.iter().map(|s| q_tiles(s).len()).sum();
        let apart = tiles * self.geometry.kv_heads < 4 * workers;
        let step = if apart && workers > 1 { 1 } else { group };
        let mut items = Vec::new();
        for (i, seq) in self.seqs.iter().enumerate() {
            for tile in q_tiles(seq) {
                let rows = (tile * ROWS).max(seq.q_start) - seq.q_start..((tile + 1) * ROWS - seq.q_start).min(seq.q_len);
                let (first, end) = (seq.q_start + rows.start, seq.q_start + rows.end);
                // every tile from here to the last row's is seen by some row
                let low = self.geometry.window.map_or(0, |w| (first + 1).saturating_sub(w));
                for kv_head in 0..self.geometry.kv_heads {
                    for head in (kv_head * group..(kv_head + 1) * group).step_by(step) {
                        items.push(Item {
                            seq: i,
                            kv_head,
                            heads: head..head + step,
                            tile,
                            rows: rows.clone(),
                            k_tiles: if self.geometry.window == Some(0) { 0..0 } else { low / PAGE..end.div_ceil(PAGE) },
                            ln_lambda: seq.threshold(&self.geometry),
                        });
                    }
                }
            }
        }
        items.sort_by_key(|item| std::cmp::Reverse(item.cost()));
        items
    }

    /// Votes and skips of sequence `i`.
    pub(super) fn tally(&self, i: usize) -> (u64, u64) {
        let [votes, skipped] = &self.tallies[i];
        (votes.load(Ordering::Relaxed), skipped.load(Ordering::Relaxed))
    }
}

/// Tiles of query rows that a sequence touches.
fn q_tiles(seq: &AttnSeq<'_>) -> Range<usize> {
    if seq.q_len == 0 { 0..0 } else { seq.q_start / ROWS..(seq.q_start + seq.q_len - 1) / ROWS + 1 }
}

/// Runs one item. `PANEL` = `NV` · `L::N` rows are worked on at a time.
///
/// # Safety
/// The features of `L`; `call` was checked and `item` planned from it; each item runs once.
#[inline(always)]
pub(super) unsafe fn run<L: Lanes, const D: usize, const SKIP: bool, const NV: usize, const PANEL: usize>(
    call: &Prefill<'_>,
    item: &Item,
    scratch: &mut Scratch,
) {
    const { assert!(PANEL == NV * L::N && ROWS.is_multiple_of(PANEL) && D.is_multiple_of(PANEL)) };
    let seq = &call.seqs[item.seq];
    let (heads, rows) = (item.heads.len(), item.rows.len());
    let panels = rows.div_ceil(PANEL);
    let first = seq.q_start + item.rows.start;
    let [k, v, scores, q, acc, row_max, sum, tile_max, alpha] = scratch.parts([
        (PAGE + SPARE) * D,
        (PAGE + SPARE) * D,
        (PAGE + SPARE) * ROWS,
        heads * ROWS * D,
        heads * ROWS * D,
        heads * ROWS,
        heads * ROWS,
        ROWS,
        ROWS,
    ]);
    acc.fill(0.0);
    sum.fill(0.0);
    row_max.fill(f32::NEG_INFINITY);
    for (h, q) in q.chunks_exact_mut(ROWS * D).enumerate() {
        pack::<D, PANEL>(call, seq.row + item.rows.start, rows, item.heads.start + h, q);
    }
    let cache = Keys::new(&call.kv, seq, item.kv_head);
    let format = call.kv.layout.format;
    let threshold = item.ln_lambda.map_or(f32::NEG_INFINITY, |l| l * std::f32::consts::LOG2_E);
    let score_panel = (PAGE + SPARE) * PANEL;
    let (mut votes, mut skipped) = (0, 0);
    for b in item.k_tiles.clone() {
        let keys = PAGE.min(seq.kv_len - b * PAGE);
        // SAFETY: a page has 128 rows of D; the buffers have 128 + SPARE.
        unsafe { tile::convert::<L, D>(cache.k_page(b).as_ptr(), format, keys, k.as_mut_ptr()) };
        let mut have_values = false;
        for h in 0..heads {
            tile_max.fill(f32::NEG_INFINITY);
            let mut reach = [0; ROWS];
            for panel in 0..panels {
                let here = PANEL.min(rows - panel * PANEL);
                let mask = Mask {
                    first: (first + panel * PANEL) as isize - (b * PAGE) as isize,
                    window: call.geometry.window.map_or(isize::MAX / 2, |w| w.min(isize::MAX as usize / 2) as isize),
                };
                reach[panel] = mask.reach(here, keys);
                let s = &mut scores[panel * score_panel..(panel + 1) * score_panel];
                let q = &q[h * ROWS * D + panel * PANEL * D..][..PANEL * D];
                let top = &mut tile_max[panel * PANEL..(panel + 1) * PANEL];
                // SAFETY: sizes as `scores` asks, by the slices above.
                unsafe {
                    if keys == PAGE && mask.is_open(here, PAGE) {
                        tile::scores::<L, D, NV, true>(PAGE, k.as_ptr(), q.as_ptr(), s.as_mut_ptr(), top.as_mut_ptr());
                    } else {
                        tile::scores::<L, D, NV, false>(reach[panel], k.as_ptr(), q.as_ptr(), s.as_mut_ptr(), top.as_mut_ptr());
                        let s = std::slice::from_raw_parts_mut(s.as_mut_ptr().cast::<[f32; PANEL]>(), reach[panel]);
                        tile::mask::<PANEL>(mask, s, &mut *top.as_mut_ptr().cast::<[f32; PANEL]>());
                    }
                }
            }
            let row_max = &mut row_max[h * ROWS..(h + 1) * ROWS];
            let keep = !SKIP || votes_to_keep(&tile_max[..rows], &row_max[..rows], threshold);
            if let Some(kept) = call.kept.as_ref() {
                let tiles = q_tiles(seq);
                let line = (item.heads.start + h) * tiles.len() + item.tile - tiles.start;
                let at = line * seq.kv_len.div_ceil(PAGE) + b;
                // SAFETY: one byte that belongs to this item's head and tile alone.
                unsafe { kept[item.seq].part(at..at + 1)[0] = u8::from(keep) };
            }
            votes += 1;
            if !keep {
                skipped += 1;
                continue;
            }
            if !have_values {
                have_values = true;
                // SAFETY: as for K.
                unsafe { tile::convert::<L, D>(cache.v_page(b).as_ptr(), format, keys, v.as_mut_ptr()) };
            }
            for panel in (0..panels).filter(|&p| reach[p] > 0) {
                let at = panel * PANEL;
                let s = &mut scores[panel * score_panel..(panel + 1) * score_panel];
                let acc = &mut acc[(h * ROWS + at) * D..][..PANEL * D];
                let stats = Stats {
                    row_max: row_max[at..at + PANEL].as_mut_ptr(),
                    sum: sum[h * ROWS + at..][..PANEL].as_mut_ptr(),
                    tile_max: tile_max[at..at + PANEL].as_ptr(),
                    alpha: alpha[at..at + PANEL].as_mut_ptr(),
                };
                // SAFETY: `reach` keys of scores and values, PANEL statistics and rows, by the slices above.
                unsafe {
                    tile::exponentials::<L, NV>(reach[panel], s.as_mut_ptr(), stats);
                    tile::weigh::<L, D, NV>(reach[panel], s.as_ptr(), v.as_ptr(), stats.alpha, acc.as_mut_ptr());
                }
            }
        }
    }
    if SKIP {
        call.tallies[item.seq][0].fetch_add(votes, Ordering::Relaxed);
        call.tallies[item.seq][1].fetch_add(skipped, Ordering::Relaxed);
    }
    for h in 0..heads {
        let at = h * ROWS..h * ROWS + rows;
        write::<D>(call, item, item.heads.start + h, &acc[at.start * D..at.end * D], &row_max[at.clone()], &sum[at]);
    }
}

/// Whether any row that sees something in the tile still needs it: max(tile) − running max ≥ threshold. A row before its first visible key
/// has −∞ as running maximum, which gives +∞.
#[inline(always)]
fn votes_to_keep(tile_max: &[f32], row_max: &[f32], threshold: f32) -> bool {
    tile_max.iter().zip(row_max).fold(false, |keep, (&t, &m)| keep | ((t > f32::NEG_INFINITY) & (t - m >= threshold)))
}

/// Packs a head's query rows for `tile::scores`: `[panel][D][PANEL]`, in bits; missing rows are zero.
#[inline(always)]
fn pack<const D: usize, const PANEL: usize>(call: &Prefill<'_>, first: usize, rows: usize, head: usize, out: &mut [f32]) {
    let scale = (f64::from(call.geometry.scale) * std::f64::consts::LOG2_E) as f32;
    for (panel, out) in out.chunks_exact_mut(D * PANEL).enumerate() {
        for r in 0..PANEL {
            let row = panel * PANEL + r;
            let at = (first + row) * call.q_stride + head * D;
            for i in 0..D {
                out[i * PANEL + r] = if row < rows { call.q[at + i] * scale } else { 0.0 };
            }
        }
    }
}

#[inline(always)]
fn write<const D: usize>(call: &Prefill<'_>, item: &Item, head: usize, acc: &[f32], row_max: &[f32], sum: &[f32]) {
    let heads = call.geometry.heads;
    let first = call.seqs[item.seq].row + item.rows.start;
    for (r, acc) in acc.chunks_exact(D).enumerate() {
        let at = (first + r) * heads + head;
        let some = sum[r] > 0.0;
        let inverse = if some { 1.0 / sum[r] } else { 0.0 };
        // SAFETY: a row and head of the output belong to one item.
        let out = unsafe { call.out.part(at * D..(at + 1) * D) };
        for (out, a) in out.iter_mut().zip(acc) {
            *out = a * inverse;
        }
        if let Some(lse) = call.lse {
            let value = if some { row_max[r] * std::f32::consts::LN_2 + sum[r].ln() } else { f32::NEG_INFINITY };
            // SAFETY: as above.
            unsafe { lse.part(at..at + 1)[0] = value };
        }
    }
}
