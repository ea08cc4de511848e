//! Which pages of the KV cache are free: a request's pages are reserved before it starts and come back when its lease is dropped.
//! Nothing is evicted: who holds a lease can finish.

use skip_kernels::PAGE;
use std::sync::{Arc, Mutex, PoisonError};

/// Pages that `tokens` tokens need.
pub fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE)
}

/// All pages of a cache.
#[derive(Clone, Debug)]
pub struct PageAllocator {
    /// A stack: the page given back last is still warm.
    free: Arc<Mutex<Vec<u32>>>,
    total: usize,
}

impl PageAllocator {
    /// Pages `0 .. total`, all free.
    pub fn new(total: u32) -> Self {
        Self { free: Arc::new(Mutex::new((0..total).rev().collect())), total: total as usize }
    }

    /// Pages in all.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Pages not leased.
    pub fn free(&self) -> usize {
        lock(&self.free).len()
    }

    /// Pages leased.
    pub fn used(&self) -> usize {
        self.total - self.free()
    }

    /// Leases `count` pages, or none.
    pub fn reserve(&self, count: usize) -> Option<PageLease> {
        let mut free = lock(&self.free);
        let rest = free.len().checked_sub(count)?;
        let pages = free.drain(rest..).rev().collect();
        Some(PageLease { pages, free: self.free.clone() })
    }
}

/// Pages held until dropped: one sequence's block table.
#[derive(Debug)]
pub struct PageLease {
    pages: Vec<u32>,
    free: Arc<Mutex<Vec<u32>>>,
}

impl PageLease {
    /// The pages in the order of the tokens.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }
}

impl Drop for PageLease {
    fn drop(&mut self) {
        lock(&self.free).extend(self.pages.drain(..).rev());
    }
}

/// A list of numbers is whole even if a holder panicked.
fn lock(free: &Mutex<Vec<u32>>) -> std::sync::MutexGuard<'_, Vec<u32>> {
    free.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn a_reservation_that_does_not_fit_takes_nothing() {
        let pages = PageAllocator::new(3);
        let held = pages.reserve(2).unwrap();
        assert!(pages.reserve(2).is_none());
        assert_eq!((pages.free(), pages.used()), (1, 2));
        drop(held);
        assert_eq!(pages.free(), 3);
    }

    #[test]
    fn pages_given_back_last_are_taken_first_and_in_their_order() {
        let pages = PageAllocator::new(8);
        let first = pages.reserve(3).unwrap();
        let _second = pages.reserve(2).unwrap();
        let order = first.pages().to_vec();
        drop(first);
        assert_eq!(pages.reserve(3).unwrap().pages(), order);
    }

    proptest! {
        #[test]
        fn no_page_is_leased_twice_or_lost(ops in proptest::collection::vec((any::<bool>(), 0usize..6), 0..64)) {
            let pages = PageAllocator::new(16);
            let mut held: Vec<PageLease> = Vec::new();
            for (take, n) in ops {
                if take {
                    held.extend(pages.reserve(n));
                } else if !held.is_empty() {
                    held.swap_remove(n % held.len());
                }
                let leased: Vec<u32> = held.iter().flat_map(|l| l.pages().to_vec()).collect();
                let distinct: HashSet<u32> = leased.iter().copied().collect();
                prop_assert_eq!(distinct.len(), leased.len());
                prop_assert_eq!(pages.used(), leased.len());
            }
        }
    }
}
