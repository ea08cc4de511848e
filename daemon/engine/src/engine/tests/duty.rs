//! The loop rests for background work's share of the time, and for nothing and nobody else.

use super::*;

/// An engine whose steps take ten milliseconds, of which background work may have so much of the time.
fn engine(background_duty: u32) -> EngineHandle {
    let options = EngineOptions { background_duty, ..EngineOptions::default() };
    start_with(options, Fake { layer: Duration::from_millis(1), ..Fake::default() })
}

fn background(max_tokens: u32) -> Request {
    Request { priority: Priority::Background, ignore_eos: true, ..request(20, max_tokens) }
}

#[tokio::test]
async fn background_work_alone_rests_for_what_its_steps_took_beyond_its_share() {
    let engine = engine(25);
    let began = Instant::now();
    let (ids, finished) = collect(engine.submit(background(11)).unwrap()).await;
    assert_eq!((ids.len(), finished.reason), (11, FinishReason::Length));
    let (elapsed, status) = (began.elapsed().as_secs_f64(), engine.status());
    let (busy, rest) = (status.background_step_seconds, status.background_rest_seconds);
    assert!(busy >= 0.11 && busy + rest <= elapsed, "{busy} s busy and {rest} s of rest in {elapsed}");
    // Three times as long as all steps but the last, which nothing came after; a thread may wake late.
    assert!((2.7..4.5).contains(&(rest / (busy * 10.0 / 11.0))), "{busy} s busy, {rest} s of rest");
}

#[tokio::test]
async fn others_and_work_without_a_limit_never_rest() {
    for (duty, priority) in [(5, Priority::Interactive), (100, Priority::Background)] {
        let engine = engine(duty);
        collect(engine.submit(Request { priority, ..background(10) }).unwrap()).await;
        assert_eq!(engine.status().background_rest_seconds, 0.0);
    }
}

#[tokio::test]
async fn a_request_that_comes_during_a_rest_begins_at_once_and_one_that_rests_meets_its_deadline() {
    // A second of rest after each step.
    let engine = engine(1);
    let deadline = Some(Instant::now() + Duration::from_millis(300));
    let mut rests = engine.submit(Request { deadline, ..background(100) }).unwrap();
    rests.tokens.recv().await.unwrap();
    let began = Instant::now();
    let control = Request { priority: Priority::Control, ..request(20, 1) };
    collect(engine.submit(control).unwrap()).await;
    assert!(began.elapsed() < Duration::from_millis(250), "{:?}", began.elapsed());
    assert_eq!(engine.status().control_waits.iter().sum::<u64>(), 1);
    assert_eq!(rests.finished.await.unwrap().reason, FinishReason::Deadline);
    assert!(began.elapsed() < Duration::from_millis(800), "{:?}", began.elapsed());
}
