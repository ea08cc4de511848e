//! Matrix products of activations with packed weights: y = x · Wᵀ, from one row (decode) to a whole prompt.
//!
//! Every output element is summed over the inputs in ascending order in one accumulator, whatever the number of rows and the
//! kernel's blocking, so a row's result does not depend on the rows beside it.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod float32;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub use amx::available as tiles_available;

use super::isa::Isa;
use super::norm::by_rows;
use super::pool::Pool;
use super::shared::SharedMut;
use super::simd;
use super::weights::{PANEL, Packed, Weights};

/// Rows of activations that one task takes through a range of panels: they stay in the second-level cache.
const ROW_BLOCK: usize = 192;
/// Tile kernels read rows up to a multiple of this.
const TILE_ROWS: usize = 16;
/// Rows from which a task takes one panel at a time.
const MANY_ROWS: usize = 32;
/// Most panels a task takes with few rows.
const MOST_PANELS: usize = 32;

/// A strip of the product: some rows of activations with some panels that follow one another.
#[derive(Clone, Copy)]
struct Strip<X, W> {
    /// The first row; elements are float32 or pairs of bfloat16.
    x: *const X,
    /// Elements from a row to the next.
    x_stride: usize,
    /// Rows, at least one.
    rows: usize,
    /// The first panel.
    w: *const W,
    /// Elements from a panel to the next.
    w_stride: usize,
    /// Pairs of inputs to sum over.
    pairs: usize,
    /// The first row's first feature.
    out: *mut f32,
    /// Elements from a row to the next.
    out_stride: usize,
    /// Features to write.
    cols: usize,
}

/// Computes a strip.
///
/// # Safety
/// The strip's pointers reach all that its numbers say, `out` is nobody else's, and the processor has the kernel's instructions.
type Kernel<X, W> = unsafe fn(Strip<X, W>);

/// How activations enter a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// As they are.
    Float32,
    /// Rounded to bfloat16.
    Bfloat16,
}

/// Memory that products reuse from call to call.
#[derive(Default)]
pub struct Scratch {
    pairs: Vec<u32>,
    rounded: Vec<f32>,
}

/// out = x · wᵀ for `x` of `[m][w.cols]` and `out` of `[m][w.rows]`.
///
/// # Panics
/// When the slices do not have these shapes.
pub fn matmul(pool: &Pool, isa: Isa, inputs: Inputs, x: &[f32], w: &Weights, out: &mut [f32], scratch: &mut Scratch) {
    let m = x.len() / w.cols;
    assert!(x.len() == m * w.cols && out.len() == m * w.rows, "{} inputs, {} outputs for {} × {}", x.len(), out.len(), w.rows, w.cols);
    let halves = w.padded() / 2;
    match (&w.packed, inputs) {
        (Packed::Bf16(packed), _) if isa >= Isa::Amx => {
            let terms = if inputs == Inputs::Float32 { 3 } else { 1 };
            pairs(pool, isa, x, w.cols, halves, terms, &mut scratch.pairs);
            run(pool, tile_kernel(), &scratch.pairs, terms * halves, packed, halves, w, m, out);
        }
        (Packed::Bf16(packed), Inputs::Bfloat16) => match dot_kernel(isa) {
            Some(kernel) => {
                pairs(pool, isa, x, w.cols, halves, 1, &mut scratch.pairs);
                run(pool, kernel, &scratch.pairs, halves, packed, halves, w, m, out);
            }
            None => {
                scratch.rounded.resize(x.len(), 0.0);
                simd::rounded(isa, x, &mut scratch.rounded);
                run(pool, float32::bf16_kernel(isa), &scratch.rounded, w.cols, packed, w.cols / 2, w, m, out);
            }
        },
        (Packed::Bf16(packed), Inputs::Float32) => run(pool, float32::bf16_kernel(isa), x, w.cols, packed, w.cols / 2, w, m, out),
        (Packed::Fp16(packed), _) => run(pool, float32::fp16_kernel(isa), x, w.cols, packed, w.cols / 2, w, m, out),
        (Packed::Fp32(packed), _) => run(pool, float32::fp32_kernel(isa), x, w.cols, packed, w.cols / 2, w, m, out),
    }
}

