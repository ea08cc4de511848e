//! Who is served when: control before all others, clients of a class in turn, and nobody never.

use super::*;
use proptest::prelude::*;

fn of_class(priority: Priority, client: u32, prompt: usize, max_tokens: u32) -> Request {
    Request { priority, reuse: true, ..request(client, prompt, max_tokens) }
}

/// Requests of a lower class: client, whether it is interactive, prompt, answer.
fn load() -> impl Strategy<Value = Vec<(u32, bool, usize, u32)>> {
    proptest::collection::vec((0u32..4, any::<bool>(), 1usize..1500, 1u32..200), 0..24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_control_request_waits_for_two_steps_at_most_and_then_for_none(
        load in load(),
        before in 0usize..60,
        depth in 1usize..3,
        prompt in 1usize..400,
        max_tokens in 1u32..100,
    ) {
        // Four of the pages are control's: as many as these requests need.
        let mut rig = Rig::with_depth(64, 4, depth);
        for (client, interactive, prompt, max_tokens) in load {
            let class = if interactive { Priority::Interactive } else { Priority::Background };
            rig.submit(of_class(class, client, prompt, max_tokens));
        }
        for _ in 0..before {
            rig.step();
        }
        let control = rig.submit(of_class(Priority::Control, 9, prompt, max_tokens));
        let mut others = 0;
        let mut began = false;
        while rig.finished(control).is_empty() {
            // One that is under way already is waited for too.
            let under_way = rig.under_way.len();
            let plan = rig.step();
            let has = plan.seqs.iter().any(|s| s.id == control);
            if !began {
                others = if has { others + under_way } else { others + usize::from(!plan.seqs.is_empty()) };
                prop_assert!(others <= 2, "{others} steps of others went ahead");
            }
            began |= has;
            prop_assert!(!began || plan.seqs.iter().all(|s| s.id == control), "a lower class runs beside control");
        }
        rig.run();
    }

    #[test]
    fn clients_of_a_class_are_admitted_in_turn(
        counts in proptest::collection::vec((1usize..6, 1usize..600), 2..5),
        max_running in 1usize..5,
        depth in 1usize..3,
    ) {
        let mut rig = Rig::with_depth(16, max_running, depth);
        let mut waiting: HashMap<u32, usize> = HashMap::new();
        let mut client_of = HashMap::new();
        for (client, &(count, prompt)) in counts.iter().enumerate() {
            for _ in 0..count {
                let id = rig.submit(of_class(Priority::Interactive, client as u32, prompt, 3));
                client_of.insert(id, client as u32);
            }
            waiting.insert(client as u32, count);
        }
        rig.run();
        let mut admitted: HashMap<u32, usize> = HashMap::new();
        for event in &rig.events {
            let Event::LeftQueue(id) = event else { continue };
            let client = client_of[id];
            let mine = admitted.entry(client).or_default();
            *mine += 1;
            let mine = *mine;
            for (other, &count) in &waiting {
                let theirs = admitted.get(other).copied().unwrap_or(0);
                prop_assert!(theirs == count || theirs + 1 >= mine, "client {client} had {mine} turns, {other} {theirs} of {count}");
            }
        }
    }

    #[test]
    fn a_prompt_gets_on_within_as_many_steps_as_there_are_clients(
        prompts in proptest::collection::vec((0u32..4, 1usize..1500), 2..8),
        depth in 1usize..3,
    ) {
        let mut rig = Rig::with_depth(128, 16, depth);
        let ids: Vec<RequestId> = prompts.iter().map(|&(c, prompt)| rig.submit(of_class(Priority::Interactive, c, prompt, 1))).collect();
        let client = |id: RequestId| prompts[ids.iter().position(|i| *i == id).unwrap()].0;
        let mut waited: HashMap<u32, usize> = HashMap::new();
        while !rig.scheduler.is_idle() || !rig.under_way.is_empty() {
            let plan = rig.step();
            if plan.tokens(Phase::Prefill) == 0 {
                continue;
            }
            let unfinished = |c: u32| ids.iter().any(|&id| client(id) == c && rig.finished(id).is_empty());
            for c in 0..4 {
                let waits = waited.entry(c).or_default();
                let served = plan.seqs.iter().any(|s| client(s.id) == c);
                *waits = if served || !unfinished(c) { 0 } else { *waits + 1 };
                // Its last step is complete one turn after it was begun.
                prop_assert!(*waits <= 4 + depth, "client {c} waits for {waits} steps");
            }
        }
    }

    #[test]
    fn those_who_come_and_go_do_not_starve_one_who_waits(
        others in 1u32..4,
        strangers in any::<bool>(),
        max_running in 1usize..3,
        depth in 1usize..3,
        prompt in 1usize..300,
    ) {
        let mut rig = Rig::with_depth(16, max_running, depth);
        let mine: Vec<RequestId> = (0..4).map(|i| rig.submit(of_class(Priority::Interactive, 1, prompt + i, 3))).collect();
        let mut next = 100;
        let mut ask = |rig: &mut Rig, other: u32| {
            // The same clients time and again, or new ones each time.
            next += 1;
            rig.submit(of_class(Priority::Interactive, if strangers { next } else { 10 + other }, 50, 2))
        };
        let mut open: Vec<RequestId> = (0..others * 2).map(|other| ask(&mut rig, other)).collect();
        let mut steps = 0;
        while mine.iter().any(|id| rig.finished(*id).is_empty()) {
            rig.step();
            for (other, id) in open.iter_mut().enumerate() {
                if !rig.finished(*id).is_empty() {
                    *id = ask(&mut rig, other as u32);
                }
            }
            steps += 1;
            prop_assert!(steps < 400, "still waiting after {steps} steps");
        }
    }

    #[test]
    fn long_prompts_get_on_beside_ever_new_short_ones(strangers in any::<bool>(), depth in 1usize..3, fresh in 1u32..4) {
        let mut rig = Rig::with_depth(64, 8, depth);
        let long = rig.submit(of_class(Priority::Interactive, 1, 3000, 2));
        let mut next = 100;
        let mut steps = 0;
        while rig.finished(long).is_empty() {
            for other in 0..fresh {
                next += 1;
                if rig.scheduler.waiting() < 8 {
                    rig.submit(of_class(Priority::Interactive, if strangers { next } else { 10 + other }, 500, 1));
                }
            }
            rig.step();
            steps += 1;
            prop_assert!(steps < 1000, "still in its prompt after {steps} steps");
        }
    }
}
