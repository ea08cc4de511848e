//! Drawing on the device: the structs of `cuda/common/sampling.h`, and how the host reads them.

use super::cubins::Cubins;
use super::device::Device;
use super::launch::{Shape, launch};
use super::memory::DeviceBuffer;
use crate::backend::KernelError;
use crate::sampling::{Sampled, SamplingParams};
use bytemuck::{Pod, Zeroable};

/// Most likely tokens reported at most.
const TOP: usize = 20;
/// Blocks a row.
const PARTS: u32 = 32;
const THREADS: u32 = 256;
/// Bytes of what a row drew.
pub(super) const DRAWN_BYTES: usize = 172;
/// Bytes of `SampleWork`, kept as zeros between draws.
const WORK_BYTES: usize = 3 * 8 + 16 * 8 + 64 * 8 + 16 * 4 + 2 * 4 + 2048 * 8;

/// How one row is drawn.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct SampleParams {
    seed: u64,
    position: u64,
    temperature: f32,
    top_p: f32,
    min_p: f32,
    top_k: u32,
    slot: i32,
    logprobs: i32,
}

impl Default for SampleParams {
    /// A padding row.
    fn default() -> Self {
        Self { seed: 0, position: 0, temperature: 0.0, top_p: 1.0, min_p: 0.0, top_k: 0, slot: -1, logprobs: -1 }
    }
}

impl SampleParams {
    /// The token at absolute position `position`, kept in place `slot` of the drawn ids.
    pub fn new(params: &SamplingParams, position: usize, slot: usize) -> Self {
        Self {
            seed: params.seed,
            position: position as u64,
            temperature: params.temperature,
            top_p: params.top_p,
            min_p: params.min_p,
            top_k: params.top_k,
            slot: slot as i32,
            logprobs: params.logprobs.map_or(-1, |n| i32::from(n).min(TOP as i32)),
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Drawn {
    token: u32,
    logprob: f32,
    top_n: u32,
    top_id: [u32; TOP],
    top_logprob: [f32; TOP],
}

// SAFETY: repr(C), integers and floats, no padding (checked below).
unsafe impl Zeroable for SampleParams {}
// SAFETY: as above.
unsafe impl Pod for SampleParams {}
// SAFETY: as above.
unsafe impl Zeroable for Drawn {}
// SAFETY: as above.
unsafe impl Pod for Drawn {}
const _: () = assert!(size_of::<SampleParams>() == 40 && size_of::<Drawn>() == DRAWN_BYTES);

/// Rows to draw from.
#[derive(Clone, Copy)]
pub(super) struct Draw {
    /// Device address of float32 logits, `[rows][vocab]`.
    pub logits: u64,
    pub vocab: usize,
    /// Device address of a [`SampleParams`] a row.
    pub params: u64,
    pub rows: usize,
    /// Device address of a [`Drawn`] a row.
    pub drawn: u64,
    /// All rows take the most likely token and report nothing.
    pub greedy: bool,
}

/// Memory of the sampler for as many rows as a step may draw.
pub(super) struct Sampler {
    rows: usize,
    /// Token ids by slot, for steps that are enqueued before the host has seen them.
    pub drawn: DeviceBuffer,
    work: DeviceBuffer,
}

impl Sampler {
    pub fn new(device: &Device, rows: usize) -> Result<Self, KernelError> {
        Ok(Self {
            rows,
            drawn: DeviceBuffer::zeroed(device, rows * 4, "drawn tokens")?,
            work: DeviceBuffer::zeroed(device, rows * WORK_BYTES, "the sampler")?,
        })
    }

    /// Rows it has memory for.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Enqueues a draw.
    pub fn draw(&self, device: &Device, cubins: &mut Cubins, draw: Draw) -> Result<(), KernelError> {
        let Draw { logits, params, rows, drawn, greedy, .. } = draw;
        let shape = Shape { early: true, ..Shape::new((PARTS, rows as u32), THREADS) };
        let vocab = draw.vocab as i32;
        if greedy {
            let kernel = cubins.get("sample_greedy")?;
            return launch!(device, kernel, shape, logits, vocab, params, self.drawn.ptr(), drawn, self.work.ptr());
        }
        for name in ["sample_best", "sample_weigh"] {
            let kernel = cubins.get(name)?;
            launch!(device, kernel, shape, logits, vocab, params, self.work.ptr())?;
        }
        let kernel = cubins.get("sample_draw")?;
        launch!(device, kernel, shape, logits, vocab, params, self.drawn.ptr(), drawn, self.work.ptr())
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        self.drawn.bytes() + self.work.bytes()
    }
}

/// What a row drew, from the bytes of a [`Drawn`].
pub(super) fn sampled(bytes: &[u8]) -> Sampled {
    let drawn: Drawn = bytemuck::pod_read_unaligned(bytes);
    let n = (drawn.top_n as usize).min(TOP);
    let top = drawn.top_id[..n].iter().copied().zip(drawn.top_logprob[..n].iter().copied());
    Sampled { token: drawn.token, logprob: Some(drawn.logprob).filter(|l| !l.is_nan()), top: top.collect() }
}
