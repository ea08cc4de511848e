//! The S of a bin that skips a target share, and what it drops.

use super::bins::Bin;
use super::curve::{Curve, Skipped};
use serde::{Deserialize, Serialize};

/// A row of a table, with what was measured of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Solved {
    /// S; None where no λ below 1 reaches the target.
    pub s: Option<f64>,
    /// Pooled over the bin's prompts: at S, or where it was not reached as λ → 1 for the bin's shortest length.
    pub skipped: Skipped,
}

/// Finds the S whose share, pooled over all votes of the bin's prompts, is `target` (0 to 1).
///
/// The share grows with S, so it is halved in; S stays below the bin's first length, or its shortest requests would be dense.
pub fn solve(bin: Bin, curves: &[Curve], target: f64) -> Solved {
    let most = bin.largest_scale();
    let at_most = pooled(curves, most);
    if at_most.share() < target {
        return Solved { s: None, skipped: at_most };
    }
    let (mut low, mut high) = (1e-6f64.ln(), most.ln());
    // Halving the logarithm's range 60 times ends below float64's own steps.
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if pooled(curves, middle.exp()).share() < target { low = middle } else { high = middle }
    }
    let s = written(high.exp()).min(most);
    Solved { s: Some(s), skipped: pooled(curves, s) }
}

/// Shares of all prompts together under one S.
pub fn pooled(curves: &[Curve], s: f64) -> Skipped {
    let mut sum = Skipped::default();
    for curve in curves {
        sum += curve.at_scale(s);
    }
    sum
}

/// S as tables have it: six digits say more than any measurement does.
pub(super) fn written(s: f64) -> f64 {
    format!("{s:.5e}").parse().unwrap_or(s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip_kernels::gaps::GapHistogram;

    /// `votes` gaps spread evenly from −`depth` to 0, and one tile in `kept` that is never skipped.
    fn even(length: usize, votes: usize, depth: f64, kept: usize) -> Curve {
        let mut gaps = GapHistogram::default();
        for i in 0..votes {
            let gap = if i % kept == 0 { 0.0 } else { -depth * (i as f64 + 0.5) / votes as f64 };
            gaps.add(gap, gap.exp());
        }
        Curve::new(length, &gaps)
    }

    #[test]
    fn the_target_is_met_and_more_needs_more() {
        let bin = Bin { first: 4096, end: 6144 };
        let curves = [even(4096, 3000, 9.0, 10), even(5000, 4000, 12.0, 10), even(6100, 5000, 10.0, 10)];
        let mut last = 0.0;
        for target in [0.1, 0.3, 0.5, 0.6, 0.75] {
            let solved = solve(bin, &curves, target);
            let s = solved.s.unwrap();
            assert!((solved.skipped.share() - target).abs() < 1e-3, "{target}: {solved:?}");
            assert!(last < s && s < 4096.0);
            assert!(0.0 < solved.skipped.mass_share() && solved.skipped.mass_share() < target);
            last = s;
        }
    }

    #[test]
    fn longer_prompts_have_a_smaller_threshold_under_one_scale() {
        let bin = Bin { first: 4096, end: 8192 };
        let (short, long) = (even(4096, 3000, 9.0, 10), even(8000, 3000, 9.0, 10));
        let s = solve(bin, &[short.clone(), long.clone()], 0.5).s.unwrap();
        let (of_short, of_long) = (short.at_scale(s).share(), long.at_scale(s).share());
        assert!(of_long < 0.5 && 0.5 < of_short, "{of_long} {of_short}");
    }

    #[test]
    fn what_no_threshold_reaches_is_said_with_the_share_there_is() {
        let bin = Bin { first: 4096, end: 6144 };
        let solved = solve(bin, &[even(4200, 3000, 9.0, 2)], 0.75);
        assert_eq!(solved.s, None);
        assert!((solved.skipped.share() - 0.5).abs() < 0.01, "{solved:?}");
        assert_eq!(solve(bin, &[], 0.5).s, None, "nothing measured, nothing reached");
    }
}
