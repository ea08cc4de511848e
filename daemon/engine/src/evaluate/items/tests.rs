use super::*;
use crate::evaluate::metric::Metric;
use crate::evaluate::testing;
use crate::regular::NEVER;
use std::path::Path;

fn csv(text: &str) -> Result<Vec<Question>, String> {
    mmlu::parse_csv(Path::new("high_school_physics_test.csv"), text.as_bytes()).map_err(|e| e.to_string())
}

fn own(text: &str) -> Result<Vec<Question>, String> {
    tasks::parse(Path::new("logs.jsonl"), text.as_bytes()).map_err(|e| e.to_string())
}

fn bench(dataset: &str, text: &str) -> Result<Vec<Question>, String> {
    longbench::parse(dataset, Path::new("file.jsonl"), text.as_bytes()).map_err(|e| e.to_string())
}

#[test]
fn mmlus_csv_has_quoted_fields_over_lines() {
    let questions = csv("\"Which, \"\"of\"\"\nthese?\",one,\"two, too\",,four,B\r\nNext?,a,b,c,d,D").unwrap();
    assert_eq!(questions.len(), 2);
    assert_eq!(questions[0].id, "mmlu/high_school_physics_test.csv:1");
    assert_eq!(questions[1].id, "mmlu/high_school_physics_test.csv:3");
    assert_eq!(questions[0].task, "mmlu/high_school_physics");
    let Body::User { content, prefix } = &questions[0].body else { panic!() };
    assert!(
        content.contains("about high school physics.") && content.ends_with("Which, \"of\"\nthese?\nA. one\nB. two, too\nC. \nD. four"),
        "{content}"
    );
    assert_eq!(prefix, "Answer:");
    assert_eq!(questions[0].reference.score(" B. two"), 1.0);
}

