//! The loop over a fake model: what a request's two ends see, whatever happens to reader, engine or device.

mod duty;
mod hold;
mod pauses;
mod turns;

use super::*;
use crate::handle::{ClientId, FinishReason, Generation, NamedTable, Priority, Request, SubmitError, TableSet};
use crate::prefix::{NewPrefix, PrefixError, PrefixInfo};
use skip_kernels::attention::SkipCounters;
use skip_kernels::sampling::{Sampled, SamplingParams};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Draws the count of keys as the next token.
#[derive(Default)]
struct Fake {
    /// Each layer of ten takes this long.
    layer: Duration,
    /// Layers begun, seen from outside.
    layers: Arc<AtomicU64>,
    /// What the next step does instead.
    fault: Arc<std::sync::Mutex<Option<Fault>>>,
    /// Steps wait while it is set.
    hold: Arc<AtomicBool>,
    /// Layers after which the fault comes.
    fault_after: u64,
    /// The device is gone when it is looked at.
    lost: bool,
    /// Steps under way at most; 0 is 1.
    depth: usize,
    /// What the steps under way gave, or their fault.
    gave: std::collections::VecDeque<Result<StepReport, KernelError>>,
}

enum Fault {
    Device,
    Invalid,
    Panic,
    NotANumber,
}

impl StepModel for Fake {
    fn backend(&self) -> BackendInfo {
        BackendInfo { name: "fake", device: "none".into(), kernel_set: "none".into(), parallelism: 1 }
    }

    fn set_table(&mut self, _: TableSlot, _: &ScaleTable) -> Result<(), KernelError> {
        Ok(())
    }

    fn depth(&self) -> usize {
        self.depth.max(1)
    }

    fn check(&mut self) -> Result<(), KernelError> {
        if self.lost { Err(KernelError::Device("it slept".into())) } else { Ok(()) }
    }

