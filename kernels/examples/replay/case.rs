//! A case file: tensors with checked types and shapes, and the JSON that describes the call.

use anyhow::{Context, Result, bail, ensure};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde_json::Value;

pub struct CaseFile<'a> {
    tensors: SafeTensors<'a>,
    /// The `case` metadata as it stands in the file.
    pub json: Value,
    kind: String,
}

impl<'a> CaseFile<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let (_, metadata) = SafeTensors::read_metadata(bytes).context("not a safetensors file")?;
        let tensors = SafeTensors::deserialize(bytes).context("not a safetensors file")?;
        let text = metadata.metadata().as_ref().and_then(|m| m.get("case")).context("no \"case\" in the metadata")?;
        let json: Value = serde_json::from_str(text).context("metadata \"case\"")?;
        let kind = json.get("kind").and_then(Value::as_str).context("metadata \"case\" names no kind")?.to_owned();
        Ok(Self { tensors, json, kind })
    }

    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The description, as the fields a kind needs.
    pub fn describe<T: for<'de> Deserialize<'de>>(&self) -> Result<T> {
        T::deserialize(&self.json).context("metadata \"case\"")
    }

    /// Values and shape of a tensor that must be there.
    pub fn tensor<T: Element>(&self, name: &str) -> Result<(Vec<T>, Vec<usize>)> {
        self.expected(name)?.with_context(|| format!("no tensor {name:?}"))
    }

    /// Values and shape of a tensor that may be missing: an expected result.
    pub fn expected<T: Element>(&self, name: &str) -> Result<Option<(Vec<T>, Vec<usize>)>> {
        let Ok(view) = self.tensors.tensor(name) else { return Ok(None) };
        ensure!(view.dtype() == T::DTYPE, "tensor {name:?} is {:?}, not {:?}", view.dtype(), T::DTYPE);
        let size = size_of::<T>();
        Ok(Some((view.data().chunks_exact(size).map(T::read).collect(), view.shape().to_vec())))
    }

    /// A tensor of exactly this shape.
    pub fn shaped<T: Element>(&self, name: &str, shape: &[usize]) -> Result<Vec<T>> {
        let (values, found) = self.tensor(name)?;
        if found != shape {
            bail!("tensor {name:?} has shape {found:?}, not {shape:?}");
        }
        Ok(values)
    }

    /// A two-dimensional tensor and its row and column counts.
    pub fn matrix<T: Element>(&self, name: &str) -> Result<(Vec<T>, usize, usize)> {
        let (values, shape) = self.tensor(name)?;
        let &[rows, cols] = shape.as_slice() else { bail!("tensor {name:?} has shape {shape:?}, not two dimensions") };
        Ok((values, rows, cols))
    }
}

/// Element types of case files.
pub trait Element: Copy + PartialEq + std::fmt::Debug {
    const DTYPE: Dtype;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, out: &mut Vec<u8>);
}

macro_rules! element {
    ($($t:ty => $dtype:ident),*) => {$(
        impl Element for $t {
            const DTYPE: Dtype = Dtype::$dtype;
            fn read(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<Self>()];
                raw.copy_from_slice(bytes);
                Self::from_le_bytes(raw)
            }
            fn write(self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
        }
    )*};
}
element!(f32 => F32, f64 => F64, u8 => U8, i64 => I64);
