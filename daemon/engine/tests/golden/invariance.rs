//! A prompt in chunks is the prompt as a whole, and a batch is each sequence alone: votes exactly, logits to rounding.

use crate::rig::{Part, Rig, argmax, checkpoint, cpu, cuda, encode, repository};
use skip_kernels::attention::SkipCounters;
use skip_kernels::backend::TableSlot;
use skip_kernels::cpu::Precision;
use skip_kernels::{Backend, PAGE};

/// Real text: the oracle's own source, `tokens` of it from `from` on.
pub fn prompt(checkpoint: &skip_engine::checkpoint::Checkpoint, from: usize, tokens: usize) -> Vec<u32> {
    let data = repository().join("tests/data/oracle");
    let text: String = ["reference.py", "make_cases.py"].map(|f| std::fs::read_to_string(data.join(f)).unwrap()).concat();
    let ids = encode(checkpoint, &text);
    assert!(ids.len() >= from + tokens, "{} tokens of text", ids.len());
    ids[from..from + tokens].to_vec()
}

/// Prefills `tokens` in chunks; gives its votes and the last row's logits.
pub fn prefill<B: Backend>(
    rig: &mut Rig<B>,
    seq: usize,
    tokens: &[u32],
    chunk: usize,
    table: Option<TableSlot>,
) -> (SkipCounters, Vec<f32>) {
    let mut votes = SkipCounters::default();
    let mut start = 0;
    while start < tokens.len() {
        let end = (start + chunk).min(tokens.len());
        let part = Part { seq, prompt: tokens.len(), tokens: &tokens[..end], start, table, sample: end == tokens.len() };
        votes += rig.step(&[part]).counters[0];
        start = end;
    }
    (votes, rig.logits().remove(0))
}

/// Decodes `count` tokens greedily; gives them and their votes.
pub fn decode<B: Backend>(
    rig: &mut Rig<B>,
    seq: usize,
    prompt: &[u32],
    first: u32,
    count: usize,
    table: Option<TableSlot>,
) -> (Vec<u32>, SkipCounters) {
    let mut tokens = prompt.to_vec();
    tokens.push(first);
    let mut votes = SkipCounters::default();
    for _ in 1..count {
        let part = Part { seq, prompt: prompt.len(), tokens: &tokens, start: tokens.len() - 1, table, sample: true };
        let report = rig.step(&[part]);
        votes += report.counters[0];
        tokens.extend(report.sampled[0].as_ref().map(|s| s.token));
    }
    (tokens.split_off(prompt.len()), votes)
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

pub fn assert_skips(votes: &SkipCounters) {
    assert!(0 < votes.skipped && votes.skipped < votes.votes, "nothing or everything was skipped: {votes:?}");
}

/// Votes may differ by `turned` of a thousand, logits by `bound`.
fn chunks_are_the_whole<B: Backend>(backend: B, turned: u64, bound: f32) {
    let checkpoint = checkpoint("smollm2");
    let mut rig = Rig::new(&checkpoint, backend);
    let table = Some(rig.set_table(0, &[(1024, 600.0)]));
    let tokens = prompt(&checkpoint, 0, 2100);
    let (whole_votes, whole) = prefill(&mut rig, 0, &tokens, tokens.len(), table);
    assert_skips(&whole_votes);
    for chunk in [PAGE, 5 * PAGE] {
        let (votes, logits) = prefill(&mut rig, 1, &tokens, chunk, table);
        let off = largest_difference(&whole, &logits);
        println!("chunks of {chunk}: {} of {} tiles skipped, logits differ by at most {off:.5}", votes.skipped, votes.votes);
        assert_eq!(votes.votes, whole_votes.votes, "chunks of {chunk}");
        assert!(
            votes.skipped.abs_diff(whole_votes.skipped) * 1000 <= turned * votes.votes,
            "chunks of {chunk}: {votes:?}, {whole_votes:?}"
        );
        assert!(off < bound, "chunks of {chunk}: {off}");
    }
}

#[test]
fn a_prompt_in_chunks_votes_as_the_whole_and_computes_the_same() {
    chunks_are_the_whole(cpu(Precision::Auto), 0, 0.02);
}

/// A product's sums depend on its rows there, so bfloat16 activations differ in their last bit, and votes at the edge with them.
#[test]
#[ignore = "needs a CUDA device and target/cubins"]
fn cuda_chunks_are_the_whole() {
    chunks_are_the_whole(cuda(), 5, 0.3);
}

#[test]
fn a_batch_gives_each_what_it_gets_alone() {
    let checkpoint = checkpoint("smollm2");
    let mut rig = Rig::new(&checkpoint, cpu(Precision::Float32));
    let prefill_table = Some(rig.set_table(0, &[(512, 300.0)]));
    let decode_table = Some(rig.set_table(1, &[(512, 20.0)]));
    let prompts: Vec<Vec<u32>> = [(0, 1100), (1200, 650), (1900, 70)].iter().map(|&(from, n)| prompt(&checkpoint, from, n)).collect();
    let tables = [(prefill_table, decode_table), (None, decode_table), (prefill_table, None)];
    let count = 8;

    let mut alone = Vec::new();
    for (tokens, (prefill_table, decode_table)) in prompts.iter().zip(tables) {
        let (votes, logits) = prefill(&mut rig, 3, tokens, tokens.len(), prefill_table);
        let first = argmax(&logits);
        let (answer, decode_votes) = decode(&mut rig, 3, tokens, first, count, decode_table);
        alone.push((answer, votes, decode_votes));
    }
    assert_skips(&alone[0].1);
    assert_skips(&alone[0].2);

    // Together: ragged prefill in one step, the longest one's in two beside the others' first decodes.
    let mut tokens = prompts.clone();
    let mut votes = [[SkipCounters::default(); 2]; 3];
    let mut cached = [0; 3];
    let mut steps = 0;
    while (0..3).any(|s| tokens[s].len() < prompts[s].len() + count) {
        let mut parts = Vec::new();
        for s in (0..3).filter(|&s| tokens[s].len() < prompts[s].len() + count) {
            let prefilling = cached[s] < prompts[s].len();
            let end = if prefilling { (cached[s] + 8 * PAGE).min(prompts[s].len()) } else { tokens[s].len() };
            let table = if prefilling { tables[s].0 } else { tables[s].1 };
            let sample = end == tokens[s].len();
            parts.push(Part { seq: s, prompt: prompts[s].len(), tokens: &tokens[s][..end], start: cached[s], table, sample });
        }
        let report = rig.step(&parts);
        let done: Vec<(usize, usize, bool)> = parts.iter().map(|p| (p.seq, p.tokens.len(), p.start >= p.prompt)).collect();
        for (i, (s, end, decoding)) in done.into_iter().enumerate() {
            votes[s][usize::from(decoding)] += report.counters[i];
            cached[s] = end;
            tokens[s].extend(report.sampled[i].as_ref().map(|drawn| drawn.token));
        }
        steps += 1;
    }
    assert_eq!(steps, count + 1);
    for s in 0..3 {
        assert_eq!(tokens[s][prompts[s].len()..], alone[s].0, "tokens of sequence {s}");
        assert_eq!(votes[s], [alone[s].1, alone[s].2], "votes of sequence {s}");
    }
}
