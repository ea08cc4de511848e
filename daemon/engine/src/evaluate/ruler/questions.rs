//! Questions about documents (qa_1, qa_2), over files that the user supplies: SQuAD's JSON, HotpotQA's, or lines of JSON.
//!
//! A line is `{"question": …, "answers": [… ], "documents": [ … ]}`: the documents hold the answer, and those of other lines distract.

use super::super::fit::Draft;
use super::super::items::read::{MAX_FILE, bounded};
use super::super::seed::Rng;
use super::prompts;
use crate::regular::{Cancelled, NEVER, json};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Why questions could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuestionsError {
    /// The file could not be read, or is too large.
    #[error("{}: {detail}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        detail: String,
    },
    /// It is none of the three formats.
    #[error("{}: {detail} (SQuAD: an object with `data`; HotpotQA: a list; else one object a line with question, answers, documents)", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// Where and what.
        detail: String,
    },
    /// No question, or no document besides those of one question.
    #[error("{}: {questions} questions and {documents} documents: at least 1 and 2 are needed", path.display())]
    TooFew {
        /// Which file.
        path: PathBuf,
        /// Questions that have an answer.
        questions: usize,
        /// Different documents.
        documents: usize,
    },
}

/// Questions and the documents they are about.
#[derive(Debug, Default)]
pub struct QuestionSet {
    documents: Vec<String>,
    index: HashMap<String, usize>,
    questions: Vec<Question>,
}

#[derive(Debug)]
struct Question {
    text: String,
    answers: Vec<String>,
    /// Those that hold the answer, then those that stand beside them and distract first.
    documents: Vec<usize>,
    nearby: Vec<usize>,
}

#[derive(Deserialize)]
struct Squad {
    data: Vec<SquadArticle>,
}
#[derive(Deserialize)]
struct SquadArticle {
    paragraphs: Vec<SquadParagraph>,
}
#[derive(Deserialize)]
struct SquadParagraph {
    context: String,
    qas: Vec<SquadQuestion>,
}
#[derive(Deserialize)]
struct SquadQuestion {
    question: String,
    #[serde(default)]
    answers: Vec<SquadAnswer>,
    #[serde(default)]
    is_impossible: bool,
}
#[derive(Deserialize)]
struct SquadAnswer {
    text: String,
}
#[derive(Deserialize)]
struct Hotpot {
    question: String,
    answer: String,
    context: Vec<(String, Vec<String>)>,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    question: String,
    answers: Vec<String>,
    documents: Vec<String>,
}

impl QuestionSet {
    /// Reads a file of any of the three formats.
    ///
    /// # Errors
    /// It is unreadable, larger than 512 MiB, malformed, or has too few questions; or it was cancelled.
    pub fn open(path: &Path, cancelled: Cancelled<'_>) -> Result<Self, QuestionsError> {
        let bytes = bounded(path, MAX_FILE, cancelled).map_err(|detail| QuestionsError::Read { path: path.to_owned(), detail })?;
        Self::parse_until(path, &bytes, cancelled)
    }

    /// Reads the bytes of such a file; `path` is for messages.
    ///
    /// # Errors
    /// As [`QuestionSet::open`].
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, QuestionsError> {
        Self::parse_until(path, bytes, NEVER)
    }

