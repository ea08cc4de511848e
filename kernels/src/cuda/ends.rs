//! The two ends of a step: kernels that fetch its inputs from the host's memory and bring back what it gave. No copy engine, and so no event
//! between engines, is in a step's way, and both ends can be recorded with it.

use super::cubins::Cubins;
use super::device::Device;
use super::launch::{Shape, launch};
use crate::backend::KernelError;

/// What is moved at once, in bytes; both memories begin on one.
pub(super) const VECTOR: usize = 16;
/// Threads of a block.
const THREADS: usize = 256;
/// Bytes that a block of threads asks for before it knows the length. Both memories of a fetch are a multiple.
pub(super) const AT_ONCE: usize = THREADS * VECTOR;

/// The first vector of a step's inputs: the step's number, and bytes to fetch, this vector included.
pub(super) fn head(number: u32, bytes: usize) -> [u32; VECTOR / 4] {
    [number, bytes.div_ceil(VECTOR) as u32, 0, 0]
}

/// Enqueues or records the way in, from host memory (as the device knows it) to `to`. It waits for all that was enqueued before: the steps
/// before use the same memory. What the head says is fetched; `expected` bytes of it are asked for at once, the rest, by which a recorded step's
/// block tables have grown, when the length is known.
pub(super) fn fetch(device: &Device, cubins: &mut Cubins, from: u64, to: u64, expected: usize) -> Result<(), KernelError> {
    let kernel = cubins.get("fetch_step")?;
    let shape = Shape::new((expected.div_ceil(AT_ONCE) as u32, 1), THREADS as u32);
    launch!(device, kernel, shape, from, to)
}

/// Enqueues or records the way back: `bytes` at offset `from` of the step's memory go behind the first vector of `to`, host memory, and then
/// the step's number into that.
pub(super) fn give_back(
    device: &Device,
    cubins: &mut Cubins,
    step: u64,
    (from, bytes): (usize, usize),
    to: u64,
) -> Result<(), KernelError> {
    let kernel = cubins.get("return_step")?;
    let shape = Shape { early: true, ..Shape::new((1, 1), THREADS as u32) };
    let (from, count) = ((from / VECTOR) as u32, bytes.div_ceil(VECTOR) as u32);
    launch!(device, kernel, shape, step, from, count, to)
}
