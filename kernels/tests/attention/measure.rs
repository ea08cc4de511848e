//! Measuring on random structured sequences: every instruction set against its own votes and against plain arithmetic.

use crate::fixture::{Answer, Sequence, Who, geometry, run, sequence, with_call};
use skip_kernels::attention::{AttnGeometry, DEFAULT_VOTES};
use skip_kernels::cpu::attention::{Isa, measure_on};
use skip_kernels::cpu::measure::measure;
use skip_kernels::cpu::pool::Pool;
use skip_kernels::gaps::{GAP_BINS, GAP_LOW, GAPS_PER_NAT, GapHistogram, Gaps};
use skip_kernels::{KvFormat, Phase};

fn measured(isa: Isa, phase: Phase, g: &AttnGeometry, format: KvFormat, seqs: &[Sequence], threads: usize) -> (Vec<Answer>, Vec<Gaps>) {
    let mut gaps = Vec::new();
    let answers = with_call(g, format, seqs, 7, |call| {
        gaps = measure_on(isa, phase, call, &Pool::new(threads))?;
        Ok(())
    });
    (answers.expect("a call that fits"), gaps)
}

fn expected(phase: Phase, g: &AttnGeometry, format: KvFormat, seqs: &[Sequence]) -> Vec<Gaps> {
    let mut gaps = Vec::new();
    let _answers = with_call(g, format, seqs, 7, |call| {
        gaps = measure(phase, call, &DEFAULT_VOTES)?;
        call.out.fill(0.0);
        // The fixture looks for writes to rows of nobody.
        let width = call.geometry.heads * call.geometry.head_dim;
        call.seqs.iter().for_each(|s| call.out[(s.row + s.q_len) * width..][..width].fill(f32::NAN));
        Ok(())
    });
    gaps
}

fn below(histogram: &GapHistogram, bin: usize) -> (u64, f64) {
    (histogram.votes[..bin].iter().sum(), histogram.mass[..bin].iter().sum())
}

/// Votes and masses below any gap lie between those of one bin less and one bin more, totals agree.
#[track_caller]
fn assert_near(found: &GapHistogram, wanted: &GapHistogram, what: &str) {
    let ((votes, mass), all) = (below(found, GAP_BINS), below(wanted, GAP_BINS));
    assert_eq!(votes, all.0, "{what}");
    assert!((mass - all.1).abs() <= 1e-5 * all.1, "{what}: mass {mass} for {}", all.1);
    for bin in 1..GAP_BINS {
        let (less, more) = (below(wanted, bin - 1), below(wanted, bin + 1));
        let here = below(found, bin);
        let room = 1e-4 * more.1;
        assert!((less.0..=more.0).contains(&here.0), "{what}, bin {bin}: {} votes of {} to {}", here.0, less.0, more.0);
        assert!((less.1 - room..=more.1 + room).contains(&here.1), "{what}, bin {bin}: mass {} of {} to {}", here.1, less.1, more.1);
    }
}

fn at_threshold(seqs: &[Sequence], ln_lambda: Option<f32>) -> Vec<Sequence> {
    seqs.iter().map(|s| Sequence { ln_lambda, ..s.clone() }).collect()
}

/// Holds every instruction set's histograms to its own counters at bins' edges, to plain arithmetic, and its outputs to those without measuring.
fn check(phase: Phase, g: &AttnGeometry, format: KvFormat, seqs: &[Sequence], thresholds: [f32; 3]) {
    let plain = expected(phase, g, format, seqs);
    for isa in Isa::available() {
        let what = format!("{isa:?} {phase:?} {format:?} {}/{} heads of {}", g.heads, g.kv_heads, g.head_dim);
        let (_, gaps) = measured(isa, phase, g, format, &at_threshold(seqs, None), 2);
        for (found, wanted) in gaps.iter().flatten().zip(plain.iter().flatten()) {
            assert_near(found, wanted, &what);
        }
        let mut some = 0;
        for ln_lambda in std::iter::once(None).chain(thresholds.map(Some)) {
            let seqs = at_threshold(seqs, ln_lambda);
            let (answers, again) = measured(isa, phase, g, format, &seqs, 2);
            assert_eq!(again, gaps, "{what} at {ln_lambda:?}");
            let alone = run(Who::Simd(isa), g, format, &seqs, &Pool::new(2), phase == Phase::Decode).expect("a call that fits");
            assert_eq!(answers, alone, "{what} at {ln_lambda:?}: what the call leaves");
            let Some(ln_lambda) = ln_lambda else { continue };
            let bin = ((ln_lambda - GAP_LOW as f32) * GAPS_PER_NAT as f32) as usize;
            for (gaps, counters) in gaps.iter().zip(alone.iter().map(|a| a.counters)) {
                assert_eq!(
                    (below(&gaps[0], GAP_BINS).0, below(&gaps[0], bin).0),
                    (counters.votes, counters.skipped),
                    "{what} at {ln_lambda}"
                );
                some += usize::from(0 < counters.skipped && counters.skipped < counters.votes);
            }
        }
        assert!(some > 0, "{what}: no threshold skips some and keeps some");
    }
}