#[test]
fn mmlus_lines_of_json_give_the_answer_as_number_or_letter() {
    let line = |answer: &str| format!(r#"{{"question": "Q?", "choices": ["1", "2", "3", "4"], "answer": {answer}, "subject": "anatomy"}}"#);
    let text = [line("2"), line("\"C\"")].join("\n\n");
    let questions = mmlu::parse_jsonl(Path::new("x.jsonl"), text.as_bytes()).unwrap();
    assert!(questions.iter().all(|q| q.reference.answers == ["C"] && q.task == "mmlu/anatomy"));
    let wrong = mmlu::parse_jsonl(Path::new("x.jsonl"), line("4").as_bytes()).unwrap_err().to_string();
    assert_eq!(wrong, "x.jsonl:1: the answer is none of A, B, C, D (or 0 to 3)");
}

#[test]
fn what_is_wrong_is_named_with_file_and_line() {
    let cases = [
        (csv("a,b,c,d,e,A\n1,2"), "high_school_physics_test.csv:2: 2 fields, not 6 (question, four choices, letter)"),
        (csv("a,b,c,d,e,E"), "high_school_physics_test.csv:1: the answer is none of A, B, C, D (or 0 to 3)"),
        (csv("a\n\"b"), "high_school_physics_test.csv:2: a quoted field does not end"),
        (csv("\"a\"b,c"), "high_school_physics_test.csv:1: 'b' behind a quoted field"),
        (own("{}"), "logs.jsonl:1: missing field `answers`"),
        (own("\n{\"prompt\": \"a\", \"answers\": \"b\", \"metric\": \"f1\"}"), "logs.jsonl:2: no metric `f1` (there are ruler_all,"),
        (own(r#"{"prompts": "a", "answers": "b", "metric": "exact"}"#), "logs.jsonl:1: unknown field `prompts`"),
        (own(r#"{"answers": "b", "metric": "exact"}"#), "logs.jsonl:1: prompt or messages, one of them"),
        (own(r#"{"prompt": "a", "answers": [" "], "metric": "exact"}"#), "logs.jsonl:1: answers is empty"),
        (own(r#"{"prompt": "a", "answers": "b", "metric": "exact", "max_tokens": 0}"#), "logs.jsonl:1: max_tokens is 0, not 1 to 32768"),
        (own(r#"{"messages": [{"role": "user"}], "answers": "b", "metric": "exact"}"#), "logs.jsonl:1: messages[0] is not an object"),
        (own(r#"{"prompt": "a", "answers": "b", "metric": "classification"}"#), "logs.jsonl:1: classification needs classes"),
        (bench("qasper", r#"{"context": "c", "answers": []}"#), "file.jsonl:1: no answers"),
        (bench("trec", r#"{"context": "c", "answers": ["x"]}"#), "file.jsonl:1: no all_classes"),
        (bench("dureader", "{}"), "file.jsonl: `dureader` is not one of LongBench's datasets"),
    ];
    for (got, wanted) in cases {
        let got = got.unwrap_err();
        assert!(got.starts_with(wanted), "{got}\n{wanted}");
    }
    let line = "{\"prompt\": \"a\", \"answers\": \"b\", \"metric\": \"exact\", \"id\": \"x\"}\n";
    assert_eq!(own(&line.repeat(2)).unwrap_err(), "logs.jsonl:2: the id `tasks/x` was there before");
    assert_eq!(tasks::parse(Path::new("f"), &b"\xff\n"[..]).unwrap_err().to_string(), "f:1: not UTF-8");
    let long = vec![b' '; read::MAX_LINE + 2];
    assert!(tasks::parse(Path::new("f"), &long[..]).unwrap_err().to_string().starts_with("f:1: longer than the limit"));
}

#[test]
fn longbench_is_read_from_its_folder_dataset_by_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    put(
        "qasper.jsonl",
        r#"{"input": "Why {x}?", "context": "Because {input}.", "answers": ["so"], "length": 3, "dataset": "qasper", "language": "en", "all_classes": null, "_id": "7f"}"#,
    );
    put("trec_e.jsonl", r#"{"input": "Q", "context": "C", "answers": ["Date"], "all_classes": ["Date", "Place"]}"#);
    put("dureader.jsonl", "{}");
    put("musique.jsonl", "{}");
    let read = longbench::open(dir.path(), &[], NEVER).unwrap();
    assert_eq!(read.left_out, ["dureader.jsonl", "musique.jsonl"]);
    let [qasper, trec] = read.questions.as_slice() else { panic!("{:?}", read.questions) };
    assert_eq!((qasper.id.as_str(), qasper.max_tokens, qasper.reference.metric), ("longbench/qasper/7f", 128, Metric::QaF1));
    let Body::User { content, .. } = &qasper.body else { panic!() };
    assert!(content.contains("Article: Because {input}.\n\n") && content.ends_with("Question: Why {x}?\n\nAnswer:"), "{content}");
    assert!(matches!(&trec.body, Body::Raw(text) if text.ends_with("\n\nC\nQ")) && trec.reference.first_line);
    assert!(longbench::open(dir.path(), &["nope".into()], NEVER).unwrap_err().to_string().contains("no dataset `nope`"));
    assert!(longbench::open(dir.path(), &["lcc".into()], NEVER).unwrap_err().to_string().contains("no questions"));
    assert_eq!(longbench::datasets().count(), 16);
}

#[test]
fn a_prompt_that_is_too_long_loses_its_middle_and_fits_exactly_or_just_below() {
    let (tokenizer, template) = (testing::small(), testing::chatml());
    let framing = Framing::new(&tokenizer, Some(&template));
    let text = format!("BEGIN {} END", "here we go é again, and so on ".repeat(300));
    let question = Question {
        id: "q".into(),
        task: "tasks/q".into(),
        body: Body::User { content: text.clone(), prefix: String::new() },
        max_tokens: 16,
        stop: Vec::new(),
        reference: Reference::new(Metric::Exact, vec!["x".into()]),
    };
    let whole = question.prepare(&framing, 100_000).unwrap().unwrap();
    assert_eq!(whole.cut, 0);
    for context in [120, 500, 501, 1000] {
        let cut = question.prepare(&framing, context).unwrap().unwrap();
        assert!(
            cut.cut > 0 && cut.item.tokens.len() <= context - 16 && cut.item.tokens.len() + 8 >= context - 16,
            "{context}: {}",
            cut.item.tokens.len()
        );
        let said = tokenizer.decode(&cut.item.tokens, false);
        assert!(said.contains("BEGIN here") && said.contains("on  END<|im_end|>"), "{said}");
    }
    assert!(question.prepare(&framing, 16).unwrap().is_none());
    let messages = Question { body: Body::Messages(vec![serde_json::json!({"role": "user", "content": text})]), ..question };
    assert!(messages.prepare(&framing, 500).unwrap().is_none(), "a conversation is not cut");
    assert_eq!(messages.prepare(&framing, 100_000).unwrap().unwrap().item.tokens, whole.item.tokens);
}

#[test]
fn questions_are_chosen_by_the_seed_in_their_order() {
    let all = csv(&"q,a,b,c,d,A\n".repeat(50)).unwrap();
    let ids = |seed| choose(all.clone(), 10, seed).into_iter().map(|q| q.id).collect::<Vec<_>>();
    assert_eq!(ids(1), ids(1));
    assert_ne!(ids(1), ids(2));
    assert_eq!(ids(1).len(), 10);
    assert_eq!(choose(all.clone(), 500, 1), all);
}

#[test]
fn the_digest_is_of_what_is_asked_and_how_it_is_scored() {
    let (tokenizer, question) = (testing::small(), csv("q,a,b,c,d,A").unwrap().remove(0));
    let item = question.prepare(&Framing::plain(&tokenizer), 10_000).unwrap().unwrap().item;
    let other = Item { tokens: item.tokens[1..].to_vec(), ..item.clone() };
    let right = Item { reference: Reference::new(Metric::Choice, vec!["B".into()]), ..item.clone() };
    assert_eq!(digest([&item]), digest([&item.clone()]));
    assert!(
        digest([&item]) != digest([&other]) && digest([&item]) != digest([&right]) && digest([&item, &other]) != digest([&other, &item])
    );
}

#[test]
fn only_regular_files_are_read_and_reading_ends_when_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe.jsonl");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    for path in [pipe.as_path(), Path::new("/proc/self/status"), Path::new("/dev/zero")] {
        let errors = [
            mmlu::open(path, NEVER).map(drop).unwrap_err().to_string(),
            tasks::open(path, NEVER).map(drop).unwrap_err().to_string(),
            crate::evaluate::ruler::QuestionSet::open(path, NEVER).map(drop).unwrap_err().to_string(),
            crate::evaluate::results::Results::open(path, NEVER).map(drop).unwrap_err().to_string(),
        ];
        for error in errors {
            assert!(error.contains("not a regular file"), "{}: {error}", path.display());
        }
    }
    let lines = dir.path().join("lines.jsonl");
    std::fs::write(&lines, "{\"prompt\": \"a\", \"answers\": \"b\", \"metric\": \"exact\"}\n").unwrap();
    assert_eq!(tasks::open(&lines, NEVER).unwrap().len(), 1);
    assert!(tasks::open(&lines, &|| true).unwrap_err().to_string().ends_with("cancelled"));
}
