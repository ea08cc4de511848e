//! From what is asked to a grammar's source. What llguidance would let a client's schema switch off is not let through.

use super::{GrammarError, limits};
use llguidance::api::GrammarWithLexer;
use serde_json::{Value, json};
use std::fmt::Write;

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
    /// Calls of functions, `<tool_call>\n{"name": …, "arguments": …}\n</tool_call>` each.
    Calls {
        /// The functions there are; at least one.
        functions: Vec<Function>,
        /// Whether more than one call may come.
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
    pub(super) fn source(&self) -> Result<GrammarWithLexer, GrammarError> {
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
            Spec::Calls { functions, several, text } => calls(functions, *several, *text).map(GrammarWithLexer::from_lark),
        }
    }
}

/// The schema with our options in place of any of its own, which could have parts of it ignored.
fn own_options(schema: &Value) -> Result<Value, GrammarError> {
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
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// Arguments are an object, whether the schema says so or not.
fn object(schema: Option<&Value>) -> Result<Value, GrammarError> {
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

fn calls(functions: &[Function], several: bool, text: bool) -> Result<String, GrammarError> {
    limits::functions(functions.len())?;
    if functions.is_empty() {
        return Err(GrammarError::Refused("there are no functions".into()));
    }
    let more = if several { " (\"\\n<tool_call>\" call)*" } else { "" };
    let mut grammar = if text {
        // The text before a call ends with the first tag; text without one is a lexeme of its own, which goes on for as long as it likes.
        format!("start: TEXT | open call{more}\nopen[lazy]: /(?s:.*)<tool_call>/\nTEXT: /(?s:.*)/ & ~/(?s:.*)<tool_call>(?s:.*)/\n")
    } else {
        format!("start: \"<tool_call>\" call{more}\n")
    };
    let names: Vec<String> = (0..functions.len()).map(|i| format!("f{i}")).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(grammar, "call: \"\\n\" ({}) \"\\n</tool_call>\"", names.join(" | "));
    for (i, function) in functions.iter().enumerate() {
        if function.name.is_empty() || !function.name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
            return Err(GrammarError::Refused(format!("`{}` is not a function's name", function.name)));
        }
        let arguments = own_options(&object(function.arguments.as_ref())?)?;
        let head = literal(&format!("{{\"name\": \"{}\", \"arguments\": ", function.name));
        let _ = writeln!(grammar, "f{i}: {head} a{i} \"}}\"\na{i}: %json {arguments}");
    }
    Ok(grammar)
}
