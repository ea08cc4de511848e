//! The blocking client against a daemon made of canned bytes.

mod common;

use common::{Fake, HELLO, Script};
use skip_client::blocking::Client;
use skip_client::protocol::{ApplyUpdate, FinishReason, Phase, Selector, SetTableOptions, State};
use skip_client::{ErrorKind, StreamEvent};
use std::task::Poll;
use std::time::Duration;

/// A fake on a runtime of its own, so that a test's thread is nobody's.
fn fake(scripts: Vec<Script>) -> (tokio::runtime::Runtime, Fake) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let fake = {
        let _context = runtime.enter();
        Fake::start(scripts)
    };
    (runtime, fake)
}

#[test]
fn a_chat_is_an_iterator_that_ends_after_one_terminal_event() {
    let (_runtime, fake) = fake(vec![Script::sse(HELLO)]);
    let client = Client::connect_socket(fake.path()).unwrap();
    let events: Vec<_> = client.chat().system("be brief").user("hi").max_tokens(64).send().unwrap().map(Result::unwrap).collect();
    assert_eq!(events.len(), 3);
    assert_eq!(events[0], StreamEvent::Text { text: "Hel".into(), logprobs: vec![] });
    assert!(matches!(&events[2], StreamEvent::Finished { reason: FinishReason::Stop, usage, error: None } if usage.total_tokens == 5));
    assert_eq!((&fake.body(0)["max_tokens"], &fake.body(0)["messages"][0]["role"]), (&64.into(), &"system".into()));
}

#[test]
fn a_generation_outlives_its_client() {
    let (_runtime, fake) = fake(vec![Script::sse(HELLO)]);
    let client = Client::connect_socket(fake.path()).unwrap();
    let generation = client.complete(vec![1, 2, 3]).send().unwrap();
    drop(client);
    let answer = generation.answer().unwrap();
    assert_eq!((answer.text.as_str(), answer.reason, answer.usage.prompt_tokens), ("Hello", FinishReason::Stop, 3));
}

#[test]
fn a_refusal_and_an_absent_daemon_are_typed_errors() {
    let body =
        r#"{"error":{"message":"9 prompt tokens","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#;
    let (_runtime, fake) = fake(vec![Script::json(400, body)]);
    let error = Client::connect_socket(fake.path()).unwrap().chat().user("hi").send().unwrap_err();
    assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::ContextOverflow, Some("messages")));
    assert_eq!(Client::connect_socket("/nonexistent/skipd.sock").unwrap_err().kind, ErrorKind::Unreachable);
}

#[test]
fn a_stream_that_breaks_off_ends_with_one_error() {
    let script = Script { pieces: Script::sse(HELLO).pieces[..3].to_vec(), hold: false };
    let (_runtime, fake) = fake(vec![script]);
    let mut generation = Client::connect_socket(fake.path()).unwrap().chat().user("hi").send().unwrap();
    assert!(matches!(generation.next(), Some(Ok(StreamEvent::Text { .. }))));
    assert_eq!(generation.next().unwrap().unwrap_err().kind, ErrorKind::Disconnected);
    assert!(generation.next().is_none());
}

#[test]
fn waiting_has_an_end_and_the_request_runs_on() {
    let (runtime, fake) = fake(vec![Script::sse(HELLO).held_after(3)]);
    let mut generation = Client::connect_socket(fake.path()).unwrap().chat().user("hi").send().unwrap();
    assert!(matches!(generation.next_within(Duration::from_secs(5)), Poll::Ready(Some(Ok(StreamEvent::Text { .. })))));
    assert!(generation.next_within(Duration::from_millis(30)).is_pending());
    drop(generation);
    runtime.block_on(fake.client_gone());
}

#[test]
fn another_thread_cancels_while_this_one_waits() {
    let (runtime, fake) = fake(vec![Script::sse(HELLO).held_after(2)]);
    let mut generation = Client::connect_socket(fake.path()).unwrap().chat().user("hi").send().unwrap();
    let canceller = generation.canceller();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        canceller.cancel();
    });
    assert_eq!(generation.next().unwrap().unwrap_err().kind, ErrorKind::Cancelled);
    assert!(generation.next().is_none());
    runtime.block_on(fake.client_gone());
    other.join().unwrap();
}

