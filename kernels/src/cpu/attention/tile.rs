//! The three passes over one tile of keys and one panel of query rows: scores, exponentials, weighted values.
//!
//! Scores lie transposed, `[key][row]`: a vector holds neighbouring query rows, so that maxima, the vote and the sums run down the keys
//! without a horizontal step, the keys need no transposition (only conversion), and the exponentials are at once the packed left side of P·V.

use crate::cpu::lanes::Lanes;
use crate::pages::{KvFormat, PAGE};

/// Rows of a converted K tile behind the last key, so that a block of rows may read past it.
pub(super) const SPARE: usize = 6;

/// Converts the first `keys` of 128 rows to float32 and zeroes the rest: what lies in unused slots never gets further.
///
/// # Safety
/// The features of `L`; `keys` ≤ 128 rows of `D` behind `page`; 128 + `SPARE` rows of `D` behind `out`.
#[inline(always)]
pub(super) unsafe fn convert<L: Lanes, const D: usize>(page: *const u16, format: KvFormat, keys: usize, out: *mut f32) {
    let used = keys * D;
    // SAFETY: D is a multiple of the lanes, so whole vectors stay inside the rows the caller vouches for.
    unsafe {
        match format {
            KvFormat::Bf16 => (0..used).step_by(L::N).for_each(|i| L::store(out.add(i), L::load_half(page.add(i), KvFormat::Bf16))),
            KvFormat::Fp16 => (0..used).step_by(L::N).for_each(|i| L::store(out.add(i), L::load_half(page.add(i), KvFormat::Fp16))),
        }
        std::slice::from_raw_parts_mut(out.add(used), (PAGE + SPARE) * D - used).fill(0.0);
    }
}

/// Scores of `keys` keys against a panel of NV vectors of rows. `EXACT` says that every score counts: the rows' maxima are then
/// taken on the way; otherwise `mask` takes them, and up to `SPARE` score rows behind the last hold nothing of use.
///
/// # Safety
/// The features of `L`; `k` `[keys + SPARE][D]`, `q` `[D][NV · N]`, `scores` `[keys + SPARE][NV · N]`, `tile_max` `[NV · N]`.
#[inline(always)]
pub(super) unsafe fn scores<L: Lanes, const D: usize, const NV: usize, const EXACT: bool>(
    keys: usize,
    k: *const f32,
    q: *const f32,
    scores: *mut f32,
    tile_max: *mut f32,
) {
    let mut key = 0;
    // SAFETY: blocks start below `keys` and have at most SPARE rows.
    unsafe {
        while key < keys {
            let (k, s) = (k.add(key * D), scores.add(key * NV * L::N));
            key += match keys - key {
                5.. if keys - key != 8 => block::<L, D, NV, 6, EXACT>(k, q, s, tile_max),
                3.. => block::<L, D, NV, 4, EXACT>(k, q, s, tile_max),
                _ => block::<L, D, NV, 2, EXACT>(k, q, s, tile_max),
            };
        }
    }
}

#[inline(always)]
unsafe fn block<L: Lanes, const D: usize, const NV: usize, const MR: usize, const EXACT: bool>(
    k: *const f32,
    q: *const f32,
    scores: *mut f32,
    tile_max: *mut f32,
) -> usize {
    // SAFETY: the contract of `scores`.
    unsafe {
        let mut acc = [[L::splat(0.0); NV]; MR];
        for i in 0..D {
            let mut b = [L::splat(0.0); NV];
            for (j, b) in b.iter_mut().enumerate() {
                *b = L::load(q.add((i * NV + j) * L::N));
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let a = L::splat(*k.add(r * D + i));
                for (acc, &b) in acc.iter_mut().zip(&b) {
                    *acc = L::fma(a, b, *acc);
                }
            }
        }
        for j in 0..NV {
            let mut top = if EXACT { L::load(tile_max.add(j * L::N)) } else { L::splat(0.0) };
            for (r, acc) in acc.iter().enumerate() {
                L::store(scores.add((r * NV + j) * L::N), acc[j]);
                if EXACT {
                    top = L::max(top, acc[j]);
                }
            }
            if EXACT {
                L::store(tile_max.add(j * L::N), top);
            }
        }
        MR
    }
}

/// Which rows of a panel see a key: row r (from 0) sees key c (from the tile's first) when first + r ≥ c and, under a window, first + r < c + window.
#[derive(Clone, Copy)]
pub(super) struct Mask {
    /// Position of the panel's row 0 minus that of the tile's key 0.
    pub first: isize,
    /// Sliding window, or a number beyond every distance.
    pub window: isize,
}

impl Mask {
    /// Whether every row of `0..rows` sees every key of `0..keys`.
    pub(super) fn is_open(&self, rows: usize, keys: usize) -> bool {
        self.first >= keys as isize - 1 && self.first + (rows as isize) - 1 < self.window
    }

    /// Keys of `0..keys` up to the last one that any row of `0..rows` sees.
    pub(super) fn reach(&self, rows: usize, keys: usize) -> usize {
        (self.first + rows as isize).clamp(0, keys as isize) as usize
    }
}

