//! Decode: scan, then gather.

use crate::fixture::{Sequence, Who, assert_same, best, decode, everyone, geometry, run, sequence};
use skip_kernels::KvFormat;
use skip_kernels::attention::AttnGeometry;
use skip_kernels::cpu::pool::Pool;

const SOME: Option<f32> = Some(-2.5);

#[test]
fn every_instruction_set_votes_as_the_scalar_reference() {
    let shapes = [(14, 2, 64, 1500), (9, 3, 64, 700), (8, 2, 128, 777), (4, 1, 256, 900), (5, 5, 64, 257), (8, 1, 64, 31), (6, 1, 64, 1)];
    for (i, (heads, kv_heads, d, len)) in shapes.into_iter().enumerate() {
        let g = geometry(heads, kv_heads, d);
        let seqs = [sequence(&g, 1, len, SOME, i as u64), sequence(&g, 1, len, None, i as u64)];
        for format in [KvFormat::Fp16, KvFormat::Bf16] {
            let reference = decode(Who::Scalar, &g, format, &seqs);
            if len > 300 {
                assert!(0 < reference[0].skipped() && reference[0].skipped() < reference[0].votes());
                assert!(reference[0].counters.bytes_not_read > 0);
            }
            for who in &everyone()[1..] {
                for (a, b) in decode(*who, &g, format, &seqs).iter().zip(&reference) {
                    assert_same(a, b, &format!("{who:?} {format:?} {heads}/{kv_heads} heads of {d}, {len} keys"));
                }
            }
        }
    }
}

#[test]
fn a_batch_gives_each_sequence_what_it_gets_alone() {
    let g = geometry(9, 3, 64);
    let seqs: Vec<Sequence> = [(900, SOME), (1, SOME), (1200, None), (256, SOME), (129, Some(-0.5))]
        .iter()
        .enumerate()
        .map(|(i, &(n, l))| sequence(&g, 1, n, l, i as u64))
        .collect();
    for who in everyone() {
        let together = decode(who, &g, KvFormat::Fp16, &seqs);
        assert!(together[0].skipped() > 0);
        for (seq, answer) in seqs.iter().zip(&together) {
            assert_eq!(answer, &decode(who, &g, KvFormat::Fp16, std::slice::from_ref(seq))[0], "{who:?} {} keys", seq.kv_len);
        }
        assert_eq!(together[2].counters.votes, 0, "dense attention takes no votes");
    }
    let on = |threads| run(best(), &g, KvFormat::Fp16, &seqs, &Pool::new(threads), true).unwrap();
    assert_eq!(on(1), on(4), "the number of threads changes nothing");
}

/// Queries along unit vector 0 with strength 1; key j scores `score(j)` for every head.
fn scored(g: &AttnGeometry, kv_len: usize, score: impl Fn(usize) -> f32) -> Sequence {
    let d = g.head_dim;
    let mut seq = sequence(g, 1, kv_len, Some(-5.0), 1);
    seq.q.fill(0.0);
    seq.k.fill(0.0);
    seq.q.chunks_exact_mut(d).for_each(|q| q[0] = 1.0);
    for key in 0..kv_len {
        for head in 0..g.kv_heads {
            seq.k[(key * g.kv_heads + head) * d] = score(key) / g.scale;
        }
    }
    seq
}

#[test]
fn runs_are_measured_from_the_true_maximum_wherever_it_lies() {
    let g = geometry(4, 2, 64);
    // the maximum is in the last run, beyond several spans; a running maximum would have kept every run before it
    let seq = scored(&g, 700, |key| if key == 699 { 10.0 } else { (key / 32 % 2) as f32 * 6.0 });
    let expected: Vec<u8> = (0..22).map(|run| u8::from(run % 2 == 1 || run == 21)).collect();
    for who in everyone() {
        let answer = &decode(who, &g, KvFormat::Fp16, std::slice::from_ref(&seq))[0];
        assert_eq!(answer.kept, [expected.clone(), expected.clone()].concat(), "{who:?}");
        assert_eq!(answer.counters.votes, 44);
        assert_eq!(answer.counters.bytes_not_read, answer.counters.skipped * 32 * 64 * 2, "{who:?}");
    }
}

#[test]
fn one_head_keeps_a_run_for_its_group_alone() {
    let g = geometry(6, 2, 64);
    let mut seq = scored(&g, 160, |key| if key < 32 { 10.0 } else { 0.0 });
    // head 4 (second group) also looks along unit vector 1, where only run 3 has anything
    seq.q[4 * 64 + 1] = 1.0;
    for key in 96..128 {
        for head in 0..2 {
            seq.k[(key * 2 + head) * 64 + 1] = 6.0 / g.scale;
        }
    }
    for who in everyone() {
        assert_eq!(decode(who, &g, KvFormat::Fp16, std::slice::from_ref(&seq))[0].kept, [1, 0, 0, 0, 0, 1, 0, 0, 1, 0], "{who:?}");
    }
}

#[test]
fn windowed_layers_see_their_window_and_never_skip() {
    for window in [1, 31, 100, 256, 300, 4000] {
        let g = AttnGeometry { window: Some(window), ..geometry(6, 2, 64) };
        let seqs = [sequence(&g, 1, 777, Some(-0.1), 1), sequence(&g, 1, 90, Some(-0.1), 2)];
        let reference = decode(Who::Scalar, &g, KvFormat::Fp16, &seqs);
        for who in &everyone()[1..] {
            for (a, b) in decode(*who, &g, KvFormat::Fp16, &seqs).iter().zip(&reference) {
                assert_same(a, b, &format!("{who:?} window {window}"));
                assert_eq!((a.skipped(), a.counters.votes), (0, 0));
            }
        }
    }
}

#[test]
fn decode_is_the_last_row_of_prefill() {
    let g = geometry(6, 2, 64);
    let whole = sequence(&g, 300, 300, None, 4);
    let row = g.heads * g.head_dim;
    for who in everyone() {
        let all = crate::fixture::prefill(who, &g, KvFormat::Fp16, std::slice::from_ref(&whole)).remove(0);
        let last = decode(who, &g, KvFormat::Fp16, &[whole.chunk(&g, 299, 300)]).remove(0);
        for (a, b) in last.out.iter().zip(&all.out[299 * row..]) {
            assert!((a - b).abs() < 1e-5, "{who:?}: {a} and {b}");
        }
    }
}
