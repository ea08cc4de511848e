//! Prefill: votes, masks, chunks, batches.

use crate::fixture::{Answer, Sequence, Who, assert_same, best, everyone, geometry, prefill, run, sequence};
use skip_kernels::attention::AttnGeometry;
use skip_kernels::cpu::pool::Pool;
use skip_kernels::{KvFormat, PAGE};

/// ln λ at which the fixture's sequences skip some tiles and keep others.
const SOME: Option<f32> = Some(-1.7);

fn assert_some_skipped(answer: &Answer) {
    assert!(0 < answer.skipped() && answer.skipped() < answer.votes(), "{} of {}", answer.skipped(), answer.votes());
}

#[test]
fn every_instruction_set_votes_as_the_scalar_reference() {
    let shapes = [(6, 2, 64, 700), (7, 1, 64, 391), (4, 1, 128, 515), (2, 1, 256, 640), (1, 1, 64, 129)];
    for (i, (heads, kv_heads, d, len)) in shapes.into_iter().enumerate() {
        let g = geometry(heads, kv_heads, d);
        let history = len / 3;
        let seqs = [sequence(&g, len, len, SOME, i as u64), sequence(&g, len - history, len, SOME, 100 + i as u64)];
        for format in [KvFormat::Fp16, KvFormat::Bf16] {
            let reference = prefill(Who::Scalar, &g, format, &seqs);
            reference.iter().filter(|_| len > 300).for_each(assert_some_skipped);
            for who in &everyone()[1..] {
                for (a, b) in prefill(*who, &g, format, &seqs).iter().zip(&reference) {
                    assert_same(a, b, &format!("{who:?} {format:?} {heads}/{kv_heads} heads of {d}, {len} keys"));
                }
            }
        }
    }
}

#[test]
fn a_prompt_in_chunks_votes_as_the_whole_prompt() {
    let g = geometry(6, 2, 64);
    let whole = sequence(&g, 900, 900, SOME, 3);
    for who in everyone() {
        let all = prefill(who, &g, KvFormat::Fp16, std::slice::from_ref(&whole)).remove(0);
        assert_some_skipped(&all);
        let (mut out, mut lse, mut skips) = (Vec::new(), Vec::new(), 0);
        for cut in [0, 128, 512, 640, 900].windows(2) {
            let part = prefill(who, &g, KvFormat::Fp16, &[whole.chunk(&g, cut[0], cut[1])]).remove(0);
            let (tiles, columns) = ((cut[1] - cut[0]).div_ceil(PAGE), cut[1].div_ceil(PAGE));
            for head in 0..g.heads {
                for tile in 0..tiles {
                    let line = (head * 8 + cut[0] / PAGE + tile) * 8;
                    let here = (head * tiles + tile) * columns;
                    assert_eq!(
                        part.kept[here..here + columns],
                        all.kept[line..line + columns],
                        "{who:?} head {head} tile {tile} of {cut:?}"
                    );
                }
            }
            skips += part.skipped();
            out.extend(part.out);
            lse.extend(part.lse);
        }
        assert_eq!(skips, all.skipped());
        assert_same(&Answer { out, lse, ..all.clone() }, &all, &format!("{who:?}"));
    }
}

#[test]
fn a_batch_gives_each_sequence_what_it_gets_alone() {
    let g = geometry(4, 2, 64);
    let lengths = [(700, SOME), (77, SOME), (513, None), (1, SOME), (300, Some(-0.5))];
    let seqs: Vec<Sequence> = lengths.iter().enumerate().map(|(i, &(n, l))| sequence(&g, n, n, l, i as u64)).collect();
    for who in everyone() {
        let together = prefill(who, &g, KvFormat::Fp16, &seqs);
        for (seq, answer) in seqs.iter().zip(&together) {
            assert_eq!(answer, &prefill(who, &g, KvFormat::Fp16, std::slice::from_ref(seq))[0], "{who:?} {} keys", seq.kv_len);
        }
        assert_eq!(together[2].skipped(), 0);
        assert_eq!(together[2].counters.votes, 0, "dense attention takes no votes");
    }
}

