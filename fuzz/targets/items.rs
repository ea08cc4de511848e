//! Files of `evaluate`: MMLU, LongBench, tasks of one's own, questions with documents, saved results; and answers, scored against them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skip_engine::evaluate::items::{Question, longbench, mmlu, tasks};
use skip_engine::evaluate::results::Results;
use skip_engine::evaluate::ruler::QuestionSet;
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let path = Path::new("anatomy_test.csv");
    let questions: Vec<Question> = match which % 6 {
        0 => mmlu::parse_csv(path, bytes).unwrap_or_default(),
        1 => mmlu::parse_jsonl(path, bytes).unwrap_or_default(),
        2 => tasks::parse(path, bytes).unwrap_or_default(),
        3 => {
            let dataset = longbench::datasets().nth(usize::from(which / 6) % 16).expect("there are 16");
            longbench::parse(dataset, path, bytes).unwrap_or_default()
        }
        4 => {
            if let Ok(set) = QuestionSet::parse(path, bytes) {
                assert!(!set.is_empty(), "a set without questions is refused");
            }
            return;
        }
        _ => {
            if let Ok(results) = Results::parse(bytes) {
                let again = Results::parse(results.to_json().as_bytes()).expect("what was read can be written and read");
                assert!(again.identity == results.identity && again.arms.len() == results.arms.len());
            }
            return;
        }
    };
    for question in questions.iter().take(20) {
        let own = question.reference.answers.first().cloned().unwrap_or_default();
        for answer in [own.as_str(), "The answer is B. Paragraph 3", ""] {
            let score = question.reference.score(answer);
            assert!((0.0..=1.0).contains(&score), "{score} for {answer:?} against {:?}", question.reference);
        }
    }
});
