//! Pinned prefixes: what they begin, how much they may take, and the pages they hold.
//!
//! A prefix is tokens; its pages come from whoever computes a prompt with it, under each table and row anew. It holds those that were
//! used last, so that it follows the tables in force; others stay in the cache as long as there is room.

use crate::cache::{Digest, PageAllocator, PageKey, PageLease, Scope, Under, chain};
use crate::handle::ClientId;
use crate::prefix::{MAX_PREFIXES, NewPrefix, PrefixError, PrefixInfo, Which};
use skip_kernels::PAGE;
use std::cmp::Reverse;

/// All pinned prefixes.
#[derive(Debug)]
pub(super) struct Pins {
    pins: Vec<Pin>,
    /// Pages they may take.
    limit: usize,
    /// The next one's number.
    next: u64,
}

#[derive(Debug)]
struct Pin {
    serial: u64,
    name: String,
    owner: ClientId,
    /// What its pages hold.
    chain: Vec<Digest>,
    held: Option<PageLease>,
    hits: u64,
}

impl Pin {
    /// Pages at the beginning that it has in common with a prompt.
    fn common(&self, chain: &[Digest]) -> usize {
        self.chain.iter().zip(chain).take_while(|(a, b)| a == b).count()
    }

    fn is(&self, which: &Which) -> bool {
        match which {
            Which::Name(name) => self.name == *name,
            Which::Serial(serial) => self.serial == *serial,
        }
    }

    fn has(&self, content: &Digest) -> bool {
        self.chain.contains(content)
    }

    fn held(&self) -> &[u32] {
        self.held.as_ref().map_or(&[], PageLease::pages)
    }

    fn info(&self) -> PrefixInfo {
        let pages = self.chain.len();
        PrefixInfo {
            serial: self.serial,
            name: self.name.clone(),
            tokens: (pages * PAGE) as u32,
            pages: pages as u32,
            held: self.held().len() as u32,
            owner: self.owner,
            hits: self.hits,
        }
    }
}

impl Pins {
    /// None, and at most `limit` pages of them.
    pub fn new(limit: usize) -> Self {
        Self { pins: Vec::new(), limit, next: 1 }
    }

    /// Pins a prefix, which holds no page until a prompt with it is computed.
    pub fn add(&mut self, new: NewPrefix) -> Result<PrefixInfo, PrefixError> {
        let chain = chain(&new.tokens);
        if chain.is_empty() {
            return Err(PrefixError::TooShort { tokens: new.tokens.len() });
        }
        if self.pins.iter().any(|pin| pin.name == new.name) {
            return Err(PrefixError::NameTaken(new.name));
        }
        if let Some(same) = self.pins.iter().find(|pin| pin.chain == chain) {
            return Err(PrefixError::AlreadyPinned(same.name.clone()));
        }
        if self.pins.len() == MAX_PREFIXES {
            return Err(PrefixError::TooMany);
        }
        let pinned = self.pages();
        if pinned + chain.len() > self.limit {
            return Err(PrefixError::NoRoom { needed: chain.len(), pinned, limit: self.limit });
        }
        let pin = Pin { serial: self.next, name: new.name, owner: new.owner, chain, held: None, hits: 0 };
        let info = pin.info();
        self.next += 1;
        self.pins.push(pin);
        Ok(info)
    }

    /// Drops a prefix. What it alone shared is nobody's from then on.
    pub fn remove(&mut self, which: &Which, pages: &PageAllocator) -> Option<PrefixInfo> {
        let pin = self.pins.remove(self.pins.iter().position(|pin| pin.is(which))?);
        pages.forget(|_, key| key.scope == Scope::Shared && pin.has(&key.content) && !self.cover(&key.content));
        Some(pin.info())
    }

    /// All of them, in the order they were pinned.
    pub fn list(&self) -> Vec<PrefixInfo> {
        self.pins.iter().map(Pin::info).collect()
    }

    /// Pages they count for, held or not.
    pub fn pages(&self) -> usize {
        self.pins.iter().map(|pin| pin.chain.len()).sum()
    }

    /// Pages they hold. Prefixes that begin alike hold the same ones.
    pub fn held(&self) -> usize {
        let mut held: Vec<u32> = self.pins.iter().flat_map(|pin| pin.held().iter().copied()).collect();
        held.sort_unstable();
        held.dedup();
        held.len()
    }

    /// Whether a page is everybody's.
    pub fn cover(&self, content: &Digest) -> bool {
        self.pins.iter().any(|pin| pin.has(content))
    }

    /// A prompt took kept pages: a hit for the prefix it goes along with furthest; of several, for the shortest, which it has all of if it has
    /// all of any, and then for the one pinned first. One that is not there yet has no hits: it is just being computed.
    pub fn hit(&mut self, prompt: &[Digest]) {
        let there = self.pins.iter_mut().filter(|pin| pin.held.is_some() && pin.common(prompt) > 0);
        if let Some(pin) = there.max_by_key(|pin| (pin.common(prompt), Reverse(pin.chain.len()), Reverse(pin.serial))) {
            pin.hits += 1;
        }
    }

    /// A prompt's pages `from .. upto` are there: prefixes that end among them hold what was used.
    pub fn follow(&mut self, prompt: &[Digest], under: Option<Under>, (from, upto): (usize, usize), pages: &PageAllocator) {
        for pin in &mut self.pins {
            let length = pin.chain.len();
            if !(from < length && length <= upto && prompt.get(length - 1) == pin.chain.last()) {
                continue;
            }
            let page = |content: &Digest| pages.kept(&PageKey { scope: Scope::Shared, under, content: *content });
            if let Some(used) = pin.chain.iter().map(page).collect::<Option<Vec<u32>>>()
                && used != pin.held()
            {
                pin.held = Some(pages.hold(&used));
            }
        }
    }
}
