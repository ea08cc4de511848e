//! The safetensors files of a checkpoint, mapped, and where in them each tensor lies. Only headers are read here.

use super::CheckpointError;
use super::index::Index;
use safetensors::tensor::{Dtype, Metadata};
use skip_kernels::backend::{MatrixSource, WeightFormat};
use skip_kernels::files::WeightFile;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest safetensors header that is parsed: a real one has about 100 bytes a tensor.
const MAX_HEADER: u64 = 16 << 20;

/// Every tensor of a folder by name.
pub(super) struct Weights {
    files: Vec<Shard>,
    tensors: HashMap<String, Tensor>,
}

struct Shard {
    name: String,
    file: Arc<WeightFile>,
}

struct Tensor {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    range: Range<usize>,
}

impl Weights {
    /// Maps `model.safetensors`, or the shards that the index names.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let mut weights = Self { files: Vec::new(), tensors: HashMap::new() };
        let index = Index::read(dir)?;
        for name in index.shards(dir)? {
            weights.add(dir, name)?;
        }
        index.check(&weights)?;
        Ok(weights)
    }

    fn add(&mut self, dir: &Path, name: String) -> Result<(), CheckpointError> {
        let path = dir.join(&name);
        let shard = WeightFile::open(&path).map_err(|source| CheckpointError::Io { path: path.clone(), source })?;
        let (data, metadata) = read_header(&path, shard.bytes())?;
        let file = self.files.len();
        for (tensor, info) in metadata.tensors() {
            let range = data + info.data_offsets.0..data + info.data_offsets.1;
            let entry = Tensor { file, dtype: info.dtype, shape: info.shape.clone(), range };
            if let Some(previous) = self.tensors.insert(tensor.clone(), entry) {
                return Err(CheckpointError::TensorTwice { name: tensor, first: self.files[previous.file].name.clone(), second: name });
            }
        }
        self.files.push(Shard { name, file: Arc::new(shard) });
        Ok(())
    }

    /// Whether a tensor of that name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Names of all tensors, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The file that holds a tensor.
    pub fn file_of(&self, name: &str) -> Option<&str> {
        self.tensors.get(name).map(|tensor| self.files[tensor.file].name.as_str())
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|shard| shard.file.bytes().len() as u64).sum()
    }

    /// Lets go of what is in memory of the files.
    pub fn forget(&self) {
        self.files.iter().for_each(|shard| shard.file.forget());
    }

    /// A matrix `[rows][cols]`.
    pub fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<MatrixSource, CheckpointError> {
        let (tensor, format) = self.checked(name, &[rows, cols])?;
        Ok(MatrixSource { rows, cols, format, file: Arc::clone(&self.files[tensor.file].file), range: tensor.range.clone() })
    }

    /// A vector as float32.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, CheckpointError> {
        let (tensor, format) = self.checked(name, &[len])?;
        let bytes = &self.files[tensor.file].file.bytes()[tensor.range.clone()];
        let pairs = bytes.as_chunks::<2>().0;
        Ok(match format {
            WeightFormat::Fp16 => pairs.iter().map(|&b| half::f16::from_le_bytes(b).to_f32()).collect(),
            WeightFormat::Fp32 => bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            // `format_of` gives no other format.
            _ => pairs.iter().map(|&b| half::bf16::from_le_bytes(b).to_f32()).collect(),
        })
    }

    /// Finds a tensor; its shape, element type, length and alignment hold afterwards.
    fn checked(&self, name: &str, shape: &[usize]) -> Result<(&Tensor, WeightFormat), CheckpointError> {
        let tensor = self.tensors.get(name).ok_or_else(|| CheckpointError::TensorMissing { name: name.to_owned() })?;
        if tensor.shape != shape {
            return Err(CheckpointError::Shape { name: name.to_owned(), found: tensor.shape.clone(), expected: shape.to_vec() });
        }
        let (format, size) = format_of(tensor.dtype)
            .ok_or_else(|| CheckpointError::ElementType { name: name.to_owned(), found: format!("{:?}", tensor.dtype) })?;
        if !tensor.range.start.is_multiple_of(size) {
            return Err(CheckpointError::Misaligned { name: name.to_owned() });
        }
        Ok((tensor, format))
    }
}

fn format_of(dtype: Dtype) -> Option<(WeightFormat, usize)> {
    match dtype {
        Dtype::BF16 => Some((WeightFormat::Bf16, 2)),
        Dtype::F16 => Some((WeightFormat::Fp16, 2)),
        Dtype::F32 => Some((WeightFormat::Fp32, 4)),
        _ => None,
    }
}

/// Where the data begins, and the tensors' places relative to it; all lie inside the file.
fn read_header(path: &Path, map: &[u8]) -> Result<(usize, Metadata), CheckpointError> {
    let bad = |detail: String| CheckpointError::Safetensors { path: PathBuf::from(path), detail };
    let Some(&length) = map.first_chunk::<8>() else {
        return Err(bad("cut short before its header".into()));
    };
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER {
        return Err(bad(format!("a header of {length} bytes; the limit is {MAX_HEADER}")));
    }
    let (header, metadata) = safetensors::SafeTensors::read_metadata(map).map_err(|e| match e {
        safetensors::SafeTensorError::MetadataIncompleteBuffer | safetensors::SafeTensorError::InvalidHeaderLength => {
            bad("cut short: the file is not as long as its header says".into())
        }
        other => bad(other.to_string()),
    })?;
    Ok((8 + header, metadata))
}
