//! Votes by gap, written plainly in float64: what the kernels that measure are held to.

use super::pages::Keys;
use crate::attention::{AttnCall, AttnSeq, VoteGeometry};
use crate::backend::KernelError;
use crate::gaps::{Gaps, votes};
use skip_tables::Phase;
use std::ops::Range;

const NEG: f64 = f64::NEG_INFINITY;
/// Keys of a vote in the second histogram.
const PAGE_KEYS: usize = 128;

/// Histograms of every sequence of the call; its outputs are left alone. Windowed layers give empty ones.
///
/// # Errors
/// Shapes that do not fit.
pub fn measure(phase: Phase, call: &AttnCall<'_>, geometry: &VoteGeometry) -> Result<Vec<Gaps>, KernelError> {
    let mut all: Vec<Gaps> = vec![Gaps::default(); call.seqs.len()];
    each_vote(phase, call, geometry, &mut |seq, histogram, gap, mass| all[seq][histogram].add(gap, mass))?;
    Ok(all)
}

/// Tells (sequence, which of its histograms, gap in nats, mass) of every vote.
///
/// # Errors
/// Shapes that do not fit.
pub(crate) fn each_vote(
    phase: Phase,
    call: &AttnCall<'_>,
    geometry: &VoteGeometry,
    tell: &mut dyn FnMut(usize, usize, f64, f64),
) -> Result<(), KernelError> {
    call.check()?;
    if !votes(&call.geometry) {
        return Ok(());
    }
    for (i, seq) in call.seqs.iter().enumerate() {
        match phase {
            Phase::Prefill => prefill(call, seq, geometry, &mut |gap, mass| tell(i, 0, gap, mass)),
            Phase::Decode => decode(call, seq, geometry, &mut |histogram, gap, mass| tell(i, histogram, gap, mass)),
        }
    }
    Ok(())
}

/// Scores of one row and head with every key it sees.
fn scores(call: &AttnCall<'_>, seq: &AttnSeq<'_>, row: usize, head: usize) -> Vec<f64> {
    let g = &call.geometry;
    let cache = Keys::new(&call.kv, seq, head / g.group());
    let at = (seq.row + row) * call.q_stride + head * g.head_dim;
    (0..=seq.q_start + row).map(|key| cache.score(&call.q[at..at + g.head_dim], key, g.scale)).collect()
}

fn largest(scores: &[f64]) -> f64 {
    scores.iter().copied().fold(NEG, f64::max)
}

fn mass(scores: &[f64], top: f64) -> f64 {
    scores.iter().map(|s| (s - top).exp()).sum()
}

/// The tile's part of a row's scores, none where the row does not reach it.
fn part(scores: &[f64], keys: Range<usize>) -> Option<&[f64]> {
    scores.get(keys.start..keys.end.min(scores.len())).filter(|part| !part.is_empty())
}

fn prefill(call: &AttnCall<'_>, seq: &AttnSeq<'_>, geometry: &VoteGeometry, tell: &mut dyn FnMut(f64, f64)) {
    let (first, end) = (seq.q_start / geometry.rows, (seq.q_start + seq.q_len).div_ceil(geometry.rows));
    for head in 0..call.geometry.heads {
        for tile in first..end {
            let rows = (tile * geometry.rows).max(seq.q_start)..((tile + 1) * geometry.rows).min(seq.q_start + seq.q_len);
            let rows: Vec<Vec<f64>> = rows.map(|at| scores(call, seq, at - seq.q_start, head)).collect();
            let tops: Vec<f64> = rows.iter().map(|row| largest(row)).collect();
            let mut running = vec![NEG; rows.len()];
            let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
            for b in 0..longest.div_ceil(geometry.keys) {
                let (mut gap, mut carried) = (NEG, 0.0);
                for (r, row) in rows.iter().enumerate() {
                    let Some(part) = part(row, b * geometry.keys..(b + 1) * geometry.keys) else { continue };
                    let top = largest(part);
                    gap = gap.max(top - running[r]);
                    running[r] = running[r].max(top);
                    carried += mass(part, tops[r]);
                }
                tell(gap, carried);
            }
        }
    }
}

