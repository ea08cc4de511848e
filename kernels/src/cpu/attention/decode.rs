//! Decode: one query row a sequence, cut into spans of keys for the workers; spans and their order depend on the length alone.
//!
//! Dense attention scores and weighs a span in one pass, each span with its own maximum. Skipping scans all keys first, so that the vote
//! sees the true row maximum, and then gathers the values of the surviving runs.

use super::bits;
use super::runs::{Rows, ask, dots, exponentials, gather, maximum, values};
use super::scratch::{Scratch, Shared};
use crate::attention::{AttnCall, AttnGeometry, AttnSeq, DEFAULT_VOTES};
use crate::cpu::lanes::Lanes;
use crate::cpu::pages::Keys;
use crate::pages::{KvView, PAGE};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Keys a span: two pages.
pub(super) const SPAN: usize = 2 * PAGE;
pub(super) const RUN: usize = DEFAULT_VOTES.run;
/// How many keys ahead of the scan are asked for: the processor's own prefetcher leaves more than half of the bandwidth unused.
const PREFETCH: usize = 32;

/// One sequence and KV head.
#[derive(Debug)]
pub(super) struct Group {
    pub seq: usize,
    pub kv_head: usize,
    /// Keys in reach.
    keys: Range<usize>,
    /// ln λ, or None for the dense kernel.
    pub ln_lambda: Option<f32>,
    /// Index of the first span in the partial results.
    first_span: usize,
    /// Where the group's scores start (skipping only): `[head][spans · SPAN]`, and its maxima: `[head][runs]`, then `[head][spans]`.
    pub scores: usize,
    run_max: usize,
}

impl Group {
    pub(super) fn spans(&self) -> Range<usize> {
        if self.keys.is_empty() { 0..0 } else { self.keys.start / SPAN..self.keys.end.div_ceil(SPAN) }
    }
}

/// One span of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub group: usize,
    pub span: usize,
}

/// What all items of a call share.
pub(super) struct Decode<'a> {
    pub geometry: AttnGeometry,
    q: &'a [f32],
    q_stride: usize,
    kv: KvView<'a>,
    seqs: &'a [AttnSeq<'a>],
    pub groups: Vec<Group>,
    pub items: Vec<Item>,
    out: Shared<f32>,
    lse: Option<Shared<f32>>,
    kept: Option<Vec<Shared<u8>>>,
    /// Votes, skips and keys not read of each sequence.
    tallies: Vec<[AtomicU64; 3]>,
    pub scores: Shared<f32>,
    run_max: Shared<f32>,
    partials: Shared<f32>,
}

/// Sizes of the buffers that outlive a pass, in elements.
pub(super) struct Sizes {
    pub scores: usize,
    pub run_max: usize,
    pub partials: usize,
}

/// The groups of a call, their spans, and the buffers they need.
pub(super) fn plan(call: &AttnCall<'_>) -> (Vec<Group>, Vec<Item>, Sizes) {
    let geometry = call.geometry;
    let (mut groups, mut items) = (Vec::new(), Vec::new());
    let mut sizes = Sizes { scores: 0, run_max: 0, partials: 0 };
    for (seq, s) in call.seqs.iter().enumerate() {
        let end = s.q_start + 1;
        let start = geometry.window.map_or(0, |w| end.saturating_sub(w));
        for kv_head in 0..geometry.kv_heads {
            let group = Group {
                seq,
                kv_head,
                keys: start..end,
                ln_lambda: s.threshold(&geometry),
                first_span: items.len(),
                scores: sizes.scores,
                run_max: sizes.run_max,
            };
            if group.ln_lambda.is_some() {
                sizes.scores += geometry.group() * group.spans().len() * SPAN;
                sizes.run_max += geometry.group() * group.spans().len() * (SPAN / RUN + 1);
            }
            items.extend(group.spans().map(|span| Item { group: groups.len(), span }));
            groups.push(group);
        }
    }
    sizes.partials = items.len() * geometry.group() * (geometry.head_dim + 2);
    (groups, items, sizes)
}

