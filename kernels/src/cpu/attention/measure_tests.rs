//! Measuring against plain arithmetic, against the kernels' own votes, and against itself on other numbers of threads.

use super::{Isa, decode_on, measure_on, prefill_on};
use crate::attention::{AttnCall, DEFAULT_VOTES};
use crate::backend::KernelError;
use crate::cpu::measure::measure as plain;
use crate::cpu::measure::tests::{Exact, Left};
use crate::cpu::pool::Pool;
use crate::gaps::{GAP_LOW, GAPS_PER_NAT, Gaps};
use skip_tables::Phase;

const PHASES: [Phase; 2] = [Phase::Prefill, Phase::Decode];
/// Head sizes and groups; few where the processor is emulated as a rule.
const SHAPES: &[(usize, usize)] = if cfg!(target_arch = "aarch64") { &[(64, 2)] } else { &[(64, 1), (64, 7), (128, 4)] };

fn attend(isa: Isa, phase: Phase, call: &mut AttnCall<'_>, pool: &Pool) -> Result<(), KernelError> {
    match phase {
        Phase::Prefill => prefill_on(isa, call, pool),
        Phase::Decode => decode_on(isa, call, pool),
    }
}

fn measured(exact: &Exact, isa: Isa, phase: Phase, ln_lambda: Option<f32>, threads: usize) -> (Left, Vec<Gaps>) {
    let (left, gaps) = exact.call(ln_lambda, |call| measure_on(isa, phase, call, &Pool::new(threads)));
    (left, gaps.unwrap())
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[track_caller]
fn assert_left(measured: &Left, alone: &Left, what: &str) {
    assert_eq!(bits(&measured.out), bits(&alone.out), "{what}: outputs");
    assert_eq!(bits(&measured.lse), bits(&alone.lse), "{what}: log-sum-exp");
    assert_eq!(measured.kept, alone.kept, "{what}: votes");
    assert_eq!(measured.counters, alone.counters, "{what}: counters");
}

#[test]
fn votes_and_masses_are_those_of_plain_arithmetic() {
    for phase in PHASES {
        for &(head_dim, group) in SHAPES {
            let exact = Exact::new(phase, head_dim, group).in_bits();
            let expected = exact.call(None, |call| plain(phase, call, &DEFAULT_VOTES)).1.unwrap();
            assert!(expected[0][0].votes[..GAPS_PER_NAT * 16].iter().any(|&n| n > 0), "a vote below the maximum");
            for isa in Isa::available() {
                let gaps = measured(&exact, isa, phase, None, 2).1;
                for (i, (found, wanted)) in gaps.iter().flatten().zip(expected.iter().flatten()).enumerate() {
                    let what = format!("{isa:?} {phase:?} d {head_dim}, group {group}, histogram {i}");
                    assert_eq!(found.votes, wanted.votes, "{what}");
                    for (bin, (a, b)) in found.mass.iter().zip(&wanted.mass).enumerate() {
                        assert!((a - b).abs() <= 1e-5 * b, "{what}, bin {bin}: {a} for {b}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_a_call_leaves_is_the_same_and_edges_tell_its_skips() {
    for phase in PHASES {
        for &(head_dim, group) in SHAPES {
            // In nats: gaps lie on edges, where only the kernel's own arithmetic agrees with the kernel.
            let exact = Exact::new(phase, head_dim, group);
            for isa in Isa::available() {
                let what = format!("{isa:?} {phase:?} d {head_dim}, group {group}");
                let (dense, gaps) = measured(&exact, isa, phase, None, 2);
                assert_left(&dense, &exact.call(None, |call| attend(isa, phase, call, &Pool::new(2)).unwrap()).0, &what);
                let mut some = 0;
                for bin in [15 * GAPS_PER_NAT, 15 * GAPS_PER_NAT + 2, 16 * GAPS_PER_NAT - 8, 16 * GAPS_PER_NAT - 1] {
                    let ln_lambda = Some(GAP_LOW as f32 + bin as f32 / GAPS_PER_NAT as f32);
                    let what = format!("{what} at {ln_lambda:?}");
                    let (left, again) = measured(&exact, isa, phase, ln_lambda, 2);
                    assert_left(&left, &exact.call(ln_lambda, |call| attend(isa, phase, call, &Pool::new(2)).unwrap()).0, &what);
                    assert_eq!(again, gaps, "{what}: histograms do not depend on thresholds");
                    for (gaps, counted) in gaps.iter().zip(&left.counters) {
                        assert_eq!(gaps[0].votes.iter().sum::<u64>(), counted.votes, "{what}");
                        assert_eq!(gaps[0].votes[..bin].iter().sum::<u64>(), counted.skipped, "{what}");
                        some += usize::from(0 < counted.skipped && counted.skipped < counted.votes);
                    }
                }
                assert!(some > 0, "{what}: no threshold skips some and keeps some");
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    for phase in PHASES {
        let exact = Exact::new(phase, 64, 4);
        let (one, gaps) = measured(&exact, Isa::detect(), phase, Some(-1.0), 1);
        for threads in [2, 5] {
            let (more, again) = measured(&exact, Isa::detect(), phase, Some(-1.0), threads);
            assert_left(&more, &one, "threads");
            assert_eq!(again, gaps, "{phase:?} on {threads} threads");
        }
    }
}

#[test]
fn windowed_layers_are_computed_and_have_no_votes() {
    for phase in PHASES {
        let mut exact = Exact::new(phase, 64, 4);
        exact.geometry.window = Some(100);
        for isa in Isa::available() {
            let (left, gaps) = measured(&exact, isa, phase, Some(-1.0), 2);
            assert_left(&left, &exact.call(Some(-1.0), |call| attend(isa, phase, call, &Pool::new(2)).unwrap()).0, "windowed");
            assert_eq!(gaps, vec![Gaps::default(); gaps.len()], "{phase:?}");
        }
    }
}
