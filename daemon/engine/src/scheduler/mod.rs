//! Decides what each step runs: admission, classes, fairness, chunks, and what became of every token. A pure state machine:
//! no threads, no clock, no channels; time is passed in, and what happened comes out as events.
//!
//! A step is planned, begun, and completed; where the model allows it, the next is planned and begun before this one is completed. A request
//! that ends meanwhile may have a row in a step under way: what that gives is discarded. Its pages and table slots are free at once, for
//! the device runs steps in the order they were begun: who gets them next writes them after that row did, and before reading them.

mod duty;
mod hold;
mod measuring;
mod pins;
mod reuse;
mod sequence;
mod slots;
mod speed;
mod steer;
mod turns;

pub use reuse::ReuseCounts;

use crate::cache::{Digest, PageAllocator, PageLease, chain, pages_for};
use crate::handle::{ClientId, FinishReason, Finished, NamedTable, Priority, Progress, Request, RequestId, TableSet, TokenEvent, Usage};
use duty::Duty;
use pins::Pins;
use reuse::Beginning;
use sequence::Sequence;
use skip_kernels::Phase;
use skip_kernels::attention::SkipCounters;
use skip_kernels::backend::{SeqStep, StepReport, TableSlot};
use slots::TableSlots;
use speed::Speed;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use turns::Turns;

/// One page in this many, rounded up, is left to control requests: background load cannot keep a short one out.
const CONTROL_SHARE: usize = 16;

/// What a scheduler is made with.
#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// Pages of the cache.
    pub pages: u32,
    /// Of them, how many pinned prefixes may take; no request needs more than the others.
    pub pinned: u32,
    /// Sequences of one class that may hold a slot at once (so no class takes another's slots); a step runs one class.
    pub max_running: usize,
    /// A fixed prefill chunk, a multiple of 128.
    pub chunk: Option<usize>,
    /// Longest prefill chunk, a multiple of 128.
    pub max_chunk: usize,
    /// How long a step may take.
    pub step_budget: Duration,
    /// End-of-sequence ids.
    pub eos: Vec<u32>,
    /// Token ids are below this.
    pub vocabulary: u32,
    /// The tables in force from the start.
    pub tables: TableSet,
    /// Percent of the time that steps of the background class take while no other class has any.
    pub background_duty: u32,
}

/// A request and when it came.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// What is asked.
    pub request: Request,
    /// When.
    pub at: Instant,
}

/// What happened to a request; a request's events are in order, and `Finished` is its last.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It left the queue: it holds a slot, or ended while waiting.
    LeftQueue(RequestId),
    /// It drew a token.
    Token(RequestId, TokenEvent),
    /// It ended.
    Finished(RequestId, Finished),
}

/// A sequence's part in a step.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Whose.
    pub id: RequestId,
    /// Prefill or decode.
    pub phase: Phase,
    /// The table, for counting.
    pub table: Option<Arc<NamedTable>>,
    /// Its place among the running ones when it was planned.
    index: usize,
    range: Range<usize>,
    sample: bool,
    measure: bool,
    /// It is a control request's first step: when that came.
    control_since: Option<Instant>,
}

impl Planned {
    /// New tokens of the step.
    pub fn tokens(&self) -> usize {
        self.range.len()
    }

    /// When the control request came whose first step this is.
    pub fn control_since(&self) -> Option<Instant> {
        self.control_since
    }
}

/// One step.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Tables to put in place first.
    pub uploads: Vec<(TableSlot, Arc<NamedTable>)>,
    /// Decodes, then prefill chunks; empty: nothing to do.
    pub seqs: Vec<Planned>,
    /// Of all its requests.
    pub class: Priority,
}

impl Plan {
    /// Its one sequence is measured.
    pub fn measures(&self) -> bool {
        self.seqs.iter().any(|s| s.measure)
    }

    /// Tokens of one phase.
    pub fn tokens(&self, phase: Phase) -> usize {
        self.seqs.iter().filter(|s| s.phase == phase).map(Planned::tokens).sum()
    }
}

/// A request that waits.
#[derive(Debug)]
struct Waiting {
    id: RequestId,
    arrival: Arrival,
    /// What its prompt's whole pages hold; empty where it wants no reuse.
    chain: Arc<[Digest]>,
}

