//! The backend's operators through the trait, against plain float64.

use half::f16;

use super::*;
use crate::backend::{TableSlot, WeightFormat};
use crate::cpu::matmul::tests::{numbers, source};
use crate::pages::{KvFormat, PAGE};
use crate::sampling::SamplingParams;

const G: AttnGeometry = AttnGeometry { heads: 6, kv_heads: 2, head_dim: 64, scale: 0.125, window: None };
const COLS: usize = (6 + 2 * 2) * 64;

fn backend() -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: Some(2), precision: Precision::Float32 })
}

fn prefill<'a>(tokens: &'a [u32], start: usize, pages: &'a [u32], sample: Option<&'a SamplingParams>) -> SeqStep<'a> {
    SeqStep {
        tokens,
        start,
        final_len: start + tokens.len(),
        phase: Phase::Prefill,
        table: None,
        block_table: pages,
        sample,
        measure: false,
    }
}

fn fill(tensor: &mut Tensor, values: &[f32]) {
    tensor.data[..values.len()].copy_from_slice(values);
}

fn rope() -> Rope {
    Rope { inv_freq: (0..32).map(|i| 10_000f32.powf(-(i as f32) / 32.0)).collect(), factor: 1.0 }
}

/// Runs qkv_store over `rows` rows of the step and gives back the packed rows.
fn store(
    b: &mut CpuBackend,
    pool: &mut KvPool,
    rows: usize,
    seed: f64,
    bias: Option<&Vec<f32>>,
    norm: Option<(&Vec<f32>, &Vec<f32>)>,
) -> Vec<f32> {
    let table = b.rope_table(&rope(), 4096).unwrap();
    let mut qkv = b.tensor(rows, COLS).unwrap();
    fill(&mut qkv, &numbers(rows * COLS, seed));
    let args = QkvStore { geometry: G, bias, qk_norm: norm.map(|(q, k)| (q, k, 1e-6)), rope: &table };
    b.qkv_store(&mut qkv, &args, pool).unwrap();
    qkv.data.to_vec()
}

#[test]
fn qkv_store_adds_bias_norms_rotates_and_stores() {
    let mut b = backend();
    let (bias, qn, kn) = (numbers(COLS, 1.0), numbers(64, 2.0), numbers(64, 3.0));
    let layout = PageLayout { kv_heads: 2, head_dim: 64, format: KvFormat::Fp16 };
    let mut pool = b.kv_pool(layout, 4).unwrap();
    let (tokens, pages, start) = (vec![0u32; 40], [3, 1], 100);
    b.begin_step(&[prefill(&tokens, start, &pages, None)]).unwrap();
    let got = store(&mut b, &mut pool, 40, 0.5, Some(&bias), Some((&qn, &kn)));
    let input = numbers(40 * COLS, 0.5);
    for r in 0..40 {
        let position = start + r;
        for h in 0..10 {
            let mut x: Vec<f64> = (0..64).map(|i| f64::from(input[r * COLS + h * 64 + i]) + f64::from(bias[h * 64 + i])).collect();
            if h < 8 {
                let norm = if h < 6 { &qn } else { &kn };
                let rms = (x.iter().map(|x| x * x).sum::<f64>() / 64.0 + 1e-6).sqrt();
                x.iter_mut().zip(norm).for_each(|(x, &w)| *x *= f64::from(w) / rms);
                for i in 0..32 {
                    let (sin, cos) = (position as f64 * f64::from(rope().inv_freq[i])).sin_cos();
                    (x[i], x[i + 32]) = (x[i] * cos - x[i + 32] * sin, x[i + 32] * cos + x[i] * sin);
                }
            }
            for (i, &want) in x.iter().enumerate() {
                let value = got[r * COLS + h * 64 + i];
                assert!((f64::from(value) - want).abs() < 1e-4, "row {r} head {h} element {i}: {value} for {want}");
                if h >= 6 {
                    let pages_of = if h < 8 { &pool.k } else { &pool.v };
                    let at = layout.offset(pages[position / PAGE], h % 2, position % PAGE) + i;
                    assert_eq!(pages_of[at], f16::from_f32(value).to_bits());
                }
            }
        }
    }
}

