//! Which table lies in which numbered slot of the device, counted by the sequences that use it.

use crate::handle::NamedTable;
use skip_kernels::backend::TableSlot;
use std::sync::Arc;

/// Slots grow with need: at most two tables a running sequence.
#[derive(Debug, Default)]
pub(super) struct TableSlots {
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    table: Arc<NamedTable>,
    users: usize,
}

impl TableSlots {
    /// The slot of `table` with one user more, and whether the table must be put there first.
    pub fn acquire(&mut self, table: &Arc<NamedTable>) -> (TableSlot, bool) {
        let same = |s: &Slot| Arc::ptr_eq(&s.table, table) || s.table.table == table.table;
        if let Some(i) = self.slots.iter().position(same) {
            self.slots[i].users += 1;
            return (slot(i), false);
        }
        let new = Slot { table: table.clone(), users: 1 };
        if let Some(i) = self.slots.iter().position(|s| s.users == 0) {
            self.slots[i] = new;
            return (slot(i), true);
        }
        self.slots.push(new);
        (slot(self.slots.len() - 1), true)
    }

    /// One user less; the table stays until its slot is wanted.
    pub fn release(&mut self, slot: TableSlot) {
        if let Some(s) = self.slots.get_mut(usize::from(slot.0)) {
            s.users = s.users.saturating_sub(1);
        }
    }

    #[cfg(test)]
    pub fn users(&self) -> usize {
        self.slots.iter().map(|s| s.users).sum()
    }
}

fn slot(index: usize) -> TableSlot {
    // Two tables a running sequence, and far fewer than 32768 of those.
    TableSlot(index.min(usize::from(u16::MAX)) as u16)
}