impl<'a> Decode<'a> {
    /// Borrows the call's parts; the buffers have the sizes that `plan` gave.
    pub(super) fn new(call: &mut AttnCall<'a>, groups: Vec<Group>, items: Vec<Item>, buffers: [&mut [f32]; 3]) -> Self {
        let seqs = call.seqs;
        let kv_heads = call.geometry.kv_heads;
        let kept = call.kept.as_mut().map(|kept| {
            kept.iter_mut()
                .zip(seqs)
                .map(|(kept, seq)| {
                    kept.clear();
                    kept.resize(kv_heads * seq.kv_len.div_ceil(RUN), 2);
                    Shared::new(kept)
                })
                .collect()
        });
        let [scores, run_max, partials] = buffers.map(Shared::new);
        Self {
            geometry: call.geometry,
            q: call.q,
            q_stride: call.q_stride,
            kv: call.kv,
            seqs,
            groups,
            items,
            out: Shared::new(call.out),
            lse: call.lse.as_mut().map(|lse| Shared::new(lse)),
            kept,
            tallies: seqs.iter().map(|_| Default::default()).collect(),
            scores,
            run_max,
            partials,
        }
    }

    /// Votes, skips and keys not read of sequence `i`.
    pub(super) fn tally(&self, i: usize) -> [u64; 3] {
        [0, 1, 2].map(|n| self.tallies[i][n].load(Ordering::Relaxed))
    }

    /// A span's partial results, `[head][maximum, sum, D accumulators]`.
    ///
    /// # Safety
    /// Only one user of a span at a time.
    #[allow(clippy::mut_from_ref)]
    unsafe fn partial(&self, group: &Group, span: usize) -> &mut [f32] {
        let size = self.geometry.group() * (self.geometry.head_dim + 2);
        let at = (group.first_span + span - group.spans().start) * size;
        // SAFETY: the caller's contract.
        unsafe { self.partials.part(at..at + size) }
    }

    pub(super) fn keys_of(&self, group: &Group, span: usize) -> Range<usize> {
        (span * SPAN).max(group.keys.start)..((span + 1) * SPAN).min(group.keys.end)
    }

    /// Maxima of a skipping group, in bits: of its runs, `[head][runs of whole spans]`, and of its spans, `[head][spans]`.
    ///
    /// # Safety
    /// Every span of the group was scanned, and nobody scans meanwhile.
    pub(super) unsafe fn maxima(&self, group: &Group) -> (&[f32], &[f32]) {
        let (heads, spans) = (self.geometry.group(), group.spans().len());
        let runs = heads * spans * (SPAN / RUN);
        // SAFETY: the caller's contract.
        unsafe { self.run_max.read(group.run_max..group.run_max + runs + heads * spans) }.split_at(runs)
    }

    fn set_kept(&self, group: &Group, runs: Range<usize>, value: u8) {
        if let Some(kept) = &self.kept {
            let line = group.kv_head * self.seqs[group.seq].kv_len.div_ceil(RUN);
            // SAFETY: runs of one group and span belong to one item.
            unsafe { kept[group.seq].part(line + runs.start..line + runs.end).fill(value) };
        }
    }
}

