//! Pages that hold the beginnings of prompts: which page holds what, and of those that nobody uses, which was left longest ago.

use super::chain::Digest;
use crate::handle::{ClientId, NamedTable};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Whose prompts may begin with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Those of the client that had it computed: who else used it could tell what others ask.
    Client(ClientId),
    /// Everybody's: an administrator pinned what it holds.
    Shared,
}

/// The threshold that a prompt's keys and values came about with: they follow from what attention left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Under {
    /// Of the table's rows.
    table: Digest,
    /// Which row.
    row: usize,
}

impl Under {
    /// For a prompt of `length` tokens; None where attention is dense, whatever the table.
    pub fn of(table: Option<&Arc<NamedTable>>, length: usize) -> Option<Self> {
        let table = &table?.table;
        table.ln_lambda(length)?;
        Some(Self { table: table.digest(), row: table.row_at(length)? })
    }
}

/// What a page holds and whose it is; where the keys are equal one page may stand for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageKey {
    /// Whose.
    pub scope: Scope,
    /// The threshold; None: dense.
    pub under: Option<Under>,
    /// The tokens from the prompt's beginning to the page's end.
    pub content: Digest,
}

/// An index both ways, and an order of those that are idle.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pages: HashMap<PageKey, u32>,
    entries: HashMap<u32, Entry>,
    /// Pages that nobody holds, by when they were left.
    idle: BTreeMap<u64, u32>,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    key: PageKey,
    left: Option<u64>,
}

impl Kept {
    pub fn page(&self, key: &PageKey) -> Option<u32> {
        self.pages.get(key).copied()
    }

    /// Pages that nobody holds.
    pub fn idle(&self) -> usize {
        self.idle.len()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Keeps a page that is held. Of two with one key the first stays; a client's own becomes everybody's, never the other way.
    pub fn insert(&mut self, page: u32, key: PageKey) {
        if self.pages.contains_key(&key) {
            return;
        }
        if let Some(entry) = self.entries.get(&page) {
            if entry.key.scope == Scope::Shared || key.scope != Scope::Shared {
                return;
            }
            self.pages.remove(&entry.key);
        }
        self.entries.insert(page, Entry { key, left: None });
        self.pages.insert(key, page);
    }

    /// The last holder left; false: the page is not kept.
    pub fn leave(&mut self, page: u32) -> bool {
        let Some(entry) = self.entries.get_mut(&page) else { return false };
        self.clock += 1;
        entry.left = Some(self.clock);
        self.idle.insert(self.clock, page);
        true
    }

    /// A first holder came.
    pub fn take(&mut self, page: u32) {
        if let Some(left) = self.entries.get_mut(&page).and_then(|entry| entry.left.take()) {
            self.idle.remove(&left);
        }
    }

    /// Gives up the page that was left longest ago.
    pub fn evict(&mut self) -> Option<u32> {
        let (_, page) = self.idle.pop_first()?;
        if let Some(entry) = self.entries.remove(&page) {
            self.pages.remove(&entry.key);
        }
        Some(page)
    }

    /// Keeps some pages no longer; gives those that nobody holds.
    pub fn forget(&mut self, gone: impl Fn(u32, &PageKey) -> bool) -> Vec<u32> {
        let mut idle = Vec::new();
        self.entries.retain(|&page, entry| {
            if !gone(page, &entry.key) {
                return true;
            }
            self.pages.remove(&entry.key);
            if let Some(left) = entry.left {
                self.idle.remove(&left);
                idle.push(page);
            }
            false
        });
        idle
    }
}
