//! What a model takes of the processor's memory.

use super::isa::Isa;
use super::matmul::Inputs;
use super::weights::{PAD, PANEL};
use crate::backend::WeightFormat;
use crate::ledger::{Ledger, MatrixShape, ModelShape};

/// The rest of the process: vocabulary, connections, forms of answers, stacks, and what the allocator keeps.
const RESERVE: u64 = 256 << 20;
/// Tiles and notes of attention, which a thread keeps from call to call.
const PER_THREAD: u64 = 4 << 20;
/// Keys of a decode item.
const SPAN: u64 = 256;

/// What decides the buffers beside the model's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub threads: usize,
    pub isa: Isa,
    pub inputs: Inputs,
}

/// Counts a model: weights as products read them, packed; a matrix that is only looked up stays in its file, whose pages are the system's and
/// give way.
pub(super) fn ledger(shape: &ModelShape, work: Work) -> Ledger {
    let g = &shape.geometry;
    let rows = shape.tensors.iter().map(|t| t.0).max().unwrap_or(0) as u64;
    let (seqs, heads, head_dim) = (shape.seqs as u64, g.heads as u64, g.head_dim as u64);
    let weights: u64 = shape.matrices.iter().map(packed).sum();
    let activations: u64 = shape.tensors.iter().map(|&(rows, cols, _)| (rows * cols * 4) as u64).sum();
    // Cosines and sines, which grow by doubling.
    let angles = shape.ropes as u64 * rows * head_dim * 4 * 2;
    let logits = seqs * shape.vocab as u64 * 4;
    // A product's inputs as its kernel takes them: pairs of bfloat16, three terms of them where tiles multiply float32, or float32.
    let terms: u64 = if work.isa >= Isa::Amx && work.inputs == Inputs::Float32 { 3 } else { 1 };
    let widest = shape.matrices.iter().map(|m| m.cols.next_multiple_of(PAD) as u64).max().unwrap_or(0);
    let inputs = rows * widest * (2 * terms).max(4);
    // Of a decode step: a score for each key and head, a maximum for each run of them, and for each span a head's sum.
    let keys = seqs * (shape.context as u64).next_multiple_of(SPAN);
    let scores = keys * heads * 4 + keys / 16 * heads * 4 + keys / SPAN * heads * (head_dim + 2) * 4;
    let mut ledger = Ledger::default();
    ledger.count("weights", weights + shape.vector_elements * 4);
    ledger.count("KV pages", shape.kv_bytes());
    ledger.count("activations", activations + angles + logits);
    ledger.count("workspaces", inputs + scores + work.threads as u64 * PER_THREAD);
    ledger.count("reserve", RESERVE);
    ledger
}

/// Bytes of a matrix in the order in which the kernels read it.
fn packed(matrix: &MatrixShape) -> u64 {
    let rows = matrix.rows.next_multiple_of(PANEL) as u64;
    match (matrix.lookup, matrix.format) {
        (true, _) => 0,
        (false, WeightFormat::Fp32) => rows * matrix.cols as u64 * 4,
        (false, _) => rows * matrix.cols.next_multiple_of(PAD) as u64 * 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::AttnGeometry;
    use crate::pages::{KvFormat, PageLayout};

    fn shape(matrices: &[MatrixShape], pages: usize) -> ModelShape {
        let geometry = AttnGeometry { heads: 4, kv_heads: 2, head_dim: 64, scale: 0.125, window: None };
        ModelShape {
            geometry,
            layers: 3,
            matrices: matrices.to_vec(),
            vector_elements: 1000,
            vocab: 1000,
            tensors: vec![(130, 256, true), (130, 512, false), (2, 256, true)],
            seqs: 2,
            layout: PageLayout { kv_heads: 2, head_dim: 64, format: KvFormat::Fp16 },
            pages,
            context: 4096,
            ropes: 1,
        }
    }

    fn counted(shape: &ModelShape, what: &str) -> u64 {
        let ledger = ledger(shape, Work { threads: 2, isa: Isa::Portable, inputs: Inputs::Float32 });
        ledger.entries.iter().find(|e| e.0 == what).unwrap().1
    }

    fn matrix(rows: usize, cols: usize, format: WeightFormat, lookup: bool) -> MatrixShape {
        MatrixShape { rows, cols, format, lookup }
    }

    #[test]
    fn weights_count_as_they_are_packed_and_a_looked_up_table_stays_in_its_file() {
        let bytes = |m| counted(&shape(&[m], 0), "weights") - 4000;
        assert_eq!(bytes(matrix(64, 96, WeightFormat::Bf16, false)), 64 * 96 * 2);
        assert_eq!(bytes(matrix(33, 66, WeightFormat::Fp16, false)), 64 * 96 * 2, "panels of 32 features, inputs padded to 32");
        assert_eq!(bytes(matrix(33, 66, WeightFormat::Fp32, false)), 64 * 66 * 4);
        assert_eq!(bytes(matrix(1000, 66, WeightFormat::Bf16, true)), 0);
    }

    #[test]
    fn a_cache_counts_every_page_of_every_layer() {
        assert_eq!(counted(&shape(&[], 5), "KV pages"), 3 * 5 * 2 * 128 * 64 * 2 * 2);
        assert_eq!(counted(&shape(&[], 0), "KV pages"), 0);
    }

    #[test]
    fn activations_are_float32_whatever_they_are_elsewhere() {
        let tensors = (130 * 256 + 130 * 512 + 2 * 256) * 4;
        assert_eq!(counted(&shape(&[], 0), "activations"), tensors + 130 * 64 * 4 * 2 + 2 * 1000 * 4);
    }

    #[test]
    fn the_widest_product_decides_the_room_for_inputs() {
        let bytes = |cols| {
            counted(&shape(&[matrix(32, 64, WeightFormat::Bf16, false), matrix(32, cols, WeightFormat::Bf16, false)], 0), "workspaces")
        };
        assert_eq!(bytes(640) - bytes(64), 130 * (640 - 64) * 4);
    }
}
