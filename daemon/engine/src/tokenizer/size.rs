//! How large the parts of a tokenizer.json are, counted without keeping them: the bytes of the file are all the memory it takes.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// More fields than this in the file or in its model are refused; the library knows a dozen of each.
const MAX_FIELDS: usize = 64;

/// The size of a JSON value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Size {
    /// Values and keys, itself and those inside it.
    pub values: usize,
    /// Elements or members directly in it.
    pub entries: usize,
    /// Bytes of all strings, keys too.
    pub text: usize,
    /// Bytes of the longest string.
    pub longest: usize,
    /// Lists and objects around the innermost value.
    pub depth: usize,
}

impl Size {
    /// A number, a word, or an empty list.
    const SCALAR: Self = Self { values: 1, entries: 0, text: 0, longest: 0, depth: 0 };

    fn of_text(text: &str) -> Self {
        Self { text: text.len(), longest: text.len(), ..Self::SCALAR }
    }

    /// Adds what lies inside.
    fn hold(&mut self, inner: Size) {
        self.values += inner.values;
        self.text += inner.text;
        self.longest = self.longest.max(inner.longest);
        self.depth = self.depth.max(inner.depth + 1);
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Counter)
    }
}

struct Counter;

impl<'de> Visitor<'de> for Counter {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Size, E> {
        Ok(Size::SCALAR)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Size, E> {
        Ok(Size::SCALAR)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Size, E> {
        Ok(Size::SCALAR)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Size, E> {
        Ok(Size::SCALAR)
    }

    fn visit_unit<E>(self) -> Result<Size, E> {
        Ok(Size::SCALAR)
    }

    fn visit_str<E>(self, text: &str) -> Result<Size, E> {
        Ok(Size::of_text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Size, A::Error> {
        let mut size = Size::SCALAR;
        while let Some(inner) = list.next_element::<Size>()? {
            size.entries += 1;
            size.hold(inner);
        }
        Ok(size)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Size, A::Error> {
        let mut size = Size::SCALAR;
        while let Some((key, inner)) = map.next_entry::<Size, Size>()? {
            size.entries += 1;
            size.hold(key);
            size.hold(inner);
        }
        Ok(size)
    }
}

/// The sizes of the file's fields, by name, and of its model's.
#[derive(Debug, Default)]
pub(super) struct Outline {
    pub fields: Vec<(String, Size)>,
    pub model: Vec<(String, Size)>,
}

impl<'de> Deserialize<'de> for Outline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(OutlineVisitor)
    }
}

struct OutlineVisitor;

impl<'de> Visitor<'de> for OutlineVisitor {
    type Value = Outline;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Outline, A::Error> {
        let mut outline = Outline::default();
        let mut has_model = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "model" {
                if std::mem::replace(&mut has_model, true) {
                    return Err(A::Error::custom("`model` is there twice"));
                }
                outline.model = map.next_value::<Members>()?.0;
            } else {
                add(&mut outline.fields, name, map.next_value()?).map_err(A::Error::custom)?;
            }
        }
        Ok(outline)
    }
}

/// The sizes of an object's members.
struct Members(Vec<(String, Size)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
        let mut members = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            add(&mut members, name, map.next_value()?).map_err(A::Error::custom)?;
        }
        Ok(Members(members))
    }
}

/// A field that stands twice would be read twice, or only the second time.
fn add(fields: &mut Vec<(String, Size)>, name: String, size: Size) -> Result<(), String> {
    if fields.iter().any(|(known, _)| *known == name) {
        return Err(format!("a field is there twice: {:?}", name.chars().take(40).collect::<String>()));
    }
    fields.push((name, size));
    if fields.len() > MAX_FIELDS { Err(format!("more than {MAX_FIELDS} fields")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_counted_through() {
        let size: Size = serde_json::from_str(r#"{"ab": [1, "cde", null], "f": {"g": [[true]]}}"#).unwrap();
        assert_eq!(size, Size { values: 12, entries: 2, text: 7, longest: 3, depth: 4 });
        assert_eq!(serde_json::from_str::<Size>("-1.5").unwrap(), Size::SCALAR);
    }

    #[test]
    fn an_outline_has_the_models_members_apart() {
        let outline: Outline = serde_json::from_str(r#"{"a": 1, "model": {"vocab": {"x": 0, "y": 1}}}"#).unwrap();
        assert_eq!((outline.fields[0].0.as_str(), outline.model[0].0.as_str()), ("a", "vocab"));
        assert_eq!(outline.model[0].1.entries, 2);
    }

    #[test]
    fn what_stands_twice_or_without_end_is_refused() {
        let fields: String = (0..100).map(|i| format!("\"f{i}\": 0,")).collect();
        for text in
            [r#"{"a": 1, "a": 2}"#, r#"{"model": {}, "model": {}}"#, r#"{"model": {"v": 1, "v": 2}}"#, &format!("{{{fields} \"z\": 0}}")]
        {
            assert!(serde_json::from_str::<Outline>(text).is_err(), "{text}");
        }
    }
}