#[test]
fn two_rotations_of_a_step_keep_their_angles() {
    let mut b = backend();
    let layout = PageLayout { kv_heads: 2, head_dim: 64, format: KvFormat::Fp16 };
    let mut pool = b.kv_pool(layout, 1).unwrap();
    let still = b.rope_table(&Rope { inv_freq: vec![0.0; 32], factor: 1.0 }, 64).unwrap();
    let turning = b.rope_table(&rope(), 64).unwrap();
    let mut qkv = b.tensor(2, COLS).unwrap();
    let mut stored = |b: &mut CpuBackend, start: usize, rope: &RopeTable| {
        fill(&mut qkv, &numbers(2 * COLS, 0.5));
        if rope.place() == still.place() && start > 0 {
            b.begin_step(&[prefill(&[0, 0], start, &[0], None)]).unwrap();
        }
        b.qkv_store(&mut qkv, &QkvStore { geometry: G, bias: None, qk_norm: None, rope }, &mut pool).unwrap();
        qkv.data[..COLS].to_vec()
    };
    b.begin_step(&[prefill(&[0, 0], 5, &[0], None)]).unwrap();
    let turned = stored(&mut b, 0, &turning);
    assert_eq!(stored(&mut b, 0, &still), numbers(2 * COLS, 0.5)[..COLS]);
    assert_eq!(stored(&mut b, 0, &turning), turned);
    stored(&mut b, 9, &still);
    assert_ne!(stored(&mut b, 0, &turning), turned, "another step's positions");
}

#[test]
fn the_tail_of_a_fresh_page_of_v_is_zero_and_a_used_page_keeps_its_rows() {
    let mut b = backend();
    let layout = PageLayout { kv_heads: 2, head_dim: 64, format: KvFormat::Bf16 };
    let mut pool = b.kv_pool(layout, 3).unwrap();
    pool.v.fill(0x7fc0); // NaN, as a reused page might hold
    let (first, second) = (vec![0u32; 100], vec![0u32; 60]);
    let pages = [2, 0];
    b.begin_step(&[prefill(&first, 0, &pages, None)]).unwrap();
    store(&mut b, &mut pool, 100, 0.1, None, None);
    let nan = |pool: &KvPool, slots: std::ops::Range<usize>, page| {
        let of = |h: usize| slots.clone().map(move |s| layout.offset(page, h, s));
        (0..2).flat_map(of).filter(|&at| pool.v[at..at + 64].contains(&0x7fc0)).count()
    };
    assert_eq!(nan(&pool, 0..PAGE, 2), 0);
    let before = pool.v[layout.offset(2, 1, 99)..][..64].to_vec();
    b.begin_step(&[prefill(&second, 100, &pages, None)]).unwrap();
    store(&mut b, &mut pool, 60, 0.2, None, None);
    assert_eq!(pool.v[layout.offset(2, 1, 99)..][..64], before);
    assert_eq!(nan(&pool, 0..PAGE, 0), 0);
    assert_eq!(nan(&pool, 0..PAGE, 1), 2 * PAGE);
}

#[test]
fn a_page_that_ends_with_the_step_leaves_the_next_alone() {
    let mut b = backend();
    let layout = PageLayout { kv_heads: 2, head_dim: 64, format: KvFormat::Bf16 };
    let mut pool = b.kv_pool(layout, 2).unwrap();
    pool.v.fill(1);
    let tokens = vec![0u32; PAGE];
    b.begin_step(&[prefill(&tokens, 0, &[0, 1], None)]).unwrap();
    store(&mut b, &mut pool, PAGE, 0.1, None, None);
    assert!(pool.v[layout.page_len()..].iter().all(|&x| x == 1));
}