/// Waiting and running requests.
#[derive(Debug)]
pub struct Scheduler {
    options: SchedulerOptions,
    pages: PageAllocator,
    pins: Pins,
    reuse: ReuseCounts,
    tables: TableSet,
    slots: TableSlots,
    uploads: Vec<(TableSlot, Arc<NamedTable>)>,
    /// In order of arrival.
    waiting: Vec<Waiting>,
    /// In order of admission.
    running: Vec<Sequence>,
    admission_turns: Turns,
    prefill_turns: Turns,
    /// The last step was a measured request's.
    measured_last: bool,
    speed: Speed,
    /// Of measured requests' steps.
    measured_speed: Speed,
    duty: Duty,
    /// The last plan was empty for the sake of background work's share.
    rests_until: Option<Instant>,
    /// Background requests are not admitted.
    holds_background: bool,
}

impl Scheduler {
    /// Nothing waits, nothing runs.
    pub fn new(options: SchedulerOptions) -> Self {
        Self {
            pages: PageAllocator::new(options.pages),
            pins: Pins::new(options.pinned as usize),
            reuse: ReuseCounts::default(),
            tables: options.tables.clone(),
            slots: TableSlots::default(),
            uploads: Vec::new(),
            waiting: Vec::new(),
            running: Vec::new(),
            admission_turns: Turns::default(),
            prefill_turns: Turns::default(),
            measured_last: false,
            speed: Speed::new(options.step_budget, options.chunk, options.max_chunk),
            measured_speed: Speed::new(options.step_budget, options.chunk, options.max_chunk),
            duty: Duty::new(options.background_duty),
            rests_until: None,
            holds_background: false,
            options,
        }
    }

    /// Nothing waits or runs.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Sequences that hold a slot.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How far every request is: the running ones in order of admission, then the waiting ones in order of arrival.
    pub fn progress(&self, now: Instant) -> Vec<Progress> {
        let running = self.running.iter().map(|s| s.progress(now));
        running.chain(self.waiting.iter().map(|w| sequence::waiting(w.id, &w.arrival, now))).collect()
    }

    /// The cache's pages.
    pub fn pages(&self) -> &PageAllocator {
        &self.pages
    }

    /// Requests admitted from now on start with these.
    pub fn set_tables(&mut self, tables: TableSet) {
        self.tables = tables;
    }

    /// Takes a request; one that could never run ends at once.
    pub fn submit(&mut self, id: RequestId, arrival: Arrival, events: &mut Vec<Event>) {
        let request = &arrival.request;
        let needed = pages_needed(request);
        let problem = if request.prompt.is_empty() || request.max_tokens == 0 {
            Some("an empty prompt or answer".to_string())
        } else if needed > self.pages.total() - self.options.pinned.min(self.options.pages) as usize {
            Some(format!("{needed} pages needed, {} there", self.pages.total() - self.options.pinned as usize))
        } else {
            None
        };
        if problem.is_some() {
            events.push(Event::LeftQueue(id));
            events.push(Event::Finished(id, unstarted(&arrival, FinishReason::Error, problem, arrival.at)));
            return;
        }
        self.admission_turns.come(request.client);
        let chain = if request.reuse && !request.measure { chain(&request.prompt).into() } else { Arc::default() };
        self.waiting.push(Waiting { id, arrival, chain });
    }

    /// Ends a request, if it is still here.
    pub fn cancel(&mut self, id: RequestId, reason: FinishReason, now: Instant, events: &mut Vec<Event>) {
        self.end_where(now, events, |other, _| (other == id).then_some((reason, None)));
    }

    /// Ends everything.
    pub fn end_all(&mut self, reason: FinishReason, detail: Option<&str>, now: Instant, events: &mut Vec<Event>) {
        self.end_where(now, events, |_, _| Some((reason, detail.map(str::to_owned))));
    }