/// Terms of bfloat16 activations and bfloat16 weights, in tiles; only where `Isa::Amx` was detected.
fn tile_kernel() -> Kernel<u32, u32> {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    return amx::bfloat16;
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    unreachable!("no tiles are detected here")
}

/// bfloat16 activations and weights, where there are instructions for it.
fn dot_kernel(isa: Isa) -> Option<Kernel<u32, u32>> {
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx512Bf16 {
        return Some(avx512::bfloat16);
    }
    #[cfg(target_arch = "aarch64")]
    if isa == Isa::NeonBf16 {
        return Some(neon::bfloat16);
    }
    let _ = isa;
    None
}

/// Rows of `cols` as `terms` (1: rounded, 3: cut) bfloat16 terms one after the other, each in pairs and padded with zeros to `halves`.
fn pairs(pool: &Pool, isa: Isa, x: &[f32], cols: usize, halves: usize, terms: usize, out: &mut Vec<u32>) {
    let rows = x.len() / cols;
    let len = rows.next_multiple_of(TILE_ROWS) * terms * halves;
    if out.len() < len {
        out.resize(len, 0);
    }
    let shared = SharedMut::new(out);
    by_rows(pool, rows, cols, &|first, n| {
        for r in first..first + n {
            // SAFETY: each row belongs to one task.
            let out = unsafe { shared.part(r * terms * halves, terms * halves) };
            let out: &mut [u16] = bytemuck::cast_slice_mut(out);
            let x = &x[r * cols..(r + 1) * cols];
            if terms == 1 {
                simd::round(isa, x, out);
            } else {
                let (high, rest) = out.split_at_mut(2 * halves);
                let (middle, low) = rest.split_at_mut(2 * halves);
                simd::split(isa, x, high, middle, low);
            }
            out.chunks_exact_mut(2 * halves).for_each(|term| term[cols..].fill(0));
        }
    });
}

/// Cuts the product into strips and runs them.
#[allow(clippy::too_many_arguments)]
fn run<X: Sync, W: bytemuck::Pod + Sync>(
    pool: &Pool,
    kernel: Kernel<X, W>,
    x: &[X],
    x_stride: usize,
    packed: &[W],
    pairs: usize,
    w: &Weights,
    m: usize,
    out: &mut [f32],
) {
    if m == 0 {
        return;
    }
    let panels = w.panels();
    let w_stride = packed.len() / panels;
    let group = if m >= MANY_ROWS { 1 } else { panels.div_ceil(pool.workers() * 3).min(MOST_PANELS) };
    let groups = panels.div_ceil(group);
    assert!(x.len() >= m * x_stride);
    let out = SharedMut::new(out);
    pool.run(m.div_ceil(ROW_BLOCK) * groups, &|task, _| {
        let (row, panel) = (task / groups * ROW_BLOCK, task % groups * group);
        let rows = ROW_BLOCK.min(m - row);
        let strip = Strip {
            x: x[row * x_stride..].as_ptr(),
            x_stride,
            rows,
            w: packed[panel * w_stride..(panel + group).min(panels) * w_stride].as_ptr(),
            w_stride,
            pairs,
            out: out.address(row * w.rows + panel * PANEL),
            out_stride: w.rows,
            cols: (group * PANEL).min(w.rows - panel * PANEL),
        };
        // SAFETY: the slices above are as long as the numbers say, tasks write disjoint rows and features of `out`, whose last
        // element is at (m − 1) · w.rows + w.rows − 1; the kernel was chosen by what the processor has.
        unsafe { kernel(strip) }
    });
}

#[cfg(test)]
pub(super) mod tests;
