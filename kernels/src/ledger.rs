//! What a model is going to take of a device's memory, counted by purpose before anything of it is allocated.

use crate::attention::AttnGeometry;
use crate::backend::KernelError;
use crate::pages::PageLayout;
use std::fmt;

/// What decides how much memory a decoder takes.
#[derive(Clone, Debug)]
pub struct ModelShape {
    /// Heads of every layer.
    pub geometry: AttnGeometry,
    /// Layers.
    pub layers: usize,
    /// Elements of all weight matrices.
    pub matrix_elements: u64,
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

/// Bytes by purpose, and what there is to take them from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Purpose and bytes, in the order of counting.
    pub entries: Vec<(&'static str, u64)>,
    /// Bytes that were free before anything was allocated.
    pub free: u64,
    /// The device's memory is the system's.
    pub shared: bool,
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
        let of = if self.shared { "of the system's memory" } else { "on the device" };
        write!(f, "), {} MiB are free {of}", self.free >> 20)
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
}
