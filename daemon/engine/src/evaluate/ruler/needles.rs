//! The eight needle-in-a-haystack tasks.

use super::super::fit::Draft;
use super::super::seed::Rng;
use super::{Task, prompts, vocabulary};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hay {
    /// The same five sentences, line by line.
    Noise,
    /// Text of the corpus.
    Text,
    /// Other needles.
    Needles,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    /// An adjective and a noun.
    Pair,
    Number,
    Uuid,
}

impl Word {
    fn name(self) -> &'static str {
        match self {
            Self::Pair => "words",
            Self::Number => "numbers",
            Self::Uuid => "uuids",
        }
    }

    fn make(self, rng: &mut Rng) -> String {
        match self {
            Self::Pair => vocabulary::pair(rng),
            // Seven digits.
            Self::Number => (1_000_000 + rng.below(9_000_000)).to_string(),
            Self::Uuid => {
                // Version 4, variant 1.
                let (high, low) = (rng.next() & !0xf000 | 0x4000, rng.next() & !(3 << 62) | 2 << 62);
                let part = |value: u64, shift: u32, mask: u64| value >> shift & mask;
                format!(
                    "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
                    part(high, 32, 0xffff_ffff),
                    part(high, 16, 0xffff),
                    part(high, 0, 0xffff),
                    part(low, 48, 0xffff),
                    part(low, 0, 0xffff_ffff_ffff)
                )
            }
        }
    }
}

/// What a task hides, where, and how much of it is asked for.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    hay: Hay,
    keys: Word,
    values: Word,
    /// Keys, values of each, and keys asked for.
    counts: (usize, usize, usize),
}

impl Shape {
    /// RULER's synthetic.yaml.
    pub(super) fn of(task: Task) -> Self {
        let (hay, keys, values, counts) = match task {
            Task::NiahSingle2 => (Hay::Text, Word::Pair, Word::Number, (1, 1, 1)),
            Task::NiahSingle3 => (Hay::Text, Word::Pair, Word::Uuid, (1, 1, 1)),
            Task::NiahMultikey1 => (Hay::Text, Word::Pair, Word::Number, (4, 1, 1)),
            Task::NiahMultikey2 => (Hay::Needles, Word::Pair, Word::Number, (1, 1, 1)),
            Task::NiahMultikey3 => (Hay::Needles, Word::Uuid, Word::Uuid, (1, 1, 1)),
            Task::NiahMultivalue => (Hay::Text, Word::Pair, Word::Number, (1, 4, 1)),
            Task::NiahMultiquery => (Hay::Text, Word::Pair, Word::Number, (4, 1, 4)),
            _ => (Hay::Noise, Word::Pair, Word::Number, (1, 1, 1)),
        };
        Self { hay, keys, values, counts }
    }

    pub(super) fn reads_text(&self) -> bool {
        self.hay == Hay::Text
    }
}

/// Makes drafts with the same needles in more or less hay.
pub(super) struct Builder<'t> {
    shape: Shape,
    /// Words of the haystack, and behind which of them a sentence ends.
    words: Vec<&'t str>,
    ends: Vec<usize>,
    needles: Vec<String>,
    /// How deep each needle lies, from 0 to 1, ascending.
    depths: Vec<f64>,
    queries: Vec<String>,
    answers: Vec<String>,
    /// Makes the other needles; a copy of it makes the same.
    rng: Rng,
}

impl<'t> Builder<'t> {
    pub(super) fn new(shape: Shape, text: &'t str, mut rng: Rng) -> Self {
        let (keys, values_each, asked) = shape.counts;
        let mut pairs: Vec<(String, Vec<String>)> = Vec::new();
        while pairs.len() < keys {
            let key = shape.keys.make(&mut rng);
            if pairs.iter().all(|(other, _)| *other != key) {
                pairs.push((key, (0..values_each).map(|_| shape.values.make(&mut rng)).collect()));
            }
        }
        let needle = |key: &str, value: &String| prompts::needle(shape.values.name(), key, value);
        let mut needles: Vec<String> = pairs.iter().flat_map(|(key, values)| values.iter().map(|value| needle(key, value))).collect();
        rng.shuffle(&mut needles);
        // In text RULER draws from 40 depths, 0 to 100 %; among lines, from all places.
        let mut depths: Vec<f64> = match shape.hay {
            Hay::Text => rng.sample(40, needles.len()).into_iter().map(|depth| depth as f64 / 39.0).collect(),
            _ => needles.iter().map(|_| rng.fraction()).collect(),
        };
        depths.sort_by(f64::total_cmp);
        let chosen = rng.sample(keys, asked);
        let queries = chosen.iter().map(|&i| pairs[i].0.clone()).collect();
        let answers = chosen.iter().flat_map(|&i| pairs[i].1.clone()).collect();
        let words: Vec<&str> = match shape.hay {
            Hay::Text => text.split_whitespace().collect(),
            _ => prompts::NOISE.split(' ').collect(),
        };
        let ends = sentence_ends(&words);
        Self { shape, words, ends, needles, depths, queries, answers, rng }
    }

