//! What a watchdog sees of the loop: that it gets on, idle or busy, and that it does not where a step is stuck.

use super::*;

/// Waits until the loop has turned since it was at `before`.
async fn turned(engine: &EngineHandle, before: u64) {
    let turning = async {
        while engine.turns() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), turning).await.expect("the loop turns");
}

#[tokio::test]
async fn an_idle_loop_turns_when_it_is_nudged() {
    let engine = start(Fake::default());
    engine.ready().await.unwrap();
    for _ in 0..3 {
        let before = engine.turns();
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(engine.turns(), before, "idle is idle");
        engine.nudge();
        turned(&engine, before).await;
    }
}

#[tokio::test]
async fn a_long_step_is_seen_to_get_on_by_its_layers() {
    let fake = Fake { layer: Duration::from_millis(20), ..Fake::default() };
    let layers = fake.layers.clone();
    let engine = start(fake);
    let _generation = engine.submit(request(1, 1)).unwrap();
    while layers.load(Ordering::Acquire) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let before = engine.turns();
    turned(&engine, before).await;
    assert!(layers.load(Ordering::Acquire) < 10, "it was seen within the first step");
}

#[tokio::test]
async fn a_stuck_step_turns_nothing_however_it_is_nudged() {
    // Its first layer outlasts the test; the thread goes with the process.
    let fake = Fake { layer: Duration::from_secs(3600), ..Fake::default() };
    let layers = fake.layers.clone();
    let engine = start(fake);
    let _generation = engine.submit(request(1, 1)).unwrap();
    while layers.load(Ordering::Acquire) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let stuck = engine.turns();
    engine.nudge();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(engine.turns(), stuck);
}
