use super::*;
use crate::testing::{daemon, daemon_of, myself};
use serde_json::json;
use skip_client::ErrorKind;
use skip_client::protocol::{CompletionRequest, FinishReason};
use std::time::Duration;

fn ask(body: serde_json::Value) -> Ask {
    let request = CompletionRequest::from_json(body.to_string().as_bytes()).unwrap();
    Ask { id: RequestId::new(None), model: request.model, input: Input::Raw(request.prompt), options: request.options }
}

async fn run(running: &mut Running) -> (String, Outcome) {
    let mut text = String::new();
    loop {
        match running.next().await.expect("an end comes first") {
            Event::Text { text: piece, .. } => text += &piece,
            Event::Call(call) => panic!("{call:?} from a model that knows no functions"),
            Event::End(outcome) => {
                assert!(running.next().await.is_none(), "nothing follows the end");
                return (text, outcome);
            }
        }
    }
}

#[tokio::test]
async fn an_answer_ends_at_its_length_with_true_counts() {
    let daemon = daemon(Duration::ZERO).await;
    let mut running = start(&daemon, &myself(), ask(json!({"prompt": "xy", "max_tokens": 5}))).await.unwrap();
    let (text, outcome) = run(&mut running).await;
    assert_eq!(text, "cdefg");
    assert_eq!(outcome.reason, FinishReason::Length);
    assert!(outcome.error.is_none());
    assert_eq!((outcome.usage.prompt_tokens, outcome.usage.completion_tokens, outcome.usage.total_tokens), (2, 5, 7));
}

#[tokio::test]
async fn a_stop_string_ends_the_answer_and_frees_the_engine() {
    let daemon = daemon(Duration::from_millis(1)).await;
    let mut running = start(&daemon, &myself(), ask(json!({"prompt": "xy", "max_tokens": 4000, "stop": ["fg"]}))).await.unwrap();
    let (text, outcome) = run(&mut running).await;
    assert_eq!((text.as_str(), outcome.reason), ("cde", FinishReason::Stop));
    assert_eq!(outcome.usage.completion_tokens, 5, "the tokens of the stop string were drawn");
    assert_eq!(daemon.model().unwrap().engine.status().running, 0);
}

