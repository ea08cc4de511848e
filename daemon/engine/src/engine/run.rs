//! The loop's thread: loads, then steps until it is told to stop, then ends whatever is left with a terminal event.
//!
//! Where the model allows it, the next step is started while one is under way, with tokens that only the device knows: neither waits for the other.

use super::control::Shared;
use super::options::{CachePlan, EngineOptions};
use super::routes::Routes;
use super::{EngineError, EngineState, LoadError, StepModel};
use crate::handle::{FinishReason, Message, Priority, RequestId};
use crate::scheduler::{Arrival, Event, Plan, Scheduler, SchedulerOptions};
use skip_kernels::backend::{SeqStep, StepReport};
use skip_kernels::{KernelError, PAGE, Phase};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// The thread's body. Whatever happens, the state ends as stopped or failed and every request has its terminal event.
pub(super) fn run<M: StepModel, L>(shared: &Arc<Shared>, messages: mpsc::UnboundedReceiver<Message>, options: &EngineOptions, load: L)
where
    L: FnOnce(&EngineOptions, &CachePlan, &mut dyn FnMut(f32)) -> Result<M, LoadError>,
{
    let mut engine = Loop::new(shared, messages, options);
    let end = catch_unwind(AssertUnwindSafe(|| {
        let mut model = load(options, &shared.cache, &mut |progress| shared.set_state(EngineState::Loading { progress }))?;
        engine.ready(&model);
        engine.run(&mut model)
    }));
    let (state, reason, detail) = match end {
        Ok(Ok(())) => (EngineState::Stopped, FinishReason::Shutdown, None),
        Ok(Err(error)) => failed(error),
        Err(panic) => failed(EngineError::Panic(panic_message(&*panic))),
    };
    engine.close(reason, detail.as_deref());
    shared.set_state(state);
}

fn failed(error: EngineError) -> (EngineState, FinishReason, Option<String>) {
    tracing::error!(%error, "the engine ends");
    let detail = Some(error.to_string());
    let reason = if matches!(error, EngineError::Load(_)) { FinishReason::Error } else { FinishReason::DeviceFault };
    (EngineState::Failed(Arc::new(error)), reason, detail)
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_string())
}

/// How long the loop rests at most before it looks at deadlines again.
const LONGEST_REST: Duration = Duration::from_millis(50);

struct Loop<'a> {
    shared: &'a Arc<Shared>,
    inbox: Inbox,
    scheduler: Scheduler,
    routes: Routes,
    events: Vec<Event>,
    /// Tokens taken by their readers' channels.
    delivered: u64,
    drains: Vec<oneshot::Sender<()>>,
    pause: Paused,
    /// Steps started and not finished, the oldest first.
    under_way: VecDeque<UnderWay>,
    clock: HostClock,
    waits: ControlWaits,
}

/// A step that was started.
struct UnderWay {
    plan: Plan,
    began: Instant,
}

/// Whether steps are started.
#[derive(Default)]
struct Paused {
    /// None is.
    on: bool,
    /// Who waits for the last one's end.
    waiting: Vec<oneshot::Sender<()>>,
    /// They are again, once the device was looked at.
    over: bool,
}

/// The time that the loop's thread takes for itself, from the end of a step to the end of the next.
struct HostClock {
    last: Instant,
    /// A step with prompt tokens was started since: its launches are not a decode step's.
    prefilled: bool,
}

impl<'a> Loop<'a> {
    fn new(shared: &'a Arc<Shared>, messages: mpsc::UnboundedReceiver<Message>, options: &EngineOptions) -> Self {
        let scheduler = Scheduler::new(SchedulerOptions {
            pages: shared.cache.pages,
            pinned: shared.cache.pinned,
            max_running: options.max_running,
            chunk: options.chunk.map(|_| options.max_chunk()),
            max_chunk: options.max_chunk(),
            step_budget: options.step_budget,
            eos: shared.info.eos.clone(),
            vocabulary: shared.info.vocabulary,
            tables: options.tables.clone(),
            background_duty: options.background_duty,
        });
        let inbox = Inbox { messages, early: VecDeque::new(), shutdown: false };
        let clock = HostClock { last: Instant::now(), prefilled: false };
        Self {
            shared,
            inbox,
            scheduler,
            routes: Routes::default(),
            events: Vec::new(),
            delivered: 0,
            drains: Vec::new(),
            pause: Paused::default(),
            under_way: VecDeque::new(),
            clock,
            waits: ControlWaits::default(),
        }
    }

