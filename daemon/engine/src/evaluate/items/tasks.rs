//! A file of one's own: one JSON object a line, with `prompt` or `messages`, `answers` and `metric`.
//!
//! ```json
//! {"prompt": "What does the log say of pump 3?\n…", "answers": ["bearing"], "metric": "ruler_part", "max_tokens": 32, "task": "logs"}
//! {"messages": [{"role": "user", "content": "…"}], "answers": ["yes"], "metric": "exact", "id": "a7", "stop": ["\n"]}
//! ```

use super::read::{MAX_ITEMS, MAX_STRINGS, MAX_TOKENS, lines, name};
use super::{Body, ItemsError, Question};
use crate::evaluate::metric::{Metric, Reference};
use crate::regular::Cancelled;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashSet;
use std::io::BufRead;
use std::path::Path;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    answers: Answers,
    metric: String,
    max_tokens: Option<usize>,
    id: Option<String>,
    task: Option<String>,
    #[serde(default)]
    stop: Vec<String>,
    #[serde(default)]
    classes: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answers {
    One(String),
    Many(Vec<String>),
}

/// The questions of a file.
///
/// # Errors
/// It is unreadable, too large, malformed or empty; or it was cancelled.
pub fn open(path: &Path, cancelled: Cancelled<'_>) -> Result<Vec<Question>, ItemsError> {
    let out = parse(path, super::read::open(path, cancelled)?)?;
    if out.is_empty() { Err(ItemsError::file(path, "no question")) } else { Ok(out) }
}

/// The questions of lines; `path` is for ids and messages.
///
/// # Errors
/// The line that is wrong: no JSON, an unknown key or metric, both or neither of prompt and messages, an id that was there before.
pub fn parse(path: &Path, reader: impl BufRead) -> Result<Vec<Question>, ItemsError> {
    let mut out: Vec<Question> = Vec::new();
    let mut ids = HashSet::new();
    lines(path, reader, |number, text| {
        let question = question(path, number, text).map_err(|detail| ItemsError::line(path, number, detail))?;
        if !ids.insert(question.id.clone()) {
            return Err(ItemsError::line(path, number, format!("the id `{}` was there before", question.id)));
        }
        if out.len() == MAX_ITEMS {
            return Err(ItemsError::line(path, number, format!("more than the limit of {MAX_ITEMS} questions")));
        }
        out.push(question);
        Ok(())
    })?;
    Ok(out)
}

fn question(path: &Path, number: usize, text: &str) -> Result<Question, String> {
    let line: Line = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let metric = Metric::named(&line.metric).ok_or_else(|| {
        let all: Vec<&str> = Metric::ALL.iter().map(|metric| metric.name()).collect();
        format!("no metric `{}` (there are {})", line.metric, all.join(", "))
    })?;
    let body = match (line.prompt, line.messages) {
        (Some(content), None) => Body::User { content, prefix: String::new() },
        (None, Some(messages)) => {
            let sound = |message: &Value| message["role"].is_string() && message["content"].is_string();
            match messages.iter().position(|message| !sound(message)) {
                Some(wrong) => return Err(format!("messages[{wrong}] is not an object with role and content, both strings")),
                None if messages.is_empty() => return Err("messages is empty".into()),
                None => Body::Messages(messages),
            }
        }
        _ => return Err("prompt or messages, one of them".into()),
    };
    let answers = match line.answers {
        Answers::One(answer) => vec![answer],
        Answers::Many(answers) => answers,
    };
    if answers.is_empty() || answers.iter().any(|answer| answer.trim().is_empty()) {
        return Err("answers is empty, or one of them is: every answer would match it".into());
    }
    if answers.len().max(line.stop.len()).max(line.classes.len()) > MAX_STRINGS {
        return Err(format!("more than {MAX_STRINGS} answers, stop strings or classes"));
    }
    if metric == Metric::Classification && line.classes.is_empty() {
        return Err("classification needs classes".into());
    }
    let max_tokens = line.max_tokens.unwrap_or(128);
    if !(1..=MAX_TOKENS).contains(&max_tokens) {
        return Err(format!("max_tokens is {max_tokens}, not 1 to {MAX_TOKENS}"));
    }
    let mut reference = Reference::new(metric, answers);
    reference.classes = line.classes;
    Ok(Question {
        id: format!("tasks/{}", line.id.unwrap_or_else(|| format!("{}:{number}", name(path)))),
        task: format!("tasks/{}", line.task.unwrap_or_else(|| path.file_stem().unwrap_or_default().to_string_lossy().into_owned())),
        body,
        max_tokens,
        stop: line.stop,
        reference,
    })
}
