//! Answers held to a form: schemas, regular expressions and calls of functions; penalties and biases; and that none of it touches other requests.

use crate::{completion, ends, streamed_text, text};
use serde_json::{Value, json};
use skip_client::Client;
use skip_tests::process::{cache, checkpoint, root, run};
use skip_tests::{Daemon, Options};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn person() -> Value {
    json!({"type": "object", "additionalProperties": false, "required": ["name", "age", "likes"], "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"enum": ["tea", "coffee", "water"]}}}})
}

/// Whether a value is what [`person`] admits.
fn is_person(value: &Value) -> bool {
    let likes = value["likes"].as_array().map(Vec::as_slice).unwrap_or_default();
    value.as_object().is_some_and(|fields| fields.len() == 3)
        && value["name"].as_str().is_some_and(|name| name.chars().count() <= 16)
        && value["age"].as_u64().is_some_and(|age| age <= 120)
        && (1..=2).contains(&likes.len())
        && likes.iter().all(|drink| ["tea", "coffee", "water"].iter().any(|known| drink == known))
}

fn format(schema: Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": true}})
}

fn ask(question: &str, extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": question}], "max_tokens": 160, "temperature": 0});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn post(daemon: &Daemon, path: &str, body: &Value) -> Value {
    daemon.http().post(path, body.to_string()).unwrap().expect(200).unwrap_or_else(|e| panic!("{body}: {e:?}"))
}

#[test]
fn a_schema_holds_for_every_seed_and_temperature() {
    let daemon = Daemon::shared();
    for (seed, temperature) in [(0, 0.0), (1, 0.7), (2, 1.0), (3, 1.5), (4, 2.0), (5, 2.0)] {
        let body =
            ask("Describe a person as JSON.", json!({"response_format": format(person()), "seed": seed, "temperature": temperature}));
        let answer = post(daemon, CHAT, &body);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        let value: Value = serde_json::from_str(text(&answer)).unwrap_or_else(|e| panic!("{e}: {answer}"));
        assert!(is_person(&value), "{value}");
    }
}

#[test]
fn regular_expressions_choices_and_json_hold_for_chat_and_text() {
    let daemon = Daemon::shared();
    let date = |text: &str| {
        let parts: Vec<&str> = text.split('-').collect();
        parts.iter().map(|part| part.len()).eq([4, 2, 2]) && text.chars().all(|c| c == '-' || c.is_ascii_digit())
    };
    for seed in 0..4 {
        let form = json!({"structured_outputs": {"regex": "[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]"}, "seed": seed, "temperature": 1.5});
        let answer = post(daemon, CHAT, &ask("When was the first moon landing?", form.clone()));
        assert!(date(text(&answer)), "{answer}");
        let mut body = completion("The date of the moon landing is ", 32);
        body.as_object_mut().unwrap().extend(form.as_object().unwrap().clone());
        let answer = post(daemon, TEXT, &body);
        assert!(date(text(&answer)) && answer["choices"][0]["finish_reason"] == "stop", "{answer}");
    }
    let answer = post(daemon, CHAT, &ask("Tea or coffee?", json!({"structured_outputs": {"choice": ["Tea, please.", "Coffee!"]}})));
    assert!(["Tea, please.", "Coffee!"].contains(&text(&answer)), "{answer}");
    let schema = json!({"structured_outputs": {"json": {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3}}});
    let answer = post(daemon, CHAT, &ask("Yes, no, yes, as JSON.", schema));
    assert_eq!(serde_json::from_str::<Vec<bool>>(text(&answer)).unwrap().len(), 3);
    let answer =
        post(daemon, CHAT, &ask("A JSON object with one key.", json!({"response_format": {"type": "json_object"}, "max_tokens": 400})));
    let whole = answer["choices"][0]["finish_reason"] == "stop";
    assert!(!whole || serde_json::from_str::<Value>(text(&answer)).unwrap().is_object(), "{answer}");
}

#[test]
fn a_form_goes_with_streams_log_probabilities_stops_and_lengths() {
    let daemon = Daemon::shared();
    let form = json!({"response_format": format(person()), "logprobs": true, "top_logprobs": 2});
    let whole = post(daemon, CHAT, &ask("Describe a person.", form.clone()));
    let tokens = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len() as u64, whole["usage"]["completion_tokens"].as_u64().unwrap());
    assert!(tokens.iter().all(|token| token["logprob"].as_f64().unwrap() <= 0.0));
    let sure = post(daemon, CHAT, &ask("A digit?", json!({"structured_outputs": {"choice": ["7"]}, "logprobs": true})));
    assert_eq!((text(&sure), &sure["choices"][0]["logprobs"]["content"][0]["logprob"]), ("7", &json!(0.0)), "one token alone may come");

    let mut body = ask("Describe a person.", form.clone());
    body["stream"] = true.into();
    let events = daemon.http().post(CHAT, body.to_string()).unwrap().events().unwrap();
    assert_eq!((streamed_text(&events).as_str(), ends(&events)), (text(&whole), vec!["stop"]));

    let cut = post(daemon, CHAT, &ask("Describe a person.", json!({"response_format": format(person()), "max_tokens": 5})));
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert!(text(&whole).starts_with(text(&cut)) && serde_json::from_str::<Value>(text(&cut)).is_err());

    let stopped = post(daemon, CHAT, &ask("Describe a person.", json!({"response_format": format(person()), "stop": ["\"age\""]})));
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert_eq!(text(&stopped), text(&whole).split("\"age\"").next().unwrap());
}

#[test]
fn plain_requests_beside_held_ones_get_the_tokens_they_get_alone() {
    let daemon = Daemon::shared();
    let prompts = ["The capital of France is", "Once upon a time", "Water boils at"];
    let plain = |prompt: &str| text(&post(daemon, TEXT, &completion(prompt, 48))).to_owned();
    let held = || {
        let body = ask("Describe a person.", json!({"response_format": format(person()), "seed": 11, "temperature": 1.2}));
        text(&post(daemon, CHAT, &body)).to_owned()
    };
    let (alone, person_alone) = (prompts.map(plain), held());
    for _ in 0..2 {
        std::thread::scope(|scope| {
            let persons: Vec<_> = (0..3).map(|_| scope.spawn(held)).collect();
            let together: Vec<_> =
                prompts.map(|prompt| scope.spawn(move || plain(prompt))).into_iter().map(|t| t.join().unwrap()).collect();
            assert_eq!(together, alone);
            for person in persons {
                assert_eq!(person.join().unwrap(), person_alone);
            }
        });
    }
}

/// Sends what must be refused, and returns the error.
fn refused(body: &Value, param: &str) -> Value {
    let answer = Daemon::shared().http().post(CHAT, body.to_string()).unwrap().expect(400).unwrap_or_else(|e| panic!("{body}: {e:?}"));
    assert_eq!(answer["error"]["param"], param, "{answer}");
    answer["error"].clone()
}

#[test]
fn what_cannot_be_kept_to_is_refused_and_named() {
    let schema = |schema: Value| ask("x", json!({"response_format": format(schema)}));
    let at = "response_format.json_schema.schema";
    for (wrong, word) in [
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "object", "propertyNames": {"maxLength": 3}}), "propertyNames"),
        (json!({"type": "string", "format": "moon-phase"}), "moon-phase"),
        (json!({"x-guidance": {"lenient": true}}), "x-guidance"),
    ] {
        let error = refused(&schema(wrong), at);
        assert_eq!(error["code"], "unsupported_parameter");
        assert!(error["message"].as_str().unwrap().contains(word), "{error}");
    }
    refused(&ask("x", json!({"structured_outputs": {"regex": "(a"}})), "structured_outputs.regex");
    refused(&ask("x", json!({"structured_outputs": {"grammar": "start: \"a\""}})), "structured_outputs.grammar");
    refused(&ask("x", json!({"response_format": {"type": "grammar"}})), "response_format.type");
    refused(&ask("x", json!({"tools": [{"type": "function", "function": {"name": "f"}}]})), "tools");
    refused(&ask("x", json!({"n": 2})), "n");
    refused(&ask("x", json!({"logit_bias": {"49152": 1}})), "logit_bias.49152");
    refused(&ask("x", json!({"logit_bias": {"5": 100.5}})), "logit_bias.5");
    refused(&ask("x", json!({"frequency_penalty": -2.5})), "frequency_penalty");
    Daemon::shared().assert_alive().unwrap();
}

