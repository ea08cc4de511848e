//! Random arrivals, cancels, classes, deadlines, tables, pins and faults, with few pages: every request gets its own tokens and one end.

use super::*;
use crate::prefix::{NewPrefix, PrefixError};
use proptest::prelude::*;

/// Pages that pinned prefixes may take, of 12.
const PINNED: u32 = 4;

/// A prompt: prompts of a family begin alike, whoever asks, up to their last tokens, which differ by `tail`.
fn prompt(family: u32, length: usize, tail: u32) -> Vec<u32> {
    let differs = length.saturating_sub(20);
    (0..length).map(|i| (i as u32 * 31 + family * 17 + if i < differs { 100 } else { 500 + tail }) % VOCABULARY).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Submit {
        client: u32,
        class: usize,
        prompt: (u32, usize, u32),
        max_tokens: u32,
        ignore_eos: bool,
        deadline: Option<u64>,
        reuse: bool,
    },
    Cancel(usize),
    Step,
    /// A step that was interrupted between layers, after the cache was written to.
    Aborted,
    /// A step that a kernel refused.
    Failed,
    /// A step that was begun and gave nothing.
    Broken,
    /// Pages of a family's prompts.
    Pin(u32, usize),
    Unpin(u32),
    Tables(Option<u8>),
}

fn op() -> impl Strategy<Value = Op> {
    let what = ((0u32..3, 1usize..700, 0u32..3), 1u32..40, any::<bool>(), proptest::option::weighted(0.2, 1u64..3000));
    let submit = (0u32..3, 0usize..3, proptest::bool::weighted(0.8), what).prop_map(
        |(client, class, reuse, (prompt, max_tokens, ignore_eos, deadline))| Op::Submit {
            client,
            class,
            prompt,
            max_tokens,
            ignore_eos,
            deadline,
            reuse,
        },
    );
    prop_oneof![
        8 => submit,
        2 => (0usize..64).prop_map(Op::Cancel),
        24 => Just(Op::Step),
        4 => Just(Op::Aborted),
        2 => Just(Op::Failed),
        1 => Just(Op::Broken),
        1 => (0u32..3, 1usize..4).prop_map(|(family, pages)| Op::Pin(family, pages)),
        1 => (0u32..3).prop_map(Op::Unpin),
        2 => proptest::option::of(1u8..4).prop_map(Op::Tables),
    ]
}

/// Tokens that a prompt may have taken at most: what it has in common with others of its client, or a pinned one.
fn reusable(id: RequestId, requests: &HashMap<RequestId, Request>, pinned: &[Vec<u32>]) -> usize {
    let request = &requests[&id];
    let others = requests.iter().filter(|(other, r)| **other != id && r.client == request.client && r.reuse).map(|(_, r)| &r.prompt);
    let common = |other: &Vec<u32>| request.prompt.iter().zip(other).take_while(|(a, b)| a == b).count() / PAGE;
    let pages = others.chain(pinned).map(common).max().unwrap_or(0);
    if request.reuse { pages.min((request.prompt.len() - 1) / PAGE) * PAGE } else { 0 }
}

