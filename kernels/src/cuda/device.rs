//! A device that was found usable: context, stream, and the properties that launches depend on.

use super::ledger;
use super::unusable::Unusable;
use crate::backend::KernelError;
use crate::system::System;
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Cubins of the CUDA 13.0 compiler need a driver of that major version.
const NEEDED: i32 = 13000;

/// What a GPU is, without starting anything on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Marketing name.
    pub name: String,
    /// The device's own number, in hexadecimal: another device of the same name has another.
    pub uuid: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// The driver's CUDA version: 1000 · major + 10 · minor.
    pub driver: i32,
    /// Shares memory with the processor (Jetson).
    pub integrated: bool,
    /// Bytes of device memory.
    pub memory: u64,
    /// Bytes that can be had now: of the device, or of the system where it is integrated; None where nobody says.
    pub free: Option<u64>,
    /// Streaming multiprocessors.
    pub sms: u32,
}

impl Probe {
    /// Blocks have 227 KB of shared memory (from Hopper on), else 163.
    pub(super) fn is_roomy(&self) -> bool {
        self.capability.0 >= 9
    }
}

/// The sentence behind a driver error.
pub(super) fn words(error: DriverError) -> String {
    let text =
        |found: Result<&std::ffi::CStr, DriverError>| found.map_or_else(|_| "unknown".to_string(), |s| s.to_string_lossy().into_owned());
    format!("{} ({})", text(error.error_string()), text(error.error_name()))
}

/// A driver error while serving: memory is refused, anything else ends the process.
pub(super) fn fault(error: DriverError) -> KernelError {
    KernelError::Device(words(error))
}

/// Runs first contacts with the driver: cudarc panics where a library lacks a symbol.
pub(super) fn guarded<T>(f: impl FnOnce() -> Result<T, Unusable>) -> Result<T, Unusable> {
    // SAFETY: only tries to load the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unusable::NoDriver);
    }
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = catch_unwind(AssertUnwindSafe(f));
    std::panic::set_hook(hook);
    result.unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()));
        Err(Unusable::Driver(message.unwrap_or_else(|| "the driver library lacks a function".into())))
    })
}

/// An open device.
pub(super) struct Device {
    pub ctx: Arc<CudaContext>,
    pub stream: Arc<CudaStream>,
    pub probe: Probe,
    /// Streaming multiprocessors.
    pub sms: u32,
}

impl Device {
    /// Opens device `ordinal` with a stream of its own.
    pub fn open(ordinal: usize, system: &System) -> Result<Self, Unusable> {
        let mut driver = 0;
        // SAFETY: writes one integer.
        unsafe { sys::cuDriverGetVersion(&raw mut driver) }.result()?;
        if driver < NEEDED {
            return Err(Unusable::OldDriver { found: driver, needed: NEEDED });
        }
        result::init().map_err(|e| Unusable::NoDevice(words(e)))?;
        let count = result::device::get_count()?;
        if count == 0 {
            return Err(Unusable::NoDevice("the driver lists none".into()));
        }
        if usize::try_from(count).unwrap_or(0) <= ordinal {
            return Err(Unusable::NoSuchDevice { wanted: ordinal, count });
        }
        let ctx = CudaContext::new(ordinal)?;
        // SAFETY: everything here runs on one stream, in order; nothing relies on events between streams.
        unsafe { ctx.disable_event_tracking() };
        let stream = ctx.new_stream()?;
        let integrated = ctx.attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
        let probe = Probe {
            name: ctx.name()?,
            uuid: ctx.uuid()?.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect(),
            capability: ctx.compute_capability()?,
            driver,
            integrated,
            memory: ctx.total_mem()? as u64,
            free: ledger::free(integrated, system, || result::mem_get_info().ok().map(|(free, _)| free as u64)),
            sms: u32::try_from(ctx.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?).unwrap_or(1),
        };
        Ok(Self { ctx, stream, sms: probe.sms, probe })
    }

    /// Blocks have 227 KB of shared memory (from Hopper on), else 163.
    pub fn is_roomy(&self) -> bool {
        self.probe.is_roomy()
    }

    /// Whether everything enqueued is done. Not while the stream records.
    pub fn is_idle(&self) -> Result<bool, KernelError> {
        self.ctx.bind_to_thread().map_err(fault)?;
        // SAFETY: the stream lives.
        match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => other.result().map(|()| true).map_err(fault),
        }
    }

    /// Waits until everything enqueued is done.
    pub fn synchronize(&self) -> Result<(), KernelError> {
        self.stream.synchronize().map_err(fault)
    }
}