#[test]
fn hostile_forms_do_not_hold_up_others() {
    let daemon = Daemon::shared();
    daemon.assert_alive().unwrap();
    let regexes = ["((((a{1,900}){1,900}){1,900}){1,900})b", "(.*a.{30}){30}", "(a|aa|aaa)*(a|ab)*(.*b.{500})", r"(\w{200}\d{200}){20}"];
    std::thread::scope(|scope| {
        let hostile: Vec<_> = regexes
            .iter()
            .map(|regex| {
                let body = ask("x", json!({"structured_outputs": {"regex": regex}, "max_tokens": 20}));
                scope.spawn(move || daemon.http().post(CHAT, body.to_string()).unwrap().status)
            })
            .collect();
        let began = Instant::now();
        for _ in 0..5 {
            daemon.assert_alive().unwrap();
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{:?} for five short answers", began.elapsed());
        for status in hostile.into_iter().map(|thread| thread.join().unwrap()) {
            assert!([200, 400, 429, 500].contains(&status), "{status}");
        }
    });
    daemon.assert_alive().unwrap();
}

#[test]
fn a_held_request_whose_client_leaves_is_cancelled() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let mut body = ask("Tell a story.", json!({"structured_outputs": {"regex": "[a-z ]{5000,}"}, "max_tokens": 4000}));
    body["stream"] = true.into();
    let mut stream = daemon.http().open(CHAT, &body.to_string()).unwrap();
    assert!(stream.event().unwrap().is_some());
    drop(stream);
    let status = || daemon.http().get("/skipd/v1/status").unwrap().expect(200).unwrap();
    let began = Instant::now();
    while status()["queue"]["running"] != 0 {
        assert!(began.elapsed() < Duration::from_secs(10), "{}", status());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn penalties_and_biases_change_what_is_drawn() {
    let daemon = Daemon::shared();
    let say = |extra: Value| {
        let mut body = completion("The", 24);
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        post(daemon, TEXT, &body)
    };
    let ids = |text: &str| -> Vec<u64> {
        let answer = post(daemon, "/skipd/v1/tokenize", &json!({"text": text}));
        answer["tokens"].as_array().unwrap().iter().filter_map(Value::as_u64).collect()
    };
    let paris = ids(" Paris")[0];
    let always = say(json!({"logit_bias": {paris.to_string(): 100}}));
    assert_eq!(text(&always), " Paris".repeat(24));
    let penalised = say(json!({"logit_bias": {paris.to_string(): 100}, "presence_penalty": 2, "frequency_penalty": 2}));
    assert_eq!(text(&penalised), text(&always), "48 at most against 100");
    let plain = say(json!({}));
    let first = ids(text(&plain))[0].to_string();
    let banned = say(json!({"logit_bias": {first: -100}}));
    assert_ne!(text(&banned).split(' ').nth(1), text(&plain).split(' ').nth(1));
    let repeats = |text: &str| {
        let ids = ids(text);
        ids.len() - ids.iter().collect::<std::collections::HashSet<_>>().len()
    };
    let long = |penalty: f64| say(json!({"max_tokens": 120, "frequency_penalty": penalty, "ignore_eos": true}));
    let (without, with) = (repeats(text(&long(0.0))), repeats(text(&long(2.0))));
    assert!(with < without, "{with} of {without} tokens are repeated");
}

#[tokio::test]
async fn the_library_asks_for_forms_over_socket_and_bus() {
    let daemon = Daemon::shared();
    let mut answers = Vec::new();
    for client in [Client::connect_socket(daemon.socket()).await.unwrap(), Client::connect_bus(&daemon.bus().address()).await.unwrap()] {
        let answer = client.chat().user("Describe a person.").json_schema(person()).max_tokens(160).temperature(0.0).send().await.unwrap();
        let answer = answer.answer().await.unwrap().text;
        assert!(is_person(&serde_json::from_str(&answer).unwrap()), "{answer}");
        answers.push(answer);
        let error = client.complete("x").regex("(").max_tokens(4).send().await.unwrap_err();
        assert_eq!(error.param.as_deref(), Some("structured_outputs.regex"));
    }
    assert_eq!(answers[0], answers[1]);
    // The order of properties survives the bus.
    assert!(answers[0].find("name") < answers[0].find("age"));
}

/// SmolLM2's folder with other files in it.
fn checkpoint_with(files: &[(&str, String)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(checkpoint().unwrap()).unwrap() {
        let entry = entry.unwrap();
        if files.iter().all(|(name, _)| entry.file_name() != *name) {
            std::os::unix::fs::symlink(entry.path().canonicalize().unwrap(), folder.path().join(entry.file_name())).unwrap();
        }
    }
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn template(name: &str) -> String {
    std::fs::read_to_string(root().join("tests/data/templates").join(name)).unwrap()
}

fn serve(folder: &tempfile::TempDir) -> Daemon {
    Daemon::start(Options { model: Some(folder.path().to_owned()), ..Options::default() }).unwrap()
}

/// SmolLM2 with a template that knows tools, as Qwen's does.
fn with_tools() -> &'static Daemon {
    static DAEMON: OnceLock<(Daemon, tempfile::TempDir)> = OnceLock::new();
    let start = || {
        let folder = checkpoint_with(&[("chat_template.jinja", template("qwen2.5-coder.jinja"))]);
        (serve(&folder), folder)
    };
    &DAEMON.get_or_init(start).0
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "set_speed", "description": "Sets the speed.", "parameters": {"type": "object",
            "properties": {"speed": {"type": "integer", "minimum": 0, "maximum": 50}, "why": {"type": "string", "maxLength": 12}},
            "required": ["speed", "why"], "additionalProperties": false}}},
        {"type": "function", "function": {"name": "stop", "description": "Stops.", "parameters": {"type": "object", "properties": {},
            "additionalProperties": false}}}
    ])
}

