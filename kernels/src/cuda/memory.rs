//! Device memory that lives as long as the model, and pinned memory that the host shares with it: copied from, or read and written by kernels.

use super::device::{Device, fault};
use crate::backend::KernelError;
use cudarc::driver::sys::{self, CUdeviceptr, CUresult};
use cudarc::driver::{CudaContext, result};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// A block of device memory.
pub(super) struct DeviceBuffer {
    ptr: CUdeviceptr,
    bytes: usize,
    ctx: Arc<CudaContext>,
}

impl DeviceBuffer {
    /// Allocates `bytes`, unspecified.
    pub fn new(device: &Device, bytes: usize, what: &'static str) -> Result<Self, KernelError> {
        device.ctx.bind_to_thread().map_err(fault)?;
        // SAFETY: freed in drop.
        let ptr = unsafe { result::malloc_sync(bytes.max(16)) }.map_err(|error| match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => KernelError::OutOfMemory { what, bytes: bytes as u64 },
            _ => fault(error),
        })?;
        Ok(Self { ptr, bytes, ctx: device.ctx.clone() })
    }

    /// Allocates `bytes` of zeros.
    pub fn zeroed(device: &Device, bytes: usize, what: &'static str) -> Result<Self, KernelError> {
        let buffer = Self::new(device, bytes, what)?;
        // SAFETY: the buffer has that many bytes.
        unsafe { result::memset_d8_async(buffer.ptr, 0, bytes.max(16), device.stream.cu_stream()) }.map_err(fault)?;
        Ok(buffer)
    }

    /// Makes all of it zero, after what is enqueued.
    pub fn clear(&self, device: &Device) -> Result<(), KernelError> {
        // SAFETY: the buffer has that many bytes.
        unsafe { result::memset_d8_async(self.ptr, 0, self.bytes, device.stream.cu_stream()) }.map_err(fault)
    }

    /// Copies `data` to offset `at`, after what is enqueued; `data` must stay until the copy is done.
    ///
    /// # Safety
    /// `data` is pinned and is not changed before the stream has passed this point.
    pub unsafe fn upload(&self, device: &Device, at: usize, data: &[u8]) -> Result<(), KernelError> {
        if data.is_empty() {
            return Ok(());
        }
        debug_assert!(at + data.len() <= self.bytes);
        // SAFETY: within the buffer; the caller keeps the data.
        unsafe { result::memcpy_htod_async(self.ptr + at as u64, data, device.stream.cu_stream()) }.map_err(fault)
    }

    /// Copies from offset `at` into `data`, after what is enqueued; `data` is valid once the stream has passed this point.
    ///
    /// # Safety
    /// `data` is pinned and lives until then.
    pub unsafe fn download(&self, device: &Device, at: usize, data: &mut [u8]) -> Result<(), KernelError> {
        if data.is_empty() {
            return Ok(());
        }
        debug_assert!(at + data.len() <= self.bytes);
        // SAFETY: within the buffer; the caller keeps the data.
        unsafe { result::memcpy_dtoh_async(data, self.ptr + at as u64, device.stream.cu_stream()) }.map_err(fault)
    }

    /// The address.
    pub fn ptr(&self) -> CUdeviceptr {
        self.ptr
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.ctx.bind_to_thread().is_ok() {
            // SAFETY: allocated in `new`; an error at the end of the process concerns nobody.
            let _ = unsafe { result::free_sync(self.ptr) };
        }
    }
}

/// Page-locked host memory, cached by the processor and mapped into the device's addresses.
pub(super) struct Pinned {
    ptr: *mut u8,
    device_ptr: CUdeviceptr,
    bytes: usize,
    ctx: Arc<CudaContext>,
}

// SAFETY: plain memory; one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates `bytes` of zeros.
    pub fn new(device: &Device, bytes: usize) -> Result<Self, KernelError> {
        device.ctx.bind_to_thread().map_err(fault)?;
        let bytes = bytes.max(16);
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: freed in drop.
        let ptr = unsafe { result::malloc_host(bytes, flags) }
            .map_err(|error| match error.0 {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => KernelError::OutOfMemory { what: "pinned memory", bytes: bytes as u64 },
                _ => fault(error),
            })?
            .cast::<u8>();
        // SAFETY: just allocated.
        unsafe { ptr.write_bytes(0, bytes) };
        let mut pinned = Self { ptr, device_ptr: 0, bytes, ctx: device.ctx.clone() };
        // SAFETY: writes one address; the memory was allocated to be mapped.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut pinned.device_ptr, ptr.cast(), 0) }.result().map_err(fault)?;
        Ok(pinned)
    }

    /// The address that kernels know it by.
    pub fn device_ptr(&self) -> CUdeviceptr {
        self.device_ptr
    }

    /// The first four bytes, which a kernel may be writing.
    pub fn word(&self) -> &AtomicU32 {
        // SAFETY: at least 16 bytes are there, aligned to a page.
        unsafe { AtomicU32::from_ptr(self.ptr.cast()) }
    }

    /// How many there are.
    pub fn bytes_len(&self) -> usize {
        self.bytes
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: allocated and initialised in `new`.
        unsafe { std::slice::from_raw_parts(self.ptr, self.bytes) }
    }

    /// The bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated and initialised in `new`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.bytes) }
    }
}

impl AsMut<[u8]> for Pinned {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.ctx.bind_to_thread().is_ok() {
            // SAFETY: allocated in `new`.
            let _ = unsafe { result::free_host(self.ptr.cast()) };
        }
    }
}

/// An event that says the stream has passed a point.
pub(super) struct Passed {
    event: sys::CUevent,
    ctx: Arc<CudaContext>,
}

// SAFETY: an event may be used from any thread; one owner.
unsafe impl Send for Passed {}

impl Passed {
    /// An event that has not been recorded: waiting for it returns at once.
    pub fn new(device: &Device) -> Result<Self, KernelError> {
        device.ctx.bind_to_thread().map_err(fault)?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(fault)?;
        Ok(Self { event, ctx: device.ctx.clone() })
    }

    /// Marks the point reached after all that is enqueued.
    pub fn record(&self, device: &Device) -> Result<(), KernelError> {
        // SAFETY: both belong to the same context.
        unsafe { result::event::record(self.event, device.stream.cu_stream()) }.map_err(fault)
    }

    /// Waits until the stream has passed it.
    pub fn wait(&self) -> Result<(), KernelError> {
        // SAFETY: the event lives.
        unsafe { result::event::synchronize(self.event) }.map_err(fault)
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        if self.ctx.bind_to_thread().is_ok() {
            // SAFETY: created in `new`.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}
