//! Which pages of the KV cache are free, held or kept: a request's pages are reserved before it starts and come back when its lease is dropped.
//!
//! Pages with the beginning of a prompt are kept for the next one that begins so. Those that nobody holds count as free: whoever reserves
//! pages gets them too, the one left longest ago first. Who holds a lease can finish; nothing that is held is taken back.

mod chain;
mod kept;

pub use chain::{Digest, chain};
pub use kept::{PageKey, Scope, Under};

use kept::Kept;
use skip_kernels::PAGE;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pages that `tokens` tokens need.
pub fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE)
}

/// All pages of a cache.
#[derive(Clone, Debug)]
pub struct PageAllocator {
    pages: Arc<Mutex<Pages>>,
    total: usize,
}

#[derive(Debug)]
struct Pages {
    /// Neither held nor kept; a stack: the page given back last is still warm.
    free: Vec<u32>,
    /// Leases that have a page, by page.
    holders: Vec<u32>,
    kept: Kept,
}

impl Pages {
    fn available(&self) -> usize {
        self.free.len() + self.kept.idle()
    }

    fn hold(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        *holders += 1;
        if *holders == 1 {
            self.kept.take(page);
        }
    }

    fn release(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        *holders -= 1;
        if *holders == 0 && !self.kept.leave(page) {
            self.free.push(page);
        }
    }
}

impl PageAllocator {
    /// Pages `0 .. total`, all free.
    pub fn new(total: u32) -> Self {
        let pages = Pages { free: (0..total).rev().collect(), holders: vec![0; total as usize], kept: Kept::default() };
        Self { pages: Arc::new(Mutex::new(pages)), total: total as usize }
    }

    /// Pages in all.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Pages that can be reserved: those not held.
    pub fn free(&self) -> usize {
        lock(&self.pages).available()
    }

    /// Pages held.
    pub fn used(&self) -> usize {
        self.total - self.free()
    }

    /// Of the free pages, those kept for prompts that begin as an earlier one did.
    pub fn cached(&self) -> usize {
        lock(&self.pages).kept.idle()
    }

    /// Pages that are kept, held or not.
    #[cfg(test)]
    pub fn registered(&self) -> usize {
        lock(&self.pages).kept.len()
    }

    /// Leases `count` pages that nobody else has, or none.
    pub fn reserve(&self, count: usize) -> Option<PageLease> {
        let mut pages = lock(&self.pages);
        if pages.available() < count {
            return None;
        }
        let rest = pages.free.len().saturating_sub(count);
        let mut leased: Vec<u32> = pages.free.drain(rest..).rev().collect();
        while leased.len() < count {
            leased.extend(pages.kept.evict());
        }
        leased.iter().for_each(|&page| pages.hold(page));
        Some(PageLease { leased, pages: self.pages.clone() })
    }

    /// Leases pages that are held or kept, beside whoever else has them.
    pub fn hold(&self, known: &[u32]) -> PageLease {
        let mut pages = lock(&self.pages);
        known.iter().for_each(|&page| pages.hold(page));
        PageLease { leased: known.to_vec(), pages: self.pages.clone() }
    }

    /// The page kept under a key.
    pub fn kept(&self, key: &PageKey) -> Option<u32> {
        lock(&self.pages).kept.page(key)
    }

    /// Keeps a page that is held, all of which is computed and will not change. Of two under one key the first stays.
    pub fn keep(&self, page: u32, key: PageKey) {
        lock(&self.pages).kept.insert(page, key);
    }

    /// Keeps some pages no longer; whoever holds them still has them.
    pub fn forget(&self, gone: impl Fn(u32, &PageKey) -> bool) {
        let mut pages = lock(&self.pages);
        let idle = pages.kept.forget(gone);
        pages.free.extend(idle);
    }
}

/// Pages held until dropped: one sequence's block table, or a pinned prefix.
#[derive(Debug)]
pub struct PageLease {
    leased: Vec<u32>,
    pages: Arc<Mutex<Pages>>,
}

impl PageLease {
    /// The pages in the order of the tokens.
    pub fn pages(&self) -> &[u32] {
        &self.leased
    }

    /// Puts another lease's pages behind these.
    pub fn append(&mut self, mut other: PageLease) {
        self.leased.append(&mut other.leased);
    }

    /// Holds `page`, which is held or kept, in place of the one at `at`.
    pub fn swap(&mut self, at: usize, page: u32) {
        let mut pages = lock(&self.pages);
        pages.hold(page);
        pages.release(std::mem::replace(&mut self.leased[at], page));
    }
}

impl Drop for PageLease {
    fn drop(&mut self) {
        let mut pages = lock(&self.pages);
        // The last first: of what is kept the end of a prompt is given up before its beginning.
        self.leased.drain(..).rev().for_each(|page| pages.release(page));
    }
}

/// Every change is whole before it can panic.
fn lock(pages: &Mutex<Pages>) -> MutexGuard<'_, Pages> {
    pages.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