    /// Ends the requests of a step that could not be run.
    pub fn fail(&mut self, plan: &Plan, detail: &str, now: Instant, events: &mut Vec<Event>) {
        // It may have been a table that could not be put in place: all of them once more, before any later one.
        self.uploads.splice(0..0, plan.uploads.iter().cloned());
        let of_step = |id| plan.seqs.iter().any(|s| s.id == id);
        self.end_where(now, events, |id, _| of_step(id).then(|| (FinishReason::Error, Some(detail.to_owned()))));
    }

    /// Retires what is past its deadline, admits what fits, and picks the next step, which may be empty. `beside` is the step that is under way,
    /// if there is one: of the two only one has prompt tokens, so that none waits for more than one long step.
    pub fn plan(&mut self, now: Instant, beside: Option<&Plan>, events: &mut Vec<Event>) -> Plan {
        self.end_where(now, events, |_, arrival| {
            arrival.request.deadline.is_some_and(|d| d <= now).then_some((FinishReason::Deadline, None))
        });
        self.admit(now, events);
        self.rests_until = None;
        let Some(class) = self.running.iter().map(|s| s.arrival.request.priority).max() else {
            return Plan::default();
        };
        if class == Priority::Background && self.background_rests(beside, now) {
            return Plan::default();
        }
        let mut plan = Plan { class, ..Plan::default() };
        if beside.is_some_and(Plan::measures) {
            return Plan::default();
        }
        if let Some(index) = self.measured_turn(class) {
            return self.measured_plan(index, beside);
        }
        let of_class = |s: &Sequence| s.arrival.request.priority == class && !s.arrival.request.measure;
        let (mut prefills, mut decodes) = (Vec::new(), 0);
        for (index, s) in self.running.iter().enumerate().filter(|(_, s)| of_class(s)) {
            match s.phase() {
                Phase::Prefill => prefills.push(index),
                Phase::Decode if !s.goes_on() => {}
                Phase::Decode => {
                    decodes += 1;
                    plan.seqs.push(self.planned(index, s.cached..s.tokens.len()));
                }
            }
        }
        if !prefills.is_empty() && beside.is_some_and(|step| step.tokens(Phase::Prefill) > 0) {
            return Plan::default();
        }
        prefills.sort_by_key(|&i| self.prefill_turns.rank(self.running[i].arrival.request.client));
        let mut left = self.speed.tokens(decodes);
        for index in prefills {
            self.take_known(index);
            let s = &self.running[index];
            let end = Speed::chunk_end(s.cached, left, s.prompt_len());
            let tokens = end - s.cached;
            // A chunk longer than what is left only as the step's first, so that every step gets on.
            if tokens > left && plan.seqs.len() > decodes {
                break;
            }
            plan.seqs.push(self.planned(index, s.cached..end));
            let client = s.arrival.request.client;
            self.prefill_turns.serve(client);
            left = left.saturating_sub(tokens);
            if left == 0 || self.options.chunk.is_some() {
                break;
            }
        }
        if !plan.seqs.is_empty() {
            plan.uploads = std::mem::take(&mut self.uploads);
        }
        plan
    }

    /// When there is a step again, if the last plan was empty for the sake of background work's share of the time.
    pub fn rests_until(&self) -> Option<Instant> {
        self.rests_until
    }

    /// Whether background work, which alone runs, has had its share. Where others wait for the pages it holds, it does not rest.
    fn background_rests(&mut self, beside: Option<&Plan>, now: Instant) -> bool {
        if !self.duty.limits() || self.waiting.iter().any(|w| w.arrival.request.priority != Priority::Background) {
            return false;
        }
        self.rests_until = self.duty.rests(now);
        // What a step under way takes is not known before it is done.
        self.rests_until.is_some() || beside.is_some_and(|step| step.class == Priority::Background)
    }

    /// The step is under way. Nothing may have changed since `plan`.
    pub fn begin(&mut self, plan: &Plan) {
        for (place, planned) in plan.seqs.iter().enumerate() {
            self.running[planned.index].begin(&planned.range, planned.sample.then_some(place));
        }
    }

