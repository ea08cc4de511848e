//! Reused pages give the same bits as computed ones: every family, windows and rotations included.

use super::{cpu, cuda, families};
use skip_engine::checkpoint::Checkpoint;
use skip_engine::handle::{ClientId, Priority, Request};
use skip_engine::{Engine, EngineHandle, EngineOptions};
use skip_kernels::cpu::Precision;
use skip_kernels::sampling::{Sampled, SamplingParams};
use skip_kernels::{Backend, PAGE};
use std::sync::Arc;

/// Tokens with the likeliest ones beside each, and how many of the prompt were taken.
async fn ask(engine: &EngineHandle, prompt: &[u32], reuse: bool) -> (Vec<Sampled>, usize) {
    let request = Request {
        prompt: prompt.to_vec(),
        max_tokens: 4,
        sampling: SamplingParams { logprobs: Some(8), ..SamplingParams::default() },
        ignore_eos: true,
        priority: Priority::Interactive,
        deadline: None,
        client: ClientId(0),
        tables: None,
        steering: Default::default(),
        reuse,
        measure: false,
    };
    let mut generation = engine.submit(request).unwrap();
    let mut drawn = Vec::new();
    while let Some(event) = generation.tokens.recv().await {
        drawn.push(event.sampled);
    }
    let finished = generation.finished.await.unwrap();
    assert_eq!(drawn.len(), 4, "{:?}", finished.detail);
    (drawn, finished.usage.reused_tokens as usize)
}

/// Chunks of a page, so that what follows on a reused page is computed in the chunks that it would be computed in.
async fn compare<B: Backend>(backend: impl Fn() -> B + Clone + Send + 'static) {
    let families = families();
    let prompt = &families.tokens[..families.prompt];
    assert!(prompt.len() > 2 * PAGE, "{} tokens have no two pages and a rest", prompt.len());
    for (name, case) in &families.cases {
        let folder = case.write(&case.config);
        let checkpoint = Arc::new(Checkpoint::open(folder.path()).unwrap());
        let options = EngineOptions { chunk: Some(PAGE), ..EngineOptions::default() };
        let backend = backend.clone();
        let engine = Engine::start(options, name, checkpoint, move || Ok(backend()));
        engine.ready().await.unwrap();
        let (alone, none) = ask(&engine, prompt, false).await;
        // Another ending first: the beginning was not computed for this prompt.
        let mut other = prompt.to_vec();
        other[prompt.len() - 1] = prompt[0];
        let (_, first) = ask(&engine, &other, true).await;
        let (reusing, taken) = ask(&engine, prompt, true).await;
        assert_eq!((none, first, taken), (0, 0, (prompt.len() - 1) / PAGE * PAGE), "{name}");
        assert_eq!(reusing, alone, "{name}");
    }
}

#[tokio::test]
async fn reused_pages_give_the_same_bits() {
    compare(|| cpu(Precision::Float32)).await;
}

#[tokio::test]
#[ignore = "needs a CUDA device and target/cubins"]
async fn cuda_reused_pages_give_the_same_bits() {
    compare(cuda).await;
}
