//! Writes model.safetensors in bfloat16, a few rows at a time, hashing as it goes.

use crate::gguf::Gguf;
use crate::tensors::Plan;
use crate::{ImportError, Progress, Stage};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use sha2::{Digest as _, Sha256};
use skip_tables::Digest;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Values dequantised at once: 4 MiB of float32.
const CHUNK: usize = 1 << 20;

/// Writes all tensors; gives the file's SHA-256 and length.
pub(crate) fn write(
    gguf: &mut Gguf,
    plans: &[Plan],
    head_dim: usize,
    path: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Digest, u64), ImportError> {
    let (header, data) = header(plans, path)?;
    let total = header.len() as u64 + data;
    let file = File::create_new(path).map_err(ImportError::io(path))?;
    let mut out = Hashed { out: BufWriter::with_capacity(1 << 20, file), hash: Sha256::new(), written: 0 };
    out.write(&header).map_err(ImportError::io(path))?;
    for plan in plans {
        let (rows, cols) = plan.matrix();
        let step = if plan.interleaved { head_dim } else { (CHUNK / cols.max(1)).max(1) };
        let mut first = 0;
        while first < rows {
            let last = (first + step).min(rows);
            let mut values = gguf.rows(&plan.source, first..last)?;
            if plan.offset != 0.0 {
                values.iter_mut().for_each(|value| *value -= plan.offset);
            }
            let values = if plan.interleaved { halves(&values, cols) } else { values };
            out.write(&to_bf16(&values)).map_err(ImportError::io(path))?;
            first = last;
        }
        progress(Progress { stage: Stage::Weights, done: out.written, total });
    }
    out.finish().map_err(ImportError::io(path)).map(|hash| (hash, total))
}

/// The length-prefixed JSON header, padded to a multiple of 8, and the bytes that follow it.
fn header(plans: &[Plan], path: &Path) -> Result<(Vec<u8>, u64), ImportError> {
    let mut end = 0;
    let infos = plans
        .iter()
        .map(|plan| {
            let start = end;
            end += plan.shape.iter().product::<usize>() * size_of::<bf16>();
            let info = TensorInfo { dtype: Dtype::BF16, shape: plan.shape.clone(), data_offsets: (start, end) };
            (plan.target.clone(), info)
        })
        .collect();
    let bad = |detail: String| ImportError::Malformed { path: path.to_owned(), detail };
    let format = [("format".to_owned(), "pt".to_owned())].into();
    let metadata = Metadata::new(Some(format), infos).map_err(|e| bad(e.to_string()))?;
    let mut json = serde_json::to_vec(&metadata).map_err(|e| bad(e.to_string()))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.extend(json);
    Ok((header, end as u64))
}

/// One head's rows (2i, 2i + 1) to (i, i + rows / 2).
fn halves(values: &[f32], cols: usize) -> Vec<f32> {
    let row = |r: usize| &values[r * cols..(r + 1) * cols];
    let rows = values.len() / cols;
    (0..rows).step_by(2).chain((1..rows).step_by(2)).flat_map(row).copied().collect()
}

fn to_bf16(values: &[f32]) -> Vec<u8> {
    let mut rounded = vec![bf16::ZERO; values.len()];
    rounded.convert_from_f32_slice(values);
    rounded.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A file with the hash of what went in.
struct Hashed {
    out: BufWriter<File>,
    hash: Sha256,
    written: u64,
}

impl Hashed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn finish(self) -> std::io::Result<Digest> {
        let file = self.out.into_inner().map_err(|e| e.into_error())?;
        file.sync_all()?;
        crate::hex(&self.hash.finalize()).parse().map_err(std::io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_rows_of_a_head_become_halves() {
        let rows = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5];
        assert_eq!(halves(&rows, 2), [0.0, 0.5, 2.0, 2.5, 1.0, 1.5, 3.0, 3.5]);
    }

    #[test]
    fn rounding_to_bfloat16_is_to_nearest_even() {
        let value = f32::from_bits(0x3f80_8000);
        assert_eq!(to_bf16(&[value]), [0x80, 0x3f]);
        let above = f32::from_bits(0x3f81_8000);
        assert_eq!(to_bf16(&[above]), [0x82, 0x3f]);
    }
}
