//! A weight matrix, repacked once at load into the order in which the kernels read it.
//!
//! Features go in panels of 32; a panel holds, for each pair of inputs, the pair's two weights of each of the 32 features side by
//! side: `[panel][cols / 2][32][2]`. One stream of whole cache lines serves matrix-vector products, dot-product instructions and tiles.

use half::{bf16, f16};

use super::buffer::Buffer;
use super::pool::Pool;
use super::shared::SharedMut;
use crate::backend::{KernelError, MatrixSource, WeightFormat};

/// Features a panel.
pub const PANEL: usize = 32;
/// `cols` is padded with zero weights to a multiple of this (one tile's inputs).
pub const PAD: usize = 32;

/// Packed elements.
pub enum Packed {
    /// Pairs of bfloat16, the lower input in the lower half.
    Bf16(Buffer<u32>),
    /// Pairs of binary16, likewise.
    Fp16(Buffer<u32>),
    /// `[panel][cols][32]` of binary32.
    Fp32(Buffer<f32>),
}

/// A packed matrix, y = x · Wᵀ.
pub struct Weights {
    /// Output features.
    pub rows: usize,
    /// Input features; even.
    pub cols: usize,
    /// The elements.
    pub packed: Packed,
}

impl Weights {
    /// Packs parts that stand below one another; all have the same columns and format.
    pub fn pack(pool: &Pool, parts: &[MatrixSource]) -> Result<Self, KernelError> {
        let first = parts.first().ok_or_else(|| KernelError::Invalid("a matrix needs a part".into()))?;
        let (cols, format) = (first.cols, first.format);
        let mut rows = Vec::new();
        for part in parts {
            if part.cols != cols || part.format != format {
                return Err(KernelError::Invalid(format!("parts of a matrix differ: {} and {cols} columns", part.cols)));
            }
            let bytes = part.bytes()?;
            let row = cols * format.size();
            rows.extend((0..part.rows).map(|r| &bytes[r * row..(r + 1) * row]));
        }
        if cols == 0 || cols % 2 == 1 || rows.is_empty() {
            return Err(KernelError::Invalid(format!("a matrix of {} × {cols}: columns must be even and not none", rows.len())));
        }
        let packed = match format {
            WeightFormat::Bf16 => Packed::Bf16(pack_pairs(pool, &rows, cols)?),
            WeightFormat::Fp16 => Packed::Fp16(pack_pairs(pool, &rows, cols)?),
            WeightFormat::Fp32 => Packed::Fp32(pack_singles(pool, &rows, cols)?),
        };
        Ok(Self { rows: rows.len(), cols, packed })
    }

    /// Panels, the last one filled up with zero features.
    pub fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    /// Columns with padding.
    pub fn padded(&self) -> usize {
        self.cols.next_multiple_of(PAD)
    }
}

/// One row of a part as float32.
pub fn decode_row(format: WeightFormat, bytes: &[u8], out: &mut [f32]) {
    match format {
        WeightFormat::Bf16 => {
            for (x, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *x = bf16::from_le_bytes(*b).to_f32();
            }
        }
        WeightFormat::Fp16 => {
            for (x, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *x = f16::from_le_bytes(*b).to_f32();
            }
        }
        WeightFormat::Fp32 => {
            for (x, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *x = f32::from_le_bytes(*b);
            }
        }
    }
}

fn pack_pairs(pool: &Pool, rows: &[&[u8]], cols: usize) -> Result<Buffer<u32>, KernelError> {
    let len = cols.next_multiple_of(PAD) / 2 * PANEL;
    let mut packed = Buffer::zeroed(rows.len().div_ceil(PANEL) * len, "weights")?;
    interleave(pool, rows, len, &mut packed, |b| u32::from_le_bytes(*b));
    Ok(packed)
}

fn pack_singles(pool: &Pool, rows: &[&[u8]], cols: usize) -> Result<Buffer<f32>, KernelError> {
    let len = cols * PANEL;
    let mut packed = Buffer::zeroed(rows.len().div_ceil(PANEL) * len, "weights")?;
    interleave(pool, rows, len, &mut packed, |b| f32::from_le_bytes(*b));
    Ok(packed)
}

/// Puts the four-byte units of 32 rows side by side, panel by panel of `len` units.
fn interleave<T: Send>(pool: &Pool, rows: &[&[u8]], len: usize, packed: &mut [T], unit: impl Fn(&[u8; 4]) -> T + Sync) {
    /// Units of a row taken at once: a cache line.
    const LINE: usize = 16;
    let packed = SharedMut::new(packed);
    pool.run(rows.len().div_ceil(PANEL), &|panel, _| {
        // SAFETY: each panel is its own part.
        let out = unsafe { packed.part(panel * len, len) };
        let rows = &rows[panel * PANEL..rows.len().min((panel + 1) * PANEL)];
        let units = rows.first().map_or(0, |r| r.len() / 4);
        for line in (0..units).step_by(LINE) {
            for (j, row) in rows.iter().enumerate() {
                let source = row[line * 4..].as_chunks::<4>().0;
                for (i, b) in source.iter().take(LINE).enumerate() {
                    out[(line + i) * PANEL + j] = unit(b);
                }
            }
        }
    });
}
