//! Finds the calls of functions in an answer's text as it comes, in the form that the model's template shows.
//!
//! A call of the usual form is told as soon as its name is there, its arguments as they come. One written otherwise is told whole; what is none
//! after all is text.

mod json;
#[cfg(test)]
mod tests;

use json::{Head, Scanner, head, read};
use skip_client::protocol::ToolCallDelta;
use skip_engine::calls::{CallForm, PYTHON_TAG};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

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
    /// Nothing but space came, and a call needs no tag.
    Start,
    /// Text, or the space before a call.
    Text,
    /// Behind the tag, before a list of calls.
    List,
    /// Before the arguments of a call.
    Head,
    /// In a call that is not of the usual form, of which so many bytes were looked at.
    Whole(Scanner, usize),
    /// In the arguments, which are told as they come.
    Arguments(Scanner),
    /// Behind the arguments, before the end of the call.
    Tail(Scanner),
    /// Behind a call of a list.
    Next,
    /// Before the closing tag.
    Close,
    /// Nothing that follows says anything.
    End,
}

/// What an answer's calls are like.
#[derive(Clone, Debug)]
pub struct Expected {
    /// How they are written.
    pub form: CallForm,
    /// The functions that the model was told of.
    pub functions: Vec<String>,
    /// How many there may be.
    pub most: u32,
}

/// One answer's calls.
pub struct Calls {
    expected: Expected,
    state: State,
    /// What came and was not told.
    held: String,
    /// What stood before what is held, and is text if that is no call.
    opened: String,
    /// Calls begun.
    begun: u32,
    /// Calls complete.
    complete: u32,
    /// Names this answer's calls.
    seed: u64,
}

impl Calls {
    /// None yet.
    pub fn new(expected: Expected) -> Self {
        // The standard library keys each hasher at random; a name that no other answer has needs no more.
        let seed = RandomState::new().build_hasher().finish();
        let state = if expected.form.tag().is_empty() { State::Start } else { State::Text };
        Self { expected, state, held: String::new(), opened: String::new(), begun: 0, complete: 0, seed }
    }

