//! The two tasks of aggregation: the ten most common words of a list, and the three most frequent of a coded text.

use super::super::fit::Draft;
use super::super::seed::Rng;
use super::{prompts, vocabulary};

const COMMON: usize = 10;

/// Common words: ten occur 30 times each, all others 3 times, numbered; below 4,096 tokens 6 times and once. An example comes first.
pub(super) struct Common {
    words: Vec<String>,
    example: String,
    /// How often a common word occurs, and another.
    repeats: (usize, usize),
    rng: Rng,
}

impl Common {
    pub(super) fn new(words: &[String], length: usize, mut rng: Rng) -> Self {
        let short = length < 4096;
        let repeats = if short { (6, 1) } else { (30, 3) };
        // Words of the example and its repeats.
        let (shown, shown_repeats) = if short { (20, (3, 1)) } else { (40, (10, 3)) };
        let mut words = words.to_vec();
        rng.shuffle(&mut words);
        let shown = words.split_off(words.len().saturating_sub(shown));
        let (content, prefix) = prompts::common(&list(&shown, shown_repeats, rng.clone()));
        let answer = shown.iter().take(COMMON).enumerate().map(|(i, word)| format!("{}. {word}", i + 1)).collect::<Vec<_>>().join(" ");
        Self { words, example: format!("{content}{prefix} {answer}"), repeats, rng }
    }

    /// `units` words that are not common.
    pub(super) fn draft(&self, units: usize, filler: &[&str]) -> Draft {
        let mut words: Vec<String> = self.words.iter().take(COMMON + units).cloned().collect();
        // More than the list has: pairs of words.
        let mut rng = self.rng.clone();
        while words.len() < COMMON + units {
            words.push(vocabulary::pair(&mut rng));
        }
        let (content, prefix) = prompts::common(&list(&words, self.repeats, self.rng.clone()));
        let content = prompts::led(filler, format!("{}\n{content}", self.example));
        Draft { content, prefix, answers: words.into_iter().take(COMMON).collect() }
    }
}

/// `1. word 2. word …`, the first ten words the more frequent.
fn list(words: &[String], (common, other): (usize, usize), mut rng: Rng) -> String {
    let times = |index: usize| if index < COMMON { common } else { other };
    let mut all: Vec<&str> = words.iter().enumerate().flat_map(|(i, word)| std::iter::repeat_n(word.as_str(), times(i))).collect();
    rng.shuffle(&mut all);
    all.iter().enumerate().map(|(i, word)| format!("{}. {word}", i + 1)).collect::<Vec<_>>().join(" ")
}

/// Frequent words: words of six random letters, the k-th as often as a zeta distribution of exponent 2 says; the first is dots.
pub(super) struct Frequent {
    vocabulary: Vec<String>,
    rng: Rng,
}

impl Frequent {
    /// Tokens of the prompt with which the vocabulary has its four first words.
    pub(super) const LEAST: usize = 200;

    /// The vocabulary of a prompt of `room` tokens: a word for every 50. None where that is too few.
    pub(super) fn new(room: usize, mut rng: Rng) -> Option<Self> {
        if room < Self::LEAST {
            return None;
        }
        let mut seen = std::collections::HashSet::new();
        let mut vocabulary = vec!["...".to_owned()];
        while vocabulary.len() < room / 50 {
            let word: String = (0..6).map(|_| char::from(b'a' + rng.below(26) as u8)).collect();
            if seen.insert(word.clone()) {
                vocabulary.push(word);
            }
        }
        Some(Self { vocabulary, rng })
    }

    /// `units` words, before the counts are rounded down.
    pub(super) fn draft(&self, units: usize, filler: &[&str]) -> Draft {
        const ZETA_2: f64 = std::f64::consts::PI * std::f64::consts::PI / 6.0;
        let count = |rank: usize| (units as f64 / (rank * rank) as f64 / ZETA_2) as usize;
        let counted = self.vocabulary.iter().enumerate();
        let mut words: Vec<&str> = counted.flat_map(|(i, word)| std::iter::repeat_n(word.as_str(), count(i + 1))).collect();
        self.rng.clone().shuffle(&mut words);
        let (content, prefix) = prompts::frequent(&words.join(" "));
        Draft { content: prompts::led(filler, content), prefix, answers: self.vocabulary[1..4].to_vec() }
    }
}
