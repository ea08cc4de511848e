//! Requests that are measured: alone in their steps, in turn with others, densely from their first token on.

use super::*;
use crate::measured::Measured;

fn measured(priority: Priority, prompt: usize, max_tokens: u32) -> Request {
    Request { priority, measure: true, reuse: true, ..request(1, prompt, max_tokens) }
}

fn votes(finished: &Finished) -> (u64, u64) {
    let measured: &Measured = finished.measured.as_ref().unwrap();
    assert_eq!(measured.layers.len(), 2);
    let of = |gaps: &skip_kernels::gaps::GapHistogram| gaps.votes.iter().sum::<u64>();
    (of(&measured.layers[1].prefill), of(&measured.layers[1].decode[0]))
}

#[test]
fn it_has_steps_of_its_own_in_turn_with_others_and_is_dense() {
    for depth in [1, 2] {
        let mut rig = Rig::with_depth(64, 8, depth);
        rig.scheduler.set_tables(TableSet { prefill: Some(table(3.0)), decode: Some(table(4.0)) });
        let other = rig.submit(Request { priority: Priority::Background, ..request(2, 900, 20) });
        let id = rig.submit(measured(Priority::Background, 900, 9));
        let (mut alone, mut last) = (0, false);
        while !rig.scheduler.is_idle() {
            let plan = rig.step();
            let is_its = plan.seqs.iter().any(|s| s.id == id);
            if is_its {
                assert!(plan.seqs.len() == 1 && plan.measures() && plan.seqs[0].table.is_none());
                assert!(!last || !rig.finished(other).is_empty(), "twice, though another waits");
                alone += 1;
            }
            if !plan.seqs.is_empty() {
                last = is_its;
            }
        }
        assert_eq!(rig.tokens(id), expected(&measured(Priority::Background, 900, 9)));
        assert_eq!(rig.tokens(other), expected(&request(2, 900, 20)));
        let (prefill, decode) = votes(&rig.finished(id)[0]);
        assert_eq!(prefill, 900, "a vote a token of the prompt");
        assert_eq!((decode, alone > 9), (8, true), "the first token is the prompt's");
        assert!(rig.finished(other)[0].measured.is_none());
    }
}

#[test]
fn its_chunks_grow_with_its_own_speed() {
    let mut rig = Rig::new(64, 8);
    let id = rig.submit(measured(Priority::Background, 4000, 1));
    let mut longest = 0;
    while rig.finished(id).is_empty() {
        longest = longest.max(rig.step().tokens(Phase::Prefill));
    }
    assert!(longest > 300, "half a second is 500 tokens, and no step took more than {longest}");
}

#[test]
fn a_higher_class_goes_first() {
    let mut rig = Rig::new(64, 8);
    let low = rig.submit(measured(Priority::Background, 2000, 2));
    rig.step();
    let high = rig.submit(request(2, 100, 50));
    while rig.finished(high).is_empty() {
        assert!(rig.step().seqs.iter().all(|s| s.id == high));
    }
    rig.run();
    assert_eq!(votes(&rig.finished(low)[0]).0, 2000);
}

#[test]
fn it_takes_no_pages_of_earlier_prompts() {
    let mut rig = Rig::new(64, 8);
    let prompt = request(1, 600, 1).prompt;
    let first = rig.submit(Request { prompt: prompt.clone(), reuse: true, ..request(1, 1, 1) });
    rig.run();
    let again = rig.submit(Request { prompt, ..measured(Priority::Background, 1, 1) });
    rig.run();
    assert_eq!(rig.finished(first)[0].usage.prompt_tokens, 600);
    let finished = &rig.finished(again)[0];
    assert_eq!((finished.usage.reused_tokens, votes(finished).0), (0, 600));
}
