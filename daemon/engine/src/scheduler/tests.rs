//! The scheduler against a fake model whose cache is real enough to notice a foreign, lost or doubled token: the next token is a hash of
//! everything the sequence's pages hold.

use super::*;
use crate::cache::Under;
use crate::handle::Stage;
use skip_kernels::PAGE;
use skip_kernels::attention::SkipCounters;
use skip_kernels::backend::unseen;
use skip_kernels::gaps::Gaps;
use skip_kernels::sampling::{Sampled, SamplingParams};
use skip_kernels::{Phase, ScaleTable};
use std::collections::{HashMap, VecDeque};

mod duty;
mod fairness;
mod measuring;
mod properties;
mod reuse;

const VOCABULARY: u32 = 1000;
const EOS: u32 = 7;

/// The next token after `tokens`, where these are added to logits.
fn next_token(tokens: &[u32], added: &[(u32, f32)]) -> u32 {
    let changes = added.iter().flat_map(|&(token, bias)| [token, bias.to_bits()]);
    let all = tokens.iter().copied().chain(changes);
    let hash = all.fold(0xcbf2_9ce4_8422_2325u64, |h, t| (h ^ u64::from(t)).wrapping_mul(0x0100_0000_01b3));
    ((hash >> 33) % u64::from(VOCABULARY)) as u32
}

/// A vote a token.
fn gaps(tokens: usize) -> Gaps {
    let mut gaps = Gaps::default();
    (0..tokens).for_each(|_| gaps[0].add(-1.0, 1.0));
    gaps
}

/// What a request must give, cut at its end-of-sequence token or `max_tokens`.
fn expected(request: &Request) -> Vec<u32> {
    let mut tokens = request.prompt.clone();
    let mut steer = super::steer::Steer::new(request.steering.clone());
    for _ in 0..request.max_tokens {
        let edits = steer.edits();
        let token = next_token(&tokens, edits.as_ref().map_or(&[], |edits| &edits.added));
        steer.take(token).unwrap();
        tokens.push(token);
        if tokens.last() == Some(&EOS) && !request.ignore_eos {
            break;
        }
    }
    tokens.split_off(request.prompt.len())
}

/// A sequence of a step as the device has it: nothing that the host changes later.
struct OnDevice {
    tokens: Vec<u32>,
    start: usize,
    block_table: Vec<u32>,
    phase: Phase,
    draws: bool,
    added: Vec<(u32, f32)>,
    votes: u64,
    measure: bool,
    /// Whose it is, and the threshold of its prompt; None where the test does not say.
    owner: Option<Owner>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Owner {
    client: ClientId,
    under: Option<Under>,
}

/// What the cache holds of a token.
#[derive(Clone, Copy, Debug)]
struct Cell {
    token: u32,
    phase: Phase,
    owner: Option<Owner>,
}

struct FakeModel {
    pages: Vec<[Cell; PAGE]>,
    /// Tokens of the step that ran last, by place.
    drawn: Vec<u32>,
    /// Steps that were begun and have not run.
    begun: VecDeque<Vec<OnDevice>>,
    /// Of the sequences of the next step.
    owners: Vec<Owner>,
    /// Every prefix that was ever pinned.
    pinned: Vec<Vec<u32>>,
}

impl FakeModel {
    fn new(pages: u32) -> Self {
        let empty = Cell { token: u32::MAX, phase: Phase::Decode, owner: None };
        Self {
            pages: vec![[empty; PAGE]; pages as usize],
            drawn: Vec::new(),
            begun: VecDeque::new(),
            owners: Vec::new(),
            pinned: Vec::new(),
        }
    }

