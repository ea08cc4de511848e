//! Daemons that say nothing, that are not there yet, and that are started again; the client stays the same.

mod common;

use common::{Fake, HELLO, Script, client};
use skip_client::protocol::{PinPrefix, State, StreamEvent};
use skip_client::{Client, ErrorKind, blocking};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(60);
/// Within it a fake that answers has answered, on a busy machine too.
const ENOUGH: Duration = Duration::from_millis(500);
/// Far beyond every wait here, and far below the usual limit.
const SOON: Duration = Duration::from_secs(10);
const READY: &str = r#"{"state":"ready","progress":1}"#;
const PINNED: &str = r#"{"name":"a","tokens":128,"pages":1,"held":1,"owner":0,"hits":0}"#;

/// Accepts, reads, and never answers.
fn silence() -> Script {
    Script { pieces: vec![], hold: true }
}

#[tokio::test]
async fn no_call_waits_for_a_daemon_that_is_silent() {
    let fake = Fake::start(vec![silence()]);
    let client = client(&fake.path()).await.with_timeout(SHORT);
    let began = Instant::now();
    let pin = PinPrefix { prompt: Some("a".into()), ..PinPrefix::default() };
    let kinds = [
        client.status().await.map(drop),
        client.tables().await.map(drop),
        client.jobs().await.map(drop),
        client.prefixes().await.map(drop),
        client.metrics().await.map(drop),
        client.tokenize("a").await.map(drop),
        client.chat().user("hi").send().await.map(drop),
        client.complete("a").send().await.map(drop),
        client.pin_prefix(&pin).await.map(drop),
        client.drain().await,
        client.wait_ready(SHORT).await,
    ]
    .map(|result| result.unwrap_err().kind);
    assert_eq!(kinds, [ErrorKind::Unreachable; 11]);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    fake.client_gone().await;
}

#[test]
fn nor_does_a_thread() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let fake = runtime.block_on(async { Fake::start(vec![silence()]) });
    let client = blocking::Client::connect_socket(fake.path()).unwrap().with_timeout(SHORT);
    let began = Instant::now();
    let kinds = [
        client.status().map(drop),
        client.chat().user("hi").send().map(drop),
        client.prefixes().map(drop),
        client.jobs().map(drop),
        client.wait_ready(SHORT),
    ]
    .map(|result| result.unwrap_err().kind);
    assert_eq!(kinds, [ErrorKind::Unreachable; 5]);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    // A caller that wants to wait for ever may.
    let patient = client.clone().with_timeout(None);
    let waiting = std::thread::spawn(move || patient.status());
    std::thread::sleep(4 * SHORT);
    assert!(!waiting.is_finished());
    drop((fake, runtime));
    assert_eq!(waiting.join().unwrap().unwrap_err().kind, ErrorKind::Disconnected);
}

#[tokio::test]
async fn a_stream_that_falls_silent_ends_once_nothing_else_is_answered_either() {
    let text = Script::sse(HELLO).held_after(3);
    let ready = Script::json(200, READY);
    let fake = Fake::start(vec![text, ready.clone(), ready, silence()]);
    let mut answer = client(&fake.path()).await.with_timeout(ENOUGH).chat().user("hi").send().await.unwrap();
    assert!(matches!(answer.next().await, Some(Ok(StreamEvent::Text { .. }))));
    let began = Instant::now();
    assert_eq!(answer.next().await.unwrap().unwrap_err().kind, ErrorKind::Unreachable);
    // Two looks were answered, the third was not.
    assert!((4 * ENOUGH..SOON).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(fake.requests().len(), 4);
    assert!(answer.next().await.is_none());
}

#[tokio::test]
async fn a_pin_may_take_longer_than_an_answer() {
    // The answer comes in many pieces, a moment apart.
    let long = format!("{PINNED}{}", " ".repeat(500));
    let pieces = Script::json(200, &long).pieces[0].chunks(1).map(<[u8]>::to_vec).collect();
    let fake = Fake::start(vec![Script { pieces, hold: false }, Script::json(200, READY)]);
    let client = client(&fake.path()).await.with_timeout(ENOUGH);
    let pin = PinPrefix { prompt: Some("a".into()), ..PinPrefix::default() };
    assert_eq!(client.pin_prefix(&pin).await.unwrap().tokens, 128);
    assert!(fake.requests().len() > 1, "it took longer than the limit");
}

#[tokio::test]
async fn a_deadline_holds_where_the_daemon_does_not_keep_it() {
    let fake = Fake::start(vec![Script::sse(HELLO).held_after(2)]);
    let began = Instant::now();
    let asked = client(&fake.path()).await.chat().user("hi").deadline(SHORT).send().await.unwrap();
    assert_eq!(asked.answer().await.unwrap_err().kind, ErrorKind::Deadline);
    assert!((Duration::from_secs(5)..SOON).contains(&began.elapsed()), "{:?}", began.elapsed());
    fake.client_gone().await;
}

#[tokio::test]
async fn the_same_client_serves_again_after_a_restart() {
    let fake = Fake::start(vec![Script::sse(HELLO), Script::sse(HELLO).held_after(3)]);
    let client = client(&fake.path()).await;
    assert_eq!(client.chat().user("hi").send().await.unwrap().answer().await.unwrap().text, "Hello");
    let mut cut = client.chat().user("hi").send().await.unwrap();
    assert!(matches!(cut.next().await, Some(Ok(StreamEvent::Text { .. }))));

    let place = fake.stop().await;
    let error = cut.next().await.unwrap().unwrap_err();
    assert!(error.kind == ErrorKind::Disconnected && error.kind.is_away(), "{error}");
    assert_eq!(client.status().await.unwrap_err().kind, ErrorKind::Unreachable);
    assert_eq!(client.wait_ready(SHORT).await.unwrap_err().kind, ErrorKind::Unreachable);

    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.wait_ready(SOON).await }
    });
    tokio::time::sleep(SHORT).await;
    assert!(!waiting.is_finished());
    let state = |state: &str| Script::json(503, &format!(r#"{{"state":"{state}","progress":0.5}}"#));
    let full = Script::json(429, r#"{"error":{"message":"no room","type":"rate_limit_error","code":"busy"}}"#);
    let again = Fake::start_at(place, vec![state("draining"), full, state("loading"), Script::json(200, READY), Script::sse(HELLO)]);
    waiting.await.unwrap().unwrap();
    assert_eq!(client.chat().user("hi").send().await.unwrap().answer().await.unwrap().text, "Hello");
    assert_eq!(again.requests().len(), 5);
}

#[tokio::test]
async fn a_daemon_that_never_comes_or_only_drains_is_told_of() {
    let draining = Fake::start(vec![Script::json(503, r#"{"state":"draining","progress":1}"#)]);
    assert_eq!(client(&draining.path()).await.wait_ready(ENOUGH).await.unwrap_err().kind, ErrorKind::Draining);
    let nobody = Client::connect_socket_wait("/nonexistent/skipd.sock", SHORT).await.unwrap_err();
    assert!(nobody.kind == ErrorKind::Unreachable && nobody.message.contains("/nonexistent/skipd.sock"), "{nobody}");
}

#[test]
fn a_client_may_begin_before_its_daemon() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("skipd.sock");
    let waiting = std::thread::spawn(move || blocking::Client::connect_socket_wait(path, SOON));
    std::thread::sleep(SHORT);
    assert!(!waiting.is_finished());
    let _fake = runtime.block_on(async { Fake::start_at(place, vec![Script::json(200, READY)]) });
    assert_eq!(waiting.join().unwrap().unwrap().ready().unwrap().state, State::Ready);
}
