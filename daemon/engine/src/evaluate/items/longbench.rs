//! LongBench V1 (Bai et al. 2024): a folder of `DATASET.jsonl`, or of LongBench-E's `DATASET_e.jsonl`, as it is distributed.
//!
//! Prompts, answer lengths and metrics are those of its repository (github.com/THUDM/LongBench, MIT). Of its 16 datasets in English and code,
//! the 13 of LongBench-E are evaluated unless others are named; those in Chinese need a segmenter and are left out.

use super::read::{MAX_ITEMS, MAX_STRINGS, files, lines, name};
use super::{Body, ItemsError, Question};
use crate::evaluate::metric::{Metric, Reference};
use crate::regular::Cancelled;
use serde::Deserialize;
use std::io::BufRead;
use std::path::Path;

#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    input: String,
    context: String,
    answers: Vec<String>,
    #[serde(default)]
    all_classes: Option<Vec<String>>,
    #[serde(default, rename = "_id")]
    id: Option<String>,
}

struct Dataset {
    name: &'static str,
    /// One of LongBench-E's 13.
    e: bool,
    metric: Metric,
    max_tokens: usize,
    /// With `{context}` and `{input}`.
    prompt: &'static str,
}

const SHORT: &str = "Only give me the answer and do not output any other words.";
/// Asked without a template: they go on from examples or code.
const RAW: [&str; 5] = ["trec", "triviaqa", "samsum", "lcc", "repobench-p"];
const FIRST_LINE: [&str; 3] = ["trec", "triviaqa", "samsum"];

const PASSAGES: &str = "Answer the question based on the given passages. {short}\n\nThe following are given passages.\n{context}\n\nAnswer the \
    question based on the given passages. {short}\n\nQuestion: {input}\nAnswer:";

const fn dataset(name: &'static str, e: bool, metric: Metric, max_tokens: usize, prompt: &'static str) -> Dataset {
    Dataset { name, e, metric, max_tokens, prompt }
}

static DATASETS: [Dataset; 16] = [
    dataset(
        "narrativeqa",
        false,
        Metric::QaF1,
        128,
        "You are given a story, which can be either a novel or a movie script, and a question. Answer the question asconcisely as you can, \
         using a single phrase if possible. Do not provide any explanation.\n\nStory: {context}\n\nNow, answer the question based on the story \
         asconcisely as you can, using a single phrase if possible. Do not provide any explanation.\n\nQuestion: {input}\n\nAnswer:",
    ),
    dataset(
        "qasper",
        true,
        Metric::QaF1,
        128,
        "You are given a scientific article and a question. Answer the question as concisely as you can, using a single phrase or sentence if \
         possible. If the question cannot be answered based on the information in the article, write \"unanswerable\". If the question is a \
         yes/no question, answer \"yes\", \"no\", or \"unanswerable\". Do not provide any explanation.\n\nArticle: {context}\n\n Answer the \
         question based on the above article as concisely as you can, using a single phrase or sentence if possible. If the question cannot \
         be answered based on the information in the article, write \"unanswerable\". If the question is a yes/no question, answer \"yes\", \
         \"no\", or \"unanswerable\". Do not provide any explanation.\n\nQuestion: {input}\n\nAnswer:",
    ),
    dataset(
        "multifieldqa_en",
        true,
        Metric::QaF1,
        64,
        "Read the following text and answer briefly.\n\n{context}\n\nNow, answer the following question based on the above text, only give me \
         the answer and do not output any other words.\n\nQuestion: {input}\nAnswer:",
    ),
    dataset("hotpotqa", true, Metric::QaF1, 32, PASSAGES),
    dataset("2wikimqa", true, Metric::QaF1, 32, PASSAGES),
    dataset("musique", false, Metric::QaF1, 32, PASSAGES),
    dataset(
        "gov_report",
        true,
        Metric::RougeL,
        512,
        "You are given a report by a government agency. Write a one-page summary of the report.\n\nReport:\n{context}\n\nNow, write a one-page \
         summary of the report.\n\nSummary:",
    ),
    dataset(
        "qmsum",
        false,
        Metric::RougeL,
        512,
        "You are given a meeting transcript and a query containing a question or instruction. Answer the query in one or more sentences.\n\n\
         Transcript:\n{context}\n\nNow, answer the query based on the above meeting transcript in one or more sentences.\n\nQuery: {input}\n\
         Answer:",
    ),
    dataset(
        "multi_news",
        true,
        Metric::RougeL,
        512,
        "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n{context}\n\nNow, write a one-page summary of \
         all the news.\n\nSummary:",
    ),
    dataset(
        "trec",
        true,
        Metric::Classification,
        64,
        "Please determine the type of the question below. Here are some examples of questions.\n\n{context}\n{input}",
    ),
    dataset(
        "triviaqa",
        true,
        Metric::QaF1,
        32,
        "Answer the question based on the given passage. {short} The following are some examples.\n\n{context}\n\n{input}",
    ),
    dataset(
        "samsum",
        true,
        Metric::RougeL,
        128,
        "Summarize the dialogue into a few short sentences. The following are some examples.\n\n{context}\n\n{input}",
    ),
    dataset(
        "passage_count",
        true,
        Metric::Count,
        32,
        "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. Please carefully read these paragraphs and \
         determine how many unique paragraphs there are after removing duplicates. In other words, how many non-repeating paragraphs are there \
         in total?\n\n{context}\n\nPlease enter the final count of unique paragraphs after removing duplicates. The output format should only \
         contain the number, such as 1, 2, 3, and so on.\n\nThe final answer is: ",
    ),
    dataset(
        "passage_retrieval_en",
        true,
        Metric::Retrieval,
        32,
        "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which paragraph the abstract is from.\n\n{context}\n\n\
         The following is an abstract.\n\n{input}\n\nPlease enter the number of the paragraph that the abstract is from. The answer format \
         must be like \"Paragraph 1\", \"Paragraph 2\", etc.\n\nThe answer is: ",
    ),
    dataset("lcc", true, Metric::CodeSimilarity, 64, "Please complete the code given below. \n{context}Next line of code:\n"),
    dataset(
        "repobench-p",
        true,
        Metric::CodeSimilarity,
        64,
        "Please complete the code given below. \n{context}{input}Next line of code:\n",
    ),
];

