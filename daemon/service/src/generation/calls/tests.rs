use super::*;
use skip_client::protocol::ToolCall;

/// Text and calls of an answer that comes in pieces of `step` characters.
fn parse_as(form: &CallForm, answer: &str, step: usize) -> (String, Vec<ToolCall>, u32) {
    let functions = vec!["grip".to_owned(), "look".to_owned(), "f".to_owned()];
    let mut calls = Calls::new(Expected { form: form.clone(), functions, most: u32::MAX });
    let characters: Vec<char> = answer.chars().collect();
    let mut parts: Vec<Part> = characters.chunks(step).flat_map(|piece| calls.push(&piece.iter().collect::<String>())).collect();
    parts.extend(calls.finish());
    let (mut text, mut made) = (String::new(), Vec::new());
    for part in parts {
        match part {
            Part::Text(piece) => text += &piece,
            Part::Call(delta) => delta.add_to(&mut made),
        }
    }
    (text, made, calls.complete())
}

fn parse(answer: &str, step: usize) -> (String, Vec<ToolCall>, u32) {
    parse_as(&CallForm::hermes(), answer, step)
}

fn named(calls: &[ToolCall]) -> Vec<(&str, &str)> {
    calls.iter().map(|call| (call.function.name.as_str(), call.function.arguments.as_str())).collect()
}

/// As Llama 3 writes a call.
fn llama() -> CallForm {
    let (key, empty) = ("parameters".to_owned(), String::new);
    CallForm { open: empty(), list: false, key, close: empty(), between: empty(), several: false, short_ids: false }
}

/// As Mistral's models write calls.
fn mistral() -> CallForm {
    let (open, key, between) = ("[TOOL_CALLS] ".to_owned(), "arguments".to_owned(), ", ".to_owned());
    CallForm { open, list: true, key, close: String::new(), between, several: true, short_ids: true }
}

const GRIP: &str = "<tool_call>\n{\"name\": \"grip\", \"arguments\": {\"force\": 2, \"say\": \"}\\\"{ü\"}}\n</tool_call>";
const FORCE: &str = "{\"force\": 2, \"say\": \"}\\\"{ü\"}";

#[test]
fn calls_are_found_however_the_text_is_cut() {
    let answer = format!("I take it.\n\n{GRIP}\n<tool_call>{{\"name\":\"look\",\"arguments\":{{}}}}</tool_call>");
    for step in 1..answer.chars().count() {
        let (text, calls, complete) = parse(&answer, step);
        assert_eq!(text, "I take it.", "every {step}");
        assert_eq!(named(&calls), [("grip", FORCE), ("look", "{}")], "every {step}");
        assert_eq!(complete, 2);
        assert_ne!(calls[0].id, calls[1].id);
    }
}

#[test]
fn a_call_of_another_form_is_told_whole_and_what_is_none_is_text() {
    for step in [1, 4, 1000] {
        let other = "<tool_call>{\"arguments\": {\"a\": [1]}, \"name\": \"f\"}</tool_call>";
        assert_eq!(named(&parse(other, step).1), [("f", "{\"a\":[1]}")]);
        assert_eq!(named(&parse("<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}", step).1), [("f", "{}")]);
        assert_eq!(named(&parse("<tool_call>{\"name\": \"f\"}</tool_call>", step).1), [("f", "{}")]);
        for text in
            ["<tool_call>no JSON</tool_call> and on", "a <tool_call", "1 < 2, <tool_calls>", "<tool_call>{\"name\": 3", " \n", "a\n\n"]
        {
            let found = parse(text, step);
            assert_eq!((found.0.as_str(), found.1.len(), found.2), (text, 0, 0));
        }
    }
}

fn expected(form: CallForm) -> Expected {
    Expected { form, functions: vec!["f".into()], most: u32::MAX }
}

#[test]
fn arguments_are_told_as_they_come_and_may_be_cut() {
    let beginnings = [
        (CallForm::hermes(), "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\""),
        (llama(), "{\"name\": \"f\", \"parameters\": {\"a\""),
        (mistral(), "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\""),
    ];
    for (form, beginning) in beginnings {
        let mut calls = Calls::new(expected(form));
        let parts = calls.push(beginning);
        assert!(
            matches!(&parts[..], [Part::Call(begin), Part::Call(more)]
            if begin.function.name.as_deref() == Some("f") && more.function.arguments == "{\"a\""),
            "{parts:?}"
        );
        assert_eq!(calls.push(": 1"), [Part::Call(ToolCallDelta::more(0, ": 1".into()))]);
        assert_eq!((calls.finish().len(), calls.complete()), (0, 0));
    }
}