/// Hides what a row does not see behind −∞ and takes the rows' maxima.
#[inline(always)]
pub(super) fn mask<const PANEL: usize>(mask: Mask, scores: &mut [[f32; PANEL]], tile_max: &mut [f32; PANEL]) {
    for (c, scores) in scores.iter_mut().enumerate() {
        let from = (c as isize - mask.first).clamp(0, PANEL as isize) as i32;
        let to = (c as isize - mask.first).saturating_add(mask.window).clamp(0, PANEL as isize) as i32;
        for (r, (s, top)) in scores.iter_mut().zip(tile_max.iter_mut()).enumerate() {
            let seen = (r as i32 >= from) & ((r as i32) < to);
            *s = if seen { *s } else { f32::NEG_INFINITY };
            *top = if *s > *top { *s } else { *top };
        }
    }
}

/// Running statistics of one panel's rows, `[PANEL]` each.
#[derive(Clone, Copy)]
pub(super) struct Stats {
    /// Maximum so far, in bits (score · log₂e); −∞ before the first visible key.
    pub row_max: *mut f32,
    /// Sum of exponentials so far.
    pub sum: *mut f32,
    /// The tile's maximum.
    pub tile_max: *const f32,
    /// What the rows' accumulators shrink by in this tile.
    pub alpha: *mut f32,
    /// Sum of this tile's exponentials.
    pub tile_sum: *mut f32,
}

/// Turns scores into exponentials in place and updates the statistics.
///
/// # Safety
/// The features of `L`; `scores` `[keys][NV · N]`, the statistics `[NV · N]`.
#[inline(always)]
pub(super) unsafe fn exponentials<L: Lanes, const NV: usize>(keys: usize, scores: *mut f32, stats: Stats) {
    // SAFETY: the caller's contract.
    unsafe {
        for j in 0..NV {
            let at = j * L::N;
            let old = L::load(stats.row_max.add(at));
            let new = L::max(old, L::load(stats.tile_max.add(at)));
            L::store(stats.row_max.add(at), new);
            // a row that has seen nothing keeps −∞ and is measured from a finite floor: −∞ − (−∞) never happens
            let from = L::max(new, L::splat(f32::MIN));
            let alpha = L::exp2(L::sub(old, from));
            L::store(stats.alpha.add(at), alpha);
            // four sums in turn: the additions of one lane would wait for each other
            let mut sums = [L::splat(0.0); 4];
            let mut key = 0;
            while key + 4 <= keys {
                for (i, sum) in sums.iter_mut().enumerate() {
                    let p = scores.add((key + i) * NV * L::N + at);
                    let e = L::exp2(L::sub(L::load(p), from));
                    L::store(p, e);
                    *sum = L::add(*sum, e);
                }
                key += 4;
            }
            while key < keys {
                let p = scores.add(key * NV * L::N + at);
                let e = L::exp2(L::sub(L::load(p), from));
                L::store(p, e);
                sums[key % 4] = L::add(sums[key % 4], e);
                key += 1;
            }
            let sum = L::add(L::add(sums[0], sums[1]), L::add(sums[2], sums[3]));
            L::store(stats.tile_sum.add(at), sum);
            L::store(stats.sum.add(at), L::fma(L::load(stats.sum.add(at)), alpha, sum));
        }
    }
}

/// acc = acc · alpha + Pᵀ · V for a panel of rows.
///
/// # Safety
/// The features of `L`; `p` `[keys][PANEL]`, `v` `[keys][D]`, `alpha` `[PANEL]`, `acc` `[PANEL][D]`; D a multiple of NV · N.
#[inline(always)]
pub(super) unsafe fn weigh<L: Lanes, const D: usize, const NV: usize>(
    keys: usize,
    p: *const f32,
    v: *const f32,
    alpha: *const f32,
    acc: *mut f32,
) {
    let panel = NV * L::N;
    // SAFETY: rows step through the panel (a multiple of 4 and at least 16, so a remainder is 4 or nothing, or 2 · 4) and columns through D.
    unsafe {
        for column in (0..D).step_by(NV * L::N) {
            let mut row = 0;
            while row < panel {
                let args = (p.add(row), v.add(column), alpha.add(row), acc.add(row * D + column));
                row += match panel - row {
                    4 | 8 => weigh_block::<L, D, NV, 4>(keys, args.0, args.1, args.2, args.3),
                    _ => weigh_block::<L, D, NV, 6>(keys, args.0, args.1, args.2, args.3),
                };
            }
        }
    }
}

#[inline(always)]
unsafe fn weigh_block<L: Lanes, const D: usize, const NV: usize, const MR: usize>(
    keys: usize,
    p: *const f32,
    v: *const f32,
    alpha: *const f32,
    out: *mut f32,
) -> usize {
    // SAFETY: the contract of `weigh`, for MR of its rows.
    unsafe {
        let mut acc = [[L::splat(0.0); NV]; MR];
        for (r, acc) in acc.iter_mut().enumerate() {
            let a = L::splat(*alpha.add(r));
            for (j, acc) in acc.iter_mut().enumerate() {
                *acc = L::mul(a, L::load(out.add(r * D + j * L::N)));
            }
        }
        for key in 0..keys {
            let mut b = [L::splat(0.0); NV];
            for (j, b) in b.iter_mut().enumerate() {
                *b = L::load(v.add(key * D + j * L::N));
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let a = L::splat(*p.add(key * NV * L::N + r));
                for (acc, &b) in acc.iter_mut().zip(&b) {
                    *acc = L::fma(a, b, *acc);
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (j, &acc) in acc.iter().enumerate() {
                L::store(out.add(r * D + j * L::N), acc);
            }
        }
        MR
    }
}
