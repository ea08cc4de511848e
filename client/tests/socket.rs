//! The client over the socket, against a daemon made of canned bytes.

mod common;

use common::{Fake, HELLO, Script, client};
use serde_json::json;
use skip_client::protocol::{FinishReason, Phase, Selector, SetTableOptions, State};
use skip_client::{ErrorKind, StreamEvent};
use std::time::Duration;

#[tokio::test]
async fn a_chat_streams_text_and_then_one_terminal_event() {
    let fake = Fake::start(vec![Script::sse(HELLO)]);
    let client = client(&fake.path()).await;
    let mut answer = client.chat().system("be brief").user("hi").max_tokens(64).temperature(0.0).send().await.unwrap();
    let mut events = Vec::new();
    while let Some(event) = answer.next().await {
        events.push(event.unwrap());
    }
    assert_eq!(events.len(), 3);
    assert!(matches!(&events[2], StreamEvent::Finished { reason: FinishReason::Stop, usage, error: None } if usage.total_tokens == 5));
    assert_eq!(
        fake.body(0),
        json!({"model": "default", "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
            "max_tokens": 64, "temperature": 0.0, "stream": true, "stream_options": {"include_usage": true}})
    );
}

#[tokio::test]
async fn a_whole_answer_is_collected() {
    let fake = Fake::start(vec![Script::sse(HELLO)]);
    let answer = client(&fake.path()).await.complete(vec![1, 2, 3]).ignore_eos(true).send().await.unwrap().answer().await.unwrap();
    assert_eq!((answer.text.as_str(), answer.reason, answer.usage.prompt_tokens), ("Hello", FinishReason::Stop, 3));
    assert_eq!(fake.body(0)["prompt"], json!([1, 2, 3]));
    assert!(fake.requests()[0].starts_with("POST /v1/completions "));
}

#[tokio::test]
async fn a_refusal_is_its_typed_error() {
    let body = r#"{"error":{"message":"9 prompt tokens","type":"invalid_request_error","param":"messages","code":"context_length_exceeded",
        "details":{"prompt":9}}}"#;
    let fake = Fake::start(vec![Script::json(400, body)]);
    let error = client(&fake.path()).await.chat().user("hi").send().await.unwrap_err();
    assert_eq!((error.kind, error.param.as_deref(), &error.details["prompt"]), (ErrorKind::ContextOverflow, Some("messages"), &json!(9)));
}

#[tokio::test]
async fn a_refusal_without_a_body_takes_its_kind_from_the_status() {
    let fake = Fake::start(vec![Script::json(503, "")]);
    assert_eq!(client(&fake.path()).await.status().await.unwrap_err().kind, ErrorKind::NotReady);
}

#[tokio::test]
async fn a_stream_that_breaks_off_ends_with_one_error() {
    let script = Script { pieces: Script::sse(HELLO).pieces[..3].to_vec(), hold: false };
    let fake = Fake::start(vec![script]);
    let mut answer = client(&fake.path()).await.chat().user("hi").send().await.unwrap();
    assert!(matches!(answer.next().await, Some(Ok(StreamEvent::Text { .. }))));
    assert_eq!(answer.next().await.unwrap().unwrap_err().kind, ErrorKind::Disconnected);
    assert!(answer.next().await.is_none());
}

#[tokio::test]
async fn what_is_not_http_is_a_protocol_error() {
    let fake = Fake::start(vec![Script::one("SSH-2.0-OpenSSH\r\n\r\n")]);
    assert_eq!(client(&fake.path()).await.status().await.unwrap_err().kind, ErrorKind::Protocol);
}

#[tokio::test]
async fn dropping_a_generation_closes_the_connection() {
    let fake = Fake::start(vec![Script::sse(HELLO).held_after(2)]);
    let client = client(&fake.path()).await;
    let mut answer = client.chat().user("hi").send().await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(50), answer.next()).await;
    assert!(waiting.is_err(), "{waiting:?}");
    drop(answer);
    fake.client_gone().await;
}

#[tokio::test]
async fn dropping_the_call_before_an_answer_closes_the_connection_too() {
    let fake = Fake::start(vec![Script { pieces: vec![], hold: true }]);
    let client = client(&fake.path()).await;
    assert!(tokio::time::timeout(Duration::from_millis(50), client.chat().user("hi").send()).await.is_err());
    fake.client_gone().await;
}

#[tokio::test]
async fn waiting_for_ready_looks_again_until_it_is() {
    let loading = Script::json(503, r#"{"state":"loading","progress":0.5,"reason":"reading weights"}"#);
    let fake = Fake::start(vec![loading.clone(), loading, Script::json(200, r#"{"state":"ready","progress":1}"#)]);
    let client = client(&fake.path()).await;
    assert_eq!(client.ready().await.unwrap().state, State::Loading);
    client.wait_ready(Duration::from_secs(5)).await.unwrap();
    assert_eq!(fake.requests().len(), 3);
}

#[tokio::test]
async fn a_failed_daemon_is_not_waited_for() {
    let fake = Fake::start(vec![Script::json(503, r#"{"state":"failed","progress":0,"reason":"config.json: no such file"}"#)]);
    let error = client(&fake.path()).await.wait_ready(Duration::from_secs(60)).await.unwrap_err();
    assert!(error.message.contains("config.json"), "{error}");
}

#[tokio::test]
async fn a_table_is_put_where_its_phase_is() {
    let fake = Fake::start(vec![Script::json(
        200,
        r#"{"phase":"prefill","tier":"50%","rows":[[256,3.5]],"decided_by":"set-table","hash":"abcd","version":2}"#,
    )]);
    let options = SetTableOptions { confirm_within: Some(60.0), ..SetTableOptions::default() };
    let client = client(&fake.path()).await;
    let table = client.set_table(Phase::Prefill, Selector::Tier("50%".into()), options).await.unwrap();
    assert_eq!(table.name().as_deref(), Some("50%"));
    assert!(fake.requests()[0].starts_with("PUT /skipd/v1/tables/prefill "));
    assert_eq!(fake.body(0), json!({"selector": "50%", "confirm_within": 60.0}));
}

#[tokio::test]
async fn an_absent_daemon_is_unreachable_and_its_path_named() {
    let error = skip_client::Client::connect_socket("/nonexistent/skipd.sock").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unreachable);
    assert!(error.message.contains("/nonexistent/skipd.sock"));
}
