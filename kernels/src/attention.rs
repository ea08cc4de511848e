//! What an attention call takes and gives, the same for every implementation.

use crate::backend::KernelError;
use crate::pages::{KvView, PAGE};

/// Heads and scaling of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttnGeometry {
    /// Query heads.
    pub heads: usize,
    /// KV heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements a head.
    pub head_dim: usize,
    /// Factor from q·k to nats.
    pub scale: f32,
    /// Sliding window in keys: a query at p sees keys j with p − window < j ≤ p. Windowed layers never skip.
    pub window: Option<usize>,
}

/// Who votes together: a declared property of a kernel, without which a table's S means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoteGeometry {
    /// Query rows a prefill tile, anchored at absolute multiples.
    pub rows: usize,
    /// Keys a prefill tile, anchored at absolute multiples.
    pub keys: usize,
    /// Keys a decode run.
    pub run: usize,
}

/// The CPU's and portable CUDA's geometry.
pub const DEFAULT_VOTES: VoteGeometry = VoteGeometry { rows: 128, keys: 128, run: 32 };

/// One sequence's share of an attention call.
#[derive(Clone, Copy, Debug)]
pub struct AttnSeq<'a> {
    /// First row of the sequence in the packed query (and output).
    pub row: usize,
    /// Query rows of this call (decode: 1).
    pub q_len: usize,
    /// Absolute position of the first query row: row i sits at `q_start + i` and sees the keys up to its own position.
    pub q_start: usize,
    /// Keys in the pages, at least `q_start + q_len` (equal in practice).
    pub kv_len: usize,
    /// Pages in order, `ceil(kv_len / 128)` of them.
    pub block_table: &'a [u32],
    /// ln λ, or None for exact dense attention of this sequence.
    pub ln_lambda: Option<f32>,
}

/// A whole call over a ragged batch.
pub struct AttnCall<'a> {
    /// Heads and scaling.
    pub geometry: AttnGeometry,
    /// Queries in float32: row r, head h at `r * q_stride + h * head_dim`, RoPE applied.
    pub q: &'a [f32],
    /// Elements from one query row to the next (≥ heads · head_dim: QKV may be packed).
    pub q_stride: usize,
    /// The layer's pools.
    pub kv: KvView<'a>,
    /// The sequences.
    pub seqs: &'a [AttnSeq<'a>],
    /// Output, `[rows][heads · head_dim]`, dense rows.
    pub out: &'a mut [f32],
    /// Natural-log sum-exp, `[rows][heads]`, where wanted.
    pub lse: Option<&'a mut [f32]>,
    /// Votes of each sequence in the oracle's shape (prefill `[heads][q_tiles][k_tiles]`, decode `[kv_heads][runs]`;
    /// 0 skipped, 1 computed, 2 wholly masked), where wanted: one vector a sequence, filled by the call.
    pub kept: Option<&'a mut [Vec<u8>]>,
    /// Votes taken and lost, one a sequence, added to.
    pub counters: &'a mut [SkipCounters],
}

/// Votes of one sequence and phase. Dense attention takes none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkipCounters {
    /// Tiles (prefill) or runs (decode) voted on.
    pub votes: u64,
    /// Of those, the ones left out.
    pub skipped: u64,
    /// Bytes of V (decode) not read. On CUDA every run left out counts as whole: the last of a sequence may be shorter.
    pub bytes_not_read: u64,
}

impl SkipCounters {
    /// Share skipped, 0 where nothing was voted on.
    pub fn share(&self) -> f64 {
        if self.votes == 0 { 0.0 } else { self.skipped as f64 / self.votes as f64 }
    }
}

impl std::ops::AddAssign for SkipCounters {
    fn add_assign(&mut self, other: Self) {
        self.votes += other.votes;
        self.skipped += other.skipped;
        self.bytes_not_read += other.bytes_not_read;
    }
}

impl AttnSeq<'_> {
    /// ln λ of this sequence in a layer of `geometry`: windowed layers never skip.
    pub fn threshold(&self, geometry: &AttnGeometry) -> Option<f32> {
        self.ln_lambda.filter(|_| geometry.window.is_none())
    }
}

impl AttnGeometry {
    /// Query heads that share a KV head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

impl AttnCall<'_> {
    /// Checks every shape, length and page number, so that kernels may index without doubt.
    pub fn check(&self) -> Result<(), KernelError> {
        let g = &self.geometry;
        let invalid = |what: String| Err(KernelError::Invalid(format!("attention: {what}")));
        if g.kv_heads == 0 || g.head_dim == 0 || g.heads == 0 || !g.heads.is_multiple_of(g.kv_heads) {
            return invalid(format!("{} heads over {} KV heads of {}", g.heads, g.kv_heads, g.head_dim));
        }
        let layout = self.kv.layout;
        if layout.kv_heads != g.kv_heads || layout.head_dim != g.head_dim {
            return invalid(format!("pages of {} × {} for {} KV heads of {}", layout.kv_heads, layout.head_dim, g.kv_heads, g.head_dim));
        }
        let width = g.heads * g.head_dim;
        if self.q_stride < width {
            return invalid(format!("query stride {} below {width}", self.q_stride));
        }
        if self.kv.k.len() != self.kv.v.len() {
            return invalid("K and V pools differ in size".into());
        }
        if self.counters.len() != self.seqs.len() || self.kept.as_ref().is_some_and(|kept| kept.len() != self.seqs.len()) {
            return invalid(format!("{} sequences, {} counters", self.seqs.len(), self.counters.len()));
        }
        let pages = self.kv.k.len() / layout.page_len();
        let mut rows: Vec<_> = self.seqs.iter().filter(|s| s.q_len > 0).map(|s| (s.row, s.q_len)).collect();
        rows.sort_unstable();
        if rows.windows(2).any(|w| w[0].0 + w[0].1 > w[1].0) {
            return invalid("sequences share query rows".into());
        }
        let end = rows.last().map_or(0, |&(row, len)| row + len);
        if end > 0 && self.q.len() < (end - 1) * self.q_stride + width {
            return invalid(format!("{end} query rows in {} elements", self.q.len()));
        }
        if self.out.len() < end * width || self.lse.as_ref().is_some_and(|lse| lse.len() < end * g.heads) {
            return invalid(format!("output too small for {end} rows"));
        }
        for seq in self.seqs {
            if seq.q_start > seq.kv_len || seq.q_len > seq.kv_len - seq.q_start {
                return invalid(format!("{} rows from {} on, {} keys", seq.q_len, seq.q_start, seq.kv_len));
            }
            let needed = seq.kv_len.div_ceil(PAGE);
            if seq.block_table.len() < needed || seq.block_table[..needed].iter().any(|&p| p as usize >= pages) {
                return invalid(format!("{} pages listed for {} keys, {pages} in the pool", seq.block_table.len(), seq.kv_len));
            }
            if seq.ln_lambda.is_some_and(|l| l.is_nan()) {
                return invalid("the threshold is not a number".into());
            }
        }
        Ok(())
    }
}