fn decode(call: &AttnCall<'_>, seq: &AttnSeq<'_>, geometry: &VoteGeometry, tell: &mut dyn FnMut(usize, f64, f64)) {
    let group = call.geometry.group();
    for kv_head in 0..if seq.q_len == 0 { 0 } else { call.geometry.kv_heads } {
        let rows: Vec<Vec<f64>> = (0..group).map(|h| scores(call, seq, 0, kv_head * group + h)).collect();
        let tops: Vec<f64> = rows.iter().map(|row| largest(row)).collect();
        let keys = rows[0].len();
        let parts = |size: usize, b: usize| rows.iter().map(move |row| &row[b * size..((b + 1) * size).min(keys)]);
        for b in 0..keys.div_ceil(geometry.run) {
            let gap = parts(geometry.run, b).zip(&tops).map(|(part, top)| largest(part) - top).fold(NEG, f64::max);
            tell(0, gap, parts(geometry.run, b).zip(&tops).map(|(part, &top)| mass(part, top)).sum());
        }
        let mut running = vec![NEG; group];
        for b in 0..keys.div_ceil(PAGE_KEYS) {
            let gap = parts(PAGE_KEYS, b).zip(&running).map(|(part, top)| largest(part) - top).fold(NEG, f64::max);
            tell(1, gap, parts(PAGE_KEYS, b).zip(&tops).map(|(part, &top)| mass(part, top)).sum());
            running.iter_mut().zip(parts(PAGE_KEYS, b)).for_each(|(top, part)| *top = top.max(largest(part)));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::attention::{AttnGeometry, DEFAULT_VOTES, SkipCounters};
    use crate::cpu::reference;
    use crate::gaps::{GAP_LOW, GAPS_PER_NAT, GapHistogram};
    use crate::pages::{KvFormat, KvView, PAGE, PageLayout};

    /// A call whose scores are multiples of 1/64 nat that every arithmetic has exactly: the first element alone is not zero.
    pub(crate) struct Exact {
        pub geometry: AttnGeometry,
        layout: PageLayout,
        q: Vec<f32>,
        k: Vec<u16>,
        v: Vec<u16>,
        tables: Vec<Vec<u32>>,
        /// (query rows, keys before them)
        seqs: Vec<(usize, usize)>,
    }

    /// What a call leaves behind.
    pub(crate) struct Left {
        pub out: Vec<f32>,
        pub lse: Vec<f32>,
        pub kept: Vec<Vec<u8>>,
        pub counters: Vec<SkipCounters>,
    }

    impl Exact {
        pub(crate) fn new(phase: Phase, head_dim: usize, group: usize) -> Self {
            let kv_heads = 2;
            let geometry = AttnGeometry { heads: kv_heads * group, kv_heads, head_dim, scale: 0.125, window: None };
            let layout = PageLayout { kv_heads, head_dim, format: KvFormat::Fp16 };
            let seqs: Vec<(usize, usize)> = match phase {
                Phase::Prefill => vec![(300, 0), (70, 200), (0, 0), (129, 127)],
                Phase::Decode => vec![(1, 699), (1, 0), (1, 332)],
            };
            let mut state = 1u64;
            let mut below = |n: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % n
            };
            let counts: Vec<usize> = seqs.iter().map(|s| (s.0 + s.1).div_ceil(PAGE)).collect();
            let pages: usize = counts.iter().sum();
            let mut free: Vec<u32> = (0..pages as u32).collect();
            let mut take = |n| (0..n).map(|_| free.swap_remove(free.len() / 2)).collect();
            let tables: Vec<Vec<u32>> = counts.iter().map(|&n| take(n)).collect();
            let encode = |x: f32| layout.format.encode(x);
            let mut k = vec![0; pages * layout.page_len()];
            for key in k.chunks_mut(head_dim) {
                key[0] = encode(below(256) as f32 / 64.0);
            }
            let v = (0..k.len()).map(|_| encode(below(256) as f32 / 64.0 - 2.0)).collect();
            let rows: usize = seqs.iter().map(|s| s.0).sum();
            let mut q = vec![0.0; rows * geometry.heads * head_dim];
            // Rows see the same keys through scores of different height.
            q.iter_mut().step_by(head_dim).for_each(|x| *x = 8.0 * (1.0 + below(3) as f32));
            Self { geometry, layout, q, k, v, tables, seqs }
        }

        /// The same with scores that are multiples of 1/64 bit instead: exact for kernels that count in bits, and in nats on no bin's edge but 0.
        pub(crate) fn in_bits(mut self) -> Self {
            self.geometry.scale = std::f32::consts::LN_2 / 8.0;
            self
        }

        /// Runs `compute` on the call, every sequence at this threshold.
        pub(crate) fn call<R>(&self, ln_lambda: Option<f32>, compute: impl FnOnce(&mut AttnCall<'_>) -> R) -> (Left, R) {
            let (mut row, mut seqs) = (0, Vec::new());
            for (&(q_len, q_start), block_table) in self.seqs.iter().zip(&self.tables) {
                seqs.push(AttnSeq { row, q_len, q_start, kv_len: q_start + q_len, block_table, ln_lambda });
                row += q_len;
            }
            let width = self.geometry.heads * self.geometry.head_dim;
            let mut left = Left {
                out: vec![f32::NAN; row * width],
                lse: vec![f32::NAN; row * self.geometry.heads],
                kept: vec![Vec::new(); seqs.len()],
                counters: vec![SkipCounters::default(); seqs.len()],
            };
            let mut call = AttnCall {
                geometry: self.geometry,
                q: &self.q,
                q_stride: width,
                kv: KvView { layout: self.layout, k: &self.k, v: &self.v },
                seqs: &seqs,
                out: &mut left.out,
                lse: Some(&mut left.lse),
                kept: Some(&mut left.kept),
                counters: &mut left.counters,
            };
            let result = compute(&mut call);
            (left, result)
        }
    }

    #[test]
    fn histograms_tell_what_every_threshold_skips() {
        for phase in [Phase::Prefill, Phase::Decode] {
            let exact = Exact::new(phase, 16, 3);
            let gaps = exact.call(None, |call| measure(phase, call, &DEFAULT_VOTES)).1.unwrap();
            let mut some = 0;
            for bin in [15 * GAPS_PER_NAT, 15 * GAPS_PER_NAT + 2, 16 * GAPS_PER_NAT - 8, 16 * GAPS_PER_NAT - 1] {
                let ln_lambda = f64::from(GAP_LOW) + bin as f64 / GAPS_PER_NAT as f64;
                let (left, shares) = exact.call(Some(ln_lambda as f32), |call| {
                    match phase {
                        Phase::Prefill => reference::prefill(call, &DEFAULT_VOTES),
                        Phase::Decode => reference::decode(call, &DEFAULT_VOTES),
                    }
                    .unwrap();
                    let kept = call.kept.take().unwrap();
                    let share = |(i, kept): (usize, &Vec<u8>)| reference::mass_share(call, i, kept, &DEFAULT_VOTES, phase == Phase::Decode);
                    kept.iter().enumerate().map(share).collect::<Vec<f64>>()
                });
                for ((gaps, counted), share) in gaps.iter().zip(&left.counters).zip(shares) {
                    let (votes, mass) = gaps[0].skipped(ln_lambda);
                    assert_eq!(gaps[0].votes.iter().sum::<u64>(), counted.votes);
                    assert_eq!((votes * counted.votes as f64).round() as u64, counted.skipped, "{phase:?} {ln_lambda}");
                    assert!((mass - share).abs() < 1e-9, "{phase:?} {ln_lambda}: {mass} for {share}");
                    some += usize::from(0 < counted.skipped && counted.skipped < counted.votes);
                }
            }
            assert!(some > 0, "{phase:?}: no threshold skips some and keeps some");
        }
    }

    #[test]
    fn windowed_layers_have_no_votes() {
        let mut exact = Exact::new(Phase::Prefill, 16, 1);
        exact.geometry.window = Some(100);
        let gaps = exact.call(None, |call| measure(Phase::Prefill, call, &DEFAULT_VOTES)).1.unwrap();
        assert!(gaps.iter().flatten().all(|g| *g == GapHistogram::default()));
    }
}
