//! What a tokenizer.json may hold, checked before the `tokenizers` crate builds anything of it: that takes some twenty times the bytes of a
//! vocabulary, and as much as a hostile file likes of patterns, replacements and added tokens.

use super::size::{Outline, Size};
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;

/// Bytes of one token, of the vocabulary or added; the longest published ones are runs of some hundred spaces.
const MAX_TOKEN: usize = 4 << 10;
/// Largest vocabulary; published ones have up to 262,144 tokens.
const MAX_VOCAB: usize = 1 << 20;
/// Merges for each row of the embedding; Llama 3 has 2.2, Gemma 2.
const MERGES_PER_ROW: usize = 8;
/// Bytes of all added tokens: an automaton is built over them, tens of bytes for each.
const MAX_ADDED_TEXT: usize = 1 << 20;
/// Everything beside vocabulary, merges and added tokens: values, depth, and bytes (SentencePiece's map of characters has 300 kB).
const MAX_PART: Size = Size { values: 1000, entries: 1000, text: 1 << 20, longest: 1 << 20, depth: 16 };
/// Bytes of all patterns; published ones have up to 800.
const MAX_PATTERNS: usize = 4 << 10;
/// Copies of what stands before them that counted repetitions (`{1,3}`) of a pattern make, and those of all patterns added up.
const MAX_COPIES: u64 = 256;
/// How many times longer normalisation may make a text: `▁` for a space makes three bytes of one.
const MAX_GROWTH: f64 = 64.0;

/// A field and what is wrong with it.
pub(super) struct Excess {
    pub field: String,
    pub detail: String,
}

/// Why a tokenizer is not opened.
pub(super) enum Refusal {
    /// No JSON, or not of a tokenizer's form.
    Malformed(String),
    /// A model whose tokens are not known how to spell.
    Model(String),
    /// Larger than it may be.
    Excess(Excess),
}

/// Checks a tokenizer.json against limits and against an embedding of `vocab` rows.
pub(super) fn check(json: &[u8], vocab: usize) -> Result<(), Refusal> {
    let malformed = |e: serde_json::Error| Refusal::Malformed(e.to_string());
    let outline: Outline = serde_json::from_slice(json).map_err(malformed)?;
    check_sizes(&outline, vocab).map_err(Refusal::Excess)?;
    // Small now, but for vocabulary and merges, which are passed over.
    let parts: Parts = serde_json::from_slice(json).map_err(malformed)?;
    if let Some(kind) = parts.model.kind.as_ref().filter(|kind| *kind != "BPE") {
        return Err(Refusal::Model(kind.clone()));
    }
    check_merges(&parts.model, &outline).map_err(Refusal::Excess)?;
    check_parts(&parts.normalizer, &parts.pre_tokenizer, &parts.post_processor, &parts.decoder).map_err(Refusal::Excess)
}

/// What patterns and replacements may stand in.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Named so that a second one is an error.
    #[serde(default, rename = "vocab")]
    _vocab: IgnoredAny,
    #[serde(default)]
    merges: LongestMerge,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
}

/// Bytes of the longest token that a merge makes.
#[derive(Default)]
struct LongestMerge(usize);

impl<'de> Deserialize<'de> for LongestMerge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = LongestMerge;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of merges")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<LongestMerge, A::Error> {
                let mut longest = 0;
                while let Some(Merge(bytes)) = list.next_element()? {
                    longest = longest.max(bytes);
                }
                Ok(LongestMerge(longest))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

/// Bytes of what one merge makes; written `"a b"` or `["a", "b"]`.
struct Merge(usize);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Merge;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens")
            }
            fn visit_str<E: Error>(self, both: &str) -> Result<Merge, E> {
                Ok(Merge(both.len().saturating_sub(1)))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut both: A) -> Result<Merge, A::Error> {
                let mut bytes = 0;
                while let Some(token) = both.next_element::<Cow<'_, str>>()? {
                    bytes += token.len();
                }
                Ok(Merge(bytes))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// What would be a merge of no token: the library joins the two in a buffer as long as the longest token.
fn check_merges(model: &Model, outline: &Outline) -> Result<(), Excess> {
    let longest = outline.model.iter().find(|(name, _)| name.as_str() == "vocab").map_or(0, |(_, size)| size.longest);
    at_most("model.merges", "bytes in what a merge makes", model.merges.0, longest, "the longest token of the vocabulary")?;
    match model.continuing_subword_prefix.as_deref() {
        None | Some("") => Ok(()),
        Some(_) => Err(Excess { field: "model.continuing_subword_prefix".into(), detail: "not supported".into() }),
    }
}