#[test]
fn a_function_is_called_its_result_goes_back_and_the_answer_comes() {
    let daemon = with_tools();
    for (seed, choice) in
        [(1, json!("required")), (2, json!({"type": "function", "function": {"name": "set_speed"}})), (3, json!("required"))]
    {
        let extra = json!({"tools": tools(), "tool_choice": choice, "parallel_tool_calls": false, "seed": seed, "temperature": 1.0});
        let answer = post(daemon, CHAT, &ask("Go at 20.", extra.clone()));
        let choice = &answer["choices"][0];
        assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &Value::Null), "{answer}");
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1, "{answer}");
        let arguments: Value = serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
        match calls[0]["function"]["name"].as_str() {
            Some("set_speed") => assert!(arguments["speed"].as_u64().is_some_and(|speed| speed <= 50), "{arguments}"),
            name => assert_eq!((name, arguments), (Some("stop"), json!({}))),
        }

        let mut streamed = ask("Go at 20.", extra);
        streamed["stream"] = true.into();
        let events = daemon.http().post(CHAT, streamed.to_string()).unwrap().events().unwrap();
        let deltas: Vec<&Value> = events.iter().filter_map(|e| e["choices"][0]["delta"]["tool_calls"].get(0)).collect();
        let joined: String = deltas.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
        assert_eq!(
            (deltas[0]["function"]["name"].as_str(), joined.as_str(), ends(&events)),
            (calls[0]["function"]["name"].as_str(), calls[0]["function"]["arguments"].as_str().unwrap(), vec!["tool_calls"])
        );
        assert_eq!(streamed_text(&events), "");

        let messages = json!([{"role": "user", "content": "Go at 20."}, choice["message"],
            {"role": "tool", "tool_call_id": calls[0]["id"], "content": "done"}]);
        let body = json!({"messages": messages, "tools": tools(), "max_tokens": 24, "temperature": 0});
        let last = post(daemon, CHAT, &body);
        assert!(last["usage"]["prompt_tokens"].as_u64() > answer["usage"]["prompt_tokens"].as_u64(), "{last}");
    }
}

