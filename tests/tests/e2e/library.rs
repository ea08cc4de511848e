//! The client library over both transports, against the real daemon.

use skip_client::protocol::Phase;
use skip_client::protocol::tables::{Selector, SetTableOptions};
use skip_client::{Client, ErrorKind, StreamEvent, blocking};
use skip_tests::{Daemon, Options};
use std::time::{Duration, Instant};

async fn both(daemon: &Daemon) -> [Client; 2] {
    [Client::connect_socket(daemon.socket()).await.unwrap(), Client::connect_bus(&daemon.bus().address()).await.unwrap()]
}

#[tokio::test]
async fn the_socket_and_the_bus_answer_alike() {
    let mut answers = Vec::new();
    for client in both(Daemon::shared()).await {
        client.wait_ready(Duration::from_secs(5)).await.unwrap();
        let answer = client
            .chat()
            .user("What is the capital of France?")
            .max_tokens(24)
            .temperature(0.0)
            .send()
            .await
            .unwrap()
            .answer()
            .await
            .unwrap();
        assert!(answer.text.contains("Paris"), "{answer:?}");
        answers.push((answer.text, answer.usage.prompt_tokens, answer.usage.completion_tokens));
    }
    assert_eq!(answers[0], answers[1]);
}

#[tokio::test]
async fn errors_are_alike_with_field_and_numbers() {
    let mut told = Vec::new();
    for client in both(Daemon::shared()).await {
        let mut errors = Vec::new();
        let table = async |selector: Selector| client.set_table(Phase::Prefill, selector, SetTableOptions::default()).await.unwrap_err();
        errors.push(client.complete("Hello").max_tokens(9000).send().await.unwrap_err());
        errors.push(client.complete(vec![504; 8190]).max_tokens(10).send().await.unwrap_err());
        errors.push(client.chat().user(crate::prose(9000)).max_tokens(10).send().await.unwrap_err());
        errors.push(client.complete("").max_tokens(1).send().await.unwrap_err());
        errors.push(client.complete(Vec::<u32>::new()).max_tokens(1).send().await.unwrap_err());
        errors.push(client.complete(vec![49_152]).max_tokens(1).send().await.unwrap_err());
        errors.push(client.chat().send().await.unwrap_err());
        errors.push(client.complete("a").max_tokens(1).temperature(f32::NAN).send().await.unwrap_err());
        errors.push(table(Selector::Tier("99%".into())).await);
        errors.push(table(Selector::Table(serde_json::json!([[2048, 5.0], [1024, 6.0]]))).await);
        errors.push(client.confirm().await.unwrap_err());
        told.push(errors);
    }
    let kinds: Vec<ErrorKind> = told[0].iter().map(|error| error.kind).collect();
    let [overflow, invalid, table] = [ErrorKind::ContextOverflow, ErrorKind::InvalidRequest, ErrorKind::TableRefused];
    let expected = [overflow, overflow, overflow, invalid, invalid, invalid, invalid, invalid, table, table, ErrorKind::NothingPending];
    assert_eq!(kinds, expected);
    assert_eq!(told[0][0].details["context_length"], 8192);
    assert_eq!(told[0][5].param.as_deref(), Some("prompt"));
    for (socket, bus) in told[0].iter().zip(&told[1]) {
        assert_eq!(socket, bus);
    }
}

// Several threads: the client hangs up in a task of its own, while this one waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_generation_is_cancelled() {
    let daemon = Daemon::start(Options::default()).unwrap();
    for client in both(&daemon).await {
        let mut running = client.complete("Hello").max_tokens(4000).ignore_eos(true).send().await.unwrap();
        let first = running.next().await.unwrap().unwrap();
        assert!(matches!(first, StreamEvent::Text { .. }), "{first:?}");
        let status = client.status().await.unwrap();
        assert!(status.cache.free < status.cache.pages && status.queue.running == 1, "{status:?}");
        drop(running);
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let status = client.status().await.unwrap();
            if status.cache.free == status.cache.pages {
                break;
            }
            assert!(Instant::now() < end, "its pages stay reserved: {status:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[test]
fn the_blocking_client_answers_cancels_and_sets_tables_on_both() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let socket = blocking::Client::connect_socket(daemon.socket()).unwrap();
    let mut answers = Vec::new();
    for client in [socket.clone(), blocking::Client::connect_bus(&daemon.bus().address()).unwrap()] {
        client.wait_ready(Duration::from_secs(5)).unwrap();
        let ids = client.tokenize("The capital of France is").unwrap();
        answers.push(client.complete(ids).max_tokens(6).temperature(0.0).send().unwrap().answer().unwrap().text);
        let table = client.set_table(Phase::Prefill, Selector::Tier("50%".into()), SetTableOptions::default()).unwrap();
        assert_eq!(table.tier.as_deref(), Some("50%"));
        client.set_table(Phase::Prefill, Selector::None, SetTableOptions::default()).unwrap();
        assert_eq!(client.confirm().unwrap_err().kind, ErrorKind::NothingPending);

        let mut running = client.complete("Hello").max_tokens(4000).ignore_eos(true).send().unwrap();
        assert!(matches!(running.next(), Some(Ok(StreamEvent::Text { .. }))));
        assert_eq!(socket.status().unwrap().queue.running, 1);
        running.canceller().cancel();
        let last = running.last();
        assert!(matches!(&last, Some(Err(error)) if error.kind == ErrorKind::Cancelled), "{last:?}");
        let end = Instant::now() + Duration::from_secs(10);
        while socket.status().is_ok_and(|status| status.cache.free < status.cache.pages) {
            assert!(Instant::now() < end, "its pages stay reserved");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    assert!(answers[0].contains("Paris") && answers[0] == answers[1], "{answers:?}");
}

#[tokio::test]
async fn the_status_is_the_same_on_both() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let clients = both(&daemon).await;
    // What made the daemon ready leaves its pages a moment after its answer.
    while clients[0].status().await.is_ok_and(|status| status.cache.free < status.cache.pages) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut told = Vec::new();
    for client in clients {
        let mut status = client.status().await.unwrap();
        assert!(status.uptime_ms > 0 && status.startup_ms.is_some_and(|ms| ms > 0.0), "{status:?}");
        assert!(status.model.as_ref().is_some_and(|m| m.layers == 30 && m.vocabulary == 49_152), "{status:?}");
        assert!(status.cache.pages > 0 && status.queue.limit == 64, "{status:?}");
        status.uptime_ms = 0;
        if let Some(model) = &mut status.model {
            // Computed in the background.
            model.checkpoint_hash = None;
        }
        told.push(status);
    }
    assert_eq!(told[0], told[1]);
}

#[tokio::test]
async fn token_ids_are_a_prompt_on_both() {
    let mut answers = Vec::new();
    for client in both(Daemon::shared()).await {
        let ids = client.tokenize("The capital of France is").await.unwrap();
        let by_ids = client.complete(ids).max_tokens(6).temperature(0.0).send().await.unwrap().answer().await.unwrap();
        let by_text =
            client.complete("The capital of France is").max_tokens(6).temperature(0.0).send().await.unwrap().answer().await.unwrap();
        assert_eq!((&by_ids.text, by_ids.usage.prompt_tokens), (&by_text.text, by_text.usage.prompt_tokens));
        answers.push(by_ids.text);
    }
    assert_eq!(answers[0], answers[1]);
}
