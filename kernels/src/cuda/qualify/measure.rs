//! Measuring attention: outputs to the bit those of the dense kernel, votes and masses by gap as plain arithmetic has them.

use super::super::attend::Attend;
use super::attention::{Data, Form, Skips, types_of};
use super::rig::AGAIN;
use super::{Failure, Needs};
use crate::attention::DEFAULT_VOTES;
use crate::cpu::measure::each_vote;
use crate::gaps::{GAP_BINS, GAP_LOW, GAPS_PER_NAT, GapHistogram};
use skip_tables::Phase;

/// How far rounding may move a gap, in nats: a sixteenth of a bin.
const ROUNDING: f64 = 1.0 / (16 * GAPS_PER_NAT) as f64;
/// How far it may move a sum of masses, as a share of it.
const MASS: f64 = 1e-3;

pub(super) fn name(phase: Phase, needs: &Needs) -> String {
    let (types, d) = (types_of(needs), needs.head_dim);
    match phase {
        Phase::Prefill => format!("attn_prefill_{types}_d{d}_measure_mma"),
        Phase::Decode => format!("attn_decode_{types}_d{d}_measure"),
    }
}

pub(super) fn run(on: &mut Attend, needs: &Needs, phase: Phase) -> Result<f32, Failure> {
    let form = match phase {
        Phase::Prefill => Form::Prefill { skip: false, own: false },
        Phase::Decode => Form::Decode(Skips::None),
    };
    let (data, outputs) = (Data::new(needs, form), needs.rounding());
    (on.gather, on.attention.portable) = (false, true);
    let (dense, _) = data.run(|phase, call| on.run_as(phase, call, outputs, 0))?;
    let gaps = on.no_gaps(data.seqs())?;
    let (measured, _) = data.run(|phase, call| on.call(phase, call, outputs, 0, gaps.ptr()))?;
    for (what, a, b) in [("output", &measured.out, &dense.out), ("log-sum-exp", &measured.lse, &dense.lse)] {
        if let Some(i) = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits()) {
            return Err(Failure::Differs(format!("{what} {i} is {} for the dense kernel's {}", a[i], b[i])));
        }
    }
    let mut votes = vec![[Vec::new(), Vec::new()]; data.seqs()];
    data.run(|phase, call| {
        each_vote(phase, call, &DEFAULT_VOTES, &mut |seq, histogram, gap, mass| votes[seq][histogram].push((gap, mass))).map(|()| 0.0)
    })?;
    for (i, (found, votes)) in on.histograms(&gaps, data.seqs())?.iter().zip(&votes).enumerate() {
        for (histogram, (found, votes)) in found.iter().zip(votes).enumerate() {
            agree(found, votes).map_err(|what| Failure::Differs(format!("sequence {i}, histogram {histogram}: {what}")))?;
        }
    }
    // What this adds to the histograms is read by nobody.
    let (_, time) = data.run(|phase, call| on.call(phase, call, outputs, AGAIN, gaps.ptr()))?;
    Ok(time)
}

/// Holds a histogram to the votes it should have, (gap, mass) each: under every edge at least those that lie below it by more than rounding,
/// at most those that do not lie above it by more.
fn agree(found: &GapHistogram, votes: &[(f64, f64)]) -> Result<(), String> {
    let mut votes = votes.to_vec();
    votes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let below = |edge: f64, passed: &mut (usize, f64)| {
        while votes.get(passed.0).is_some_and(|&(gap, _)| gap < edge) {
            *passed = (passed.0 + 1, passed.1 + votes[passed.0].1);
        }
        *passed
    };
    let (mut least, mut most, mut count, mut mass) = ((0, 0.0), (0, 0.0), 0u64, 0.0);
    for bin in 0..GAP_BINS {
        count += found.votes[bin];
        mass += found.mass[bin];
        // The last bin has no upper edge.
        let edge = if bin + 1 == GAP_BINS { f64::INFINITY } else { f64::from(GAP_LOW) + (bin + 1) as f64 / GAPS_PER_NAT as f64 };
        let (low, high) = (below(edge - ROUNDING, &mut least), below(edge + ROUNDING, &mut most));
        let (low, high) = if edge.is_finite() { (low, high) } else { whole(&votes) };
        if count < low.0 as u64 || count > high.0 as u64 {
            return Err(format!("{count} votes of a gap below {edge} for {} to {}", low.0, high.0));
        }
        let slack = MASS * high.1.max(1.0);
        if !(low.1 - slack..=high.1 + slack).contains(&mass) {
            return Err(format!("a mass of {mass} below {edge} for {} to {}", low.1, high.1));
        }
    }
    Ok(())
}

/// Number and mass of all votes, as both bounds.
fn whole(votes: &[(f64, f64)]) -> ((usize, f64), (usize, f64)) {
    let all = (votes.len(), votes.iter().map(|v| v.1).sum());
    (all, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOTES: [(f64, f64); 5] = [(-20.0, 0.1), (-3.3, 0.5), (-1.001, 1.0), (-0.2, 7.0), (f64::INFINITY, 40.0)];

    fn histogram(votes: &[(f64, f64)]) -> GapHistogram {
        let mut histogram = GapHistogram::default();
        votes.iter().for_each(|&(gap, mass)| histogram.add(gap, mass));
        histogram
    }

    #[test]
    fn the_same_votes_agree_and_none_agree_with_none() {
        assert_eq!(agree(&histogram(&VOTES), &VOTES), Ok(()));
        assert_eq!(agree(&GapHistogram::default(), &[]), Ok(()));
    }

    #[test]
    fn only_a_gap_within_rounding_of_an_edge_may_lie_on_its_other_side() {
        let near = [(-1.0 - 0.5 * ROUNDING, 1.0)];
        assert_eq!(agree(&histogram(&[(-1.0 + 0.5 * ROUNDING, 1.0)]), &near), Ok(()));
        let far = [(-1.0 - 2.0 * ROUNDING, 1.0)];
        assert!(agree(&histogram(&[(-1.0 + ROUNDING, 1.0)]), &far).unwrap_err().contains("votes of a gap below -1 "));
        assert!(agree(&histogram(&[(-1.0 - 2.0 / GAPS_PER_NAT as f64, 1.0)]), &far).is_err(), "moved down");
    }

    #[test]
    fn a_vote_or_a_mass_too_many_or_too_few_is_told() {
        assert!(agree(&histogram(&VOTES[1..]), &VOTES).is_err());
        assert!(agree(&histogram(&VOTES[..4]), &VOTES).unwrap_err().contains("below inf"));
        assert!(agree(&histogram(&VOTES), &VOTES[..4]).is_err());
        let mut heavy = histogram(&VOTES);
        heavy.mass[GAP_BINS - 1] += 0.1;
        assert!(agree(&heavy, &VOTES).unwrap_err().contains("mass"));
        heavy.mass[GAP_BINS - 1] = f64::NAN;
        assert!(agree(&heavy, &VOTES).is_err());
    }
}
