//! Answers to scores from 0 to 1: RULER's string matches, LongBench's metrics, and choices.

mod overlap;
mod similarity;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

/// How an answer is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// RULER's `string_match_all`: the share of references that the answer contains, upper and lower case alike.
    RulerAll,
    /// RULER's `string_match_part`: 1 where it contains any.
    RulerPart,
    /// LongBench's F1 over words, without punctuation and articles.
    QaF1,
    /// LongBench's ROUGE-L, which is that of the Python package `rouge`.
    RougeL,
    /// LongBench's classification: 1 divided by the classes that the answer names, if the right one is among them.
    Classification,
    /// LongBench's retrieval: the share of the answer's numbers that are the reference's.
    Retrieval,
    /// LongBench's count: likewise, the reference being a number.
    Count,
    /// LongBench's code similarity: the first line that is no comment, by difflib's ratio, in whole percent.
    CodeSimilarity,
    /// The letter of a choice.
    Choice,
    /// The same, but for punctuation, articles, case and white space.
    Exact,
    /// The answer contains a reference as it stands.
    Contains,
}

impl Metric {
    /// All.
    pub const ALL: [Self; 11] = [
        Self::RulerAll,
        Self::RulerPart,
        Self::QaF1,
        Self::RougeL,
        Self::Classification,
        Self::Retrieval,
        Self::Count,
        Self::CodeSimilarity,
        Self::Choice,
        Self::Exact,
        Self::Contains,
    ];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::RulerAll => "ruler_all",
            Self::RulerPart => "ruler_part",
            Self::QaF1 => "qa_f1",
            Self::RougeL => "rouge_l",
            Self::Classification => "classification",
            Self::Retrieval => "retrieval",
            Self::Count => "count",
            Self::CodeSimilarity => "code_similarity",
            Self::Choice => "choice",
            Self::Exact => "exact",
            Self::Contains => "contains",
        }
    }

    /// The metric of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|metric| metric.name() == name)
    }
}

/// What an answer is held against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// How.
    pub metric: Metric,
    /// Right answers.
    pub answers: Vec<String>,
    /// Every class, for [`Metric::Classification`].
    pub classes: Vec<String>,
    /// Only the answer's first line counts, as LongBench has it for tasks with examples.
    pub first_line: bool,
}

impl Reference {
    /// Against some answers.
    pub fn new(metric: Metric, answers: Vec<String>) -> Self {
        Self { metric, answers, classes: Vec::new(), first_line: false }
    }

    /// The score of an answer, from 0 to 1: over several references the best, or for RULER's `string_match_all` their mean. Thoughts
    /// (up to `</think>`, or all of it where that never comes) are not part of the answer.
    pub fn score(&self, answer: &str) -> f64 {
        let answer = without_thoughts(answer);
        let answer = if self.first_line { answer.trim_start_matches('\n').split('\n').next().unwrap_or_default() } else { answer };
        let contained = |text: &str, reference: &String| f64::from(u8::from(text.contains(&reference.to_lowercase())));
        let best = |score: &dyn Fn(&str) -> f64| self.answers.iter().map(|reference| score(reference)).fold(0.0, f64::max);
        match self.metric {
            Metric::RulerAll => {
                let text = answer.to_lowercase();
                let sum: f64 = self.answers.iter().map(|reference| contained(&text, reference)).sum();
                if self.answers.is_empty() { 0.0 } else { sum / self.answers.len() as f64 }
            }
            Metric::RulerPart => {
                let text = answer.to_lowercase();
                self.answers.iter().map(|reference| contained(&text, reference)).fold(0.0, f64::max)
            }
            Metric::QaF1 => best(&|reference| overlap::f1(answer, reference)),
            Metric::RougeL => best(&|reference| overlap::rouge_l(answer, reference)),
            Metric::Classification => best(&|reference| classification(answer, reference, &self.classes)),
            Metric::Retrieval => best(&|reference| reference_number(reference).map_or(0.0, |number| share_of_numbers(answer, number))),
            Metric::Count => best(&|reference| share_of_numbers(answer, reference)),
            Metric::CodeSimilarity => best(&|reference| similarity::code(answer, reference)),
            Metric::Choice => best(&|reference| f64::from(u8::from(choice(answer).is_some_and(|c| reference.trim() == c.to_string())))),
            Metric::Exact => {
                let said = overlap::normalised(answer);
                best(&|reference| f64::from(u8::from(said == overlap::normalised(reference))))
            }
            Metric::Contains => best(&|reference| f64::from(u8::from(answer.contains(reference)))),
        }
    }
}

fn without_thoughts(answer: &str) -> &str {
    match answer.rsplit_once("</think>") {
        Some((_, said)) => said,
        None if answer.trim_start().starts_with("<think>") => "",
        None => answer,
    }
}

/// Classes named in the answer; of those that the right one contains, the list is rid as LongBench rids it: while it goes through the list,
/// so that the one behind each is not looked at.
fn classification(answer: &str, right: &str, classes: &[String]) -> f64 {
    let mut named: Vec<&str> = classes.iter().map(String::as_str).filter(|class| answer.contains(class)).collect();
    let mut at = 0;
    while at < named.len() {
        let class = named[at];
        if right.contains(class) && class != right {
            let first = named.iter().position(|other| *other == class).unwrap_or(at);
            named.remove(first);
        }
        at += 1;
    }
    if named.contains(&right) { 1.0 / named.len() as f64 } else { 0.0 }
}

fn numbers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty())
}

fn share_of_numbers(answer: &str, right: &str) -> f64 {
    let all = numbers(answer).count();
    let found = numbers(answer).filter(|number| *number == right).count();
    if all == 0 { 0.0 } else { found as f64 / all as f64 }
}

/// The number of `Paragraph 7`.
fn reference_number(reference: &str) -> Option<&str> {
    let mut rest = reference;
    while let Some((_, behind)) = rest.split_once("Paragraph ") {
        let digits = behind.len() - behind.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits > 0 {
            return Some(&behind[..digits]);
        }
        rest = behind;
    }
    None
}

/// The letter A to D that an answer gives: behind `answer is` or `answer:` if it says so, else the first that stands alone.
fn choice(answer: &str) -> Option<char> {
    let lower = answer.to_ascii_lowercase();
    let said = ["answer is", "answer:"].iter().filter_map(|mark| lower.rfind(mark).map(|at| at + mark.len())).max();
    said.and_then(|at| answer.get(at..)).and_then(alone).or_else(|| alone(answer))
}

fn alone(text: &str) -> Option<char> {
    text.split(|c: char| !c.is_alphanumeric()).find_map(|word| match word.as_bytes() {
        [letter @ b'A'..=b'D'] => Some(char::from(*letter)),
        _ => None,
    })
}