#[test]
fn mixed_steps_give_each_sequence_what_it_gets_alone() {
    let layout = PageLayout { kv_heads: 2, head_dim: 64, format: KvFormat::Fp16 };
    let chunk: Vec<u32> = (0..70).map(|i| i % 50).collect();
    let greedy = SamplingParams { logprobs: Some(3), ..SamplingParams::default() };
    let table = ScaleTable::new(vec![(1, 5.0).into()], None).unwrap();
    // Sequence A decodes at 130 with a table; B prefills its second chunk; C is decoded dense.
    let run = |which: &[usize]| {
        let mut b = backend();
        b.set_table(TableSlot(2), &table).unwrap();
        let mut pool = b.kv_pool(layout, 8).unwrap();
        let embedding = source(50, 64, WeightFormat::Bf16, &numbers(50 * 64, 0.1));
        let embedding = b.matrix(&[embedding]).unwrap();
        let qkv_w = b.matrix(&[source(COLS, 64, WeightFormat::Bf16, &numbers(COLS * 64, 0.2))]).unwrap();
        let out_w = b.matrix(&[source(64, 384, WeightFormat::Bf16, &numbers(64 * 384, 0.3))]).unwrap();
        let rope = b.rope_table(&rope(), 4096).unwrap();
        let norm = b.vector(&[0.02; 64]).unwrap();
        let mut tensors: Vec<Tensor> = [64, 64, COLS, 384, 64].iter().map(|&c| b.tensor(300, c).unwrap()).collect();
        let [x, n, qkv, heads, delta] = &mut tensors[..] else { unreachable!() };
        let history: Vec<u32> = (0..130).map(|i| (i * 7) % 50).collect();
        let pages = [[0, 1], [4, 3], [6, 2]];
        let last = [[9u32], [0], [11]];
        let first = [
            prefill(&history, 0, &pages[0], None),
            prefill(&history[..128], 0, &pages[1], None),
            prefill(&history[5..100], 0, &pages[2], None),
        ];
        let decode = |start, i: usize, table| SeqStep {
            tokens: &last[i],
            start,
            final_len: start + 1,
            phase: Phase::Decode,
            table,
            block_table: &pages[i],
            sample: Some(&greedy),
            measure: false,
        };
        let second = [decode(130, 0, Some(TableSlot(2))), prefill(&chunk, 128, &pages[1], Some(&greedy)), decode(95, 2, None)];
        let mut report = StepReport::default();
        for seqs in first.iter().map(|s| vec![s.clone()]).chain([which.iter().map(|&i| second[i].clone()).collect()]) {
            b.begin_step(&seqs).unwrap();
            b.embed(&embedding, 1.0, x).unwrap();
            b.rms_norm(x, &norm, 1e-5, n).unwrap();
            b.matmul(n, &qkv_w, qkv).unwrap();
            b.qkv_store(qkv, &QkvStore { geometry: G, bias: None, qk_norm: None, rope: &rope }, &mut pool).unwrap();
            b.attention(qkv, &G, &pool, heads).unwrap();
            b.matmul(heads, &out_w, delta).unwrap();
            b.add_rms_norm(x, delta, None, &norm, 1e-5, n).unwrap();
            b.last_rows(n, delta).unwrap();
            b.sample(delta, &embedding).unwrap();
            b.finish(&mut report).unwrap();
        }
        (report, b.logits())
    };
    let (together, logits) = run(&[0, 1, 2]);
    assert_eq!(logits.len(), 3);
    assert!(together.counters[1].votes == 0 && together.counters[2].votes == 0, "dense sequences take no votes");
    for (i, beside) in logits.iter().enumerate() {
        let (alone, row) = run(&[i]);
        assert_eq!(alone.sampled[0], together.sampled[i], "sequence {i}");
        assert_eq!(&row[0], beside);
        assert_eq!(alone.counters[0], together.counters[i]);
    }
}

#[test]
fn steps_that_do_not_fit_are_refused() {
    let mut b = backend();
    let page = [0u32];
    let refused = |b: &mut CpuBackend, seq: SeqStep<'_>| assert!(matches!(b.begin_step(&[seq]), Err(KernelError::Invalid(_))));
    refused(&mut b, prefill(&[], 0, &page, None));
    refused(&mut b, prefill(&[1], 128, &page, None));
    refused(&mut b, SeqStep { table: Some(TableSlot(9)), ..prefill(&[1], 0, &page, None) });
    refused(&mut b, SeqStep { phase: Phase::Decode, ..prefill(&[1, 2], 0, &page, None) });
    let table = b.lookup_table(&source(4, 8, WeightFormat::Bf16, &[0.5; 32])).unwrap();
    let mut out = b.tensor(2, 8).unwrap();
    b.begin_step(&[prefill(&[4], 0, &page, None)]).unwrap();
    assert!(b.embed(&table, 1.0, &mut out).is_err(), "a token outside the vocabulary");
    b.begin_step(&[prefill(&[1, 2, 3], 0, &page, None)]).unwrap();
    assert!(b.embed(&table, 1.0, &mut out).is_err(), "more rows than the tensor");
    b.begin_step(&[prefill(&[1, 2], 0, &page, None)]).unwrap();
    b.embed(&table, 2.0, &mut out).unwrap();
    assert_eq!(out.data.to_vec(), vec![1.0; 16]);
}
