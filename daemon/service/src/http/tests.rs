use crate::peer::Peer;
use crate::state::Daemon;
use crate::testing::{self, myself};
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use skip_client::protocol::routes::{ROUTES, Who};
use skip_engine::calls::CallForm;
use std::sync::Arc;
use std::time::Duration;
use tower::ServiceExt;

/// Status, headers and body of one request by this user.
async fn call(daemon: &Arc<Daemon>, method: &str, path: &str, body: impl Into<Body>) -> (u16, axum::http::HeaderMap, String) {
    let mut request = Request::builder().method(method).uri(path).body(body.into()).unwrap();
    request.extensions_mut().insert(Arc::new(myself()));
    let response = super::router(daemon.clone()).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (parts.status.as_u16(), parts.headers, String::from_utf8(bytes.to_vec()).unwrap())
}

async fn post(daemon: &Arc<Daemon>, path: &str, body: Value) -> (u16, Value) {
    let (status, _, text) = call(daemon, "POST", path, body.to_string()).await;
    (status, serde_json::from_str(&text).unwrap())
}

/// The `data:` payloads of a stream.
fn events(text: &str) -> Vec<&str> {
    text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").expect("only data lines")).collect()
}

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

#[tokio::test]
async fn a_chat_answer_has_openais_shape_and_skipds_usage() {
    let daemon = testing::daemon(Duration::ZERO).await;
    let (status, answer) = post(&daemon, CHAT, json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3})).await;
    assert_eq!(status, 200);
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "alphabet");
    assert_eq!(answer["choices"][0]["message"], json!({"role": "assistant", "content": "ijk"}));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    assert_eq!(answer["usage"]["skipd"]["prefill"]["table"], Value::Null);
}

#[tokio::test]
async fn a_stream_ends_with_reason_usage_and_done() {
    let daemon = testing::daemon(Duration::ZERO).await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": true,
        "stream_options": {"include_usage": true}});
    let (status, headers, text) = call(&daemon, "POST", CHAT, body.to_string()).await;
    assert_eq!((status, &headers["content-type"]), (200, &"text/event-stream".parse().unwrap()));
    let events = events(&text);
    assert_eq!(events.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> = events[..events.len() - 1].iter().map(|e| serde_json::from_str(e).unwrap()).collect();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let said: String = chunks[1..].iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(said, "ij");
    let reasons: Vec<&Value> = chunks.iter().map(|c| &c["choices"][0]["finish_reason"]).filter(|r| !r.is_null()).collect();
    assert_eq!(reasons, ["length"], "exactly one terminal chunk");
    let last = chunks.last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(2)));
    assert!(chunks.iter().all(|c| c["id"] == chunks[0]["id"]));
}

#[tokio::test]
async fn a_stream_that_fails_ends_with_one_error_event() {
    let daemon = testing::daemon(Duration::from_millis(2)).await;
    let body = json!({"prompt": "x", "max_tokens": 4000, "stream": true, "skipd": {"deadline_ms": 30}});
    let (status, _, text) = call(&daemon, "POST", TEXT, body.to_string()).await;
    assert_eq!(status, 200, "it had begun");
    let events = events(&text);
    let error: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "deadline_exceeded");
    assert!(error["error"]["details"]["usage"]["completion_tokens"].as_u64().unwrap() > 0);
    assert!(!events.contains(&"[DONE]"));
}

#[tokio::test]
async fn the_same_failure_of_a_whole_answer_is_its_status() {
    let daemon = testing::daemon(Duration::from_millis(2)).await;
    let (status, error) = post(&daemon, TEXT, json!({"prompt": "x", "max_tokens": 4000, "skipd": {"deadline_ms": 30}})).await;
    assert_eq!((status, &error["error"]["code"]), (504, &json!("deadline_exceeded")));
}

#[tokio::test]
async fn text_logprobs_are_parallel_lists_with_offsets() {
    let daemon = testing::daemon(Duration::ZERO).await;
    let (_, answer) = post(&daemon, TEXT, json!({"prompt": [120, 121], "max_tokens": 3, "logprobs": 2})).await;
    let lists = &answer["choices"][0]["logprobs"];
    assert_eq!(lists["tokens"], json!(["c", "d", "e"]));
    assert_eq!(lists["text_offset"], json!([0, 1, 2]));
    assert_eq!(lists["token_logprobs"], json!([-0.25, -0.25, -0.25]));
    assert_eq!(lists["top_logprobs"][0].as_object().unwrap().len(), 3, "two asked for and the drawn one");
}

