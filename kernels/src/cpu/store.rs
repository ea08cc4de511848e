//! From a packed `[q | k | v]` row to attention's inputs: bias, per-head norms and rotation in place, keys and values into the pages.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::isa::Isa;
use super::norm::{by_rows, rms_norm_in_place};
use super::pool::Pool;
use super::rope::Angles;
use super::shared::SharedMut;
use super::simd;
use crate::attention::AttnGeometry;
use crate::pages::{KvFormat, PAGE, PageLayout};
use crate::step::Step;

/// What is done to a row.
pub struct RowArgs<'a> {
    /// Instructions to use.
    pub isa: Isa,
    /// Heads.
    pub geometry: AttnGeometry,
    /// Bias of the packed row.
    pub bias: Option<&'a [f32]>,
    /// Per-head norm weights of q and of k, and epsilon.
    pub qk_norm: Option<(&'a [f32], &'a [f32], f32)>,
    /// Rotation of each row.
    pub angles: &'a Angles,
}

/// Works on every row of the step; `k` and `v` are the layer's pools.
pub fn qkv_store(pool: &Pool, step: &Step, qkv: &mut [f32], args: &RowArgs<'_>, layout: PageLayout, k: &mut [u16], v: &mut [u16]) {
    let isa = args.isa;
    let d = args.geometry.head_dim;
    let (q_len, kv_len) = (args.geometry.heads * d, args.geometry.kv_heads * d);
    let cols = q_len + 2 * kv_len;
    let (qkv, k, v) = (SharedMut::new(qkv), SharedMut::new(k), SharedMut::new(v));
    for seq in &step.seqs {
        let pages = step.pages(seq);
        by_rows(pool, seq.len, cols * 4, &|first, n| {
            for i in first..first + n {
                // SAFETY: each row belongs to one task.
                let row = unsafe { qkv.part((seq.row + i) * cols, cols) };
                if let Some(bias) = args.bias {
                    simd::add(isa, row, bias);
                }
                let (q, kv) = row.split_at_mut(q_len);
                let (keys, values) = kv.split_at_mut(kv_len);
                for (x, weight) in [(q, 0), (&mut *keys, 1)] {
                    for head in x.chunks_exact_mut(d) {
                        if let Some((q_norm, k_norm, eps)) = args.qk_norm {
                            rms_norm_in_place(isa, head, if weight == 0 { q_norm } else { k_norm }, eps);
                        }
                        args.angles.rotate(isa, seq.row + i, head);
                    }
                }
                let position = seq.start + i;
                for (h, (key, value)) in keys.chunks_exact(d).zip(values.chunks_exact(d)).enumerate() {
                    let at = layout.offset(pages[position / PAGE], h, position % PAGE);
                    // SAFETY: a position of a sequence is stored by one task; sequences do not share the pages they write.
                    unsafe {
                        encode(isa, layout.format, key, k.part(at, d));
                        encode(isa, layout.format, value, v.part(at, d));
                    }
                }
            }
        });
        clear_tail(layout, pages, seq.start, seq.start + seq.len, v);
    }
}

/// Zeroes V behind position `end` in its page, if this step was the first to write there: stale NaN times a zero weight is NaN.
fn clear_tail(layout: PageLayout, pages: &[u32], start: usize, end: usize, v: SharedMut<'_, u16>) {
    let slot = end % PAGE;
    if slot == 0 || start > end - slot {
        return;
    }
    for h in 0..layout.kv_heads {
        // SAFETY: no task runs now.
        unsafe { v.part(layout.offset(pages[end / PAGE], h, slot), (PAGE - slot) * layout.head_dim) }.fill(0);
    }
}

/// Rounds to the pool's format; binary16 saturates.
fn encode(isa: Isa, format: KvFormat, x: &[f32], out: &mut [u16]) {
    match format {
        KvFormat::Bf16 => simd::round(isa, x, out),
        KvFormat::Fp16 => {
            let mut clamped = [0f32; 64];
            for (out, x) in out.chunks_mut(64).zip(x.chunks(64)) {
                let clamped = &mut clamped[..x.len()];
                clamped.iter_mut().zip(x).for_each(|(c, x)| *c = x.clamp(-65504.0, 65504.0));
                bytemuck::cast_slice_mut::<u16, f16>(out).convert_from_f32_slice(clamped);
            }
        }
    }
}
