//! Prompts to calibrate and to check tables with: real text of exactly so many tokens, part of it with facts planted and asked for.
//!
//! The reference calibrates on RULER samples, "long essays with planted facts, so the far field carries real evidence"; so half of the prompts
//! here are such, and half are the text alone.

use super::corpus::{Corpus, Half, Kind, Passages};
use super::ruler::{Ruler, Task};
use super::{Framing, PromptError};

/// Bytes of text read for a token, to begin with.
const BYTES_A_TOKEN: usize = 5;
/// Tasks whose haystack is text of the corpus.
const PLANTED: [Task; 4] = [Task::NiahMultivalue, Task::NiahSingle3, Task::NiahMultiquery, Task::NiahMultikey1];

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalibrationPrompt {
    /// Exactly as many as were asked for.
    pub tokens: Vec<u32>,
    /// What kind of text it is.
    pub kind: Kind,
    /// Where it is from: the task that it asks, if any, and the place in the corpus.
    pub source: String,
}

/// A prompt of each length, of the corpus's kinds in turn. No passage of text is in two of them while there is other text, and none is in
/// both halves. The seed chooses where passages begin.
///
/// # Errors
/// A length that half of the corpus's text of a kind does not have, or encoding failed.
pub fn calibration_prompts(
    corpus: &Corpus,
    half: Half,
    framing: &Framing<'_>,
    lengths: &[usize],
    seed: u64,
) -> Result<Vec<CalibrationPrompt>, PromptError> {
    let kinds: Vec<Kind> = corpus.kinds().collect();
    let ruler = Ruler::new(framing, corpus, half)?;
    let mut passages: Vec<Passages<'_>> = kinds.iter().map(|&kind| corpus.passages(kind, half, seed)).collect();
    let mut out = Vec::with_capacity(lengths.len());
    for (index, &length) in lengths.iter().enumerate() {
        let passages = &mut passages[index % kinds.len()];
        let round = index / kinds.len();
        // Every kind has both sorts, and so has every round.
        let planted = (index % kinds.len() + round) % 2 == 1;
        let prompt = if planted { plant(&ruler, passages, length, seed, round)? } else { None };
        out.push(match prompt {
            Some(prompt) => prompt,
            None => plain(framing, passages, length)?,
        });
    }
    Ok(out)
}

fn plain(framing: &Framing<'_>, passages: &mut Passages<'_>, length: usize) -> Result<CalibrationPrompt, PromptError> {
    let mut bytes = length * BYTES_A_TOKEN;
    loop {
        let passage = passages.next(bytes)?;
        let mut tokens = framing.raw(&passage.text)?;
        if tokens.len() >= length {
            tokens.truncate(length);
            return Ok(CalibrationPrompt { tokens, kind: passages.kind(), source: passage.place });
        }
        // Long words: twice the text has more. It ends where the corpus does.
        passages.back(&passage);
        bytes *= 2;
    }
}

/// None where the length has no room for the question.
fn plant(
    ruler: &Ruler<'_>,
    passages: &mut Passages<'_>,
    length: usize,
    seed: u64,
    round: usize,
) -> Result<Option<CalibrationPrompt>, PromptError> {
    let task = PLANTED[round / 2 % PLANTED.len()];
    let passage = passages.next(length * BYTES_A_TOKEN)?;
    match ruler.planted(task, &passage.text, length, seed, round) {
        Ok(tokens) if tokens.len() == length => {
            let source = format!("{} in {}", task.name(), passage.place);
            Ok(Some(CalibrationPrompt { tokens, kind: passages.kind(), source }))
        }
        Ok(_) | Err(PromptError::TooLong { .. }) => {
            passages.back(&passage);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
