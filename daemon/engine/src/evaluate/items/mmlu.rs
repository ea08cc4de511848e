//! MMLU (Hendrycks et al. 2021): the original's CSV files, or lines of JSON.
//!
//! CSV has no heading: question, four choices, letter; the subject is the file's name without `_test`, `_val` or `_dev`. A line of JSON has
//! `question`, `choices` (four), `answer` (0 to 3, or a letter) and `subject`, as the copies on dataset hubs have them.

use super::read::{MAX_ITEMS, bounded, files, lines, name};
use super::{Body, ItemsError, Question, csv};
use crate::evaluate::metric::{Metric, Reference};
use crate::regular::Cancelled;
use serde::Deserialize;
use std::io::BufRead;
use std::path::Path;

/// Bytes of one CSV file; the largest of the original has 2.1 MB.
const MAX_CSV: u64 = 64 << 20;
const LETTERS: [&str; 4] = ["A", "B", "C", "D"];

#[derive(Deserialize)]
struct Line {
    question: String,
    choices: [String; 4],
    answer: Answer,
    #[serde(default)]
    subject: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Index(usize),
    Letter(String),
}

/// The questions of a CSV or JSONL file, or of all such files of a folder.
///
/// # Errors
/// A file is unreadable, too large or malformed; none has a question; or it was cancelled.
pub fn open(path: &Path, cancelled: Cancelled<'_>) -> Result<Vec<Question>, ItemsError> {
    let sources = if path.is_dir() { files(path, &["csv", "jsonl"])? } else { vec![path.to_owned()] };
    let mut out = Vec::new();
    for source in &sources {
        if source.extension().is_some_and(|e| e == "csv") {
            let bytes = bounded(source, MAX_CSV, cancelled).map_err(|detail| ItemsError::file(source, detail))?;
            out.extend(parse_csv(source, &bytes)?);
        } else {
            out.extend(parse_jsonl(source, super::read::open(source, cancelled)?)?);
        }
        if out.len() > MAX_ITEMS {
            return Err(ItemsError::file(path, format!("more than the limit of {MAX_ITEMS} questions")));
        }
    }
    if out.is_empty() {
        return Err(ItemsError::file(path, "no question (csv: question, four choices, letter; jsonl: question, choices, answer, subject)"));
    }
    Ok(out)
}

/// The questions of a CSV file; `path` gives the subject, and the file's name for messages.
///
/// # Errors
/// The line that is wrong.
pub fn parse_csv(path: &Path, bytes: &[u8]) -> Result<Vec<Question>, ItemsError> {
    let text = std::str::from_utf8(bytes).map_err(|_| ItemsError::file(path, "not UTF-8"))?;
    let rows = csv::rows(text.trim_start_matches('\u{feff}')).map_err(|(line, detail)| ItemsError::line(path, line, detail))?;
    let mut out = Vec::new();
    for row in rows {
        let [question, a, b, c, d, answer] = <[String; 6]>::try_from(row.fields).map_err(|fields| {
            ItemsError::line(path, row.line, format!("{} fields, not 6 (question, four choices, letter)", fields.len()))
        })?;
        out.push(question_of(path, row.line, &question, &[a, b, c, d], &Answer::Letter(answer), None)?);
    }
    Ok(out)
}

/// The questions of lines of JSON.
///
/// # Errors
/// The line that is wrong.
pub fn parse_jsonl(path: &Path, reader: impl BufRead) -> Result<Vec<Question>, ItemsError> {
    let mut out = Vec::new();
    lines(path, reader, |number, text| {
        let line: Line = serde_json::from_str(text).map_err(|e| ItemsError::line(path, number, e.to_string()))?;
        out.push(question_of(path, number, &line.question, &line.choices, &line.answer, line.subject.as_deref())?);
        Ok(())
    })?;
    Ok(out)
}

fn question_of(
    path: &Path,
    line: usize,
    question: &str,
    choices: &[String; 4],
    answer: &Answer,
    subject: Option<&str>,
) -> Result<Question, ItemsError> {
    let letter = match answer {
        Answer::Index(index) => LETTERS.get(*index).copied(),
        Answer::Letter(letter) => LETTERS.into_iter().find(|l| *l == letter.trim()),
    };
    let letter = letter.ok_or_else(|| ItemsError::line(path, line, "the answer is none of A, B, C, D (or 0 to 3)"))?;
    if question.trim().is_empty() {
        return Err(ItemsError::line(path, line, "the question is empty"));
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let own = ["_test", "_val", "_dev"].iter().find_map(|end| stem.strip_suffix(end)).unwrap_or(&stem);
    let subject = subject.unwrap_or(own);
    let choices: Vec<String> = LETTERS.iter().zip(choices).map(|(letter, text)| format!("{letter}. {text}")).collect();
    let content = format!(
        "The following is a multiple choice question about {}. Answer with the letter of the right choice only.\n\n{}\n{}",
        subject.replace('_', " "),
        question.trim(),
        choices.join("\n")
    );
    Ok(Question {
        id: format!("mmlu/{}:{line}", name(path)),
        task: format!("mmlu/{subject}"),
        body: Body::User { content, prefix: "Answer:".into() },
        max_tokens: 8,
        stop: vec!["\n".into()],
        reference: Reference::new(Metric::Choice, vec![letter.into()]),
    })
}
