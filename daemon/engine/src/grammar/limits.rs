//! What a form may take: room before it is compiled, work while it is, and work at every token.

use super::GrammarError;
use llguidance::api::ParserLimits;
use serde_json::Value;
use std::collections::HashMap;
use std::time::Duration;

/// Longest regular expression, choice or schema as text, bytes.
const MAX_BYTES: usize = 128 << 10;
/// Longest regular expression, bytes.
const MAX_REGEX: usize = 8 << 10;
/// Deepest nesting of a schema.
const MAX_DEPTH: usize = 48;
/// Deepest chain of references and combinations in it, which are compiled one inside the other.
const MAX_CHAIN: usize = 64;
/// Most regular expressions (patterns, formats) that may have to hold for one text: what it takes to see whether any text is left doubles with each.
const MAX_TOGETHER: usize = 8;
/// Values in a schema, counted at every depth.
const MAX_VALUES: usize = 20_000;
/// Most choices and functions.
const MAX_CHOICES: usize = 1024;

/// Work on one request's tokens that may be saved up for a token that takes long.
const SAVED: Duration = Duration::from_millis(500);
/// Work a token earns. Most take a tenth of a millisecond.
const EARNED: Duration = Duration::from_millis(4);

/// Limits of compiling, and of one token's mask.
pub(super) fn parser() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        // A kilobyte or two each, for every running request.
        max_lexer_states: 20_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        // An error would hold the answer so far.
        verbose_errors: false,
    }
}

/// Time that a request may still take for its masks.
#[derive(Clone, Debug)]
pub(super) struct Allowance(Duration);

impl Default for Allowance {
    fn default() -> Self {
        Self(SAVED)
    }
}

impl Allowance {
    /// A token took this long.
    pub fn spend(&mut self, time: Duration) -> Result<(), GrammarError> {
        match (self.0 + EARNED).min(SAVED).checked_sub(time) {
            Some(left) => self.0 = left,
            None => return Err(GrammarError::TooMuchWork(format!("more than {EARNED:?} a token"))),
        }
        Ok(())
    }
}

fn bound(what: &'static str, found: usize, limit: usize) -> Result<(), GrammarError> {
    if found > limit { Err(GrammarError::TooLarge { what, found, limit }) } else { Ok(()) }
}

/// A schema that is worth compiling.
pub(super) fn schema(schema: &Value) -> Result<(), GrammarError> {
    let (mut values, mut bytes) = (0, 0);
    // Without recursion: its depth is not known yet.
    let mut open = vec![(schema, 1)];
    while let Some((value, depth)) = open.pop() {
        bound("the depth of the schema", depth, MAX_DEPTH)?;
        values += 1;
        bound("the number of values in the schema", values, MAX_VALUES)?;
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => {
                bytes += fields.keys().map(String::len).sum::<usize>();
                open.extend(fields.values().map(|value| (value, depth + 1)));
                if let Some(Value::String(pattern)) = fields.get("pattern") {
                    regex(pattern)?;
                }
            }
            Value::String(text) => bytes += text.len(),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        bound("the length of the schema's texts", bytes, MAX_BYTES)?;
    }
    let together = Together { root: schema, known: HashMap::new() }.of(schema, 0)?;
    bound("the number of patterns and formats that may apply to one text", together, MAX_TOGETHER)
}

/// Counts regular expressions that may apply to one text, from above.
struct Together<'a> {
    root: &'a Value,
    /// Of what was referred to; 0 while it is being counted, so that a cycle ends.
    known: HashMap<&'a str, usize>,
}

impl<'a> Together<'a> {
    fn of(&mut self, schema: &'a Value, chain: usize) -> Result<usize, GrammarError> {
        let Value::Object(fields) = schema else { return Ok(0) };
        bound("the chain of references in the schema", chain, MAX_CHAIN)?;
        let mut count = 0;
        for (name, value) in fields {
            count += match (name.as_str(), value) {
                ("pattern" | "format", _) => 1,
                ("$ref", Value::String(place)) => self.referred(place, chain)?,
                ("allOf", Value::Array(all)) => self.sum(all, chain)?,
                ("anyOf" | "oneOf" | "prefixItems", Value::Array(any)) => self.most(any, chain)?,
                ("properties", Value::Object(properties)) => self.most(properties.values(), chain)?,
                ("patternProperties", Value::Object(properties)) => self.sum(properties.values(), chain)? + properties.len(),
                (
                    "items" | "additionalItems" | "additionalProperties" | "unevaluatedProperties" | "if" | "then" | "else" | "contains",
                    value,
                ) => self.of(value, chain + 1)?,
                _ => 0,
            };
            count = count.min(usize::MAX / 4);
        }
        Ok(count)
    }

    fn sum(&mut self, schemas: impl IntoIterator<Item = &'a Value>, chain: usize) -> Result<usize, GrammarError> {
        schemas.into_iter().try_fold(0usize, |sum, schema| Ok(sum.saturating_add(self.of(schema, chain + 1)?)))
    }

    fn most(&mut self, schemas: impl IntoIterator<Item = &'a Value>, chain: usize) -> Result<usize, GrammarError> {
        schemas.into_iter().try_fold(0, |most, schema| Ok(self.of(schema, chain + 1)?.max(most)))
    }

    /// What a place in the same document counts for; what is not there is refused where the schema is compiled.
    fn referred(&mut self, place: &'a str, chain: usize) -> Result<usize, GrammarError> {
        if let Some(&count) = self.known.get(place) {
            return Ok(count);
        }
        let Some(schema) = place.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer.trim_end_matches('/'))) else {
            return Ok(0);
        };
        self.known.insert(place, 0);
        let count = self.of(schema, chain + 1)?;
        self.known.insert(place, count);
        Ok(count)
    }
}

/// A regular expression that is worth compiling.
pub(super) fn regex(regex: &str) -> Result<(), GrammarError> {
    bound("the length of the regular expression", regex.len(), MAX_REGEX)
}

/// A list of choices that is worth compiling.
pub(super) fn choices(choices: &[String]) -> Result<(), GrammarError> {
    bound("the number of choices", choices.len(), MAX_CHOICES)?;
    bound("the length of the choices", choices.iter().map(String::len).sum(), MAX_BYTES)
}

/// A list of functions that is worth compiling.
pub(super) fn functions(count: usize) -> Result<(), GrammarError> {
    bound("the number of functions", count, MAX_CHOICES)
}