/// Names of the 16 datasets that can be evaluated.
pub fn datasets() -> impl Iterator<Item = &'static str> {
    DATASETS.iter().map(|dataset| dataset.name)
}

/// What a folder holds.
#[derive(Debug, Default)]
pub struct LongBench {
    /// Its questions, dataset by dataset.
    pub questions: Vec<Question>,
    /// Files left out: of datasets that are not evaluated.
    pub left_out: Vec<String>,
}

/// Reads a folder: the datasets named in `only`, or the 13 of LongBench-E.
///
/// # Errors
/// A file is unreadable, too large or malformed; a name is none of LongBench's; there is nothing; or it was cancelled.
pub fn open(folder: &Path, only: &[String], cancelled: Cancelled<'_>) -> Result<LongBench, ItemsError> {
    if let Some(unknown) = only.iter().find(|wanted| !datasets().any(|known| known == *wanted)) {
        let all: Vec<&str> = datasets().collect();
        return Err(ItemsError::file(folder, format!("no dataset `{unknown}` (there are {})", all.join(", "))));
    }
    let mut out = LongBench::default();
    for path in files(folder, &["jsonl"])? {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let stem = stem.strip_suffix("_e").unwrap_or(&stem);
        let wanted = |dataset: &&Dataset| if only.is_empty() { dataset.e } else { only.iter().any(|name| name == dataset.name) };
        match DATASETS.iter().find(|dataset| dataset.name == stem).filter(wanted) {
            Some(_) => out.questions.extend(parse(stem, &path, super::read::open(&path, cancelled)?)?),
            None => out.left_out.push(name(&path)),
        }
        if out.questions.len() > MAX_ITEMS {
            return Err(ItemsError::file(folder, format!("more than the limit of {MAX_ITEMS} questions")));
        }
    }
    if out.questions.is_empty() {
        return Err(ItemsError::file(folder, "no questions: LongBench's files are named after its datasets, as in qasper.jsonl"));
    }
    Ok(out)
}

/// The questions of one dataset's file.
///
/// # Errors
/// The line that is wrong, or the dataset is unknown.
pub fn parse(dataset: &str, path: &Path, reader: impl BufRead) -> Result<Vec<Question>, ItemsError> {
    let Some(dataset) = DATASETS.iter().find(|known| known.name == dataset) else {
        return Err(ItemsError::file(path, format!("`{dataset}` is not one of LongBench's datasets")));
    };
    let mut out = Vec::new();
    lines(path, reader, |number, text| {
        let line: Line = serde_json::from_str(text).map_err(|e| ItemsError::line(path, number, e.to_string()))?;
        let classes = line.all_classes.unwrap_or_default();
        if line.answers.is_empty() || line.answers.len() > MAX_STRINGS || classes.len() > MAX_STRINGS {
            return Err(ItemsError::line(path, number, format!("no answers, or more than {MAX_STRINGS} answers or classes")));
        }
        if dataset.metric == Metric::Classification && classes.is_empty() {
            return Err(ItemsError::line(path, number, "no all_classes, which this dataset is scored by"));
        }
        let content = filled(dataset.prompt, &line.context, &line.input);
        let raw = RAW.contains(&dataset.name);
        let id = line.id.unwrap_or_else(|| number.to_string());
        let mut reference = Reference::new(dataset.metric, line.answers);
        reference.classes = classes;
        reference.first_line = FIRST_LINE.contains(&dataset.name);
        out.push(Question {
            id: format!("longbench/{}/{id}", dataset.name),
            task: format!("longbench/{}", dataset.name),
            body: if raw { Body::Raw(content) } else { Body::User { content, prefix: String::new() } },
            max_tokens: dataset.max_tokens,
            // Else it goes on with the next dialogue.
            stop: if dataset.name == "samsum" { vec!["\n".into()] } else { Vec::new() },
            reference,
        });
        Ok(())
    })?;
    Ok(out)
}

/// The prompt with its parts put in; braces in the parts stay as they are.
fn filled(prompt: &str, context: &str, input: &str) -> String {
    let mut out = String::with_capacity(prompt.len() + context.len() + input.len());
    let mut rest = prompt;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        let marks = [("{context}", context), ("{input}", input), ("{short}", SHORT)];
        match marks.iter().find(|(mark, _)| rest[at..].starts_with(mark)) {
            Some((mark, text)) => {
                out.push_str(text);
                rest = &rest[at + mark.len()..];
            }
            None => {
                out.push('{');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    out
}
