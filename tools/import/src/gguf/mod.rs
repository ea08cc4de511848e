//! A GGUF file: typed metadata, and rows of tensors dequantised to float32 a few at a time, so that memory stays small.

mod header;

use crate::ImportError;
use crate::quant::{Format, SUPPORTED};
use header::{Header, List, Place, Value, shown};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Longest header (metadata with vocabulary and merges, tensor list) that is parsed; a vocabulary of 262,144 takes about 14 MiB.
const MAX_HEADER: u64 = 32 << 20;

/// An opened GGUF file.
pub(crate) struct Gguf {
    path: PathBuf,
    file: File,
    keys: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Tensor>,
}

/// A tensor that lies in the file as a whole.
struct Tensor {
    shape: Vec<usize>,
    format: Format,
    /// From the beginning of the file.
    at: u64,
}

impl Gguf {
    /// Parses the header, and checks that every tensor is there and can be read.
    pub fn open(path: &Path) -> Result<Self, ImportError> {
        let malformed = |detail: String| ImportError::Malformed { path: path.to_owned(), detail };
        let mut file = File::open(path).map_err(ImportError::io(path))?;
        let length = file.metadata().map_err(ImportError::io(path))?.len();
        // Parsed from a bounded copy: a crafted file cannot ask for more.
        let mut bytes = Vec::new();
        Read::by_ref(&mut file).take(MAX_HEADER).read_to_end(&mut bytes).map_err(ImportError::io(path))?;
        let Header { keys, tensors, data } = Header::parse(&bytes).map_err(malformed)?;
        let tensor = |(name, place): (String, Place)| {
            let tensor = Tensor::place(&name, place, data, length);
            tensor.map(|tensor| (name, tensor)).map_err(|refusal| match refusal {
                Refusal::Cut(detail) => malformed(detail),
                Refusal::Other(error) => error,
            })
        };
        let tensors = tensors.into_iter().map(tensor).collect::<Result<_, _>>()?;
        Ok(Self { path: path.to_owned(), file, keys, tensors })
    }

    fn value(&self, key: &str) -> Result<&Value, ImportError> {
        self.optional(key).ok_or_else(|| ImportError::MissingKey { key: key.to_owned() })
    }

    fn optional(&self, key: &str) -> Option<&Value> {
        self.keys.get(key)
    }

    /// Whether a key exists.
    pub fn has(&self, key: &str) -> bool {
        self.optional(key).is_some()
    }

    /// A string.
    pub fn text(&self, key: &str) -> Result<&str, ImportError> {
        match self.value(key)? {
            Value::Text(s) => Ok(s),
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
        match self.value(key)? {
            Value::Float(x) if *x > 0.0 && x.is_finite() => Ok(*x),
            Value::Float(x) => Err(ImportError::key(key, format!("{x} is not above 0"))),
            _ => Err(ImportError::key(key, "not a floating point number")),
        }
    }

    /// Any floating point number.
    pub fn number(&self, key: &str) -> Result<f64, ImportError> {
        match self.value(key)? {
            Value::Float(x) => Ok(*x),
            _ => Err(ImportError::key(key, "not a floating point number")),
        }
    }

    /// [`Self::positive`], None where absent.
    pub fn positive_opt(&self, key: &str) -> Result<Option<f64>, ImportError> {
        if self.has(key) { self.positive(key).map(Some) } else { Ok(None) }
    }

    /// A switch with a default.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool, ImportError> {
        match self.optional(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(_) => Err(ImportError::key(key, "not a boolean")),
        }
    }

    fn list(&self, key: &str) -> Result<&List, ImportError> {
        match self.value(key)? {
            Value::List(list) => Ok(list),
            _ => Err(ImportError::key(key, "not a list")),
        }
    }

    /// A list of strings.
    pub fn texts(&self, key: &str) -> Result<Vec<&str>, ImportError> {
        self.list(key)?.texts().ok_or_else(|| ImportError::key(key, "not a list of strings"))
    }

    /// A list of small whole numbers.
    pub fn wholes(&self, key: &str) -> Result<Vec<u64>, ImportError> {
        let wholes = self.list(key)?.wholes().and_then(|list| list.into_iter().map(|n| n.try_into().ok()).collect());
        wholes.ok_or_else(|| ImportError::key(key, "not a list of whole numbers"))
    }

    /// A list of numbers.
    pub fn floats(&self, key: &str) -> Result<Vec<f32>, ImportError> {
        self.list(key)?.floats().ok_or_else(|| ImportError::key(key, "not a list of floating point numbers"))
    }

    /// A list of switches; None where the key is absent or no list.
    pub fn flags_opt(&self, key: &str) -> Result<Option<Vec<bool>>, ImportError> {
        match self.optional(key) {
            Some(Value::List(list)) => list.bools().map(Some).ok_or_else(|| ImportError::key(key, "not a list of booleans")),
            _ => Ok(None),
        }
    }

    /// Names of all tensors.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The shape, outermost first; None where there is no such tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|tensor| tensor.shape.as_slice())
    }

    /// Dequantises rows of a tensor of 1 or 2 dimensions (a vector is one row).
    pub fn rows(&mut self, name: &str, rows: Range<usize>) -> Result<Vec<f32>, ImportError> {
        let bad = |detail: &str| ImportError::tensor(name, detail);
        let tensor = self.tensors.get(name).ok_or_else(|| bad("missing"))?;
        let (all, cols) = match *tensor.shape {
            [n] => (1, n),
            [r, c] => (r, c),
            _ => return Err(bad("more than two dimensions")),
        };
        if rows.end > all {
            return Err(bad("fewer rows than its shape says"));
        }
        let row_bytes = cols / tensor.format.block() * tensor.format.bytes();
        // Inside the file, which `open` has checked.
        let mut bytes = vec![0; rows.len() * row_bytes];
        let read =
            self.file.seek(SeekFrom::Start(tensor.at + (rows.start * row_bytes) as u64)).and_then(|_| self.file.read_exact(&mut bytes));
        read.map_err(ImportError::io(&self.path))?;
        tensor.format.dequantise(&bytes).map_err(|detail| ImportError::tensor(name, detail))
    }
}

/// Why a tensor cannot be read.
enum Refusal {
    /// The file ends before it does.
    Cut(String),
    Other(ImportError),
}

impl Tensor {
    fn place(name: &str, place: Place, data: u64, length: u64) -> Result<Self, Refusal> {
        let format = Format::of(place.kind).map_err(|kind| {
            let name = format!("{kind} of tensor {}", shown(name));
            Refusal::Other(ImportError::Unsupported { what: "element format", name, supported: SUPPORTED })
        })?;
        let cols = *place.shape.last().unwrap_or(&0);
        if cols == 0 || !cols.is_multiple_of(format.block()) {
            let detail = format!("rows of {cols} values do not divide into blocks of {}", format.block());
            return Err(Refusal::Other(ImportError::tensor(&shown(name), detail)));
        }
        let values = place.shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        let bytes = values.and_then(|n| (n / format.block()).checked_mul(format.bytes())).map(|n| n as u64);
        let at = data.checked_add(place.offset);
        match at.zip(bytes).and_then(|(at, bytes)| at.checked_add(bytes)) {
            Some(end) if end <= length => Ok(Self { shape: place.shape, format, at: data + place.offset }),
            _ => Err(Refusal::Cut(format!("cut short: tensor `{}` ends behind byte {length}, where the file does", shown(name)))),
        }
    }
}

fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::Whole(n) => (*n).try_into().ok(),
        _ => None,
    }
}
