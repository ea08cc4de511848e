//! What an attention call takes and gives, the same for every implementation.

use crate::pages::KvView;

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
    /// Absolute position of the first query row; keys `0 .. q_start + q_len` are in the pages.
    pub q_start: usize,
    /// Keys in the pages that may be attended (≥ q_start + q_len − 1 + 1; equal in practice).
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
    /// Queries: row r, head h at `r * q_stride + h * head_dim`, RoPE applied.
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
    /// Bytes of V (decode) not read.
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
