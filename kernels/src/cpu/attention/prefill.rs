//! Prefill: one item is a tile of query rows, a KV head and some of its query heads; keys ascend and the heads share each converted tile.

use super::bits;
use super::scratch::{Scratch, Shared};
use super::tile::Mask;
use crate::attention::{AttnCall, AttnGeometry, AttnSeq, DEFAULT_VOTES};
use crate::cpu::pages::Keys;
use crate::pages::{KvFormat, KvView, PAGE};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) const ROWS: usize = DEFAULT_VOTES.rows;
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

/// How one kind of processor does the arithmetic of an item: its packed queries, its converted tile, its accumulators.
///
/// # Safety
/// Every method needs the processor features that the implementation is written for; pages have 128 rows of `D`.
pub(super) unsafe trait Engine<'s, const D: usize>: Sized {
    /// Packs the item's queries and clears its accumulators.
    unsafe fn new(call: &Prefill<'_>, item: &Item, scratch: &'s mut Scratch) -> Self;
    /// Converts a tile of keys; rows from `keys` on count as zero whatever they hold.
    unsafe fn load_keys(&mut self, page: &[u16], format: KvFormat, keys: usize);
    /// Converts a tile of values, likewise.
    unsafe fn load_values(&mut self, page: &[u16], format: KvFormat, keys: usize);
    /// Scores of head `h` (of the item) against the loaded keys, and the rows' maxima over what `edge` lets them see.
    unsafe fn scores(&mut self, h: usize, edge: Edge);
    /// The maxima of the tile just scored, in bits (score · log₂e); −∞ where a row sees nothing. Rows behind the item's may hold anything.
    fn tile_max(&self) -> &[f32];
    /// The running maxima of head `h`.
    fn row_max(&self, h: usize) -> &[f32];
    /// Sums of the exponentials that `accumulate` took last, relative to the running maxima; of rows that see nothing of the tile, anything.
    fn tile_sum(&self) -> &[f32];
    /// Takes the tile just scored into the sums and accumulators of head `h`.
    unsafe fn accumulate(&mut self, h: usize, edge: Edge);
    /// Writes the `count` rows of head `h` through `Rows::write`.
    unsafe fn finish(&mut self, h: usize, rows: &mut Rows<'_>, count: usize);
}

/// Which rows of an item see which keys of a tile.
#[derive(Clone, Copy)]
pub(super) struct Edge {
    /// For row 0.
    mask: Mask,
    /// Rows of the item.
    pub rows: usize,
    /// Keys of the tile that exist.
    pub keys: usize,
}

impl Edge {
    /// The mask of the rows from `row` on.
    pub(super) fn mask_at(&self, row: usize) -> Mask {
        Mask { first: self.mask.first + row as isize, ..self.mask }
    }
}

/// Query rows to read and output rows to write, of one head of an item.
pub(super) struct Rows<'a> {
    call: &'a Prefill<'a>,
    first: usize,
    head: usize,
}

impl Prefill<'_> {
    /// Rows of head `h` of the item.
    pub(super) fn rows(&self, item: &Item, h: usize) -> Rows<'_> {
        Rows { call: self, first: self.seqs[item.seq].row + item.rows.start, head: item.heads.start + h }
    }

    /// Factor from q·k to bits.
    pub(super) fn scale(&self) -> f32 {
        (f64::from(self.geometry.scale) * std::f64::consts::LOG2_E) as f32
    }
}

impl Rows<'_> {
    /// Query row `r`.
    pub(super) fn query<const D: usize>(&self, r: usize) -> &[f32] {
        let at = (self.first + r) * self.call.q_stride + self.head * D;
        &self.call.q[at..at + D]
    }

    /// Output row `r`: `fill` gets the place and 1 / sum; a row that saw nothing is zero, its log-sum-exp −∞.
    #[inline(always)]
    pub(super) fn write<const D: usize>(&mut self, r: usize, row_max: f32, sum: f32, fill: impl FnOnce(&mut [f32], f32)) {
        let at = (self.first + r) * self.call.geometry.heads + self.head;
        let some = sum > 0.0;
        // SAFETY: a row and head of the output belong to one item.
        let out = unsafe { self.call.out.part(at * D..(at + 1) * D) };
        fill(out, if some { 1.0 / sum } else { 0.0 });
        if let Some(lse) = self.call.lse {
            let value = if some { row_max * std::f32::consts::LN_2 + sum.ln() } else { f32::NEG_INFINITY };
            // SAFETY: as above.
            unsafe { lse.part(at..at + 1)[0] = value };
        }
    }
}

