//! Float buffers that a worker keeps from call to call.

use std::cell::RefCell;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Cache-line aligned storage that only grows.
pub(super) struct Scratch {
    lines: Vec<Line>,
}

impl Scratch {
    /// Disjoint parts of the asked sizes (in elements), each on its own cache lines. Contents are whatever was there.
    pub(super) fn parts<const N: usize>(&mut self, sizes: [usize; N]) -> [&mut [f32]; N] {
        let whole: usize = sizes.iter().map(|s| s.div_ceil(16)).sum();
        if self.lines.len() < whole {
            self.lines.resize(whole, Line([0.0; 16]));
        }
        let mut rest = self.lines.as_mut_slice();
        sizes.map(|size| {
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(size.div_ceil(16));
            rest = tail;
            // SAFETY: `Line` is 16 float32 without padding, so the lines are that many elements in a row.
            unsafe { &mut std::slice::from_raw_parts_mut(part.as_mut_ptr().cast::<f32>(), part.len() * 16)[..size] }
        })
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { lines: Vec::new() }) };
    static SECOND: RefCell<Scratch> = const { RefCell::new(Scratch { lines: Vec::new() }) };
}

/// Runs `f` with this thread's second scratch: what a caller's workers share, or a worker's notes beside its kernel's buffers.
pub(super) fn with_second<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SECOND.with_borrow_mut(f)
}

/// Runs `f` with this thread's scratch.
pub(super) fn with<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with_borrow_mut(f)
}

/// A slice that several workers write, each its own part.
#[derive(Clone, Copy)]
pub(super) struct Shared<T>(*mut T, usize);

// SAFETY: a plain address; who writes through it answers for disjoint parts.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(super) fn new(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr(), slice.len())
    }

    /// Part of the slice.
    ///
    /// # Safety
    /// The slice is still borrowed, and nobody else uses this part meanwhile.
    pub(super) unsafe fn part<'a>(self, range: std::ops::Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.1);
        // SAFETY: in bounds; disjointness is the caller's.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(range.start), range.len()) }
    }

    /// Part of the slice, to read.
    ///
    /// # Safety
    /// The slice is still borrowed, and nobody writes this part meanwhile.
    pub(super) unsafe fn read<'a>(self, range: std::ops::Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.1);
        // SAFETY: in bounds; that nobody writes is the caller's.
        unsafe { std::slice::from_raw_parts(self.0.add(range.start), range.len()) }
    }

    /// Address of element `i`, for strided access.
    pub(super) fn at(self, i: usize) -> *mut T {
        assert!(i <= self.1);
        self.0.wrapping_add(i)
    }
}