    fn ready(&mut self, model: &impl StepModel) {
        self.shared.edits_logits.store(model.edits_logits(), Ordering::Release);
        self.shared.update_status(|status| {
            status.backend = Some(model.backend());
            status.loaded = model.loaded();
        });
        let draining = self.shared.draining.load(Ordering::Acquire);
        self.shared.set_state(if draining { EngineState::Draining } else { EngineState::Ready });
    }

    /// Steps until shutdown; only a device fault ends it otherwise.
    fn run(&mut self, model: &mut impl StepModel) -> Result<(), EngineError> {
        let depth = model.depth().max(1);
        let mut report = StepReport::default();
        loop {
            self.receive();
            self.shared.turn();
            if self.inbox.shutdown {
                return Ok(());
            }
            self.go_on(model)?;
            let started = !self.pause.on && self.under_way.len() < depth && self.start(model, &mut report)?;
            if !(started && self.under_way.len() < depth) {
                let still = self.under_way.is_empty() && !self.pause.on;
                match self.scheduler.rests_until() {
                    Some(until) if still => self.rest(until),
                    None if still && self.scheduler.is_held() => self.wait_held(),
                    _ => self.finish(model, &mut report)?,
                }
            }
        }
    }

    /// Ends a pause that is over, if the device outlived it.
    fn go_on(&mut self, model: &mut impl StepModel) -> Result<(), EngineError> {
        if std::mem::take(&mut self.pause.over) && std::mem::take(&mut self.pause.on) {
            model.check().map_err(|error| EngineError::Device(error.to_string()))?;
            tracing::info!("steps go on: the device is there");
        }
        Ok(())
    }

    /// Leaves the device to others until background work may go on, or something comes.
    fn rest(&mut self, until: Instant) {
        let began = Instant::now();
        // Requests that wait or rest have deadlines.
        self.inbox.wait_until(until.min(began + LONGEST_REST));
        self.clock.last = Instant::now();
        let rested = (self.clock.last - began).as_secs_f64();
        self.publish(|status| status.background_rest_seconds += rested);
    }

    /// Waits while nothing is there but what is held back.
    fn wait_held(&mut self) {
        // Requests that wait have deadlines.
        self.inbox.wait_until(Instant::now() + LONGEST_REST);
        self.clock.last = Instant::now();
    }

    /// Starts the next step; false where there is none, or not now.
    fn start(&mut self, model: &mut impl StepModel, report: &mut StepReport) -> Result<bool, EngineError> {
        let beside = self.under_way.back().map(|step| &step.plan);
        let plan = self.scheduler.plan(Instant::now(), beside, &mut self.events);
        self.dispatch();
        self.publish(|_| {});
        if plan.seqs.is_empty() {
            return Ok(false);
        }
        let began = Instant::now();
        match self.start_plan(model, &plan) {
            Ok(()) => {
                self.scheduler.begin(&plan);
                self.clock.prefilled |= plan.tokens(Phase::Prefill) > 0;
                let beside = self.under_way.iter().filter(|step| step.plan.class != Priority::Control).count();
                let waits: Vec<usize> = plan.seqs.iter().filter_map(|s| Some(self.waits.since(s.control_since()?) + beside)).collect();
                if !waits.is_empty() {
                    self.publish(|status| waits.iter().for_each(|&steps| status.count_control_wait(steps)));
                }
                self.under_way.push_back(UnderWay { plan, began });
                Ok(true)
            }
            // Nothing has moved; what was cancelled leaves, the rest is planned again.
            Err(KernelError::Aborted) => Ok(false),
            Err(KernelError::Device(fault)) => Err(EngineError::Device(fault)),
            Err(error) => {
                // What the step before gave its requests is theirs all the same.
                while !self.under_way.is_empty() {
                    self.finish(model, report)?;
                }
                self.fail(&plan, &error);
                Ok(false)
            }
        }
    }

    fn start_plan(&mut self, model: &mut impl StepModel, plan: &Plan) -> Result<(), KernelError> {
        for (slot, table) in &plan.uploads {
            model.set_table(*slot, &table.table)?;
        }
        let steps: Vec<SeqStep<'_>> = self.scheduler.steps(plan);
        let (inbox, shared) = (&mut self.inbox, self.shared);
        let mut interrupted = || {
            shared.turn();
            inbox.ends_step(plan)
        };
        model.start(&steps, &mut interrupted)
    }

