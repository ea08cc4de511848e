//! A call as JSON that comes in pieces: its name as soon as it is there, and where its values end.

use serde_json::{Map, Value};

/// Name and arguments of a call as JSON in any order; arguments may be text. None of them is an empty object, unless they are `needed`.
pub(super) fn read(text: &str, needed: bool) -> Option<(String, String)> {
    let call: Map<String, Value> = serde_json::from_str(text.trim()).ok()?;
    let name = call.get("name")?.as_str().filter(|name| !name.is_empty())?;
    let arguments = match call.get("arguments").or_else(|| call.get("parameters")) {
        Some(Value::String(text)) => text.clone(),
        Some(value @ Value::Object(_)) => value.to_string(),
        None if !needed => "{}".into(),
        None | Some(_) => return None,
    };
    Some((name.to_owned(), arguments))
}

/// What a call's beginning says.
#[derive(Debug, PartialEq)]
pub(super) enum Head {
    /// It may still become one of the usual form.
    More,
    /// The name, and where the arguments begin.
    Name(String, usize),
    /// It is written otherwise, but begins with a key that calls have.
    Other,
    /// It is no call.
    None,
}

/// Keys that a call may begin with.
const KEYS: [&str; 5] = ["name", "type", "function", "arguments", "parameters"];

/// `{"name": "…", KEY: {`, with any spaces.
pub(super) fn head(text: &str, key: &str) -> Head {
    let (mut rest, mut name) = (text, String::new());
    let quoted = format!("\"{key}\"");
    for part in ["{", "\"name\"", ":", "", ",", &quoted, ":"] {
        rest = rest.trim_start();
        if !part.is_empty() {
            match rest.strip_prefix(part) {
                Some(after) => rest = after,
                None if part.starts_with(rest) => return Head::More,
                None => return other(text),
            }
            continue;
        }
        if rest.is_empty() {
            return Head::More;
        }
        let Some(length) = string_length(rest) else { return if rest.starts_with('"') { Head::More } else { other(text) } };
        match serde_json::from_str(&rest[..length]) {
            Ok(read) => name = read,
            Err(_) => return other(text),
        }
        rest = &rest[length..];
    }
    rest = rest.trim_start();
    match rest.chars().next() {
        None => Head::More,
        Some('{') if !name.is_empty() => Head::Name(name, text.len() - rest.len()),
        Some(_) => other(text),
    }
}

/// What is not of the usual form, by its first key.
fn other(text: &str) -> Head {
    let Some(rest) = text.trim_start().strip_prefix('{') else { return Head::None };
    let rest = rest.trim_start();
    let known = |key: &&str| rest.strip_prefix('"').is_some_and(|rest| rest.strip_prefix(*key).is_some_and(|rest| rest.starts_with('"')));
    match string_length(rest) {
        _ if KEYS.iter().any(known) => Head::Other,
        None if rest.is_empty() || KEYS.iter().any(|key| format!("\"{key}\"").starts_with(rest)) => Head::More,
        _ => Head::None,
    }
}

/// Bytes of the JSON string that `text` begins with, its quotes included; None where it does not end, or there is none.
fn string_length(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if at > 0 && !escaped => return Some(at + 1),
            _ if at == 0 && byte != b'"' => return None,
            _ => escaped = byte == b'\\' && !escaped,
        }
    }
    None
}

/// Finds the end of a JSON object that comes in pieces.
#[derive(Default)]
pub(super) struct Scanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Scanner {
    /// Inside of an object.
    pub fn inside() -> Self {
        Self { depth: 1, ..Self::default() }
    }

    /// Where in this piece the object ends.
    pub fn end(&mut self, piece: &str) -> Option<usize> {
        for (at, byte) in piece.bytes().enumerate() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}