#[tokio::test]
async fn a_dropped_generation_is_cancelled() {
    let daemon = daemon(Duration::from_millis(1)).await;
    let mut running = start(&daemon, &myself(), ask(json!({"prompt": "xy", "max_tokens": 4000}))).await.unwrap();
    assert!(matches!(running.next().await, Some(Event::Text { .. })));
    drop(running);
    let engine = &daemon.model().unwrap().engine;
    for _ in 0..200 {
        if engine.status().running == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the request still runs");
}

#[tokio::test]
async fn a_reader_that_sleeps_loses_its_request_and_is_told() {
    let daemon = daemon(Duration::ZERO).await;
    let mut running = start(&daemon, &myself(), ask(json!({"prompt": "xy", "max_tokens": 4000}))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (text, outcome) = run(&mut running).await;
    assert_eq!(outcome.reason, FinishReason::SlowReader);
    assert_eq!(outcome.error.unwrap().kind, ErrorKind::SlowReader);
    assert_eq!(outcome.usage.completion_tokens as usize, text.len());
}

#[tokio::test]
async fn a_deadline_ends_a_request_with_its_error() {
    let daemon = daemon(Duration::from_millis(2)).await;
    let mut running =
        start(&daemon, &myself(), ask(json!({"prompt": "xy", "max_tokens": 4000, "skipd": {"deadline_ms": 40}}))).await.unwrap();
    let (_, outcome) = run(&mut running).await;
    assert_eq!(outcome.reason, FinishReason::Deadline);
}

#[tokio::test]
async fn shutting_down_ends_what_runs_and_says_so() {
    let daemon = daemon(Duration::from_millis(2)).await;
    let mut running = start(&daemon, &myself(), ask(json!({"prompt": "xy", "max_tokens": 4000}))).await.unwrap();
    daemon.model().unwrap().engine.shutdown();
    let (_, outcome) = run(&mut running).await;
    assert_eq!(outcome.error.unwrap().kind, ErrorKind::Shutdown);
}

#[tokio::test]
async fn what_cannot_be_served_is_refused_before_it_costs_anything() {
    let daemon = daemon(Duration::ZERO).await;
    let long = "x".repeat(5000);
    for (body, kind, param) in [
        (json!({"prompt": ""}), ErrorKind::InvalidRequest, Some("prompt")),
        (json!({"prompt": []}), ErrorKind::InvalidRequest, Some("prompt")),
        (json!({"prompt": [1, 256]}), ErrorKind::InvalidRequest, Some("prompt")),
        (json!({"prompt": "x", "model": "gpt-4"}), ErrorKind::ModelNotFound, Some("model")),
        (json!({"prompt": long}), ErrorKind::ContextOverflow, None),
        (json!({"prompt": "x", "max_tokens": 4096}), ErrorKind::ContextOverflow, None),
        (json!({"prompt": "x", "stop": "s".repeat(2000)}), ErrorKind::InvalidRequest, Some("stop")),
    ] {
        let Err(error) = start(&daemon, &myself(), ask(body.clone())).await else { panic!("accepted: {body}") };
        assert_eq!((error.kind, error.param.as_deref()), (kind, param), "{error}");
        if kind == ErrorKind::ContextOverflow {
            assert_eq!(error.details["context_length"], 4096);
        }
    }
}

#[tokio::test]
async fn a_full_queue_is_busy_at_once() {
    let daemon = daemon(Duration::from_millis(5)).await;
    let mut running = Vec::new();
    let error = loop {
        match start(&daemon, &myself(), ask(json!({"prompt": "x", "max_tokens": 1000}))).await {
            Ok(one) => running.push(one),
            Err(error) => break error,
        }
        assert!(running.len() < 20, "never busy");
    };
    assert_eq!(error.kind, ErrorKind::Busy);
    assert_eq!(error.retry_after_s(), Some(1));
}

#[tokio::test]
async fn outsiders_are_refused() {
    let daemon = daemon(Duration::ZERO).await;
    let outsider = Peer::User { uid: 4_000_000, groups: vec![] };
    let Err(error) = start(&daemon, &outsider, ask(json!({"prompt": "x"}))).await else { panic!("accepted") };
    assert_eq!(error.kind, ErrorKind::AccessDenied);
}

/// The group `root` stands in for one of members: it is there on every system, and uid 4,000,000 in it is no administrator.
#[tokio::test]
async fn members_may_neither_override_tables_nor_claim_control_priority() {
    let daemon = daemon_of(|settings| settings.group = Some("root".into())).await;
    let member = Peer::User { uid: 4_000_000, groups: vec![0] };
    for (own, param) in [(json!({"tables": {"prefill": "none"}}), "skipd.tables"), (json!({"priority": "control"}), "skipd.priority")] {
        let Err(error) = start(&daemon, &member, ask(json!({"prompt": "x", "skipd": own}))).await else { panic!("accepted: {param}") };
        assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::AccessDenied, Some(param)));
        assert!(start(&daemon, &myself(), ask(json!({"prompt": "x", "max_tokens": 1, "skipd": own}))).await.is_ok(), "{param}");
    }
    for priority in ["interactive", "background"] {
        let asked = ask(json!({"prompt": "x", "max_tokens": 1, "skipd": {"priority": priority}}));
        assert!(start(&daemon, &member, asked).await.is_ok(), "{priority}");
    }
}

#[tokio::test]
async fn members_of_the_control_group_may_claim_control_priority() {
    let daemon = daemon_of(|settings| (settings.group, settings.control_group) = (Some("root".into()), Some("root".into()))).await;
    let member = Peer::User { uid: 4_000_000, groups: vec![0] };
    let asked = ask(json!({"prompt": "x", "max_tokens": 1, "skipd": {"priority": "control"}}));
    assert!(start(&daemon, &member, asked).await.is_ok());
}

#[tokio::test]
async fn an_older_call_in_a_message_is_refused_whatever_it_came_in_by() {
    let daemon = daemon(Duration::ZERO).await;
    let messages = ChatMessage::list(json!([{"role": "assistant", "function_call": {"name": "f"}}])).unwrap();
    let asked = Ask { input: Input::Chat(messages), ..ask(json!({"prompt": "x"})) };
    let Err(error) = start(&daemon, &myself(), asked).await else { panic!("accepted") };
    assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::Unsupported, Some("messages[0].function_call")));
}

#[tokio::test]
async fn a_draining_daemon_takes_nothing_new() {
    let daemon = daemon(Duration::ZERO).await;
    daemon.life.advance(crate::lifecycle::Stage::Draining);
    let Err(error) = start(&daemon, &myself(), ask(json!({"prompt": "x"}))).await else { panic!("accepted") };
    assert_eq!(error.kind, ErrorKind::Draining);
}
