//! One sequence's keys and values of one KV head, found through its block table.

use crate::attention::AttnSeq;
use crate::pages::{KvView, PAGE};

/// The K and V rows of a sequence and KV head.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    kv: KvView<'a>,
    block_table: &'a [u32],
    kv_head: usize,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(kv: &KvView<'a>, seq: &AttnSeq<'a>, kv_head: usize) -> Self {
        Self { kv: *kv, block_table: seq.block_table, kv_head }
    }

    /// K rows of the block's 128 slots, `[128][head_dim]`; slots behind the sequence's end may hold anything.
    pub(crate) fn k_page(&self, block: usize) -> &'a [u16] {
        let at = self.kv.layout.offset(self.block_table[block], self.kv_head, 0);
        &self.kv.k[at..at + PAGE * self.kv.layout.head_dim]
    }

    /// V rows, as `k_page`.
    pub(crate) fn v_page(&self, block: usize) -> &'a [u16] {
        let at = self.kv.layout.offset(self.block_table[block], self.kv_head, 0);
        &self.kv.v[at..at + PAGE * self.kv.layout.head_dim]
    }

    fn row(&self, page: &'a [u16], key: usize) -> &'a [u16] {
        let d = self.kv.layout.head_dim;
        &page[key % PAGE * d..(key % PAGE + 1) * d]
    }

    /// scale · q·k in nats.
    pub(crate) fn score(&self, q: &[f32], key: usize, scale: f32) -> f64 {
        let k = self.row(self.k_page(key / PAGE), key);
        let dot: f64 = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(self.kv.layout.format.decode(k))).sum();
        dot * f64::from(scale)
    }

    /// acc += p · v.
    pub(crate) fn add_value(&self, key: usize, p: f64, acc: &mut [f64]) {
        let v = self.row(self.v_page(key / PAGE), key);
        for (a, &v) in acc.iter_mut().zip(v) {
            *a += p * f64::from(self.kv.layout.format.decode(v));
        }
    }
}
