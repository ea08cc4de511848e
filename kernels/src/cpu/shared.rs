//! A mutable slice that the tasks of one job write in disjoint places.

use std::marker::PhantomData;

/// Hands out parts of a slice to tasks on several threads.
#[derive(Clone, Copy)]
pub struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` whose users promise to touch disjoint parts (`part` is unsafe).
unsafe impl<T: Send> Send for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Borrows the slice for as long as the job runs.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// The elements `at .. at + len`.
    ///
    /// # Panics
    /// When they are not in the slice.
    ///
    /// # Safety
    /// No two parts alive at the same time may overlap.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, at: usize, len: usize) -> &'a mut [T] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: in bounds by the assertion, disjoint by the caller's promise, alive for 'a by the borrow.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }

    /// The address of element `at`, for kernels that write strided.
    ///
    /// # Panics
    /// When it is not in the slice.
    pub fn address(&self, at: usize) -> *mut T {
        assert!(at < self.len);
        // SAFETY: in bounds by the assertion.
        unsafe { self.start.add(at) }
    }
}
