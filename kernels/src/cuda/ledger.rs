//! The memory ledger of a CUDA device: what a model takes there, and what there is.
//!
//! On an integrated GPU device memory is the system's, and only the kernel knows how much of that can be had: the driver counts page cache as
//! taken, and asking for more than there is can take the board down.

use super::attention;
use super::matmul;
use super::weights::CHUNK;
use crate::ledger::{Ledger, ModelShape};

/// Graphs, modules that libraries load when they first need them, and fragments.
const RESERVE: u64 = 384 << 20;
/// On an integrated GPU the rest of the system lives from the same memory.
const SHARED_RESERVE: u64 = 1 << 30;

/// A device's memory, as far as it can be asked.
pub(super) trait Memory {
    /// Shares memory with the processor.
    fn integrated(&self) -> bool;
    /// Free bytes as the driver counts them; only asked where the device has memory of its own.
    fn device_free(&self) -> Option<u64>;
    /// The text of /proc/meminfo.
    fn meminfo(&self) -> Option<String>;
}

/// Bytes that can be had; None where nobody says.
pub(super) fn free(memory: &impl Memory) -> Option<u64> {
    if !memory.integrated() {
        return memory.device_free();
    }
    let text = memory.meminfo()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// What the device adds to the shape of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chip {
    pub integrated: bool,
    pub free: u64,
    pub sms: u32,
    pub roomy: bool,
    /// Rows that may draw, and bytes of the sampler, tables and the step's first block, which are there from the start.
    pub samples: usize,
    pub fixed: u64,
}

/// Rows that a tensor of `rows` has room for: launches round up, to a recorded step's size or to what the few-row products take.
pub(super) fn padded_rows(rows: usize) -> usize {
    rows.max(64).next_multiple_of(64)
}

/// Bytes of the logits of `rows` rows.
pub(super) fn logits_bytes(rows: usize, vocab: usize) -> usize {
    rows.next_multiple_of(64) * vocab * 4
}

/// Counts a model. Everything is there once; a buffer that the processor fills is host memory, and counts only where that is the device's too.
pub(super) fn ledger(shape: &ModelShape, chip: &Chip) -> Ledger {
    let g = &shape.geometry;
    let rows = shape.tensors.iter().map(|t| padded_rows(t.0)).max().unwrap_or(64);
    let tensor = |&(rows, cols, wide): &(usize, usize, bool)| padded_rows(rows) * cols * if wide { 4 } else { 2 };
    let activations: usize = shape.tensors.iter().map(tensor).sum();
    let queries = rows * g.heads * g.head_dim * 2;
    let angles = shape.ropes * rows * (g.head_dim / 2) * 8;
    let logits = logits_bytes(shape.seqs.max(chip.samples), shape.vocab);
    let workspaces: usize = attention::workspaces(shape, chip.sms, chip.roomy).map(|w| w.bytes).sum();
    let mut ledger = Ledger { free: chip.free, shared: chip.integrated, ..Ledger::default() };
    ledger.count("weights", shape.matrix_elements * 2 + shape.vector_elements * 4);
    ledger.count("KV pages", (shape.layers * shape.pages * shape.layout.page_len() * 2 * 2) as u64);
    ledger.count("activations", (activations + queries + angles + logits) as u64);
    ledger.count("decode workspaces", workspaces as u64);
    ledger.count("products", matmul::WORKSPACE as u64);
    ledger.count("sampler, tables and step", chip.fixed);
    if chip.integrated {
        ledger.count("staging", 2 * CHUNK as u64);
    }
    ledger.count("reserve", if chip.integrated { SHARED_RESERVE } else { RESERVE });
    ledger
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::AttnGeometry;
    use crate::backend::KernelError;
    use crate::pages::{KvFormat, PageLayout};

    struct Fake {
        integrated: bool,
        meminfo: &'static str,
    }

    impl Memory for Fake {
        fn integrated(&self) -> bool {
            self.integrated
        }
        fn device_free(&self) -> Option<u64> {
            assert!(!self.integrated, "the driver's figure is wrong where memory is shared");
            Some(8 << 30)
        }
        fn meminfo(&self) -> Option<String> {
            Some(self.meminfo.into())
        }
    }

    const MEMINFO: &str = "MemTotal:       64305152 kB\nMemFree:         1000000 kB\nMemAvailable:   40000000 kB\n";

    #[test]
    fn an_integrated_gpu_has_what_the_system_can_give() {
        assert_eq!(free(&Fake { integrated: false, meminfo: MEMINFO }), Some(8 << 30));
        assert_eq!(free(&Fake { integrated: true, meminfo: MEMINFO }), Some(40_000_000 * 1024));
        assert_eq!(free(&Fake { integrated: true, meminfo: "MemTotal: 1 kB\n" }), None, "nothing is guessed");
    }

    /// Qwen2.5-Coder-0.5B with 32k of cache.
    fn shape() -> ModelShape {
        let geometry = AttnGeometry { heads: 14, kv_heads: 2, head_dim: 64, scale: 0.125, window: None };
        ModelShape {
            geometry,
            layers: 24,
            matrix_elements: 494_000_000,
            vector_elements: 100_000,
            vocab: 151_936,
            tensors: vec![(1040, 896, true), (1040, 9728, false)],
            seqs: 16,
            layout: PageLayout { kv_heads: 2, head_dim: 64, format: KvFormat::Fp16 },
            pages: 256,
            context: 32_768,
            ropes: 1,
        }
    }

    fn chip(integrated: bool, free: u64) -> Chip {
        Chip { integrated, free, sms: 132, roomy: true, samples: 16, fixed: 2 << 20 }
    }

    fn entry(ledger: &Ledger, what: &str) -> Option<u64> {
        ledger.entries.iter().find(|e| e.0 == what).map(|e| e.1)
    }

    #[test]
    fn a_model_is_counted_whole_and_refused_where_a_byte_is_missing() {
        let needed = ledger(&shape(), &chip(false, 0)).total();
        assert!(ledger(&shape(), &chip(false, needed)).admit().is_ok());
        let refused = ledger(&shape(), &chip(false, needed - 1)).admit().unwrap_err();
        assert!(matches!(&refused, KernelError::TooLarge(l) if l.total() == needed));
        assert!(refused.to_string().contains("weights 943, KV pages 384"), "{refused}");
    }

    #[test]
    fn shared_memory_holds_the_staging_once_and_a_larger_reserve() {
        let (own, shared) = (ledger(&shape(), &chip(false, 0)), ledger(&shape(), &chip(true, 0)));
        assert_eq!((entry(&own, "staging"), entry(&shared, "staging")), (None, Some(32 << 20)));
        assert_eq!(shared.total() - own.total(), (32 << 20) + SHARED_RESERVE - RESERVE);
        assert_eq!(entry(&own, "weights"), entry(&shared, "weights"), "counted once, whoever reads them");
    }

    #[test]
    fn workspaces_of_every_size_of_step_are_counted() {
        let bytes = |seqs| entry(&ledger(&ModelShape { seqs, ..shape() }, &chip(false, 0)), "decode workspaces").unwrap();
        assert!(bytes(1) > 0 && bytes(16) > 15 * bytes(1), "1 + 2 + 4 + 8 + 16 times one sequence's: {} {}", bytes(16), bytes(1));
    }
}
