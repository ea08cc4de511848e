//! Finds the calls of functions in an answer's text, `<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>`, as it comes.
//!
//! A call of the usual form is told as soon as its name is there, its arguments as they come. One written otherwise is told whole; what is none
//! after all is text.

use serde_json::{Map, Value};
use skip_client::protocol::ToolCallDelta;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A part of an answer.
#[derive(Debug, PartialEq)]
pub enum Part {
    /// Text for a person.
    Text(String),
    /// More of a call.
    Call(ToolCallDelta),
}

/// Where in an answer the next piece belongs.
enum State {
    /// Text, or the space before a call.
    Text,
    /// Behind the opening tag, before the arguments.
    Head,
    /// Behind the opening tag of a call that is not of the usual form.
    Whole,
    /// In the arguments, which are told as they come.
    Arguments(Scanner),
    /// Behind the arguments.
    Tail,
}

/// One answer's calls.
pub struct Calls {
    state: State,
    /// What came and was not told.
    held: String,
    /// Calls begun.
    begun: u32,
    /// Calls complete.
    complete: u32,
    /// Names this answer's calls.
    seed: u64,
}

impl Calls {
    /// None yet.
    pub fn new() -> Self {
        // The standard library keys each hasher at random; a name that no other answer has needs no more.
        let seed = RandomState::new().build_hasher().finish();
        Self { state: State::Text, held: String::new(), begun: 0, complete: 0, seed }
    }

    /// Calls that are complete.
    pub fn complete(&self) -> u32 {
        self.complete
    }

    /// Takes more text; gives what is known of it.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// The answer ended: what is still held.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Text => push_text(&mut parts, held),
            // Some models leave the closing tag out.
            State::Head | State::Whole => self.whole(&held, "", &mut parts),
            State::Arguments(_) | State::Tail => {}
        }
        self.state = State::Text;
        parts
    }

    /// Goes on from one state; false where more text is needed.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match &mut self.state {
            State::Text => {
                let Some(at) = self.held.find(OPEN) else {
                    let keep = self.held.len() - beginning_of(OPEN, &self.held);
                    // Space may be what stands before a call.
                    let keep = self.held[..keep].trim_end().len();
                    push_text(parts, self.held.drain(..keep).collect());
                    return false;
                };
                let before = take(&mut self.held, at, OPEN);
                push_text(parts, before.trim_end().to_owned());
                self.state = State::Head;
                true
            }
            State::Head => match head(&self.held) {
                Head::More => false,
                Head::Other => {
                    self.state = State::Whole;
                    true
                }
                Head::Name(name, at) => {
                    self.held.drain(..at);
                    parts.push(self.begin(name));
                    self.state = State::Arguments(Scanner::default());
                    true
                }
            },
            State::Whole => {
                let Some(at) = self.held.find(CLOSE) else { return false };
                let text = take(&mut self.held, at, CLOSE);
                self.state = State::Text;
                self.whole(&text, CLOSE, parts);
                true
            }
            State::Arguments(scanner) => {
                let end = scanner.end(&self.held);
                let arguments: String = self.held.drain(..end.unwrap_or(self.held.len())).collect();
                if !arguments.is_empty() {
                    parts.push(Part::Call(ToolCallDelta::more(self.begun - 1, arguments)));
                }
                if end.is_some() {
                    self.complete += 1;
                    self.state = State::Tail;
                }
                end.is_some()
            }
            State::Tail => {
                let Some(at) = self.held.find(CLOSE) else { return false };
                self.held.drain(..at + CLOSE.len());
                self.state = State::Text;
                true
            }
        }
    }

    fn begin(&mut self, name: String) -> Part {
        let index = self.begun;
        self.begun += 1;
        Part::Call(ToolCallDelta::begin(index, format!("call_{:016x}{index:02x}", self.seed), name))
    }

    /// A call written in some other way, or text after all.
    fn whole(&mut self, text: &str, close: &str, parts: &mut Vec<Part>) {
        match read(text) {
            Some((name, arguments)) => {
                parts.push(self.begin(name));
                parts.push(Part::Call(ToolCallDelta::more(self.begun - 1, arguments)));
                self.complete += 1;
            }
            None => push_text(parts, format!("{OPEN}{text}{close}")),
        }
    }
}

/// Takes the first `at` bytes and the tag behind them out of what is held; gives those bytes.
fn take(held: &mut String, at: usize, tag: &str) -> String {
    let behind = held.split_off(at + tag.len());
    let mut taken = std::mem::replace(held, behind);
    taken.truncate(at);
    taken
}

fn push_text(parts: &mut Vec<Part>, text: String) {
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
}

/// Length of the longest end of `text` that begins `tag`.
fn beginning_of(tag: &str, text: &str) -> usize {
    (1..tag.len()).rev().find(|&n| text.ends_with(&tag[..n])).unwrap_or(0)
}

