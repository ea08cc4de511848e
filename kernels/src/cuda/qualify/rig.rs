//! Memory and time for a case: what goes up, what comes down, and the shortest of a few launches.

use super::super::attend::Attend;
use super::super::device::{Device, fault};
use super::super::memory::DeviceBuffer;
use super::Failure;
use crate::backend::KernelError;
use crate::pages::KvFormat;
use bytemuck::Pod;
use cudarc::driver::{result, sys};

/// Launches whose shortest time counts.
pub(super) const AGAIN: usize = 5;

impl Attend {
    /// Device memory that holds `values`.
    pub(super) fn up<T: Pod>(&mut self, values: &[T]) -> Result<DeviceBuffer, Failure> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let buffer = DeviceBuffer::zeroed(&self.device, bytes.len(), "a case")?;
        self.staging.bytes(&self.device, &buffer, bytes)?;
        Ok(buffer)
    }

    /// Device memory that holds `values` rounded to a 16-bit type.
    pub(super) fn up_halves(&mut self, values: &[f32], format: KvFormat) -> Result<DeviceBuffer, Failure> {
        self.up(&values.iter().map(|&x| format.encode(x)).collect::<Vec<u16>>())
    }

    /// Device memory whose every 16- or 32-bit number is NaN: what a kernel leaves out must show.
    pub(super) fn blank(&mut self, bytes: usize) -> Result<DeviceBuffer, Failure> {
        self.up(&vec![0xffu8; bytes])
    }

    /// `count` values of a 16-bit type.
    pub(super) fn halves(&self, buffer: &DeviceBuffer, count: usize, format: KvFormat) -> Result<Vec<f32>, Failure> {
        let bytes = self.down(buffer, count * 2)?;
        Ok(bytes.as_chunks::<2>().0.iter().map(|&b| format.decode(u16::from_le_bytes(b))).collect())
    }

    /// `count` float32 values.
    pub(super) fn floats(&self, buffer: &DeviceBuffer, count: usize) -> Result<Vec<f32>, Failure> {
        let bytes = self.down(buffer, count * 4)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect())
    }
}

/// A point of the stream that can be timed.
struct Mark(sys::CUevent);

impl Mark {
    fn new() -> Result<Self, KernelError> {
        result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map(Self).map_err(fault)
    }

    fn record(&self, device: &Device) -> Result<(), KernelError> {
        // SAFETY: event and stream belong to the context that is bound.
        unsafe { result::event::record(self.0, device.stream.cu_stream()) }.map_err(fault)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: created in `new`; an error here means that the device is lost, which was told already.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// The shortest of `times` launches in microseconds; 0 for none.
pub(in crate::cuda) fn shortest(
    device: &Device,
    times: usize,
    mut launch: impl FnMut() -> Result<(), KernelError>,
) -> Result<f32, KernelError> {
    if times == 0 {
        return Ok(0.0);
    }
    device.ctx.bind_to_thread().map_err(fault)?;
    let (begin, end) = (Mark::new()?, Mark::new()?);
    let mut best = f32::INFINITY;
    for _ in 0..times {
        begin.record(device)?;
        launch()?;
        end.record(device)?;
        // SAFETY: the event lives.
        unsafe { result::event::synchronize(end.0) }.map_err(fault)?;
        // SAFETY: both events have passed.
        best = best.min(unsafe { result::event::elapsed(begin.0, end.0) }.map_err(fault)?);
    }
    Ok(best * 1e3)
}
