//! The client library over both transports, against the real daemon.

use skip_client::protocol::tables::{Selector, SetTableOptions};
use skip_client::{Client, ErrorKind, StreamEvent};
use skip_tests::process::eventually;
use skip_tests::{Daemon, Options};
use std::time::Duration;

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
async fn errors_are_typed_alike() {
    for client in both(Daemon::shared()).await {
        let overflow = client.complete("Hello").max_tokens(9000).send().await.unwrap_err();
        assert_eq!(overflow.kind, ErrorKind::ContextOverflow, "{overflow}");
        let empty = client.complete("").max_tokens(1).send().await.unwrap_err();
        assert_eq!(empty.kind, ErrorKind::InvalidRequest, "{empty}");
        let tier = client
            .set_table(skip_client::protocol::Phase::Prefill, Selector::Tier("99%".into()), SetTableOptions::default())
            .await
            .unwrap_err();
        assert_eq!(tier.kind, ErrorKind::TableRefused, "{tier}");
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
        // The bus has no page counts, so both runs are watched over the socket.
        let status = daemon.http().get("/skipd/v1/status").unwrap().expect(200).unwrap();
        assert!(status["cache"]["free"].as_u64() < status["cache"]["pages"].as_u64(), "pages are reserved while it runs");
        drop(running);
        eventually(Duration::from_secs(10), "its pages are free", || {
            let status = daemon.http().get("/skipd/v1/status")?.expect(200)?;
            Ok((status["cache"]["free"] == status["cache"]["pages"]).then_some(()))
        })
        .unwrap();
    }
}