#[test]
fn prefill_histograms_are_the_kernels_own_votes() {
    let shapes = [(2, 2, 64, 700), (7, 1, 64, 391), (4, 1, 128, 515), (2, 1, 256, 440)];
    for (i, (heads, kv_heads, d, len)) in shapes.into_iter().enumerate() {
        let g = geometry(heads, kv_heads, d);
        let lengths = [(len, len), (len - len / 3, len), (1, 200), (130, 131)];
        let seqs = lengths.map(|(q_len, kv_len)| sequence(&g, q_len, kv_len, None, i as u64 + q_len as u64));
        let format = if i % 2 == 0 { KvFormat::Fp16 } else { KvFormat::Bf16 };
        check(Phase::Prefill, &g, format, &seqs, [-3.0, -1.75, -0.5]);
    }
}

#[test]
fn decode_histograms_are_the_kernels_own_votes() {
    let shapes = [(2, 2, 64, 1500), (7, 1, 64, 700), (8, 2, 128, 777), (4, 1, 256, 900)];
    for (i, (heads, kv_heads, d, len)) in shapes.into_iter().enumerate() {
        let g = geometry(heads, kv_heads, d);
        let seqs = [len, 1, 129, 256, 300].map(|kv_len| sequence(&g, 1, kv_len, None, i as u64 + kv_len as u64));
        let format = if i % 2 == 0 { KvFormat::Fp16 } else { KvFormat::Bf16 };
        check(Phase::Decode, &g, format, &seqs, [-6.0, -2.5, -1.0]);
    }
}

#[test]
fn chunks_add_up_to_the_whole_prompt() {
    let g = geometry(6, 2, 64);
    let whole = sequence(&g, 900, 900, None, 3);
    for isa in Isa::available() {
        let all = measured(isa, Phase::Prefill, &g, KvFormat::Fp16, std::slice::from_ref(&whole), 2).1;
        let mut sum = GapHistogram::default();
        for cut in [0, 128, 512, 640, 900].windows(2) {
            sum += &measured(isa, Phase::Prefill, &g, KvFormat::Fp16, &[whole.chunk(&g, cut[0], cut[1])], 2).1[0][0];
        }
        assert_eq!(sum.votes, all[0][0].votes, "{isa:?}");
        assert!(sum.mass.iter().zip(&all[0][0].mass).all(|(a, b)| (a - b).abs() <= 1e-12 * b), "{isa:?}");
    }
}

#[test]
fn a_batch_gives_each_sequence_what_it_gets_alone_on_any_number_of_threads() {
    let g = geometry(8, 2, 64);
    for phase in [Phase::Prefill, Phase::Decode] {
        let rows = |n| if phase == Phase::Prefill { n } else { 1 };
        let lengths = [(700, None), (77, Some(-1.0)), (513, Some(-2.0)), (1, None)];
        let seqs: Vec<Sequence> = lengths.iter().enumerate().map(|(i, &(n, l))| sequence(&g, rows(n), n, l, i as u64)).collect();
        for isa in Isa::available() {
            let together = measured(isa, phase, &g, KvFormat::Bf16, &seqs, 1);
            for threads in [2, 5] {
                assert_eq!(together, measured(isa, phase, &g, KvFormat::Bf16, &seqs, threads), "{isa:?} {phase:?} on {threads} threads");
            }
            for (i, seq) in seqs.iter().enumerate() {
                let alone = measured(isa, phase, &g, KvFormat::Bf16, std::slice::from_ref(seq), 2);
                assert_eq!((&together.0[i], &together.1[i]), (&alone.0[0], &alone.1[0]), "{isa:?} {phase:?} {} keys", seq.kv_len);
            }
        }
    }
}

#[test]
fn head_sizes_without_a_kernel_are_measured_plainly() {
    let g = geometry(4, 2, 80);
    let seqs = [sequence(&g, 150, 150, Some(-1.0), 1)];
    let gaps = measured(Isa::detect(), Phase::Prefill, &g, KvFormat::Fp16, &seqs, 2).1;
    assert_eq!(gaps, expected(Phase::Prefill, &g, KvFormat::Fp16, &seqs));
    assert!(below(&gaps[0][0], GAP_BINS).0 > 0);
}
