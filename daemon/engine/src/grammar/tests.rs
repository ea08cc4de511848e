use super::*;
use crate::calls::CallForm;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::time::Duration;

/// A token is a byte; 0 ends an answer. Behind the bytes: a control token written `yes`, `no` as one token, and the control tokens of calls.
struct Bytes;

impl TokenText for Bytes {
    fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        match id {
            256 => Cow::Borrowed(b"yes"),
            257 => Cow::Borrowed(b"no"),
            TOOL_CALLS => Cow::Borrowed(b"[TOOL_CALLS]"),
            PYTHON => Cow::Borrowed(b"<|python_tag|>"),
            CLOSE => Cow::Borrowed(b"<|/tool_call|>"),
            _ => Cow::Owned(vec![id as u8]),
        }
    }

    fn is_special(&self, id: u32) -> bool {
        id == 0 || id == 256 || id >= TOOL_CALLS
    }
}

const TOOL_CALLS: u32 = 258;
const PYTHON: u32 = 259;
const CLOSE: u32 = 260;
const TOKENS: usize = 261;

fn grammars() -> Grammars {
    Grammars::new(&Bytes, TOKENS, &[0]).unwrap()
}

fn compile(spec: &Spec) -> Result<Grammar, GrammarError> {
    grammars().compile(spec)
}

fn allows(grammar: &Grammar, token: u32) -> bool {
    grammar.allowed()[token as usize / 32] >> (token % 32) & 1 == 1
}

/// Whether an answer of these bytes is complete: it ends by itself with the last, or may end behind it.
fn takes(spec: &Spec, answer: &str) -> bool {
    takes_tokens(spec, &answer.bytes().map(u32::from).collect::<Vec<_>>())
}

/// The same of an answer in which the tags of calls are the control tokens that they may be.
fn takes_tagged(spec: &Spec, answer: &str) -> bool {
    let mut tokens = Vec::new();
    let mut rest = answer;
    while let Some(first) = rest.bytes().next() {
        let tag = [("[TOOL_CALLS]", TOOL_CALLS), ("<|python_tag|>", PYTHON), ("<|/tool_call|>", CLOSE)];
        let (length, token) = tag.iter().find(|(tag, _)| rest.starts_with(tag)).map_or((1, first.into()), |(tag, id)| (tag.len(), *id));
        tokens.push(token);
        // One of these texts, or one byte: all of the answers here are ASCII.
        rest = &rest[length..];
    }
    takes_tokens(spec, &tokens)
}

fn takes_tokens(spec: &Spec, answer: &[u32]) -> bool {
    let mut grammar = compile(spec).unwrap();
    for (i, &token) in answer.iter().enumerate() {
        if !allows(&grammar, token) {
            return false;
        }
        if grammar.take(token).unwrap() {
            return i + 1 == answer.len();
        }
    }
    allows(&grammar, 0)
}

fn schema(schema: Value) -> Spec {
    Spec::Json(schema)
}