/// What every step must hold to.
fn check_plan(plan: &Plan, requests: &HashMap<RequestId, Request>) {
    let mut ids: Vec<RequestId> = plan.seqs.iter().map(|s| s.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), plan.seqs.len(), "a request twice in a step");
    assert!(plan.tokens(Phase::Prefill) <= 512 && plan.tokens(Phase::Decode) <= 3, "more rows than the step has room for");
    let classes: Vec<Priority> = ids.iter().map(|id| requests[id].priority).collect();
    assert!(classes.windows(2).all(|w| w[0] == w[1]), "two classes in a step");
    for planned in &plan.seqs {
        let request = &requests[&planned.id];
        let prompt = request.prompt.len();
        let std::ops::Range { start, end } = planned.range;
        match planned.phase {
            Phase::Prefill => assert!(end == prompt || end.is_multiple_of(PAGE)),
            // The last token drawn is never computed further.
            Phase::Decode => assert!(start >= prompt && end == start + 1 && end < prompt + request.max_tokens as usize),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn every_request_gets_its_own_tokens_and_one_terminal_event_and_nothing_leaks(
        ops in proptest::collection::vec(op(), 1..80),
        depth in 1usize..3,
    ) {
        let mut rig = Rig::with_pins(12, PINNED, 3, depth);
        let mut requests = HashMap::new();
        for op in ops {
            match op {
                Op::Submit { client, class, prompt: (family, length, tail), max_tokens, ignore_eos, deadline, reuse } => {
                    let priority = [Priority::Background, Priority::Interactive, Priority::Control][class];
                    let deadline = deadline.map(|ms| rig.now + Duration::from_millis(ms));
                    let prompt = prompt(family, length, tail);
                    let steering = steering(client);
                    let r = Request { prompt, priority, ignore_eos, deadline, steering, reuse, ..request(client, 1, max_tokens) };
                    requests.insert(rig.submit(r.clone()), r);
                }
                Op::Cancel(n) => {
                    let id = RequestId(n as u64);
                    rig.scheduler.cancel(id, FinishReason::Cancelled, rig.now, &mut rig.events);
                }
                Op::Step => {
                    let plan = rig.step();
                    check_plan(&plan, &requests);
                    rig.now += Duration::from_millis(90);
                }
                // Planned, and given up between layers: the loop does not begin it then.
                Op::Aborted => {
                    let plan = rig.scheduler.plan(rig.now, rig.under_way.back(), &mut rig.events);
                    rig.finish();
                    let _ = plan;
                }
                // What is under way is finished first, as the loop does.
                Op::Failed => {
                    let plan = rig.scheduler.plan(rig.now, rig.under_way.back(), &mut rig.events);
                    while !rig.under_way.is_empty() {
                        rig.finish();
                    }
                    rig.scheduler.fail(&plan, "refused", rig.now, &mut rig.events);
                }
                Op::Broken => {
                    check_plan(&rig.begin(), &requests);
                    if let Some(plan) = rig.under_way.pop_front() {
                        rig.model.begun.pop_front();
                        rig.model.drawn = vec![0; plan.seqs.len()];
                        rig.scheduler.fail(&plan, "gave nothing", rig.now, &mut rig.events);
                    }
                }
                Op::Pin(family, pages) => {
                    let tokens = prompt(family, pages * PAGE + 20, 0)[..pages * PAGE].to_vec();
                    let pinned: u32 = rig.scheduler.prefixes().iter().map(|p| p.pages).sum();
                    let new = NewPrefix { name: format!("{family}"), tokens: tokens.clone(), owner: ClientId(9) };
                    match rig.scheduler.pin(new) {
                        Ok(_) => rig.model.pinned.push(tokens),
                        Err(PrefixError::NoRoom { .. }) => prop_assert!(pinned as usize + pages > PINNED as usize),
                        Err(error) => prop_assert!(matches!(error, PrefixError::NameTaken(_)), "{error}"),
                    }
                }
                Op::Unpin(family) => drop(rig.scheduler.unpin(format!("{family}").as_str())),
                Op::Tables(s) => rig.scheduler.set_tables(TableSet { prefill: s.map(|s| table(f32::from(s))), decode: s.map(|_| table(9.0)) }),
            }
        }
        // Every step moves at least one sequence by a chunk or a token: without starvation it ends within their sum.
        // A step that only finishes another, or discards its row, may come after each.
        let bound: usize = requests.values().map(|r| r.prompt.len() / PAGE + 2 + r.max_tokens as usize).sum();
        let mut steps = 0;
        while !rig.scheduler.is_idle() || !rig.under_way.is_empty() {
            let waited = !rig.under_way.is_empty();
            prop_assert!(!rig.step().seqs.is_empty() || rig.scheduler.is_idle() || waited);
            prop_assert!(rig.under_way.len() < depth.max(2));
            prop_assert!(rig.scheduler.pinned() <= PINNED as usize);
            steps += 1;
            prop_assert!(steps <= 2 * bound);
        }
        prop_assert!(rig.model.begun.is_empty());
        prop_assert_eq!(rig.scheduler.pages().used(), rig.scheduler.pinned(), "only pinned prefixes hold pages");
        prop_assert_eq!(rig.scheduler.slots.users(), 0);
        for prefix in rig.scheduler.prefixes() {
            prop_assert!(prefix.held == 0 || prefix.held == prefix.pages);
            rig.scheduler.unpin(prefix.name.as_str());
        }
        prop_assert!(rig.scheduler.pages().reserve(12).is_some(), "a page was lost");
        for (id, request) in &requests {
            let ends = rig.finished(*id);
            prop_assert_eq!(ends.len(), 1, "terminal events of {:?}", id);
            let left = rig.events.iter().filter(|e| **e == Event::LeftQueue(*id)).count();
            prop_assert_eq!(left, 1);
            let (tokens, all) = (rig.tokens(*id), expected(request));
            prop_assert_eq!(&tokens[..], &all[..tokens.len().min(all.len())]);
            prop_assert_eq!(ends[0].usage.completion_tokens as usize, tokens.len());
            prop_assert_eq!(ends[0].usage.prompt_tokens as usize, request.prompt.len());
            let reused = ends[0].usage.reused_tokens as usize;
            prop_assert!(reused.is_multiple_of(PAGE) && reused <= reusable(*id, &requests, &rig.model.pinned), "{reused} of {id:?}");
            let last = rig.events.iter().rposition(|e| matches!(e, Event::Token(of, _) if of == id));
            let end = rig.events.iter().position(|e| matches!(e, Event::Finished(of, _) if of == id));
            prop_assert!(last < end, "a token after the terminal event");
            match ends[0].reason {
                FinishReason::Eos => prop_assert!(tokens == all && tokens.last() == Some(&EOS)),
                FinishReason::Length => prop_assert_eq!(tokens, all),
                FinishReason::Deadline => prop_assert!(request.deadline.is_some()),
                FinishReason::Cancelled | FinishReason::Error => {}
                other => prop_assert!(false, "unexpected {:?}", other),
            }
        }
    }
}
