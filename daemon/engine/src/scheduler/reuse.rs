//! Prompts that begin as an earlier one did: they take its pages and compute the rest, and leave their own to the next.
//!
//! A page is kept once the step that filled it is complete, and never changes: a prompt takes whole pages only, and computes at least its last
//! token. Pages are looked for at admission and before every chunk, so that of many that come together with one beginning the first computes it.

use super::Scheduler;
use super::pins::Pins;
use crate::cache::{Digest, PageAllocator, PageKey, Scope, Under};
use crate::handle::{ClientId, NamedTable};
use crate::prefix::{NewPrefix, PrefixError, PrefixInfo, Which};
use skip_kernels::PAGE;
use std::sync::Arc;

/// What a sequence's prompt begins with; empty where the request wants no reuse.
#[derive(Debug)]
pub(super) struct Beginning {
    client: ClientId,
    under: Option<Under>,
    /// What its whole pages hold.
    chain: Arc<[Digest]>,
    /// Of them, how many it may take: the last token is always computed.
    most: usize,
    /// Of them, how many are there, taken or computed.
    done: usize,
    /// How many it took.
    taken: usize,
}

impl Beginning {
    pub fn new(client: ClientId, table: Option<&Arc<NamedTable>>, chain: &Arc<[Digest]>, prompt: usize) -> Self {
        let under = if chain.is_empty() { None } else { Under::of(table, prompt) };
        Self { client, under, chain: chain.clone(), most: (prompt - 1) / PAGE, done: 0, taken: 0 }
    }

    /// The kept pages that follow on the first `from`.
    pub fn known(&self, from: usize, pages: &PageAllocator) -> Vec<u32> {
        let key = |content: &Digest, scope| PageKey { scope, under: self.under, content: *content };
        let page = |content| {
            let shared = pages.kept(&key(content, Scope::Shared));
            shared.or_else(|| pages.kept(&key(content, Scope::Client(self.client))))
        };
        self.chain.iter().take(self.most).skip(from).map_while(page).collect()
    }

    /// Tokens it took.
    pub fn reused(&self) -> usize {
        self.taken * PAGE
    }

    /// It took so many pages more.
    fn take(&mut self, count: usize, pins: &mut Pins) {
        if count > 0 && self.taken == 0 {
            pins.hit(&self.chain);
        }
        self.taken += count;
    }

    /// The prompt's first `computed` tokens are in `pages`: those that are full are kept.
    fn keep(&mut self, computed: usize, block_table: &[u32], pages: &PageAllocator, pins: &mut Pins) {
        let (from, upto) = (self.done, (computed / PAGE).min(self.chain.len()));
        if upto <= from {
            return;
        }
        for (content, &page) in self.chain[from..upto].iter().zip(&block_table[from..upto]) {
            let scope = if pins.cover(content) { Scope::Shared } else { Scope::Client(self.client) };
            pages.keep(page, PageKey { scope, under: self.under, content: *content });
        }
        self.done = upto;
        pins.follow(&self.chain, self.under, (from, upto), pages);
    }
}

/// Prompt tokens of admitted requests that want reuse, and how many of them were taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReuseCounts {
    /// Tokens looked for.
    pub asked: u64,
    /// Tokens taken.
    pub reused: u64,
}

impl Scheduler {
    /// Shares a prefix between all clients from now on; it holds its pages once a prompt with it is computed.
    pub fn pin(&mut self, new: NewPrefix) -> Result<PrefixInfo, PrefixError> {
        self.pins.add(new)
    }

    /// Shares a prefix no longer.
    pub fn unpin(&mut self, which: impl Into<Which>) -> Option<PrefixInfo> {
        self.pins.remove(&which.into(), &self.pages)
    }

    /// The pinned prefixes.
    pub fn prefixes(&self) -> Vec<PrefixInfo> {
        self.pins.list()
    }

    /// Pages that pinned prefixes hold.
    pub fn pinned(&self) -> usize {
        self.pins.held()
    }

    /// What was reused since the start.
    pub fn reuse(&self) -> ReuseCounts {
        self.reuse
    }

    /// A sequence was admitted with so many kept pages in front.
    pub(super) fn began_with(&mut self, place: usize, known: usize) {
        let s = &mut self.running[place];
        if s.arrival.request.reuse {
            self.reuse.asked += s.prompt_len() as u64;
        }
        s.cached = known * PAGE;
        self.took(place, known);
    }

    /// Takes what others have computed since, behind what a sequence has. No step of its own is under way.
    pub(super) fn take_known(&mut self, place: usize) {
        let s = &mut self.running[place];
        let from = s.cached / PAGE;
        let known = s.beginning.known(from, &self.pages);
        for (at, &page) in known.iter().enumerate() {
            s.pages.swap(from + at, page);
        }
        s.cached += known.len() * PAGE;
        self.took(place, known.len());
    }

    fn took(&mut self, place: usize, count: usize) {
        let s = &mut self.running[place];
        self.reuse.reused += (count * PAGE) as u64;
        s.beginning.take(count, &mut self.pins);
        s.beginning.keep(s.cached, s.pages.pages(), &self.pages, &mut self.pins);
    }

    /// A step that computed a sequence's prompt up to token `computed` is complete.
    pub(super) fn computed(&mut self, place: usize, computed: usize) {
        let s = &mut self.running[place];
        s.beginning.keep(computed, s.pages.pages(), &self.pages, &mut self.pins);
    }

    /// What a sequence computed is not to be trusted: nobody takes its pages.
    pub(super) fn distrust(&self, place: usize) {
        let s = &self.running[place];
        self.pages.forget(|page, _| s.pages.pages().contains(&page));
    }
}
