//! The items of an evaluation: RULER's, made from text, and those of the files that are named.

use super::super::asking::{cancelled as was_cancelled, unless};
use skip_client::protocol::EvaluateOptions;
use skip_client::{Error, ErrorKind};
use skip_engine::evaluate::corpus::{Corpus, Half, Limits};
use skip_engine::evaluate::items::{self, Question, choose, longbench, mmlu, tasks};
use skip_engine::evaluate::ruler::{QuestionSet, Ruler, Task};
use skip_engine::evaluate::{Framing, Item, PromptError, side};
use skip_engine::regular::Cancelled;
use skip_engine::template::ChatTemplate;
use skip_engine::tokenizer::Tokenizer;
use std::path::{Path, PathBuf};

/// What is asked.
pub struct Items {
    /// In the order they are asked.
    pub items: Vec<Item>,
    /// Digest of the haystacks' text, where there is one.
    pub corpus: Option<String>,
    /// What was left out, and why.
    pub notes: Vec<String>,
    tokenizer: Tokenizer,
}

impl Items {
    /// Makes and reads them all.
    ///
    /// # Errors
    /// A file is wrong, an option names no task, nothing is left to ask, or it was cancelled.
    pub fn open(
        model: &Path,
        vocabulary: usize,
        context: usize,
        options: &EvaluateOptions,
        cancelled: Cancelled<'_>,
    ) -> Result<Self, Error> {
        let tokenizer = Tokenizer::open(model, vocabulary).map_err(internal)?;
        let template = ChatTemplate::open(model).map_err(internal)?;
        let mut made = Self { items: Vec::new(), corpus: None, notes: Vec::new(), tokenizer };
        let framing = Framing::new(&made.tokenizer, template.as_ref()).thinking(options.thinking_budget).until(cancelled);
        let (mut items, mut notes) = (Vec::new(), Vec::new());
        if options.samples > 0 {
            let (found, corpus) = ruler(&framing, context, options, &mut notes, cancelled)?;
            items.extend(found);
            made.corpus = Some(corpus);
        }
        let questions = questions(options, &mut notes, cancelled)?;
        let prepared = side::map(&questions, |question| question.prepare(&framing, context));
        for (question, prepared) in questions.iter().zip(prepared) {
            match prepared.map_err(not_made)? {
                Some(prepared) => items.push(prepared.item),
                None => notes.push(format!("{}: left out, it does not fit {context} tokens", question.id)),
            }
        }
        if items.is_empty() {
            let why = notes.first().map_or("samples is 0, and there are no questions of mmlu, longbench or tasks_file", String::as_str);
            return Err(Error::new(ErrorKind::InvalidRequest, format!("nothing is left to ask: {why}")));
        }
        (made.items, made.notes) = (items, notes);
        Ok(made)
    }

    /// Digest of the items.
    pub fn digest(&self) -> String {
        items::digest(&self.items)
    }

    /// An answer's text.
    pub fn text(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(tokens, true)
    }
}

fn internal(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, error.to_string())
}

fn wrong<E: std::fmt::Display>(option: &'static str, cancelled: Cancelled<'_>) -> impl Fn(E) -> Error {
    move |error| unless(cancelled(), Error::invalid(option, error.to_string()))
}

fn not_made(error: PromptError) -> Error {
    match error {
        PromptError::Cancelled => was_cancelled(),
        other => internal(other),
    }
}

fn ruler(
    framing: &Framing<'_>,
    context: usize,
    options: &EvaluateOptions,
    notes: &mut Vec<String>,
    cancelled: Cancelled<'_>,
) -> Result<(Vec<Item>, String), Error> {
    let wanted = options
        .tasks
        .iter()
        .map(|name| {
            Task::named(name)
                .ok_or_else(|| Error::invalid("tasks", format!("`{name}` is no RULER task: {}", Task::ALL.map(Task::name).join(", "))))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let paths: Vec<PathBuf> = options.corpus.iter().map(PathBuf::from).collect();
    let limits = Limits::default();
    let corpus = if paths.is_empty() { Corpus::of_system(&limits, cancelled) } else { Corpus::load(&paths, &limits, cancelled) };
    let corpus = corpus.map_err(wrong("corpus", cancelled))?;
    let set = |option: &'static str, path: &Option<String>| {
        path.as_ref().map(|path| QuestionSet::open(Path::new(path), cancelled).map_err(wrong(option, cancelled))).transpose()
    };
    let (squad, hotpot) = (set("qa_1", &options.qa_1)?, set("qa_2", &options.qa_2)?);
    let mut ruler = Ruler::new(framing, &corpus, Half::Check).map_err(not_made)?;
    if let Some(questions) = &squad {
        ruler = ruler.with_qa_1(questions);
    }
    if let Some(questions) = &hotpot {
        ruler = ruler.with_qa_2(questions);
    }
    let can = ruler.tasks();
    let mut items = Vec::new();
    for task in Task::ALL.into_iter().filter(|task| wanted.is_empty() || wanted.contains(task)) {
        if !can.contains(&task) {
            notes.push(format!("{}: left out, it needs a file of questions (--{})", task.name(), task.name().replace('_', "-")));
            continue;
        }
        let indices: Vec<usize> = (0..options.samples).collect();
        for made in side::map(&indices, |&index| ruler.item(task, context, options.seed, index)) {
            match made {
                Ok(made) => {
                    if !made.exact {
                        notes.push(format!("{}: shorter than {context} tokens", made.item.id));
                    }
                    items.push(made.item);
                }
                Err(error @ PromptError::TooLong { .. }) => {
                    notes.push(format!("{}: left out: {error}", task.name()));
                    break;
                }
                Err(error) => return Err(not_made(error)),
            }
        }
    }
    Ok((items, corpus.digest().to_owned()))
}

fn questions(options: &EvaluateOptions, notes: &mut Vec<String>, cancelled: Cancelled<'_>) -> Result<Vec<Question>, Error> {
    let mut all = Vec::new();
    if let Some(path) = &options.mmlu {
        let questions = mmlu::open(Path::new(path), cancelled).map_err(wrong("mmlu", cancelled))?;
        all.extend(choose(questions, options.mmlu_samples, options.seed));
    }
    if let Some(folder) = &options.longbench {
        let found = longbench::open(Path::new(folder), &[], cancelled).map_err(wrong("longbench", cancelled))?;
        notes.extend(found.left_out.iter().map(|name| format!("longbench: {name} left out")));
        all.extend(found.questions);
    }
    if let Some(path) = &options.tasks_file {
        all.extend(tasks::open(Path::new(path), cancelled).map_err(wrong("tasks_file", cancelled))?);
    }
    Ok(all)
}