    fn parse_until(path: &Path, bytes: &[u8], cancelled: Cancelled<'_>) -> Result<Self, QuestionsError> {
        let malformed = |detail: String| QuestionsError::Malformed { path: path.to_owned(), detail };
        let mut out = Self::default();
        let first = bytes.iter().find(|b| !b.is_ascii_whitespace());
        if first == Some(&b'[') {
            let list: Vec<Hotpot> = json(bytes, cancelled).map_err(|e| malformed(e.to_string()))?;
            for entry in list {
                let documents =
                    entry.context.into_iter().map(|(title, parts)| out.document(format!("{title}\n{}", parts.concat()))).collect();
                out.questions.push(Question { text: entry.question, answers: vec![entry.answer], documents, nearby: Vec::new() });
            }
        } else if let Ok(squad) = json::<Squad>(bytes, cancelled) {
            for article in squad.data {
                let all: Vec<usize> = article.paragraphs.iter().map(|paragraph| out.document(paragraph.context.clone())).collect();
                for (paragraph, &own) in article.paragraphs.into_iter().zip(&all) {
                    for asked in paragraph.qas.into_iter().filter(|q| !q.is_impossible) {
                        let answers = asked.answers.into_iter().map(|answer| answer.text).collect();
                        let nearby = all.iter().copied().filter(|&other| other != own).collect();
                        out.questions.push(Question { text: asked.question, answers, documents: vec![own], nearby });
                    }
                }
            }
        } else {
            for (number, line) in bytes.split(|&b| b == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty()) {
                if cancelled() {
                    return Err(malformed("cancelled".into()));
                }
                let line: Line = serde_json::from_slice(line).map_err(|e| malformed(format!("line {}: {e}", number + 1)))?;
                let documents = line.documents.into_iter().map(|text| out.document(text)).collect();
                out.questions.push(Question { text: line.question, answers: line.answers, documents, nearby: Vec::new() });
            }
        }
        out.questions.retain(|q| !q.documents.is_empty() && q.answers.iter().any(|answer| !answer.trim().is_empty()));
        out.questions.iter_mut().for_each(|q| q.answers.retain(|answer| !answer.trim().is_empty()));
        if out.questions.is_empty() || out.documents.len() < 2 {
            return Err(QuestionsError::TooFew { path: path.to_owned(), questions: out.questions.len(), documents: out.documents.len() });
        }
        Ok(out)
    }

    /// Questions in it.
    pub fn len(&self) -> usize {
        self.questions.len()
    }

    /// Never: an empty set is refused.
    pub fn is_empty(&self) -> bool {
        self.questions.is_empty()
    }

    fn document(&mut self, text: String) -> usize {
        if let Some(&index) = self.index.get(&text) {
            return index;
        }
        self.index.insert(text.clone(), self.documents.len());
        self.documents.push(text);
        self.documents.len() - 1
    }
}

/// Makes drafts of one question among more or fewer other documents.
pub(super) struct Builder<'q> {
    question: &'q Question,
    own: Vec<&'q str>,
    /// Other documents, in the order in which they are added, with their words.
    others: Vec<(&'q str, usize)>,
    /// Where each document stands among the others: ascending keys.
    keys: Vec<u64>,
}

impl<'q> Builder<'q> {
    pub(super) fn new(set: &'q QuestionSet, index: usize, mut rng: Rng) -> Self {
        let question = &set.questions[index % set.questions.len()];
        let text = |&index: &usize| set.documents[index].as_str();
        let mut nearby = question.nearby.clone();
        rng.shuffle(&mut nearby);
        let known: std::collections::HashSet<usize> = question.documents.iter().chain(&nearby).copied().collect();
        let mut others: Vec<usize> = (0..set.documents.len()).filter(|index| !known.contains(index)).collect();
        rng.shuffle(&mut others);
        let others = nearby.iter().chain(&others).map(text).map(|text| (text, text.split(' ').count())).collect::<Vec<_>>();
        let own: Vec<&str> = question.documents.iter().map(text).collect();
        let keys = (0..own.len() + others.len()).map(|_| rng.next()).collect();
        Self { question, own, others, keys }
    }

    /// `units` words of other documents, the last one cut; from the first again where they run out.
    pub(super) fn draft(&self, units: usize, filler: &[&str]) -> Draft {
        let mut documents: Vec<(u64, std::borrow::Cow<'_, str>)> =
            self.own.iter().zip(&self.keys).map(|(text, &key)| (key, (*text).into())).collect();
        let mut rest = units;
        for turn in 0.. {
            if rest == 0 || self.others.is_empty() {
                break;
            }
            let (text, words) = self.others[turn % self.others.len()];
            let key = self.keys[self.own.len() + turn % self.others.len()];
            let text = if words <= rest { text.into() } else { text.split(' ').take(rest).collect::<Vec<_>>().join(" ").into() };
            rest -= words.min(rest);
            documents.push((key, text));
        }
        // A stable sort: documents that come again stand behind their first.
        documents.sort_by_key(|(key, _)| *key);
        let numbered: Vec<String> = documents.iter().enumerate().map(|(i, (_, text))| format!("Document {}:\n{text}", i + 1)).collect();
        let (content, prefix) = prompts::documents(&numbered.join("\n\n"), &self.question.text);
        Draft { content: prompts::led(filler, content), prefix, answers: self.question.answers.clone() }
    }
}
