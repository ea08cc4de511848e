//! What kernels are launched with: the same bytes as in `cuda/common/params.h`.

use bytemuck::{Pod, Zeroable};
use skip_tables::ScaleTable;

/// Rows a device table slot holds.
pub(super) const TABLE_ROWS: usize = 64;

/// One scale table in device memory.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Table {
    pub rows: i32,
    pub max_len: i32,
    pub length: [i32; TABLE_ROWS],
    pub s: [f32; TABLE_ROWS],
}

/// One sequence of an attention call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Seq {
    pub row: i32,
    pub q_len: i32,
    pub q_start: i32,
    pub kv_len: i32,
    pub final_len: i32,
    pub table: i32,
    pub pages: i32,
    pub pad: i32,
}

/// Votes of one sequence.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Counters {
    pub votes: u64,
    pub skipped: u64,
}

/// Arguments of every attention kernel; pointers are device addresses, 0 for none.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct AttnParams {
    pub q: u64,
    pub k: u64,
    pub v: u64,
    pub out: u64,
    pub lse: u64,
    pub seqs: u64,
    pub block_tables: u64,
    pub tables: u64,
    pub counters: u64,
    pub kept: u64,
    pub kept_offset: u64,
    pub work: u64,
    pub workspace: u64,
    pub q_stride: i64,
    pub heads: i32,
    pub kv_heads: i32,
    pub n_seqs: i32,
    pub window: i32,
    pub scale: f32,
    pub max_runs: i32,
    pub grid: i32,
    pub pad: i32,
    pub gaps: u64,
}

macro_rules! plain {
    ($($name:ty),+) => {$(
        // SAFETY: repr(C) structs of integers and floats without padding (checked below).
        unsafe impl Zeroable for $name {}
        // SAFETY: as above.
        unsafe impl Pod for $name {}
    )+};
}
plain!(Table, Seq, Counters, AttnParams);

const _: () = {
    assert!(size_of::<Table>() == 8 + 8 * TABLE_ROWS);
    assert!(size_of::<Seq>() == 32);
    assert!(size_of::<Counters>() == 16);
    assert!(size_of::<AttnParams>() == 13 * 8 + 8 + 8 * 4 + 8);
};

impl Table {
    /// S at every length.
    pub fn constant(s: f32) -> Self {
        let mut out = Self { rows: 1, max_len: i32::MAX, length: [0; TABLE_ROWS], s: [0.0; TABLE_ROWS] };
        out.s[0] = s;
        out
    }

    /// Whether a slot has room for a table.
    pub fn holds(table: &ScaleTable) -> bool {
        table.rows().len() <= TABLE_ROWS
    }

    /// A table that gives, at length `len`, the threshold that `table` gives there.
    pub fn at(table: &ScaleTable, len: usize) -> Self {
        Self::constant(table.row_at(len).map_or(0.0, |row| table.rows()[row].s))
    }

    /// The device's form of a table, or None where it has more rows than a slot.
    pub fn new(table: &ScaleTable) -> Option<Self> {
        let mut out = Self { rows: 0, max_len: i32::MAX, length: [0; TABLE_ROWS], s: [0.0; TABLE_ROWS] };
        let entries = table.rows();
        if entries.len() > TABLE_ROWS {
            return None;
        }
        for (i, row) in entries.iter().enumerate() {
            out.length[i] = i32::try_from(row.first_length).unwrap_or(i32::MAX);
            out.s[i] = row.s;
        }
        out.rows = entries.len() as i32;
        out.max_len = table.max_len().and_then(|len| i32::try_from(len).ok()).unwrap_or(i32::MAX);
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernels look a threshold up: `cuda/common/table.cuh`.
    fn ln_lambda(table: &Table, len: usize) -> Option<f32> {
        let rows = &table.length[..table.rows as usize];
        let row = rows.partition_point(|&first| first as usize <= len).checked_sub(1)?;
        let s = f64::from(table.s[row]);
        (len <= table.max_len as usize && s > 0.0 && s < len as f64).then(|| (s / len as f64).ln() as f32)
    }

    #[test]
    fn the_row_in_force_of_a_long_table_gives_its_threshold() {
        let rows = (0..200u32).map(|i| (64 * (i + 1), if i % 7 == 0 { 0.0 } else { 3.0 * i as f32 }).into()).collect();
        let long = ScaleTable::new(rows, Some(12_000)).unwrap();
        assert!(!Table::holds(&long) && Table::new(&long).is_none());
        let mut some = 0;
        for len in (1..14_000).step_by(13) {
            assert_eq!(ln_lambda(&Table::at(&long, len), len), long.ln_lambda(len), "at {len}");
            some += usize::from(long.ln_lambda(len).is_some());
        }
        assert!(some > 0);
    }
}
