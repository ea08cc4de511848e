use super::*;
use crate::evaluate::corpus::Limits;
use crate::evaluate::testing;
use crate::regular::NEVER;
use std::path::Path;

const SQUAD: &str = r#"{"version": "2", "data": [{"title": "T", "paragraphs": [
    {"context": "The keeper lived in Ostwick.", "qas": [
        {"question": "Where did the keeper live?", "id": "1", "answers": [{"text": "Ostwick", "answer_start": 20}], "is_impossible": false},
        {"question": "Who?", "answers": [], "is_impossible": true}]},
    {"context": "The bridge was painted green in spring and has stood in the rain for many years since then.", "qas": []}]},
    {"title": "U", "paragraphs": [{"context": "A ship left the harbour before dawn and nobody on it spoke a word until noon.", "qas": []}]}]}"#;
const HOTPOT: &str = r#"[{"_id": "a", "question": "Q one?", "answer": "yes", "context": [["Title", ["One. ", "Two."]], ["Other", ["Three."]]]},
    {"_id": "b", "question": "Q two?", "answer": "Rome", "context": [["Rome", ["A city with a river and hills."]]]}]"#;

fn corpus() -> Corpus {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.txt"), testing::prose(300_000, 5)).unwrap();
    Corpus::load(&[dir.path().join("a.txt")], &Limits::default(), NEVER).unwrap()
}

fn set(text: &str) -> QuestionSet {
    QuestionSet::parse(Path::new("q.json"), text.as_bytes()).unwrap()
}

/// Every task at a length, with what makes it.
fn all(framing: &Framing<'_>, length: usize, seed: u64) -> Vec<(Task, RulerItem)> {
    let (corpus, squad, hotpot) = (corpus(), set(SQUAD), set(HOTPOT));
    let ruler = Ruler::new(framing, &corpus, Half::Check).unwrap().with_qa_1(&squad).with_qa_2(&hotpot);
    ruler.tasks().into_iter().map(|task| (task, ruler.item(task, length, seed, 0).unwrap())).collect()
}

#[test]
fn all_13_tasks_are_exact_to_the_token_and_ask_what_they_hide() {
    let (tokenizer, template) = (testing::small(), testing::chatml());
    for framing in [Framing::new(&tokenizer, Some(&template)), Framing::plain(&tokenizer)] {
        let items = all(&framing, 20_000, 1);
        assert_eq!(items.iter().map(|(task, _)| *task).collect::<Vec<_>>(), Task::ALL);
        for (task, made) in items {
            let item = &made.item;
            assert_eq!(item.tokens.len() + task.max_tokens(), 20_000, "{}", task.name());
            assert!(made.exact);
            let text = tokenizer.decode(&item.tokens, false);
            if !matches!(task, Task::Qa2) {
                for answer in &item.reference.answers {
                    assert!(text.contains(answer), "{}: {answer}", task.name());
                }
            }
            assert_eq!(item.reference.score(&item.reference.answers.join(", ")), 1.0);
            assert_eq!(item.reference.score("I do not know"), 0.0);
        }
    }
}

#[test]
fn smollm2s_prompts_are_exact_to_the_token() {
    let Some((tokenizer, template)) = testing::smollm2() else { return };
    let framing = Framing::new(&tokenizer, Some(&template));
    for length in [4096, 8192] {
        for (task, made) in all(&framing, length, 7) {
            assert_eq!(made.item.tokens.len() + task.max_tokens(), length, "{}", task.name());
        }
    }
}

/// With a token for every byte, no filler word costs one.
#[test]
fn a_tokenizer_of_bytes_is_filled_too() {
    let tokenizer = testing::tokenizer("");
    let framing = Framing::plain(&tokenizer);
    for length in [24_000, 24_001, 24_002] {
        for (task, made) in all(&framing, length, 3) {
            assert!(made.exact, "{} at {length}: {}", task.name(), made.item.tokens.len());
        }
    }
}

#[test]
fn a_seed_and_an_index_make_the_item() {
    let tokenizer = testing::small();
    let framing = Framing::plain(&tokenizer);
    let (first, again, other) = (all(&framing, 12_000, 1), all(&framing, 12_000, 1), all(&framing, 12_000, 2));
    for ((a, b), (c, task)) in first.iter().zip(&again).zip(other.iter().map(|o| (&o.1, o.0))) {
        assert_eq!(a.1.item, b.1.item);
        assert_ne!(a.1.item.tokens, c.item.tokens, "{}", task.name());
    }
}

fn text_of(task: Task) -> (String, Vec<String>) {
    let tokenizer = testing::small();
    let framing = Framing::plain(&tokenizer);
    let (_, made) = all(&framing, 16_000, 4).into_iter().find(|(t, _)| *t == task).unwrap();
    (tokenizer.decode(&made.item.tokens, false), made.item.reference.answers)
}

