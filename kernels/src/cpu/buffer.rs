//! Large zeroed memory straight from the system, in huge pages where it gives them: weights, page pools.

use crate::backend::KernelError;
use bytemuck::Pod;
use memmap2::MmapMut;
use std::marker::PhantomData;

/// `len` elements, zero at first, aligned to a page; memory is committed as it is written.
pub struct Buffer<T: Pod> {
    map: Option<MmapMut>,
    len: usize,
    kind: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// Allocates; `what` names the memory in the error.
    pub fn zeroed(len: usize, what: &'static str) -> Result<Self, KernelError> {
        let too_much = |bytes| KernelError::OutOfMemory { what, bytes };
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| too_much(u64::MAX))?;
        let map = match bytes {
            0 => None,
            _ => Some(MmapMut::map_anon(bytes).map_err(|_| too_much(bytes as u64))?),
        };
        #[cfg(target_os = "linux")]
        if let Some(Err(error)) = map.as_ref().map(|m| m.advise(memmap2::Advice::HugePage)) {
            tracing::debug!(%error, what, "no huge pages");
        }
        Ok(Self { map, len, kind: PhantomData })
    }
}

impl<T: Pod> std::ops::Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.map.as_ref().map_or(&[], |m| &bytemuck::cast_slice(m)[..self.len])
    }
}

impl<T: Pod> std::ops::DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.map.as_mut().map_or(&mut [], |m| &mut bytemuck::cast_slice_mut(m)[..self.len])
    }
}
