//! The header of a GGUF file: keys with typed values, and the list of tensors. Everything is bounded by the bytes that are there.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Dimensions a tensor may have.
const MAX_DIMENSIONS: usize = 4;
/// Numbers that are taken out of a list.
const MAX_NUMBERS: usize = 1 << 22;

/// A value as it is stored. Lists stay bytes until somebody asks for them: small numbers would take ten times their size.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// Any whole number.
    Whole(i128),
    /// A number of 4 or 8 bytes; the shortest decimal of a float32.
    Float(f64),
    /// A switch.
    Bool(bool),
    /// Text.
    Text(String),
    /// Elements of one type.
    List(List),
}

/// A list of values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct List {
    kind: u32,
    count: usize,
    bytes: Vec<u8>,
}

/// Where a tensor lies, and as what.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    /// Outermost first.
    pub shape: Vec<usize>,
    /// Number of its element format.
    pub kind: u32,
    /// From the beginning of the data.
    pub offset: u64,
}

/// A parsed header.
#[derive(Debug, PartialEq)]
pub(super) struct Header {
    pub keys: BTreeMap<String, Value>,
    pub tensors: BTreeMap<String, Place>,
    /// Where the data begins.
    pub data: u64,
}

const STRING: u32 = 8;
const ARRAY: u32 = 9;

impl Header {
    /// Parses the beginning of a file; `bytes` may be cut behind the header.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut cursor = Cursor { bytes, at: 0 };
        if bytes.get(..4) != Some(b"GGUF") {
            return Err("not a GGUF file".into());
        }
        cursor.at = 4;
        let version = cursor.u32()?;
        if !matches!(version, 2 | 3) {
            return Err(format!("GGUF version {version} is not supported (supported: 2, 3)"));
        }
        let (tensor_count, key_count) = (cursor.u64()?, cursor.u64()?);
        let mut keys = BTreeMap::new();
        for _ in 0..key_count {
            let key = cursor.text()?;
            let kind = cursor.u32()?;
            let value = cursor.value(kind).map_err(|detail| format!("key `{}`: {detail}", shown(&key)))?;
            match keys.entry(key) {
                Entry::Vacant(place) => {
                    place.insert(value);
                }
                Entry::Occupied(place) => return Err(format!("key `{}` stands twice", shown(place.key()))),
            }
        }
        let mut tensors = BTreeMap::new();
        for _ in 0..tensor_count {
            let name = cursor.text()?;
            let place = cursor.place().map_err(|detail| format!("tensor `{}`: {detail}", shown(&name)))?;
            match tensors.entry(name) {
                Entry::Vacant(free) => {
                    free.insert(place);
                }
                Entry::Occupied(taken) => return Err(format!("tensor `{}` stands twice", shown(taken.key()))),
            }
        }
        let alignment = match keys.get("general.alignment") {
            None => 32,
            Some(Value::Whole(n @ 1..=0x10_0000)) if n.count_ones() == 1 => *n as u64,
            Some(_) => return Err("general.alignment is not a power of two".into()),
        };
        Ok(Self { keys, tensors, data: (cursor.at as u64).next_multiple_of(alignment) })
    }
}

/// Names from outside may be as long as the file.
pub(super) fn shown(name: &str) -> String {
    name.chars().take(80).collect()
}

impl List {
    /// Whole numbers; None for a list of something else.
    pub fn wholes(&self) -> Option<Vec<i128>> {
        self.each(|cursor| match cursor.value(self.kind) {
            Ok(Value::Whole(n)) => Some(n),
            _ => None,
        })
    }

    /// Floating point numbers; None for a list of something else.
    pub fn floats(&self) -> Option<Vec<f32>> {
        self.each(|cursor| match cursor.value(self.kind) {
            Ok(Value::Float(x)) => Some(x as f32),
            _ => None,
        })
    }

    /// Switches; None for a list of something else.
    pub fn bools(&self) -> Option<Vec<bool>> {
        self.each(|cursor| match cursor.value(self.kind) {
            Ok(Value::Bool(b)) => Some(b),
            _ => None,
        })
    }

    /// Strings; None for a list of something else.
    pub fn texts(&self) -> Option<Vec<&str>> {
        let mut cursor = Cursor { bytes: &self.bytes, at: 0 };
        (self.kind == STRING).then(|| (0..self.count).map(|_| cursor.str().ok()).collect())?
    }

    fn each<T>(&self, read: impl Fn(&mut Cursor<'_>) -> Option<T>) -> Option<Vec<T>> {
        let mut cursor = Cursor { bytes: &self.bytes, at: 0 };
        if self.count > MAX_NUMBERS { None } else { (0..self.count).map(|_| read(&mut cursor)).collect() }
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or("cut short, or longer than the limit of a header")?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    fn str(&mut self) -> Result<&'a str, String> {
        let length = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
        std::str::from_utf8(self.take(length)?).map_err(|_| "a string that is no UTF-8".to_owned())
    }

    fn text(&mut self) -> Result<String, String> {
        self.str().map(str::to_owned)
    }

    fn value(&mut self, kind: u32) -> Result<Value, String> {
        Ok(match kind {
            0 => Value::Whole(self.array::<1>()?[0].into()),
            1 => Value::Whole(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Whole(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Whole(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Whole(self.u32()?.into()),
            5 => Value::Whole(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).to_string().parse().unwrap_or(f64::NAN)),
            7 => match self.array::<1>()?[0] {
                byte @ (0 | 1) => Value::Bool(byte == 1),
                byte => return Err(format!("a boolean of {byte}")),
            },
            STRING => Value::Text(self.text()?),
            ARRAY => Value::List(self.list()?),
            10 => Value::Whole(self.u64()?.into()),
            11 => Value::Whole(i64::from_le_bytes(self.array()?).into()),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(format!("a value of type {other}, which there is not")),
        })
    }

    fn list(&mut self) -> Result<List, String> {
        let kind = self.u32()?;
        let count = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
        let from = self.at;
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            STRING => {
                for _ in 0..count {
                    self.str()?;
                }
                0
            }
            other => return Err(format!("a list of values of type {other}, which is not supported")),
        };
        self.take(count.saturating_mul(size))?;
        Ok(List { kind, count, bytes: self.bytes[from..self.at].to_vec() })
    }

    fn place(&mut self) -> Result<Place, String> {
        let dimensions = self.u32()? as usize;
        if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
            return Err(format!("{dimensions} dimensions"));
        }
        let mut shape = Vec::with_capacity(dimensions);
        for _ in 0..dimensions {
            shape.push(usize::try_from(self.u64()?).map_err(|_| "a dimension out of range")?);
        }
        // Stored innermost first.
        shape.reverse();
        Ok(Place { shape, kind: self.u32()?, offset: self.u64()? })
    }
}
