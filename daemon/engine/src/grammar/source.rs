//! From what is asked to a grammar's source. What llguidance would let a client's schema switch off is not let through.

use super::calls::calls;
use super::{GrammarError, limits};
use crate::calls::CallForm;
use llguidance::api::GrammarWithLexer;
use serde_json::{Value, json};

/// Spaces in JSON: as many as any layout has, and not without end.
const WHITESPACE: &str = r"[ \n\r\t]{1,40}";

/// The form an answer is held to.
#[derive(Clone, Debug, PartialEq)]
pub enum Spec {
    /// JSON that a schema (draft 2020-12, or what `$schema` says) admits.
    Json(Value),
    /// Text that a regular expression matches from beginning to end.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Calls of functions.
    Calls {
        /// How the model's template writes them.
        form: CallForm,
        /// The functions there are; at least one.
        functions: Vec<Function>,
        /// Whether more than one call may come, where the form has room for it.
        several: bool,
        /// Whether text may come before them, or instead of them.
        text: bool,
    },
}

/// A function that may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// The schema of its arguments, an object's; None for any object.
    pub arguments: Option<Value>,
}

impl Spec {
    /// Its source; `special` gives the id of a control token by how it is written.
    pub(super) fn source(&self, special: &dyn Fn(&str) -> Option<u32>) -> Result<GrammarWithLexer, GrammarError> {
        match self {
            Spec::Json(schema) => Ok(GrammarWithLexer::from_json_schema(own_options(schema)?)),
            Spec::Regex(regex) => {
                limits::regex(regex)?;
                if regex.is_empty() {
                    return Err(GrammarError::Refused("the regular expression is empty".into()));
                }
                Ok(GrammarWithLexer::from_regex(unanchored(regex)))
            }
            Spec::Choice(choices) => {
                limits::choices(choices)?;
                if choices.is_empty() || choices.iter().any(String::is_empty) {
                    return Err(GrammarError::Refused("there are no choices, or one of them is empty".into()));
                }
                let literals: Vec<String> = choices.iter().map(|choice| literal(choice)).collect();
                Ok(GrammarWithLexer::from_lark(format!("start: {}\n", literals.join(" | "))))
            }
            Spec::Calls { form, functions, several, text } => {
                calls(form, functions, *several, *text, special).map(GrammarWithLexer::from_lark)
            }
        }
    }
}

/// The schema with our options in place of any of its own, which could have parts of it ignored.
pub(super) fn own_options(schema: &Value) -> Result<Value, GrammarError> {
    limits::schema(schema)?;
    let mut schema = match schema {
        Value::Object(fields) => fields.clone(),
        Value::Bool(true) => serde_json::Map::new(),
        _ => return Err(GrammarError::Refused("the schema is not an object".into())),
    };
    if schema.contains_key("x-guidance") {
        return Err(GrammarError::Refused("`x-guidance` is not supported".into()));
    }
    schema.insert("x-guidance".into(), json!({"whitespace_flexible": true, "whitespace_pattern": WHITESPACE}));
    Ok(schema.into())
}

/// The whole text must match; anchors that say so are taken off.
fn unanchored(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        // An escaped one is a character.
        Some(body) if body.chars().rev().take_while(|&c| c == '\\').count().is_multiple_of(2) => body,
        _ => regex,
    }
}

/// Text as a string of a grammar, which is written as JSON's.
pub(super) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// Arguments are an object, whether the schema says so or not.
pub(super) fn object(schema: Option<&Value>) -> Result<Value, GrammarError> {
    let mut schema = match schema {
        None => serde_json::Map::new(),
        Some(Value::Object(fields)) => fields.clone(),
        Some(_) => return Err(GrammarError::Refused("the schema of the arguments is not an object".into())),
    };
    match schema.get("type") {
        None => schema.insert("type".into(), "object".into()),
        Some(Value::String(kind)) if kind == "object" => None,
        Some(other) => return Err(GrammarError::Refused(format!("arguments are an object, and the schema is of type {other}"))),
    };
    Ok(schema.into())
}