    /// Waits for the oldest step under way, if there is one, and takes what it gave.
    fn finish(&mut self, model: &mut impl StepModel, report: &mut StepReport) -> Result<(), EngineError> {
        let Some(UnderWay { mut plan, began }) = self.under_way.pop_front() else { return Ok(()) };
        let outcome = model.finish(report);
        let now = Instant::now();
        let (since, prefilled) = (self.clock.last, self.clock.prefilled);
        self.clock = HostClock { last: now, prefilled: false };
        if plan.class != Priority::Control {
            self.waits.step_ended(now);
        }
        match outcome {
            Ok(()) => {
                // A step that began beside another has had the device since that one ended.
                let elapsed = now - began.max(since);
                let host = (!prefilled).then(|| (now - since).as_secs_f64() - report.device_seconds);
                self.scheduler.complete(&mut plan, report, elapsed, now, &mut self.events);
                self.count(&plan, report, elapsed, host);
                self.dispatch();
            }
            Err(KernelError::Device(fault)) => return Err(EngineError::Device(fault)),
            Err(error) => self.fail(&plan, &error),
        }
        Ok(())
    }

    fn fail(&mut self, plan: &Plan, error: &KernelError) {
        tracing::error!(%error, "a step failed; its requests end");
        self.scheduler.fail(plan, &error.to_string(), Instant::now(), &mut self.events);
        self.dispatch();
        self.publish(|_| {});
    }

    /// Applies all messages; sleeps for the first when there is nothing to do.
    fn receive(&mut self) {
        let idle = self.scheduler.is_idle();
        if (idle || self.pause.on) && self.under_way.is_empty() {
            if idle {
                self.drains.drain(..).for_each(acknowledge);
            }
            if self.pause.on {
                self.pause.waiting.drain(..).for_each(acknowledge);
            }
            match self.inbox.wait() {
                Some(message) => self.apply(message),
                // Every handle is gone: nobody can ask for anything any more.
                None => self.inbox.shutdown = true,
            }
            self.clock.last = Instant::now();
        }
        while let Some(message) = self.inbox.next() {
            self.apply(message);
        }
        self.dispatch();
    }

    fn apply(&mut self, message: Message) {
        match message {
            Message::Submit(submission) => {
                let submission = *submission;
                self.routes.open(submission.id, submission.tokens, submission.finished, submission.counts);
                let arrival = Arrival { request: submission.request, at: submission.at };
                self.scheduler.submit(submission.id, arrival, &mut self.events);
            }
            Message::Cancel(id) => self.scheduler.cancel(id, FinishReason::Cancelled, Instant::now(), &mut self.events),
            Message::SetTables(tables, ack) => {
                self.scheduler.set_tables(tables.clone());
                self.publish(|status| status.tables = tables);
                acknowledge(ack);
            }
            Message::Pin(new, answer) => tell(answer, self.scheduler.pin(new)),
            Message::Unpin(which, answer) => {
                let dropped = self.scheduler.unpin(which);
                self.publish(|_| {});
                tell(answer, dropped);
            }
            Message::Prefixes(answer) => tell(answer, self.scheduler.prefixes()),
            Message::HoldBackground(hold) => {
                self.scheduler.hold_background(hold && !self.shared.draining.load(Ordering::Acquire));
                self.publish(|_| {});
            }
            Message::Drain(ack) => {
                self.shared.draining.store(true, Ordering::Release);
                self.scheduler.hold_background(false);
                self.shared.set_state(EngineState::Draining);
                self.drains.push(ack);
            }
            // Who asked may be gone.
            Message::Look(reader) => drop(reader.send(self.scheduler.progress(Instant::now()))),
            Message::Pause(ack) => {
                (self.pause.on, self.pause.over) = (true, false);
                self.pause.waiting.push(ack);
            }
            Message::Resume => self.pause.over = true,
            Message::Nudge => {}
            Message::Shutdown => self.inbox.shutdown = true,
        }
    }

    /// Sends what happened to whom it concerns; who cannot take it is cancelled, which may make more events.
    fn dispatch(&mut self) {
        while !self.events.is_empty() {
            for event in std::mem::take(&mut self.events) {
                match event {
                    Event::LeftQueue(_) => {
                        self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
                    }
                    Event::Token(id, token) => match self.routes.token(id, token) {
                        Ok(count) => self.delivered += count,
                        Err(reason) => self.scheduler.cancel(id, reason, Instant::now(), &mut self.events),
                    },
                    Event::Finished(id, finished) => {
                        if let Some((reader, finished)) = self.routes.close(id, finished) {
                            self.publish(|status| status.count_finished(finished.reason));
                            // A reader that went away has no use for it.
                            let _ = reader.send(finished);
                        }
                    }
                }
            }
        }
    }