    /// Calls that there may be.
    pub fn most(&self) -> u32 {
        self.expected.most
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
            State::Start | State::Text => push_text(&mut parts, held),
            // Some models leave the closing tag out.
            State::List | State::Head | State::Whole(..) => self.whole(&held, "", &mut parts),
            State::Arguments(_) | State::Tail(_) | State::Next | State::Close | State::End => {}
        }
        self.state = State::Text;
        parts
    }

    /// The tag before calls.
    fn tag(&self) -> &str {
        match self.expected.form.tag() {
            "" => PYTHON_TAG,
            tag => tag,
        }
    }

    /// Whether each call has a closing tag of its own.
    fn each_closes(&self) -> bool {
        !self.expected.form.list && !self.expected.form.close.trim().is_empty()
    }

    /// Without a tag of its form, a JSON object is a call only if it is one of a function that there is.
    fn is_call(&self, name: &str) -> bool {
        !self.expected.form.tag().is_empty() || self.expected.functions.iter().any(|known| known == name)
    }

    /// Goes on from one state; false where more text is needed.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match &mut self.state {
            State::Start => {
                let Some(first) = self.held.trim_start().chars().next() else { return false };
                self.state = if first == '{' { State::Head } else { State::Text };
                true
            }
            State::Text => self.look_for_tag(parts),
            State::List => {
                let rest = self.held.trim_start();
                let Some(first) = rest.chars().next() else { return false };
                let at = self.held.len() - rest.len();
                match first {
                    '[' => {
                        self.opened.push_str(&self.held[..=at]);
                        self.held.drain(..=at);
                        self.state = State::Head;
                    }
                    '{' => self.state = State::Head,
                    _ => self.is_text(parts),
                }
                true
            }
            State::Head => match head(&self.held, &self.expected.form.key) {
                Head::More => false,
                Head::Name(name, at) if self.is_call(&name) => {
                    self.held.drain(..at);
                    parts.push(self.begin(name));
                    self.state = State::Arguments(Scanner::default());
                    true
                }
                Head::Other => {
                    self.state = State::Whole(Scanner::default(), 0);
                    true
                }
                // What ends at its closing tag is looked at as a whole there.
                Head::None if self.each_closes() => {
                    self.state = State::Whole(Scanner::default(), 0);
                    true
                }
                Head::Name(..) | Head::None => {
                    self.is_text(parts);
                    true
                }
            },
            State::Whole(scanner, seen) => {
                let closed = !self.expected.form.list && !self.expected.form.close.trim().is_empty();
                let close = if closed { self.expected.form.close.trim() } else { "" };
                let at = if closed { self.held.find(close) } else { scanner.end(&self.held[*seen..]).map(|end| *seen + end) };
                *seen = self.held.len();
                let Some(at) = at else { return false };
                let close = close.to_owned();
                let text = take(&mut self.held, at, &close);
                self.whole(&text, &close, parts);
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
                    // A closing tag says more than a bracket, which some models forget.
                    self.state = if self.each_closes() { State::Close } else { State::Tail(Scanner::inside()) };
                }
                end.is_some()
            }
            State::Tail(scanner) => {
                let end = scanner.end(&self.held);
                self.held.drain(..end.unwrap_or(self.held.len()));
                if end.is_some() {
                    self.state = self.behind();
                }
                end.is_some()
            }
            State::Next => {
                let rest = self.held.trim_start();
                let Some(first) = rest.chars().next() else { return false };
                let at = self.held.len() - rest.len();
                if [',', ']'].contains(&first) {
                    self.held.drain(..=at);
                }
                self.state = match first {
                    ',' => State::Head,
                    ']' if !self.expected.form.close.is_empty() => State::Close,
                    _ => State::Text,
                };
                true
            }
            State::Close => {
                let close = self.expected.form.close.trim();
                let Some(at) = self.held.find(close) else { return false };
                self.held.drain(..at + close.len());
                self.state = State::Text;
                true
            }
            State::End => {
                self.held.clear();
                false
            }
        }
    }

    fn look_for_tag(&mut self, parts: &mut Vec<Part>) -> bool {
        let tag = self.tag().to_owned();
        let Some(at) = self.held.find(&tag) else {
            let keep = self.held.len() - beginning_of(&tag, &self.held);
            // Space may be what stands before a call.
            let keep = self.held[..keep].trim_end().len();
            push_text(parts, self.held.drain(..keep).collect());
            return false;
        };
        let before = take(&mut self.held, at, &tag);
        push_text(parts, before.trim_end().to_owned());
        self.opened = tag;
        self.state = if self.expected.form.list { State::List } else { State::Head };
        true
    }

    /// What is held is no call: it is text, with what stood before it.
    fn is_text(&mut self, parts: &mut Vec<Part>) {
        push_text(parts, std::mem::take(&mut self.opened));
        self.state = State::Text;
    }

    /// The state behind a call without a closing tag of its own.
    fn behind(&self) -> State {
        if self.expected.form.list { State::Next } else { State::End }
    }

    fn begin(&mut self, name: String) -> Part {
        let index = self.begun;
        self.begun += 1;
        self.opened.clear();
        let id = if self.expected.form.short_ids { short_id(self.seed, index) } else { format!("call_{:016x}{index:02x}", self.seed) };
        Part::Call(ToolCallDelta::begin(index, id, name))
    }

    /// A call written in some other way, or text after all.
    fn whole(&mut self, text: &str, close: &str, parts: &mut Vec<Part>) {
        let needed = self.expected.form.tag().is_empty();
        match read(text, needed).filter(|(name, _)| self.is_call(name)) {
            Some((name, arguments)) => {
                parts.push(self.begin(name));
                parts.push(Part::Call(ToolCallDelta::more(self.begun - 1, arguments)));
                self.complete += 1;
                self.state = if close.is_empty() { self.behind() } else { State::Text };
            }
            None => {
                self.is_text(parts);
                push_text(parts, format!("{text}{close}"));
            }
        }
    }
}

/// Nine digits and letters, another for each call.
fn short_id(seed: u64, index: u32) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut rest = seed.wrapping_add(index.into());
    let digit = |_| {
        let digit = DIGITS[(rest % 36) as usize];
        rest /= 36;
        char::from(digit)
    };
    (0..9).map(digit).collect()
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
    (1..tag.len()).rev().find(|&n| tag.get(..n).is_some_and(|begun| text.ends_with(begun))).unwrap_or(0)
}
