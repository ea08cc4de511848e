//! The items of an evaluation: RULER's, made from text, and those of the files that are named.

use skip_client::protocol::EvaluateOptions;
use skip_client::{Error, ErrorKind};
use skip_engine::evaluate::corpus::{Corpus, Half, Limits};
use skip_engine::evaluate::items::{self, Question, choose, longbench, mmlu, tasks};
use skip_engine::evaluate::ruler::{QuestionSet, Ruler, Task};
use skip_engine::evaluate::{Framing, Item, PromptError};
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
    /// A file is wrong, an option names no task, or nothing is left to ask.
    pub fn open(
        model: &Path,
        vocabulary: usize,
        context: usize,
        options: &EvaluateOptions,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Self, Error> {
        let tokenizer = Tokenizer::open(model, vocabulary).map_err(internal)?;
        let template = ChatTemplate::open(model).map_err(internal)?;
        let mut made = Self { items: Vec::new(), corpus: None, notes: Vec::new(), tokenizer };
        let framing = Framing::new(&made.tokenizer, template.as_ref()).thinking(options.thinking_budget);
        let (mut items, mut notes) = (Vec::new(), Vec::new());
        if options.samples > 0 {
            let (found, corpus) = ruler(&framing, context, options, &mut notes, cancelled)?;
            items.extend(found);
            made.corpus = Some(corpus);
        }
        for question in questions(options, &mut notes)? {
            match question.prepare(&framing, context).map_err(internal)? {
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

fn wrong<E: std::fmt::Display>(option: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::new(ErrorKind::InvalidRequest, error.to_string()).at(option)
}

fn ruler(
    framing: &Framing<'_>,
    context: usize,
    options: &EvaluateOptions,
    notes: &mut Vec<String>,
    cancelled: &dyn Fn() -> bool,
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
    let corpus = if paths.is_empty() { Corpus::of_system(&limits) } else { Corpus::load(&paths, &limits) }.map_err(wrong("corpus"))?;
    let set = |option: &'static str, path: &Option<String>| {
        path.as_ref().map(|path| QuestionSet::open(Path::new(path)).map_err(wrong(option))).transpose()
    };
    let (squad, hotpot) = (set("qa_1", &options.qa_1)?, set("qa_2", &options.qa_2)?);
    let mut ruler = Ruler::new(framing, &corpus, Half::Check).map_err(internal)?;
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
        for index in 0..options.samples {
            if cancelled() {
                return Err(Error::new(ErrorKind::Cancelled, "cancelled"));
            }
            match ruler.item(task, context, options.seed, index) {
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
                Err(error) => return Err(internal(error)),
            }
        }
    }
    Ok((items, corpus.digest().to_owned()))
}

fn questions(options: &EvaluateOptions, notes: &mut Vec<String>) -> Result<Vec<Question>, Error> {
    let mut all = Vec::new();
    if let Some(path) = &options.mmlu {
        let questions = mmlu::open(Path::new(path)).map_err(wrong("mmlu"))?;
        all.extend(choose(questions, options.mmlu_samples, options.seed));
    }
    if let Some(folder) = &options.longbench {
        let found = longbench::open(Path::new(folder), &[]).map_err(wrong("longbench"))?;
        notes.extend(found.left_out.iter().map(|name| format!("longbench: {name} left out")));
        all.extend(found.questions);
    }
    if let Some(path) = &options.tasks_file {
        all.extend(tasks::open(Path::new(path)).map_err(wrong("tasks_file"))?);
    }
    Ok(all)
}
