//! Attention written plainly: float64 accumulators, one score at a time, any geometry.
//!
//! The meaning of a vote is what this file does; every other kernel is measured against it, and layouts that no kernel
//! is built for run here.

use super::pages::Keys;
use crate::attention::{AttnCall, AttnSeq, SkipCounters, VoteGeometry};
use crate::backend::KernelError;
use std::ops::Range;

const NEG: f64 = f64::NEG_INFINITY;

/// Prefill of every sequence of the call: one vote per (rows × keys) tile and head, tiles at absolute positions, keys ascending.
pub fn prefill(call: &mut AttnCall<'_>, votes: &VoteGeometry) -> Result<(), KernelError> {
    call.check()?;
    for i in 0..call.seqs.len() {
        let seq = call.seqs[i];
        let first = seq.q_start / votes.rows;
        let q_tiles = if seq.q_len == 0 { 0 } else { (seq.q_start + seq.q_len - 1) / votes.rows - first + 1 };
        let k_tiles = seq.kv_len.div_ceil(votes.keys);
        let mut kept = vec![2u8; call.geometry.heads * q_tiles * k_tiles];
        for head in 0..call.geometry.heads {
            for a in 0..q_tiles {
                let start = ((first + a) * votes.rows).max(seq.q_start) - seq.q_start;
                let end = ((first + a + 1) * votes.rows - seq.q_start).min(seq.q_len);
                let line = (head * q_tiles + a) * k_tiles;
                prefill_tile(call, &seq, head, start..end, votes.keys, &mut kept[line..line + k_tiles]);
            }
        }
        if seq.threshold(&call.geometry).is_some() {
            call.counters[i] += SkipCounters { bytes_not_read: 0, ..tally(&kept) };
        }
        if let Some(all) = call.kept.as_mut() {
            all[i] = kept;
        }
    }
    Ok(())
}

/// Decode of every sequence of the call: all scores first, then one vote per run of keys and KV head against the true row maximum.
pub fn decode(call: &mut AttnCall<'_>, votes: &VoteGeometry) -> Result<(), KernelError> {
    call.check()?;
    for i in 0..call.seqs.len() {
        let seq = call.seqs[i];
        if seq.q_len != 1 {
            return Err(KernelError::Invalid(format!("attention: {} rows in a decode sequence", seq.q_len)));
        }
        let runs = seq.kv_len.div_ceil(votes.run);
        let mut kept = vec![2u8; call.geometry.kv_heads * runs];
        for kv_head in 0..call.geometry.kv_heads {
            let bytes = decode_group(call, &seq, kv_head, votes.run, &mut kept[kv_head * runs..(kv_head + 1) * runs]);
            call.counters[i].bytes_not_read += bytes;
        }
        if seq.threshold(&call.geometry).is_some() {
            call.counters[i] += tally(&kept);
        }
        if let Some(all) = call.kept.as_mut() {
            all[i] = kept;
        }
    }
    Ok(())
}

/// Softmax numerator of the skipped tiles or runs over all of it, relative to each row's true maximum, from the votes that `prefill` or
/// `decode` reported for sequence `index` of the call.
pub fn mass_share(call: &AttnCall<'_>, index: usize, kept: &[u8], votes: &VoteGeometry, decode: bool) -> f64 {
    let (seq, geometry) = (call.seqs[index], call.geometry);
    let (rows, keys) = if decode { (1, votes.run) } else { (votes.rows, votes.keys) };
    let (first, columns) = (seq.q_start / rows, seq.kv_len.div_ceil(keys));
    let lines = if seq.q_len == 0 { 0 } else { (seq.q_start + seq.q_len - 1) / rows - first + 1 };
    let (mut skipped, mut all) = (0.0, 0.0);
    for head in 0..geometry.heads {
        let voter = if decode { head / geometry.group() } else { head };
        let cache = Keys::new(&call.kv, &seq, head / geometry.group());
        for row in 0..seq.q_len {
            let sees = visible(seq.q_start + row, geometry.window);
            let q = query(call, seq.row + row, head);
            let scores: Vec<f64> = sees.clone().map(|key| cache.score(q, key, geometry.scale)).collect();
            let top = scores.iter().copied().fold(NEG, f64::max);
            let line = (voter * lines + (seq.q_start + row) / rows - first) * columns;
            for (key, s) in sees.zip(scores) {
                let p = (s - top).exp();
                all += p;
                if kept[line + key / keys] == 0 {
                    skipped += p;
                }
            }
        }
    }
    skipped / f64::max(all, 1e-300)
}

fn tally(kept: &[u8]) -> SkipCounters {
    SkipCounters {
        votes: kept.iter().filter(|&&k| k != 2).count() as u64,
        skipped: kept.iter().filter(|&&k| k == 0).count() as u64,
        bytes_not_read: 0,
    }
}

/// Keys that the row at `position` sees.
fn visible(position: usize, window: Option<usize>) -> Range<usize> {
    window.map_or(0, |w| (position + 1).saturating_sub(w))..position + 1
}

