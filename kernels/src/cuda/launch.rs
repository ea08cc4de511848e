//! Launching a kernel with plain arguments, with or without an early start beside the kernel before it.

use super::device::{Device, fault};
use crate::backend::KernelError;
use cudarc::driver::sys::{self, CUfunction, CUlaunchAttributeID_enum as AttributeId};
use std::ffi::c_void;

/// A kernel in a loaded module.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    pub function: CUfunction,
}

// SAFETY: a handle; modules are never unloaded while the backend lives.
unsafe impl Send for Kernel {}

/// Grid, block and shared memory of one launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub grid: (u32, u32),
    pub block: u32,
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// May start while the kernel before it is finishing: the kernel itself waits for what it reads.
    pub early: bool,
    /// Its blocks wait for one another, so all must run at once: refused where they would not fit.
    pub together: bool,
}

impl Shape {
    /// A plain launch.
    pub fn new(grid: (u32, u32), block: u32) -> Self {
        Self { grid, block, shared: 0, early: false, together: false }
    }
}

/// Enqueues a kernel.
///
/// # Safety
/// The arguments have the number, order and types that the kernel declares, and its pointers reach what it reads and writes.
pub(super) unsafe fn enqueue(device: &Device, kernel: Kernel, shape: Shape, args: &mut [*mut c_void]) -> Result<(), KernelError> {
    // SAFETY: an attribute is plain data; the unused bytes of the union are padding.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    if shape.together {
        attribute.id = AttributeId::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        attribute.value.cooperative = 1;
    } else {
        attribute.id = AttributeId::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
    }
    let config = sys::CUlaunchConfig {
        gridDimX: shape.grid.0,
        gridDimY: shape.grid.1,
        gridDimZ: 1,
        blockDimX: shape.block,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shape.shared,
        hStream: device.stream.cu_stream(),
        attrs: &raw mut attribute,
        numAttrs: u32::from(shape.together || (shape.early && device.probe.capability.0 >= 9)),
    };
    // SAFETY: the caller's contract; the driver copies config and arguments before it returns.
    unsafe { sys::cuLaunchKernelEx(&raw const config, kernel.function, args.as_mut_ptr(), std::ptr::null_mut()) }.result().map_err(fault)
}

/// Launches with arguments given as values: each is copied to a place of its own first.
macro_rules! launch {
    ($device:expr, $kernel:expr, $shape:expr, $($arg:expr),+ $(,)?) => {{
        let mut values = ($($arg,)+);
        let mut pointers = $crate::cuda::launch::Arguments::pointers(&mut values);
        // SAFETY: each call site names the kernel's own argument list, in order.
        unsafe { $crate::cuda::launch::enqueue($device, $kernel, $shape, pointers.as_mut()) }
    }};
}
pub(super) use launch;

/// A tuple of kernel arguments.
pub(super) trait Arguments {
    /// One pointer an argument.
    type Pointers: AsMut<[*mut c_void]>;
    /// Where the arguments lie.
    fn pointers(&mut self) -> Self::Pointers;
}

macro_rules! arguments {
    ($($t:ident $i:tt),+; $n:literal) => {
        impl<$($t: Copy),+> Arguments for ($($t,)+) {
            type Pointers = [*mut c_void; $n];
            fn pointers(&mut self) -> Self::Pointers {
                [$((&raw mut self.$i).cast()),+]
            }
        }
    };
}
arguments!(A 0; 1);
arguments!(A 0, B 1; 2);
arguments!(A 0, B 1, C 2; 3);
arguments!(A 0, B 1, C 2, D 3; 4);
arguments!(A 0, B 1, C 2, D 3, E 4; 5);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5; 6);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6; 7);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7; 8);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8; 9);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9; 10);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10; 11);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11; 12);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12; 13);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13; 14);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13, O 14; 15);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13, O 14, P 15; 16);
