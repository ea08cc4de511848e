//! The rows of one table and the lookup every kernel's threshold comes from.

use crate::Digest;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One row: from `first_length` keys on, the scale is `s`; 0 makes the bin dense.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "(u32, f32)", into = "(u32, f32)")]
pub struct Row {
    /// Shortest sequence, in keys, that the row holds for.
    pub first_length: u32,
    /// S in λ = S / L.
    pub s: f32,
}

impl From<(u32, f32)> for Row {
    fn from((first_length, s): (u32, f32)) -> Self {
        Row { first_length, s }
    }
}

impl From<Row> for (u32, f32) {
    fn from(row: Row) -> Self {
        (row.first_length, row.s)
    }
}

/// Why rows do not make a table.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// A table needs at least one row.
    #[error("a table needs at least one row")]
    Empty,
    /// Far more rows than any calibration writes.
    #[error("{0} rows: a table has at most {max}", max = ScaleTable::MAX_ROWS)]
    TooManyRows(usize),
    /// Lengths must ascend strictly.
    #[error("row {index}: length {length} does not come after {previous}")]
    OutOfOrder {
        /// Index of the offending row.
        index: usize,
        /// Its length.
        length: u32,
        /// The length before it.
        previous: u32,
    },
    /// S must be a finite number.
    #[error("row {index}: S is not a finite number")]
    NotFinite {
        /// Index of the offending row.
        index: usize,
    },
    /// S must not be negative.
    #[error("row {index}: S is negative ({s})")]
    Negative {
        /// Index of the offending row.
        index: usize,
        /// The value found.
        s: f32,
    },
}

/// A checked table: at least one row, lengths strictly ascending, every S finite and ≥ 0.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleTable {
    rows: Vec<Row>,
    max_len: Option<u32>,
}

impl ScaleTable {
    /// More rows than this are refused.
    pub const MAX_ROWS: usize = 4096;

    /// Checks rows; `max_len` is the longest calibrated length, beyond which attention is dense.
    pub fn new(rows: Vec<Row>, max_len: Option<u32>) -> Result<Self, TableError> {
        if rows.is_empty() {
            return Err(TableError::Empty);
        }
        if rows.len() > Self::MAX_ROWS {
            return Err(TableError::TooManyRows(rows.len()));
        }
        for (index, row) in rows.iter().enumerate() {
            if !row.s.is_finite() {
                return Err(TableError::NotFinite { index });
            }
            if row.s < 0.0 {
                return Err(TableError::Negative { index, s: row.s });
            }
            if index > 0 && row.first_length <= rows[index - 1].first_length {
                return Err(TableError::OutOfOrder { index, length: row.first_length, previous: rows[index - 1].first_length });
            }
        }
        Ok(Self { rows, max_len })
    }

    /// The rows, ascending.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The longest calibrated length, if one is recorded.
    pub fn max_len(&self) -> Option<u32> {
        self.max_len
    }

    /// The same rows with another calibrated range.
    pub fn with_max_len(self, max_len: Option<u32>) -> Self {
        Self { max_len, ..self }
    }

    /// The rows as a file holds them: `[[1024,833.6],…]`, S in the fewest digits that read back as the same float32.
    pub fn to_json(&self) -> Value {
        self.rows.iter().map(|row| Value::from(vec![Value::from(row.first_length), shortest(row.s)])).collect()
    }

    /// SHA-256 over [`Self::to_json`] without spaces: the rows alone, so a table keeps its digest however a file spells its numbers.
    pub fn digest(&self) -> Digest {
        Digest::of(self.to_json().to_string().as_bytes())
    }

    /// Index of the row in force at `kv_len` keys (floor lookup), or None below the first or beyond the calibrated range.
    pub fn row_at(&self, kv_len: usize) -> Option<usize> {
        if self.max_len.is_some_and(|max| kv_len > max as usize) {
            return None;
        }
        self.rows.partition_point(|row| row.first_length as usize <= kv_len).checked_sub(1)
    }

    /// ln λ = ln(S / kv_len) in nats, or None where attention is exactly dense: no row, S = 0, or S ≥ kv_len.
    pub fn ln_lambda(&self, kv_len: usize) -> Option<f32> {
        let s = f64::from(self.rows[self.row_at(kv_len)?].s);
        (s > 0.0 && s < kv_len as f64).then(|| (s / kv_len as f64).ln() as f32)
    }

    /// Smallest length with a threshold; a batch that stays below it everywhere takes the dense kernel.
    pub fn first_skippable_length(&self) -> Option<usize> {
        self.rows
            .iter()
            .enumerate()
            .filter(|(_, row)| row.s > 0.0)
            .filter_map(|(i, row)| {
                let next = self.rows.get(i + 1).map_or(u64::MAX, |r| u64::from(r.first_length));
                let end = self.max_len.map_or(next, |max| next.min(u64::from(max) + 1));
                let n = u64::from(row.first_length).max(row.s as u64 + 1);
                (n < end).then_some(n as usize)
            })
            .min()
    }
}

/// A finite float32 as the JSON number with its fewest digits (the conversion to float64 alone would write 833.6 as 833.5999755859375).
fn shortest(s: f32) -> Value {
    let digits: f64 = s.to_string().parse().unwrap_or_else(|_| f64::from(s));
    if digits.fract() == 0.0 && digits < 1e15 { Value::from(digits as u64) } else { Value::from(digits) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(u32, f32)], max_len: Option<u32>) -> ScaleTable {
        ScaleTable::new(rows.iter().map(|&r| r.into()).collect(), max_len).unwrap()
    }

    #[test]
    fn lookup_takes_the_row_at_or_below_the_length() {
        let t = table(&[(256, 100.0), (910, 0.0)], Some(2000));
        assert_eq!(t.ln_lambda(255), None);
        assert_eq!(t.ln_lambda(900), Some((100.0f64 / 900.0).ln() as f32));
        assert_eq!(t.ln_lambda(910), None, "a row of 0 is dense");
        assert_eq!(t.ln_lambda(2001), None, "beyond the calibrated range");
    }

    #[test]
    fn s_at_or_above_the_length_is_dense() {
        let t = table(&[(256, 640.0)], None);
        assert_eq!(t.ln_lambda(640), None);
        assert!(t.ln_lambda(641).is_some());
        assert_eq!(t.first_skippable_length(), Some(641));
    }

    #[test]
    fn rows_out_of_order_name_the_row() {
        let rows = vec![(512, 1.0).into(), (512, 2.0).into()];
        assert_eq!(ScaleTable::new(rows, None), Err(TableError::OutOfOrder { index: 1, length: 512, previous: 512 }));
    }
}