#[test]
fn a_schema_admits_what_it_describes_and_nothing_else() {
    let point = schema(
        json!({"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 20}, "on": {"enum": ["a", null]}},
        "required": ["x", "on"], "additionalProperties": false}),
    );
    for answer in [r#"{"x":7,"on":"a"}"#, "{\n  \"x\": 20,\n  \"on\": null\n}"] {
        assert!(takes(&point, answer), "{answer}");
    }
    for answer in [r#"{"x":21,"on":"a"}"#, r#"{"x":7}"#, r#"{"x":7,"on":"b"}"#, r#"{"x":7,"on":"a","y":1}"#, "7", r#"{"x":7,"on":"a""#] {
        assert!(!takes(&point, answer), "{answer}");
    }
    assert!(takes(
        &schema(json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"type": "number"}, "maxItems": 2}}})),
        "[1,2.5]"
    ));
    assert!(takes(&schema(json!({"type": "string"})), r#""äöü \n 日""#));
}

#[test]
fn a_regular_expression_matches_from_end_to_end() {
    let regex = |regex: &str| Spec::Regex(regex.into());
    assert!(takes(&regex(r"[a-c]+/\d{2}"), "abc/42"));
    assert!(takes(&regex(r"^(left|right)$"), "left"));
    assert!(!takes(&regex(r"[a-c]+"), "abx"));
    assert!(takes(&regex(r"cost: \d+\$"), "cost: 5$"));
    assert!(takes(&regex("a\nb \"c\""), "a\nb \"c\""));
}

#[test]
fn a_choice_is_one_of_the_texts() {
    let choice = Spec::Choice(vec!["left \"1\"".into(), "rechts, bitte".into(), "日本\n".into()]);
    assert!(["left \"1\"", "rechts, bitte", "日本\n"].iter().all(|answer| takes(&choice, answer)));
    assert!(!takes(&choice, "left"));
}

#[test]
fn control_tokens_are_no_text_and_longer_tokens_are() {
    let mut grammar = compile(&Spec::Regex("(yes|no)!".into())).unwrap();
    assert!(!allows(&grammar, 256) && allows(&grammar, 257) && allows(&grammar, b'y'.into()) && !allows(&grammar, 0));
    assert_eq!(grammar.take(257), Ok(false));
    assert_eq!(grammar.take(b'!'.into()), Ok(true));
    let text = compile(&Spec::Json(json!({"type": "string"}))).unwrap();
    assert!(!allows(&text, 256));
}

fn functions() -> Vec<Function> {
    let force =
        json!({"type": "object", "properties": {"force": {"type": "integer"}}, "required": ["force"], "additionalProperties": false});
    vec![Function { name: "grip".into(), arguments: Some(force) }, Function { name: "look_up".into(), arguments: None }]
}

#[test]
fn calls_are_of_the_functions_there_are() {
    let one = Spec::Calls { form: CallForm::hermes(), functions: functions(), several: false, text: false };
    let grip = "<tool_call>\n{\"name\": \"grip\", \"arguments\": {\"force\": 2}}\n</tool_call>";
    let look = "<tool_call>\n{\"name\": \"look_up\", \"arguments\": {\"what\": [1]}}\n</tool_call>";
    assert!(takes(&one, grip) && takes(&one, look));
    assert!(!takes(&one, &format!("{grip}\n{look}")));
    assert!(!takes(&one, &grip.replace("grip", "grab")) && !takes(&one, &grip.replace('2', "\"2\"")) && !takes(&one, "Hello"));
    let several = Spec::Calls { form: CallForm::hermes(), functions: functions(), several: true, text: false };
    assert!(takes(&several, &format!("{grip}\n{look}")));
}

#[test]
fn calls_may_follow_text_or_leave_it_alone() {
    let either = Spec::Calls { form: CallForm::hermes(), functions: functions(), several: true, text: true };
    let grip = "<tool_call>\n{\"name\": \"grip\", \"arguments\": {\"force\": 2}}\n</tool_call>";
    assert!(takes(&either, "Just words, 1 < 2 and <tool.") && takes(&either, grip) && takes(&either, &format!("I grip it.\n{grip}")));
    assert!(!takes(&either, "So: <tool_call>\n{\"name\": \"grab\""));
}

fn llama() -> CallForm {
    let empty = String::new;
    CallForm { open: empty(), key: "parameters".into(), close: empty(), between: empty(), several: false, ..CallForm::hermes() }
}

fn mistral() -> CallForm {
    let (open, between) = ("[TOOL_CALLS] ".into(), ", ".into());
    CallForm { open, list: true, close: String::new(), between, short_ids: true, ..CallForm::hermes() }
}

fn spec(form: CallForm, several: bool, text: bool) -> Spec {
    Spec::Calls { form, functions: functions(), several, text }
}

const GRIP: &str = "{\"name\": \"grip\", \"arguments\": {\"force\": 2}}";
const LOOK: &str = "{\"name\": \"look_up\", \"arguments\": {\"what\": [1]}}";

#[test]
fn calls_in_a_list_begin_with_their_control_token() {
    let (one, both) = (format!("[TOOL_CALLS] [{GRIP}]"), format!("[TOOL_CALLS] [{GRIP}, {LOOK}]"));
    let single = spec(mistral(), false, false);
    assert!(takes_tagged(&single, &one) && !takes_tagged(&single, &both));
    let several = spec(mistral(), true, false);
    assert!(takes_tagged(&several, &one) && takes_tagged(&several, &both));
    for wrong in [
        // Its letters are not the token.
        takes(&several, &one),
        takes_tagged(&several, GRIP),
        takes_tagged(&several, "Hello"),
        takes_tagged(&several, "[TOOL_CALLS] []"),
        takes_tagged(&several, &both.replace(", {\"name", " {\"name")),
        takes_tagged(&several, &one.replace("grip", "grab")),
        takes_tagged(&several, &one.replace('2', "\"2\"")),
        takes_tagged(&several, &one.replace("arguments", "parameters")),
        takes_tagged(&several, &format!("{one}{one}")),
    ] {
        assert!(!wrong);
    }
}

#[test]
fn calls_in_a_list_may_follow_text_or_leave_it_alone() {
    let one = format!("[TOOL_CALLS] [{GRIP}]");
    for (form, takes) in [
        (mistral(), takes_tagged as fn(&Spec, &str) -> bool),
        // A vocabulary without that token.
        (CallForm { open: "[MY_CALLS] ".into(), ..mistral() }, |spec, answer| takes(spec, &answer.replace("TOOL_CALLS", "MY_CALLS"))),
    ] {
        let either = spec(form, true, true);
        assert!(takes(&either, "Just [words], 1 < 2.") && takes(&either, &one) && takes(&either, &format!("I grip it. {one}")));
        assert!(!takes(&either, "So: [TOOL_CALLS] [{\"name\": \"grab\"") && !takes(&either, &format!("{one} Done.")));
    }
}

#[test]
fn a_list_of_calls_ends_with_its_closing_token() {
    let form = CallForm { open: "<tools>".into(), close: "<|/tool_call|>".into(), ..mistral() };
    let closed = spec(form, true, false);
    assert!(takes_tagged(&closed, &format!("<tools>[{GRIP}]<|/tool_call|>")));
    assert!(!takes_tagged(&closed, &format!("<tools>[{GRIP}]")) && !takes(&closed, &format!("<tools>[{GRIP}]<|/tool_call|>")));
}

#[test]
fn an_answer_that_is_a_call_may_begin_with_a_control_token() {
    let grip = GRIP.replace("arguments", "parameters");
    let one = spec(llama(), true, false);
    assert!(takes(&one, &grip) && takes_tagged(&one, &format!("<|python_tag|>{grip}")));
    for wrong in
        [GRIP.to_owned(), format!("{grip}; {grip}"), format!("So: {grip}"), grip.replace("grip", "grab"), grip.replace('2', "\"2\"")]
    {
        assert!(!takes(&one, &wrong), "{wrong}");
    }
    let either = spec(llama(), true, true);
    for right in ["Just words.", "{\"force\": 2}", "{ 1, 2 }", "", &grip] {
        assert!(takes(&either, right), "{right}");
    }
    assert!(takes_tagged(&either, &format!("<|python_tag|>{grip}")));
    for wrong in [
        grip.replace("grip", "grab"),
        "{\"name\": 3}".into(),
        " {\"type\": \"function\"}".into(),
        format!("{grip} and"),
        // What would be read as a call, though its arguments were kept to nothing.
        "{\"arguments\": {\"any\": 1}, \"name\": \"grip\"}".into(),
        format!("<|python_tag|>{grip}"),
        format!("Well: <|python_tag|>{}", grip.replace('2', "\"2\"")),
    ] {
        assert!(!takes(&either, &wrong), "{wrong}");
    }
    // Spelt out, a tag that is a control token is no way around it either.
    assert!(!takes(&spec(mistral(), true, true), "So: [TOOL_CALLS] [{\"name\": \"grip\""));
}

fn refusal(spec: &Spec) -> String {
    match compile(spec) {
        Ok(_) => panic!("compiled {spec:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_a_grammar_cannot_keep_to_is_refused_and_named() {
    for (wrong, named) in [
        (json!({"type": "object", "propertyNames": {"pattern": "a"}}), "propertyNames"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "string", "format": "no-such"}), "no-such"),
        (json!({"type": "string", "pattern": "(?=a)b"}), ""),
        (json!({"not": {"type": "string"}}), "not"),
        (json!({"$ref": "#/$defs/nowhere"}), "nowhere"),
        (json!({"$ref": "https://example.org/s.json"}), "example.org"),
        (json!({"type": "object", "x-guidance": {"lenient": true}, "uniqueItems": true}), "x-guidance"),
        (json!({"type": "flower"}), "flower"),
        (json!({"type": "integer", "minimum": 3, "maximum": 2}), ""),
        (json!({"oneOf": [{"type": "string"}, {"minLength": 2}]}), "oneOf"),
        (json!([1]), "object"),
        (json!(false), "object"),
    ] {
        let words = refusal(&schema(wrong.clone()));
        assert!(words.contains(named) && !words.contains('\n'), "{wrong}: {words}");
    }
    for regex in ["", "(a", "a(?=b)", r"(a)\1", "[b-a]"] {
        assert!(!refusal(&Spec::Regex(regex.into())).is_empty());
    }
    refusal(&Spec::Choice(vec![]));
    refusal(&Spec::Choice(vec!["a".into(), String::new()]));
    refusal(&Spec::Calls { form: CallForm::hermes(), functions: vec![], several: false, text: false });
    let named = |name: &str| Spec::Calls {
        form: CallForm::hermes(),
        functions: vec![Function { name: name.into(), arguments: None }],
        several: false,
        text: false,
    };
    assert!(refusal(&named("a\" | \"b")).contains("name"));
    let array = Function { name: "f".into(), arguments: Some(json!({"type": "array"})) };
    assert!(refusal(&Spec::Calls { form: CallForm::hermes(), functions: vec![array], several: false, text: false }).contains("object"));
}

#[test]
fn hostile_forms_end_within_their_limits() {
    let nested = |n: usize, inner: Value| (0..n).fold(inner, |inner, _| json!({"type": "array", "items": inner}));
    let wide: Value = (0..30_000).map(|i| (format!("p{i}"), json!(true))).collect::<serde_json::Map<_, _>>().into();
    let fan = |n: usize| {
        let level = |i: usize| json!({"allOf": [{"$ref": format!("#/$defs/d{}", i + 1)}, {"$ref": format!("#/$defs/d{}", i + 1)}]});
        let mut defs: serde_json::Map<String, Value> = (0..n).map(|i| (format!("d{i}"), level(i))).collect();
        defs.insert(format!("d{n}"), json!({"type": "string"}));
        json!({"$ref": "#/$defs/d0", "$defs": defs})
    };
    let any = |n: usize| json!({"anyOf": (0..n).map(|i| json!({"pattern": format!(".*{i}.*a{{{}}}", i % 50)})).collect::<Vec<_>>(), "type": "string"});
    let all =
        |n: usize| json!({"allOf": (0..n).map(|i| json!({"pattern": format!(".*x.{{{i}}}y.*")})).collect::<Vec<_>>(), "type": "string"});
    let chain = |n: usize| {
        let mut defs: serde_json::Map<String, Value> =
            (0..n).map(|i| (format!("d{i}"), json!({"allOf": [{"$ref": format!("#/$defs/d{}", i + 1)}]}))).collect();
        defs.insert(format!("d{n}"), json!({"type": "string"}));
        json!({"$ref": "#/$defs/d0", "$defs": defs})
    };
    let nest =
        |n: usize| (0..n).fold(json!({"type": "string"}), |inner, i| json!({"pattern": format!(".*{i}.{{{i}}}z.*"), "anyOf": [inner]}));
    let forms = [
        schema(nested(1000, json!({}))),
        schema(nested(40, json!({"type": "string"}))),
        schema(json!({"type": "object", "properties": wide})),
        schema(fan(40)),
        schema(any(300)),
        schema(all(40)),
        schema(all(8)),
        schema(chain(3000)),
        schema(chain(60)),
        schema(nest(40)),
        schema(json!({"allOf": [{"properties": {"a": all(5)}}, {"properties": {"a": all(5)}}]})),
        schema(json!({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000_000})),
        schema(json!({"type": "string", "minLength": 100_000, "maxLength": 1_000_000_000})),
        schema(json!({"type": "integer", "multipleOf": 999_999_937, "minimum": 1, "maximum": 1e18})),
        schema(json!({"$ref": "#"})),
        schema(json!({"allOf": [{"$ref": "#"}]})),
        Spec::Regex("(((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000})b".into()),
        Spec::Regex("(a|aa|aaa)*(a|ab)*(.*b.{500})".into()),
        Spec::Regex("(".repeat(4000) + &")".repeat(4000)),
        Spec::Regex("(?:".repeat(200) + "a" + &")*".repeat(200)),
        Spec::Regex("(.*a.{20}){40}".into()),
        Spec::Regex(r"\w{5000}\p{L}{5000}".into()),
        Spec::Regex("a|".repeat(4000) + "b"),
    ];
    let grammars = grammars();
    for (i, spec) in forms.iter().enumerate() {
        let began = Instant::now();
        let compiled = grammars.compile(spec);
        let compiling = began.elapsed();
        let what = match compiled {
            Err(error) => format!("refused: {error}"),
            Ok(mut grammar) => {
                // Goes on with whatever comes first, as a model might.
                let (mut slowest, mut end) = (Duration::ZERO, "went on".to_owned());
                for n in 0..200u32 {
                    let mut tokens = (0..TOKENS as u32).filter(|&t| t != 0 && allows(&grammar, t)).collect::<Vec<_>>();
                    let turn = n as usize % tokens.len().max(1);
                    tokens.rotate_left(turn);
                    let Some(&token) = tokens.first() else { break };
                    let began = Instant::now();
                    match grammar.take(token) {
                        Ok(false) => {}
                        Ok(true) => end = format!("complete after {n}"),
                        Err(error) => end = error.to_string(),
                    }
                    slowest = slowest.max(began.elapsed());
                    if end != "went on" {
                        break;
                    }
                }
                assert!(slowest < Duration::from_secs(2), "form {i}: {slowest:?} for a token");
                format!("{end}, {slowest:?} the slowest token")
            }
        };
        println!("form {i}: {compiling:?}, {what}");
        assert!(compiling < Duration::from_secs(5), "form {i}: {compiling:?} to compile");
    }
}

#[test]
fn a_request_that_takes_long_for_every_token_ends() {
    let mut allowance = Allowance::default();
    assert!((0..1000).all(|_| allowance.spend(Duration::from_millis(3)).is_ok()));
    assert!(allowance.spend(Duration::from_millis(450)).is_ok());
    let rest = (0..1000).position(|_| allowance.spend(Duration::from_millis(10)).is_err());
    assert!(rest.is_some_and(|n| n < 20), "{rest:?}");
}

#[test]
fn a_copy_goes_its_own_way() {
    let first = compile(&Spec::Choice(vec!["ab".into(), "cd".into()])).unwrap();
    let (mut one, mut two) = (first.clone(), first);
    assert_eq!(one.take(b'a'.into()), Ok(false));
    assert_eq!(two.take(b'c'.into()), Ok(false));
    assert_eq!((one.take(b'b'.into()), two.take(b'd'.into())), (Ok(true), Ok(true)));
    assert!(matches!(one.take(b'x'.into()), Err(GrammarError::NoToken | GrammarError::TooMuchWork(_))));
}