    /// Units that a prompt of `tokens` tokens can hold at most: words of hay, or other needles.
    pub(super) fn most(&self, tokens: usize) -> usize {
        tokens
    }

    pub(super) fn draft(&self, units: usize, filler: &[&str]) -> Draft {
        let mut context = match self.shape.hay {
            Hay::Text => self.text(units),
            Hay::Noise => noise(units, self.needles.iter().map(String::as_str).zip(self.depths.iter().copied())),
            Hay::Needles => self.others(units),
        };
        if !filler.is_empty() {
            context.push(if self.shape.hay == Hay::Needles { '\n' } else { ' ' });
            context.push_str(&filler.join(" "));
        }
        let query = match self.queries.as_slice() {
            [] => String::new(),
            [one] => one.clone(),
            [front @ .., last] => format!("{}, and {last}", front.join(", ")),
        };
        let single = self.shape.counts.1 * self.shape.counts.2 == 1;
        let (content, prefix) = prompts::needles(self.shape.values.name(), &context, &query, single);
        Draft { content, prefix, answers: self.answers.clone() }
    }

    /// The first words, from the beginning again where they run out, with the needles between sentences.
    fn text(&self, units: usize) -> String {
        if self.words.is_empty() {
            return self.needles.join(" ");
        }
        let ends: Vec<usize> = (0..)
            .flat_map(|round| self.ends.iter().map(move |end| round * self.words.len() + end))
            .take_while(|&end| end < units)
            .collect();
        let sentences = ends.len() + usize::from(units > 0);
        let mut places = self.depths.iter().map(|depth| {
            let sentence = (sentences as f64 * depth) as usize;
            if sentence == 0 { 0 } else { ends.get(sentence - 1).copied().unwrap_or(units) }
        });
        let mut needles = self.needles.iter();
        let mut next = places.next();
        let mut out: Vec<&str> = Vec::with_capacity(units + self.needles.len());
        for word in 0..=units {
            while next == Some(word) {
                out.extend(needles.next().map(String::as_str));
                next = places.next();
            }
            if word < units {
                out.push(self.words[word % self.words.len()]);
            }
        }
        out.join(" ")
    }

    fn others(&self, units: usize) -> String {
        let mut rng = self.rng.clone();
        let mut lines: Vec<String> = Vec::with_capacity(units + 1);
        while lines.len() < units {
            let key = self.shape.keys.make(&mut rng);
            // Another needle of the same key would be another answer.
            if !self.queries.contains(&key) {
                lines.push(prompts::needle(self.shape.values.name(), &key, &self.shape.values.make(&mut rng)));
            }
        }
        for (needle, depth) in self.needles.iter().zip(&self.depths).rev() {
            lines.insert((units as f64 * depth) as usize, needle.clone());
        }
        lines.join("\n")
    }
}

/// Lines of noise, of `words` words in all, with statements between them at depths from 0 to 1, ascending.
pub(super) fn noise<'n>(words: usize, statements: impl Iterator<Item = (&'n str, f64)>) -> String {
    let each: Vec<&str> = prompts::NOISE.split(' ').collect();
    let (whole, part) = (words / each.len(), words % each.len());
    let mut lines: Vec<String> = vec![prompts::NOISE.to_owned(); whole];
    if part > 0 {
        lines.push(each[..part].join(" "));
    }
    let placed: Vec<(usize, &str)> = statements.map(|(text, depth)| ((whole as f64 * depth) as usize, text)).collect();
    for (place, text) in placed.into_iter().rev() {
        lines.insert(place, text.to_owned());
    }
    lines.join("\n")
}

/// How many words there are up to the end of each sentence. What has no full stops is cut every 40 words.
fn sentence_ends(words: &[&str]) -> Vec<usize> {
    let mut out = Vec::new();
    let mut last = 0;
    for (index, word) in words.iter().enumerate() {
        let word = word.trim_end_matches(['"', '\'', ')', ']', '”', '’']);
        if word.ends_with(['.', '!', '?']) || index + 1 - last >= 40 {
            last = index + 1;
            out.push(last);
        }
    }
    if last < words.len() {
        out.push(words.len());
    }
    out
}
