//! Bad input of every kind: a typed error that names the field, and the daemon lives on.

use crate::{completion, prose};
use serde_json::{Value, json};
use skip_tests::Daemon;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// Sends a body and checks the error's status, code and field; then a good request must still be answered.
fn refused(path: &str, body: impl AsRef<[u8]>, status: u16, code: &str, field: Option<&str>) -> Value {
    let daemon = Daemon::shared();
    let shown = String::from_utf8_lossy(&body.as_ref()[..body.as_ref().len().min(200)]).into_owned();
    let answer = daemon.http().post(path, body).unwrap().expect(status).unwrap_or_else(|e| panic!("{shown}: {e:?}"));
    let error = &answer["error"];
    assert_eq!(error["code"], code, "{shown}: {error}");
    assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{shown}: {error}");
    if let Some(field) = field {
        assert_eq!(error["param"], field, "{shown}: {error}");
    }
    daemon.assert_alive().unwrap();
    error.clone()
}

#[test]
fn a_context_overflow_gives_the_counts() {
    let error = refused(TEXT, json!({"prompt": vec![504; 8190], "max_tokens": 10}).to_string(), 400, "context_length_exceeded", None);
    let numbers: Vec<u64> = error["details"].as_object().unwrap().values().filter_map(Value::as_u64).collect();
    assert!(numbers.contains(&8190) && numbers.contains(&8192), "{error}");
    refused(
        CHAT,
        json!({"messages": [{"role": "user", "content": prose(9000)}], "max_tokens": 10}).to_string(),
        400,
        "context_length_exceeded",
        None,
    );
}

#[test]
fn an_empty_prompt_is_refused() {
    refused(TEXT, json!({"prompt": ""}).to_string(), 400, "invalid_request", Some("prompt"));
    refused(TEXT, json!({"prompt": []}).to_string(), 400, "invalid_request", Some("prompt"));
    refused(TEXT, json!({"max_tokens": 3}).to_string(), 400, "invalid_request", Some("prompt"));
    refused(CHAT, json!({"messages": []}).to_string(), 400, "invalid_request", Some("messages"));
    refused(CHAT, "{}", 400, "invalid_request", Some("messages"));
}

#[test]
fn bad_utf8_and_broken_json_are_refused() {
    refused(TEXT, b"{\"prompt\": \"\xff\xfe\", \"max_tokens\": 3}", 400, "invalid_request", None);
    refused(TEXT, b"{\"prompt\": \"\xed\xa0\x80\"}", 400, "invalid_request", None);
    refused(TEXT, r#"{"prompt": "\ud800"}"#, 400, "invalid_request", None);
    for body in ["", "{", "[]", "3", r#"{"prompt": "a", "temperature": NaN}"#, r#"{"prompt": "a"} {"#] {
        refused(TEXT, body, 400, "invalid_request", None);
    }
    let deep = format!("{{\"prompt\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    refused(TEXT, deep, 400, "invalid_request", None);
}

#[test]
fn a_wrong_type_or_value_names_its_field() {
    for (field, value) in [
        ("prompt", json!({})),
        ("prompt", json!([1, "a"])),
        ("prompt", json!([4_000_000_000u32])),
        ("max_tokens", json!("many")),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(1.5)),
        ("temperature", json!("hot")),
        ("temperature", json!(-0.1)),
        ("temperature", json!(1e9)),
        ("top_p", json!(0)),
        ("top_p", json!(1.1)),
        ("top_k", json!(-2)),
        ("min_p", json!(2)),
        ("seed", json!("x")),
        ("stop", json!([1])),
        ("stop", json!("")),
        ("stream", json!("yes")),
        ("logprobs", json!(1000)),
        ("skipd.priority", json!("urgent")),
        ("skipd.priority", json!(1)),
        ("skipd.deadline_ms", json!("soon")),
        ("skipd.prefix_reuse", json!("no")),
        ("skipd.tables.prefill", json!(true)),
        ("skipd.colour", json!(1)),
        ("stream_options.include_usage", json!("yes")),
    ] {
        let mut body = completion("a", 2);
        *field.split('.').fold(&mut body, |object, name| &mut object[name]) = value;
        refused(TEXT, body.to_string(), 400, "invalid_request", Some(field));
    }
    refused(CHAT, json!({"messages": "hi"}).to_string(), 400, "invalid_request", Some("messages"));
    refused(CHAT, json!({"messages": [{"content": "hi"}]}).to_string(), 400, "invalid_request", Some("messages[0].role"));
    refused(CHAT, json!({"messages": [{"role": "user", "content": 3}]}).to_string(), 400, "invalid_request", Some("messages[0].content"));
}

#[test]
fn what_would_change_the_output_is_refused_not_ignored() {
    for field in ["repetition_penalty", "best_of", "guided_json", "tools"] {
        let value = match field {
            "repetition_penalty" => json!(1.1),
            "best_of" => json!(2),
            "guided_json" => json!({"type": "object"}),
            // SmolLM2's template tells of none.
            _ => json!([{"type": "function", "function": {"name": "f"}}]),
        };
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2});
        body[field] = value;
        refused(CHAT, body.to_string(), 400, "unsupported_parameter", Some(field));
    }
    let call = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [{"id": "1"}]}]);
    refused(CHAT, json!({"messages": call}).to_string(), 400, "unsupported_parameter", Some("messages[1].tool_calls"));
    refused(TEXT, r#"{"prompt": "a", "echo": true}"#, 400, "unsupported_parameter", Some("echo"));
}

