//! Whether bytes are text that people wrote.
//!
//! Three signs, each measured on up to 32 KiB (half from the start, half from the middle), tell it from data:
//! - control characters, other than line breaks, tabs and form feeds, are rare (at most 1 in 200; a NUL is never text);
//! - it has words: white space comes, on average, at least every 32 bytes (English 6 to 8, source 8 to 20, base64 77, UUIDs 37);
//! - it repeats itself: of its windows of 8 bytes at least 15 % occur twice in the sample (licences .46, documentation .45 to .9, source
//!   more; random tokens of SmolLM2's vocabulary .09, numbers, UUIDs and random bytes 0).

const SAMPLE: usize = 32 << 10;
const MAX_CONTROL: f64 = 1.0 / 200.0;
const MAX_WORD: f64 = 32.0;
const WINDOW: usize = 8;
const MIN_REPEATED: f64 = 0.15;
/// A sample of less says nothing about repetition.
const MIN_SAMPLE: usize = 4096;

/// Why bytes are no text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Nothing in it.
    #[error("empty")]
    Empty,
    /// Not UTF-8; nothing is replaced or guessed.
    #[error("not UTF-8 at byte {at}; convert it, or name another file")]
    NotUtf8 {
        /// The first byte that is not.
        at: usize,
    },
    /// Control characters.
    #[error("binary: {} of 1,000 characters are control characters, and text has at most 5", (share * 1000.0).round())]
    Binary {
        /// Control characters' share.
        share: f64,
    },
    /// No words.
    #[error("no words: white space comes every {every:.0} bytes, and in text at least every 32 (encoded or compressed data?)")]
    NoWords {
        /// Bytes from one white space to the next.
        every: f64,
    },
    /// No repetition.
    #[error("looks random: {} % of its 8-byte windows occur twice in {sample} bytes, and of text at least 15 %", (repeated * 100.0).round())]
    Random {
        /// Share of windows that occur more than once.
        repeated: f64,
        /// Bytes looked at.
        sample: usize,
    },
}

/// The bytes as text. `cut` says that the end was cut off, which may fall into a character.
pub(super) fn text(mut bytes: Vec<u8>, cut: bool) -> Result<String, Refusal> {
    if cut {
        // To the last whole line, or else the last whole character.
        let end = bytes.iter().rposition(|&b| b == b'\n').map(|at| at + 1);
        let end = end.or_else(|| std::str::from_utf8(&bytes).err().filter(|e| e.error_len().is_none()).map(|e| e.valid_up_to()));
        bytes.truncate(end.unwrap_or(bytes.len()));
    }
    if bytes.contains(&0) {
        let share = bytes.iter().filter(|b| b.is_ascii_control() && !b.is_ascii_whitespace()).count() as f64 / bytes.len() as f64;
        return Err(Refusal::Binary { share });
    }
    let text = String::from_utf8(bytes).map_err(|e| Refusal::NotUtf8 { at: e.utf8_error().valid_up_to() })?;
    judge(&text)?;
    Ok(text)
}

/// The share of letters and white space among a text's characters.
pub(super) fn letters(text: &str) -> f64 {
    let (mut letters, mut all) = (0usize, 0usize);
    for c in text.chars().take(SAMPLE) {
        letters += usize::from(c.is_alphabetic() || c.is_whitespace());
        all += 1;
    }
    letters as f64 / all.max(1) as f64
}

fn judge(text: &str) -> Result<(), Refusal> {
    if text.trim().is_empty() {
        return Err(Refusal::Empty);
    }
    let sample = sample(text.as_bytes());
    let control = sample.iter().filter(|b| b.is_ascii_control() && !b.is_ascii_whitespace() && **b != 8).count();
    let share = control as f64 / sample.len() as f64;
    if share > MAX_CONTROL {
        return Err(Refusal::Binary { share });
    }
    // Scripts without spaces between words have many bytes from one white space to the next; repetition alone tells for them.
    let ascii = sample.iter().filter(|b| b.is_ascii()).count() as f64 / sample.len() as f64;
    let words = sample.split(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty()).count();
    let every = sample.len() as f64 / words.max(1) as f64;
    if every > MAX_WORD && ascii > 0.5 && sample.len() >= 256 {
        return Err(Refusal::NoWords { every });
    }
    let repeated = repeated(&sample);
    if sample.len() >= MIN_SAMPLE && repeated < MIN_REPEATED {
        return Err(Refusal::Random { repeated, sample: sample.len() });
    }
    Ok(())
}

fn sample(bytes: &[u8]) -> Vec<u8> {
    if bytes.len() <= SAMPLE {
        return bytes.to_vec();
    }
    let middle = (bytes.len() / 2).min(bytes.len() - SAMPLE / 2);
    [&bytes[..SAMPLE / 2], &bytes[middle..middle + SAMPLE / 2]].concat()
}

fn repeated(sample: &[u8]) -> f64 {
    let mut windows: Vec<u64> = sample.windows(WINDOW).map(|w| w.iter().fold(0, |sum, &b| sum << 8 | u64::from(b))).collect();
    windows.sort_unstable();
    let twice: usize = windows.chunk_by(|a, b| a == b).filter(|same| same.len() > 1).map(<[u64]>::len).sum();
    twice as f64 / windows.len().max(1) as f64
}