#[test]
fn a_skipping_kernel_that_skips_nothing_is_the_dense_one_to_the_bit() {
    let g = geometry(6, 2, 128);
    let seq = sequence(&g, 400, 400, None, 5);
    for who in everyone() {
        let dense = prefill(who, &g, KvFormat::Fp16, std::slice::from_ref(&seq)).remove(0);
        let never = prefill(who, &g, KvFormat::Fp16, &[Sequence { ln_lambda: Some(-1e9), ..seq.clone() }]).remove(0);
        assert_eq!((&dense.out, &dense.lse, &dense.kept), (&never.out, &never.lse, &never.kept), "{who:?}");
        assert!(never.counters.votes > 0 && never.counters.skipped == 0);
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let g = geometry(6, 2, 64);
    let seqs = [sequence(&g, 300, 500, SOME, 8), sequence(&g, 130, 130, None, 9)];
    let on = |threads| run(best(), &g, KvFormat::Bf16, &seqs, &Pool::new(threads), false).unwrap();
    let one = on(1);
    assert_some_skipped(&one[0]);
    assert_eq!(one, on(2));
    assert_eq!(one, on(5));
}

/// Keys of tile t are `strength` times the unit vector t; queries look along unit vector 0 with the strength that makes score 10.
fn staircase(g: &AttnGeometry, q_len: usize, tiles: usize) -> Sequence {
    let d = g.head_dim;
    let kv_len = (tiles - 1) * PAGE + q_len;
    let mut seq = sequence(g, q_len, kv_len, Some(-5.0), 1);
    seq.q.fill(0.0);
    seq.k.fill(0.0);
    seq.q.chunks_exact_mut(d).for_each(|q| q[0] = 10.0);
    for key in 0..kv_len {
        for head in 0..g.kv_heads {
            seq.k[(key * g.kv_heads + head) * d + key / PAGE] = 1.0 / g.scale;
        }
    }
    seq
}

#[test]
fn rows_that_do_not_exist_have_no_veto() {
    let g = geometry(2, 1, 64);
    for who in everyone() {
        let answer = &prefill(who, &g, KvFormat::Fp16, &[staircase(&g, 5, 4)])[0];
        assert_eq!(answer.kept, [1, 0, 0, 0, 1, 0, 0, 0], "{who:?}");
    }
}

#[test]
fn one_row_and_one_head_keep_a_tile_for_all() {
    let g = geometry(2, 1, 64);
    for row in [0, 3, 70, 127] {
        let mut seq = staircase(&g, 128, 4);
        // head 1 of this row scores 6 in tile 2: within e⁻⁵ of its maximum
        seq.q[(row * 2 + 1) * 64 + 2] = 6.0;
        for who in everyone() {
            let answer = &prefill(who, &g, KvFormat::Fp16, std::slice::from_ref(&seq))[0];
            assert_eq!(answer.kept, [1, 0, 0, 0, 1, 0, 1, 0], "{who:?} row {row}");
        }
    }
}

#[test]
fn a_skipped_tile_leaves_the_running_maximum_alone() {
    let g = geometry(1, 1, 64);
    let mut seq = staircase(&g, 64, 4);
    // maxima by tile: 10, 4.9 (skipped), 5.5 (kept: 4.5 below 10, not 0.6 above 4.9), 0
    seq.q.chunks_exact_mut(64).for_each(|q| (q[1], q[2]) = (4.9, 5.5));
    for who in everyone() {
        assert_eq!(prefill(who, &g, KvFormat::Fp16, std::slice::from_ref(&seq))[0].kept, [1, 0, 1, 0], "{who:?}");
    }
}

#[test]
fn windowed_layers_see_their_window_and_never_skip() {
    for (window, d) in [(1, 64), (100, 64), (128, 128), (200, 64), (5000, 64)] {
        let g = AttnGeometry { window: Some(window), ..geometry(4, 2, d) };
        let seqs = [sequence(&g, 450, 450, Some(-0.1), 11), sequence(&g, 60, 333, Some(-0.1), 12)];
        let reference = prefill(Who::Scalar, &g, KvFormat::Fp16, &seqs);
        for who in &everyone()[1..] {
            for (a, b) in prefill(*who, &g, KvFormat::Fp16, &seqs).iter().zip(&reference) {
                assert_same(a, b, &format!("{who:?} window {window}"));
                assert_eq!((a.skipped(), a.counters.votes), (0, 0));
            }
        }
    }
    // a window of one key: every row's output is its own value
    let g = AttnGeometry { window: Some(1), ..geometry(1, 1, 64) };
    let seq = sequence(&g, 200, 200, None, 13);
    let answer = &prefill(best(), &g, KvFormat::Bf16, std::slice::from_ref(&seq))[0];
    let stored: Vec<f32> = seq.v.iter().map(|&v| half::bf16::from_f32(v).to_f32()).collect();
    assert_eq!(answer.out, stored);
}

#[test]
fn a_window_without_keys_gives_zero_and_minus_infinity() {
    let g = AttnGeometry { window: Some(0), ..geometry(2, 1, 64) };
    for who in everyone() {
        let answer = &prefill(who, &g, KvFormat::Fp16, &[sequence(&g, 140, 140, None, 1)])[0];
        assert!(answer.out.iter().all(|&x| x == 0.0) && answer.lse.iter().all(|&x| x == f32::NEG_INFINITY), "{who:?}");
        assert!(answer.kept.iter().all(|&k| k == 2), "{who:?}");
    }
}