#[tokio::test]
async fn chat_logprobs_name_tokens_and_bytes() {
    let daemon = testing::daemon(Duration::ZERO).await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "logprobs": true, "top_logprobs": 1});
    let (_, answer) = post(&daemon, CHAT, body).await;
    let entry = &answer["choices"][0]["logprobs"]["content"][0];
    assert_eq!((&entry["token"], &entry["bytes"]), (&json!("i"), &json!([105])));
    assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn refusals_name_the_field_in_openais_shape() {
    let daemon = testing::daemon(Duration::ZERO).await;
    let chat = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        (CHAT, body)
    };
    for ((path, body), status, code, param) in [
        (chat(json!({"n": 2})), 400, "unsupported_parameter", "n"),
        (chat(json!({"tools": [{}]})), 400, "invalid_request", "tools[0].type"),
        ((TEXT, json!({"prompt": "x", "tools": [{"type": "function", "function": {"name": "f"}}]})), 400, "unsupported_parameter", "tools"),
        (chat(json!({"logit_bias": {"256": 1}})), 400, "invalid_request", "logit_bias.256"),
        (chat(json!({"structured_outputs": {"regex": "("}})), 400, "unsupported_parameter", "structured_outputs.regex"),
        (
            chat(json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"uniqueItems": true, "type": "array"}}}})),
            400,
            "unsupported_parameter",
            "response_format.json_schema.schema",
        ),
        (chat(json!({"temperature": "hot"})), 400, "invalid_request", "temperature"),
        (chat(json!({"model": "gpt-4"})), 404, "model_not_found", "model"),
        ((CHAT, json!({"messages": []})), 400, "invalid_request", "messages"),
        ((TEXT, json!({"prompt": ""})), 400, "invalid_request", "prompt"),
        ((TEXT, json!({"prompt": "x", "echo": true})), 400, "unsupported_parameter", "echo"),
        ((TEXT, json!({"prompt": "x", "suffix": "y"})), 400, "unsupported_parameter", "suffix"),
    ] {
        let (got, error) = post(&daemon, path, body.clone()).await;
        assert_eq!(got, status, "{body}: {error}");
        assert_eq!((error["error"]["code"].as_str(), error["error"]["param"].as_str()), (Some(code), Some(param)), "{body}");
    }
}

#[tokio::test]
async fn an_answer_is_held_to_its_form_whole_and_streamed() {
    let daemon = testing::daemon(Duration::ZERO).await;
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 7, "maximum": 9}}, "required": ["a"],
        "additionalProperties": false});
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}});
    let (status, answer) = post(&daemon, CHAT, body.clone()).await;
    let choice = &answer["choices"][0];
    assert_eq!((status, choice["finish_reason"].as_str()), (200, Some("stop")), "{answer}");
    let value: Value = serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
    assert!(value["a"].as_u64().is_some_and(|a| (7..=9).contains(&a)), "{value}");
    body["max_tokens"] = 3.into();
    let (_, answer) = post(&daemon, CHAT, body).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
}

#[tokio::test]
async fn a_required_call_comes_as_a_call_whole_and_in_pieces() {
    let daemon = testing::daemon(Duration::ZERO).await;
    let function = json!({"name": "grip", "parameters": {"type": "object", "properties": {"n": {"enum": [1]}}, "required": ["n"],
        "additionalProperties": false}});
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 400, "tool_choice": "required",
        "parallel_tool_calls": false, "tools": [{"type": "function", "function": function}]});
    let (status, answer) = post(&daemon, CHAT, body.clone()).await;
    let choice = &answer["choices"][0];
    assert_eq!((status, choice["finish_reason"].as_str()), (200, Some("tool_calls")), "{answer}");
    assert_eq!((&choice["message"]["content"], &choice["message"]["tool_calls"][0]["function"]["name"]), (&Value::Null, &json!("grip")));
    let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({"n": 1}));

    body["stream"] = true.into();
    let (_, _, text) = call(&daemon, "POST", CHAT, body.to_string()).await;
    let chunks: Vec<Value> = text.lines().filter_map(|l| l.strip_prefix("data: ")).filter_map(|d| serde_json::from_str(d).ok()).collect();
    let pieces: String =
        chunks.iter().filter_map(|c| c["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str()).collect();
    assert_eq!(pieces, arguments);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

/// As Llama 3 and Mistral's models write calls; the tag of the latter is a control token of the test's vocabulary.
fn other_forms() -> [CallForm; 2] {
    let llama = CallForm { open: String::new(), key: "parameters".into(), close: String::new(), several: false, ..CallForm::hermes() };
    let mistral =
        CallForm { open: "\u{1} ".into(), list: true, close: String::new(), between: ", ".into(), short_ids: true, ..CallForm::hermes() };
    [llama, mistral]
}

fn calling(choice: Value) -> Value {
    let function = json!({"name": "grip", "parameters": {"type": "object", "properties": {"n": {"enum": [1]}}, "required": ["n"],
        "additionalProperties": false}});
    json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 400, "tool_choice": choice,
        "tools": [{"type": "function", "function": function}]})
}

