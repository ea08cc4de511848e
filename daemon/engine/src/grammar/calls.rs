//! Calls of functions as a grammar, in the form that the model's template shows.

use super::source::{literal, object, own_options};
use super::{Function, GrammarError, limits};
use crate::calls::CallForm;
use std::fmt::Write;

/// The grammar's source. `special` is the id of a control token that is written so: the model says it as one token, never as text.
pub(super) fn calls(
    form: &CallForm,
    functions: &[Function],
    several: bool,
    text: bool,
    special: &dyn Fn(&str) -> Option<u32>,
) -> Result<String, GrammarError> {
    limits::functions(functions.len())?;
    if functions.is_empty() {
        return Err(GrammarError::Refused("there are no functions".into()));
    }
    let several = several && form.several;
    let words = |text: &str| words(text, form, special);
    // A list repeats its items, other forms the whole call with its tags.
    let (spaces, close) = (words(form.open.trim_start().strip_prefix(form.tag()).unwrap_or_default()), words(&form.close));
    let item = if form.list {
        let more = if several { format!(" ({} call)*", literal(&form.between)) } else { String::new() };
        format!("{spaces} \"[\" call{more} \"]\" {close}")
    } else {
        format!("{spaces} call {close}")
    };
    let repeated = several && !form.list;
    let more = |tag: &str| if repeated { format!(" ({} {tag} item)*", words(&form.between)) } else { String::new() };
    let mut grammar = match (form.tag(), text) {
        ("", text) => untagged(form, text, special),
        (tag, false) => format!("start: {} item{}\n", words(tag), more(&words(tag))),
        (tag, true) => match special(tag) {
            // A control token is no text, so that text ends with it by itself. Spelt out it would be a call whose arguments nobody keeps to.
            Some(_) => format!("start: TEXT? ({} item{})?\nTEXT: /(?s:.+)/ & {}\n", words(tag), more(&words(tag)), without(tag)),
            // The text before a call ends with the first tag; text without one is a lexeme of its own, which goes on for as long as it likes.
            None => {
                let (more, pattern, text) = (more(&words(tag)), escaped(tag), without(tag));
                format!("start: TEXT | open item{more}\nopen[lazy]: /(?s:.*){pattern}/\nTEXT: /(?s:.*)/ & {text}\n")
            }
        },
    };
    let names: Vec<String> = (0..functions.len()).map(|i| format!("f{i}")).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(grammar, "item: {item}\ncall: {}", names.join(" | "));
    for (i, function) in functions.iter().enumerate() {
        if function.name.is_empty() || !function.name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
            return Err(GrammarError::Refused(format!("`{}` is not a function's name", function.name)));
        }
        let arguments = own_options(&object(function.arguments.as_ref())?)?;
        let head = literal(&format!("{{\"name\": \"{}\", \"{}\": ", function.name, form.key));
        let _ = writeln!(grammar, "f{i}: {head} a{i} \"}}\"\na{i}: %json {arguments}");
    }
    Ok(grammar)
}

/// An answer that is a call from its first character on; text is what does not begin as one.
fn untagged(form: &CallForm, text: bool, special: &dyn Fn(&str) -> Option<u32>) -> String {
    let tag = form.tags().find_map(special).map_or_else(String::new, |id| format!("<[{id}]>? "));
    if !text {
        return format!("start: {tag}item\n");
    }
    let call = format!(r#"/\s*\{{\s*"(name|type|function|arguments|parameters|{})"(?s:.*)/"#, escaped(&form.key));
    let spelt: String = form.tags().map(|tag| format!(" & {}", without(tag))).collect();
    format!("start: TEXT | {tag}item\nTEXT: /(?s:.*)/ & ~{call}{spelt}\n")
}

/// Text in which a tag does not stand.
fn without(tag: &str) -> String {
    format!("~/(?s:.*){}(?s:.*)/", escaped(tag))
}

/// Text in a grammar, its tags as the tokens that they are.
fn words(text: &str, form: &CallForm, special: &dyn Fn(&str) -> Option<u32>) -> String {
    let token = form.tags().find_map(|tag| Some((text.find(tag)?, tag, special(tag)?)));
    match token {
        None if text.is_empty() => String::new(),
        None => literal(text),
        Some((at, tag, id)) => {
            let around = |text: &str| if text.is_empty() { String::new() } else { literal(text) };
            format!("{} <[{id}]> {}", around(&text[..at]), around(&text[at + tag.len()..]))
        }
    }
}

/// Text in a regular expression.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c.is_ascii_punctuation() && !"_<>".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
