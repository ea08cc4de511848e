//! Thousands of decode steps with requests that come, go and leave in the middle: each answer that ends is the answer of the request alone.
//!
//! Sums depend on what else is in a batch, so a greedy answer may take the other way where its two most likely tokens are nearly equal.
//! There, and only there, it may differ; what follows is compared with the request alone, continued from that token.

use crate::rig::{checkpoint, cpu, cuda, encode, repository};
use skip_engine::handle::{ClientId, FinishReason, NamedTable, Priority, Request, TableSet};
use skip_engine::{Engine, EngineHandle, EngineOptions};
use skip_kernels::cpu::Precision;
use skip_kernels::sampling::SamplingParams;
use skip_kernels::{Backend, ScaleTable};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How an endurance run is made.
#[derive(Clone, Copy)]
struct Load {
    /// Decode steps, at least.
    steps: u32,
    clients: u32,
    cases: usize,
    longest_prompt: usize,
    longest_answer: usize,
    /// The one request that is always there.
    anchor: usize,
    /// A lead of the most likely token below this may be turned.
    near: f32,
    /// Diverged answers that are compared to their end.
    continued: usize,
}

/// A request, and its answer alone.
struct Case {
    prompt: Vec<u32>,
    max_tokens: usize,
    tables: TableSet,
    alone: Vec<Drawn>,
}

#[derive(Clone, Copy, Debug)]
struct Drawn {
    token: u32,
    /// How far the second most likely token is behind, in nats; infinite where not asked for.
    lead: f32,
}

/// xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 33) as usize) % n.max(1)
    }
}

