//! A GGUF file: typed metadata, and rows of tensors dequantised to float32 a few at a time.
//!
//! The format is read by candle; this adds limits, names in errors, and reading by rows so that memory stays small.

use crate::ImportError;
use candle_core::Device;
use candle_core::quantized::gguf_file::{Content, TensorInfo, Value};
use std::fs::File;
use std::io::{Cursor, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Longest header (metadata with vocabulary and merges, tensor list) that is parsed; a vocabulary of 262,144 takes about 14 MiB.
const MAX_HEADER: u64 = 32 << 20;

/// An opened GGUF file.
pub(crate) struct Gguf {
    path: PathBuf,
    file: File,
    content: Content,
}

impl Gguf {
    /// Parses the header.
    pub fn open(path: &Path) -> Result<Self, ImportError> {
        let malformed = |detail: String| ImportError::Malformed { path: path.to_owned(), detail };
        let mut file = File::open(path).map_err(ImportError::io(path))?;
        // Parsed from a bounded copy: counts in the header are checked against what remains of it, so a crafted file cannot ask for more.
        let mut header = Vec::new();
        Read::by_ref(&mut file).take(MAX_HEADER).read_to_end(&mut header).map_err(ImportError::io(path))?;
        precheck(&header).map_err(&malformed)?;
        let content = Content::read(&mut Cursor::new(&header)).map_err(|e| malformed(plain(&e)))?;
        Ok(Self { path: path.to_owned(), file, content })
    }

    fn value(&self, key: &str) -> Result<&Value, ImportError> {
        self.optional(key).ok_or_else(|| ImportError::MissingKey { key: key.to_owned() })
    }

    fn optional(&self, key: &str) -> Option<&Value> {
        self.content.metadata.get(key)
    }

    /// Whether a key exists.
    pub fn has(&self, key: &str) -> bool {
        self.optional(key).is_some()
    }

    /// A string.
    pub fn text(&self, key: &str) -> Result<&str, ImportError> {
        match self.value(key)? {
            Value::String(s) => Ok(s),
            _ => Err(ImportError::key(key, "not a string")),
        }
    }

    /// A string, None where absent.
    pub fn text_opt(&self, key: &str) -> Result<Option<&str>, ImportError> {
        if self.has(key) { self.text(key).map(Some) } else { Ok(None) }
    }

    /// A whole number from 1 to `max`.
    pub fn count(&self, key: &str, max: usize) -> Result<usize, ImportError> {
        match whole(self.value(key)?) {
            Some(n) if n >= 1 && n <= max as u64 => Ok(n as usize),
            Some(n) => Err(ImportError::key(key, format!("{n} is not between 1 and {max}"))),
            None => Err(ImportError::key(key, "not a whole number")),
        }
    }

    /// A token id below `vocab`, None where absent.
    pub fn token_opt(&self, key: &str, vocab: usize) -> Result<Option<u32>, ImportError> {
        let Some(value) = self.optional(key) else { return Ok(None) };
        match whole(value) {
            Some(n) if n < vocab as u64 => Ok(Some(n as u32)),
            Some(n) => Err(ImportError::key(key, format!("{n} is outside the vocabulary of {vocab}"))),
            None => Err(ImportError::key(key, "not a token id")),
        }
    }

    /// A finite number above 0, as the shortest decimal of its float32.
    pub fn positive(&self, key: &str) -> Result<f64, ImportError> {
        let value = match self.value(key)? {
            Value::F32(x) => x.to_string().parse().unwrap_or(f64::NAN),
            Value::F64(x) => *x,
            _ => return Err(ImportError::key(key, "not a floating point number")),
        };
        if value > 0.0 && f64::is_finite(value) { Ok(value) } else { Err(ImportError::key(key, format!("{value} is not above 0"))) }
    }

    /// A switch with a default.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool, ImportError> {
        match self.optional(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(_) => Err(ImportError::key(key, "not a boolean")),
        }
    }

    /// A list of strings.
    pub fn texts(&self, key: &str) -> Result<Vec<&str>, ImportError> {
        let Value::Array(list) = self.value(key)? else { return Err(ImportError::key(key, "not a list")) };
        list.iter()
            .map(|v| match v {
                Value::String(s) => Ok(s.as_str()),
                _ => Err(ImportError::key(key, "not a list of strings")),
            })
            .collect()
    }

    /// A list of small whole numbers.
    pub fn wholes(&self, key: &str) -> Result<Vec<u64>, ImportError> {
        let Value::Array(list) = self.value(key)? else { return Err(ImportError::key(key, "not a list")) };
        list.iter().map(|v| whole(v).ok_or_else(|| ImportError::key(key, "not a list of whole numbers"))).collect()
    }

    /// Names of all tensors, in no order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.content.tensor_infos.keys().map(String::as_str)
    }

    /// The shape, outermost first; None where there is no such tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.content.tensor_infos.get(name).map(|info| info.shape.dims())
    }

    /// Dequantises rows of a tensor of 1 or 2 dimensions (a vector is one row).
    pub fn rows(&mut self, name: &str, rows: Range<usize>) -> Result<Vec<f32>, ImportError> {
        let bad = |detail: String| ImportError::tensor(name, detail);
        let info = self.content.tensor_infos.get(name).ok_or_else(|| bad("missing".into()))?;
        let (all, cols) = match *info.shape.dims() {
            [n] => (1, n),
            [r, c] => (r, c),
            _ => return Err(bad("more than two dimensions".into())),
        };
        let block = info.ggml_dtype.block_size();
        if rows.end > all || !cols.is_multiple_of(block) {
            return Err(bad(format!("rows of {cols} values do not divide into blocks of {block}")));
        }
        let row_bytes = (cols / block * info.ggml_dtype.type_size()) as u64;
        let part = TensorInfo {
            ggml_dtype: info.ggml_dtype,
            shape: (rows.len(), cols).into(),
            offset: info.offset.checked_add(rows.start as u64 * row_bytes).ok_or_else(|| bad("offset out of range".into()))?,
        };
        let read = || -> candle_core::Result<Vec<f32>> {
            let mut file = &self.file;
            part.read(&mut file, self.content.tensor_data_offset, &Device::Cpu)?.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1()
        };
        read().map_err(|e| ImportError::Malformed { path: self.path.clone(), detail: format!("tensor `{name}`: {}", plain(&e)) })
    }
}

