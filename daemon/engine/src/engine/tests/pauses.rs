//! A pause: the step under way ends, none is started, and nothing is lost.

use super::*;

// Nine keys draw the end-of-sequence token: prompts are longer.

#[tokio::test]
async fn a_paused_engine_finishes_its_step_and_goes_on_where_it_stood() {
    let fake = Fake { layer: Duration::from_millis(1), ..Fake::default() };
    let layers = fake.layers.clone();
    let engine = start(fake);
    let mut generation = engine.submit(request(10, 30)).unwrap();
    generation.tokens.recv().await.expect("a first token");
    let pause = engine.pause().await.expect("the engine lives");
    let stood = layers.load(Ordering::Acquire);
    assert_eq!(stood % 10, 0, "it stands between two steps");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(layers.load(Ordering::Acquire), stood, "it stands still");
    let other = engine.submit(request(10, 2)).unwrap();
    drop(pause);
    assert_eq!(generation.finished.await.unwrap().reason, FinishReason::Length);
    assert_eq!(other.finished.await.unwrap().reason, FinishReason::Length);
}

#[tokio::test]
async fn an_idle_engine_pauses_at_once_and_turns_when_nudged_all_the_same() {
    let engine = start(Fake::default());
    engine.ready().await.unwrap();
    let pause = engine.pause().await.expect("the engine lives");
    let before = engine.turns();
    engine.nudge();
    while engine.turns() == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(pause);
    assert_eq!(engine.submit(request(10, 2)).unwrap().finished.await.unwrap().reason, FinishReason::Length);
}

#[tokio::test]
async fn who_stops_waiting_for_a_pause_pauses_nothing() {
    let fake = Fake::default();
    let hold = fake.hold.clone();
    hold.store(true, Ordering::Release);
    let engine = start(fake);
    let generation = engine.submit(request(10, 5)).unwrap();
    while engine.status().running == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(tokio::time::timeout(Duration::from_millis(20), engine.pause()).await.is_err(), "the step does not end");
    hold.store(false, Ordering::Release);
    assert_eq!(generation.finished.await.unwrap().reason, FinishReason::Length);
}

#[tokio::test]
async fn a_device_that_is_gone_after_a_pause_ends_the_engine() {
    let engine = start(Fake { lost: true, ..Fake::default() });
    engine.ready().await.unwrap();
    drop(engine.pause().await.expect("the engine lives"));
    engine.stopped().await;
    assert!(matches!(engine.state(), EngineState::Failed(error) if error.to_string().contains("slept")));
}

#[tokio::test]
async fn a_paused_engine_can_be_shut_down() {
    let engine = start(Fake { layer: Duration::from_millis(1), ..Fake::default() });
    let generation = engine.submit(request(10, 500)).unwrap();
    let _pause = engine.pause().await.expect("the engine lives");
    engine.shutdown();
    assert_eq!(generation.finished.await.unwrap().reason, FinishReason::Shutdown);
}