    fn start(&mut self, seqs: &[SeqStep<'_>], interrupted: &mut dyn FnMut() -> bool) -> Result<(), KernelError> {
        for _ in 0..10 {
            loop {
                if interrupted() {
                    return Err(KernelError::Aborted);
                }
                if !self.hold.load(Ordering::Acquire) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            self.layers.fetch_add(1, Ordering::AcqRel);
            if !self.layer.is_zero() {
                std::thread::sleep(self.layer);
            }
        }
        let due = self.layers.load(Ordering::Acquire) >= self.fault_after;
        let fault = if due { self.fault.lock().unwrap().take() } else { None };
        let draw = |s: &SeqStep<'_>| s.sample.map(|_| Sampled { token: (s.start + s.tokens.len()) as u32, ..Sampled::default() });
        let votes = |_| SkipCounters { votes: 1, ..SkipCounters::default() };
        let mut report = StepReport { sampled: seqs.iter().map(draw).collect(), ..StepReport::default() };
        report.counters = seqs.iter().map(votes).collect();
        match fault {
            None => {}
            Some(Fault::Invalid) => return Err(KernelError::Invalid("shape".into())),
            Some(Fault::Panic) => panic!("defect"),
            Some(Fault::Device) => {
                self.gave.push_back(Err(KernelError::Device("gone".into())));
                return Ok(());
            }
            Some(Fault::NotANumber) => report.sampled.iter_mut().flatten().for_each(|s| s.token = u32::MAX),
        }
        self.gave.push_back(Ok(report));
        Ok(())
    }

    fn finish(&mut self, report: &mut StepReport) -> Result<(), KernelError> {
        *report = self.gave.pop_front().unwrap()?;
        Ok(())
    }
}

fn start_with(options: EngineOptions, fake: Fake) -> EngineHandle {
    let info = ModelInfo { name: "fake".into(), context: 2048, vocabulary: 5000, eos: vec![9], kv_bytes_per_token: 1 };
    let options = EngineOptions { cache: CacheSize::Tokens(4096), ..options };
    Engine::start_with(options, info, move |_, _, progress| {
        progress(0.5);
        Ok(fake)
    })
}

#[test]
fn a_load_tells_its_rate_and_beside_it_the_disk_s() {
    let loaded = |reads| Loaded { bytes: 3_000_000_000, seconds: 2.0, reads, ledger: None }.to_string();
    assert_eq!(loaded(None), "3000 MB of weights in 2.00 s, 1500 MB/s");
    let reads = Reads { bytes: 2_800_000_000, seconds: 1.4, direct: true };
    assert_eq!(loaded(Some(reads)), "3000 MB of weights in 2.00 s, 1500 MB/s; reads alone 2000 MB/s, past the page cache");
    assert!(loaded(Some(Reads { direct: false, ..reads })).contains("refuses direct reads"));
}

fn start(fake: Fake) -> EngineHandle {
    start_with(EngineOptions::default(), fake)
}

fn request(prompt: usize, max_tokens: u32) -> Request {
    Request {
        prompt: vec![1; prompt],
        max_tokens,
        sampling: SamplingParams::default(),
        ignore_eos: false,
        priority: Priority::Interactive,
        deadline: None,
        client: ClientId(1),
        tables: None,
        steering: Default::default(),
        reuse: false,
        measure: false,
    }
}

/// Reads to the end: token ids and the terminal event.
async fn collect(generation: Generation) -> (Vec<u32>, crate::handle::Finished) {
    let Generation { mut tokens, finished, guard, .. } = generation;
    let mut ids = Vec::new();
    while let Some(event) = tokens.recv().await {
        ids.push(event.sampled.token);
    }
    let finished = finished.await.unwrap();
    guard.disarm();
    (ids, finished)
}

#[tokio::test]
async fn tokens_arrive_in_order_and_then_one_terminal_event() {
    let engine = start(Fake::default());
    engine.ready().await.unwrap();
    let (ids, finished) = collect(engine.submit(request(20, 4)).unwrap()).await;
    assert_eq!(ids, [20, 21, 22, 23]);
    assert_eq!((finished.reason, finished.usage.completion_tokens), (FinishReason::Length, 4));
    let (ids, finished) = collect(engine.submit(request(7, 40)).unwrap()).await;
    assert_eq!(ids, [7, 8, 9]);
    assert_eq!((finished.reason, finished.usage.prompt_tokens), (FinishReason::Eos, 7));
    let status = engine.status();
    assert_eq!((status.prompt_tokens, status.generated_tokens, status.running, status.queued, status.pages_used), (27, 7, 0, 0, 0));
    assert_eq!((status.finished(FinishReason::Eos), status.finished(FinishReason::Length)), (1, 1));
}

#[tokio::test]
async fn with_a_step_ahead_answers_and_counts_are_the_same() {
    for depth in [1, 2] {
        let engine = start(Fake { depth, ..Fake::default() });
        engine.ready().await.unwrap();
        let (eos, length) = tokio::join!(collect(engine.submit(request(5, 40)).unwrap()), collect(engine.submit(request(20, 4)).unwrap()));
        assert_eq!((eos.0, length.0), (vec![5, 6, 7, 8, 9], vec![20, 21, 22, 23]));
        assert_eq!((eos.1.reason, eos.1.usage.decode.counters.votes), (FinishReason::Eos, 4));
        assert_eq!(length.1.usage.decode.counters.votes, 3);
        assert!(engine.drain().await);
        let status = engine.status();
        assert_eq!((status.prompt_tokens, status.generated_tokens, status.pages_used), (25, 9, 0));
        assert_eq!((status.decode.votes, status.prefill.votes), (7, 2), "a row beyond the end of a request is not counted");
    }
}

#[tokio::test]
async fn a_step_that_is_refused_ahead_does_not_take_the_token_before_it() {
    // Ten layers a step: the tenth is refused, while the ninth is under way.
    let fake = Fake { depth: 2, fault_after: 100, ..Fake::default() };
    *fake.fault.lock().unwrap() = Some(Fault::Invalid);
    let engine = start(fake);
    let generation = engine.submit(request(20, 50)).unwrap();
    let (ids, finished) = collect(generation).await;
    assert_eq!(finished.reason, FinishReason::Error, "{finished:?}");
    assert_eq!((finished.usage.completion_tokens, ids.len()), (9, 9));
    assert!(ids.iter().enumerate().all(|(i, &id)| id as usize == 20 + i));
}

#[tokio::test]
async fn what_cannot_run_is_refused_with_the_numbers() {
    let engine = start_with(EngineOptions { context: Some(1000), ..EngineOptions::default() }, Fake::default());
    let refused = |r: Request| engine.submit(r).unwrap_err();
    assert_eq!(refused(request(0, 1)), SubmitError::EmptyPrompt);
    assert_eq!(refused(request(1, 0)), SubmitError::NoTokens);
    assert_eq!(refused(request(990, 11)), SubmitError::ContextOverflow { prompt: 990, max_tokens: 11, context: 1000 });
    assert_eq!(refused(Request { prompt: vec![5000], ..request(1, 1) }), SubmitError::BadToken { id: 5000, vocabulary: 5000 });
}

#[test]
fn a_cache_smaller_than_the_context_is_named_as_the_reason() {
    let info = ModelInfo { name: "fake".into(), context: 2048, vocabulary: 50, eos: vec![9], kv_bytes_per_token: 1 };
    let options = EngineOptions { cache: CacheSize::Tokens(512), ..EngineOptions::default() };
    let engine = Engine::start_with(options, info, |_, _, _| Ok(Fake::default()));
    assert_eq!(engine.submit(request(600, 1)).unwrap_err(), SubmitError::CacheTooSmall { needed: 5, total: 4 });
}

#[tokio::test]
async fn a_full_queue_says_busy_at_once_and_frees_up() {
    let hold = Arc::new(AtomicBool::new(true));
    let options = EngineOptions { queue_limit: 2, max_running: 1, ..EngineOptions::default() };
    let engine = start_with(options, Fake { hold: hold.clone(), ..Fake::default() });
    engine.ready().await.unwrap();
    let first = engine.submit(request(5, 1)).unwrap();
    while engine.status().queued > 0 {
        tokio::task::yield_now().await;
    }
    let waiting = [engine.submit(request(5, 1)).unwrap(), engine.submit(request(5, 1)).unwrap()];
    assert_eq!(engine.submit(request(5, 1)).unwrap_err(), SubmitError::Busy { limit: 2 });
    let control = || Request { priority: Priority::Control, ..request(5, 1) };
    let kept = engine.submit(control()).unwrap();
    assert_eq!(engine.submit(control()).unwrap_err(), SubmitError::Busy { limit: 3 }, "the place kept for control is one");
    hold.store(false, Ordering::Release);
    for generation in waiting.into_iter().chain([first, kept]) {
        assert_eq!(collect(generation).await.1.reason, FinishReason::Length);
    }
    assert_eq!(collect(engine.submit(request(5, 1)).unwrap()).await.0, [5]);
}

#[tokio::test]
async fn a_dropped_guard_cancels_between_layers() {
    let fake = Fake { layer: Duration::from_millis(20), ..Fake::default() };
    let layers = fake.layers.clone();
    let engine = start(fake);
    let Generation { finished, guard, tokens: _tokens, .. } = engine.submit(request(5, 100)).unwrap();
    while layers.load(Ordering::Acquire) == 0 {
        tokio::task::yield_now().await;
    }
    drop(guard);
    assert_eq!(finished.await.unwrap().reason, FinishReason::Cancelled);
    assert!(layers.load(Ordering::Acquire) < 10, "the step ran to its end");
    assert_eq!(engine.status().pages_used, 0);
}

#[tokio::test]
async fn a_slow_reader_loses_its_request_and_is_told_so() {
    let engine = start_with(EngineOptions { token_buffer: 3, ..EngineOptions::default() }, Fake::default());
    let mut generation = engine.submit(request(20, 50)).unwrap();
    let finished = (&mut generation.finished).await.unwrap();
    assert_eq!((finished.reason, finished.usage.completion_tokens), (FinishReason::SlowReader, 3));
    assert_eq!(collect(engine.submit(request(20, 1)).unwrap()).await.1.reason, FinishReason::Length);
}

#[tokio::test]
async fn a_deadline_ends_a_request_that_runs_and_one_that_waits() {
    let options = EngineOptions { max_running: 1, ..EngineOptions::default() };
    let engine = start_with(options, Fake { layer: Duration::from_millis(2), ..Fake::default() });
    let late = || Request { deadline: Some(Instant::now() + Duration::from_millis(60)), ..request(20, 1000) };
    let (runs, waits) = (engine.submit(late()).unwrap(), engine.submit(late()).unwrap());
    let (ids, finished) = collect(runs).await;
    assert_eq!(finished.reason, FinishReason::Deadline);
    assert_eq!(finished.usage.completion_tokens as usize, ids.len());
    assert_eq!(collect(waits).await.1.reason, FinishReason::Deadline);
}

#[tokio::test]
async fn drain_refuses_new_requests_and_finishes_the_rest() {
    let engine = start(Fake { layer: Duration::from_millis(1), ..Fake::default() });
    let generation = engine.submit(request(20, 10)).unwrap();
    let (drained, (ids, _)) = tokio::join!(engine.drain(), collect(generation));
    assert!(drained);
    assert_eq!(ids.len(), 10);
    assert_eq!(engine.submit(request(1, 1)).unwrap_err(), SubmitError::Draining);
    assert_eq!(engine.state().name(), "draining");
}

#[tokio::test]
async fn shutdown_ends_running_and_waiting_requests_with_a_terminal_event() {
    let hold = Arc::new(AtomicBool::new(true));
    let options = EngineOptions { max_running: 1, ..EngineOptions::default() };
    let engine = start_with(options, Fake { hold, ..Fake::default() });
    let generations: Vec<Generation> = (0..3).map(|_| engine.submit(request(20, 10)).unwrap()).collect();
    engine.shutdown();
    for generation in generations {
        assert_eq!(collect(generation).await.1.reason, FinishReason::Shutdown);
    }
    engine.stopped().await;
    assert_eq!(engine.state().name(), "stopped");
    assert!(matches!(engine.submit(request(1, 1)), Err(SubmitError::Stopped(_))));
    assert!(!engine.set_tables(TableSet::default()).await);
}

#[tokio::test]
async fn tables_are_acknowledged_during_a_long_generation_and_shown_in_status() {
    let engine = start(Fake { layer: Duration::from_micros(100), ..Fake::default() });
    let generation = engine.submit(Request { ignore_eos: true, ..request(20, 200) }).unwrap();
    let rows = ScaleTable::new(vec![(1, 0.5).into()], None).unwrap();
    let table = Arc::new(NamedTable { table: rows, tier: Some("50%".into()), origin: "set-table".into(), hash: "h".into() });
    assert!(engine.set_tables(TableSet { prefill: Some(table), decode: None }).await);
    assert_eq!(engine.status().tables.prefill.unwrap().hash, "h");
    assert_eq!(collect(generation).await.0.len(), 200);
    let later = collect(engine.submit(request(20, 1)).unwrap()).await.1;
    assert_eq!(later.usage.prefill.row, Some((1, 0.5)));
}

async fn pin(engine: &EngineHandle, new: NewPrefix) -> Result<PrefixInfo, PrefixError> {
    engine.pin(new).await?.done().await
}

#[tokio::test]
async fn a_prefix_is_pinned_once_it_is_computed_and_not_where_that_fails() {
    let hold = Arc::new(AtomicBool::new(false));
    let fake = Fake { hold: hold.clone(), ..Fake::default() };
    let fault = fake.fault.clone();
    let engine = start(fake);
    engine.ready().await.unwrap();
    let of = |name: &str, from: u32, pages: u32| NewPrefix {
        name: name.into(),
        tokens: (from..from + pages * 128 + 5).collect(),
        owner: ClientId(7),
    };
    let new = |name: &str, pages: u32| of(name, 0, pages);
    let pinned = pin(&engine, new("a", 2)).await.unwrap();
    assert_eq!((pinned.tokens, pinned.pages, pinned.held, pinned.hits), (256, 2, 2, 0));
    assert_eq!((engine.status().pages_pinned, engine.status().pages_used), (2, 2));
    assert!(matches!(pin(&engine, new("b", 15)).await, Err(PrefixError::NoRoom { needed: 15, pinned: 2, limit: 16 })));
    // A fault of the device's kernels, and a caller that goes away.
    *fault.lock().unwrap() = Some(Fault::Invalid);
    assert!(matches!(pin(&engine, new("c", 1)).await, Err(PrefixError::NotComputed { reason: FinishReason::Error, .. })));
    hold.store(true, Ordering::Release);
    let gone = tokio::time::timeout(Duration::from_millis(50), pin(&engine, of("d", 1000, 3))).await;
    hold.store(false, Ordering::Release);
    assert!(gone.is_err());
    let names: Vec<String> = engine.prefixes().await.unwrap().into_iter().map(|prefix| prefix.name).collect();
    assert_eq!(names, ["a"]);
    let reusing = Request { prompt: (0..300).collect(), reuse: true, ..request(1, 1) };
    assert_eq!(collect(engine.submit(reusing).unwrap()).await.1.usage.reused_tokens, 256);
    assert_eq!(engine.unpin("a").await.unwrap().map(|prefix| prefix.hits), Some(1));
    assert_eq!((engine.unpin("a").await, engine.status().pages_used), (Ok(None), 0));
    engine.shutdown();
    engine.stopped().await;
    assert!(matches!(engine.prefixes().await, Err(PrefixError::Refused(SubmitError::Stopped(_)))));
}

#[tokio::test]
async fn a_pin_answers_for_itself_alone_and_is_no_answer_s_token() {
    let hold = Arc::new(AtomicBool::new(true));
    let engine = start(Fake { hold: hold.clone(), ..Fake::default() });
    engine.ready().await.unwrap();
    let of = |from: u32, pages: u32| NewPrefix { name: "p".into(), tokens: (from..from + pages * 128).collect(), owner: ClientId(7) };
    // Dropped while it is computed, and another has its name by then.
    let first = engine.pin(of(0, 2)).await.unwrap();
    let (unpinned, second, ()) = tokio::join!(engine.unpin("p"), engine.pin(of(1000, 3)), async { hold.store(false, Ordering::Release) });
    assert_eq!(unpinned.unwrap().map(|prefix| prefix.pages), Some(2));
    assert!(matches!(first.done().await, Err(PrefixError::NotComputed { reason: FinishReason::Cancelled, .. })));
    let second = second.unwrap().done().await.unwrap();
    assert_eq!((second.pages, second.held), (3, 3), "its own, and still there");
    assert_eq!(engine.prefixes().await.unwrap(), [second]);
    assert_eq!(engine.status().generated_tokens, 0);
    collect(engine.submit(request(20, 3)).unwrap()).await;
    assert_eq!(engine.status().generated_tokens, 3);
}

#[tokio::test]
async fn a_kernel_error_fails_the_steps_requests_and_the_engine_lives_on() {
    for fault in [Fault::Invalid, Fault::NotANumber] {
        let fake = Fake::default();
        *fake.fault.lock().unwrap() = Some(fault);
        let engine = start(fake);
        let (_, finished) = collect(engine.submit(request(20, 10)).unwrap()).await;
        assert_eq!(finished.reason, FinishReason::Error);
        assert!(finished.detail.is_some());
        assert_eq!(collect(engine.submit(request(20, 1)).unwrap()).await.1.reason, FinishReason::Length);
    }
}

#[tokio::test]
async fn a_device_fault_or_panic_tells_every_request_and_fails_the_engine() {
    for fault in [Fault::Device, Fault::Panic] {
        let (fake, hold) = (Fake::default(), Arc::new(AtomicBool::new(true)));
        let fake = Fake { hold: hold.clone(), ..fake };
        *fake.fault.lock().unwrap() = Some(fault);
        let engine = start_with(EngineOptions { max_running: 1, ..EngineOptions::default() }, fake);
        let generations: Vec<Generation> = (0..2).map(|_| engine.submit(request(20, 10)).unwrap()).collect();
        hold.store(false, Ordering::Release);
        for generation in generations {
            assert_eq!(collect(generation).await.1.reason, FinishReason::DeviceFault);
        }
        engine.stopped().await;
        assert_eq!(engine.state().name(), "failed");
    }
}

#[tokio::test]
async fn a_model_that_does_not_load_is_a_typed_error_and_queued_requests_are_told() {
    let info = ModelInfo { name: "fake".into(), context: 2048, vocabulary: 50, eos: vec![9], kv_bytes_per_token: 1 };
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let engine = Engine::start_with(EngineOptions::default(), info, move |_, _, _| {
        wait.recv().unwrap();
        Err::<Fake, _>(KernelError::OutOfMemory { what: "KV pages", bytes: 1 << 40 }.into())
    });
    let generation = engine.submit(request(5, 5)).unwrap();
    go.send(()).unwrap();
    assert_eq!(collect(generation).await.1.reason, FinishReason::Error);
    let error = engine.ready().await.unwrap_err();
    assert!(matches!(&*error, EngineError::Load(LoadError::Kernel(KernelError::OutOfMemory { .. }))));
}

#[tokio::test]
async fn an_idle_engine_takes_no_steps_and_a_step_costs_little() {
    let steps = 2000;
    let engine = start_with(EngineOptions { token_buffer: 2000, ..EngineOptions::default() }, Fake::default());
    let generation = engine.submit(Request { ignore_eos: true, ..request(20, steps) }).unwrap();
    let (ids, finished) = collect(generation).await;
    assert_eq!(ids.len() as u32, steps);
    let each = finished.usage.decode_time / steps;
    println!("{each:?} a step, all of it the loop's");
    assert!(each < Duration::from_micros(500), "{each:?}: ten times what it may be on a busy machine");
    let before = engine.status().steps;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(engine.status().steps, before);
}
