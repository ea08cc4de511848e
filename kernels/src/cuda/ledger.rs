//! The memory ledger of a CUDA device: what a model takes there, and what there is.
//!
//! On an integrated GPU device memory is the system's, and only the kernel knows how much of that can be had: the driver counts page cache as
//! taken, and asking for more than there is can take the board down.

use super::attention;
use super::backend::CudaOptions;
use super::device::Probe;
use super::matmul;
use super::weights::STAGED;
use crate::backend::KernelError;
use crate::ledger::{Ledger, ModelShape, Source};
use crate::system::System;

/// Graphs, modules that libraries load when they first need them, and fragments.
const RESERVE: u64 = 384 << 20;
/// On an integrated GPU the rest of the system lives from the same memory.
const SHARED_RESERVE: u64 = 1 << 30;

/// More than sampler, tables and the step's first block ever take.
const MOST_FIXED: u64 = 64 << 20;
/// What the process takes besides, once its device is open: libraries that load when they are first needed, and the rest of the daemon.
const HOST_RESERVE: u64 = 128 << 20;

/// Bytes that a device can give; None where nobody says. `device_free` is what the driver counts, which is wrong where memory is shared: there
/// it is not asked.
pub(super) fn free(integrated: bool, system: &System, device_free: impl FnOnce() -> Option<u64>) -> Option<u64> {
    if integrated { system.available() } else { device_free() }
}

/// What the host takes beside an integrated device: that alone is charged to the control groups above the process, device memory is not.
/// The staging buffers are there already.
///
/// # Errors
/// A control group leaves less.
pub(super) fn admit_host(system: &System) -> Result<(), KernelError> {
    let Some(room) = system.tightest_group() else { return Ok(()) };
    let mut ledger = Ledger { free: room.bytes, source: Source::Group(room.group), ..Ledger::default() };
    ledger.count("reserve of the host", HOST_RESERVE);
    ledger.admit().map(drop)
}

/// What a model takes of a device that is still to be opened, nothing of it less than `ledger` is going to count; None where nobody says what
/// is free.
pub fn estimate(shape: &ModelShape, probe: &Probe, options: &CudaOptions) -> Option<Ledger> {
    let samples = options.max_samples.max(1).next_power_of_two();
    let chip =
        Chip { integrated: probe.integrated, free: probe.free?, sms: probe.sms, roomy: probe.is_roomy(), samples, fixed: MOST_FIXED };
    Some(ledger(shape, &chip))
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
    let source = if chip.integrated { Source::System } else { Source::Device };
    let mut ledger = Ledger { free: chip.free, source, ..Ledger::default() };
    ledger.count("weights", shape.matrix_elements() * 2 + shape.vector_elements * 4);
    ledger.count("KV pages", shape.kv_bytes());
    ledger.count("activations", (activations + queries + angles + logits) as u64);
    ledger.count("decode workspaces", workspaces as u64);
    ledger.count("products", matmul::WORKSPACE as u64);
    ledger.count("sampler, tables and step", chip.fixed);
    if chip.integrated {
        ledger.count("staging", 2 * STAGED as u64);
    }
    ledger.count("reserve", if chip.integrated { SHARED_RESERVE } else { RESERVE });
    ledger
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::AttnGeometry;
    use crate::backend::WeightFormat;
    use crate::ledger::MatrixShape;
    use crate::pages::{KvFormat, PageLayout};

    /// A system with so many KiB available, and this process in a control group with a limit of bytes.
    fn system(kib: u64, limit: u64) -> (tempfile::TempDir, System) {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/meminfo", format!("MemFree: 1 kB\nMemAvailable: {kib} kB\n"));
        write("proc/self/mountinfo", "25 1 0:21 / /groups rw - cgroup2 cgroup2 rw\n".into());
        write("proc/self/cgroup", "0::/skipd\n".into());
        write("groups/skipd/memory.max", limit.to_string());
        write("groups/skipd/memory.current", "0".into());
        let system = System::at(root.path());
        (root, system)
    }

    #[test]
    fn an_integrated_gpu_has_what_the_system_can_give_whatever_the_control_group() {
        let (_root, system) = system(40_000_000, 4 << 30);
        assert_eq!(free(false, &system, || Some(8 << 30)), Some(8 << 30));
        assert_eq!(free(true, &system, || panic!("the driver's figure is wrong where memory is shared")), Some(40_000_000 * 1024));
    }

    #[test]
    fn the_host_s_part_must_fit_the_control_group() {
        let (_root, roomy) = system(1, HOST_RESERVE);
        assert!(admit_host(&roomy).is_ok());
        let (_root, tight) = system(1, HOST_RESERVE - 1);
        let refused = admit_host(&tight).unwrap_err().to_string();
        assert!(refused.contains("reserve of the host 128") && refused.contains("control group /skipd"), "{refused}");
    }

    /// Qwen2.5-Coder-0.5B with 32k of cache.
    fn shape() -> ModelShape {
        let geometry = AttnGeometry { heads: 14, kv_heads: 2, head_dim: 64, scale: 0.125, window: None };
        ModelShape {
            geometry,
            layers: 24,
            matrices: vec![MatrixShape { rows: 494_000, cols: 1000, format: WeightFormat::Bf16, lookup: false }],
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
        assert_eq!((entry(&own, "staging"), entry(&shared, "staging")), (None, Some(2 * STAGED as u64)));
        assert_eq!(shared.total() - own.total(), 2 * STAGED as u64 + SHARED_RESERVE - RESERVE);
        assert_eq!(entry(&own, "weights"), entry(&shared, "weights"), "counted once, whoever reads them");
    }

    #[test]
    fn workspaces_of_every_size_of_step_are_counted() {
        let bytes = |seqs| entry(&ledger(&ModelShape { seqs, ..shape() }, &chip(false, 0)), "decode workspaces").unwrap();
        assert!(bytes(1) > 0 && bytes(16) > 15 * bytes(1), "1 + 2 + 4 + 8 + 16 times one sequence's: {} {}", bytes(16), bytes(1));
    }
}
