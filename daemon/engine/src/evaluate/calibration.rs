//! Prompts to calibrate and to check tables with: real text of exactly so many tokens, part of it with facts planted and asked for.
//!
//! The reference calibrates on RULER samples, "long essays with planted facts, so the far field carries real evidence"; so half of the prompts
//! here are such, and half are the text alone.

use super::corpus::{Corpus, Half, Kind, Passages};
use super::ruler::{Ruler, Task};
use super::{Framing, PromptError, side};

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

/// A prompt to be made, and the text that it begins at.
struct Wanted<'a> {
    length: usize,
    /// How many of its kind are before it.
    round: usize,
    planted: bool,
    passages: Passages<'a>,
}

/// A prompt of each length, of the corpus's kinds in turn. No passage of text is in two of them while there is other text, and none is in
/// both halves. The seed chooses where passages begin. They are made on the processor's other cores; how many there are changes nothing.
///
/// # Errors
/// A length that half of the corpus's text of a kind does not have, encoding failed, or it was cancelled.
pub fn calibration_prompts(
    corpus: &Corpus,
    half: Half,
    framing: &Framing<'_>,
    lengths: &[usize],
    seed: u64,
) -> Result<Vec<CalibrationPrompt>, PromptError> {
    prompts_of(corpus, half, framing, lengths, (seed, side::threads()))
}

/// Where a prompt's text ends is known once it is made, as a rule where it was thought to. So many at once are made from where the ones before
/// are thought to end; from the first on that began elsewhere they are made again.
fn prompts_of(
    corpus: &Corpus,
    half: Half,
    framing: &Framing<'_>,
    lengths: &[usize],
    (seed, at_once): (u64, usize),
) -> Result<Vec<CalibrationPrompt>, PromptError> {
    let kinds: Vec<Kind> = corpus.kinds().collect();
    let ruler = Ruler::new(framing, corpus, half)?;
    let mut passages: Vec<Passages<'_>> = kinds.iter().map(|&kind| corpus.passages(kind, half, seed)).collect();
    let mut out = Vec::with_capacity(lengths.len());
    while out.len() < lengths.len() {
        let mut thought = passages.clone();
        let wanted: Vec<Wanted<'_>> = (out.len()..lengths.len().min(out.len() + at_once.max(1)))
            .map(|index| {
                let (of_kind, round, length) = (&mut thought[index % kinds.len()], index / kinds.len(), lengths[index]);
                let passages = of_kind.clone();
                // Too little text is told where the prompt is made.
                of_kind.skip(length.saturating_mul(BYTES_A_TOKEN));
                // Every kind has both sorts, and so has every round.
                Wanted { length, round, planted: (index % kinds.len() + round) % 2 == 1, passages }
            })
            .collect();
        for (wanted, (made, end)) in wanted.iter().zip(side::map(&wanted, |wanted| make(&ruler, framing, wanted, seed))) {
            let of_kind = &mut passages[out.len() % kinds.len()];
            if wanted.passages.place() != of_kind.place() {
                break;
            }
            out.push(made?);
            *of_kind = end;
        }
    }
    Ok(out)
}

/// The prompt, and what text there is behind it.
fn make<'a>(
    ruler: &Ruler<'_>,
    framing: &Framing<'_>,
    wanted: &Wanted<'a>,
    seed: u64,
) -> (Result<CalibrationPrompt, PromptError>, Passages<'a>) {
    let mut passages = wanted.passages.clone();
    let planted = if wanted.planted { plant(ruler, &mut passages, wanted.length, seed, wanted.round) } else { Ok(None) };
    let made = match planted {
        Ok(Some(prompt)) => Ok(prompt),
        Ok(None) => plain(framing, &mut passages, wanted.length),
        Err(error) => Err(error),
    };
    (made, passages)
}

fn plain(framing: &Framing<'_>, passages: &mut Passages<'_>, length: usize) -> Result<CalibrationPrompt, PromptError> {
    let mut bytes = length.saturating_mul(BYTES_A_TOKEN);
    loop {
        let passage = passages.next(bytes)?;
        let mut tokens = framing.raw(&passage.text)?;
        if tokens.len() >= length {
            tokens.truncate(length);
            return Ok(CalibrationPrompt { tokens, kind: passages.kind(), source: passage.place });
        }
        // Long words: twice the text has more. It ends where the corpus does.
        passages.back(&passage);
        bytes = bytes.saturating_mul(2);
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
    let passage = passages.next(length.saturating_mul(BYTES_A_TOKEN))?;
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

#[cfg(test)]
mod tests {
    use super::super::corpus::Limits;
    use super::super::testing;
    use super::*;
    use crate::regular::NEVER;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn corpus_of(text: impl Fn(u64) -> String) -> Corpus {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.txt"), text(1)).unwrap();
        std::fs::write(dir.path().join("b.md"), text(2)).unwrap();
        Corpus::load(&[dir.path().to_owned()], &Limits::default(), NEVER).unwrap()
    }

    const LONG: &str =
        "misunderstanding interchangeable responsibility characteristics extraordinarily straightforward congratulations telecommunication";

    /// Words of a token each that are longer than what is read for one at first.
    fn long_words(state: u64) -> String {
        let words: Vec<&str> = LONG.split(' ').collect();
        let mut rng = super::super::seed::Rng::named(state, "long");
        (0..20_000).map(|i| format!("{}{}", rng.pick(&words), if i % 20 == 19 { "\n\n" } else { " " })).collect()
    }

    #[test]
    fn prompts_are_the_same_however_many_are_made_at_once() {
        let (short, long) = (testing::small(), testing::tokenizer(LONG));
        for (tokenizer, corpus) in [(short, corpus_of(|i| testing::prose(200_000, i))), (long, corpus_of(long_words))] {
            let framing = Framing::plain(&tokenizer);
            let lengths = [700, 900, 1100, 650, 800, 2000, 900, 700, 1200];
            let of = |at_once| prompts_of(&corpus, Half::Calibration, &framing, &lengths, (3, at_once)).unwrap();
            let one = of(1);
            assert_eq!(one.iter().map(|prompt| prompt.tokens.len()).collect::<Vec<_>>(), lengths);
            for at_once in [2, 3, 9, 50] {
                assert_eq!(of(at_once), one, "{at_once}");
            }
        }
    }

    #[test]
    fn text_of_long_words_is_read_again() {
        // Where this did not hold, the test above would not see a prompt that ends elsewhere than was thought.
        let (corpus, tokenizer) = (corpus_of(long_words), testing::tokenizer(LONG));
        let made = calibration_prompts(&corpus, Half::Calibration, &Framing::plain(&tokenizer), &[700], 3).unwrap();
        assert!(tokenizer.decode(&made[0].tokens, true).len() > 700 * BYTES_A_TOKEN);
    }

    #[test]
    fn making_prompts_ends_between_two_encodings() {
        let (corpus, tokenizer) = (corpus_of(|i| testing::prose(200_000, i)), testing::small());
        let encoded = AtomicUsize::new(0);
        let cancelled = || encoded.fetch_add(1, Ordering::Relaxed) >= 40;
        let framing = Framing::plain(&tokenizer).until(&cancelled);
        let error = calibration_prompts(&corpus, Half::Check, &framing, &[600; 64], 1).unwrap_err();
        assert!(matches!(error, PromptError::Cancelled), "{error}");
        // Every prompt under way looks once more.
        assert!(encoded.load(Ordering::Relaxed) < 40 + 64 + 16);
    }
}
