//! Weights on their way from a file to the device: through two pinned buffers, so that one is read into while the other is copied.

use super::device::Device;
use super::memory::{DeviceBuffer, Passed, Pinned};
use crate::backend::{KernelError, MatrixSource, WeightFormat};
use crate::files::{BLOCK, Filled, Reader, Reads};
use half::{bf16, f16};
use std::ops::Range;

/// Bytes of weights in one pinned buffer.
const CHUNK: usize = 16 << 20;
/// Bytes of one pinned buffer: reads begin and end at whole blocks.
pub(super) const STAGED: usize = CHUNK + 2 * BLOCK;

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

/// The pinned buffers, and the thread that reads into them.
pub(super) struct Staging {
    /// None while it is being read into.
    buffers: [Option<Pinned>; 2],
    /// Each buffer's last copy.
    copied: [Passed; 2],
    turn: usize,
    /// None before the first matrix.
    reader: Option<Reader<Pinned>>,
}

/// A piece of a matrix: where it comes from, and its offset on the device.
struct Piece<'a> {
    part: &'a MatrixSource,
    range: Range<usize>,
    at: usize,
}

impl Staging {
    pub fn new(device: &Device) -> Result<Self, KernelError> {
        Ok(Self {
            buffers: [Some(Pinned::new(device, STAGED)?), Some(Pinned::new(device, STAGED)?)],
            copied: [Passed::new(device)?, Passed::new(device)?],
            turn: 0,
            reader: None,
        })
    }

    /// What was read so far; None before the first matrix.
    pub fn reads(&self) -> Option<Reads> {
        self.reader.as_ref().map(Reader::reads)
    }

    /// Copies matrices one below the other into new device memory, as `to`.
    pub fn matrix(&mut self, device: &Device, parts: &[MatrixSource], to: Activations) -> Result<Matrix, KernelError> {
        let cols = parts.first().map_or(0, |part| part.cols);
        if cols == 0 || parts.iter().any(|part| part.cols != cols) {
            return Err(KernelError::Invalid("matrix: parts of different widths".into()));
        }
        let rows: usize = parts.iter().map(|part| part.rows).sum();
        let data = DeviceBuffer::new(device, rows * cols * 2, "weights")?;
        let mut pieces = Vec::new();
        let mut at = 0;
        for part in parts {
            // Its place and length are checked; nothing is read here.
            part.bytes()?;
            for start in part.range.clone().step_by(CHUNK) {
                let range = start..part.range.end.min(start + CHUNK);
                let elements = range.len() / part.format.size();
                pieces.push(Piece { part, range, at });
                at += elements * 2;
            }
        }
        self.stream(device, &data, &pieces, to)?;
        Ok(Matrix { rows, cols, data })
    }

    /// Reads the pieces in turn into both buffers, and copies each while the next is read.
    fn stream(&mut self, device: &Device, data: &DeviceBuffer, pieces: &[Piece<'_>], to: Activations) -> Result<(), KernelError> {
        let gone = || KernelError::Invalid("matrix: the thread that reads weights has ended".into());
        if self.reader.is_none() {
            self.reader = Some(Reader::start().map_err(|error| KernelError::Invalid(format!("no thread to read weights: {error}")))?);
        }
        let Self { buffers, copied, reader: Some(reader), .. } = self else { return Err(gone()) };
        let mut asked = 0;
        for (i, piece) in pieces.iter().enumerate() {
            while asked < pieces.len() && asked <= i + 1 {
                // The device is done with what the buffer held.
                copied[asked % 2].wait()?;
                let buffer = buffers[asked % 2].take().ok_or_else(gone)?;
                let next = &pieces[asked];
                if !reader.read(&next.part.file, next.range.clone(), buffer) {
                    return Err(gone());
                }
                asked += 1;
            }
            let Filled { mut buffer, place, .. } = reader.filled().ok_or_else(gone)?;
            let uploaded = place.map_err(KernelError::Read).and_then(|place| {
                let converted = convert(buffer.bytes_mut(), place, piece.part.format, to);
                // SAFETY: pinned, and not written again before its event has passed.
                unsafe { data.upload(device, piece.at, &buffer.bytes()[converted])? };
                copied[i % 2].record(device)
            });
            buffers[i % 2] = Some(buffer);
            if let Err(error) = uploaded {
                for late in i + 1..asked {
                    buffers[late % 2] = reader.filled().map(|filled| filled.buffer);
                }
                return Err(error);
            }
        }
        Ok(())
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
            let Some(buffer) = &mut self.buffers[self.turn] else {
                return Err(KernelError::Invalid("a pinned buffer is lost".into()));
            };
            let staged = &mut buffer.bytes_mut()[..piece.len()];
            staged.copy_from_slice(piece);
            // SAFETY: pinned, and not written again before its event has passed.
            unsafe { to.upload(device, at + i * CHUNK, staged)? };
            self.copied[self.turn].record(device)?;
        }
        Ok(())
    }
}