/// First pass over a span. Dense: scores, exponentials and values; skipping: scores and run maxima.
///
/// # Safety
/// The features of `L`; `call` was checked and `item` planned from it; each item runs once a pass.
#[inline(always)]
pub(super) unsafe fn scan<L: Lanes, const D: usize, const NL: usize, const NV: usize>(
    call: &Decode<'_>,
    item: Item,
    scratch: &mut Scratch,
) {
    let group = &call.groups[item.group];
    let heads = call.geometry.group();
    let keys = call.keys_of(group, item.span);
    let cache = Keys::new(&call.kv, &call.seqs[group.seq], group.kv_head);
    let format = call.kv.layout.format;
    // SAFETY: prefetches only.
    unsafe { ask::<L>(cache.k_page(keys.start / PAGE)[keys.start % PAGE * D..].as_ptr(), PREFETCH * D) };
    let [q, block, own] = scratch.parts([heads * D, NL * D, heads * SPAN]);
    let from = call.seqs[group.seq].row * call.q_stride + group.kv_head * heads * D;
    let scale = (f64::from(call.geometry.scale) * std::f64::consts::LOG2_E) as f32;
    for (q, x) in q.iter_mut().zip(&call.q[from..from + heads * D]) {
        *q = x * scale;
    }
    let skips = group.ln_lambda.is_some();
    let spans = group.spans();
    // a line of SPAN scores a head; other spans of a skipping group lie between the lines
    let (scores, stride) = if skips {
        (call.scores.at(group.scores + (item.span - spans.start) * SPAN), spans.len() * SPAN)
    } else {
        (own.as_mut_ptr(), SPAN)
    };
    // SAFETY: this span's line of head h, for one borrow at a time.
    let line = |h: usize| unsafe { std::slice::from_raw_parts_mut(scores.add(h * stride), SPAN) };
    let mut key = keys.start / NL * NL;
    while key < keys.end {
        let rows = cache.k_page(key / PAGE)[key % PAGE * D..][..NL * D].as_ptr();
        let next = key + PREFETCH;
        let ahead = if next < keys.end { cache.k_page(next / PAGE)[next % PAGE * D..].as_ptr() } else { rows };
        // SAFETY: NL rows of the page (128 is a multiple of NL), `heads` score lines of `stride`.
        unsafe {
            dots::<L, D, NL>(Rows { rows, ahead, keys: NL, format }, q.as_ptr(), heads, block.as_mut_ptr(), scores.add(key % SPAN), stride)
        };
        key += NL;
    }
    for h in 0..heads {
        line(h)[..keys.start % SPAN].fill(f32::NEG_INFINITY);
        line(h)[keys.end - item.span * SPAN..].fill(f32::NEG_INFINITY);
    }
    if skips {
        let (runs, index) = (SPAN / RUN, item.span - spans.start);
        for h in 0..heads {
            let at = group.run_max + (h * spans.len() + index) * runs;
            // SAFETY: this span's runs.
            let maxima = unsafe { call.run_max.part(at..at + runs) };
            for (top, run) in maxima.iter_mut().zip(line(h).chunks_exact(RUN)) {
                *top = maximum(run);
            }
            let at = group.run_max + heads * spans.len() * runs + h * spans.len() + index;
            // SAFETY: this span's own maximum.
            unsafe { call.run_max.part(at..at + 1)[0] = maximum(maxima) };
        }
        return;
    }
    // SAFETY: prefetches only.
    unsafe { ask::<L>(values(&cache, keys.start), RUN * D) };
    // SAFETY: this span's partial.
    let partial = unsafe { call.partial(group, item.span) };
    for (h, partial) in partial.chunks_exact_mut(D + 2).enumerate() {
        partial[0] = maximum(line(h));
        // SAFETY: a whole line of SPAN scores.
        partial[1] = unsafe { exponentials::<L, NL>(line(h), partial[0]) };
        partial[2..].fill(0.0);
    }
    let runs = keys.start / RUN..keys.end.div_ceil(RUN);
    for run in runs.clone() {
        let here = (run * RUN).max(keys.start)..((run + 1) * RUN).min(keys.end);
        let ahead = if run + 1 < runs.end { values(&cache, (run + 1) * RUN) } else { values(&cache, here.start) };
        // SAFETY: `here` lies in a page and in the span.
        unsafe {
            let v = Rows { rows: values(&cache, here.start), ahead, keys: here.len(), format };
            gather::<L, D, NL, NV>(v, scores.add(here.start % SPAN), SPAN, heads, partial);
        }
    }
    call.set_kept(group, runs, 1);
}