#[test]
fn an_unknown_model_route_or_method_is_named() {
    refused(TEXT, json!({"prompt": "a", "model": "gpt-9"}).to_string(), 404, "model_not_found", Some("model"));
    refused("/v1/nothing", "{}", 404, "not_found", None);
    let answer = Daemon::shared().http().get(TEXT).unwrap().expect(405).unwrap();
    assert_eq!(answer["error"]["code"], "method_not_allowed");
}

#[test]
fn a_body_over_the_limit_is_refused() {
    let body = format!(r#"{{"prompt": "{}"}}"#, "a ".repeat(17 << 20));
    refused(TEXT, body, 413, "request_too_large", None);
}

#[test]
fn a_bad_table_is_refused_and_the_old_one_stays() {
    let daemon = Daemon::shared();
    let before = daemon.http().get("/skipd/v1/tables").unwrap().expect(200).unwrap();
    for (what, phase, selector, status, code) in [
        ("unknown tier", "prefill", r#""99%""#, 409, "table_refused"),
        ("tier never reached", "prefill", r#""75%""#, 409, "table_refused"),
        ("a tier of the other phase", "decode", r#""30%""#, 409, "table_refused"),
        ("rows out of order", "prefill", "[[2048, 5.0], [1024, 6.0]]", 409, "table_refused"),
        ("a length twice", "prefill", "[[1024, 5.0], [1024, 6.0]]", 409, "table_refused"),
        ("negative S", "decode", "[[1024, -1.0]]", 409, "table_refused"),
        ("NaN", "prefill", "[[1024, NaN]]", 409, "table_refused"),
        ("infinite S", "prefill", "[[1024, 1e39]]", 409, "table_refused"),
        ("no rows", "prefill", "[]", 409, "table_refused"),
        ("a row of three", "prefill", "[[1024, 1.0, 2.0]]", 409, "table_refused"),
        ("a table as text", "prefill", r#""[[2048, 5.0], [1024, 6.0]]""#, 409, "table_refused"),
        ("no selector", "prefill", "null", 400, "invalid_request"),
        (
            "a key twice",
            "prefill",
            r#"{"skip_softmax_prefill_scale_table": [], "skip_softmax_prefill_scale_table": [[1, 1]]}"#,
            400,
            "invalid_request",
        ),
        ("the same as text", "prefill", r#""{\"a\": 1, \"a\": 2}""#, 400, "invalid_request"),
    ] {
        let answer = daemon.http().put(&format!("/skipd/v1/tables/{phase}"), format!(r#"{{"selector": {selector}}}"#)).unwrap();
        let error = answer.expect(status).unwrap_or_else(|e| panic!("{what}: {e:?}"))["error"].clone();
        assert_eq!(error["code"], code, "{what}: {error}");
    }
    for (field, body) in [
        ("selector", r#"{"selector": ""}"#),
        ("selector", "{}"),
        ("confirm_within", r#"{"selector": "none", "confirm_within": "soon"}"#),
        ("confirm_within", r#"{"selector": "none", "confirm_within": 1e300}"#),
        ("persist", r#"{"selector": "none", "persist": 1}"#),
        ("colour", r#"{"selector": "none", "colour": "red"}"#),
    ] {
        let error = daemon.http().put("/skipd/v1/tables/prefill", body).unwrap().expect(400).unwrap()["error"].clone();
        assert_eq!(error["param"], field, "{body}: {error}");
    }
    let unknown_phase = daemon.http().put("/skipd/v1/tables/middle", r#"{"selector": "none"}"#).unwrap();
    assert_eq!(unknown_phase.expect(404).unwrap()["error"]["code"], "not_found");
    for route in ["confirm", "revert"] {
        let nothing = daemon.http().post(&format!("/skipd/v1/tables/{route}"), "").unwrap();
        assert_eq!(nothing.expect(409).unwrap()["error"]["code"], "nothing_pending", "{route}");
    }
    let after = daemon.http().get("/skipd/v1/tables").unwrap().expect(200).unwrap();
    assert_eq!(before, after);
    daemon.assert_alive().unwrap();
}

#[test]
fn the_bus_refuses_with_the_same_words() {
    let daemon = Daemon::shared();
    let call = |interface: &str, args: &[&str]| {
        let mut all = vec!["call", "org.skipd.Skipd1", "/org/skipd/Skipd1", interface];
        all.extend(args);
        let output = daemon.bus().busctl(&all).unwrap();
        assert_ne!(output.code, Some(0), "{args:?}: {}", output.stdout);
        output.stderr
    };
    let gdbus = |args: &[&str]| {
        let mut all = vec!["--dest", "org.skipd.Skipd1", "--object-path", "/org/skipd/Skipd1", "--method"];
        all.extend(args);
        let output = daemon.bus().gdbus("call", &all).unwrap();
        assert_ne!(output.code, Some(0), "{args:?}: {}", output.stdout);
        output.stderr
    };
    // gdbus prints the error's name, busctl its message.
    assert!(gdbus(&["org.skipd.Skipd1.Manager.Generate", "", "{}"]).contains("org.skipd.Skipd1.Error.InvalidRequest"));
    assert!(gdbus(&["org.skipd.Skipd1.Manager.Chat", "not json", "{}"]).contains("org.skipd.Skipd1.Error.InvalidRequest"));
    assert!(gdbus(&["org.skipd.Skipd1.Tables.SetTable", "prefill", "99%", "{}"]).contains("org.skipd.Skipd1.Error.TableRefused"));
    assert!(gdbus(&["org.skipd.Skipd1.Tables.SetTable", "middle", "none", "{}"]).contains("org.skipd.Skipd1.Error."));
    assert!(gdbus(&["org.skipd.Skipd1.Tables.Confirm"]).contains("org.skipd.Skipd1.Error.NothingPending"));
    assert!(gdbus(&["org.skipd.Skipd1.Manager.Generate", "a", "{'max_tokens': <'many'>}"]).contains("max_tokens"));
    assert!(call("org.skipd.Skipd1.Manager", &["Generate", "sa{sv}", "a", "1", "colour", "s", "red"]).contains("colour"));
    assert!(
        call("org.skipd.Skipd1.Manager", &["Generate", "sa{sv}", "a", "1", "max_tokens", "u", "9000"]).contains("8192"),
        "context overflow"
    );
    assert!(
        call("org.skipd.Skipd1.Tables", &["SetTable", "ssa{sv}", "prefill", "none", "1", "confirm_within", "s", "soon"])
            .contains("confirm_within")
    );
    // A NaN is a value that JSON lacks: it must not pass for an option that was not set.
    assert!(call("org.skipd.Skipd1.Manager", &["Generate", "sa{sv}", "a", "1", "temperature", "d", "nan"]).contains("temperature"));
    let rows = |selector: &str| gdbus(&["org.skipd.Skipd1.Tables.SetTable", "prefill", selector, "{}"]);
    for wrong in ["[[2048, 5.0], [1024, 6.0]]", "[[1024, NaN]]", "[[1024, -1.0]]"] {
        assert!(rows(wrong).contains("org.skipd.Skipd1.Error.TableRefused"), "{wrong}: {}", rows(wrong));
    }
    assert!(call("org.skipd.Skipd1.Manager", &["Generate", "sa{sv}", "a", "1", "model", "s", "gpt-9"]).contains("gpt-9"));
    assert!(gdbus(&["org.skipd.Skipd1.Manager.Generate", "a", "{'model': <'gpt-9'>}"]).contains("org.skipd.Skipd1.Error.ModelNotFound"));
    // Arguments of other types are turned away before any code of ours runs.
    call("org.skipd.Skipd1.Manager", &["Tokenize", "u", "3"]);
    call("org.skipd.Skipd1.Manager", &["Generate", "ua{sv}", "3", "0"]);
    daemon.assert_alive().unwrap();
}