fn check_sizes(outline: &Outline, vocab: usize) -> Result<(), Excess> {
    let rows = format!("the embedding's {vocab} rows");
    for (name, size) in &outline.model {
        let field = format!("model.{name}");
        match name.as_str() {
            "vocab" => {
                at_most(&field, "tokens", size.entries, vocab.min(MAX_VOCAB), &rows)?;
                at_most(&field, "bytes of one token", size.longest, MAX_TOKEN, "")?;
                at_most(&field, "values", size.values, 2 * size.entries + 1, "a number each")?;
            }
            "merges" => {
                at_most(&field, "merges", size.entries, vocab.min(MAX_VOCAB).saturating_mul(MERGES_PER_ROW), &rows)?;
                at_most(&field, "bytes of one token", size.longest, 2 * MAX_TOKEN, "")?;
                at_most(&field, "values", size.values, 3 * size.entries + 1, "two tokens each")?;
            }
            _ => check_part(&field, size)?,
        }
    }
    for (name, size) in &outline.fields {
        if name == "added_tokens" {
            at_most(name, "tokens", size.entries, vocab.min(MAX_VOCAB), &rows)?;
            at_most(name, "bytes of one token", size.longest, MAX_TOKEN, "")?;
            // Seven fields and their names.
            at_most(name, "values", size.values, 32 * size.entries + 1, "seven fields each")?;
            let names = 96 * size.entries;
            at_most(name, "bytes of all", size.text, names + MAX_ADDED_TEXT, "")?;
        } else {
            check_part(name, size)?;
        }
    }
    Ok(())
}

fn check_part(field: &str, size: &Size) -> Result<(), Excess> {
    at_most(field, "values", size.values, MAX_PART.values, "")?;
    at_most(field, "bytes", size.text, MAX_PART.text, "")?;
    at_most(field, "levels", size.depth, MAX_PART.depth, "")
}

fn at_most(field: &str, what: &str, found: usize, limit: usize, because: &str) -> Result<(), Excess> {
    if found <= limit {
        return Ok(());
    }
    let because = if because.is_empty() { String::new() } else { format!(" ({because})") };
    Err(Excess { field: field.chars().take(60).collect(), detail: format!("{found} {what}, more than the limit of {limit}{because}") })
}

/// Patterns, replacements and prefixes, wherever they stand in the parts.
fn check_parts(normalizer: &Value, pre_tokenizer: &Value, post_processor: &Value, decoder: &Value) -> Result<(), Excess> {
    let mut totals = Totals { patterns: 0, copies: 0, growth: 1.0 };
    for (field, part) in
        [("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer), ("post_processor", post_processor), ("decoder", decoder)]
    {
        totals.add(field, part)?;
    }
    Ok(())
}

struct Totals {
    patterns: usize,
    copies: u64,
    growth: f64,
}

impl Totals {
    /// No deeper than [`MAX_PART`] allows.
    fn add(&mut self, field: &str, value: &Value) -> Result<(), Excess> {
        let excess = |detail: String| Err(Excess { field: field.to_owned(), detail });
        match value {
            Value::Array(list) => list.iter().try_for_each(|inner| self.add(field, inner)),
            Value::Object(object) => {
                if let Some(Value::String(pattern)) = object.get("Regex") {
                    self.patterns += pattern.len();
                    let copies = copies(pattern);
                    self.copies = self.copies.saturating_add(copies);
                    if self.patterns > MAX_PATTERNS {
                        return excess(format!("more than {MAX_PATTERNS} bytes of patterns"));
                    }
                    if self.copies > MAX_COPIES {
                        return excess(format!("counted repetitions in patterns make more than {MAX_COPIES} copies"));
                    }
                }
                for longer in ["content", "prepend"] {
                    if let Some(Value::String(text)) = object.get(longer) {
                        let replaced = object.get("pattern").and_then(|p| p["String"].as_str()).map_or(1, str::len).max(1);
                        self.growth *= (text.len() as f64 / replaced as f64).max(1.0);
                        if self.growth > MAX_GROWTH {
                            return excess(format!("replacements make a text more than {MAX_GROWTH} times longer"));
                        }
                    }
                }
                object.values().try_for_each(|inner| self.add(field, inner))
            }
            _ => Ok(()),
        }
    }
}

/// How many copies a compiler of patterns makes of what is repeated: the product of all counts, as if they were nested.
fn copies(pattern: &str) -> u64 {
    let bytes = pattern.as_bytes();
    let mut product = 1u64;
    for (at, _) in pattern.match_indices('{') {
        // `\p{L}`, `\x{4e00}`: a name or a number of a character, not a count.
        if at >= 2 && bytes[at - 2] == b'\\' && bytes[at - 1].is_ascii_alphabetic() {
            continue;
        }
        let inside: &str = pattern[at + 1..].split('}').next().unwrap_or_default();
        let count = inside.split(',').filter_map(|n| n.trim().parse::<u64>().ok()).max();
        product = product.saturating_mul(count.unwrap_or(1).max(1));
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_repetitions_are_multiplied_and_names_in_braces_are_not() {
        for (pattern, expected) in [
            (r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*", 3),
            (r"(a{10}){20}", 200),
            (r"a{,7}b{2,}", 14),
            (r"\x{4096}", 1),
            ("{", 1),
            ("a{99999999999999999999}", 1),
            ("(a{1000}){1000}{1000}", 1_000_000_000),
        ] {
            assert_eq!(copies(pattern), expected, "{pattern}");
        }
    }
}
