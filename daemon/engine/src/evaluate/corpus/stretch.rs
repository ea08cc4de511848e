//! One half of a kind of text, laid end to end, and passages cut from it.

use super::gather::Document;
use super::{CorpusError, Kind};
use crate::evaluate::seed::Rng;

/// Documents end to end.
#[derive(Debug, Default)]
pub(super) struct Stretch {
    text: String,
    /// Where each document begins, and its name.
    begins: Vec<(usize, String)>,
}

impl Stretch {
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    fn push(&mut self, name: &str, text: &str) {
        if !self.text.is_empty() {
            self.text.push_str("\n\n");
        }
        self.begins.push((self.text.len(), name.to_owned()));
        self.text.push_str(text);
    }

    /// Which document holds the byte.
    fn place(&self, at: usize) -> String {
        let index = self.begins.partition_point(|(begin, _)| *begin <= at).saturating_sub(1);
        self.begins.get(index).map_or_else(String::new, |(begin, name)| format!("{name} at byte {}", at - begin))
    }
}

/// Shares documents out to two halves of about the same length; one that is longer than all others together is cut in its middle.
pub(super) fn halves(mut documents: Vec<Document>) -> [Stretch; 2] {
    let all: usize = documents.iter().map(|document| document.text.len()).sum();
    if let Some(long) = documents.iter().position(|document| document.text.len() * 2 > all) {
        let whole = documents.remove(long);
        let (front, back) = whole.text.split_at(middle(&whole.text));
        let part = |text: &str| Document { text: text.to_owned(), ..whole.clone() };
        documents.splice(long..long, [part(front), part(back)]);
    }
    let mut out = [Stretch::default(), Stretch::default()];
    for document in documents {
        let shorter = usize::from(out[1].len() < out[0].len());
        out[shorter].push(&document.name, &document.text);
    }
    out
}

/// A paragraph's end near the middle, else a line's, else a character's.
fn middle(text: &str) -> usize {
    let half = boundary(text, text.len() / 2);
    let near = &text[half..boundary(text, half + text.len() / 8)];
    let end = near.find("\n\n").map(|at| at + 2).or_else(|| near.find('\n').map(|at| at + 1));
    half + end.unwrap_or(0)
}

fn boundary(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (at..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())
}

/// A piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The text.
    pub text: String,
    /// The document it begins in, and where.
    pub place: String,
    start: usize,
    taken: usize,
}

/// Passages one after the other. None overlaps another until all the text has been had.
#[derive(Clone, Debug)]
pub struct Passages<'a> {
    kind: Kind,
    stretch: &'a Stretch,
    at: usize,
}

impl<'a> Passages<'a> {
    pub(super) fn new(kind: Kind, stretch: &'a Stretch, seed: u64) -> Self {
        let text = stretch.text();
        let anywhere = boundary(text, Rng::named(seed, kind.name()).below(text.len()));
        let at = text[anywhere..].find('\n').map_or(0, |at| anywhere + at + 1);
        Self { kind, stretch, at: if at == text.len() { 0 } else { at } }
    }

    /// The kind of text.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The next passage of at least `bytes` bytes; behind the end it goes on from the beginning.
    ///
    /// # Errors
    /// There is less than that in all.
    pub fn next(&mut self, bytes: usize) -> Result<Passage, CorpusError> {
        let text = self.stretch.text();
        if bytes > text.len() {
            return Err(CorpusError::Exhausted { wanted: bytes, kind: self.kind, found: text.len() });
        }
        let start = self.at;
        let end = boundary(text, start + bytes);
        let rest = boundary(text, bytes.saturating_sub(end - start));
        let mut piece = text[start..end].to_owned();
        self.at = end % text.len();
        if rest > 0 {
            piece.push_str("\n\n");
            piece.push_str(&text[..rest]);
            self.at = rest % text.len();
        }
        Ok(Passage { text: piece, place: self.stretch.place(start), start, taken: end - start + rest })
    }

    /// Goes on as if the next passage had been taken; where there is less text than that, it stays.
    pub(crate) fn skip(&mut self, bytes: usize) {
        // Its error comes again with the text.
        let _ = self.next(bytes);
    }

    /// Where the next passage begins, in bytes.
    pub(crate) fn place(&self) -> usize {
        self.at
    }

    /// Puts the last passage back, to take another in its place.
    pub(crate) fn back(&mut self, passage: &Passage) {
        debug_assert!(passage.taken <= self.stretch.len());
        self.at = passage.start;
    }
}