/// Asks; None if the request was left after `leave` tokens.
async fn ask(engine: &EngineHandle, case: &Case, prompt: Vec<u32>, leads: bool, leave: Option<usize>, kind: u32) -> Option<Vec<Drawn>> {
    let request = Request {
        max_tokens: (case.max_tokens + case.prompt.len() - prompt.len()) as u32,
        prompt,
        sampling: SamplingParams { logprobs: leads.then_some(2), ..SamplingParams::default() },
        ignore_eos: true,
        priority: [Priority::Interactive, Priority::Background, Priority::Control][kind as usize % 3],
        deadline: None,
        client: ClientId(kind),
        tables: Some(case.tables.clone()),
        steering: Default::default(),
        reuse: false,
        measure: false,
    };
    let mut generation = loop {
        match engine.submit(request.clone()) {
            Ok(generation) => break generation,
            Err(skip_engine::handle::SubmitError::Busy { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
    };
    let mut drawn = Vec::new();
    while let Some(event) = generation.tokens.recv().await {
        let top = &event.sampled.top;
        let lead = if top.len() > 1 { top[0].1 - top[1].1 } else { f32::INFINITY };
        drawn.push(Drawn { token: event.sampled.token, lead });
        if leave.is_some_and(|n| drawn.len() >= n) {
            return None;
        }
    }
    let finished = generation.finished.await.unwrap();
    assert_eq!((finished.reason, finished.usage.completion_tokens as usize), (FinishReason::Length, drawn.len()));
    generation.guard.disarm();
    Some(drawn)
}

fn table(s: f32) -> Option<Arc<NamedTable>> {
    let table = ScaleTable::new(vec![(256, s).into()], None).unwrap();
    Some(Arc::new(NamedTable { hash: table.digest().to_string(), table, tier: None, origin: "request".into() }))
}

async fn cases(engine: &EngineHandle, text: &[u32], load: &Load) -> Vec<Case> {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut cases = Vec::new();
    for i in 0..load.cases {
        let len = if i == 0 { 40 } else { 1 + random.below(load.longest_prompt) };
        let at = random.below(text.len() - len);
        let max_tokens = if i == 0 { load.anchor } else { 1 + random.below(load.longest_answer) };
        let tables = match i % 4 {
            1 => TableSet { prefill: table(300.0), decode: None },
            2 => TableSet { prefill: table(600.0), decode: table(40.0) },
            _ => TableSet::default(),
        };
        let mut case = Case { prompt: text[at..at + len].to_vec(), max_tokens, tables, alone: Vec::new() };
        case.alone = ask(engine, &case, case.prompt.clone(), true, None, 0).await.unwrap();
        cases.push(case);
    }
    cases
}

#[derive(Debug, Default)]
struct Verdict {
    answers: usize,
    tokens: usize,
    /// Answers that took the other way at a near-tie.
    turned: usize,
    /// The largest lead that was turned, in nats.
    widest: f32,
    /// Turned answers compared to their end.
    continued: usize,
    wrong: Vec<String>,
}

impl Verdict {
    /// Where the answer leaves `alone`, which begins at token `from` of it; the lead there must be small.
    fn leaves(&mut self, case: usize, answer: &[Drawn], alone: &[Drawn], from: usize, near: f32) -> Option<usize> {
        let at = answer[from..].iter().zip(alone).position(|(a, b)| a.token != b.token)?;
        let lead = alone[at].lead;
        self.widest = self.widest.max(lead);
        if lead >= near {
            self.wrong.push(format!("case {case}: token {} is {}, alone {:?}", from + at, answer[from + at].token, alone[at]));
        }
        Some(from + at)
    }
}

async fn compare(engine: &EngineHandle, cases: &[Case], answers: Vec<(usize, Vec<Drawn>)>, load: &Load) -> Verdict {
    let mut verdict = Verdict::default();
    // Many answers leave at the same token: what follows is computed once.
    let mut known: HashMap<(usize, Vec<u32>), Vec<Drawn>> = HashMap::new();
    for (index, answer) in answers {
        let case = &cases[index];
        verdict.answers += 1;
        verdict.tokens += answer.len();
        assert_eq!(answer.len(), case.alone.len());
        let mut left = verdict.leaves(index, &answer, &case.alone, 0, load.near);
        verdict.turned += usize::from(left.is_some());
        // With a table, what was decoded and is prefilled now is voted on otherwise: only dense answers can be continued.
        let dense = case.tables == TableSet::default();
        verdict.continued += usize::from(left.is_some() && dense);
        while let Some(at) = left.take().filter(|at| dense && at + 1 < answer.len()) {
            let so_far: Vec<u32> = answer[..=at].iter().map(|d| d.token).collect();
            let key = (index, so_far.clone());
            if !known.contains_key(&key) {
                if known.len() >= load.continued {
                    break;
                }
                let prompt = [&case.prompt[..], &so_far].concat();
                let rest = ask(engine, case, prompt, true, None, 0).await.unwrap();
                known.insert(key.clone(), rest);
            }
            left = verdict.leaves(index, &answer, &known[&key], at + 1, load.near);
        }
    }
    verdict
}

async fn endure<B: Backend>(backend: impl FnOnce() -> B + Send + 'static, model: &str, load: Load, memory: impl Fn() -> Option<u64>) {
    let checkpoint = checkpoint(model);
    let data = repository().join("tests/data/oracle");
    let text: String = ["reference.py", "make_cases.py"].map(|f| std::fs::read_to_string(data.join(f)).unwrap()).concat();
    let text = encode(&checkpoint, &text);
    let options = EngineOptions {
        cache: skip_engine::engine::CacheSize::Tokens(load.clients * 2048),
        max_running: 64,
        longest_chunk: 2048,
        step_budget: Duration::from_millis(50),
        ..EngineOptions::default()
    };
    let engine = Engine::start(options, model, checkpoint, move || Ok(backend()));
    engine.ready().await.unwrap();
    let cases = Arc::new(cases(&engine, &text, &load).await);

    let (answers, over, left) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let clients: Vec<_> = (0..load.clients)
        .map(|client| {
            let (engine, cases, answers, over, left) = (engine.clone(), cases.clone(), answers.clone(), over.clone(), left.clone());
            tokio::spawn(async move {
                let mut random = Random(0xD1B5_4A32_D192_ED03 ^ u64::from(client) << 7);
                while !over.load(Ordering::Relaxed) {
                    let index = 1 + random.below(cases.len() - 1);
                    let case = &cases[index];
                    let leave = (random.below(4) == 0).then(|| 1 + random.below(case.max_tokens));
                    match ask(&engine, case, case.prompt.clone(), random.below(4) == 0, leave, client).await {
                        Some(answer) => answers.lock().unwrap().push((index, answer)),
                        None => drop(left.fetch_add(1, Ordering::Relaxed)),
                    }
                }
            })
        })
        .collect();
    // It draws a token in every step that decodes and is not kept for a higher class.
    let (began, before) = (Instant::now(), engine.status().steps);
    let (mut anchored, mut early) = (0, None);
    while anchored < load.steps as usize {
        let answer = ask(&engine, &cases[0], cases[0].prompt.clone(), false, None, 2).await.unwrap();
        anchored += answer.len();
        answers.lock().unwrap().push((0, answer));
        if early.is_none() && anchored * 4 >= load.steps as usize {
            early = memory();
        }
    }
    let steps = engine.status().steps - before;
    over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    let late = memory();
    let elapsed = began.elapsed();
    let status = engine.status();
    assert_eq!((status.pages_used, status.running, status.queued), (0, 0, 0), "everything is given back");
    let answers = std::mem::take(&mut *answers.lock().unwrap());
    let verdict = compare(&engine, &cases, answers, &load).await;
    println!(
        "{model}: {anchored} decode steps with the anchor of {steps}, {} left, in {elapsed:.1?}; device memory {early:?} and {late:?} MiB; {} requests, {verdict:?}",
        left.load(Ordering::Relaxed),
        cases.len()
    );
    assert!(verdict.wrong.is_empty(), "{} answers differ where the lead was clear", verdict.wrong.len());
    assert!(left.load(Ordering::Relaxed) > 0 && verdict.answers > cases.len() / 2, "too little was tried");
    // A near-tie turns now and then, not in every answer; measured in tokens, since long answers meet more of them.
    assert!(verdict.turned * 20 < verdict.tokens, "{} answers of {} tokens turned", verdict.turned, verdict.tokens);
    if let (Some(early), Some(late)) = (early, late) {
        assert!(late <= early + 32, "device memory grew from {early} to {late} MiB");
    }
    engine.shutdown();
    engine.stopped().await;
}

/// MiB of the device that this process holds: others may use it too.
fn device_memory() -> Option<u64> {
    let query = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"];
    let output = std::process::Command::new("nvidia-smi").args(query).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let own = format!("{},", std::process::id());
    text.lines().find_map(|line| line.strip_prefix(&own)?.trim().parse().ok())
}

/// `SKIP_STEPS` changes the number of steps, `SKIP_LONG_MODEL` the checkpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs a CUDA device and target/cubins"]
async fn cuda_endurance() {
    let steps = std::env::var("SKIP_STEPS").ok().and_then(|s| s.parse().ok()).unwrap_or(10_000);
    let model = std::env::var("SKIP_LONG_MODEL").unwrap_or_else(|_| "smollm2".into());
    let load = Load { steps, clients: 40, cases: 64, longest_prompt: 1800, longest_answer: 120, anchor: 1000, near: 0.5, continued: 100 };
    endure(cuda, &model, load, device_memory).await;
}

/// The same, short, without a device.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_among_others_are_those_alone() {
    let load = Load { steps: 60, clients: 5, cases: 8, longest_prompt: 300, longest_answer: 12, anchor: 30, near: 0.05, continued: 20 };
    endure(|| cpu(Precision::Auto), "smollm2", load, || None).await;
}
