//! Background requests that are held back keep their places, keep nobody from theirs, and are lost to nobody.

use super::*;

fn engine(queue_limit: u32) -> EngineHandle {
    start_with(EngineOptions { queue_limit, ..EngineOptions::default() }, Fake::default())
}

fn background(max_tokens: u32) -> Request {
    Request { priority: Priority::Background, ignore_eos: true, ..request(20, max_tokens) }
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_held_request_waits_while_others_run_and_is_answered_when_it_is_let_go() {
    let engine = engine(8);
    engine.hold_background(true);
    let mut held = engine.submit(background(3)).unwrap();
    let (ids, _) = collect(engine.submit(request(20, 4)).unwrap()).await;
    assert_eq!(ids.len(), 4);
    let status = engine.status();
    assert!(held.tokens.try_recv().is_err() && status.background_held);
    assert_eq!((status.held, status.queued, status.running), (1, 1, 0));
    engine.hold_background(false);
    let (ids, finished) = collect(held).await;
    assert_eq!((ids.len(), finished.reason), (3, FinishReason::Length));
    assert_eq!((engine.status().held, engine.status().background_held), (0, false));
}

#[tokio::test]
async fn one_that_runs_already_goes_on() {
    let hold = Arc::new(AtomicBool::new(true));
    let engine = start_with(EngineOptions::default(), Fake { hold: hold.clone(), ..Fake::default() });
    let running = engine.submit(background(5)).unwrap();
    eventually("it is admitted", || engine.status().running == 1 || engine.status().queued == 0).await;
    engine.hold_background(true);
    hold.store(false, Ordering::Release);
    assert_eq!(collect(running).await.0.len(), 5);
}

#[tokio::test]
async fn a_held_request_meets_its_deadline_and_its_cancelling() {
    let engine = engine(8);
    engine.hold_background(true);
    let deadline = Some(Instant::now() + Duration::from_millis(100));
    let late = engine.submit(Request { deadline, ..background(3) }).unwrap();
    let cancelled = engine.submit(background(3)).unwrap();
    engine.cancel(cancelled.id);
    assert_eq!(cancelled.finished.await.unwrap().reason, FinishReason::Cancelled);
    assert_eq!(late.finished.await.unwrap().reason, FinishReason::Deadline);
}

#[tokio::test]
async fn held_requests_take_no_place_in_the_queue_from_others() {
    let engine = engine(2);
    engine.hold_background(true);
    let held: Vec<Generation> = (0..2).map(|_| engine.submit(background(1)).unwrap()).collect();
    assert_eq!(engine.submit(background(1)).unwrap_err(), SubmitError::Busy { limit: 2 });
    eventually("they are seen", || engine.status().held == 2).await;
    collect(engine.submit(request(20, 1)).unwrap()).await;
    engine.hold_background(false);
    for held in held {
        assert_eq!(collect(held).await.1.reason, FinishReason::Length);
    }
}

#[tokio::test]
async fn a_drain_lets_held_requests_run_and_none_is_held_from_then_on() {
    let engine = engine(8);
    engine.hold_background(true);
    let held = engine.submit(background(3)).unwrap();
    eventually("it is held", || engine.status().held == 1).await;
    let draining = tokio::spawn({
        let engine = engine.clone();
        async move { engine.drain().await }
    });
    engine.hold_background(true);
    assert_eq!(collect(held).await.1.reason, FinishReason::Length);
    assert!(draining.await.unwrap());
}

#[tokio::test]
async fn the_loop_sleeps_while_all_that_waits_is_held() {
    let engine = engine(8);
    engine.hold_background(true);
    let _held = engine.submit(background(3)).unwrap();
    eventually("it is held", || engine.status().held == 1).await;
    let before = engine.turns();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let turns = engine.turns() - before;
    assert!((1..100).contains(&turns), "{turns} turns: it looks at deadlines now and then, and spins not at all");
}