/// What a chat says: its text, its calls, and why it ended, whole, and then the same in pieces.
async fn said(daemon: &Arc<Daemon>, mut body: Value) -> (Value, Vec<Value>, String) {
    let (status, answer) = post(daemon, CHAT, body.clone()).await;
    let choice = &answer["choices"][0];
    assert_eq!(status, 200, "{answer}");
    let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    let text = choice["message"]["content"].clone();

    body["stream"] = true.into();
    let (_, _, streamed) = call(daemon, "POST", CHAT, body.to_string()).await;
    let chunks: Vec<Value> = events(&streamed).iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
    let pieces: String = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(pieces, text.as_str().unwrap_or_default());
    let deltas: Vec<&Value> = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["tool_calls"].get(0)).collect();
    for (index, call) in calls.iter().enumerate() {
        let of: Vec<&Value> = deltas.iter().filter(|delta| delta["index"] == index).map(|delta| &delta["function"]).collect();
        let arguments: String = of.iter().filter_map(|function| function["arguments"].as_str()).collect();
        assert_eq!((&of[0]["name"], arguments.as_str()), (&call["function"]["name"], call["function"]["arguments"].as_str().unwrap()));
        assert!(of.len() > 1, "its name comes first: {of:?}");
    }
    assert_eq!(deltas.iter().filter(|delta| delta["id"].is_string()).count(), calls.len());
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], choice["finish_reason"]);
    (text, calls, choice["finish_reason"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_call_that_must_come_comes_in_the_form_of_the_template() {
    for form in other_forms() {
        let daemon = testing::daemon_that_calls(form.clone(), "no call").await;
        for choice in [json!("required"), json!({"type": "function", "function": {"name": "grip"}})] {
            let body = json!({"parallel_tool_calls": false, "skip_special_tokens": choice == "required"});
            let mut asked = calling(choice);
            asked.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
            let (text, calls, reason) = said(&daemon, asked).await;
            assert_eq!((text, reason.as_str(), calls.len()), (Value::Null, "tool_calls", 1));
            let arguments: Value = serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
            assert_eq!((&calls[0]["function"]["name"], arguments), (&json!("grip"), json!({"n": 1})));
            assert_eq!(calls[0]["id"].as_str().unwrap().len() == 9, form.short_ids, "{calls:?}");
        }
    }
}

#[tokio::test]
async fn a_call_that_the_model_chooses_comes_in_the_form_of_the_template() {
    let [llama, mistral] = other_forms();
    let one = "{\"name\": \"grip\", \"parameters\": {\"n\": 1}}";
    let list = "I do. \u{1} [{\"name\": \"grip\", \"arguments\": {\"n\": 1}}, {\"name\": \"grip\", \"arguments\": {\"n\": 2}}]";
    for (form, script, text, count) in [(llama, one, Value::Null, 1), (mistral, list, json!("I do."), 2)] {
        let daemon = testing::daemon_that_calls(form, script).await;
        let (said_text, calls, reason) = said(&daemon, calling(json!("auto"))).await;
        assert_eq!((said_text, calls.len(), reason.as_str()), (text.clone(), count, "tool_calls"), "{script}");
        let mut alone = calling(json!("auto"));
        alone["parallel_tool_calls"] = false.into();
        assert_eq!(said(&daemon, alone).await.1.len(), 1, "{script}");
        // Who is told of no functions calls none: what the model says is text.
        let (as_text, calls, reason) = said(&daemon, calling(json!("none"))).await;
        assert_eq!((as_text.as_str().unwrap(), calls.len(), reason.as_str()), (script.replace('\u{1}', "").as_str(), 0, "stop"));
        let mut stopped = calling(json!("auto"));
        stopped["stop"] = "\"n\"".into();
        let (said_text, calls, reason) = said(&daemon, stopped).await;
        assert_eq!((said_text, calls[0]["function"]["arguments"].as_str(), reason.as_str()), (text, Some("{"), "stop"));
    }
}

#[tokio::test]
async fn signs_of_many_bytes_are_whole_in_every_event_and_the_same_in_a_whole_answer() {
    for (script, stop, shown) in testing::SCRIPTS {
        let daemon = testing::daemon_that_says(script).await;
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 500, "stop": stop});
        let (_, whole) = post(&daemon, CHAT, body.clone()).await;
        let choice = &whole["choices"][0];
        assert_eq!((choice["message"]["content"].as_str(), choice["finish_reason"].as_str()), (Some(shown), Some("stop")));
        assert_eq!(whole["usage"]["completion_tokens"], testing::tokens_of(stop, shown), "{shown}");

        body["stream"] = true.into();
        let (_, _, text) = call(&daemon, "POST", CHAT, body.to_string()).await;
        let chunks: Vec<Value> = events(&text).iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
        let pieces: Vec<&str> = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(pieces.concat(), shown);
        assert!(pieces.len() >= 2 && pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{pieces:?}");
        let ends: Vec<&Value> = chunks.iter().map(|c| &c["choices"][0]["finish_reason"]).filter(|reason| !reason.is_null()).collect();
        assert_eq!((ends, text.matches("[DONE]").count()), (vec![&json!("stop")], 1), "{shown}");
    }
}

#[tokio::test]
async fn the_routes_of_the_protocol_page_are_those_that_are_served_and_for_whom_it_says() {
    let daemon = testing::daemon(Duration::ZERO).await;
    for path in ROUTES.iter().map(|route| route.path) {
        for method in ["GET", "POST", "PUT", "DELETE"] {
            let mut request = Request::builder().method(method);
            request = request.uri(
                path.replace("/models/{id}", "/models/default").replace("{phase}", "decode").replace("{name}", "one").replace("{id}", "1"),
            );
            let mut request = request.body(Body::empty()).unwrap();
            request.extensions_mut().insert(Arc::new(Peer::User { uid: 4_000_000, groups: vec![] }));
            let response = super::router(daemon.clone()).oneshot(request).await.unwrap();
            let status = response.status().as_u16();
            let text = String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
            match ROUTES.iter().find(|route| (route.method, route.path) == (method, path)).map(|route| route.who) {
                None => assert_eq!(status, 405, "{method} {path} is not on the page"),
                Some(Who::Everybody) => {
                    assert!(status != 403 && status != 405 && !text.contains("there is no /"), "{method} {path}: {text}")
                }
                Some(Who::Members | Who::Administrators) => assert_eq!(status, 403, "{method} {path}: {text}"),
            }
        }
    }
}

#[tokio::test]
async fn bytes_that_are_no_utf8_are_a_bad_request() {
    let daemon = testing::daemon(Duration::ZERO).await;
    let (status, _, text) = call(&daemon, "POST", TEXT, b"{\"prompt\": \"\xff\xfe\"}".to_vec()).await;
    assert_eq!(status, 400, "{text}");
}

#[tokio::test]
async fn harmless_fields_are_ignored_and_named() {
    let daemon = testing::daemon(Duration::ZERO).await;
    let body = json!({"prompt": "x", "max_tokens": 1, "store": true, "metadata": {"a": "b"}});
    let (status, headers, _) = call(&daemon, "POST", TEXT, body.to_string()).await;
    assert_eq!((status, headers["x-skipd-ignored"].to_str().unwrap()), (200, "store, metadata"));
}

#[tokio::test]
async fn models_health_and_ready_answer() {
    let daemon = testing::daemon(Duration::ZERO).await;
    for (path, status) in [
        ("/v1/models", 200),
        ("/v1/models/alphabet", 200),
        ("/v1/models/default", 200),
        ("/v1/models/other", 404),
        ("/health", 200),
        ("/ready", 200),
        ("/skipd/v1/status", 200),
        ("/skipd/v1/requests", 200),
        ("/skipd/v1/tables", 200),
        ("/skipd/v1/tables/prefill", 200),
        ("/skipd/v1/tables/sideways", 404),
        ("/skipd/v1/tiers", 200),
        ("/skipd/v1/nothing", 404),
        ("/skipd/v1/jobs", 200),
        ("/skipd/v1/prefixes", 200),
        ("/skipd/v1/prefixes/one", 405),
        ("/skipd/v1/profile", 200),
        ("/v1/completions", 405),
    ] {
        let (got, headers, text) = call(&daemon, "GET", path, Body::empty()).await;
        assert_eq!(got, status, "{path}: {text}");
        assert_eq!(headers["content-type"], "application/json", "{path}");
        serde_json::from_str::<Value>(&text).unwrap();
    }
}

#[tokio::test]
async fn a_daemon_without_a_model_says_so() {
    let daemon = Arc::new(Daemon::new(testing::config(std::path::Path::new("/nowhere/s")), std::time::Instant::now()));
    daemon.life.advance(crate::lifecycle::Stage::Loading(0.5));
    let (status, _, text) = call(&daemon, "GET", "/ready", Body::empty()).await;
    let ready: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &ready["state"], &ready["progress"]), (503, &json!("loading"), &json!(0.5)));
    let (status, headers, _) = call(&daemon, "POST", TEXT, json!({"prompt": "x"}).to_string()).await;
    assert_eq!((status, &headers["retry-after"]), (503, &"1".parse().unwrap()));
    daemon.life.advance(crate::lifecycle::Stage::Failed("no such folder".into()));
    let (_, _, text) = call(&daemon, "GET", "/ready", Body::empty()).await;
    assert!(text.contains("no such folder"), "{text}");
}

