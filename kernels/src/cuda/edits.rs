//! Editing logits on the device before a token is drawn: masks and biases of the step's rows, in the step's block of memory.

use super::cubins::Cubins;
use super::device::Device;
use super::launch::{Shape, launch};
use crate::backend::KernelError;
use crate::sampling::LogitEdits;
use bytemuck::{Pod, Zeroable};

/// The kernel's name; a device without it serves requests without edits alone.
pub(super) const KERNEL: &str = "edit_logits";
/// Blocks a row.
const PARTS: u32 = 32;
const THREADS: u32 = 256;

/// One row's edits: where they lie among the words that the kernel is given. As in `cuda/common/sampling.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Edits {
    /// First word of its mask; −1 for none.
    mask: i32,
    mask_words: i32,
    /// First word of its (token, bias) pairs.
    added: i32,
    added_count: i32,
}

impl Default for Edits {
    /// A row that stays as it is.
    fn default() -> Self {
        Self { mask: -1, mask_words: 0, added: 0, added_count: 0 }
    }
}

// SAFETY: repr(C), four integers.
unsafe impl Zeroable for Edits {}
// SAFETY: as above.
unsafe impl Pod for Edits {}

/// Edits of a step's rows, and the words they refer to.
#[derive(Debug, Default)]
pub(super) struct Block {
    rows: Vec<Edits>,
    pub words: Vec<u32>,
}

impl Block {
    /// For rows of which some have edits.
    pub fn new<'a>(rows: impl Iterator<Item = Option<&'a LogitEdits>>) -> Self {
        let mut block = Self::default();
        for edits in rows {
            let row = edits.map_or_else(Edits::default, |edits| block.push(edits));
            block.rows.push(row);
        }
        if block.rows.iter().all(|row| *row == Edits::default()) {
            block.rows.clear();
        }
        block
    }

    fn push(&mut self, edits: &LogitEdits) -> Edits {
        let mut row = Edits::default();
        if let Some(allowed) = &edits.allowed {
            (row.mask, row.mask_words) = (self.words.len() as i32, allowed.len() as i32);
            self.words.extend_from_slice(allowed);
        }
        (row.added, row.added_count) = (self.words.len() as i32, edits.added.len() as i32);
        self.words.extend(edits.added.iter().flat_map(|&(id, bias)| [id, bias.to_bits()]));
        row
    }

    /// No row has edits.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The rows for words that lie `base` words behind what the kernel is given.
    pub fn rows(&self, base: usize) -> impl Iterator<Item = Edits> {
        let behind = move |at: i32| at + base as i32;
        self.rows.iter().map(move |row| Edits { mask: if row.mask < 0 { -1 } else { behind(row.mask) }, added: behind(row.added), ..*row })
    }
}

/// Rows to edit.
#[derive(Clone, Copy)]
pub(super) struct Edit {
    /// Device address of float32 logits, `[rows][vocab]`.
    pub logits: u64,
    pub vocab: usize,
    pub rows: usize,
    /// Device address of an [`Edits`] a row.
    pub edits: u64,
    /// Device address of the words.
    pub words: u64,
}

/// Enqueues the edits.
pub(super) fn edit(device: &Device, cubins: &mut Cubins, edit: Edit) -> Result<(), KernelError> {
    let Edit { logits, vocab, rows, edits, words } = edit;
    let kernel = cubins.get(KERNEL)?;
    let shape = Shape { early: true, ..Shape::new((PARTS, rows as u32), THREADS) };
    launch!(device, kernel, shape, logits, vocab as i32, edits, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_edits_take_no_room() {
        assert!(Block::new([None, None].into_iter()).is_empty());
        assert!(Block::new([Some(&LogitEdits::default())].into_iter()).words.is_empty());
    }

    #[test]
    fn each_row_finds_its_mask_and_its_biases() {
        let mask = LogitEdits { allowed: Some(vec![1, 2, 3]), added: vec![(7, 0.5)] };
        let bias = LogitEdits { allowed: None, added: vec![(8, -1.0), (9, 2.0)] };
        let block = Block::new([None, Some(&mask), Some(&bias)].into_iter());
        let rows: Vec<Edits> = block.rows(10).collect();
        assert_eq!((rows[0].mask, rows[0].added_count), (-1, 0));
        assert_eq!(rows[1], Edits { mask: 10, mask_words: 3, added: 13, added_count: 1 });
        assert_eq!((rows[2].mask, rows[2].added, rows[2].added_count), (-1, 15, 2));
        assert_eq!(block.words, [1, 2, 3, 7, 0.5f32.to_bits(), 8, (-1.0f32).to_bits(), 9, 2.0f32.to_bits()]);
    }
}