#[test]
fn cancelling_hangs_up_although_nobody_reads() {
    let (runtime, fake) = fake(vec![Script::sse(HELLO).held_after(4)]);
    let mut generation = Client::connect_socket(fake.path()).unwrap().chat().user("hi").send().unwrap();
    std::thread::sleep(Duration::from_millis(30));
    generation.canceller().cancel();
    runtime.block_on(fake.client_gone());
    // What had come is not lost.
    assert!(matches!(generation.next(), Some(Ok(StreamEvent::Text { .. }))));
    assert!(matches!(generation.next(), Some(Ok(StreamEvent::Text { .. }))));
    assert_eq!(generation.next().unwrap().unwrap_err().kind, ErrorKind::Cancelled);
}

#[test]
fn tables_ready_and_waiting_for_it_work_as_in_the_async_client() {
    let table = r#"{"phase":"prefill","tier":"50%","rows":[[256,3.5]],"decided_by":"set-table","hash":"abcd","version":2}"#;
    let loading = Script::json(503, r#"{"state":"loading","progress":0.5,"reason":"reading weights"}"#);
    let (_runtime, fake) =
        fake(vec![loading.clone(), loading, Script::json(200, r#"{"state":"ready","progress":1}"#), Script::json(200, table)]);
    let client = Client::connect_socket(fake.path()).unwrap();
    assert_eq!(client.ready().unwrap().state, State::Loading);
    client.wait_ready(Duration::from_secs(5)).unwrap();
    let set = client.set_table(Phase::Prefill, Selector::Tier("50%".into()), SetTableOptions::default()).unwrap();
    assert_eq!(set.name().as_deref(), Some("50%"));
}

#[test]
fn updates_are_shown_applied_and_rolled_back() {
    let shown = r#"{"active":{"slot":"2-ab","version":2,"created":9,"note":"n","checkpoint":"cd"},"previous":null,"probation":null,"floor":2,"reason":null}"#;
    let refused = r#"{"error":{"message":"replayed","type":"conflict_error","code":"table_refused","details":{"check":"replay"}}}"#;
    let answers = vec![Script::json(200, shown), Script::json(200, shown), Script::json(409, refused), Script::json(200, shown)];
    let (_runtime, fake) = fake(answers);
    let client = Client::connect_socket(fake.path()).unwrap();
    assert_eq!(client.update().unwrap().active.unwrap().version, 2);
    let bundle = ApplyUpdate { path: "/media/usb/bundle.tar".into(), relax_expiry: true };
    assert_eq!(client.apply_update(&bundle).unwrap().floor, 2);
    let error = client.apply_update_archive(b"an archive".to_vec()).unwrap_err();
    assert_eq!((error.kind, &error.details["check"]), (ErrorKind::TableRefused, &"replay".into()));
    client.roll_back_update().unwrap();
    let requests = fake.requests();
    let lines: Vec<&str> = requests.iter().filter_map(|request| request.split(" HTTP").next()).collect();
    let (apply, rollback) = ("POST /skipd/v1/update/apply", "POST /skipd/v1/update/rollback");
    assert_eq!(lines, ["GET /skipd/v1/update", apply, apply, rollback]);
    assert_eq!(fake.body(1), serde_json::json!({"path": "/media/usb/bundle.tar", "relax_expiry": true}));
    assert!(requests[2].ends_with("\r\n\r\nan archive"), "{}", requests[2]);
}

#[tokio::test]
async fn it_may_be_used_and_dropped_on_an_async_thread() {
    let (_elsewhere, fake) = std::thread::spawn(|| fake(vec![Script::sse(HELLO)])).join().unwrap();
    let client = Client::connect_socket(fake.path()).unwrap();
    assert_eq!(client.chat().user("hi").send().unwrap().answer().unwrap().text, "Hello");
    drop(client);
    std::thread::spawn(move || drop(_elsewhere)).join().unwrap();
}