fn prefill_tile(call: &mut AttnCall<'_>, seq: &AttnSeq<'_>, head: usize, rows: Range<usize>, keys: usize, kept: &mut [u8]) {
    let d = call.geometry.head_dim;
    let cache = Keys::new(&call.kv, seq, head / call.geometry.group());
    let ln_lambda = seq.threshold(&call.geometry).map_or(NEG, f64::from);
    let mut row_max = vec![NEG; rows.len()];
    let mut denominator = vec![0.0f64; rows.len()];
    let mut acc = vec![0.0f64; rows.len() * d];
    let width = keys.min(seq.kv_len);
    let mut scores = vec![NEG; rows.len() * width];
    let mut tile_max = vec![NEG; rows.len()];
    for (b, kept) in kept.iter_mut().enumerate() {
        let tile = b * keys..((b + 1) * keys).min(seq.kv_len);
        scores.fill(NEG);
        tile_max.fill(NEG);
        for (r, row) in rows.clone().enumerate() {
            let sees = visible(seq.q_start + row, call.geometry.window);
            for key in tile.start.max(sees.start)..tile.end.min(sees.end) {
                let s = cache.score(query(call, seq.row + row, head), key, call.geometry.scale);
                scores[r * width + key - tile.start] = s;
                tile_max[r] = tile_max[r].max(s);
            }
        }
        let mut voters = (0..rows.len()).filter(|&r| tile_max[r] > NEG).peekable();
        if voters.peek().is_none() {
            continue;
        }
        // a row that has seen nothing yet gives +∞ here, so its tile is kept
        if voters.all(|r| tile_max[r] - row_max[r] < ln_lambda) {
            *kept = 0;
            continue;
        }
        *kept = 1;
        for r in (0..rows.len()).filter(|&r| tile_max[r] > NEG) {
            let new = row_max[r].max(tile_max[r]);
            let alpha = if row_max[r] > NEG { (row_max[r] - new).exp() } else { 0.0 };
            row_max[r] = new;
            denominator[r] *= alpha;
            let acc = &mut acc[r * d..(r + 1) * d];
            acc.iter_mut().for_each(|x| *x *= alpha);
            for key in tile.clone() {
                let s = scores[r * width + key - tile.start];
                if s > NEG {
                    let p = (s - new).exp();
                    denominator[r] += p;
                    cache.add_value(key, p, acc);
                }
            }
        }
    }
    for (r, row) in rows.enumerate() {
        write(call, seq.row + row, head, &acc[r * d..(r + 1) * d], row_max[r], denominator[r]);
    }
}

fn decode_group(call: &mut AttnCall<'_>, seq: &AttnSeq<'_>, kv_head: usize, run: usize, kept: &mut [u8]) -> u64 {
    let geometry = call.geometry;
    let (d, group) = (geometry.head_dim, geometry.group());
    let cache = Keys::new(&call.kv, seq, kv_head);
    let sees = visible(seq.q_start, geometry.window);
    let heads = kv_head * group..(kv_head + 1) * group;
    let scores: Vec<Vec<f64>> =
        heads.clone().map(|head| sees.clone().map(|key| cache.score(query(call, seq.row, head), key, geometry.scale)).collect()).collect();
    let max = |s: &[f64]| s.iter().copied().fold(NEG, f64::max);
    let top: Vec<f64> = scores.iter().map(|s| max(s)).collect();
    let ln_lambda = seq.threshold(&geometry).map_or(NEG, f64::from);
    let mut not_read = 0;
    for (b, kept) in kept.iter_mut().enumerate() {
        let keys = (b * run).max(sees.start)..((b + 1) * run).min(sees.end);
        if keys.is_empty() {
            continue;
        }
        let skip = (0..group).all(|h| max(&scores[h][keys.start - sees.start..keys.end - sees.start]) - top[h] < ln_lambda);
        *kept = u8::from(!skip);
        if skip {
            not_read += (keys.len() * d * 2) as u64;
        }
    }
    for (h, head) in heads.enumerate() {
        let mut acc = vec![0.0; d];
        let mut denominator = 0.0;
        for key in sees.clone().filter(|key| kept[key / run] == 1) {
            let p = (scores[h][key - sees.start] - top[h]).exp();
            denominator += p;
            cache.add_value(key, p, &mut acc);
        }
        write(call, seq.row, head, &acc, top[h], denominator);
    }
    not_read
}

fn query<'a>(call: &AttnCall<'a>, row: usize, head: usize) -> &'a [f32] {
    let at = row * call.q_stride + head * call.geometry.head_dim;
    &call.q[at..at + call.geometry.head_dim]
}

/// Output and log-sum-exp of one row and head; nothing visible is 0 and −∞.
fn write(call: &mut AttnCall<'_>, row: usize, head: usize, acc: &[f64], max: f64, denominator: f64) {
    let at = (row * call.geometry.heads + head) * call.geometry.head_dim;
    let some = denominator > 0.0;
    for (out, x) in call.out[at..at + acc.len()].iter_mut().zip(acc) {
        *out = if some { (x / denominator) as f32 } else { 0.0 };
    }
    if let Some(lse) = call.lse.as_mut() {
        lse[row * call.geometry.heads + head] = if some { (max + denominator.ln()) as f32 } else { f32::NEG_INFINITY };
    }
}
