//! Background work keeps to its share of the time, and nobody else waits for its rest.

use super::*;
use proptest::prelude::*;

fn background(prompt: usize, max_tokens: u32) -> Request {
    Request { priority: Priority::Background, ..request(1, prompt, max_tokens) }
}

/// One turn of the loop with a step of this length; where there is nothing to do now it waits as long as the scheduler says.
fn turn(rig: &mut Rig, length: Duration) -> Option<Plan> {
    let plan = rig.begin();
    if plan.seqs.is_empty() && rig.under_way.is_empty() {
        rig.now = rig.scheduler.rests_until().expect("nothing to do and nothing to wait for");
        return None;
    }
    rig.finish_after(length);
    Some(plan)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn background_work_alone_takes_its_share_of_the_time(
        percent in 5u32..=100,
        lengths in proptest::collection::vec(1u64..500, 100),
        depth in 1usize..3,
    ) {
        let mut rig = Rig::with_duty(percent, depth);
        rig.submit(background(10, 2000));
        let began = rig.now;
        let (mut busy, mut steps) = (Duration::ZERO, lengths.iter().map(|ms| Duration::from_millis(*ms)));
        let mut length = steps.next();
        while let Some(step) = length {
            if turn(&mut rig, step).is_some() {
                busy += step;
                length = steps.next();
            }
        }
        // The last step's rest belongs to it.
        let end = rig.scheduler.duty.rests(rig.now).unwrap_or(rig.now);
        let share = 100.0 * busy.as_secs_f64() / (end - began).as_secs_f64();
        prop_assert!((share - f64::from(percent)).abs() < 5.0, "{share} % of {percent}");
    }

    #[test]
    fn no_other_class_waits_for_the_rest_or_for_more_than_a_step(
        percent in 1u32..100,
        before in 1usize..40,
        length in 1u64..500,
        control in any::<bool>(),
    ) {
        let mut rig = Rig::with_duty(percent, 1);
        rig.submit(background(300, 2000));
        for _ in 0..before {
            turn(&mut rig, Duration::from_millis(length));
        }
        let priority = if control { Priority::Control } else { Priority::Interactive };
        let id = rig.submit(Request { priority, ..request(2, 10, 20) });
        let mut others = 0;
        while rig.finished(id).is_empty() {
            let plan = turn(&mut rig, Duration::from_millis(length)).expect("it rests though somebody waits");
            others += usize::from(plan.seqs.iter().all(|s| s.id != id));
        }
        prop_assert!(others <= 1, "{others} steps of others");
    }
}

#[test]
fn background_work_that_holds_pages_somebody_waits_for_does_not_rest() {
    let mut rig = Rig::with_duty(10, 1);
    rig.submit(background(10, 6000));
    turn(&mut rig, Duration::from_millis(100));
    turn(&mut rig, Duration::from_millis(100));
    assert!(rig.scheduler.rests_until().is_some());
    let waits = rig.submit(request(2, 10, 6000));
    let plan = turn(&mut rig, Duration::from_millis(100)).expect("a step");
    assert!(plan.seqs.iter().all(|s| s.id != waits), "it does not fit yet");
}

#[test]
fn without_a_limit_background_work_never_rests_and_steps_follow_one_another_while_one_is_under_way() {
    let mut rig = Rig::with_duty(100, 2);
    rig.submit(background(10, 50));
    for _ in 0..20 {
        assert!(!rig.step().seqs.is_empty());
    }
    assert_eq!(rig.scheduler.rests_until(), None);
    let mut limited = Rig::with_duty(50, 2);
    limited.submit(background(10, 50));
    limited.begin();
    assert!(limited.begin().seqs.is_empty(), "none beside one whose length is not known");
}
