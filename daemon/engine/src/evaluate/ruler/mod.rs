//! RULER's 13 tasks (Hsieh et al. 2024, github.com/NVIDIA/RULER), made for a checkpoint's tokenizer and template, exact to the token.
//!
//! The rule of length is RULER's: the prompt, template and first words of the answer included, and the tokens that the answer may have are
//! `length` together. RULER leaves what does not fill a whole unit of haystack; here it is filled, with words of haystack and then with whole
//! filler words. Where a tokenizer cannot make it exact, the closest below is given and [`RulerItem::exact`] says so.

mod needles;
mod prompts;
mod questions;
#[cfg(test)]
mod tests;
mod tracking;
mod vocabulary;
mod words;

pub use questions::{QuestionSet, QuestionsError};

use super::corpus::{Corpus, Half};
use super::fit::{Draft, Filler, Fitted, fit};
use super::metric::{Metric, Reference};
use super::seed::Rng;
use super::{Framing, Item, PromptError};
use std::sync::OnceLock;

/// A task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "their names are RULER's")]
pub enum Task {
    NiahSingle1,
    NiahSingle2,
    NiahSingle3,
    NiahMultikey1,
    NiahMultikey2,
    NiahMultikey3,
    NiahMultivalue,
    NiahMultiquery,
    Vt,
    Cwe,
    Fwe,
    Qa1,
    Qa2,
}

impl Task {
    /// All 13, in RULER's order.
    pub const ALL: [Self; 13] = [
        Self::NiahSingle1,
        Self::NiahSingle2,
        Self::NiahSingle3,
        Self::NiahMultikey1,
        Self::NiahMultikey2,
        Self::NiahMultikey3,
        Self::NiahMultivalue,
        Self::NiahMultiquery,
        Self::Vt,
        Self::Cwe,
        Self::Fwe,
        Self::Qa1,
        Self::Qa2,
    ];

    /// RULER's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::NiahSingle1 => "niah_single_1",
            Self::NiahSingle2 => "niah_single_2",
            Self::NiahSingle3 => "niah_single_3",
            Self::NiahMultikey1 => "niah_multikey_1",
            Self::NiahMultikey2 => "niah_multikey_2",
            Self::NiahMultikey3 => "niah_multikey_3",
            Self::NiahMultivalue => "niah_multivalue",
            Self::NiahMultiquery => "niah_multiquery",
            Self::Vt => "vt",
            Self::Cwe => "cwe",
            Self::Fwe => "fwe",
            Self::Qa1 => "qa_1",
            Self::Qa2 => "qa_2",
        }
    }

    /// The task of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|task| task.name() == name)
    }

    /// Tokens that an answer may have.
    pub fn max_tokens(self) -> usize {
        match self {
            Self::Vt => 30,
            Self::Cwe => 120,
            Self::Fwe => 50,
            Self::Qa1 | Self::Qa2 => 32,
            _ => 128,
        }
    }

    fn metric(self) -> Metric {
        match self {
            Self::Qa1 | Self::Qa2 => Metric::RulerPart,
            _ => Metric::RulerAll,
        }
    }
}

/// An item, and how its length came out.
#[derive(Clone, Debug)]
pub struct RulerItem {
    /// What to run and how to score it.
    pub item: Item,
    /// Prompt and answer have exactly the length asked for.
    pub exact: bool,
}

/// The maker of items.
pub struct Ruler<'a> {
    framing: &'a Framing<'a>,
    corpus: &'a Corpus,
    half: Half,
    filler: Filler,
    words: OnceLock<Vec<String>>,
    squad: Option<&'a QuestionSet>,
    hotpot: Option<&'a QuestionSet>,
}

impl<'a> Ruler<'a> {
    /// Haystacks are text of one half of a corpus. Without files of questions there are 11 tasks.
    ///
    /// # Errors
    /// The tokenizer failed.
    pub fn new(framing: &'a Framing<'a>, corpus: &'a Corpus, half: Half) -> Result<Self, PromptError> {
        let filler = Filler::measure(framing)?;
        Ok(Self { framing, corpus, half, filler, words: OnceLock::new(), squad: None, hotpot: None })
    }

    /// With questions for qa_1 (RULER's are SQuAD's).
    #[must_use]
    pub fn with_qa_1(mut self, questions: &'a QuestionSet) -> Self {
        self.squad = Some(questions);
        self
    }

