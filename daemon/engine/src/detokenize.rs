//! Turns drawn tokens into text as a client may see it: whole UTF-8, nothing that may still become a stop string, and which tokens each piece stands for.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a tokenizer says of one token.
pub trait TokenText: Send + Sync {
    /// The raw bytes of a token's text, which may be part of a character; empty for an id that has none.
    fn token_bytes(&self, id: u32) -> Cow<'_, [u8]>;
    /// True for control tokens (`<|im_end|>`), which `skip_special_tokens` leaves out.
    fn is_special(&self, id: u32) -> bool;
}

/// Text that may be shown, and the tokens it completes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Whole UTF-8; may be empty.
    pub text: String,
    /// Tokens, counted from 0 in the order pushed, whose text ends in this piece; special tokens that are left out are never named.
    /// At a stop string, tokens of which a part came before it are named too.
    pub tokens: Vec<usize>,
    /// Index of the stop string that was found right behind `text`; nothing follows this piece.
    pub stop: Option<usize>,
}

impl Piece {
    /// Nothing to show, nothing completed, not stopped.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.tokens.is_empty() && self.stop.is_none()
    }
}

/// One answer's text. Pieces, concatenated, are the lossy UTF-8 reading of all tokens' bytes up to the first stop string.
pub struct TextStream {
    tokenizer: Arc<dyn TokenText>,
    stops: Vec<Vec<u8>>,
    skip_special: bool,
    /// Bytes not shown yet.
    held: Vec<u8>,
    /// Position in the answer of `held[0]`.
    shown: usize,
    /// Tokens not named yet: index, where its bytes begin and end in the answer.
    unnamed: VecDeque<(usize, usize, usize)>,
    pushed: usize,
    stopped: bool,
}

impl TextStream {
    /// A stream that ends before any of `stops` (empty ones are ignored).
    pub fn new(tokenizer: Arc<dyn TokenText>, stops: &[String], skip_special_tokens: bool) -> Self {
        Self {
            tokenizer,
            stops: stops.iter().map(|s| s.as_bytes().to_vec()).collect(),
            skip_special: skip_special_tokens,
            held: Vec::new(),
            shown: 0,
            unnamed: VecDeque::new(),
            pushed: 0,
            stopped: false,
        }
    }

    /// Tokens pushed so far: what usage counts when a stop string ended the answer.
    pub fn pushed(&self) -> usize {
        self.pushed
    }

    /// True once a stop string was found; further tokens are ignored.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Takes a drawn token; gives what may be shown now.
    pub fn push(&mut self, token: u32) -> Piece {
        if self.stopped {
            return Piece::default();
        }
        let index = self.pushed;
        self.pushed += 1;
        if self.skip_special && self.tokenizer.is_special(token) {
            return Piece::default();
        }
        let begin = self.shown + self.held.len();
        self.held.extend_from_slice(&self.tokenizer.token_bytes(token));
        self.unnamed.push_back((index, begin, self.shown + self.held.len()));
        if let Some((at, stop)) = self.find_stop() {
            let mut piece = self.show(at);
            let shown = self.shown;
            piece.tokens.extend(self.unnamed.drain(..).filter(|t| t.1 < shown).map(|t| t.0));
            piece.stop = Some(stop);
            self.stopped = true;
            self.held.clear();
            return piece;
        }
        let held_back = self.stop_prefix().max(incomplete_tail(&self.held));
        self.show(self.held.len() - held_back)
    }

    /// The answer ended without a stop string: everything held back; an unfinished character shows as U+FFFD.
    pub fn finish(&mut self) -> Piece {
        if self.stopped {
            return Piece::default();
        }
        self.show(self.held.len())
    }

    /// Releases the first `len` held bytes and names the tokens that end in them.
    fn show(&mut self, len: usize) -> Piece {
        let text = String::from_utf8_lossy(&self.held[..len]).into_owned();
        self.held.drain(..len);
        self.shown += len;
        let mut tokens = Vec::new();
        while let Some(&(index, _, end)) = self.unnamed.front()
            && end <= self.shown
        {
            tokens.push(index);
            self.unnamed.pop_front();
        }
        Piece { text, tokens, stop: None }
    }

    /// The stop string that is complete first, however the bytes came (of several, the longest): where it begins, and which it is.
    fn find_stop(&self) -> Option<(usize, usize)> {
        let find = |stop: &Vec<u8>| if stop.is_empty() { None } else { self.held.windows(stop.len()).position(|w| w == stop) };
        let found = self.stops.iter().enumerate().filter_map(|(i, stop)| find(stop).map(|at| (at + stop.len(), at, i)));
        found.min().map(|(_, at, i)| (at, i))
    }

    /// Length of the longest end of the held bytes that begins a stop string.
    fn stop_prefix(&self) -> usize {
        let longest = |stop: &Vec<u8>| {
            let most = self.held.len().min(stop.len().saturating_sub(1));
            (1..=most).rev().find(|&n| self.held.ends_with(&stop[..n])).unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }
}

/// Bytes at the end that are the beginning of a character.
fn incomplete_tail(bytes: &[u8]) -> usize {
    let is_beginning = |n: &usize| {
        let tail = &bytes[bytes.len() - n..];
        tail[0] >= 0xc0 && std::str::from_utf8(tail).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
    };
    (1..=bytes.len().min(3)).find(is_beginning).unwrap_or(0)
}

#[cfg(test)]
mod scripts;
#[cfg(test)]
mod tests;
