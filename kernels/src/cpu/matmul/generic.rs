//! Kernels in plain Rust, compiled for several instruction sets: the portable ones, AVX2, and formats that are not worth intrinsics.

use half::f16;
use std::cell::RefCell;

use super::{Kernel, Strip};
use crate::cpu::isa::Isa;
use crate::cpu::weights::PANEL;

/// Features and rows a tile keeps in registers: eight accumulators of eight lanes.
const LANES: usize = 16;
const ROWS: usize = 4;

/// float32 activations, bfloat16 weights.
pub fn bf16_kernel(isa: Isa) -> Kernel<f32, u32> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        isa if isa >= Isa::Avx2 => bf16_avx2,
        _ => bf16_portable,
    }
}

/// float32 activations, binary32 weights.
pub fn fp32_kernel(isa: Isa) -> Kernel<f32, f32> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        isa if isa >= Isa::Avx2 => fp32_avx2,
        _ => fp32_portable,
    }
}

/// float32 activations, binary16 weights.
pub fn fp16_kernel(isa: Isa) -> Kernel<f32, u32> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        isa if isa >= Isa::Avx2 => fp16_avx2,
        _ => fp16_portable,
    }
}

unsafe fn bf16_portable(strip: Strip<f32, u32>) {
    // SAFETY: the caller's promise.
    unsafe { panels::<u32, false>(strip, bf16_pair) }
}

unsafe fn fp32_portable(strip: Strip<f32, f32>) {
    // SAFETY: the caller's promise.
    unsafe { panels::<f32, false>(strip, fp32_pair) }
}

unsafe fn fp16_portable(strip: Strip<f32, u32>) {
    // SAFETY: the caller's promise.
    unsafe { unpacked(strip, fp32_portable) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn bf16_avx2(strip: Strip<f32, u32>) {
    // SAFETY: the caller's promise.
    unsafe { panels::<u32, true>(strip, bf16_pair) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn fp32_avx2(strip: Strip<f32, f32>) {
    // SAFETY: the caller's promise.
    unsafe { panels::<f32, true>(strip, fp32_pair) }
}

#[cfg(target_arch = "x86_64")]
unsafe fn fp16_avx2(strip: Strip<f32, u32>) {
    // SAFETY: the caller's promise.
    unsafe { unpacked(strip, fp32_avx2) }
}

/// The weights of inputs `2·p` and `2·p + 1` for `LANES` features.
type Pair<W> = unsafe fn(*const W, usize) -> ([f32; LANES], [f32; LANES]);

#[inline(always)]
unsafe fn bf16_pair(w: *const u32, p: usize) -> ([f32; LANES], [f32; LANES]) {
    // SAFETY: the strip holds the pair.
    let w = unsafe { w.add(p * PANEL).cast::<[u32; LANES]>().read() };
    (w.map(|w| f32::from_bits(w << 16)), w.map(|w| f32::from_bits(w & 0xffff_0000)))
}

#[inline(always)]
unsafe fn fp32_pair(w: *const f32, p: usize) -> ([f32; LANES], [f32; LANES]) {
    // SAFETY: the strip holds the pair.
    unsafe {
        let w = w.add(2 * p * PANEL);
        (w.cast::<[f32; LANES]>().read(), w.add(PANEL).cast::<[f32; LANES]>().read())
    }
}

#[inline(always)]
unsafe fn panels<W, const FMA: bool>(strip: Strip<f32, W>, pair: Pair<W>) {
    for at in (0..strip.cols).step_by(LANES) {
        // SAFETY: features `at ..` lie in the strip's panels.
        let w = unsafe { strip.w.add(at / PANEL * strip.w_stride + at % PANEL) };
        let mut row = 0;
        // SAFETY: rows `row ..` lie in the strip.
        unsafe {
            while row + ROWS <= strip.rows {
                tile::<W, ROWS, FMA>(&strip, w, at, row, pair);
                row += ROWS;
            }
            while row < strip.rows {
                tile::<W, 1, FMA>(&strip, w, at, row, pair);
                row += 1;
            }
        }
    }
}

#[inline(always)]
unsafe fn tile<W, const R: usize, const FMA: bool>(strip: &Strip<f32, W>, w: *const W, at: usize, row: usize, pair: Pair<W>) {
    let mut sums = [[0f32; LANES]; R];
    for p in 0..strip.pairs {
        // SAFETY: the strip has `pairs` pairs of weights, and of inputs in each of its rows.
        let (low, high) = unsafe { pair(w, p) };
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: as above.
            let [x, y] = unsafe { strip.x.add((row + r) * strip.x_stride + 2 * p).cast::<[f32; 2]>().read() };
            for j in 0..LANES {
                sums[j] = if FMA { y.mul_add(high[j], x.mul_add(low[j], sums[j])) } else { sums[j] + x * low[j] + y * high[j] };
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let n = LANES.min(strip.cols - at);
        // SAFETY: the strip's output has these features of this row.
        unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), strip.out.add((row + r) * strip.out_stride + at), n) };
    }
}

thread_local! {
    static UNPACKED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Unpacks binary16 panels one by one and hands them to the binary32 kernel.
unsafe fn unpacked(strip: Strip<f32, u32>, kernel: Kernel<f32, f32>) {
    UNPACKED.with_borrow_mut(|unpacked| {
        for at in (0..strip.cols).step_by(PANEL) {
            // SAFETY: the panel has `pairs` pairs of each of its features.
            let panel = unsafe { std::slice::from_raw_parts(strip.w.add(at / PANEL * strip.w_stride), strip.pairs * PANEL) };
            unpacked.resize(panel.len() * 2, 0.0);
            for (out, pair) in unpacked.chunks_exact_mut(2 * PANEL).zip(panel.chunks_exact(PANEL)) {
                for (j, &both) in pair.iter().enumerate() {
                    out[j] = f16::from_bits(both as u16).to_f32();
                    out[PANEL + j] = f16::from_bits((both >> 16) as u16).to_f32();
                }
            }
            let strip = Strip {
                x: strip.x,
                x_stride: strip.x_stride,
                rows: strip.rows,
                w: unpacked.as_ptr(),
                w_stride: unpacked.len(),
                pairs: strip.pairs,
                // SAFETY: feature `at` is one of the strip's.
                out: unsafe { strip.out.add(at) },
                out_stride: strip.out_stride,
                cols: PANEL.min(strip.cols - at),
            };
            // SAFETY: the strip above is the caller's, with one panel.
            unsafe { kernel(strip) };
        }
    });
}
