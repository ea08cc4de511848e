//! Reading JSON from outside: bounded, refusing a key that stands twice, and telling of a bare NaN or Infinity where it stands instead of at a
//! byte offset.

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Longest file that is read, in bytes; a config.json with full ladders has some tens of kilobytes.
pub const MAX_BYTES: usize = 8 << 20;

/// Why bytes are no JSON document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// Far longer than any table file.
    #[error("{0} bytes: at most {MAX_BYTES} are read")]
    TooLong(usize),
    /// Not UTF-8.
    #[error("not UTF-8 from byte {0} on")]
    NotUtf8(usize),
    /// Not JSON.
    #[error("not JSON: {0}")]
    Syntax(String),
}

/// Checks length and encoding.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, JsonError> {
    if bytes.len() > MAX_BYTES {
        return Err(JsonError::TooLong(bytes.len()));
    }
    std::str::from_utf8(bytes).map_err(|e| JsonError::NotUtf8(e.valid_up_to()))
}

/// Parses a document. Python writes NaN, Infinity and -Infinity, which are no JSON: they are read as strings, so that the field which holds
/// one is named by whoever reads it, and other fields do not suffer. An object that gives a key twice says two things: neither is taken.
///
/// # Errors
/// [`JsonError`].
pub fn parse(bytes: &[u8]) -> Result<Value, JsonError> {
    let text = text(bytes)?;
    let document = serde_json::from_str(text).or_else(|error| {
        let quoted = quote_non_finite(text);
        serde_json::from_str(&quoted).map_err(|_| JsonError::Syntax(error.to_string()))
    });
    document.map(|Unique(value)| value)
}

/// A value in which no object has a key twice; `Value` alone would keep the last.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Unique)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Unique(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key `{key}` stands twice")));
            }
            let Unique(value) = entries.next_value()?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

/// Puts quotes around NaN, Infinity and -Infinity outside strings.
fn quote_non_finite(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let taken = if c == '"' {
            string_len(rest)
        } else if let Some(word) = ["NaN", "Infinity", "-Infinity"].into_iter().find(|w| rest.starts_with(w)) {
            out.push('"');
            out.push_str(word);
            out.push('"');
            rest = &rest[word.len()..];
            continue;
        } else {
            c.len_utf8()
        };
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    out
}

/// Bytes of the string literal at the start of `text`, its quotes included; to the end where it is not closed.
pub(crate) fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (i, b) in text.bytes().enumerate().skip(1) {
        match b {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return i + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn non_finite_numbers_become_strings_and_strings_stay() {
        let value = parse(br#"{"a": [NaN, -Infinity], "NaN \" NaN": "Infinity"}"#).unwrap();
        assert_eq!(value, serde_json::json!({"a": ["NaN", "-Infinity"], "NaN \" NaN": "Infinity"}));
    }

    #[test]
    fn what_is_no_json_keeps_its_own_error() {
        let JsonError::Syntax(message) = parse(b"{\"a\": nope}").unwrap_err() else { panic!() };
        assert!(message.contains("line 1 column 8"), "{message}");
        assert_eq!(parse(b"\"\xff\""), Err(JsonError::NotUtf8(1)));
        assert_eq!(parse(&vec![b' '; MAX_BYTES + 1]), Err(JsonError::TooLong(MAX_BYTES + 1)));
    }

    #[test]
    fn a_key_that_stands_twice_is_named() {
        for text in [r#"{"a": 1, "b": {"k": [], "k": NaN}}"#, r#"[{"k": 1, "\u006b": 1}]"#] {
            let JsonError::Syntax(message) = parse(text.as_bytes()).unwrap_err() else { panic!() };
            assert!(message.contains("`k` stands twice"), "{message}");
        }
        assert!(parse(br#"[{"k": 1}, {"k": {"k": -1.5e3}}]"#).is_ok());
    }

    proptest! {
        #[test]
        fn other_documents_are_read_as_ever(text in "[\\[\\]{}\",:0-9eE.\\\\aftrueslnul -]{0,40}") {
            if let (Ok(ours), Ok(plain)) = (parse(text.as_bytes()), serde_json::from_str::<Value>(&text)) {
                prop_assert_eq!(ours, plain);
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn no_near_json_panics(text in "[\\[\\]{}\",:0-9eE.\\\\NaInfty-]{0,60}") {
            let _ = parse(text.as_bytes());
        }
    }
}