#[tokio::test]
async fn an_answer_bears_the_name_its_client_gave_the_request_or_one_of_its_own() {
    let daemon = testing::daemon(Duration::ZERO).await;
    let ask = async |name: Option<&str>, path: &str| {
        let request = Request::builder().method("GET").uri(path);
        let request = name.into_iter().fold(request, |request, name| request.header("X-Request-Id", name));
        let response = super::router(daemon.clone()).oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        response.headers()["x-request-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(ask(Some("robot-7"), "/health").await, "robot-7");
    assert_eq!(ask(Some("robot-7"), "/nowhere").await, "robot-7", "a refusal too");
    let own = ask(None, "/health").await;
    assert!(own.len() > 4 && own != ask(None, "/health").await, "{own}");
    assert_ne!(ask(Some("two words"), "/health").await, "two words");
}

#[tokio::test]
async fn a_request_under_way_is_listed_by_its_name() {
    let served = testing::daemon(Duration::from_millis(1)).await;
    let body = json!({"prompt": "x", "max_tokens": 2000, "stream": true}).to_string();
    let mut request = Request::builder().method("POST").uri(TEXT).header("x-request-id", "robot-7").body(Body::from(body)).unwrap();
    request.extensions_mut().insert(Arc::new(myself()));
    let answer = super::router(served.clone()).oneshot(request).await.unwrap();
    let (status, _, text) = call(&served, "GET", "/skipd/v1/requests", Body::empty()).await;
    let listed: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &listed["requests"][0]["id"]), (200, &json!("robot-7")), "{text}");
    drop(answer);
}

