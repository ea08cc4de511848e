//! What a model is going to take of a device's memory, counted by purpose before anything of it is allocated.

use crate::attention::AttnGeometry;
use crate::backend::{KernelError, WeightFormat};
use crate::pages::PageLayout;
use std::fmt;

/// What decides how much memory a decoder takes.
#[derive(Clone, Debug)]
pub struct ModelShape {
    /// Heads of every layer.
    pub geometry: AttnGeometry,
    /// Layers.
    pub layers: usize,
    /// Weight matrices, as products take them.
    pub matrices: Vec<MatrixShape>,
    /// Elements of all float32 vectors.
    pub vector_elements: u64,
    /// Vocabulary.
    pub vocab: usize,
    /// Activations, as `[rows][cols]`, and whether they are float32 whatever the type of the others.
    pub tensors: Vec<(usize, usize, bool)>,
    /// Sequences of a step.
    pub seqs: usize,
    /// One layer's pools.
    pub layout: PageLayout,
    /// Cache pages a layer.
    pub pages: usize,
    /// Positions below this are rotated.
    pub context: usize,
    /// Rotations that layers have: one, or another for windowed layers.
    pub ropes: usize,
}

/// Weight matrices of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Output features, of all parts that stand below one another.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Element type in the checkpoint.
    pub format: WeightFormat,
    /// Only looked up, row by row.
    pub lookup: bool,
}

impl MatrixShape {
    /// Bytes in the checkpoint.
    pub fn bytes(&self) -> u64 {
        self.rows as u64 * self.cols as u64 * self.format.size() as u64
    }
}

impl ModelShape {
    /// Elements of all weight matrices.
    pub fn matrix_elements(&self) -> u64 {
        self.matrices.iter().map(|m| m.rows as u64 * m.cols as u64).sum()
    }

    /// Bytes of K and V of all pages.
    pub fn kv_bytes(&self) -> u64 {
        (self.layers * self.pages * self.layout.page_len() * 2 * 2) as u64
    }
}

/// Whose memory is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The device's own.
    #[default]
    Device,
    /// The system's.
    System,
    /// What is left under the memory limit of a control group.
    Group(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Device => f.write_str("on the device"),
            Source::System => f.write_str("of the system's memory"),
            Source::Group(group) => write!(f, "under the memory limit of control group {group}"),
        }
    }
}

/// Bytes by purpose, and what there is to take them from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Purpose and bytes, in the order of counting.
    pub entries: Vec<(&'static str, u64)>,
    /// Bytes that were free before anything was allocated.
    pub free: u64,
    /// Whose they are.
    pub source: Source,
}

impl Ledger {
    /// Counts `bytes` for `what`.
    pub fn count(&mut self, what: &'static str, bytes: u64) {
        self.entries.push((what, bytes));
    }

    /// Bytes in all.
    pub fn total(&self) -> u64 {
        self.entries.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Free bytes beside what is counted.
    pub fn left(&self) -> u64 {
        self.free.saturating_sub(self.total())
    }

    /// The ledger, if its total can be had.
    ///
    /// # Errors
    /// [`KernelError::TooLarge`] with the ledger.
    pub fn admit(self) -> Result<Self, KernelError> {
        if self.total() <= self.free { Ok(self) } else { Err(KernelError::TooLarge(Box::new(self))) }
    }
}

/// Mebibytes, rounded up.
fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB are needed (", mib(self.total()))?;
        for (i, (what, bytes)) in self.entries.iter().enumerate() {
            write!(f, "{}{what} {}", if i > 0 { ", " } else { "" }, mib(*bytes))?;
        }
        write!(f, "), {} MiB are free {}", self.free >> 20, self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_the_numbers() {
        let mut ledger = Ledger { free: 100 << 20, ..Ledger::default() };
        ledger.count("weights", 60 << 20);
        ledger.count("KV pages", 40 << 20);
        let fits = ledger.clone().admit().unwrap();
        assert_eq!(fits.total(), 100 << 20);
        ledger.count("reserve", 1);
        let refused = ledger.admit().unwrap_err().to_string();
        assert_eq!(refused, "101 MiB are needed (weights 60, KV pages 40, reserve 1), 100 MiB are free on the device");
    }

    #[test]
    fn whose_memory_it_is_is_told() {
        let told = |source| Ledger { source, ..Ledger::default() }.to_string();
        assert!(told(Source::System).ends_with("0 MiB are free of the system's memory"));
        assert!(told(Source::Group("/a/b".into())).ends_with("under the memory limit of control group /a/b"));
    }
}