/// SmolLM2 with another family's template in tokenizer_config.json, and one of its own control tokens written as that family's tag.
fn of_family(source: &str, tag: &str) -> tempfile::TempDir {
    let read = |name: &str| std::fs::read_to_string(checkpoint().unwrap().join(name)).unwrap();
    let mut config: Value = serde_json::from_str(&read("tokenizer_config.json")).unwrap();
    config["chat_template"] = template(source).into();
    let tokenizer = read("tokenizer.json");
    assert!(tokenizer.contains("\"<jupyter_start>\""), "no control token to spare");
    let tokenizer = tokenizer.replace("<jupyter_start>", tag);
    checkpoint_with(&[("tokenizer_config.json", config.to_string()), ("tokenizer.json", tokenizer)])
}

#[test]
fn functions_are_called_in_the_form_of_other_families_templates() {
    for (source, tag, id_length, most) in
        [("llama3.2.jinja", "<|python_tag|>", "call_0123456789abcdef00".len(), 1), ("mistral-v0.3.jinja", "[TOOL_CALLS]", 9, usize::MAX)]
    {
        let folder = of_family(source, tag);
        let daemon = serve(&folder);
        let mut strict = tools();
        (strict[0]["function"]["strict"], strict[1]["function"]["strict"]) = (true.into(), true.into());
        for (seed, choice) in
            [(1, json!("required")), (2, json!({"type": "function", "function": {"name": "set_speed"}})), (3, json!("auto"))]
        {
            let asked = json!({"tools": strict, "tool_choice": choice, "seed": seed, "temperature": 1.0, "max_tokens": 300,
                "parallel_tool_calls": choice != "required"});
            let answer = post(&daemon, CHAT, &ask("Go at 20.", asked.clone()));
            let said = &answer["choices"][0];
            let calls = said["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
            if choice == "auto" {
                assert!(calls.len() <= most, "{answer}");
                continue;
            }
            assert_eq!(
                (&said["finish_reason"], &said["message"]["content"], calls.len()),
                (&json!("tool_calls"), &Value::Null, 1),
                "{answer}"
            );
            assert_eq!(calls[0]["id"].as_str().unwrap().len(), id_length, "{answer}");
            let arguments: Value = serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
            match calls[0]["function"]["name"].as_str() {
                Some("set_speed") => assert!(arguments["speed"].as_u64().is_some_and(|speed| speed <= 50), "{arguments}"),
                name => assert_eq!((name, arguments), (Some("stop"), json!({}))),
            }
            let mut streamed = ask("Go at 20.", asked);
            streamed["stream"] = true.into();
            let events = daemon.http().post(CHAT, streamed.to_string()).unwrap().events().unwrap();
            assert_eq!((streamed_text(&events).as_str(), ends(&events)), ("", vec!["tool_calls"]));

            // The template takes its own call and the result back.
            let messages = json!([{"role": "user", "content": "Go at 20."}, said["message"],
                {"role": "tool", "tool_call_id": calls[0]["id"], "content": "done"}]);
            post(&daemon, CHAT, &json!({"messages": messages, "tools": tools(), "max_tokens": 2}));
        }
    }
}

#[test]
fn strict_functions_hold_where_the_model_chooses_and_a_wrong_one_is_named() {
    let daemon = with_tools();
    let mut strict = tools();
    strict[0]["function"]["strict"] = true.into();
    for seed in 0..3 {
        let body = ask("Go at 20.", json!({"tools": strict, "seed": seed, "temperature": 1.0, "max_tokens": 60}));
        let answer = post(daemon, CHAT, &body);
        let reason = answer["choices"][0]["finish_reason"].as_str().unwrap();
        assert!(["stop", "length", "tool_calls"].contains(&reason), "{answer}");
    }
    strict[1]["function"]["parameters"] = json!({"type": "object", "propertyNames": {"maxLength": 2}});
    let body = ask("x", json!({"tools": strict, "tool_choice": "required"}));
    let error = daemon.http().post(CHAT, body.to_string()).unwrap().expect(400).unwrap();
    assert_eq!(error["error"]["param"], "tools[1].function.parameters", "{error}");
}

#[test]
fn the_openai_python_package_parses_forms_and_calls_functions() {
    let python = cache().join("venv/bin/python");
    assert!(python.exists(), "{} is missing: tools/setup test", python.display());
    let script = root().join("tests/tests/e2e/openai_forms.py");
    let output = run(Command::new(python).arg(script).arg(with_tools().socket())).unwrap();
    let printed = output.ok().unwrap();
    assert!(printed.trim_end().ends_with("all checks passed"), "{printed}");
}
