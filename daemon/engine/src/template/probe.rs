//! What a template makes of functions and of a call, found by rendering some: the form in which the model was taught to call.

use super::{ChatTemplate, RenderOptions};
use crate::calls::{CallForm, PYTHON_TAG};
use serde_json::{Deserializer, Map, Value, json};
use std::ops::Range;

/// Names and texts that no template has of its own.
const FUNCTION: &str = "skipd_probe";
const ARGUMENT: &str = "skipd_probed";
const WORD: &str = "skipd_words";
/// Longest tag, bytes.
const MAX_TAG: usize = 32;
const LONG_ID: &str = "call_0123456789abcdef00";
const SHORT_ID: &str = "a1B2c3D4e";

/// The form of the template's calls; None where it does not tell the model of functions, shows no calls, or shows them in a form that is not known.
pub(super) fn calls(template: &ChatTemplate) -> Option<CallForm> {
    let prompt = template.say(&[user()], true)?;
    if !prompt.contains(FUNCTION) {
        return None;
    }
    let said = template.say(&[user(), json!({"role": "assistant", "content": WORD})], false)?;
    let said_end = said.rfind(WORD).map(|at| &said[at + WORD.len()..])?;
    let (one, short_ids) = [(LONG_ID, false), (SHORT_ID, true)].into_iter().find_map(|(id, short)| {
        Some((template.say(&[user(), calling(id, 1), result(id)], false).and(template.say(&[user(), calling(id, 1)], false))?, short))
    })?;
    let found = Found::first(&one, 0)?;
    // Where the answer begins, as far as the template says the same of it beforehand.
    let begin = prompt.bytes().zip(one.bytes()).take_while(|(a, b)| a == b).count();
    let before = one.get(begin.min(found.whole.start)..found.whole.start)?;
    let (before, list) = match before.trim_end().strip_suffix('[') {
        Some(before) => (before, true),
        None => (before, false),
    };
    let open = opening(before)?;
    if open.is_empty() && list {
        return None;
    }
    let mut behind = &one[found.whole.end..];
    if list {
        behind = behind.trim_start().strip_prefix(']')?;
    }
    let close = closing(behind.strip_suffix(said_end)?)?;
    let id = if short_ids { SHORT_ID } else { LONG_ID };
    let two = template.say(&[user(), calling(id, 2)], false).and_then(|two| between(&two, &open, list, &close));
    let several = two.is_some() && !open.is_empty();
    Some(CallForm { open, list, key: found.key, close, between: two.unwrap_or_default(), several, short_ids })
}

impl ChatTemplate {
    /// A conversation beside the function; None where the template does not take it.
    fn say(&self, messages: &[Value], asking: bool) -> Option<String> {
        let parameters = json!({"type": "object", "properties": {ARGUMENT: {"type": "string"}}, "required": [ARGUMENT]});
        let tools = [json!({"type": "function", "function": {"name": FUNCTION, "description": "A function.", "parameters": parameters}})];
        let options = RenderOptions { tools: Some(&tools), add_generation_prompt: asking, extra: Map::new() };
        self.render(messages, &options).ok()
    }
}

fn user() -> Value {
    json!({"role": "user", "content": "Hello."})
}

/// So many calls by the model.
fn calling(id: &str, count: usize) -> Value {
    let call = json!({"id": id, "type": "function", "function": {"name": FUNCTION, "arguments": {ARGUMENT: WORD}}});
    json!({"role": "assistant", "content": "", "tool_calls": vec![call; count]})
}

fn result(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "name": FUNCTION, "content": "done"})
}

/// A call in a rendering.
struct Found {
    whole: Range<usize>,
    key: String,
}

impl Found {
    /// The first at or behind `from`. Its name comes first, then its arguments, whatever follows them.
    fn first(text: &str, from: usize) -> Option<Self> {
        let starts = text.get(from..)?.match_indices('{').map(|(at, _)| from + at);
        starts.into_iter().find_map(|start| {
            let mut values = Deserializer::from_str(&text[start..]).into_iter::<Map<String, Value>>();
            let call = values.next()?.ok()?;
            let end = start + values.byte_offset();
            let mut fields = call.iter();
            let (name, value) = fields.next()?;
            let (key, arguments) = fields.next()?;
            let is_call = name == "name" && value == FUNCTION && (key == "arguments" || key == "parameters") && arguments[ARGUMENT] == WORD;
            // As the grammar writes it.
            let written = text[start..end].starts_with(&format!("{{\"name\": \"{FUNCTION}\", \"{key}\": {{"));
            (is_call && written).then(|| Self { whole: start..end, key: key.clone() })
        })
    }
}

/// What stands right before a call: a tag and the spaces behind it, or nothing.
fn opening(before: &str) -> Option<String> {
    let text = before.trim();
    if text.is_empty() || text == PYTHON_TAG {
        return Some(String::new());
    }
    // Before the tag there may be an empty thought.
    let begin = match text.chars().last()? {
        '>' => before.rfind('<'),
        ']' => before.rfind('['),
        _ => None,
    }?;
    let tag = before[begin..].trim_end();
    (is_tag(tag) && !tag.starts_with("</")).then(|| before[begin..].to_owned())
}

/// What stands right behind: a tag and the spaces before it, or nothing.
fn closing(behind: &str) -> Option<String> {
    let tag = behind.trim();
    (tag.is_empty() || is_tag(tag)).then(|| behind.trim_end().to_owned())
}

fn is_tag(text: &str) -> bool {
    text.len() <= MAX_TAG && text.len() > 2 && !text.contains(char::is_whitespace) && (text.starts_with('<') || text.starts_with('['))
}

/// What stands between two calls of one answer, beside their tags.
fn between(two: &str, open: &str, list: bool, close: &str) -> Option<String> {
    let first = Found::first(two, 0)?;
    let second = Found::first(two, first.whole.end)?;
    let text = &two[first.whole.end..second.whole.start];
    if list {
        return (text.trim() == ",").then(|| text.to_owned());
    }
    let spaces = text.strip_prefix(close)?.strip_suffix(open)?;
    spaces.trim().is_empty().then(|| spaces.to_owned())
}