/// Who follows an item's tiles, `b` of head `h`, through the rows' statistics in bits.
pub(super) trait Watch {
    /// Scored: the tile's maxima and the running ones before it.
    fn scored(&mut self, _h: usize, _b: usize, _tile_max: &[f32], _row_max: &[f32]) {}
    /// Taken in: the tile's maxima, the running ones with it, and its sums relative to those.
    fn weighed(&mut self, _h: usize, _b: usize, _tile_max: &[f32], _row_max: &[f32], _tile_sum: &[f32]) {}
}

/// Nobody.
impl Watch for () {}

/// Runs one item. A sequence with a threshold that runs densely is only watched: what it gives is another kernel's to write.
///
/// # Safety
/// The features of `E`; `call` was checked and `item` planned from it; each item runs once.
#[inline(always)]
pub(super) unsafe fn run<'s, E: Engine<'s, D>, const D: usize, const SKIP: bool>(
    call: &Prefill<'_>,
    item: &Item,
    scratch: &'s mut Scratch,
    watch: &mut impl Watch,
) {
    let seq = &call.seqs[item.seq];
    let rows = item.rows.len();
    let first = (seq.q_start + item.rows.start) as isize;
    let window = call.geometry.window.map_or(isize::MAX / 2, |w| w.min(isize::MAX as usize / 2) as isize);
    let cache = Keys::new(&call.kv, seq, item.kv_head);
    let format = call.kv.layout.format;
    let threshold = item.ln_lambda.map_or(f32::NEG_INFINITY, bits);
    let writes = SKIP || item.ln_lambda.is_none();
    let (mut votes, mut skipped) = (0, 0);
    // SAFETY: the caller's contract; pages come from the cache, whole.
    unsafe {
        let mut engine = E::new(call, item, scratch);
        for b in item.k_tiles.clone() {
            let keys = PAGE.min(seq.kv_len - b * PAGE);
            let edge = Edge { mask: Mask { first: first - (b * PAGE) as isize, window }, rows, keys };
            engine.load_keys(cache.k_page(b), format, keys);
            let mut have_values = false;
            for h in 0..item.heads.len() {
                engine.scores(h, edge);
                watch.scored(h, b, &engine.tile_max()[..rows], &engine.row_max(h)[..rows]);
                let keep = !SKIP || votes_to_keep(&engine.tile_max()[..rows], &engine.row_max(h)[..rows], threshold);
                if writes {
                    record(call, item, h, b, keep);
                }
                votes += 1;
                if !keep {
                    skipped += 1;
                    continue;
                }
                if !have_values {
                    have_values = true;
                    engine.load_values(cache.v_page(b), format, keys);
                }
                engine.accumulate(h, edge);
                watch.weighed(h, b, &engine.tile_max()[..rows], &engine.row_max(h)[..rows], &engine.tile_sum()[..rows]);
            }
        }
        for h in 0..if writes { item.heads.len() } else { 0 } {
            engine.finish(h, &mut call.rows(item, h), rows);
        }
    }
    if SKIP {
        call.tallies[item.seq][0].fetch_add(votes, Ordering::Relaxed);
        call.tallies[item.seq][1].fetch_add(skipped, Ordering::Relaxed);
    }
}

/// Whether any row that sees something in the tile still needs it: max(tile) − running max ≥ threshold. A row before its first visible key
/// has −∞ as running maximum, which gives +∞.
#[inline(always)]
fn votes_to_keep(tile_max: &[f32], row_max: &[f32], threshold: f32) -> bool {
    tile_max.iter().zip(row_max).fold(false, |keep, (&t, &m)| keep | ((t > f32::NEG_INFINITY) & (t - m >= threshold)))
}

/// Notes the vote on tile `b` of the item's head `h`, where votes are wanted.
fn record(call: &Prefill<'_>, item: &Item, h: usize, b: usize, keep: bool) {
    if let Some(kept) = &call.kept {
        let seq = &call.seqs[item.seq];
        let tiles = q_tiles(seq);
        let line = (item.heads.start + h) * tiles.len() + item.tile - tiles.start;
        let at = line * seq.kv_len.div_ceil(PAGE) + b;
        // SAFETY: one byte that belongs to this item's head and tile alone.
        unsafe { kept[item.seq].part(at..at + 1)[0] = u8::from(keep) };
    }
}