/// Second pass over a span of a skipping group: votes with the true row maxima, exponentials and values of the surviving runs.
///
/// # Safety
/// As `scan`, which has run on every item of the group.
#[inline(always)]
pub(super) unsafe fn gather_survivors<L: Lanes, const D: usize, const NL: usize, const NV: usize>(
    call: &Decode<'_>,
    item: Item,
    scratch: &mut Scratch,
) {
    let group = &call.groups[item.group];
    let Some(ln_lambda) = group.ln_lambda else { return };
    let threshold = bits(ln_lambda);
    let heads = call.geometry.group();
    let keys = call.keys_of(group, item.span);
    let cache = Keys::new(&call.kv, &call.seqs[group.seq], group.kv_head);
    let spans = group.spans();
    let (stride, runs) = (spans.len() * SPAN, spans.len() * (SPAN / RUN));
    // SAFETY: the scan is over.
    let (run_max, span_max) = unsafe { call.maxima(group) };
    let [row_max] = scratch.parts([heads]);
    for (top, spans) in row_max.iter_mut().zip(span_max.chunks_exact(spans.len())) {
        *top = maximum(spans);
    }
    // SAFETY: this span's partial.
    let partial = unsafe { call.partial(group, item.span) };
    for (partial, &top) in partial.chunks_exact_mut(D + 2).zip(row_max.iter()) {
        partial.fill(0.0);
        partial[0] = top;
    }
    let runs_here = keys.start / RUN..keys.end.div_ceil(RUN);
    let column = |run: usize| run - spans.start * (SPAN / RUN);
    let mut survivors = [0; SPAN / RUN];
    let mut kept = 0;
    let mut tally = [runs_here.len() as u64, 0, 0];
    for run in runs_here {
        let skip = row_max.iter().enumerate().all(|(h, &top)| run_max[h * runs + column(run)] - top < threshold);
        call.set_kept(group, run..run + 1, u8::from(!skip));
        if skip {
            tally[1] += 1;
            tally[2] += (((run + 1) * RUN).min(keys.end) - run * RUN) as u64;
        } else {
            survivors[kept] = run;
            kept += 1;
        }
    }
    let survivors = &survivors[..kept];
    if let Some(first) = survivors.first() {
        // SAFETY: prefetches only.
        unsafe { ask::<L>(values(&cache, first * RUN), RUN * D) };
    }
    for (i, &run) in survivors.iter().enumerate() {
        let at = group.scores + column(run) * RUN;
        for (h, partial) in partial.chunks_exact_mut(D + 2).enumerate() {
            // SAFETY: a whole run of this span's scores.
            let line = unsafe { call.scores.part(at + h * stride..at + h * stride + RUN) };
            // SAFETY: RUN is a multiple of the lanes.
            partial[1] += unsafe { exponentials::<L, NL>(line, partial[0]) };
        }
        let here = run * RUN..((run + 1) * RUN).min(keys.end);
        let ahead = values(&cache, survivors.get(i + 1).map_or(here.start, |next| next * RUN));
        let v = Rows { rows: values(&cache, here.start), ahead, keys: here.len(), format: call.kv.layout.format };
        // SAFETY: `here` lies in a run, whose weights stand in this span's line of every head.
        unsafe { gather::<L, D, NL, NV>(v, call.scores.at(at), stride, heads, partial) };
    }
    for (total, n) in call.tallies[group.seq].iter().zip(tally) {
        total.fetch_add(n, Ordering::Relaxed);
    }
}

/// Last pass: a group's spans added up in ascending order, relative to the largest of their maxima.
pub(super) fn merge(call: &Decode<'_>, index: usize) {
    let group = &call.groups[index];
    let (heads, d) = (call.geometry.group(), call.geometry.head_dim);
    for h in 0..heads {
        let at = call.seqs[group.seq].row * call.geometry.heads + group.kv_head * heads + h;
        // SAFETY: a row and head of the output belong to one group.
        let out = unsafe { call.out.part(at * d..(at + 1) * d) };
        // SAFETY: the passes before are over; groups read only their own spans.
        let partials = group.spans().map(|span| unsafe { &call.partial(group, span)[h * (d + 2)..(h + 1) * (d + 2)] });
        let top = partials.clone().map(|p| p[0]).fold(f32::NEG_INFINITY, f32::max);
        out.fill(0.0);
        let mut sum = 0.0;
        for partial in partials.filter(|p| p[1] > 0.0) {
            let weight = (partial[0] - top).exp2();
            sum += partial[1] * weight;
            for (out, x) in out.iter_mut().zip(&partial[2..]) {
                *out += x * weight;
            }
        }
        let some = sum > 0.0;
        let inverse = if some { 1.0 / sum } else { 0.0 };
        out.iter_mut().for_each(|x| *x *= inverse);
        if let Some(lse) = call.lse {
            let value = if some { top * std::f32::consts::LN_2 + sum.ln() } else { f32::NEG_INFINITY };
            // SAFETY: as for the output.
            unsafe { lse.part(at..at + 1)[0] = value };
        }
    }
}