#[test]
fn a_list_of_calls_is_found_however_the_text_is_cut() {
    let answer = format!(
        "I take it. [TOOL_CALLS] [{{\"name\": \"grip\", \"arguments\": {FORCE}, \"id\": \"a]}}\"}}, {{\"arguments\": {{}}, \"name\": \"look\"}}]"
    );
    for step in 1..answer.chars().count() {
        let (text, calls, complete) = parse_as(&mistral(), &answer, step);
        assert_eq!((text.as_str(), complete), ("I take it.", 2), "every {step}");
        assert_eq!(named(&calls), [("grip", FORCE), ("look", "{}")], "every {step}");
        assert!(calls.iter().all(|call| call.id.len() == 9 && call.id.chars().all(|c| c.is_ascii_alphanumeric())), "{calls:?}");
        assert_ne!(calls[0].id, calls[1].id);
    }
    let alone = parse_as(&mistral(), "[TOOL_CALLS]{\"name\": \"f\", \"arguments\": {}}", 3);
    assert_eq!((named(&alone.1), alone.2), (vec![("f", "{}")], 1), "without its brackets");
    for text in ["[TOOL_CALLS] none", "[TOOL_CALLS] [1, 2]", "[TOOL_CALLS] [", "a [TOOL", "[TOOL_CALLS] [{\"a\": 1}]", "[1, 2]"] {
        for step in [1, 4, 1000] {
            let found = parse_as(&mistral(), text, step);
            assert_eq!((found.0.as_str(), found.1.len(), found.2), (text, 0, 0));
        }
    }
}

#[test]
fn a_list_with_a_closing_tag_ends_with_it() {
    let form = CallForm { open: "<|tool_call|>".into(), close: "<|/tool_call|>".into(), ..mistral() };
    let answer = "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"look\", \"arguments\": {}}]<|/tool_call|> done";
    for step in [1, 7, 1000] {
        let (text, calls, complete) = parse_as(&form, answer, step);
        assert_eq!((text.as_str(), named(&calls), complete), (" done", vec![("f", "{}"), ("look", "{}")], 2), "every {step}");
    }
}

#[test]
fn an_answer_that_is_a_call_needs_no_tag() {
    for answer in [
        format!("{{\"name\": \"grip\", \"parameters\": {FORCE}}}"),
        format!("<|python_tag|>{{\"name\": \"grip\", \"parameters\": {FORCE}}}"),
        format!("\n {{\"name\":\"grip\",\"parameters\":{FORCE}}}; {{\"name\": \"look\", \"parameters\": {{}}}}"),
    ] {
        for step in 1..answer.chars().count() {
            let (text, calls, complete) = parse_as(&llama(), &answer, step);
            assert_eq!((text.as_str(), named(&calls), complete), ("", vec![("grip", FORCE)], 1), "{answer}, every {step}");
        }
    }
    let typed = "{\"type\": \"function\", \"name\": \"look\", \"parameters\": {\"a\": 1}}";
    let (text, calls, _) = parse_as(&llama(), &format!("Well: <|python_tag|>{typed}"), 5);
    assert_eq!((text.as_str(), named(&calls)), ("Well:", vec![("look", "{\"a\":1}")]));
    assert_eq!(named(&parse_as(&llama(), typed, 5).1), [("look", "{\"a\":1}")]);
}

#[test]
fn an_object_that_is_no_call_of_a_known_function_is_text() {
    for text in [
        "{\"name\": \"Ada\", \"age\": 36} and more",
        "{\"name\": \"grab\", \"parameters\": {}}",
        "{\"name\": \"grip\"}",
        "{\"color\": \"red\"}",
        "{}",
        "{",
        "{\"na",
        "{\"type\": \"function\"} {\"name\": \"grip\", \"parameters\": {}}",
        "A call: {\"name\": \"grip\", \"parameters\": {}}",
        "<|python_tag|>print(1)",
        "<|python_tag|>{\"name\": \"grab\", \"parameters\": {}}",
        " \n",
    ] {
        for step in [1, 4, 1000] {
            let found = parse_as(&llama(), text, step);
            assert_eq!((found.0.as_str(), found.1.len(), found.2), (text, 0, 0), "every {step}");
        }
    }
}

#[test]
fn a_tag_of_any_signs_is_found_in_pieces() {
    let form = CallForm { open: "<｜调用｜>".into(), close: "</调用>".into(), ..mistral() };
    let answer = "< 调 <｜调用｜>[{\"name\": \"look\", \"arguments\": {}}]</调用>";
    for step in 1..answer.chars().count() {
        let (text, calls, complete) = parse_as(&form, answer, step);
        assert_eq!((text.as_str(), named(&calls), complete), ("< 调", vec![("look", "{}")], 1), "every {step}");
    }
}

#[test]
fn an_object_of_other_keys_is_told_as_it_comes() {
    let mut calls = Calls::new(expected(llama()));
    assert_eq!(calls.push("{\"color"), [Part::Text("{\"color".into())]);
    assert_eq!(calls.push("\": 1"), [Part::Text("\": 1".into())]);
}