/// Name and arguments of a call as JSON in any order; arguments may be text.
fn read(text: &str) -> Option<(String, String)> {
    let call: Map<String, Value> = serde_json::from_str(text.trim()).ok()?;
    let name = call.get("name")?.as_str().filter(|name| !name.is_empty())?;
    let arguments = match call.get("arguments").or_else(|| call.get("parameters")) {
        Some(Value::String(text)) => text.clone(),
        Some(value @ Value::Object(_)) => value.to_string(),
        None => "{}".into(),
        Some(_) => return None,
    };
    Some((name.to_owned(), arguments))
}

/// What a call's beginning says.
#[derive(Debug, PartialEq)]
enum Head {
    /// It may still become one of the usual form.
    More,
    /// The name, and where the arguments begin.
    Name(String, usize),
    /// It is written otherwise.
    Other,
}

/// `{"name": "…", "arguments": {`, with any spaces.
fn head(text: &str) -> Head {
    let mut rest = text;
    let mut name = String::new();
    for part in ["{", "\"name\"", ":", "", ",", "\"arguments\"", ":"] {
        rest = rest.trim_start();
        if !part.is_empty() {
            match rest.strip_prefix(part) {
                Some(after) => rest = after,
                None if part.starts_with(rest) => return Head::More,
                None => return Head::Other,
            }
            continue;
        }
        if rest.is_empty() {
            return Head::More;
        }
        let Some(length) = string_length(rest) else { return if rest.starts_with('"') { Head::More } else { Head::Other } };
        match serde_json::from_str(&rest[..length]) {
            Ok(read) => name = read,
            Err(_) => return Head::Other,
        }
        rest = &rest[length..];
    }
    rest = rest.trim_start();
    match rest.chars().next() {
        None => Head::More,
        Some('{') if !name.is_empty() => Head::Name(name, text.len() - rest.len()),
        Some(_) => Head::Other,
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
struct Scanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Scanner {
    /// Where in this piece the object ends.
    fn end(&mut self, piece: &str) -> Option<usize> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use skip_client::protocol::ToolCall;

    /// Text and calls of an answer that comes in pieces of `step` characters.
    fn parse(answer: &str, step: usize) -> (String, Vec<ToolCall>, u32) {
        let mut calls = Calls::new();
        let characters: Vec<char> = answer.chars().collect();
        let mut parts: Vec<Part> = characters.chunks(step).flat_map(|piece| calls.push(&piece.iter().collect::<String>())).collect();
        parts.extend(calls.finish());
        let (mut text, mut made) = (String::new(), Vec::new());
        for part in parts {
            match part {
                Part::Text(piece) => text += &piece,
                Part::Call(delta) => delta.add_to(&mut made),
            }
        }
        (text, made, calls.complete())
    }

    fn named(calls: &[ToolCall]) -> Vec<(&str, &str)> {
        calls.iter().map(|call| (call.function.name.as_str(), call.function.arguments.as_str())).collect()
    }

    const GRIP: &str = "<tool_call>\n{\"name\": \"grip\", \"arguments\": {\"force\": 2, \"say\": \"}\\\"{ü\"}}\n</tool_call>";

    #[test]
    fn calls_are_found_however_the_text_is_cut() {
        let answer = format!("I take it.\n\n{GRIP}\n<tool_call>{{\"name\":\"look\",\"arguments\":{{}}}}</tool_call>");
        for step in 1..answer.chars().count() {
            let (text, calls, complete) = parse(&answer, step);
            assert_eq!(text, "I take it.", "every {step}");
            assert_eq!(named(&calls), [("grip", "{\"force\": 2, \"say\": \"}\\\"{ü\"}"), ("look", "{}")], "every {step}");
            assert_eq!(complete, 2);
            assert_ne!(calls[0].id, calls[1].id);
        }
    }

    #[test]
    fn a_call_of_another_form_is_told_whole_and_what_is_none_is_text() {
        for step in [1, 4, 1000] {
            let other = "<tool_call>{\"arguments\": {\"a\": [1]}, \"name\": \"f\"}</tool_call>";
            assert_eq!(named(&parse(other, step).1), [("f", "{\"a\":[1]}")]);
            assert_eq!(named(&parse("<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}", step).1), [("f", "{}")]);
            assert_eq!(named(&parse("<tool_call>{\"name\": \"f\"}</tool_call>", step).1), [("f", "{}")]);
            for text in
                ["<tool_call>no JSON</tool_call> and on", "a <tool_call", "1 < 2, <tool_calls>", "<tool_call>{\"name\": 3", " \n", "a\n\n"]
            {
                let found = parse(text, step);
                assert_eq!((found.0.as_str(), found.1.len(), found.2), (text, 0, 0));
            }
        }
    }

    #[test]
    fn arguments_are_told_as_they_come_and_may_be_cut() {
        let mut calls = Calls::new();
        let parts = calls.push("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\"");
        assert!(matches!(&parts[..], [Part::Call(begin), Part::Call(more)]
            if begin.function.name.as_deref() == Some("f") && more.function.arguments == "{\"a\""));
        assert_eq!(calls.push(": 1"), [Part::Call(ToolCallDelta::more(0, ": 1".into()))]);
        assert_eq!((calls.finish().len(), calls.complete()), (0, 0));
    }
}
