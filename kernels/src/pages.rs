//! The paged KV cache's layout: pages of 128 tokens, `[page][kv_head][128][head_dim]`, one K and one V pool a layer.

use half::{bf16, f16};

/// Tokens a page; also the keys of a prefill tile.
pub const PAGE: usize = 128;

/// How one K or V element is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvFormat {
    /// bfloat16.
    Bf16,
    /// IEEE binary16 (the CPU's default: 11 significant bits).
    Fp16,
}

impl KvFormat {
    /// The name in options and status.
    pub fn name(self) -> &'static str {
        match self {
            KvFormat::Bf16 => "bf16",
            KvFormat::Fp16 => "fp16",
        }
    }

    /// Bits of `x`, rounded to nearest even; fp16 saturates at ±65504 rather than become infinite.
    #[inline]
    pub fn encode(self, x: f32) -> u16 {
        match self {
            KvFormat::Bf16 => bf16::from_f32(x).to_bits(),
            KvFormat::Fp16 => f16::from_f32(x.clamp(-65504.0, 65504.0)).to_bits(),
        }
    }

    /// The value behind the bits.
    #[inline]
    pub fn decode(self, bits: u16) -> f32 {
        match self {
            KvFormat::Bf16 => bf16::from_bits(bits).to_f32(),
            KvFormat::Fp16 => f16::from_bits(bits).to_f32(),
        }
    }
}

/// Shape of one layer's pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// KV heads of the layer.
    pub kv_heads: usize,
    /// Elements a head.
    pub head_dim: usize,
    /// Element format.
    pub format: KvFormat,
}

impl PageLayout {
    /// Elements of one page of K (V has as many).
    pub fn page_len(&self) -> usize {
        self.kv_heads * PAGE * self.head_dim
    }

    /// Offset, in elements, of token `slot` of head `kv_head` in page `page`.
    pub fn offset(&self, page: u32, kv_head: usize, slot: usize) -> usize {
        ((page as usize * self.kv_heads + kv_head) * PAGE + slot) * self.head_dim
    }
}

/// A borrowed view of one layer's pools.
#[derive(Clone, Copy)]
pub struct KvView<'a> {
    /// Shape and format.
    pub layout: PageLayout,
    /// K elements, `[page][kv_head][128][head_dim]`.
    pub k: &'a [u16],
    /// V elements, same shape; slots behind a sequence's last token in its last page may hold anything, NaN included.
    pub v: &'a [u16],
}
