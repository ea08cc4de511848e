//! Tokens to text that may be shown, with log-probabilities beside the text they belong to.

use skip_client::protocol::{LogprobEntry, TopLogprob};
use skip_engine::detokenize::{self, TextStream, TokenText};
use skip_kernels::sampling::Sampled;
use std::collections::VecDeque;
use std::sync::Arc;

/// JSON has no infinity; OpenAI writes this for a token that is all but impossible.
const LEAST_LOGPROB: f32 = -9999.0;

/// Text that may be shown, and the tokens it completes.
#[derive(Debug, Default)]
pub struct Piece {
    /// Whole UTF-8; may be empty.
    pub text: String,
    /// One entry a token, where asked for.
    pub logprobs: Vec<LogprobEntry>,
    /// A stop string was completed.
    pub stopped: bool,
}

/// The state between tokens.
pub struct Assembler {
    text: Arc<dyn TokenText>,
    stream: TextStream,
    wants_logprobs: bool,
    /// Entries whose text is not complete, with their place among the tokens.
    waiting: VecDeque<(usize, LogprobEntry)>,
}

impl Assembler {
    /// For one answer.
    pub fn new(text: Arc<dyn TokenText>, skip_special: bool, stops: &[String], wants_logprobs: bool) -> Self {
        let stream = TextStream::new(text.clone(), stops, skip_special);
        Self { text, stream, wants_logprobs, waiting: VecDeque::new() }
    }

    /// Adds a token.
    pub fn push(&mut self, sampled: &Sampled) -> Piece {
        if self.wants_logprobs {
            self.waiting.push_back((self.stream.pushed(), self.entry(sampled)));
        }
        let piece = self.stream.push(sampled.token);
        self.release(piece)
    }

    /// The end without a stop string: whatever was held back.
    pub fn finish(&mut self) -> Piece {
        let piece = self.stream.finish();
        self.release(piece)
    }

    fn release(&mut self, piece: detokenize::Piece) -> Piece {
        let mut logprobs = Vec::new();
        for token in piece.tokens {
            // Those before it that are never named are left-out special tokens.
            while let Some((index, _)) = self.waiting.front()
                && *index <= token
            {
                logprobs.extend(self.waiting.pop_front().filter(|(index, _)| *index == token).map(|(_, entry)| entry));
            }
        }
        Piece { text: piece.text, logprobs, stopped: piece.stop.is_some() }
    }

    fn entry(&self, sampled: &Sampled) -> LogprobEntry {
        let named = |id: u32| {
            let bytes = self.text.token_bytes(id);
            (String::from_utf8_lossy(&bytes).into_owned(), Some(bytes.into_owned()))
        };
        let (token, bytes) = named(sampled.token);
        let top = sampled.top.iter().map(|&(id, logprob)| {
            let (token, bytes) = named(id);
            TopLogprob { token, logprob: logprob.max(LEAST_LOGPROB), bytes }
        });
        // Asked for, so the engine reports it; the floor keeps the JSON valid where a token is impossible.
        let logprob = sampled.logprob.unwrap_or(LEAST_LOGPROB).max(LEAST_LOGPROB);
        LogprobEntry { token, logprob, bytes, top_logprobs: top.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ByteText;

    fn sampled(byte: u8) -> Sampled {
        Sampled { token: u32::from(byte), logprob: Some(-0.5), top: vec![(u32::from(byte), -0.5), (b'z'.into(), f32::NEG_INFINITY)] }
    }

    fn assembler(stops: &[&str]) -> Assembler {
        let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        Assembler::new(Arc::new(ByteText::default()), true, &stops, true)
    }

    #[test]
    fn entries_go_with_the_text_of_their_tokens() {
        let mut assembler = assembler(&["cd"]);
        assert_eq!(assembler.push(&sampled(b'a')).logprobs.len(), 1);
        let held = assembler.push(&sampled(b'c'));
        assert_eq!((held.text.as_str(), held.logprobs.len()), ("", 0));
        let released = assembler.push(&sampled(b'x'));
        assert_eq!(released.text, "cx");
        let tokens: Vec<&str> = released.logprobs.iter().map(|entry| entry.token.as_str()).collect();
        assert_eq!(tokens, ["c", "x"]);
    }

    #[test]
    fn a_stop_string_takes_its_entries_with_it() {
        let mut assembler = assembler(&["cd"]);
        assembler.push(&sampled(b'c'));
        let end = assembler.push(&sampled(b'd'));
        assert!(end.stopped && end.text.is_empty() && end.logprobs.is_empty());
    }

    #[test]
    fn a_left_out_special_token_has_no_entry() {
        let mut assembler = assembler(&[]);
        assert!(assembler.push(&sampled(1)).logprobs.is_empty());
        assert_eq!(assembler.push(&sampled(b'a')).logprobs.len(), 1);
    }

    #[test]
    fn an_impossible_token_stays_valid_json() {
        let piece = assembler(&[]).push(&sampled(b'a'));
        assert_eq!(piece.logprobs[0].top_logprobs[1].logprob, LEAST_LOGPROB);
    }
}