    /// With questions for qa_2 (RULER's are HotpotQA's).
    #[must_use]
    pub fn with_qa_2(mut self, questions: &'a QuestionSet) -> Self {
        self.hotpot = Some(questions);
        self
    }

    /// The tasks that can be made; the others of [`Task::ALL`] lack their file.
    pub fn tasks(&self) -> Vec<Task> {
        Task::ALL
            .into_iter()
            .filter(|task| !matches!((task, self.squad, self.hotpot), (Task::Qa1, None, _) | (Task::Qa2, _, None)))
            .collect()
    }

    /// Item `index` of a task, of `length` tokens with its answer. The same arguments give the same item.
    ///
    /// # Errors
    /// The length is less than the task's shortest prompt, the task lacks its file, or encoding failed.
    pub fn item(&self, task: Task, length: usize, seed: u64, index: usize) -> Result<RulerItem, PromptError> {
        let max_tokens = task.max_tokens() + self.framing.thinking_budget();
        let id = format!("ruler/{}/{length}/{index}", task.name());
        let rng = Rng::named(seed, &id);
        let Some(room) = length.checked_sub(max_tokens) else {
            return Err(PromptError::TooLong { task: task.name().to_owned(), wanted: 0, least: 1 });
        };
        let fitted = self.prompt(task, length, room, rng, index, None)?;
        let exact = fitted.tokens.len() == room;
        let reference = Reference::new(task.metric(), fitted.draft.answers);
        let item = Item { id, task: format!("ruler/{}", task.name()), tokens: fitted.tokens, max_tokens, stop: Vec::new(), reference };
        Ok(RulerItem { item, exact })
    }

    /// A prompt of `length` tokens, with no room for an answer, in text given instead of the corpus's.
    pub(super) fn planted(&self, task: Task, text: &str, length: usize, seed: u64, index: usize) -> Result<Vec<u32>, PromptError> {
        let rng = Rng::named(seed, &format!("planted/{}/{length}/{index}", task.name()));
        Ok(self.prompt(task, length, length, rng, index, Some(text))?.tokens)
    }

    fn prompt(&self, task: Task, length: usize, room: usize, rng: Rng, index: usize, text: Option<&str>) -> Result<Fitted, PromptError> {
        let fit = |max_units: usize, build: &dyn Fn(usize, &[&str]) -> Draft| {
            fit(task.name(), self.framing, &self.filler, room, max_units, build)
        };
        match task {
            Task::Vt => {
                let builder = tracking::Builder::new(self.framing, rng)?;
                fit(room, &|units, filler| builder.draft(units, filler))
            }
            Task::Cwe => {
                let builder = words::Common::new(self.words(), length, rng);
                fit(room, &|units, filler| builder.draft(units, filler))
            }
            Task::Fwe => {
                let Some(builder) = words::Frequent::new(room, rng) else {
                    return Err(PromptError::TooLong { task: task.name().to_owned(), wanted: room, least: words::Frequent::LEAST });
                };
                fit(room * 2, &|units, filler| builder.draft(units, filler))
            }
            Task::Qa1 | Task::Qa2 => {
                let questions = if task == Task::Qa1 { self.squad } else { self.hotpot };
                let questions = questions.ok_or(PromptError::NoQuestions { task: task.name() })?;
                let builder = questions::Builder::new(questions, index, rng);
                fit(room, &|units, filler| builder.draft(units, filler))
            }
            _ => {
                let needles = needles::Shape::of(task);
                let text = match (needles.reads_text(), text) {
                    (false, _) => String::new(),
                    (true, Some(text)) => text.to_owned(),
                    (true, None) => self.haystack(room, &rng)?,
                };
                let builder = needles::Builder::new(needles, &text, rng);
                fit(builder.most(room), &|units, filler| builder.draft(units, filler))
            }
        }
    }

    /// Text of the corpus, enough for a prompt where there is enough; RULER repeats its essays where there is not, and so does this.
    fn haystack(&self, tokens: usize, rng: &Rng) -> Result<String, PromptError> {
        let kind = self.corpus.haystack();
        let bytes = (tokens * 8).min(self.corpus.bytes(kind, self.half));
        let mut passages = self.corpus.passages(kind, self.half, rng.clone().next());
        Ok(passages.next(bytes)?.text)
    }

    fn words(&self) -> &[String] {
        self.words.get_or_init(|| vocabulary::listed(self.corpus.words(self.half, 20_000)))
    }
}
