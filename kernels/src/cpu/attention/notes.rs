//! What measuring remembers of a prefill item: each row's running maximum and sum by key tile, from which masses follow once the final maxima are known.
//!
//! So one visit of the keys is enough, at 1 KB a head and key tile beside the kernel's own buffers.

use super::prefill::{Item, ROWS, Watch};
use super::scratch::Scratch;
use super::tally::Vote;
use crate::cpu::lanes::Lanes;

/// Rows compared side by side.
const SIDE: usize = 16;

pub(super) struct Notes<'s> {
    /// Key tiles of a head.
    tiles: usize,
    /// `[head][tile][ROWS]`: running maxima with the tile, in bits.
    tops: &'s mut [f32],
    /// `[head][tile][ROWS]`: sums of exponentials relative to those; 0 where a row sees nothing or does not exist.
    sums: &'s mut [f32],
    /// `[head][tile]`; masses after `weigh`.
    pub votes: Vec<Vote>,
}

impl<'s> Notes<'s> {
    pub(super) fn new(item: &Item, scratch: &'s mut Scratch) -> Self {
        let (heads, tiles) = (item.heads.len(), item.k_tiles.len());
        let [tops, sums] = scratch.parts([heads * tiles * ROWS; 2]);
        Self { tiles, tops, sums, votes: vec![Vote::NONE; heads * tiles] }
    }

    /// Fills in the masses of a finished item.
    ///
    /// # Safety
    /// The features of `L`.
    #[inline(always)]
    pub(super) unsafe fn weigh<L: Lanes>(&mut self) {
        const { assert!(ROWS.is_multiple_of(L::N)) };
        for (i, vote) in self.votes.iter_mut().enumerate() {
            let last = (i / self.tiles + 1) * self.tiles - 1;
            let [here, end] = [i, last].map(|line| self.tops[line * ROWS..(line + 1) * ROWS].as_ptr());
            let sums = self.sums[i * ROWS..(i + 1) * ROWS].as_ptr();
            let mut lanes = [0.0; ROWS];
            // SAFETY: whole vectors of lines of ROWS.
            unsafe {
                let mut mass = L::splat(0.0);
                for r in (0..ROWS).step_by(L::N) {
                    // a row that never sees anything is measured from a finite floor: −∞ − (−∞) never happens
                    let top = L::max(L::load(end.add(r)), L::splat(f32::MIN));
                    mass = L::fma(L::exp2(L::sub(L::load(here.add(r)), top)), L::load(sums.add(r)), mass);
                }
                L::store(lanes.as_mut_ptr(), mass);
            }
            vote.mass = lanes[..L::N].iter().copied().map(f64::from).sum();
        }
    }
}

impl Watch for Notes<'_> {
    #[inline(always)]
    fn scored(&mut self, h: usize, b: usize, tile_max: &[f32], row_max: &[f32]) {
        let mut gaps = [f32::NEG_INFINITY; SIDE];
        for (tile_max, row_max) in tile_max.chunks(SIDE).zip(row_max.chunks(SIDE)) {
            for ((gap, &t), &m) in gaps.iter_mut().zip(tile_max).zip(row_max) {
                let here = if t > f32::NEG_INFINITY { t - m } else { f32::NEG_INFINITY };
                *gap = if here > *gap { here } else { *gap };
            }
        }
        // windowed layers are not measured, so that tiles count from 0
        self.votes[h * self.tiles + b].gap = gaps.into_iter().fold(f32::NEG_INFINITY, f32::max);
    }

    #[inline(always)]
    fn weighed(&mut self, h: usize, b: usize, tile_max: &[f32], row_max: &[f32], tile_sum: &[f32]) {
        let at = (h * self.tiles + b) * ROWS;
        let (tops, sums) = (&mut self.tops[at..at + ROWS], &mut self.sums[at..at + ROWS]);
        let rows = row_max.len();
        tops[..rows].copy_from_slice(row_max);
        tops[rows..].fill(f32::NEG_INFINITY);
        for ((sum, &t), &s) in sums.iter_mut().zip(tile_max).zip(tile_sum) {
            *sum = if t > f32::NEG_INFINITY { s } else { 0.0 };
        }
        sums[rows..].fill(0.0);
    }
}