/// What candle would not survive, or not refuse.
fn precheck(header: &[u8]) -> Result<(), String> {
    if !header.starts_with(b"GGUF") {
        return Err("not a GGUF file".into());
    }
    match header.get(4..8) {
        Some([2 | 3, 0, 0, 0]) => {}
        Some(version) => return Err(format!("GGUF version {version:?} is not supported (supported: 2, 3)")),
        None => return Err("cut short".into()),
    }
    // candle divides by the alignment, and of a key that stands twice takes the last. The key as stored: its length, its name, its type, its value;
    // all places that look like it are checked, for one of them may lie inside a string.
    let key = b"\x11\0\0\0\0\0\0\0general.alignment";
    for (at, _) in header.windows(key.len()).enumerate().filter(|(_, w)| w == key) {
        let value = header.get(at + key.len()..at + key.len() + 8);
        let power = value.map(|v| u32::from_le_bytes([v[4], v[5], v[6], v[7]]).is_power_of_two());
        if value.is_none_or(|v| v[..4] != [4, 0, 0, 0]) || power != Some(true) {
            return Err("general.alignment is not a power of two".into());
        }
    }
    Ok(())
}

fn whole(value: &Value) -> Option<u64> {
    match *value {
        Value::U8(n) => Some(n.into()),
        Value::U16(n) => Some(n.into()),
        Value::U32(n) => Some(n.into()),
        Value::U64(n) => Some(n),
        Value::I8(n) => n.try_into().ok(),
        Value::I16(n) => n.try_into().ok(),
        Value::I32(n) => n.try_into().ok(),
        Value::I64(n) => n.try_into().ok(),
        _ => None,
    }
}

/// candle's message without its backtrace.
fn plain(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or("unreadable").to_owned()
}