/// Makes the elements at `place` ones of type `to`, where they lie; gives their place then, which begins where it did.
fn convert(buffer: &mut [u8], place: Range<usize>, from: WeightFormat, to: Activations) -> Range<usize> {
    match (from, to) {
        (WeightFormat::Bf16, Activations::Bf16) | (WeightFormat::Fp16, Activations::Fp16) => place,
        (WeightFormat::Bf16, _) => each::<2>(buffer, place, to, |b| bf16::from_le_bytes(b).to_f32()),
        (WeightFormat::Fp16, _) => each::<2>(buffer, place, to, |b| f16::from_le_bytes(b).to_f32()),
        (WeightFormat::Fp32, _) => each::<4>(buffer, place, to, f32::from_le_bytes),
    }
}

fn each<const N: usize>(buffer: &mut [u8], place: Range<usize>, to: Activations, value: impl Fn([u8; N]) -> f32) -> Range<usize> {
    let start = place.start;
    let bytes = &mut buffer[place];
    let count = bytes.len() / N;
    for i in 0..count {
        let mut element = [0; N];
        element.copy_from_slice(&bytes[i * N..(i + 1) * N]);
        let x = value(element);
        let narrow = match to {
            Activations::Bf16 => bf16::from_f32(x).to_le_bytes(),
            Activations::Fp16 => f16::from_f32(x.clamp(-65504.0, 65504.0)).to_le_bytes(),
        };
        // No element is longer than those that were read before it.
        bytes[i * 2..i * 2 + 2].copy_from_slice(&narrow);
    }
    start..start + count * 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: [f32; 5] = [1.0, -2.5, 70_000.0, 1e-3, 0.0];

    fn converted(bytes: &[u8], from: WeightFormat, to: Activations) -> Vec<[u8; 2]> {
        // At an odd place, with other bytes around it that stay.
        let mut buffer = [&[7; 3], bytes, &[9; 5]].concat();
        let place = convert(&mut buffer, 3..3 + bytes.len(), from, to);
        assert_eq!((place.start, &buffer[..3], &buffer[3 + bytes.len()..]), (3, &[7; 3][..], &[9; 5][..]));
        buffer[place].as_chunks::<2>().0.to_vec()
    }

    #[test]
    fn elements_become_the_activations_type_where_they_lie() {
        let wide: Vec<u8> = VALUES.iter().flat_map(|x| x.to_le_bytes()).collect();
        let brain: Vec<u8> = VALUES.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
        let half: Vec<u8> = VALUES.iter().flat_map(|x| f16::from_f32(x.clamp(-65504.0, 65504.0)).to_le_bytes()).collect();
        let pairs = |bytes: &[u8]| bytes.as_chunks::<2>().0.to_vec();
        assert_eq!(converted(&wide, WeightFormat::Fp32, Activations::Bf16), pairs(&brain));
        assert_eq!(converted(&wide, WeightFormat::Fp32, Activations::Fp16), pairs(&half), "beyond its range the largest there is");
        assert_eq!(converted(&brain, WeightFormat::Bf16, Activations::Bf16), pairs(&brain));
        assert_eq!(converted(&half, WeightFormat::Fp16, Activations::Fp16), pairs(&half));
        let exact = |bytes: &[u8]| bytes[..4].as_chunks::<2>().0.to_vec();
        assert_eq!(converted(&brain[..4], WeightFormat::Bf16, Activations::Fp16), exact(&half));
        assert_eq!(converted(&half[..4], WeightFormat::Fp16, Activations::Bf16), exact(&brain));
    }
}