    fn begin(&mut self, steps: &[SeqStep<'_>]) {
        let owners = std::mem::take(&mut self.owners);
        let on_device = |(place, s): (usize, &SeqStep<'_>)| OnDevice {
            tokens: s.tokens.to_vec(),
            start: s.start,
            block_table: s.block_table.to_vec(),
            phase: s.phase,
            draws: s.sample.is_some(),
            added: s.sample.and_then(|params| params.edits.as_ref()).map_or_else(Vec::new, |edits| edits.added.clone()),
            votes: if s.table.is_some() { s.tokens.len() as u64 } else { 0 },
            measure: s.measure,
            owner: owners.get(place).copied(),
        };
        self.begun.push_back(steps.iter().enumerate().map(on_device).collect());
    }

    /// Runs the oldest step that was begun.
    fn finish(&mut self) -> StepReport {
        let mut report = StepReport::default();
        let mut drawn = Vec::new();
        for s in self.begun.pop_front().unwrap() {
            for (i, &token) in s.tokens.iter().enumerate() {
                let at = s.start + i;
                let token = unseen(token).map_or(token, |place| self.drawn[place]);
                self.pages[s.block_table[at / PAGE] as usize][at % PAGE] = Cell { token, phase: s.phase, owner: s.owner };
            }
            let end = s.start + s.tokens.len();
            let cells: Vec<Cell> = (0..end).map(|at| self.pages[s.block_table[at / PAGE] as usize][at % PAGE]).collect();
            let keys: Vec<u32> = cells.iter().map(|cell| cell.token).collect();
            if s.phase == Phase::Prefill && s.owner.is_some() {
                self.check_origin(&s, &cells, &keys);
            }
            let token = next_token(&keys, &s.added);
            drawn.push(if s.draws { token } else { u32::MAX });
            if s.measure {
                report.gaps = vec![gaps(s.tokens.len()); 2];
            }
            report.sampled.push(s.draws.then(|| Sampled { token, ..Sampled::default() }));
            report.counters.push(SkipCounters { votes: s.votes, ..SkipCounters::default() });
        }
        self.drawn = drawn;
        report
    }

    /// What a prompt goes on from was computed as a prompt, with its threshold, for its client or by an administrator's leave.
    fn check_origin(&self, s: &OnDevice, cells: &[Cell], keys: &[u32]) {
        let (Some(owner), shared) = (s.owner, |upto: usize| self.pinned.iter().any(|pin| pin.starts_with(&keys[..upto]))) else { return };
        for (at, cell) in cells.iter().enumerate() {
            let from = cell.owner.expect("a prompt's token that nobody computed");
            assert_eq!((cell.phase, from.under), (Phase::Prefill, owner.under), "key {at} of {owner:?}");
            assert!(from.client == owner.client || shared((at / PAGE + 1) * PAGE), "key {at} of {owner:?} is {from:?}'s");
        }
    }

    fn step(&mut self, steps: &[SeqStep<'_>]) -> StepReport {
        self.begin(steps);
        self.finish()
    }
}

struct Rig {
    scheduler: Scheduler,
    model: FakeModel,
    /// Steps under way, at most `depth` after each.
    under_way: VecDeque<Plan>,
    depth: usize,
    events: Vec<Event>,
    requests: HashMap<RequestId, Request>,
    now: Instant,
    next_id: u64,
}

impl Rig {
    fn new(pages: u32, max_running: usize) -> Self {
        Self::with_depth(pages, max_running, 1)
    }

    fn with_depth(pages: u32, max_running: usize, depth: usize) -> Self {
        Self::with_pins(pages, 0, max_running, depth)
    }

    fn with_pins(pages: u32, pinned: u32, max_running: usize, depth: usize) -> Self {
        Self::with(pages, pinned, max_running, depth, 100)
    }

    /// Background work has this share of the time.
    fn with_duty(percent: u32, depth: usize) -> Self {
        Self::with(64, 0, 4, depth, percent)
    }

    fn with(pages: u32, pinned: u32, max_running: usize, depth: usize, background_duty: u32) -> Self {
        let options = SchedulerOptions {
            pages,
            pinned,
            max_running,
            chunk: None,
            max_chunk: 512,
            step_budget: Duration::from_millis(500),
            eos: vec![EOS],
            vocabulary: VOCABULARY,
            tables: TableSet::default(),
            background_duty,
        };
        Self {
            scheduler: Scheduler::new(options),
            model: FakeModel::new(pages),
            under_way: VecDeque::new(),
            depth,
            events: Vec::new(),
            requests: HashMap::new(),
            now: Instant::now(),
            next_id: 0,
        }
    }

    fn submit(&mut self, request: Request) -> RequestId {
        self.next_id += 1;
        let id = RequestId(self.next_id);
        self.requests.insert(id, request.clone());
        self.scheduler.submit(id, Arrival { request, at: self.now }, &mut self.events);
        id
    }

    /// One turn of the engine's loop: begins a step if there is one, and finishes the oldest where no more may be under way or none was begun.
    /// Gives what was begun.
    fn step(&mut self) -> Plan {
        let plan = self.begin();
        if plan.seqs.is_empty() || self.under_way.len() == self.depth {
            self.finish();
        }
        plan
    }

    /// Begins the next step, if there is one now.
    fn begin(&mut self) -> Plan {
        let plan = self.scheduler.plan(self.now, self.under_way.back(), &mut self.events);
        let in_time = |p: &Planned| self.requests[&p.id].deadline.is_none_or(|deadline| deadline > self.now);
        assert!(plan.seqs.iter().all(in_time), "a request runs past its deadline");
        if !plan.seqs.is_empty() {
            let owner = |p: &Planned| {
                let request = &self.requests[&p.id];
                let table = p.table.as_ref().filter(|_| p.phase == Phase::Prefill);
                Owner { client: request.client, under: Under::of(table, request.prompt.len()) }
            };
            self.model.owners = plan.seqs.iter().map(owner).collect();
            self.model.begin(&self.scheduler.steps(&plan));
            self.scheduler.begin(&plan);
            self.under_way.push_back(plan.clone());
        }
        plan
    }

    /// Finishes the oldest step under way, one millisecond a token.
    fn finish(&mut self) {
        let Some(plan) = self.under_way.front() else { return };
        self.finish_after(Duration::from_millis((plan.tokens(Phase::Prefill) + plan.tokens(Phase::Decode)) as u64));
    }

    /// Finishes the oldest step under way, which took this long.
    fn finish_after(&mut self, elapsed: Duration) {
        let Some(mut plan) = self.under_way.pop_front() else { return };
        self.now += elapsed;
        let mut report = self.model.finish();
        self.scheduler.complete(&mut plan, &mut report, elapsed, self.now, &mut self.events);
    }

    fn run(&mut self) {
        let mut steps = 0;
        while !self.scheduler.is_idle() || !self.under_way.is_empty() {
            let waited = !self.under_way.is_empty();
            assert!(!self.step().seqs.is_empty() || waited, "nothing runs although something is there");
            steps += 1;
            assert!(steps < 10_000);
        }
    }

    fn tokens(&self, id: RequestId) -> Vec<u32> {
        let token = |e: &Event| match e {
            Event::Token(of, t) if *of == id => Some(t.sampled.token),
            _ => None,
        };
        self.events.iter().filter_map(token).collect()
    }

    fn finished(&self, id: RequestId) -> Vec<Finished> {
        let end = |e: &Event| match e {
            Event::Finished(of, f) if *of == id => Some(f.clone()),
            _ => None,
        };
        self.events.iter().filter_map(end).collect()
    }
}

fn request(client: u32, prompt: usize, max_tokens: u32) -> Request {
    Request {
        prompt: (0..prompt as u32).map(|i| (i * 31 + client * 17 + 100) % VOCABULARY).collect(),
        max_tokens,
        sampling: SamplingParams::default(),
        ignore_eos: true,
        priority: Priority::Interactive,
        deadline: None,
        client: ClientId(client),
        tables: None,
        steering: Default::default(),
        reuse: false,
        measure: false,
    }
}

/// Of the clients one asks for nothing, one for a bias, and one for penalties, which follow from every token.
fn steering(client: u32) -> crate::handle::Steering {
    let penalty = if client % 3 == 2 { 0.5 } else { 0.0 };
    let bias = if client % 3 == 1 { vec![(client, 1.0)] } else { Vec::new() };
    crate::handle::Steering { presence_penalty: penalty, frequency_penalty: penalty, bias, ..Default::default() }
}

fn table(s: f32) -> Arc<NamedTable> {
    let table = ScaleTable::new(vec![(16, s).into()], None).unwrap();
    Arc::new(NamedTable { table, tier: None, origin: "set-table".into(), hash: s.to_string() })
}

#[test]
fn a_flooding_client_does_not_delay_another_ones_first_request() {
    let mut rig = Rig::new(64, 1);
    let flood: Vec<RequestId> = (0..10).map(|i| rig.submit(request(1, 10 + i, 2))).collect();
    let other = rig.submit(request(2, 10, 2));
    while rig.finished(other).is_empty() {
        rig.step();
    }
    let ended = flood.iter().filter(|id| !rig.finished(**id).is_empty()).count();
    assert_eq!(ended, 1);
    rig.run();
}

#[test]
fn a_request_whose_logits_follow_its_tokens_waits_for_each_and_others_go_ahead() {
    let mut rig = Rig::with_depth(64, 8, 2);
    let plain = rig.submit(request(3, 10, 12));
    let follows = Request { steering: steering(2), ..request(2, 10, 6) };
    let held = rig.submit(follows.clone());
    let mut shared = 0;
    while !rig.scheduler.is_idle() {
        let plan = rig.step();
        let has = |id| plan.seqs.iter().any(|s| s.id == id);
        shared += usize::from(has(plain) && has(held));
        // Of two steps under way it is in one at most.
        assert!(rig.under_way.iter().filter(|step| step.seqs.iter().any(|s| s.id == held)).count() <= 1);
    }
    assert!(shared > 2, "they run in the same steps");
    assert_eq!(rig.tokens(held), expected(&follows));
    assert_eq!(rig.tokens(plain), expected(&request(3, 10, 12)));
}

#[test]
fn prefill_alternates_between_clients_and_is_first_come_within_one() {
    let mut rig = Rig::new(64, 8);
    let a1 = rig.submit(request(1, 2000, 1));
    let a2 = rig.submit(request(1, 200, 1));
    let b = rig.submit(request(2, 400, 1));
    let firsts: Vec<RequestId> = (0..4).map(|_| rig.step().seqs[0].id).collect();
    assert_eq!(firsts[..2], [a1, b]);
    rig.run();
    let order: Vec<RequestId> = rig.events.iter().filter_map(|e| if let Event::Finished(id, _) = e { Some(*id) } else { None }).collect();
    assert_eq!(order, [b, a1, a2]);
}

#[test]
fn a_higher_class_pauses_a_lower_one_at_the_next_step() {
    let mut rig = Rig::new(64, 8);
    let low = rig.submit(Request { priority: Priority::Background, ..request(1, 600, 5) });
    rig.step();
    let high = rig.submit(Request { priority: Priority::Control, ..request(2, 10, 3) });
    for _ in 0..3 {
        let plan = rig.step();
        assert_eq!(plan.seqs.iter().map(|s| s.id).collect::<Vec<_>>(), [high]);
    }
    assert_eq!(rig.finished(high).len(), 1);
    assert_eq!(rig.step().seqs[0].id, low);
    rig.run();
    assert_eq!(rig.tokens(low).len(), 5);
}

#[test]
fn a_higher_class_that_waits_for_pages_does_not_stop_those_who_hold_them() {
    let mut rig = Rig::new(4, 8);
    let low = rig.submit(Request { priority: Priority::Background, ..request(1, 300, 100) });
    rig.step();
    let high = rig.submit(Request { priority: Priority::Control, ..request(2, 100, 50) });
    rig.run();
    assert_eq!(rig.tokens(low).len(), 100);
    assert_eq!(rig.tokens(high).len(), 50);
}

#[test]
fn background_load_leaves_a_slot_and_pages_to_a_control_request() {
    // 64 pages, of which 4 are kept; two slots a class.
    let mut rig = Rig::new(64, 2);
    let background = |tokens| Request { priority: Priority::Background, ..request(1, tokens, 28) };
    let large = rig.submit(background(7_000 - 28));
    let waits: Vec<RequestId> = (0..3).map(|_| rig.submit(background(900))).collect();
    rig.step();
    assert_eq!((rig.scheduler.running(), rig.scheduler.pages().free()), (1, 9), "the next one would need 8 of these 9, and 4 are kept");
    let control = rig.submit(Request { priority: Priority::Control, ..request(2, 1000, 112) });
    assert_eq!(rig.step().seqs.iter().map(|s| s.id).collect::<Vec<_>>(), [control], "at the very next step");
    while rig.finished(control).is_empty() {
        rig.step();
    }
    assert!(rig.finished(large).is_empty() && waits.iter().all(|id| rig.finished(*id).is_empty()));
    rig.run();
}

#[test]
fn control_requests_have_slots_of_their_own() {
    let mut rig = Rig::new(64, 2);
    for _ in 0..4 {
        rig.submit(Request { priority: Priority::Background, ..request(1, 100, 28) });
    }
    rig.step();
    assert_eq!(rig.scheduler.running(), 2);
    let control = rig.submit(Request { priority: Priority::Control, ..request(2, 10, 3) });
    assert_eq!(rig.step().seqs[0].id, control);
    rig.run();
}

#[test]
fn a_request_as_large_as_the_cache_runs_alone() {
    let mut rig = Rig::new(16, 8);
    rig.submit(request(1, 100, 28));
    rig.step();
    let whole = rig.submit(request(2, 2000, 48));
    rig.step();
    assert_eq!(rig.scheduler.running(), 1, "it waits for the last page");
    rig.run();
    assert_eq!(rig.tokens(whole).len(), 48);
}

#[test]
fn a_large_request_is_not_overtaken_for_ever() {
    let mut rig = Rig::new(10, 8);
    rig.submit(request(1, 200, 50));
    rig.step();
    let large = rig.submit(request(2, 1000, 200));
    for i in 0..20 {
        rig.submit(request(3 + i, 50, 20));
    }
    let mut steps = 0;
    while rig.finished(large).is_empty() {
        rig.step();
        steps += 1;
    }
    let small_before = rig.events.iter().filter(|e| matches!(e, Event::Finished(..))).count();
    assert_eq!(small_before, 2, "after {steps} steps");
    rig.run();
}

#[test]
fn how_far_each_request_is_can_be_told_between_two_steps() {
    let mut rig = Rig::new(64, 1);
    let mut first = request(1, 300, 3);
    first.ignore_eos = true;
    let (first, second) = (rig.submit(first), rig.submit(request(2, 20, 7)));
    let stages = |rig: &Rig| -> Vec<(RequestId, Stage, u32, u32)> {
        rig.scheduler.progress(rig.now).iter().map(|p| (p.id, p.stage, p.prefilled, p.generated)).collect()
    };
    assert_eq!(stages(&rig), [(first, Stage::Waiting, 0, 0), (second, Stage::Waiting, 0, 0)]);
    let mut seen = Vec::new();
    while !rig.scheduler.is_idle() {
        rig.step();
        seen.extend(stages(&rig).into_iter().filter(|p| p.0 == first));
        if let Some(waits) = rig.scheduler.progress(rig.now).iter().find(|p| p.id == second && p.stage == Stage::Waiting) {
            assert_eq!((waits.client, waits.prompt_tokens, waits.max_tokens, waits.pages), (ClientId(2), 20, 7, 0));
        }
    }
    assert!(seen.is_sorted_by_key(|p| (p.2, p.3)), "{seen:?}");
    assert!(seen.contains(&(first, Stage::Decode, 300, 1)), "{seen:?}");
    assert_eq!(stages(&rig), [], "who has ended is not told of");
}

#[test]
fn what_can_never_fit_ends_with_the_numbers() {
    let mut rig = Rig::new(4, 8);
    let id = rig.submit(request(1, 500, 100));
    let end = &rig.finished(id)[0];
    assert_eq!(end.reason, FinishReason::Error);
    assert_eq!(end.detail.as_deref(), Some("5 pages needed, 4 there"));
}

#[test]
fn a_request_keeps_the_tables_it_began_with() {
    let mut rig = Rig::new(64, 8);
    let (first, second) = (table(2.0), table(3.0));
    rig.scheduler.set_tables(TableSet { prefill: Some(first.clone()), decode: None });
    let old = rig.submit(request(1, 300, 4));
    rig.step();
    rig.scheduler.set_tables(TableSet { prefill: Some(second.clone()), decode: Some(second.clone()) });
    let new = rig.submit(request(2, 40, 4));
    rig.run();
    let (old, new) = (rig.finished(old).remove(0).usage, rig.finished(new).remove(0).usage);
    assert!(Arc::ptr_eq(old.prefill.table.as_ref().unwrap(), &first));
    assert_eq!((old.prefill.row, old.prefill.counters.votes), (Some((16, 2.0)), 300));
    assert_eq!((old.decode.table, old.decode.counters.votes), (None, 0));
    assert!(Arc::ptr_eq(new.prefill.table.as_ref().unwrap(), &second));
    assert_eq!((new.decode.counters.votes, new.decode.row), (3, None));
    assert_eq!(rig.scheduler.slots.users(), 0);
}

#[test]
fn equal_tables_share_a_slot_and_a_free_slot_is_used_again() {
    let mut rig = Rig::new(64, 8);
    rig.scheduler.set_tables(TableSet { prefill: Some(table(2.0)), decode: Some(table(2.0)) });
    rig.submit(request(1, 40, 2));
    assert_eq!(rig.step().uploads.len(), 1);
    rig.run();
    rig.scheduler.set_tables(TableSet { prefill: Some(table(3.0)), decode: None });
    rig.submit(request(1, 40, 2));
    let plan = rig.step();
    assert_eq!((plan.uploads.len(), plan.uploads[0].0), (1, TableSlot(0)));
    rig.run();
}

#[test]
fn tables_of_a_failed_step_are_put_in_place_again() {
    let mut rig = Rig::new(64, 8);
    rig.scheduler.set_tables(TableSet { prefill: Some(table(2.0)), decode: None });
    rig.submit(request(1, 40, 2));
    let plan = rig.scheduler.plan(rig.now, None, &mut rig.events);
    rig.scheduler.fail(&plan, "no room", rig.now, &mut rig.events);
    rig.submit(request(1, 40, 2));
    assert_eq!(rig.step().uploads.len(), 1);
    rig.run();
}

#[test]
fn the_vote_length_is_the_whole_prompt_in_every_chunk_and_the_keys_there_are_in_decode() {
    let mut rig = Rig::new(64, 8);
    rig.submit(request(1, 300, 3));
    let mut seen = Vec::new();
    while !rig.scheduler.is_idle() {
        let mut plan = rig.scheduler.plan(rig.now, None, &mut rig.events);
        let steps = rig.scheduler.steps(&plan);
        seen.extend(steps.iter().map(|s| (s.start, s.tokens.len(), s.final_len)));
        let mut report = rig.model.step(&steps);
        rig.scheduler.begin(&plan);
        rig.scheduler.complete(&mut plan, &mut report, Duration::from_millis(500), rig.now, &mut rig.events);
    }
    assert_eq!(seen, [(0, 128, 300), (128, 128, 300), (256, 44, 300), (300, 1, 301), (301, 1, 302)]);
}

#[test]
fn logits_that_are_no_numbers_end_their_request_alone() {
    let mut rig = Rig::new(64, 8);
    let (bad, good) = (rig.submit(request(1, 20, 5)), rig.submit(request(2, 20, 5)));
    let mut plan = rig.scheduler.plan(rig.now, None, &mut rig.events);
    let mut report = rig.model.step(&rig.scheduler.steps(&plan));
    rig.scheduler.begin(&plan);
    let place = plan.seqs.iter().position(|s| s.id == bad).unwrap();
    report.sampled[place] = Some(Sampled { token: u32::MAX, ..Sampled::default() });
    rig.scheduler.complete(&mut plan, &mut report, Duration::from_millis(1), rig.now, &mut rig.events);
    rig.run();
    assert_eq!(rig.finished(bad)[0].reason, FinishReason::Error);
    assert_eq!(rig.finished(good)[0].reason, FinishReason::Length);
}

#[test]
fn a_step_ahead_takes_the_token_that_nobody_has_seen_and_what_it_overshoots_is_discarded() {
    // A prompt whose answer has an end-of-sequence token in the middle, and not at the end.
    let ends = |prompt: usize| {
        let r = Request { ignore_eos: false, ..request(1, prompt, 2000) };
        (3..1999).contains(&expected(&r).len()).then_some(r)
    };
    let ends = (1..400).find_map(ends).expect("one prompt in a few ends");
    let length = expected(&ends).len();
    let mut rig = Rig::with_depth(64, 8, 2);
    rig.scheduler.set_tables(TableSet { prefill: None, decode: Some(table(9.0)) });
    let id = rig.submit(ends.clone());
    let mut begun = 0;
    while !rig.scheduler.is_idle() || !rig.under_way.is_empty() {
        begun += rig.step().tokens(Phase::Decode);
        if let Some(end) = rig.finished(id).first() {
            assert_eq!(end.usage.decode.counters.votes as usize, length - 1, "votes of the discarded row are not counted");
        }
    }
    assert_eq!(rig.tokens(id), expected(&ends));
    assert_eq!(begun, length, "one row beyond the {} that were wanted", length - 1);
    // Without an end-of-sequence token the last token is known beforehand.
    let exact = rig.submit(request(1, 20, 9));
    let mut begun = 0;
    while !rig.scheduler.is_idle() || !rig.under_way.is_empty() {
        begun += rig.step().tokens(Phase::Decode);
    }
    assert_eq!((rig.tokens(exact).len(), begun), (9, 8));
}

#[test]
fn of_two_steps_under_way_one_has_prompt_tokens() {
    let mut rig = Rig::with_depth(64, 8, 2);
    rig.submit(request(1, 300, 2));
    let first = rig.step();
    assert!(first.tokens(Phase::Prefill) > 0);
    assert!(rig.step().seqs.is_empty(), "the next chunk waits for this one");
    let next = rig.step();
    assert_eq!((next.tokens(Phase::Prefill), rig.under_way.len()), (172, 1));
    assert_eq!(rig.step().tokens(Phase::Decode), 1, "a decode step does not wait");
    assert_eq!(rig.under_way.len(), 1);
    rig.run();
}

#[test]
fn who_is_cancelled_with_a_step_under_way_gives_its_pages_to_the_next() {
    let mut rig = Rig::with_depth(4, 8, 2);
    let gone = rig.submit(request(1, 300, 200));
    while rig.tokens(gone).len() < 5 {
        rig.step();
    }
    assert!(!rig.under_way.is_empty());
    let before = rig.tokens(gone).len();
    rig.scheduler.cancel(gone, FinishReason::Cancelled, rig.now, &mut rig.events);
    let next = rig.submit(request(2, 400, 100));
    rig.run();
    assert_eq!(rig.tokens(gone).len(), before, "nothing after the terminal event");
    assert_eq!(rig.tokens(next), expected(&request(2, 400, 100)));
    assert_eq!(rig.finished(gone)[0].usage.completion_tokens as usize, before);
}