    /// The plan in the backend's terms, until something changes.
    pub fn steps(&self, plan: &Plan) -> Vec<SeqStep<'_>> {
        let step = |p: &Planned| {
            let s = &self.running[p.index];
            SeqStep {
                tokens: &s.tokens[p.range.clone()],
                start: p.range.start,
                final_len: s.final_len(&p.range),
                phase: p.phase,
                table: s.slot(p.phase),
                block_table: &s.pages.pages()[..pages_for(p.range.end)],
                sample: p.sample.then_some(&s.sampling),
                measure: p.measure,
            }
        };
        plan.seqs.iter().map(step).collect()
    }

    /// Takes the results of the oldest step under way, `elapsed` of which were its own. What it gave for requests that have ended since leaves
    /// plan and report uncounted.
    pub fn complete(&mut self, plan: &mut Plan, report: &mut StepReport, elapsed: Duration, now: Instant, events: &mut Vec<Event>) {
        let speed = if plan.measures() { &mut self.measured_speed } else { &mut self.speed };
        speed.learn(plan.tokens(Phase::Prefill), plan.tokens(Phase::Decode), elapsed.as_secs_f64());
        if plan.class == Priority::Background {
            self.duty.spend(elapsed, now);
        }
        report.counters.resize(plan.seqs.len(), SkipCounters::default());
        report.sampled.resize(plan.seqs.len(), None);
        let lives: Vec<Option<usize>> = plan.seqs.iter().map(|planned| self.place_of(planned)).collect();
        retain(&mut plan.seqs, &lives);
        retain(&mut report.counters, &lives);
        retain(&mut report.sampled, &lives);
        let mut ended = Vec::new();
        for (i, (planned, place)) in plan.seqs.iter().zip(lives.into_iter().flatten()).enumerate() {
            self.computed(place, planned.range.end);
            let s = &mut self.running[place];
            s.count(planned.phase, report.counters[i]);
            if planned.measure {
                s.measured(planned.phase, &report.gaps);
            }
            if !planned.sample {
                continue;
            }
            match report.sampled[i].take() {
                Some(sampled) if sampled.token < self.options.vocabulary => {
                    let (is_eos, end) = s.take(sampled.token, &self.options.eos, now);
                    events.push(Event::Token(s.id, TokenEvent { sampled, is_eos }));
                    ended.extend(end.map(|(reason, detail)| (s.id, reason, detail)));
                }
                _ => {
                    ended.push((s.id, FinishReason::Error, Some("no token could be drawn: the logits are not numbers".to_string())));
                    self.distrust(place);
                }
            }
        }
        if !ended.is_empty() {
            self.end_where(now, events, |id, _| ended.iter().find(|e| e.0 == id).map(|e| (e.1, e.2.clone())));
        }
    }

    /// Where a planned sequence is now, if it is still there.
    fn place_of(&self, planned: &Planned) -> Option<usize> {
        let at = |i: usize| self.running.get(i).is_some_and(|s| s.id == planned.id);
        if at(planned.index) { Some(planned.index) } else { self.running.iter().position(|s| s.id == planned.id) }
    }

    fn planned(&self, index: usize, range: Range<usize>) -> Planned {
        let s = &self.running[index];
        let phase = s.phase();
        let sample = range.end == s.tokens.len();
        let request = &s.arrival.request;
        let control_since = (!s.began && request.priority == Priority::Control).then_some(s.arrival.at);
        Planned { id: s.id, phase, table: s.tables.phase(phase).cloned(), index, range, sample, measure: request.measure, control_since }
    }

    /// Admits, highest class first, as long as the next in turn fits; what does not fit waits, and what is behind it too, so that
    /// nothing large starves.
    fn admit(&mut self, now: Instant, events: &mut Vec<Event>) {
        while let Some(next) = self.next_waiting() {
            let Waiting { arrival: Arrival { request, .. }, chain, .. } = &self.waiting[next];
            let (priority, client) = (request.priority, request.client);
            let in_class = self.running.iter().filter(|s| s.arrival.request.priority == priority).count();
            if in_class >= self.options.max_running.max(1) {
                return;
            }
            let tables = match &request.tables {
                _ if request.measure => TableSet::default(),
                Some(own) => own.clone(),
                None => self.tables.clone(),
            };
            let beginning = Beginning::new(client, tables.prefill.as_ref(), chain, request.prompt.len());
            let known = beginning.known(0, &self.pages);
            let Some(pages) = self.lease(request, &known) else {
                return;
            };
            let Waiting { id, arrival, .. } = self.waiting.remove(next);
            let slots = Phase::ALL.map(|phase| tables.phase(phase).map(|table| self.place(table)));
            self.running.push(Sequence::new(id, arrival, pages, tables, slots, beginning, now));
            self.began_with(self.running.len() - 1, known.len());
            self.admission_turns.serve(client);
            self.prefill_turns.come(client);
            events.push(Event::LeftQueue(id));
        }
    }

    /// A request's pages, those `known` in front. Those set aside for control are not for others, but for one that runs alone: whatever fits the
    /// cache runs some time.
    fn lease(&self, request: &Request, known: &[u32]) -> Option<PageLease> {
        let needed = pages_needed(request) - known.len();
        let kept = if request.priority == Priority::Control { 0 } else { self.pages.total().div_ceil(CONTROL_SHARE) };
        let mut lease = self.pages.hold(known);
        if !self.running.is_empty() && self.pages.free() < needed + kept {
            return None;
        }
        lease.append(self.pages.reserve(needed)?);
        Some(lease)
    }

    /// Of the highest class that waits: the first of the client that was served longest ago.
    fn next_waiting(&self) -> Option<usize> {
        let request = |w: &Waiting| (w.arrival.request.priority, w.arrival.request.client);
        let class = self.waiting.iter().map(|w| request(w).0).filter(|&class| self.admits(class)).max()?;
        let of_class = self.waiting.iter().enumerate().filter(|(_, w)| request(w).0 == class);
        of_class.min_by_key(|(i, w)| (self.admission_turns.rank(request(w).1), *i)).map(|(i, _)| i)
    }

    fn place(&mut self, table: &Arc<NamedTable>) -> TableSlot {
        let (slot, new) = self.slots.acquire(table);
        if new {
            self.uploads.push((slot, table.clone()));
        }
        slot
    }

    /// Ends every request for which `why` has a reason; its slot, pages and tables are free afterwards.
    fn end_where(
        &mut self,
        now: Instant,
        events: &mut Vec<Event>,
        why: impl Fn(RequestId, &Arrival) -> Option<(FinishReason, Option<String>)>,
    ) {
        let before = self.waiting.len() + self.running.len();
        self.waiting.retain(|Waiting { id, arrival, .. }| match why(*id, arrival) {
            None => true,
            Some((reason, detail)) => {
                events.push(Event::LeftQueue(*id));
                events.push(Event::Finished(*id, unstarted(arrival, reason, detail, now)));
                false
            }
        });
        let slots = &mut self.slots;
        self.running.retain(|s| match why(s.id, &s.arrival) {
            None => true,
            Some((reason, detail)) => {
                s.slots.iter().flatten().for_each(|&slot| slots.release(slot));
                events.push(Event::Finished(s.id, s.finish(reason, detail, now)));
                false
            }
        });
        if self.waiting.len() + self.running.len() < before {
            let waiting = self.waiting.iter().map(|w| w.arrival.request.client);
            let present: Vec<ClientId> = waiting.chain(self.running.iter().map(|s| s.arrival.request.client)).collect();
            self.admission_turns.keep(|client| present.contains(&client));
            self.prefill_turns.keep(|client| present.contains(&client));
        }
    }
}

/// Keeps what belongs to a sequence that is still there.
fn retain<T>(items: &mut Vec<T>, lives: &[Option<usize>]) {
    let mut lives = lives.iter();
    items.retain(|_| lives.next().is_some_and(Option::is_some));
}

/// Pages for the prompt and all that may follow.
fn pages_needed(request: &Request) -> usize {
    pages_for(request.prompt.len().saturating_add(request.max_tokens as usize))
}

/// The terminal event of a request that never held a slot.
fn unstarted(arrival: &Arrival, reason: FinishReason, detail: Option<String>, now: Instant) -> Finished {
    let usage = Usage {
        prompt_tokens: arrival.request.prompt.len() as u32,
        queue_time: now.saturating_duration_since(arrival.at),
        ..Usage::default()
    };
    Finished { reason, detail, usage, measured: None }
}

#[cfg(test)]
mod tests;