#[test]
fn needles_are_as_many_and_of_the_kind_that_the_task_says() {
    let count = |text: &str| text.matches("One of the special magic").count();
    for (task, needles, answers) in [
        (Task::NiahSingle1, 1, 1),
        (Task::NiahSingle2, 1, 1),
        (Task::NiahSingle3, 1, 1),
        (Task::NiahMultikey1, 4, 1),
        (Task::NiahMultivalue, 4, 4),
        (Task::NiahMultiquery, 4, 4),
    ] {
        let (text, right) = text_of(task);
        assert_eq!((count(&text), right.len()), (needles, answers), "{}", task.name());
    }
    let (text, right) = text_of(Task::NiahMultikey3);
    assert!(count(&text) > 20, "the haystack is needles");
    let uuid = &right[0];
    let shape: Vec<usize> = uuid.split('-').map(str::len).collect();
    assert_eq!(shape, [8, 4, 4, 4, 12]);
    assert!(uuid.as_bytes()[14] == b'4' && matches!(uuid.as_bytes()[19], b'8' | b'9' | b'a' | b'b'), "{uuid}");
    assert!(
        text.starts_with("A special magic uuid is hidden") && text.ends_with("mentioned in the provided text is"),
        "one is asked for as one"
    );
    let (text, right) = text_of(Task::NiahMultiquery);
    assert!(text.contains("What are all the special magic numbers for ") && text.contains(", and "));
    assert!(right.iter().all(|number| number.len() == 7));
}

#[test]
fn a_chain_has_five_variables_and_an_example_comes_first() {
    let (text, right) = text_of(Task::Vt);
    assert_eq!(text.matches("Memorize and track").count(), 2);
    assert_eq!(right.len(), 5);
    assert!(right.iter().all(|name| name.len() == 5));
    let order: Vec<usize> = right.iter().map(|name| text.find(&format!("VAR {name} =")).unwrap()).collect();
    assert!(order.is_sorted(), "an assignment comes behind what it reads");
    assert!(text.ends_with("they are: "));
}

#[test]
fn common_words_are_the_most_common() {
    let (text, right) = text_of(Task::Cwe);
    let list = text.rsplit("most often.\n").next().unwrap().split("\nQuestion").next().unwrap();
    let mut counts = std::collections::HashMap::new();
    for word in list.split(' ').skip(1).step_by(2) {
        *counts.entry(word).or_insert(0) += 1;
    }
    assert_eq!(right.len(), 10);
    assert!(right.iter().all(|word| counts[word.as_str()] == 30), "{counts:?}");
    assert!(counts.iter().filter(|(word, _)| !right.iter().any(|r| r == *word)).all(|(_, &n)| n == 3));
}

#[test]
fn frequent_words_follow_their_distribution() {
    let (text, right) = text_of(Task::Fwe);
    let times = |word: &str| text.matches(word).count();
    let counts: Vec<usize> = right.iter().map(|word| times(word)).collect();
    assert_eq!(right.len(), 3);
    assert!(counts[0] > counts[1] && counts[1] > counts[2] && counts[2] > 10, "{counts:?}");
    // 1/4 to 1/9 of the first rank's.
    assert!((counts[0] as f64 / counts[1] as f64 - 2.25).abs() < 0.1, "{counts:?}");
}

#[test]
fn questions_come_from_three_formats_and_stand_among_documents() {
    let (text, right) = text_of(Task::Qa1);
    assert_eq!(right, ["Ostwick"]);
    assert!(text.contains("Document 1:\n") && text.contains("Document 2:\n"));
    assert_eq!(text.matches("lived in Ostwick").count(), 1);
    let lines = set(
        "{\"question\": \"Q?\", \"answers\": [\"a\"], \"documents\": [\"d a\"]}\n{\"question\": \"R?\", \"answers\": [\"b\"], \"documents\": [\"e b\"]}",
    );
    assert_eq!(lines.len(), 2);
    assert_eq!(set(HOTPOT).len(), 2);
    let refused = |text: &str| QuestionSet::parse(Path::new("q.json"), text.as_bytes()).unwrap_err().to_string();
    assert!(refused("{\"question\": 1}").starts_with("q.json: line 1: "), "{}", refused("{\"question\": 1}"));
    assert!(refused("[]").starts_with("q.json: 0 questions and 0 documents"));
    assert!(refused("[{]").contains("HotpotQA: a list"));
}

#[test]
fn without_files_of_questions_there_are_11_tasks() {
    let (tokenizer, corpus) = (testing::small(), corpus());
    let framing = Framing::plain(&tokenizer);
    let ruler = Ruler::new(&framing, &corpus, Half::Check).unwrap();
    assert_eq!(ruler.tasks().len(), 11);
    assert!(matches!(ruler.item(Task::Qa1, 20_000, 1, 0), Err(PromptError::NoQuestions { task: "qa_1" })));
}

#[test]
fn a_length_with_no_room_is_refused_with_the_least() {
    let (tokenizer, corpus) = (testing::small(), corpus());
    let framing = Framing::plain(&tokenizer);
    let ruler = Ruler::new(&framing, &corpus, Half::Check).unwrap();
    for task in ruler.tasks() {
        for length in [0, 100, 180] {
            let error = ruler.item(task, length, 1, 0).unwrap_err();
            assert!(matches!(error, PromptError::TooLong { .. }), "{} at {length}: {error}", task.name());
        }
    }
}

#[test]
fn thoughts_have_their_tokens_and_no_first_words() {
    let (tokenizer, template) = (testing::small(), testing::chatml());
    let framing = Framing::new(&tokenizer, Some(&template)).thinking(1000);
    for (task, made) in all(&framing, 20_000, 1) {
        assert_eq!(made.item.max_tokens, task.max_tokens() + 1000);
        assert_eq!(made.item.tokens.len() + made.item.max_tokens, 20_000);
        assert!(tokenizer.decode(&made.item.tokens, false).ends_with("<|im_start|>assistant\n"));
    }
}