#[tokio::test]
async fn metrics_have_vllms_names_and_skipds() {
    let daemon = testing::daemon(Duration::ZERO).await;
    post(&daemon, TEXT, json!({"prompt": "xy", "max_tokens": 3})).await;
    let (status, _, text) = call(&daemon, "GET", "/metrics", Body::empty()).await;
    assert_eq!(status, 200);
    for line in [
        "vllm:prompt_tokens_total{model_name=\"alphabet\"} 2",
        "vllm:generation_tokens_total{model_name=\"alphabet\"} 3",
        "vllm:time_to_first_token_seconds_count{model_name=\"alphabet\"} 1",
        "skipd_votes_total{model_name=\"alphabet\",phase=\"prefill\"} 0",
        "skipd_table_version{model_name=\"alphabet\",phase=\"decode\"} 0",
        "skipd_state{model_name=\"alphabet\",state=\"ready\"} 1",
        "vllm:prefix_cache_queries_total{model_name=\"alphabet\"} 2",
        "vllm:prefix_cache_hits_total{model_name=\"alphabet\"} 0",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let daemon = testing::daemon(Duration::ZERO).await;
    let (status, _, _) = call(&daemon, "POST", TEXT, vec![b' '; (1 << 20) + 1]).await;
    assert_eq!(status, 413);
}

#[tokio::test]
async fn draining_by_request_lets_the_running_finish() {
    let daemon = testing::daemon(Duration::from_millis(1)).await;
    let other = daemon.clone();
    let running = tokio::spawn(async move { post(&other, TEXT, json!({"prompt": "x", "max_tokens": 100})).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (status, _, text) = call(&daemon, "POST", "/skipd/v1/drain", Body::empty()).await;
    assert_eq!((status, serde_json::from_str::<Value>(&text).unwrap()["state"].clone()), (200, json!("draining")));
    let (status, answer) = running.await.unwrap();
    assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(100)));
    let (status, _) = post(&daemon, TEXT, json!({"prompt": "x"})).await;
    assert_eq!(status, 503);
}
