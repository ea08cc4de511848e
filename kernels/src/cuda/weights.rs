//! Weights on their way from a mapped file to the device: through two pinned buffers, so that one is filled while the other is copied.

use super::device::Device;
use super::memory::{DeviceBuffer, Passed, Pinned};
use crate::backend::{KernelError, MatrixSource, WeightFormat};
use half::{bf16, f16};

/// Bytes of one pinned buffer.
pub(super) const CHUNK: usize = 16 << 20;

/// Element type of activations and of the weights they are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activations {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    Fp16,
}

impl Activations {
    /// As kernel names have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Activations::Bf16 => "bf16",
            Activations::Fp16 => "fp16",
        }
    }
}

/// A weight matrix on the device, row-major.
pub struct Matrix {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) data: DeviceBuffer,
}

/// The pinned buffers.
pub(super) struct Staging {
    buffers: [Pinned; 2],
    copied: [Passed; 2],
    turn: usize,
}

impl Staging {
    pub fn new(device: &Device) -> Result<Self, KernelError> {
        Ok(Self {
            buffers: [Pinned::new(device, CHUNK)?, Pinned::new(device, CHUNK)?],
            copied: [Passed::new(device)?, Passed::new(device)?],
            turn: 0,
        })
    }

    /// Copies matrices one below the other into new device memory, as `to`.
    pub fn matrix(&mut self, device: &Device, parts: &[MatrixSource], to: Activations) -> Result<Matrix, KernelError> {
        let cols = parts.first().map_or(0, |part| part.cols);
        if cols == 0 || parts.iter().any(|part| part.cols != cols) {
            return Err(KernelError::Invalid("matrix: parts of different widths".into()));
        }
        let rows: usize = parts.iter().map(|part| part.rows).sum();
        let data = DeviceBuffer::new(device, rows * cols * 2, "weights")?;
        let mut at = 0;
        for part in parts {
            let bytes = part.bytes()?;
            for piece in bytes.chunks(CHUNK / 2 * part.format.size()) {
                at += self.piece(device, &data, at, piece, part.format, to)?;
            }
        }
        Ok(Matrix { rows, cols, data })
    }

    /// Copies plain bytes to the start of `to`.
    pub fn bytes(&mut self, device: &Device, to: &DeviceBuffer, bytes: &[u8]) -> Result<(), KernelError> {
        self.bytes_at(device, to, 0, bytes)
    }

    /// Copies plain bytes to offset `at` of `to`.
    pub fn bytes_at(&mut self, device: &Device, to: &DeviceBuffer, at: usize, bytes: &[u8]) -> Result<(), KernelError> {
        for (i, piece) in bytes.chunks(CHUNK).enumerate() {
            self.turn ^= 1;
            self.copied[self.turn].wait()?;
            let staged = &mut self.buffers[self.turn].bytes_mut()[..piece.len()];
            staged.copy_from_slice(piece);
            // SAFETY: pinned, and not written again before its event has passed.
            unsafe { to.upload(device, at + i * CHUNK, staged)? };
            self.copied[self.turn].record(device)?;
        }
        Ok(())
    }

    fn piece(
        &mut self,
        device: &Device,
        data: &DeviceBuffer,
        at: usize,
        piece: &[u8],
        from: WeightFormat,
        to: Activations,
    ) -> Result<usize, KernelError> {
        self.turn ^= 1;
        self.copied[self.turn].wait()?;
        let staged = self.buffers[self.turn].bytes_mut();
        let len = convert(piece, from, to, staged);
        // SAFETY: pinned, and not written again before its event has passed.
        unsafe { data.upload(device, at, &staged[..len])? };
        self.copied[self.turn].record(device)?;
        Ok(len)
    }
}

/// Writes `piece` as elements of type `to`; returns the bytes written.
fn convert(piece: &[u8], from: WeightFormat, to: Activations, out: &mut [u8]) -> usize {
    match (from, to) {
        (WeightFormat::Bf16, Activations::Bf16) | (WeightFormat::Fp16, Activations::Fp16) => {
            out[..piece.len()].copy_from_slice(piece);
            piece.len()
        }
        (WeightFormat::Bf16, _) => each::<2>(piece, out, to, |b| bf16::from_le_bytes(b).to_f32()),
        (WeightFormat::Fp16, _) => each::<2>(piece, out, to, |b| f16::from_le_bytes(b).to_f32()),
        (WeightFormat::Fp32, _) => each::<4>(piece, out, to, f32::from_le_bytes),
    }
}

fn each<const N: usize>(piece: &[u8], out: &mut [u8], to: Activations, value: impl Fn([u8; N]) -> f32) -> usize {
    let (values, _) = piece.as_chunks::<N>();
    let (places, _) = out.as_chunks_mut::<2>();
    for (place, &bytes) in places.iter_mut().zip(values) {
        let x = value(bytes);
        *place = match to {
            Activations::Bf16 => bf16::from_f32(x).to_le_bytes(),
            Activations::Fp16 => f16::from_f32(x.clamp(-65504.0, 65504.0)).to_le_bytes(),
        };
    }
    values.len() * 2
}