    /// Counts a step; `host` are the seconds the loop's thread took beside it, where they are a decode step's.
    fn count(&self, plan: &Plan, report: &StepReport, elapsed: Duration, host: Option<f64>) {
        let (prefill, decode) = (plan.tokens(Phase::Prefill), plan.tokens(Phase::Decode));
        let seconds = elapsed.as_secs_f64().max(1e-9);
        self.publish(|status| {
            status.steps += 1;
            status.prompt_tokens += prefill as u64;
            status.step_seconds += seconds;
            status.background_step_seconds += if plan.class == Priority::Background { seconds } else { 0.0 };
            status.prefill_step_seconds += if prefill > 0 { seconds } else { 0.0 };
            status.attention_seconds += report.attention_seconds;
            if prefill >= PAGE / 2 && decode == 0 {
                status.prefill_speed = prefill as f64 / seconds;
            }
            if decode > 0 && prefill == 0 {
                status.decode_speed = decode as f64 / seconds;
                if let Some(host) = host {
                    status.decode_steps += 1;
                    status.decode_host_seconds += host;
                }
            }
            for (seq, votes) in plan.seqs.iter().zip(&report.counters) {
                status.count_votes(seq.phase, seq.table.as_ref(), *votes);
            }
        });
    }

    fn publish(&self, change: impl FnOnce(&mut crate::stats::Status)) {
        let held = self.scheduler.held() as u32;
        self.shared.held.store(held, Ordering::Release);
        self.shared.update_status(|status| {
            (status.background_held, status.held) = (self.scheduler.holds_background(), held);
            status.running = self.scheduler.running() as u32;
            status.pages_used = self.scheduler.pages().used() as u32;
            status.pages_cached = self.scheduler.pages().cached() as u32;
            status.pages_pinned = self.scheduler.pinned() as u32;
            status.reuse = self.scheduler.reuse();
            status.generated_tokens = self.delivered;
            change(status);
        });
    }

    /// Ends every request, those still in the channel included; later ones see it closed.
    fn close(&mut self, reason: FinishReason, detail: Option<&str>) {
        self.inbox.messages.close();
        while let Some(message) = self.inbox.next() {
            self.apply(message);
        }
        self.scheduler.end_all(reason, detail, Instant::now(), &mut self.events);
        self.dispatch();
        self.publish(|_| {});
        self.drains.drain(..).chain(self.pause.waiting.drain(..)).for_each(acknowledge);
    }
}

/// Wakes a thread that is parked.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn acknowledge(ack: oneshot::Sender<()>) {
    tell(ack, ());
}

/// Who asked may be gone; then nobody needs the answer.
fn tell<T>(who: oneshot::Sender<T>, answer: T) {
    let _ = who.send(answer);
}

/// When the last steps of the lower classes ended.
#[derive(Default)]
struct ControlWaits(VecDeque<Instant>);

impl ControlWaits {
    fn step_ended(&mut self, now: Instant) {
        self.0.truncate(crate::stats::CONTROL_WAITS);
        self.0.push_front(now);
    }

    /// Steps that were under way at `arrival` or began after it.
    fn since(&self, arrival: Instant) -> usize {
        self.0.iter().filter(|end| **end > arrival).count()
    }
}

/// Messages, some of them seen early: during a step, to know whether it is still wanted.
struct Inbox {
    messages: mpsc::UnboundedReceiver<Message>,
    early: VecDeque<Message>,
    shutdown: bool,
}

impl Inbox {
    fn wait(&mut self) -> Option<Message> {
        self.early.pop_front().or_else(|| self.messages.blocking_recv())
    }

    /// Waits for a message, which is seen early, at most until then.
    fn wait_until(&mut self, until: Instant) {
        if !self.early.is_empty() {
            return;
        }
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            match self.messages.poll_recv(&mut Context::from_waker(&waker)) {
                Poll::Ready(Some(message)) => return self.early.push_back(message),
                // Nobody can ask for anything any more; what is there goes on.
                Poll::Ready(None) => return std::thread::sleep(until.saturating_duration_since(Instant::now())),
                Poll::Pending => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::park_timeout(left);
        }
    }

    fn next(&mut self) -> Option<Message> {
        self.early.pop_front().or_else(|| self.messages.try_recv().ok())
    }

    /// Whether the step in flight should be given up: the engine is told to stop, or everyone in the step has cancelled.
    fn ends_step(&mut self, plan: &Plan) -> bool {
        let before = self.early.len();
        while let Ok(message) = self.messages.try_recv() {
            self.shutdown |= matches!(message, Message::Shutdown);
            self.early.push_back(message);
        }
        if self.shutdown {
            return true;
        }
        let cancelled = |id: RequestId| self.early.iter().any(|m| matches!(m, Message::Cancel(of) if *of == id));
        self.early.len() > before && plan.seqs.iter().all(|seq| cancelled(seq.id))
    }
}
