//! Prompts of exactly so many tokens: as much haystack as fits, and whole filler words for the rest.
//!
//! A tokenizer's count does not grow by one a word, so nothing is assumed: every candidate is encoded whole, template and all, and what is
//! still missing is asked of the filler again.

use super::{Framing, PromptError};

/// Words that pad; one token each, behind a space, for tokenizers trained on English.
const WORDS: [&str; 10] = ["here", "we", "go", "there", "and", "back", "again", "so", "a", "then"];
/// So near to the wanted length the search for haystack ends.
const NEAR: usize = 8;
/// Filler is never longer, in tokens.
const MAX_FILLER: usize = 4096;
/// Candidates encoded at most: to bracket the amount of haystack, and to place the filler.
const SEARCHES: usize = 40;
const PADDINGS: usize = 12;

/// A question's parts before it becomes tokens.
pub(super) struct Draft {
    /// What the user says.
    pub content: String,
    /// The first words of the answer.
    pub prefix: String,
    /// What the answer must hold.
    pub answers: Vec<String>,
}

/// Encodes the draft of some units and some filler.
type Attempt<'a> = dyn Fn(usize, &[&str]) -> Result<Fitted, PromptError> + 'a;

/// A question of the wanted length, or the closest below it that was found.
pub(super) struct Fitted {
    pub draft: Draft,
    pub tokens: Vec<u32>,
}

/// Padding, with its price in tokens.
pub(super) struct Filler {
    words: Vec<(&'static str, usize)>,
}

impl Filler {
    /// Prices the words with a tokenizer.
    pub(super) fn measure(framing: &Framing<'_>) -> Result<Self, PromptError> {
        let count = |text: &str| framing.raw(text).map(|tokens| tokens.len());
        let base = count("we go")?;
        let mut words = Vec::new();
        for word in WORDS {
            let price = count(&format!("we go {word}"))?.saturating_sub(base);
            if price > 0 {
                words.push((word, price));
            }
        }
        Ok(Self { words })
    }

    /// Words of `tokens` tokens in all; None where no selection of them has that many.
    fn of(&self, tokens: usize) -> Option<Vec<&'static str>> {
        if tokens > MAX_FILLER {
            return None;
        }
        let mut reachable = vec![false; tokens + 1];
        reachable[0] = true;
        for sum in 1..=tokens {
            reachable[sum] = self.words.iter().any(|&(_, price)| price <= sum && reachable[sum - price]);
        }
        let (mut rest, mut out) = (tokens, Vec::new());
        while rest > 0 {
            let turn = out.len();
            let mut candidates = (0..self.words.len()).map(|i| self.words[(turn + i) % self.words.len()]);
            let (word, price) = candidates.find(|&(_, price)| price <= rest && reachable[rest - price])?;
            out.push(word);
            rest -= price;
        }
        Some(out)
    }
}

/// Makes the draft with the most units of haystack, of at most `max_units`, that fits into `wanted` tokens, and pads it to them.
///
/// `build` makes the draft of some units and some filler; the same units must always give the same draft.
///
/// # Errors
/// Nothing fits, or encoding failed.
pub(super) fn fit(
    task: &str,
    framing: &Framing<'_>,
    filler: &Filler,
    wanted: usize,
    max_units: usize,
    build: &dyn Fn(usize, &[&str]) -> Draft,
) -> Result<Fitted, PromptError> {
    let attempt = |units: usize, words: &[&str]| -> Result<Fitted, PromptError> {
        let draft = build(units, words);
        let tokens = framing.user(&draft.content, &draft.prefix)?;
        Ok(Fitted { draft, tokens })
    };
    let (mut units, mut best) = (0, attempt(0, &[])?);
    let least = best.tokens.len();
    if least > wanted {
        return Err(PromptError::TooLong { task: task.to_owned(), wanted, least });
    }
    let mut above = max_units + 1;
    let mut slope = 1.0f64;
    for search in 0..SEARCHES {
        let missing = wanted - best.tokens.len();
        if missing <= NEAR || above - units <= 1 {
            break;
        }
        let guess = match search {
            0 => 64,
            // What interpolation only approaches, halving ends.
            s if s % 4 == 3 => units + (above - units) / 2,
            _ => units + ((missing as f64 / slope) as usize).max(1),
        };
        let guess = guess.clamp(units + 1, above - 1);
        let found = attempt(guess, &[])?;
        slope = (found.tokens.len().saturating_sub(least) as f64 / guess as f64).max(0.01);
        if found.tokens.len() <= wanted {
            (units, best) = (guess, found);
        } else {
            above = guess;
        }
    }
    pad(filler, wanted, units, best, &attempt)
}

fn pad(filler: &Filler, wanted: usize, mut units: usize, mut best: Fitted, attempt: &Attempt<'_>) -> Result<Fitted, PromptError> {
    let mut ask = wanted as isize - best.tokens.len() as isize;
    for _ in 0..PADDINGS {
        if best.tokens.len() == wanted {
            break;
        }
        let words = usize::try_from(ask).ok().filter(|&ask| ask > 0).and_then(|ask| filler.of(ask));
        let Some(words) = words else {
            // Less than a word is missing: give up a unit of haystack, and fill what that leaves.
            let Some(fewer) = units.checked_sub(1) else { break };
            units = fewer;
            ask = wanted as isize - attempt(units, &[])?.tokens.len() as isize;
            continue;
        };
        let found = attempt(units, &words)?;
        ask += wanted as isize - found.tokens.len() as isize;
        if found.tokens.len() <= wanted && found.tokens.len() > best.tokens.len() {
            best = found;
        }
    }
    Ok(best)
}
