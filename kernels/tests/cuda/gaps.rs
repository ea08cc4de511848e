//! The number a vote is about, in float64: by how much a tile's or run's best score, over the rows that vote, stays behind.

use crate::fixture::Sequence;
use skip_kernels::PAGE;
use skip_kernels::attention::{AttnGeometry, DEFAULT_VOTES};

/// q·k of a row, head and key.
fn score(g: &AttnGeometry, s: &Sequence, row: usize, head: usize, key: usize) -> f64 {
    let (d, kv_head) = (g.head_dim, head / g.group());
    let q = &s.q[(row * g.heads + head) * d..][..d];
    let k = &s.k[(key * g.kv_heads + kv_head) * d..][..d];
    q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() * f64::from(g.scale)
}

fn best(g: &AttnGeometry, s: &Sequence, row: usize, head: usize, keys: std::ops::Range<usize>) -> f64 {
    keys.map(|key| score(g, s, row, head, key)).fold(f64::NEG_INFINITY, f64::max)
}

/// max over the tile's rows of (best score in the tile − best before it): below ln λ it is skipped. `index` counts as the votes of one
/// sequence lie, `[heads][q_tiles][k_tiles]`. What was skipped before is below the maximum, so it need not be known.
pub fn of_tile(g: &AttnGeometry, s: &Sequence, index: usize) -> f64 {
    let k_tiles = s.kv_len.div_ceil(PAGE);
    let first = s.q_start / PAGE;
    let q_tiles = (s.q_start + s.q_len - 1) / PAGE - first + 1;
    let (head, tile, column) = (index / (q_tiles * k_tiles), index / k_tiles % q_tiles, index % k_tiles);
    let rows = ((first + tile) * PAGE).max(s.q_start)..((first + tile + 1) * PAGE).min(s.q_start + s.q_len);
    let gap = |position: usize| {
        let row = position - s.q_start;
        let here = best(g, s, row, head, column * PAGE..((column + 1) * PAGE).min(position + 1));
        here - best(g, s, row, head, 0..column * PAGE)
    };
    rows.filter(|&position| position >= column * PAGE).map(gap).fold(f64::NEG_INFINITY, f64::max)
}

/// max over the group's heads of (best score in the run − best of all); `index` counts as `[kv_heads][runs]`.
pub fn of_run(g: &AttnGeometry, s: &Sequence, index: usize) -> f64 {
    let run = DEFAULT_VOTES.run;
    let runs = s.kv_len.div_ceil(run);
    let (kv_head, at) = (index / runs, index % runs);
    let gap = |head: usize| best(g, s, 0, head, at * run..((at + 1) * run).min(s.kv_len)) - best(g, s, 0, head, 0..s.kv_len);
    (kv_head * g.group()..(kv_head + 1) * g.group()).map(gap).fold(f64::NEG_INFINITY, f64::max)
}
