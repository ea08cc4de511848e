//! On a CUDA device: a step ahead gives the answers of one step after the other, and forms of one computation agree.

use crate::answers::models;
use crate::invariance::{assert_skips, decode, prefill, prompt};
use crate::rig::{Rig, argmax, checkpoint, cuda};
use skip_engine::handle::{ClientId, FinishReason, Priority, Request};
use skip_engine::{Engine, EngineOptions};
use skip_kernels::cuda::{Activations, CudaBackend, CudaOptions};
use skip_kernels::sampling::SamplingParams;

/// The engine starts each decode step before the one before it is finished; the rig does not.
#[tokio::test]
#[ignore = "needs a CUDA device and target/cubins"]
async fn cuda_a_step_ahead_gives_the_same_tokens() {
    for (model, golden) in models() {
        let loaded = checkpoint(model);
        let mut rig = Rig::new(&loaded, cuda());
        let engine = Engine::start(EngineOptions { chunk: Some(4096), ..EngineOptions::default() }, model, loaded, || Ok(cuda()));
        engine.ready().await.unwrap();
        let mut recorded = None;
        for (name, case) in &golden.cases {
            let (_, logits) = prefill(&mut rig, 0, &case.prompt_ids, case.prompt_ids.len(), None);
            let (expected, _) = decode(&mut rig, 0, &case.prompt_ids, argmax(&logits), 64, None);
            let request = Request {
                prompt: case.prompt_ids.clone(),
                max_tokens: 64,
                sampling: SamplingParams::default(),
                ignore_eos: true,
                priority: Priority::Interactive,
                deadline: None,
                client: ClientId(0),
                tables: None,
                steering: Default::default(),
                reuse: false,
                measure: false,
            };
            let mut generation = engine.submit(request).unwrap();
            let mut ids = Vec::new();
            while let Some(event) = generation.tokens.recv().await {
                ids.push(event.sampled.token);
            }
            assert_eq!(generation.finished.await.unwrap().reason, FinishReason::Length);
            assert_eq!(ids, expected, "{model} {name}");
            recorded.get_or_insert_with(|| engine.status());
        }
        // Steps are recorded in the first case.
        let (before, now) = (recorded.unwrap(), engine.status());
        let steps = now.decode_steps - before.decode_steps;
        let host = (now.decode_host_seconds - before.decode_host_seconds) / steps as f64;
        println!("{model}: {steps} decode steps, {:.1} us of the host each; {:?}", host * 1e6, now.loaded);
    }
}

#[test]
#[ignore = "needs a CUDA device and target/cubins"]
fn cuda_one_launch_and_two_vote_the_same() {
    let checkpoint = checkpoint("smollm2");
    let tokens = prompt(&checkpoint, 0, 2100);
    let run = |gather_from| {
        let backend = CudaBackend::new(CudaOptions { gather_from, ..CudaOptions::new(Activations::Bf16) }).unwrap();
        let mut rig = Rig::new(&checkpoint, backend);
        let table = Some(rig.set_table(0, &[(512, 20.0)]));
        let (_, logits) = prefill(&mut rig, 0, &tokens, tokens.len(), None);
        let (answer, votes) = decode(&mut rig, 0, &tokens, argmax(&logits), 2, table);
        (answer, votes, rig.logits().remove(0))
    };
    let ((one_answer, one, one_logits), (two_answer, two, two_logits)) = (run(u64::MAX), run(0));
    assert_skips(&one);
    let bits = one_logits.iter().zip(&two_logits).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let off = one_logits.iter().zip(&two_logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("one launch {one:?}, two {two:?}; {bits} of {} logits differ, by at most {off}", one_logits.len());
    assert_eq!((one, &one_answer[..1]), (two, &two_answer[..1]));
    assert!(off < 0.1);
}

/// A row for each length there is does what one row does.
#[test]
#[ignore = "needs a CUDA device and target/cubins"]
fn cuda_a_table_too_long_for_a_slot_votes_row_by_row() {
    let checkpoint = checkpoint("smollm2");
    let mut rig = Rig::new(&checkpoint, cuda());
    let long: Vec<(u32, f32)> = (0..200).map(|i| (512 + 10 * i, 20.0)).collect();
    let tokens = prompt(&checkpoint, 0, 2100);
    let mut run = |slot, rows: &[(u32, f32)]| {
        let table = Some(rig.set_table(slot, rows));
        let (prefill_votes, logits) = prefill(&mut rig, 0, &tokens, tokens.len(), table);
        (prefill_votes, decode(&mut rig, 0, &tokens, argmax(&logits), 8, table))
    };
    let (short, long) = (run(0, &[(512, 20.0)]), run(1, &long));
    assert_skips(&short.0);
    assert_skips(&short.1.1);
    assert_eq!(short, long);
}
