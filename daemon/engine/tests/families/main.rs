//! Every family and rotation on a tiny random decoder against what transformers computes: the prompt whole, in chunks, and tokens decoded behind it.
//!
//! `tests/data/families/make_families.py` made the cases, and saw that what is particular to each shows in its logits.
//! On a device: `-- --ignored --nocapture --test-threads 1 cuda`.

#![allow(clippy::unwrap_used)] // a test may panic wherever it stands

mod reuse;
#[path = "../golden/rig.rs"]
#[allow(dead_code)]
mod rig;
mod tiny;

use rig::{Part, Rig, cpu, cuda, repository};
use serde::Deserialize;
use skip_engine::checkpoint::Checkpoint;
use skip_kernels::cpu::Precision;
use skip_kernels::{Backend, PAGE};
use std::collections::BTreeMap;
use tiny::Case;

#[derive(Deserialize)]
struct Families {
    prompt: usize,
    tokens: Vec<u32>,
    cases: BTreeMap<String, Case>,
}

fn families() -> Families {
    let path = repository().join("tests/data/families/families.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Logits behind the prompt, fed in chunks, and behind each token after it.
fn logits<B: Backend>(rig: &mut Rig<B>, seq: usize, tokens: &[u32], prompt: usize, chunk: usize) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    let chunks = (0..prompt).step_by(chunk).map(|start| (start, (start + chunk).min(prompt)));
    for (start, end) in chunks.chain((prompt..tokens.len()).map(|at| (at, at + 1))) {
        let sample = end >= prompt;
        rig.step(&[Part { seq, prompt, tokens: &tokens[..end], start, table: None, sample }]);
        rows.extend(if sample { rig.logits() } else { Vec::new() });
    }
    rows
}

/// The largest difference of any logit must stay within `bound`.
fn compare<B: Backend>(backend: impl Fn() -> B, what: &str, bound: f32) {
    let families = families();
    let mut failed = Vec::new();
    for (name, case) in &families.cases {
        let folder = case.write(&case.config);
        let mut rig = Rig::new(&Checkpoint::open(folder.path()).unwrap(), backend());
        for (seq, chunk) in [families.prompt, PAGE].into_iter().enumerate() {
            let found = logits(&mut rig, seq, &families.tokens, families.prompt, chunk);
            assert_eq!(found.len(), case.logits.len(), "{name}");
            let pairs = found.iter().flatten().zip(case.logits.iter().flatten());
            let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, |a: f32, b| if b.is_nan() { f32::INFINITY } else { a.max(b) });
            println!("{name} on {what}, chunks of {chunk}: largest logit difference {worst:.5}");
            if worst > bound {
                failed.push((name, chunk, worst));
            }
        }
    }
    assert!(failed.is_empty(), "beyond {bound}: {failed:?}");
}

#[test]
fn what_transformers_saves_says_the_same() {
    for (name, case) in families().cases {
        let opened = [&case.config, &case.saved].map(|config| Checkpoint::open(case.write(config).path()).unwrap());
        assert_eq!(opened[0].architecture(), opened[1].architecture(), "{name}");
    }
}

#[test]
fn logits_are_those_of_transformers() {
    compare(|| cpu(Precision::Float32), "the CPU", 0.02);
}

/// All have three layers of the same heads: the qwen3 none with a window, the gemma3 one without, the mistral none without.
#[test]
fn only_layers_without_a_window_skip() {
    let families = families();
    let votes = ["qwen3", "gemma3", "mistral"].map(|name| {
        let folder = families.cases[name].write(&families.cases[name].config);
        let mut rig = Rig::new(&Checkpoint::open(folder.path()).unwrap(), cpu(Precision::Float32));
        let table = Some(rig.set_table(0, &[(1, 200.0)]));
        let (prompt, tokens) = (families.prompt, &families.tokens);
        let prefill = Part { seq: 0, prompt, tokens: &tokens[..prompt], start: 0, table, sample: true };
        let prefilled = rig.step(&[prefill]).counters[0];
        let decode = Part { seq: 0, prompt, tokens: &tokens[..prompt + 1], start: prompt, table, sample: true };
        [prefilled, rig.step(&[decode]).counters[0]]
    });
    for phase in 0..2 {
        let [full, some, none] = votes.map(|votes| votes[phase]);
        assert_eq!((full.votes, none.votes), (3 * some.votes, 0));
    }
    // Few enough rows vote together in decode for some to lose.
    let decoded = votes[1][1];
    assert!(0 < decoded.skipped && decoded.skipped < decoded.votes, "{decoded:?}");
}

#[test]
#[ignore = "needs a CUDA device and target/cubins"]
fn cuda_logits_are_those_of_transformers() {
    // bfloat16 activations: .117 was seen.
    compare(cuda, "CUDA", 0.25);
}
